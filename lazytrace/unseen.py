"""What recordings call in the place of C code that takes values out of tensors, or puts memory into them.

The originals call no operator: they give lists of values, and numpy arrays. Each function here does the same
by operators that are seen, or tells the core which memory the result shows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import torch

from lazytrace import _torch, arrays
from lazytrace._native import core
from lazytrace.asked import values_of_row
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

_Result = TypeVar("_Result")
# Of more values in a row, one step that gives them all takes less time than one for each.
_FEW: Final = 64


def _list(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if args or kwargs:  # it takes none, and says so
        return torch.Tensor.tolist(tensor, *args, **kwargs)
    core.pin_sizes(tensor)
    if tensor.numel() > _FEW:  # a row of whole numbers: the core leaves others of so many alone
        return [*core.ask_number(values_of_row, tensor)]
    return arrays.values_of(tensor.detach() if tensor.requires_grad else tensor)


def _numpy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    array = torch.Tensor.numpy(tensor, *args, **kwargs)
    core.made_array(array, tensor)
    return array


def _from_numpy(array: Any) -> torch.Tensor:
    tensor = core.take_array(array, True)
    return torch.from_numpy(array) if tensor is None else tensor


def _shared(make: Callable[..., torch.Tensor], array: Any, **how: Any) -> torch.Tensor:
    """The tensor of the array's memory where it is as it should be; else another one."""
    tensor = core.take_array(array, False)
    made = None if tensor is None else tensor.to(**how)
    # The recording has failed where it is None.
    made = core.take_array(array, True) if made is tensor else made
    return make(array) if made is None else made


def _is_known(name: str, value: Any) -> bool:
    """Whether `Tensor.to` takes it as the functions that make tensors do."""
    return value is None or isinstance(value, {"dtype": torch.dtype, "device": str | torch.device}[name])


def _may_be_told(how: dict[str, Any]) -> bool:
    return how.keys() <= {"dtype", "device"} and all(_is_known(*item) for item in how.items())


def _how(told: dict[str, Any]) -> dict[str, Any]:
    """What a function that makes a tensor is told, and where it makes one that it is told no device for."""
    how = {name: value for name, value in told.items() if value is not None}
    device = _torch.default_device()
    return how if device.type == "cpu" else {"device": device, **how}


def _as_tensor(array: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    make = partial(torch.as_tensor, **kwargs)
    if args or not _may_be_told(kwargs):
        return _as_it_is(make, array, *args)
    how = _how(kwargs)
    return _shared(make, array, **how) if how else _from_numpy(array)


def _tensor(array: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    if args or not _may_be_told(kwargs):
        return _as_it_is(torch.tensor, array, *args, **kwargs)
    tensor = core.take_array(array, False)
    if tensor is None:
        return torch.tensor(array, **kwargs)
    return tensor.to(**(_how(kwargs) or {"dtype": tensor.dtype}), copy=True)


def _made_by(cls: Any, dtype: torch.dtype | None) -> Callable[..., torch.Tensor]:
    def make(array: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        # One without dimensions says how large the tensor shall be. No argument says that it is one of a GPU.
        if args or kwargs or not array.ndim or _torch.default_tensors_device() != "cpu":
            made: torch.Tensor = _as_it_is(cls, array, *args, **kwargs)
            return made
        return _shared(cls, array, dtype=dtype or torch.get_default_dtype())

    return make


def _like(rows: Any, value: Any) -> Any:
    """Lists and tuples like these, with the value in the place of each array."""
    return type(rows)(_like(row, value) for row in rows) if type(rows) in (list, tuple) else value


def _of_rows(
    function: Callable[..., torch.Tensor], dtype: Callable[[], torch.dtype] | None = None
) -> Callable[..., torch.Tensor]:
    """What makes a tensor of a list of arrays, which become one by a step; a class has a dtype."""

    def make(rows: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        how = kwargs if dtype is None else {"dtype": dtype()}
        told = bool(args) or not _may_be_told(kwargs) or (dtype is not None and bool(kwargs))
        flat, lengths = arrays.laid_out(rows)
        told |= core.was_reached(rows) or _torch.default_tensors_device() != "cpu"
        if told or not arrays.are_rows(flat, how.get("dtype")):
            return _as_it_is(function, rows, *args, **kwargs)
        # Of lists torch warns, once for each process.
        core.aside(partial(core.call_as_caller, function, (_like(rows, arrays.one_value()),), {}))
        return _tensor(arrays.in_one(flat, lengths), **how)

    return make


def _as_it_is(function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
    core.refuse_array()
    return function(*args, **kwargs)


def _by_position(function: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """What is called in the place of `function`, which is told an array by its name as it is."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs) if args else _as_it_is(function, **kwargs)

    return call


def _length(array: Any) -> int:
    shape = core.shape_of_array(array)
    return shape[0] if shape else len(array)


_CLASSES: dict[Any, torch.dtype | None] = {
    torch.Tensor: None,
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.LongTensor: torch.int64,
    torch.IntTensor: torch.int32,
    torch.BoolTensor: torch.bool,
}


def configure() -> None:
    """Tell the core of all this, once."""
    arrays.configure()
    tensors: dict[Any, Any] = {
        **arrays.numbers(),
        torch.from_numpy: _from_numpy,
        torch.as_tensor: _as_tensor,
        torch.tensor: _tensor,
        len: _length,
        **{cls: _made_by(cls, dtype) for cls, dtype in _CLASSES.items()},
    }
    tensors = {function: _by_position(function, own) for function, own in tensors.items()}
    classes: dict[Any, Callable[[], torch.dtype]] = {
        torch.Tensor: torch.get_default_dtype,
        torch.FloatTensor: lambda: torch.float32,
        torch.DoubleTensor: lambda: torch.float64,
    }
    rows: dict[Any, Any] = {
        **{function: _of_rows(function) for function in (torch.tensor, torch.as_tensor)},
        **{cls: _of_rows(cls, dtype) for cls, dtype in classes.items()},
    }
    rows = {function: _by_position(function, own) for function, own in rows.items()}
    core.configure_unseen({torch.Tensor.tolist: _list}, {torch.Tensor.numpy: _numpy}, tensors, rows)
