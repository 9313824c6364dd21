"""What Python's own functions, and those of tensors that give sizes and values, make of followed numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch

from lazytrace._native import core
from lazytrace._torch import pad_sequence
from lazytrace.carriers.classes import (
    KINDS,
    Dim,
    Long,
    Real,
    as_float,
    as_int,
    call_plainly,
    called,
    is_followable,
    made_of,
    read,
    read_inside,
    with_dims,
)
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS


def turns(*bounds: Any) -> range:
    """`range` for a loop that goes through it: of its end, no more is read than how often the loop turns."""
    if len(bounds) == 3 and type(bounds[1]) is Dim:
        start, stop, step = bounds
        if type(start) is int and type(step) is int and step > 1:
            return range(start, start + step * max(read((stop - start + step - 1) // step), 0), step)
    return range(*map(read, bounds))


def size_of(kind: str, tensor: torch.Tensor, which: int = 0) -> int:
    """A size, stride, offset or count of a tensor, followed."""
    return core.tensor_number(kind, tensor, which)


def _dimension(tensor: torch.Tensor, dim: Any) -> int | None:
    """The dimension as torch counts it; None when torch must say what is wrong with it."""
    if not isinstance(dim, int) or isinstance(dim, bool):
        return None
    index = operator.index(dim)
    count = tensor.dim()
    return index % count if -count <= index < count else None


def size(tensor: torch.Tensor, /, dim: Any = None) -> Any:
    """`Tensor.size`."""
    if dim is None:
        return core.shape_of(tensor)
    index = _dimension(tensor, dim)
    return torch.Tensor.size(tensor, read(dim)) if index is None else size_of("Size", tensor, index)


def stride(tensor: torch.Tensor, /, dim: Any = None) -> Any:
    """`Tensor.stride`."""
    if dim is None:
        return tuple(size_of("Stride", tensor, i) for i in range(tensor.dim()))
    index = _dimension(tensor, dim)
    return torch.Tensor.stride(tensor, read(dim)) if index is None else size_of("Stride", tensor, index)


def count(input: Any) -> int:
    """`Tensor.numel` and `torch.numel`."""
    return size_of("Count", input) if isinstance(input, torch.Tensor) else torch.numel(read_inside(input))


def storage_offset(tensor: torch.Tensor, /) -> int:
    """`Tensor.storage_offset`."""
    return size_of("Offset", tensor)


def is_contiguous(
    tensor: torch.Tensor, /, *, memory_format: torch.memory_format = torch.contiguous_format
) -> bool:
    """`Tensor.is_contiguous`."""
    if tensor.layout is not torch.strided:
        return torch.Tensor.is_contiguous(tensor, memory_format=memory_format)
    formats = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]
    return bool(read(size_of("Contiguous", tensor, formats.index(memory_format))))


def contiguous(
    tensor: torch.Tensor, /, *, memory_format: torch.memory_format = torch.contiguous_format
) -> torch.Tensor:
    """`Tensor.contiguous`."""
    # torch's binding calls no operator for a tensor that is contiguous already.
    return core.call_contiguous(tensor, memory_format)


def padded_sequence(
    sequences: Any, batch_first: Any = False, padding_value: Any = 0.0, padding_side: Any = "right"
) -> torch.Tensor:
    """As torch pads (aten/src/ATen/native/PackedSequence.cpp): there, C++ code compares the lengths."""
    given = (sequences, batch_first, padding_value, padding_side)
    plain = type(sequences) in (list, tuple) and sequences and type(batch_first) is bool
    if not plain or type(padding_value) not in (int, float) or padding_side not in ("left", "right"):
        return called(pad_sequence, *given)  # type: ignore[no-any-return]
    first = sequences[0]
    if not all(type(one) is torch.Tensor and one.dim() and _is_as(one, first) for one in sequences):
        return called(pad_sequence, *given)  # type: ignore[no-any-return]
    lengths = [size_of("Size", one, 0) for one in sequences]
    longest = largest(lengths)
    sizes = (len(sequences), longest) if batch_first else (longest, len(sequences))
    look = {"dtype": first.dtype, "layout": first.layout, "device": first.device}
    padded = torch.full((*sizes, *core.shape_of(first)[1:]), padding_value, **look)
    for i, (one, length) in enumerate(zip(sequences, lengths, strict=True)):
        start = longest - length if padding_side == "left" else 0
        if batch_first:
            padded.select(0, i).narrow(0, start, length).copy_(one)
        else:
            padded.narrow(0, start, length).select(1, i).copy_(one)
    return padded


def _is_as(one: torch.Tensor, first: torch.Tensor) -> bool:
    # Copies of what is complex into what is real warn, copies of other sizes raise.
    alike = one.dtype is first.dtype and one.device == first.device and one.dim() == first.dim()
    return alike and one.layout is torch.strided and one.shape[1:] == first.shape[1:]


def length(value: Any, /) -> int:
    """`len`."""
    if isinstance(value, torch.Tensor) and value.dim():
        return size_of("Size", value, 0)
    return len(read(value))


def item_of(tensor: torch.Tensor, /) -> Any:
    """`Tensor.item`."""
    return core.item_number(tensor, torch.Tensor.item)


def as_index(value: Any, /) -> Any:
    """`operator.index`."""
    value = with_dims(value)
    return value if type(value) is Dim else operator.index(value)


def _extreme(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(*args: Any, **kwargs: Any) -> Any:
        items: Sequence[Any] = args
        if len(args) == 1:
            items = args[0] if isinstance(args[0], list | tuple) else ()
        kinds = {KINDS.get(type(item)) for item in items}
        # Which object a nan is shows where it is looked for.
        nan = any(type(item) is float and item != item for item in items)
        if kwargs or nan or len(kinds) != 1 or None in kinds:
            return function(*args, **kwargs)
        found = items[0]
        for item in items[1:]:
            found = made_of(kind, function, found, item)
        return found

    return extreme


largest, smallest = _extreme("Max", max), _extreme("Min", min)


def total_of(items: Any, /, start: Any = 0) -> Any:
    """`sum`."""
    if isinstance(items, list | tuple) and not isinstance(start, str | bytes | bytearray):  # it refuses these
        return reduce(operator.add, items, start)
    return sum(items, start)


def product(items: Any, /, *, start: Any = 1) -> Any:
    """`math.prod`."""
    if isinstance(items, list | tuple):
        return reduce(operator.mul, items, start)
    return math.prod(items, start=start)


def reduced(function: Callable[..., Any], items: Any, /, *initial: Any) -> Any:
    """`functools.reduce`, of numbers that are followed."""
    iterator = iter(items)
    if len(initial) > 1:
        return reduce(function, iterator, *initial)
    for first in initial or iterator:
        value = first
        break
    else:
        return reduce(function, iterator)
    for item in iterator:
        value = function(value, item)
    return value


def bisected(function: Callable[..., Any], goes_right: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """As Python's own, by comparisons: which ones are true is read, and not the number that is looked for."""

    def search(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 2 or kwargs or type(args[0]) not in (list, tuple):
            return function(*map(read, args), **{name: read(value) for name, value in kwargs.items()})
        items, value = args
        low, high = 0, len(items)
        while low < high:
            middle = (low + high) // 2
            if goes_right(items[middle], value):
                low = middle + 1
            else:
                high = middle
        return low

    return search


def elements(size: torch.Size, /) -> Any:
    """`torch.Size.numel`."""
    found = product(size)
    # torch counts in 64 bits.
    return found if type(found) is Dim else torch.Size.numel(torch.Size(read_inside(size)))


def _math(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    takes = 2 if kind in _OF_TWO else 1

    def call(*args: Any) -> Any:
        if len(args) != takes:
            return function(*map(read, args))
        return made_of(kind, function, *map(_as_math, args))

    return call


def _as_math(value: Any) -> Any:
    """What math works with; of a tensor it asks for the float, and numpy's float64 is one."""
    return as_float(value) if isinstance(value, torch.Tensor) else core.number_of_scalar(value)


def _whole_by_math(function: Callable[[Any], Any]) -> Callable[..., Any]:
    # An int64 has no method for it, and math takes its float.
    return lambda *args: function(*(as_float(arg) if type(arg) is Long else _as_math(arg) for arg in args))


def _is_close(*args: Any, rel_tol: Any = 1e-09, abs_tol: Any = 0.0) -> bool:
    """As `math.isclose` does it: by comparisons."""
    values = [*map(_as_math, args), rel_tol, abs_tol]
    if len(args) != 2 or not all(map(is_followable, values)) or rel_tol < 0 or abs_tol < 0:
        return math.isclose(*map(read, args), rel_tol=read(rel_tol), abs_tol=read(abs_tol))
    a, b, rel, least = map(as_float, values)
    if a == b:
        return True
    if abs(a) == math.inf or abs(b) == math.inf:
        return False
    apart = abs(b - a)
    return bool(apart <= abs(rel * b) or apart <= abs(rel * a) or apart <= least)


def to_power(*args: Any, **kwargs: Any) -> Any:
    """`pow`."""
    # Of three, Python asks no method of the last ones.
    if len(args) != 2 or kwargs:
        return call_plainly(pow, args, kwargs)
    return args[0] ** args[1]


def _log(*args: Any) -> Any:
    args = tuple(map(_as_math, args))
    if len(args) == 2:  # as math.log does it
        return _log(args[0]) / _log(args[1])
    return made_of("Log", math.log, *args) if len(args) == 1 else math.log(*args)


def _asks(function: Callable[[Any], bool], ask: Callable[[Any], Any]) -> Callable[..., bool]:
    def asks(*args: Any) -> bool:
        if len(args) != 1:
            return function(*map(read, args))
        value = _as_math(args[0])
        return bool(ask(value)) if type(value) in (Dim, Real) else function(value)

    return asks


# What is asked of a float by this name, by math and by numpy.
ODD: dict[str, Callable[[Any], Any]] = {
    "isfinite": lambda value: abs(value) < math.inf,
    "isinf": lambda value: abs(value) == math.inf,
    "isnan": lambda value: value != value,
}


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same of the plain values: in its place C code may call it for numbers that are followed."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return call_plainly(function, args, kwargs)

    return call


def askers_of_values() -> dict[Any, Any]:
    """What gives the value of a tensor, or asks for it."""
    return {
        torch.Tensor.item: item_of,
        int: as_int,
        float: as_float,
        math.floor: _whole_by_math(math.floor),
        math.ceil: _whole_by_math(math.ceil),
        math.log: _log,
        math.isclose: _is_close,
        **{getattr(math, name): _asks(getattr(math, name), ask) for name, ask in ODD.items()},
        **{function: _math(kind, function) for kind, function in MATH.items()},
    }


_OF_TWO = ("MathPow", "Atan2", "Copysign", "Hypot", "Fmod")

MATH: dict[str, Callable[..., Any]] = {
    "MathPow": math.pow,
    "Atan2": math.atan2,
    "Copysign": math.copysign,
    "Fabs": math.fabs,
    **{name.capitalize(): getattr(math, name) for name in ("sqrt", "exp", "expm1", "log2", "log10", "log1p")},
    **{name.capitalize(): getattr(math, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan")},
    **{
        name.capitalize(): getattr(math, name) for name in ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh")
    },
    **{
        name.capitalize(): getattr(math, name)
        for name in ("erf", "erfc", "gamma", "lgamma", "cbrt", "exp2", "degrees", "radians", "hypot", "fmod")
    },
}
