"""A call in words: every property that its signature holds, by the path that a person would write.

The arguments are a user's: nothing here may run code of theirs. So a value is known by the identity of its
type (a metaclass may compare and hash as it likes), classes are asked with the descriptors of `type`, and
containers with the methods of their C bases. A container is what is one in the native signature
(`Flattener::leaf`), which numbers the roots of guards.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import ItemsView, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from lazytrace._torch import has_hooks, is_zero_tensor
from lazytrace.checks import is_array, is_leaf
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

Description = Mapping[str, str]
"""Path -> value, as in `{"x.shape[0]": "64", "x.dtype": "float32", "grad_mode": "True"}`."""

# Immutable, and written as their repr: only these very types, as a subclass may have a repr of its own.
_PLAIN: Final = frozenset(
    map(
        id,
        (
            *(type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented)),
            *(torch.dtype, torch.device, torch.layout, torch.memory_format),
        ),
    )
)
_TENSORS: Final = frozenset(map(id, (torch.Tensor, torch.nn.Parameter)))
_SEQUENCES: Final = frozenset(map(id, (tuple, list, torch.Size)))
_DEEPEST: Final = 64

_class_name: Final = type.__dict__["__name__"].__get__
_class_dict: Final = type.__dict__["__dict__"].__get__
_dict_offset: Final = type.__dict__["__dictoffset__"].__get__


def _is_plain(value: object) -> bool:
    return id(type(value)) in _PLAIN


def _is_tensor(value: object) -> bool:
    return id(type(value)) in _TENSORS


def _is_scalar(value: Any) -> bool:
    """Whether it is a number of numpy's that the native signature knows as one, without importing that."""
    numpy: Any = sys.modules.get("numpy")
    kinds = () if numpy is None else (numpy.float64, numpy.float32, numpy.int64)
    return any(type(value) is kind for kind in kinds) and bool(value == value)


def _text(value: object, depth: int = 50) -> str:
    if type(value) is tuple and depth > 0:  # a key, of what is plain
        items = ", ".join(_text(item, depth - 1) for item in value)
        return f"({items}{',' * (len(value) == 1)})"
    if not _is_plain(value):
        return _name_of(value)
    try:
        return repr(value)
    except ValueError:  # Python does not write an int of so many digits
        return hex(value) if type(value) is int else _name_of(value)


class _Look(NamedTuple):
    """What there is to say of a tensor, without the tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    contiguous: bool | None  # None of one that has no strides
    stride: tuple[int, ...]
    layout: torch.layout
    device: torch.device
    requires_grad: bool
    is_leaf: bool | None  # None where torch raises
    is_inference: bool
    hooks: bool
    attributes: bool
    unusual: str
    type_name: str

    @classmethod
    def of(cls, t: torch.Tensor) -> _Look:
        layout = t.layout
        contiguous = t.is_contiguous() if layout is torch.strided else None
        # Strides follow from the shape unless the memory lies otherwise, and would only repeat it.
        stride = t.stride() if contiguous is False else ()
        return cls(
            *(t.dtype, t.shape, contiguous, stride, layout, t.device),
            *(t.requires_grad, is_leaf(t), t.is_inference(), has_hooks(t), bool(t.__dict__)),
            *(_unusual(t), type(t).__name__),
        )

    def words(self, path: str) -> Iterator[tuple[str, str]]:
        yield f"{path}.dtype", str(self.dtype).removeprefix("torch.")
        yield f"{path}.ndim", str(len(self.shape))
        for i, size in enumerate(self.shape):
            yield f"{path}.shape[{i}]", str(size)
        if self.contiguous is not None:
            yield f"{path}.is_contiguous()", str(self.contiguous)
            if not self.contiguous:
                yield f"{path}.stride()", str(self.stride)
        yield f"{path}.layout", str(self.layout).removeprefix("torch.")
        yield f"{path}.device", str(self.device)
        yield f"{path}.requires_grad", str(self.requires_grad)
        yield f"{path}.is_leaf", str(self.is_leaf)
        yield f"{path}.is_inference()", str(self.is_inference)
        if self.hooks:
            yield f"hooks of {path}", "set"
        if self.unusual:
            yield f"bits of {path}", self.unusual
        if self.attributes:
            yield f"{path}.__dict__", "attributes of its own"
        yield f"type({path})", self.type_name


def _unusual(t: torch.Tensor) -> str:
    bits = {"conjugate": t.is_conj(), "negative": t.is_neg(), "zeros": is_zero_tensor(t)}
    return ", ".join(name for name, is_set in bits.items() if is_set)


class _Value(NamedTuple):
    """An immutable value."""

    value: object

    def words(self, path: str) -> Iterator[tuple[str, str]]:
        yield path, repr(self.value) if _is_scalar(self.value) else _text(self.value)


@dataclass(frozen=True, eq=False)
class StateArgument:
    """An argument of which the signature holds nothing but its class. No container to torch's pytree."""

    value: Any


class _Holder(NamedTuple):
    """What there is to say of a container, or of an object that is none: then it has no length."""

    type_name: str
    length: int | None = None
    made_of: Any = None  # what makes such a container of its items; None of one that is not plain

    def words(self, path: str) -> Iterator[tuple[str, str]]:
        yield f"type({path})", self.type_name
        if self.length is not None:
            yield f"len({path})", str(self.length)


_Row = tuple[str, str | _Look | _Value | _Holder]


class _Described(Mapping[str, str]):
    """The words of one call, put together when somebody reads them: most recordings are never asked.

    Holds looks, plain values, texts and modes, nothing else of the user's.
    """

    __slots__ = ("_ambient", "_words", "rows")

    def __init__(self, rows: list[_Row], ambient: dict[str, Any]) -> None:
        self.rows = rows
        self._ambient = ambient
        self._words: dict[str, str] | None = None

    def _all(self) -> dict[str, str]:
        if self._words is None:
            words: dict[str, str] = {}
            for path, what in self.rows:
                words.update(((path, what),) if isinstance(what, str) else what.words(path))
            words.update({name: str(value) for name, value in self._ambient.items()})
            self._words = words
        return self._words

    def __getitem__(self, path: str) -> str:
        return self._all()[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def items(self) -> ItemsView[str, str]:
        return self._all().items()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._all(),)

    def __repr__(self) -> str:
        return repr(self._all())


def _name_of(value: object) -> str:
    name: str = _class_name(type(value))
    return name


def _is_sequence(cls: type) -> bool:
    """Tuples and lists, `torch.Size`, and tuples with names and nothing beside their items."""
    if id(cls) in _SEQUENCES:
        return True
    if not type.__subclasscheck__(tuple, cls):
        return False
    names = _class_dict(cls)
    if "n_sequence_fields" in names:  # made by C, as torch.return_types are
        return bool(names["n_sequence_fields"] == names.get("n_fields"))
    return not _dict_offset(cls)


def _children(path: str, value: Any) -> Iterator[tuple[str, Any]] | None:
    """What is in a container, each with its path; None of what is no container."""
    cls = type(value)
    if cls is dict:
        return _items(path, dict.items(value))
    if cls is OrderedDict:
        return _items(path, OrderedDict.items(value))
    return _elements(path, value, cls) if _is_sequence(cls) else None


def _items(path: str, items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    # Another thread may write to it meanwhile.
    yield from ((f"{path}[{_text(key)}]", item) for key, item in list(items))


def _elements(path: str, value: Any, cls: type) -> Iterator[tuple[str, Any]]:
    elements = list.__iter__(value) if cls is list else tuple.__iter__(value)
    yield from ((f"{path}[{i}]", item) for i, item in enumerate(elements))


def _length(value: Any) -> int:
    known = type(value) is list or type(value) is dict or type(value) is OrderedDict
    return len(value) if known else tuple.__len__(value)


def _maker(value: Any) -> Any:
    """What makes such a container of its items; None of one with items that cannot be put into another."""
    if type(value) is tuple or type(value) is list:
        return type(value)
    if type(value) is dict:
        keys = list(value)
        return (lambda items: dict(zip(keys, items, strict=True))) if all(map(_is_plain, keys)) else None
    return None


def _walk(path: str, value: Any, depth: int = 0) -> Iterator[_Row]:
    if type(value) is StateArgument:
        yield path, _Holder(_name_of(value.value))
        return
    if _is_tensor(value):
        yield path, _Look.of(value)
        return
    if _is_plain(value) or (depth == 0 and _is_scalar(value)):
        yield path, _Value(value)
        return
    if (tensor := _tensor_of(value)) is not None:
        yield path, _Look.of(tensor)._replace(type_name="ndarray")
        return
    children = _children(path, value) if depth <= _DEEPEST else None
    if children is None:
        yield path, _Holder(_name_of(value))
        return
    yield path, _Holder(_name_of(value), _length(value), _maker(value))
    for child_path, child in children:
        yield from _walk(child_path, child, depth + 1)


def _sharing(tensors: list[tuple[str, torch.Tensor, bool]]) -> Iterator[tuple[str, str]]:
    first: dict[int, str] = {}
    for path, t, _ in tensors:
        memory = memory_of(t)
        if memory and (owner := first.setdefault(memory, path)) != path:
            yield f"memory of {path}", f"shared with {owner}"


def memory_of(t: torch.Tensor) -> int:
    """The address of its memory; 0 of a tensor without any, as autograd makes of zeros, or with no elements.

    >>> x = torch.ones(2, 2)
    >>> memory_of(x.t()) == memory_of(x), memory_of(x[:0]), memory_of(x.to_sparse())
    (True, 0, 0)
    """
    try:
        return t.untyped_storage().data_ptr() if t.layout is torch.strided and t.numel() else 0
    except RuntimeError:
        return 0


def _tensor_of(array: Any) -> torch.Tensor | None:
    """What stands for an array of numpy; None of anything else."""
    if not is_array(array):
        return None
    try:
        return torch.from_numpy(array) if array.flags.writeable else None
    except (TypeError, ValueError):
        return None


def tensors_of(path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """The tensors of an argument in the order of the native signature, each with its path and whether it
    stands for an array of numpy.

    >>> [path for path, *_ in tensors_of("batch", {"x": torch.ones(1), "k": [2, torch.ones(1)]})]
    ["batch['x']", "batch['k'][1]"]
    """
    if _is_tensor(value):
        yield path, value, False
        return
    if (tensor := _tensor_of(value)) is not None:
        yield path, tensor, True
        return
    children = _children(path, value) if depth <= _DEEPEST else None
    for child_path, child in children or ():
        yield from tensors_of(child_path, child, depth + 1)


def describe(named: Iterable[tuple[str, Any]], ambient: dict[str, Any]) -> Description:
    """What identifies a call, property by property.

    `named` are the bound arguments, `ambient` the modes and defaults around the call.

    >>> describe([("x", torch.ones(2, 3)), ("scale", 2.0)], {"grad_mode": True})["x.shape[1]"]
    '3'
    """
    named = list(named)
    rows: list[_Row] = [row for path, value in named for row in _walk(path, value)]
    if sum(isinstance(what, _Look) for _, what in rows) > 1:
        rows += _sharing([one for path, value in named for one in tensors_of(path, value)])
    return _Described(rows, ambient)


def example_of(description: Description, receiver: tuple[Any, ...] = ()) -> list[tuple[str, Any]]:
    """Arguments that look like those of a described call, by name: zeros in place of its tensors.

    `receiver` stands for the first arguments. Raises `TypeError` if there is something that cannot be made.

    >>> example_of(describe([("x", torch.ones(2)), ("options", {"k": [3]})], {}))
    [('x', tensor([0., 0.])), ('options', {'k': [3]})]
    """
    if not isinstance(description, _Described):
        raise TypeError("the call is known by its words only")
    rows = iter(description.rows)
    found = [(path, value) for value, (path, _) in zip(receiver, rows, strict=False)]
    return found + [(path, _example(path, what, rows)) for path, what in rows]


def _example(path: str, what: str | _Look | _Value | _Holder, rows: Iterator[_Row]) -> Any:
    if isinstance(what, _Value):
        return what.value
    if isinstance(what, _Look):
        return _zeros(path, what)
    if isinstance(what, str):
        raise TypeError(f"{path.removeprefix('memory of ')} shares memory with another argument")
    if what.length is None or what.made_of is None:
        raise TypeError(f"{path} is of type {what.type_name}")
    return what.made_of([_example(*next(rows), rows) for _ in range(what.length)])


def _zeros(path: str, look: _Look) -> torch.Tensor:
    if look.contiguous is None or look.type_name == "ndarray":
        raise TypeError(f"{path} is of type {look.type_name if look.contiguous is not None else look.layout}")
    if look.hooks or look.attributes or look.unusual:
        raise TypeError(f"{path} is {look.unusual or 'a tensor with hooks or attributes'}")
    with torch.inference_mode(look.is_inference), torch.set_grad_enabled(look.requires_grad):
        made = torch.zeros(look.shape, dtype=look.dtype, device=look.device)
        if not look.contiguous:
            size = 1 + sum((n - 1) * step for n, step in zip(look.shape, look.stride, strict=True))
            made = torch.zeros(size, dtype=look.dtype, device=look.device)
            made = made.as_strided(look.shape, look.stride)
        if look.type_name == "Parameter":
            return torch.nn.Parameter(made, look.requires_grad)
        made.requires_grad_(look.requires_grad)
        return made if look.is_leaf else made.view_as(made)


def _roots(path: str, value: Any, depth: int = 0) -> Iterator[str]:
    if _is_tensor(value) or _is_plain(value) or (depth == 0 and _is_scalar(value)):
        return
    yield path
    children = _children(path, value) if depth <= _DEEPEST else None
    for child_path, child in children or ():
        yield from _roots(child_path, child, depth + 1)


def root_names(function: str, named: Iterable[tuple[str, Any]]) -> list[str]:
    """The names of the roots that guards start from, in the order of the native signature.

    >>> root_names("step", [("x", torch.ones(2)), ("options", {"a": [1]})])
    ['step', 'options', "options['a']"]
    """
    return [function, *(name for path, value in named for name in _roots(path, value))]
