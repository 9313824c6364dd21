"""Functions of torch that are given followed numbers, or make tensors of them."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.functional import one_hot
from torch.overrides import has_torch_function

from lazytrace._native import core
from lazytrace._torch import default_device, default_tensors_device, pad
from lazytrace.carriers.classes import (
    CARRIERS,
    KINDS,
    Dim,
    Long,
    Real,
    Scalar,
    Single,
    as_float,
    call_plainly,
    called,
    is_followable,
    numpy,
    read,
    read_inside,
    with_dims,
)
from lazytrace.carriers.functions import item_of
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS


# C code reads the value of a number without asking. `Dim` is an int, and `Real` a float, to `isinstance`
# alone: C code must call one of the methods below to see the value. torch's parser takes them for a SymInt
# and a SymFloat.

# So many numbers are put into a tensor by one operator; more of them are read.
_FEW = 256


def tensor_of(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.tensor`."""
    # The binding fills memory with the value; an operator can be given another one.
    made = None
    if not args and set(kwargs) <= {"dtype", "device"}:
        made = _tensor_of(data, **kwargs)
    return called(torch.tensor, read_inside(data), *args, **kwargs) if made is None else made


def _tensor_of(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor | None:
    if device not in (None, "cpu", torch.device("cpu")):
        return None
    if type(data) is Scalar:  # numpy says the dtype of one by itself
        return _scalar(as_float(data), dtype or torch.float64, device)
    if type(data) is Single:
        return _scalar(as_float(data), dtype or torch.float32, device)
    data = with_dims(data)
    if type(data) in (Dim, Real):
        return _scalar(data, dtype, device)
    if not isinstance(data, list | tuple | collections.deque):
        return None
    return _vector(_with_values(data) if type(data) is list else data, dtype, device)


def _with_values(data: list[Any]) -> list[Any]:
    """The list with the values of tensors of one, as torch takes them; itself where a dtype would be lost."""
    tensors = [item for item in data if type(item) is torch.Tensor]
    kinds = (torch.get_default_dtype(), torch.int64)
    for item in tensors:
        if item.dim() or item.requires_grad or item.dtype not in kinds or item.device.type != "cpu":
            return data
    if (
        not tensors
        or len(data) > _FEW
        or not all(type(item) is torch.Tensor or is_followable(item) for item in data)
    ):
        return data
    return [item_of(item) if type(item) is torch.Tensor else item for item in data]


def new_tensor(
    self: torch.Tensor, data: Any, *args: Any, dtype: Any = None, device: Any = None, **kwargs: Any
) -> torch.Tensor:
    """`Tensor.new_tensor`."""
    plain = type(self) in (torch.Tensor, torch.nn.Parameter) and self.layout is torch.strided
    if plain and not args and not kwargs:
        followed = _tensor_of(data, dtype or self.dtype, self.device if device is None else device)
        if followed is not None:
            return followed
    kwargs |= {"dtype": dtype, "device": device}
    made: torch.Tensor = called(torch.Tensor.new_tensor, self, read_inside(data), *args, **kwargs)
    return made


def _scalar(data: Any, dtype: torch.dtype | None, device: Any) -> torch.Tensor | None:
    """A tensor of a number that is followed; None where the binding looks at the value."""
    wide = _wide({KINDS[type(data)]}, dtype)
    return (
        None
        if wide is None or not _fit([data], dtype)
        else _narrowed(torch.full((), data, dtype=wide, device=device), dtype)
    )


def _vector(data: Sequence[Any], dtype: torch.dtype | None, device: Any) -> torch.Tensor | None:
    """A tensor of numbers of which some are followed, by an operator for each; None of anything else.

    `data` may hold lists of these, all of one length.
    """
    flat = _flat(data)
    kinds = {float if type(item) in (Scalar, Single) else KINDS.get(type(item)) for item in flat}
    if None in kinds or len(flat) > _FEW or not any(type(item) in CARRIERS for item in flat):
        return None
    if dtype is None and any(type(item) is Single for item in flat):
        if not all(type(item) is Single for item in flat):
            return None
        dtype = torch.float32
    if dtype is None and any(type(item) is Scalar for item in flat):
        dtype = torch.float64
    wide = _wide(kinds, dtype)
    fits = wide is torch.float64 or not any(type(item) is int and abs(item) >> 63 for item in flat)
    if wide is None or not fits or _lengths(data) is None or not _fit(flat, dtype):
        return None
    return _narrowed(_stacked(data, wide, device), dtype)


def array_of(data: Sequence[Any]) -> torch.Tensor | None:
    """A tensor of what numpy makes an array of: numbers of which some are followed; None of anything else."""
    flat = _flat(data)
    kinds = {type(item) for item in flat}
    if len(flat) > _FEW or not any(kind in CARRIERS for kind in kinds) or _lengths(data) is None:
        return None
    if kinds <= {numpy.float32, Single}:
        return _narrowed(_stacked(data, torch.float64, None), torch.float32)
    if kinds <= {int, Dim, numpy.int64, Long} and not any(
        type(item) is int and abs(item) >> 63 for item in flat
    ):
        return _stacked(with_dims(data), torch.int64, None)
    whole = any(kind in (int, Dim, numpy.int64, Long) for kind in kinds)
    if whole or not kinds <= {float, Real, numpy.float64, Scalar, numpy.float32, Single}:
        return None
    return _stacked(data, torch.float64, None)


def _flat(data: Sequence[Any]) -> list[Any]:
    return [one for item in data for one in (_flat(item) if type(item) is list else [item])]


def _lengths(data: Any) -> tuple[int, ...] | None:
    """As the shape of a tensor; None where lists that stand side by side differ."""
    if not isinstance(data, list | tuple | collections.deque):
        return ()
    inside = {_lengths(item) for item in data}
    return None if len(inside) != 1 or None in inside else (len(data), *inside.pop())  # type: ignore[misc]


def _stacked(data: Any, wide: torch.dtype, device: Any) -> torch.Tensor:
    place = default_device() if device is None else torch.device(device)
    if place.type == "cpu":
        items = [_plainly(item, wide) for item in _flat(data)]
        made: torch.Tensor | None = core.pack_numbers(items, _lengths(data) or (), wide is torch.float64)
        if made is not None:
            return made
    return _stacked_one_by_one(data, wide, device)


def _stacked_one_by_one(data: Any, wide: torch.dtype, device: Any) -> torch.Tensor:
    if isinstance(data, list | tuple | collections.deque):
        return torch.stack([_stacked_one_by_one(item, wide, device) for item in data])
    return torch.full((), _plainly(data, wide), dtype=wide, device=device)


def _plainly(number: Any, wide: torch.dtype) -> Any:
    # Of these torch makes no number of its own.
    if type(number) in (numpy.float64, numpy.float32, numpy.int64):
        return number.item()
    real = type(number) in (Scalar, Single) or (wide is torch.float64 and type(number) is int)
    return as_float(number) if real else number


def _wide(kinds: set[Any], dtype: torch.dtype | None) -> torch.dtype | None:
    """What torch's binding first makes of numbers of these kinds; None where it looks at their values."""
    if dtype is None:
        return torch.float64 if float in kinds else torch.int64
    if dtype.is_floating_point or (dtype is torch.bool and float in kinds):
        return torch.float64
    return torch.int64 if (dtype is torch.bool or dtype in _WHOLE) and float not in kinds else None


# What an int must lie between for these dtypes; the binding has its own words for others, and takes some that
# are negative for an unsigned one.
_WHOLE: dict[torch.dtype, tuple[int, int] | None] = {
    torch.int64: None,
    torch.int32: (-(2**31), 2**31 - 1),
    torch.int16: (-(2**15), 2**15 - 1),
    torch.int8: (-(2**7), 2**7 - 1),
    torch.uint8: (0, 2**8 - 1),
}


def _fit(numbers: Sequence[Any], dtype: torch.dtype | None) -> bool:
    """Whether all lie in the range of the dtype. Each that is followed is compared, which is an exit."""
    ends = None if dtype is None else _WHOLE.get(dtype)
    return ends is None or all(ends[0] <= number and number <= ends[1] for number in numbers)


def _narrowed(wide: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    # The binding makes infinity of what is too large, as a conversion does.
    if wide.is_floating_point():
        return wide.to(dtype or torch.get_default_dtype())
    return wide if dtype is None or dtype is wide.dtype else wide.to(dtype)


def as_tensor(data: Any, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    """`torch.as_tensor`."""
    if type(data) in CARRIERS or isinstance(data, list | tuple | collections.deque):
        return tensor_of(data, dtype=dtype, device=device)
    made: torch.Tensor = called(torch.as_tensor, read(data), dtype=dtype, device=device)
    return made


def of_items(kind: Callable[..., Any]) -> Callable[..., Any]:
    """A class that keeps what an iterable gives it, and looks at how many that may be."""

    def make(*args: Any, **kwargs: Any) -> Any:
        counts = {name: value if name == "iterable" else read(value) for name, value in kwargs.items()}
        return kind(*args[:1], *map(read, args[1:]), **counts)

    return make


def of_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """One that makes a tensor of values; of those that stand for a SymInt it keeps 32 bits."""

    def make(*args: Any, **kwargs: Any) -> Any:
        return call_plainly(function, args, kwargs)

    return functools.wraps(function)(make)


def _sizes_of(args: tuple[Any, ...]) -> Any:
    """The sizes that a constructor of old was told, in place of values; None if it was told anything else."""
    sizes = args[0] if len(args) == 1 and type(args[0]) is torch.Size else args
    return sizes if sizes and all(type(size) in (int, Dim) for size in sizes) else None


def new(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """What `tensor.new` makes of sizes that are followed. Of special kinds of tensors it makes none."""
    special = tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
    sizes = None if kwargs or special else _sizes_of(args)
    if sizes is None or has_torch_function((tensor,)):
        return call_plainly(torch.Tensor.new, (tensor, *args), kwargs)
    return torch.Tensor.new_empty(tensor, sizes)


def made_by(cls: Any, dtype: torch.dtype | None) -> Callable[..., Any]:
    """A class of tensors of this dtype, of which a list gives the values. Without any: of the default one."""

    def make(*args: Any, **kwargs: Any) -> Any:
        values: Any = args[0] if len(args) == 1 and not kwargs else None
        plain = type(values) in (list, tuple) and not any(type(item) is torch.Tensor for item in values)
        if plain and (dtype is not None or default_tensors_device() == "cpu"):
            made = _tensor_of(values, dtype or torch.get_default_dtype(), "cpu")
            if made is not None:
                return made
        sizes = _sizes_of(args) if not kwargs else None
        if sizes is not None and (dtype is not None or default_tensors_device() == "cpu"):
            return torch.empty(sizes, dtype=dtype or torch.get_default_dtype(), device="cpu")
        return call_plainly(cls, args, kwargs)

    return functools.wraps(cls, updated=())(make)


def normal(*args: Any, **kwargs: Any) -> Any:
    """With floats for both the mean and the deviation, and no tensor of the caller's to fill."""
    given = dict(zip(("mean", "std", "size"), args, strict=False)) | kwargs
    if "out" in given or not {type(given.get(name)) for name in ("mean", "std")} <= {int, float, Dim, Real}:
        return called(torch.normal, *args, **kwargs)
    return core.call_with_numbers(torch.normal, "aten::normal", "float_float", args, kwargs)


def with_scales(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """One whose parser takes no ints that are followed for floats of a list."""

    def plain(value: Any) -> Any:
        return read_inside(value) if isinstance(value, list | tuple) else value

    def resampled(tensor: Any, size: Any, *rest: Any, **kwargs: Any) -> Any:
        if size is None and rest and not kwargs:
            scaled = _scaled(tensor, rest[-1])
            if scaled is not None:
                sizes, factors = scaled
                given = (tensor, sizes, *rest[:-1], *factors)
                return core.call_with_numbers(function, name, "", given, {})
        return called(function, tensor, size, *map(plain, rest), **{k: plain(v) for k, v in kwargs.items()})

    return resampled


def _scaled(tensor: Any, scales: Any) -> tuple[list[Any], list[Any]] | None:
    """The sizes that torch computes of followed scales, and these as floats.

    As `compute_output_size` does (aten/src/ATen/native/UpSample.cpp).
    """
    if type(tensor) is not torch.Tensor or type(scales) not in (list, tuple):
        return None
    if not all(type(scale) in (float, Real, int, Dim) for scale in scales):
        return None
    if not any(type(scale) in (Real, Dim) for scale in scales) or len(scales) != tensor.dim() - 2:
        return None
    factors = [scale * 1.0 for scale in scales]
    scaled = [size * factor for size, factor in zip(core.shape_of(tensor)[2:], factors, strict=True)]
    # Of one that is too large for a size, or is none, torch has something to say.
    return ([math.trunc(size) for size in scaled], factors) if all(abs(s) < 2**53 for s in scaled) else None


# What a tensor may be passed for by name.
_OF_SIZES = ("size", "pad", "num_classes", "minlength", "n", "m", "k", "length", "shifts", "num_samples")
_VALUES = {"fill_value", "start", "end", "step", "steps", "low", "high", *_OF_SIZES}


def _asking_tensors(
    function: Callable[..., Any], place: int, *, of: Callable[[Any], Any], name: str = ""
) -> Callable[..., Any]:
    """One whose parser asks a tensor for its value, where it wants a number: from this argument on.

    `of` gives the value of one that the parser takes there. The operator of this `name` takes a plain int.
    """

    def asking(*args: Any, **kwargs: Any) -> Any:
        if has_torch_function((*args, *kwargs.values())):
            return called(function, *args, **kwargs)
        named = {k: of(v) if k in _VALUES else v for k, v in kwargs.items()}
        given = (*args[:place], *map(of, args[place:]))
        try:
            return call(function, given, named)
        except TypeError:
            pass
        return called(function, *args, **kwargs)  # which tells what it was given

    call = partial(core.call_taking_ints, name) if name else core.call_as_caller
    return asking


def _value_of(value: Any) -> Any:
    takes = type(value) is torch.Tensor and not value.dim() and value.layout is torch.strided
    return item_of(value) if takes and not core.requires_gradients(value) else value


def _size_of_tensor(value: Any) -> Any:
    """Of a whole number, by itself or in the place of a size."""
    if type(value) in (list, tuple):
        return type(value)(map(_size_of_tensor, value))
    whole = type(value) is torch.Tensor and value.dtype in (torch.int64, torch.int32)
    return _value_of(value) if whole else value


def _clamping(function: Callable[..., Any]) -> Callable[..., Any]:
    """One that takes bounds that are both tensors as they are, and asks one beside a number for its value."""

    def clamp(*args: Any, **kwargs: Any) -> Any:
        bounds = {**dict(zip(("min", "max"), args[1:], strict=False)), **kwargs}
        numbers = any(isinstance(bounds.get(name), int | float) for name in ("min", "max"))
        if numbers and len(args) <= 3 and not has_torch_function((*args, *kwargs.values())):
            args = (*args[:1], *map(_value_of, args[1:]))
            kwargs = {name: _value_of(v) if name in ("min", "max") else v for name, v in kwargs.items()}
            return core.call_as_caller(function, args, kwargs)
        return called(function, *args, **kwargs)

    return clamp


def with_floats(function: Callable[..., Any], name: str, overload: str) -> Callable[..., Any]:
    """What stands for a function of torch that hands floats to the operator as they are."""

    def call(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        for value in (*args, *kwargs.values()):
            if isinstance(value, list | tuple):
                given += value
        if has_torch_function(given):
            return called(function, *args, **kwargs)
        args = tuple(map(core.number_of_scalar, args))
        kwargs = {name: core.number_of_scalar(value) for name, value in kwargs.items()}
        return core.call_with_numbers(function, name, overload, args, kwargs)

    return call


def minded(function: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """What stands for a function: what C code raises before it calls an operator may follow from sizes."""
    # The caller may catch that. It is no `try` of Python's: where an exception could be caught, what an
    # operator gives is an exit. Arguments that `own` does not take `function` refuses in its own words.
    plain = partial(call_plainly, function)
    return functools.wraps(own)(lambda *args, **kwargs: core.minding(own, plain, *args, **kwargs))


MADE_OF_VALUES = (
    torch.asarray,
    torch.sparse_coo_tensor,
    torch.sparse_compressed_tensor,
    *(getattr(torch, f"sparse_{kind}_tensor") for kind in ("csr", "csc", "bsr", "bsc")),
)


CLASSES: dict[Any, torch.dtype | None] = {
    torch.Tensor: None,
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.LongTensor: torch.int64,
    torch.IntTensor: torch.int32,
    torch.ShortTensor: torch.int16,
    torch.CharTensor: torch.int8,
    torch.ByteTensor: torch.uint8,
    torch.BoolTensor: torch.bool,
}


def askers() -> dict[Any, Any]:
    """What asks a tensor for its value, where it is given one for a number."""
    values: dict[Any, int] = {torch.arange: 0, torch.full: 1, torch.full_like: 1, torch.Tensor.new_full: 2}
    made = ("zeros", "ones", "rand", "randn", "empty", "eye", "randperm", "randint")
    sizes: dict[Any, int] = {getattr(torch, name): 0 for name in made}
    sizes[pad] = 1
    sizes[torch.bincount] = 2  # weights are a tensor
    for name in ("reshape", "topk", "roll", "tile", "broadcast_to", "multinomial"):
        sizes[getattr(torch, name)] = sizes[getattr(torch.Tensor, name)] = 1
    for name in ("view", "expand", "repeat", "new_zeros", "new_ones", "new_empty"):
        sizes[getattr(torch.Tensor, name)] = 1
    sizes[torch.Tensor.bincount] = 2
    sizes[torch.narrow] = sizes[torch.Tensor.narrow] = 3  # where it starts may be a tensor
    clamps = ("clamp", "clip", "clamp_", "clip_")
    plain: dict[Any, tuple[int, str]] = {one_hot: (1, "one_hot")}
    plain[torch.linspace] = 2, "linspace"  # the ends may be tensors
    return {
        **{
            function: _asking_tensors(function, place, of=_size_of_tensor, name=name)
            for function, (place, name) in plain.items()
        },
        **{function: _asking_tensors(function, place, of=_value_of) for function, place in values.items()},
        **{
            function: _asking_tensors(function, place, of=_size_of_tensor)
            for function, place in sizes.items()
        },
        **{
            function: _clamping(function)
            for function in (
                *(getattr(torch.Tensor, name) for name in clamps),
                *(getattr(torch, name) for name in clamps),
            )
        },
    }
