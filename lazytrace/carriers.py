"""What Python is given in place of sizes while a recording follows them: ints whose origin is known."""

from __future__ import annotations

import collections
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lazytrace._native import available, core

# C code reads the value of an int without asking. `Dim` is an int to `isinstance` alone: C code must call one
# of the methods below to see the value. torch's parser takes it for a SymInt.


def _read(value: Any) -> Any:
    """The plain value, which the program compares from now on; anything else as it is."""
    return core.read_carrier(value) if type(value) is Dim else value


def _is_whole(value: object) -> bool:
    return type(value) in (int, bool, Dim)


def _is_number(value: object) -> bool:
    return _is_whole(value) or isinstance(value, float | complex)


def _plain_operation(function: Callable[..., Any], *values: Any) -> Any:
    return function(*map(_read, values))


def _binary(kind: str, function: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def work_out(left: Any, right: Any) -> Any:
        if _is_whole(left) and _is_whole(right) and kind:
            made = core.apply_to_carriers(kind, left, right)
            if made is not None:
                return made
        if _is_number(left) and _is_number(right):
            return _plain_operation(function, left, right)
        return NotImplemented

    def forward(self: Dim, other: Any) -> Any:
        return work_out(self, other)

    def reflected(self: Dim, other: Any) -> Any:
        return work_out(other, self)

    return forward, reflected


def _comparison(kind: str, swapped: bool, function: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    def compare(self: Dim, other: Any) -> Any:
        if _is_whole(other):
            made = core.apply_to_carriers(kind, *((other, self) if swapped else (self, other)))
            if made is not None:
                return bool(_read(made))
        if _is_number(other):
            return function(_read(self), other)
        return NotImplemented

    return compare


def _reading(name: str) -> Callable[..., Any]:
    function = getattr(int, name)

    def read(self: Dim, *args: Any, **kwargs: Any) -> Any:
        return function(_read(self), *map(_read, args), **kwargs)

    return read


def _methods() -> dict[str, Any]:
    found: dict[str, Any] = {name: _reading(name) for name in vars(int) if callable(getattr(int, name))}
    for name in ("__new__", "__getattribute__", "__doc__", "from_bytes", "__class_getitem__"):
        found.pop(name, None)
    for name in ("real", "imag", "numerator", "denominator"):
        found[name] = property(functools.partial(_part, name))
    followed = {"add": "Add", "sub": "Sub", "mul": "Mul", "floordiv": "FloorDiv", "mod": "Mod"}
    for name in (*followed, "truediv", "pow", "and", "or", "xor", "lshift", "rshift"):
        function = getattr(operator, name, None) or getattr(operator, name + "_")
        forward, reflected = _binary(followed.get(name, ""), function)
        found[f"__{name}__"], found[f"__r{name}__"] = forward, reflected
    found["__pow__"] = _power
    for name, kind, swapped in (
        ("lt", "Less", False),
        ("le", "LessEqual", False),
        ("gt", "Less", True),
        ("ge", "LessEqual", True),
        ("eq", "Equal", False),
        ("ne", "NotEqual", False),
    ):
        found[f"__{name}__"] = _comparison(kind, swapped, getattr(operator, name))
    return found


def _part(name: str, self: Dim) -> Any:
    return getattr(_read(self), name)


def _power(self: Any, exponent: Any, modulus: Any = None) -> Any:
    if modulus is None and type(exponent) is int and exponent >= 0:
        made = core.apply_to_carriers("Pow", self, exponent)
        if made is not None:
            return made
    return pow(_read(self), _read(exponent), _read(modulus)) if _is_number(exponent) else NotImplemented


def _same(self: Dim, *_: Any) -> Any:
    return self


def _unary(kind: str, self: Dim) -> Any:
    made = core.apply_to_carriers(kind, self, None)
    return getattr(operator, kind.lower())(_read(self)) if made is None else made


def _reduce(self: Dim, protocol: Any = None) -> Any:
    return int, (_read(self),)


_BODY: dict[str, Any] = {
    **_methods(),
    "__doc__": "A size of a tensor, or what Python made of sizes.",
    "__module__": __name__,
    "__pos__": _same,
    "__trunc__": _same,
    "__floor__": _same,
    "__ceil__": _same,
    "__copy__": _same,
    "__deepcopy__": _same,
    "conjugate": _same,
    "__neg__": lambda self: _unary("Neg", self),
    "__abs__": lambda self: _unary("Abs", self),
    "__invert__": lambda self: -self - 1,
    "__bool__": lambda self: self != 0,
    "__divmod__": lambda self, other: (self // other, self % other),
    "__rdivmod__": lambda self, other: (other // self, other % self),
    "__reduce_ex__": _reduce,
    "__reduce__": _reduce,
    "__sym_max__": lambda self, other: max(_read(self), _read(other)),
    "__sym_min__": lambda self, other: min(_read(self), _read(other)),
    "__sym_int__": _same,
    "__sym_float__": lambda self: float(_read(self)),
    "node": property(lambda self: core.symbolic_node(self)),
}

Dim: Any = core.make_carrier_class(_BODY, torch.SymInt) if available() else None


# ---------------------------------------------------------------- in place of what is called
def _size_of(kind: str, tensor: torch.Tensor, which: int = 0) -> int:
    return core.tensor_number(kind, tensor, which)


def _dimension(tensor: torch.Tensor, dim: Any) -> int | None:
    """The dimension as torch counts it; None when torch must say what is wrong with it."""
    if not isinstance(dim, int) or isinstance(dim, bool):
        return None
    index = operator.index(dim)
    count = tensor.dim()
    return index % count if -count <= index < count else None


def _shape(tensor: torch.Tensor) -> torch.Size:
    return torch.Size([_size_of("Size", tensor, i) for i in range(tensor.dim())])


def _size(tensor: torch.Tensor, dim: Any = None) -> Any:
    if dim is None:
        return _shape(tensor)
    index = _dimension(tensor, dim)
    return torch.Tensor.size(tensor, _read(dim)) if index is None else _size_of("Size", tensor, index)


def _stride(tensor: torch.Tensor, dim: Any = None) -> Any:
    if dim is None:
        return tuple(_size_of("Stride", tensor, i) for i in range(tensor.dim()))
    index = _dimension(tensor, dim)
    return torch.Tensor.stride(tensor, _read(dim)) if index is None else _size_of("Stride", tensor, index)


def _count(input: torch.Tensor) -> int:
    return _size_of("Count", input)


def _storage_offset(tensor: torch.Tensor) -> int:
    return _size_of("Offset", tensor)


def _is_contiguous(
    tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> bool:
    if tensor.layout is not torch.strided:
        return torch.Tensor.is_contiguous(tensor, memory_format=memory_format)
    formats = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]
    return bool(_read(_size_of("Contiguous", tensor, formats.index(memory_format))))


def _contiguous(
    tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> torch.Tensor:
    # torch's binding calls no operator for a tensor that is contiguous already.
    return core.call_contiguous(tensor, memory_format)


def _length(value: Any) -> int:
    if isinstance(value, torch.Tensor) and value.dim():
        return _size_of("Size", value, 0)
    return len(value)


def _int(*args: Any, **kwargs: Any) -> int:
    return (
        args[0]
        if len(args) == 1 and not kwargs and type(args[0]) is Dim
        else int(*map(_read, args), **kwargs)
    )


def _extreme(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(*args: Any, **kwargs: Any) -> Any:
        items: Sequence[Any] = args
        if len(args) == 1 and isinstance(args[0], list | tuple):
            items = args[0]
        if kwargs or not items or not all(map(_is_whole, items)) or bool in map(type, items):
            return function(*args, **kwargs)
        found = items[0]
        for item in items[1:]:
            made = core.apply_to_carriers(kind, found, item)
            found = function(_read(found), _read(item)) if made is None else made
        return found

    return extreme


_largest, _smallest = _extreme("Max", max), _extreme("Min", min)


def _sum(items: Any, /, start: Any = 0) -> Any:
    return (
        functools.reduce(operator.add, items, start) if isinstance(items, list | tuple) else sum(items, start)
    )


def _product(items: Any, /, *, start: Any = 1) -> Any:
    if isinstance(items, list | tuple):
        return functools.reduce(operator.mul, items, start)
    return math.prod(items, start=start)


def _tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    # The binding fills memory with the value; an operator can be given another one.
    if type(data) is Dim and not args and set(kwargs) <= {"dtype", "device"} and kwargs.get("device") is None:
        return torch.full((), data, dtype=kwargs.get("dtype") or torch.int64)
    return torch.tensor(_read_inside(data), *args, **kwargs)


def _read_inside(data: Any) -> Any:
    if isinstance(data, list | tuple):
        return [_read_inside(item) for item in data]
    return _read(data)


# ---------------------------------------------------------------- in place of operands
class _With:
    """Stands for a tensor of which one attribute is read."""

    __slots__ = ("shape",)

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape


def _attribute(tensor: torch.Tensor, name: str) -> _With:
    assert name == "shape"
    return _With(_shape(tensor))


def _as_dims(key: Any) -> Any:
    """Slices whose bounds torch compares with no size before it calls the operator."""
    if isinstance(key, tuple):
        return tuple(map(_as_dims, key))
    if not isinstance(key, slice):
        return key
    # A slice that begins at the first element is the same at all sizes.
    start = (
        key.start
        if key.start is None or (type(key.start) is int and key.start == 0)
        else _followed(key.start)
    )
    return slice(start, _followed(key.stop), _read(key.step))


def _followed(bound: Any) -> Any:
    return core.constant_carrier(bound) if type(bound) is int else bound


def _is_index(item: Any) -> bool:
    return type(item) is Dim or type(item) is int


def _selected(tensor: torch.Tensor, key: Any) -> tuple[torch.Tensor, Any]:
    """`tensor[key]` with the sizes among the indices taken out by an operator each."""
    items = key if isinstance(key, tuple) else (key,)
    plain = all(_is_index(i) or isinstance(i, slice) or i is Ellipsis or i is None for i in items)
    if not any(type(i) is Dim for i in items):
        return tensor, key
    if not plain:
        return tensor, tuple(map(_read, items))
    used = sum(i is not None and i is not Ellipsis for i in items)
    full: list[Any] = []
    for item in items:
        full += [slice(None)] * (tensor.dim() - used) if item is Ellipsis else [item]
    rest: list[Any] = []
    for item in full:
        if _is_index(item):
            tensor = tensor.select(sum(i is not None for i in rest), item)
        else:
            rest.append(item)
    return tensor, tuple(rest) or Ellipsis


class _Indexed:
    """Stands for a tensor that is indexed."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getitem__(self, key: Any) -> torch.Tensor:
        tensor, rest = _selected(self.tensor, key)
        if rest is Ellipsis and key is not Ellipsis:
            return tensor
        return torch.Tensor.__getitem__(tensor, _as_dims(rest))

    def __setitem__(self, key: Any, value: Any) -> None:
        tensor, rest = _selected(self.tensor, key)
        if isinstance(value, torch.Tensor):
            items = rest if isinstance(rest, tuple) else (rest,)
            if all(isinstance(i, slice | int) or i is Ellipsis or i is None for i in items):
                target = torch.Tensor.__getitem__(tensor, _as_dims(rest))
                if target.dim() == value.dim() and _shape(target) == _shape(value):
                    target.copy_(value)
                    return
            # Leading dimensions of size 1 are dropped, or not.
            core.pin_sizes(value)
            core.pin_sizes(tensor)
        torch.Tensor.__setitem__(tensor, _as_dims(rest), value)


def _exchanged() -> dict[Any, Any]:
    tensor = torch.Tensor
    return {
        tensor.size: _size,
        tensor.stride: _stride,
        tensor.numel: _count,
        tensor.nelement: _count,
        torch.numel: _count,
        tensor.storage_offset: _storage_offset,
        tensor.is_contiguous: _is_contiguous,
        tensor.contiguous: _contiguous,
        torch.Size.numel: _product,
        torch.tensor: _tensor,
        abs: abs,
        len: _length,
        int: _int,
        max: _largest,
        min: _smallest,
        sum: _sum,
        math.prod: _product,
    }


# They store what they are given, or hand it on as it is, and look at none of it but the keys.
_KEEPERS: list[Any] = [list, tuple, dict, zip, enumerate, reversed, slice, iter, next, setattr, torch.Size]
_KEEPERS += [object.__setattr__, object.__init__, object.__new__, tuple.__new__, functools.partial]
_KEEPERS += [
    getattr(list, name) for name in ("append", "insert", "extend", "copy", "pop", "__setitem__", "__iter__")
]
_KEEPERS += [
    getattr(kind, name)
    for kind in (dict, collections.OrderedDict)
    for name in ("get", "pop", "setdefault", "update", "values", "items", "keys", "copy", "__setitem__")
]


def configure() -> None:
    """Tell the core of all this, once."""
    core.configure_exchange(_exchanged(), _attribute, _Indexed, _KEEPERS)
