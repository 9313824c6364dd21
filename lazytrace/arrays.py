"""What recordings do with arrays of numpy that a call makes: each call of numpy is a step of the program.

An array stands for a tensor of the same memory. Steps are given these tensors, and give others; what Python
code does with an array itself (operators, items, methods) goes through an object that makes steps of it.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from lazytrace import asked, carriers
from lazytrace._native import core
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

numpy: Any = carriers.numpy
_ARRAY: Final[Any] = getattr(numpy, "array", None)  # as it was: somebody may put another one in its place

# Of numpy's module: what computes anew, looks at nothing but its arguments, and changes none of them.
_FUNCTIONS: Final = [
    "all",
    "allclose",
    "amax",
    "amin",
    "any",
    "append",
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "argwhere",
    "around",
    "array_equal",
    "average",
    "bincount",
    "clip",
    "column_stack",
    "compress",
    "concatenate",
    "convolve",
    "copy",
    "corrcoef",
    "correlate",
    "count_nonzero",
    "cov",
    "cross",
    "cumprod",
    "cumsum",
    "delete",
    "diff",
    "digitize",
    "dot",
    "einsum",
    "flatnonzero",
    "full_like",
    "gradient",
    "histogram",
    "histogram2d",
    "hstack",
    "inner",
    "insert",
    "interp",
    "intersect1d",
    "isclose",
    "isin",
    "kron",
    "lexsort",
    "matmul",
    "max",
    "mean",
    "median",
    "min",
    "nan_to_num",
    "nanargmax",
    "nanargmin",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmedian",
    "nanmin",
    "nanpercentile",
    "nanprod",
    "nanquantile",
    "nanstd",
    "nansum",
    "nanvar",
    "nonzero",
    "ones_like",
    "outer",
    "pad",
    "partition",
    "percentile",
    "polyval",
    "prod",
    "ptp",
    "quantile",
    "repeat",
    "roll",
    "round",
    "searchsorted",
    "setdiff1d",
    "sort",
    "stack",
    "std",
    "sum",
    "take",
    "take_along_axis",
    "tensordot",
    "tile",
    "trace",
    "trapezoid",
    "tril",
    "triu",
    "union1d",
    "unique",
    "unravel_index",
    "var",
    "vdot",
    "vstack",
    "where",
    "zeros_like",
]
_MAKERS: Final = ["arange", "array", "eye", "full", "identity", "linspace", "ones", "zeros"]
# Of arrays.
_METHODS: Final = [
    "all",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "astype",
    "clip",
    "copy",
    "cumsum",
    "diagonal",
    "dot",
    "fill",
    "flatten",
    "item",
    "max",
    "mean",
    "min",
    "nonzero",
    "prod",
    "ravel",
    "repeat",
    "reshape",
    "round",
    "sort",
    "squeeze",
    "std",
    "sum",
    "swapaxes",
    "take",
    "tolist",
    "trace",
    "transpose",
    "var",
]
_VALUES: Final = ("T", "dtype", "ndim", "shape", "size")
# Of functions: what takes lists of numbers for arrays.
_OF_LISTS: Final = {
    getattr(numpy, name)
    for name in [
        *(
            "argmax",
            "argmin",
            "argsort",
            "array",
            "asanyarray",
            "asarray",
            "average",
            "cumsum",
            "diff",
            "max",
            "mean",
            "median",
            "min",
        ),
        *("hstack", "percentile", "prod", "ptp", "quantile", "sort", "stack", "std", "sum", "var", "vstack"),
    ]
    if numpy
}
# Of these: what fills an array of the dtype with the numbers of a list one by one.
_TOLD_DTYPE: Final = {getattr(numpy, name) for name in ("array", "asanyarray", "asarray") if numpy}
# Of functions, too: what gives a view, as a method does; how few arguments it takes (for less numpy raises
# another error than the method does), how many, and what the last is called.
_AS_METHODS: Final = {
    "diag": (1, 2, "k"),
    "diagonal": (1, 2, "offset"),
    "expand_dims": (2, 2, "axis"),
    "ravel": (1, 1, ""),
    "reshape": (2, 2, ""),
    "squeeze": (1, 2, "axis"),
    "swapaxes": (3, 3, ""),
    "transpose": (1, 2, "axes"),
}
# What makes them give an array that they were given, write to one, or say other things than values.
_REFUSED: Final = {
    "out", "where", "copy", "overwrite_input", "subok", "like", "casting", "order", "device", "ndmax",
}  # fmt: skip
# So many arguments numpy's C code has before these, where it does not say what it takes.
_FEWEST_FIRST: Final = 2
_PLAIN: Final = (int, float, bool, complex, str, range, type(None), type(...))


class _UnknownError(Exception):
    """An argument that a step cannot be given."""


class _Step:
    """A function of numpy as a replay calls it: tensors stand for arrays."""

    def __init__(self, function: Callable[..., Any], writes: bool) -> None:
        self.function, self.writes, self.draws = function, writes, asked.shuffles(function)
        name = getattr(function, "__name__", "numpy")
        self.__qualname__ = str(getattr(function, "__qualname__", None) or name)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        given: list[Any] = []
        values = [_as_array(value, given) for value in args]
        named = {name: _as_array(value, given) for name, value in kwargs.items()}
        if self.draws and self.writes:
            values[0], values[1] = values[1], values[0]
        found = core.call_as_caller(self.function, tuple(values), named)
        if not self.writes:
            return _place_of(found, (*values, *named.values())) or _as_tensor(found, given)
        torch.autograd.graph.increment_version(args[0])
        return None


class _StepOnTensors(_Step):
    """One that is handed tensors as Python hands them, of which numpy makes arrays itself."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        given = [_memory_of(tensor) for value in (*args, *kwargs.values()) for tensor in _tensors_in(value)]
        found = core.call_as_caller(self.function, args, kwargs)
        return _place_of(found, (*args, *kwargs.values())) or _as_given_back(found, given)


def _place_of(found: Any, args: tuple[Any, ...]) -> tuple[None, int] | None:
    """The place of a list that numpy gives back, as `diff()` of no order does: a step has another one."""
    if type(found) not in (list, tuple):
        return None
    return next(((None, place) for place, value in enumerate(args) if value is found), None)


def _tensors_in(value: Any) -> list[Any]:
    if type(value) in (tuple, list):
        return [tensor for item in value for tensor in _tensors_in(item)]
    return [value] if _is_tensor(value) else []


def _as_given_back(value: Any, given: list[Any]) -> Any:
    """As `_as_tensor`, where a tensor stands for an array; one that numpy gives is a tuple of it and None.

    Two say that its memory is that of an argument.
    """
    if not isinstance(value, torch.Tensor):
        return _as_tensor(value, given)
    array = _memory_of(value)
    # Autograd knows nothing of memory that two storages have.
    alone = not any(numpy.may_share_memory(array, other) for other in given)
    return (value, None) if alone else (value, None, None)


def _as_array(value: Any, given: list[Any]) -> Any:
    if isinstance(value, torch.Tensor):
        given.append(_memory_of(value))
        return given[-1]
    if type(value) in (tuple, list):
        return type(value)(_as_array(item, given) for item in value)
    if type(value) is numpy.ndarray:
        given.append(value)
    return value


def _memory_of(tensor: torch.Tensor) -> Any:
    return torch.Tensor.numpy(tensor.detach())


def _shown(tensor: torch.Tensor) -> Any:
    """An array of the same memory, which is no step: the one that numpy made, where the tensor is of it."""
    return core.aside(partial(_array_of, tensor))


def _array_of(tensor: torch.Tensor) -> Any:
    return core.array_of_tensor(tensor.detach() if tensor.requires_grad else tensor)


class quiet:
    """While a program runs again of which nobody sees anything: what it warns of was told.

    `warnings.catch_warnings` would have all forgotten that was ever told. The filters are those of all
    threads: where another one has kept what stands there meanwhile, it finds in it what was there before.
    """

    def __enter__(self) -> None:
        self.filters, self.errors = warnings.filters, numpy and numpy.errstate(all="ignore")
        self.own: list[Any] = [("ignore", None, Warning, None, 0)]
        warnings.filters = self.own
        if self.errors:
            self.errors.__enter__()

    def __exit__(self, *about: object) -> None:
        self.own[:] = self.filters
        if warnings.filters is self.own:
            warnings.filters = self.filters
        if self.errors:
            self.errors.__exit__(None, None, None)


def _as_tensor(value: Any, given: list[Any]) -> Any:
    """A scalar is a tuple of a tensor, a tuple is a list. What no tensor can show stays as it is."""
    if type(value) is numpy.ndarray:
        plain = value.dtype.char in _REAL + "FD" and value.dtype.isnative and value.flags.writeable
        alone = not any(numpy.may_share_memory(value, other) for other in given)
        shown = plain and alone and all(stride >= 0 for stride in value.strides)
        return core.tensor_of_new_array(value) if shown else value
    if isinstance(value, numpy.generic) and value.dtype.char in _REAL:
        return (torch.from_numpy(_ARRAY(value)),)
    return [_as_tensor(item, given) for item in value] if type(value) is tuple else value


# Of numpy's dtypes, as numpy calls them: of what a tensor can show, and gives back. Of a `longlong` torch
# would make an int64, which has as many bits and is another type, and of an `ulonglong` nothing.
_REAL: Final = "?bBhHiIlLefd"


@functools.cache
def _step(function: Callable[..., Any], writes: bool = False, *, on_tensors: bool = False) -> _Step:
    """One for each function, kept for the life of the process, as these are few."""
    step = (_StepOnTensors if on_tensors else _Step)(function, writes)
    core.keep_array_step(step)
    return step


@functools.cache
def _most_in_a_row(function: Callable[..., Any]) -> float:
    """How many arguments it takes without a name before the first that is refused.

    >>> _most_in_a_row(numpy.sum), _most_in_a_row(numpy.add)
    (3, 2)
    """
    if isinstance(function, numpy.ufunc):
        return int(function.nin)
    names = core.aside(partial(_names_of_arguments, function))
    if names is None:
        return _FEWEST_FIRST
    return next((place for place, name in enumerate(names) if name in _REFUSED), math.inf)


def _names_of_arguments(function: Callable[..., Any]) -> list[str] | None:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    # What comes behind any number of others is told by its name.
    several = [name for name, one in parameters.items() if one.kind is inspect.Parameter.VAR_POSITIONAL]
    return several or list(parameters)


def _as_given(value: Any) -> Any:
    """What a step is given for an argument of numpy's function."""
    kind = type(value)
    if kind is numpy.ndarray:
        tensor = core.tensor_of_array(value)
        if tensor is None and not core.was_reached(value):
            raise _UnknownError
        return value if tensor is None else tensor
    if kind in _PLAIN or kind in carriers.CARRIERS:
        return value
    if isinstance(value, numpy.generic) and value.dtype.kind in "biuf":
        return value
    if isinstance(value, numpy.dtype) or (isinstance(value, type) and issubclass(value, _NUMBERS)):
        return _name_of(numpy.dtype(value))
    if kind in (tuple, list) and not core.was_reached(value):
        return kind(_as_given(item) for item in value)
    if kind is torch.Size:
        return tuple(carriers.read(item) for item in value)
    if kind is slice:
        plain = carriers.read_key(value)
        return slice(*map(_as_given, (plain.start, plain.stop, plain.step)))
    raise _UnknownError


def _tensor_as_given(value: Any) -> Any:
    """The same where there are tensors among them, and so no arrays: a step takes each of these for one."""
    if type(value) is torch.Tensor:
        if not _is_plain(value):
            raise _UnknownError
        return value
    if type(value) in (tuple, list) and not core.was_reached(value):
        return type(value)(_tensor_as_given(item) for item in value)
    if type(value) is numpy.ndarray:
        raise _UnknownError
    return _as_given(value)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether numpy may have its memory as it is."""
    known = tensor.dtype in _KNOWN_TO_NUMPY and tensor.layout is torch.strided
    other = tensor.requires_grad or tensor.is_conj() or tensor.is_neg()
    return known and not other and tensor.device.type == "cpu"


# Of others numpy has no memory, though a method of torch may do what its function asks for.
_KNOWN_TO_NUMPY: Final = {
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
}


# What numpy asks tensors for, beside the method of the name of its function.
_ASKED_OF_TENSORS: Final = ("__array__", "numpy", "__array_wrap__", "__array_priority__", "__array_ufunc__")


def _asked_of_tensors(function: Callable[..., Any]) -> dict[str, Any]:
    names = (*_ASKED_OF_TENSORS, "__array_function__", getattr(function, "__name__", ""))
    return {name: getattr(torch.Tensor, name, None) for name in names}


def _is_as_made(function: Callable[..., Any]) -> bool:
    """Whether what numpy calls of tensors is what torch has made, and nobody has put in its place."""
    return _OF_TENSORS.get(function) == _asked_of_tensors(function)


_OF_TENSORS: Final = {
    function: _asked_of_tensors(function)
    for function in ((*vars(numpy).values(), numpy.linalg.norm) if numpy else ())
    if callable(function)
}


def _name_of(dtype: Any) -> str:
    """A text that stands for it; there is none for those with fields, or with something else beside."""
    name = str(dtype.str)
    # The text of a `longlong` is that of an int64.
    if dtype.kind not in "biufcSUmM" or dtype.metadata is not None or numpy.dtype(name).char != dtype.char:
        raise _UnknownError
    return name


_NUMBERS: Final = (bool, int, float, *((numpy.generic,) if numpy else ()))


def _taken(value: Any) -> Any:
    """What Python is given for the result of a step."""
    if isinstance(value, torch.Tensor):
        array = _shown(value)
        core.made_array(array, value, True)
        return array
    if type(value) is tuple and len(value) == 1 and isinstance(value[0], torch.Tensor):
        return _scalar(value[0])
    if type(value) is tuple and value and isinstance(value[0], torch.Tensor):
        if len(value) == 3:
            core.refuse_array()
        return value[0]
    return tuple(_taken(item) for item in value) if type(value) is list else value


def _scalar(tensor: torch.Tensor) -> Any:
    kind = _shown(tensor).dtype.type
    number = core.item_number(tensor, torch.Tensor.item)
    if kind is numpy.float64:
        return carriers.as_scalar(number)
    if kind is numpy.float32:
        return carriers.as_single(number)
    if kind is numpy.int64:
        return carriers.as_long(number)
    return kind(carriers.read(number))


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What a recording calls in the place of a function of numpy that is handed arrays."""
    return _made(function, args, kwargs, False)


def are_rows(rows: Any, dtype: torch.dtype | None) -> bool:
    """Whether torch makes the same of these arrays, value by value, as of one array that holds them all."""
    if any(type(row) is not numpy.ndarray for row in rows):
        return False
    kinds = {(row.dtype, row.shape) for row in rows}
    if len(kinds) != 1 or any(core.tensor_of_array(row) is None for row in rows):
        return False
    kind, shape = kinds.pop()
    same = dtype is None or (kind.char, dtype) == ("l", torch.int64)
    floats = dtype in (torch.float32, torch.float64) and kind.char in "fd"
    return bool(shape) and 0 not in shape and kind.isnative and kind.char in "fdl" and (same or floats)


def laid_out(rows: Any) -> tuple[list[Any], tuple[int, ...]]:
    """The rows in a list, or in lists of equal lengths, and how many there are of each.

    >>> laid_out([["a", "b"], ["c", "d"]]), laid_out([["a"], ["c", "d"]])
    ((['a', 'b', 'c', 'd'], (2, 2)), ([['a'], ['c', 'd']], (2,)))
    """
    flat = list(rows)
    lengths: tuple[int, ...] = (len(flat),)
    while flat and all(type(one) in (list, tuple) for one in flat) and len({*map(len, flat)}) == 1:
        lengths = (*lengths, len(flat[0]))
        flat = [row for one in flat for row in one]
    return flat, lengths


def in_one(rows: Any, lengths: tuple[int, ...]) -> Any:
    """The array of these rows, by a step."""
    made = call(numpy.array, rows)
    return made if len(lengths) == 1 else Operand(made).reshape(*lengths, *rows[0].shape)


def one_value() -> Any:
    """An array of one value that no call knows of."""
    return _ARRAY([0.0])


def call_for_array(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The same of what gives the array that it was handed, if it is as it should be."""
    array = args[0] if args else None
    if type(array) in (list, tuple):  # of which both make one
        return call(numpy.array, *args, **kwargs)
    alone = len(args) + len(kwargs) == 1
    if type(array) is torch.Tensor and alone and _is_plain(array) and _is_as_made(function):
        shown = torch.Tensor.numpy(array)
        core.made_array(shown, array)
        return shown
    dtype = kwargs.get("dtype", args[1] if len(args) == 2 else None)
    if type(array) is not numpy.ndarray or len(args) + len(kwargs) > 2 or not kwargs.keys() <= {"dtype"}:
        return call(function, *args, **kwargs)
    return array if dtype is None else Operand(array).astype(dtype, copy=False)


def call_as_method(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The same of what an array has a method for, which gives a view."""
    fewest, most, name = _AS_METHODS[function.__name__]
    given = (*args, kwargs[name]) if kwargs.keys() == {name} else args
    known = fewest <= len(args) + len(kwargs) == len(given) <= most
    if known and _is_tensor(args[0]) and function in _OF_TENSORS_THEMSELVES:
        return _of_tensor(function, *given)
    if not known or type(args[0]) is not numpy.ndarray or core.tensor_of_array(args[0]) is None:
        return call(function, *args, **kwargs)
    return getattr(Operand(args[0]), function.__name__)(*given[1:])


# Of these: what asks a tensor for its own method, and takes what that gives.
_OF_TENSORS_THEMSELVES: Final = {getattr(numpy, name) for name in ("squeeze", "swapaxes") if numpy}


def _of_tensor(function: Callable[..., Any], tensor: torch.Tensor, *given: Any) -> Any:
    if not _is_as_made(function):
        core.refuse_array()
        return core.call_as_caller(function, (tensor, *given), {})
    if function is numpy.squeeze:
        return tensor.squeeze() if given[:1] in ((), (None,)) else tensor.squeeze(given[0])
    return tensor.swapaxes(*given)


def call_at(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The same of `ufunc.at`, which writes to its array."""
    if kwargs or len(args) < 3 or type(args[1]) is not numpy.ndarray:
        return call(function, *args, **kwargs)
    return _write(_at(args[0]), *args[1:])


@functools.cache
def _at(ufunc: Any) -> Callable[..., Any]:
    def at(array: Any, *args: Any) -> None:
        ufunc.at(array, *args)

    at.__qualname__ = at.__name__ = f"{ufunc.__name__}.at"
    return at


def ask(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The same of a clock, or of what draws random numbers: of numpy's, an array."""
    if asked.gives_array(function, args, kwargs):
        return _made(function, args, kwargs, True)
    if asked.shuffles(function):
        return _shuffle(function, *args, **kwargs)
    return core.ask_number(function, *args, **kwargs)


def _made(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], draws: bool, alone: bool = False
) -> Any:
    on_tensors = bool(_tensors_in((*args, *kwargs.values())))
    all_given = _all_given(function, args, kwargs, draws, on_tensors)
    if all_given is None:
        core.refuse_array()
        return core.call_as_caller(function, args, kwargs)
    step = _step(function, on_tensors=on_tensors)
    found = core.opaque_call(step, "", step, *all_given, False, False, draws)
    if type(found) is tuple and len(found) == 2 and found[0] is None:
        core.refuse_array()
        return (*args, *kwargs.values())[carriers.read(found[1])]
    scalar = type(found) is tuple and len(found) == 1 and isinstance(found[0], torch.Tensor)
    return _taken(found[0] if alone and scalar else found)


def _all_given(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], draws: bool, on_tensors: bool
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """What a step is given for all arguments.

    None if a step cannot have them: what numpy raises then must not find the error here as its context.
    """
    try:
        first = args[:1] if draws else ()
        rest = args[len(first) :]
        if on_tensors and (draws or not _is_as_made(function)):
            return None
        as_given = _tensor_as_given if on_tensors else _as_given
        of_list = rest and function in _OF_LISTS and type(rest[0]) in (list, tuple)
        if of_list and not on_tensors and not _tells_order(function, rest, kwargs):
            items = _seen(rest[0])
            made = _filled(carriers.array_of(items), function, rest, kwargs)
            rest = (items if made is None else _shown_alone(made), *rest[1:])
        given = (*first, *map(as_given, rest))
        named = {name: as_given(value) for name, value in kwargs.items()}
        refused = _REFUSED & named.keys() or len(args) > _most_in_a_row(function)
        return None if refused else (given, named)
    except _UnknownError:
        return None


def _tells_order(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether `diff()` may give its list back."""
    return function is numpy.diff and (len(args) > 1 or "n" in kwargs)


def _filled(
    numbers: torch.Tensor | None, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor | None:
    """What numpy may be handed in the place of the list of these numbers; None where there is nothing.

    Told a dtype, it refuses numbers of a list that it does not hold, and rounds whole ones twice.
    """
    told = kwargs.get("dtype", args[1] if len(args) > 1 else None) if function in _TOLD_DTYPE else None
    if numbers is None or told is None:
        return numbers
    kind = _kind_of(told)
    if numbers.dtype is torch.int64 and kind in ("e", "f"):
        return numbers.to(torch.float64)
    return numbers if kind in ("?", "d", *("l" if numbers.dtype is torch.int64 else "ef")) else None


def _kind_of(dtype: Any) -> str:
    """How numpy calls it, or nothing."""
    try:
        return str(numpy.dtype(dtype).char) if isinstance(dtype, str | type) else ""
    except TypeError:
        return ""


def _seen(items: Any) -> Any:
    """The list, or a copy of one of the state that holds numbers alone, which the core has read.

    A list inside it, nobody has read.
    """
    if any(type(item) in (list, tuple) and _is_of_state(item) for item in items):
        raise _UnknownError
    if not core.was_reached(items):
        return items
    if type(items) is not list or not all(_is_number(item) for item in items):
        raise _UnknownError
    return list(items)


def _is_of_state(items: Any) -> bool:
    inside = any(type(item) in (list, tuple) and _is_of_state(item) for item in items)
    return inside or bool(core.was_reached(items))


def _is_number(value: Any) -> bool:
    return type(value) in (bool, *carriers.NUMBERS)


def _shown_alone(tensor: torch.Tensor) -> Any:
    array = _shown(tensor)
    core.made_array(array, tensor, True)
    return array


def _shuffle(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    if len(args) == 2 and not kwargs and type(args[1]) is numpy.ndarray:
        _write(function, args[1], args[0])
        return
    core.refuse_array()
    core.call_as_caller(function, args, kwargs)


def call_on_tensors(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The same of a function that makes arrays of tensors itself."""
    plain = all(not value.requires_grad and value.device.type == "cpu" for value in args if _is_tensor(value))
    shown = (
        tuple(torch.Tensor.numpy(value) if _is_tensor(value) else value for value in args) if plain else args
    )
    for array, value in zip(shown, args, strict=True):
        if array is not value:
            core.made_array(array, value)
    return _made(function, shown, kwargs, False)


def _is_tensor(value: Any) -> bool:
    return type(value) is torch.Tensor


def know_scipy() -> None:
    """Functions of scipy that are steps, once it is loaded."""
    scipy: Any = sys.modules.get("scipy.optimize")
    function = getattr(scipy, "linear_sum_assignment", None)
    if numpy and function:
        _follow_on_tensors(function)


@functools.cache
def _follow_on_tensors(function: Callable[..., Any]) -> None:
    makers = {function: call_on_tensors}
    core.configure_arrays(Operand, index, set(_METHODS), set(_VALUES), {}, makers, set())


def _write(function: Callable[..., Any], array: Any, *args: Any) -> None:
    """A function that writes to the array, its first argument here.

    Tensors that were made of it, or that it was made of, would not be told.
    """
    draws = asked.shuffles(function)  # its generator is not looked into
    given = _given_to_write(array, args, draws)
    if given is None:
        core.refuse_array()
        core.call_as_caller(function, (*args, array) if draws else (array, *args), {})
        return
    step = _step(function, True)
    core.opaque_call(step, "", step, given, {}, False, False, draws)


def _given_to_write(array: Any, args: tuple[Any, ...], draws: bool) -> tuple[Any, ...] | None:
    """What a step is given that writes to an array, or None, as above."""
    try:
        may = array.flags.writeable and core.may_write_to_array(array)
        return (_as_given(array), *(args if draws else map(_as_given, args))) if may else None
    except _UnknownError:
        return None


def _view(array: Any, make: Callable[[torch.Tensor], torch.Tensor], plain: Callable[[], Any]) -> Any:
    """An array of the same memory: by the operator of torch that does the same."""
    tensor = core.tensor_of_array(array)
    if tensor is None:
        core.refuse_array()
        return plain()
    core.pin_sizes(tensor)
    told = plain()  # what it raises numpy says
    if told is array:
        return array
    if not told.size:  # torch says other strides of nothing
        core.refuse_array()
        return told
    shown = make(tensor)
    strides = [stride // array.itemsize for stride in told.strides]
    if strides != list(shown.stride()):  # of dimensions of size 1, which say nothing to torch
        shown = shown.as_strided(shown.shape, strides)
    made = _shown(shown)
    if not told.flags.writeable:  # a diagonal, and what is seen of one
        made.setflags(write=False)
    core.made_array(made, shown, core.is_own_array(array) and told.flags.writeable)
    return made


def _asked(array: Any, ask: Callable[[], Any]) -> Any:
    """What numpy gives. What it raises says how large the array is."""
    try:
        return ask()
    except (IndexError, ValueError):
        _pin(array)
        raise


def _pin(array: Any) -> None:
    tensor = core.tensor_of_array(array)
    if tensor is not None:
        core.pin_sizes(tensor)


def _with_numbers(array: Any, key: Any) -> Any:
    """The key with the numbers that slices ask their bounds for, and those of tensors that name one value."""
    if type(key) is slice:
        return slice(*map(_bound_of, (key.start, key.stop, key.step)))
    if type(key) is not tuple:
        return key
    one = len(key) == array.ndim and all(type(part) in _PLACES or _is_whole(part, 0) for part in key)
    return tuple(map(_number_of, key)) if one else tuple(_with_numbers(array, part) for part in key)


def _bound_of(value: Any) -> Any:
    """The number that numpy asks an array of one value and no dimensions for; anything else as it is."""
    tensor = core.tensor_of_array(value) if type(value) is numpy.ndarray and not value.ndim else value
    return value if tensor is None else _number_of(tensor)


def _number_of(value: Any) -> Any:
    return core.item_number(value, torch.Tensor.item) if _is_whole(value) else value


def _is_whole(value: Any, dimensions: int | None = None) -> bool:
    """Whether it is a tensor that counts as a number, as an index."""
    whole = type(value) is torch.Tensor and value.dtype in _WHOLE and value.numel() == 1
    return whole and dimensions in (None, value.dim())


_PLACES: Final = (int, carriers.Dim, carriers.Long, *((numpy.int64,) if numpy else ()))
_WHOLE: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _is_basic(key: Any) -> bool:
    """Whether the item is a view."""
    parts = _parts(key)
    steps = [part.step for part in parts if type(part) is slice]
    return all(type(part) in (int, slice, type(None), type(...)) for part in parts) and all(
        step is None or (type(step) is int and step > 0) for step in steps
    )


def _is_bound_by_arrays(key: Any) -> bool:
    """Whether slices have bounds that numpy asks for the value, or refuses."""
    bounds = [(part.start, part.stop, part.step) for part in _parts(key) if type(part) is slice]
    return any(isinstance(bound, (numpy.ndarray, torch.Tensor)) for one in bounds for bound in one)


def _parts(key: Any) -> tuple[Any, ...]:
    return key if type(key) is tuple else (key,)


def _within(array: Any, key: Any) -> Any:
    """The key, with numbers that are followed if each lies in the array, which is compared; else read."""
    parts = _parts(key)
    if not any(map(_follows, parts)):
        return key
    sizes = core.shape_of_array(array) if core.tensor_of_array(array) is not None else ()
    plain = len(parts) <= len(sizes) and all(type(part) in (int, slice, carriers.Dim) for part in parts)
    if not plain or not all(_lies_in(part, size) for part, size in zip(parts, sizes, strict=False)):
        return carriers.read_key(key)
    ended = tuple(_ended(part, size) for part, size in zip(parts, sizes, strict=False))
    return ended if type(key) is tuple else ended[0]


def _follows(part: Any) -> bool:
    """Whether it is a number that is followed, or a slice with one for a bound."""
    if type(part) is not slice:
        return type(part) is carriers.Dim
    bounds = (part.start, part.stop)
    known = part.step is None and all(type(one) in (int, carriers.Dim, type(None)) for one in bounds)
    return known and any(type(one) is carriers.Dim for one in bounds)


def _lies_in(part: Any, size: Any) -> bool:
    if not _follows(part):
        return True
    if type(part) is not slice:
        return bool(-size <= part < size)
    start, stop = part.start or 0 if type(part.start) is not carriers.Dim else part.start, part.stop
    # Of an array of nothing numpy says other strides than torch.
    return bool(0 <= start < (size if stop is None else stop) <= size)


def _ended(part: Any, size: Any) -> Any:
    return slice(part.start, size) if _follows(part) and type(part) is slice and part.stop is None else part


def _selected(tensor: torch.Tensor, key: Any) -> torch.Tensor:
    """The item, of which numbers that are followed are arguments of operators."""
    parts = list(_parts(key))
    if not any(map(_follows, parts)):
        return tensor[key]
    for at in reversed(range(len(parts))):
        part = parts[at]
        if not _follows(part):
            continue
        if type(part) is slice:
            moved = type(part.start) is carriers.Dim or part.start
            # Of a window the core knows that it has the same size wherever it lies.
            inside = (*[slice(None)] * at, core.followed_index(part)) if moved else ()
            tensor = torch.Tensor.__getitem__(tensor, inside) if moved else tensor.narrow(at, 0, part.stop)
            parts[at] = slice(None)
        else:
            tensor = tensor.select(at, part)
            del parts[at]
    return tensor[tuple(parts)] if parts else tensor


def _at_first(key: Any) -> Any:
    """The key with others for numbers that are followed: what numpy gives there lies the same way."""

    def first(part: Any) -> Any:
        if not _follows(part):
            return part
        return slice(1) if type(part) is slice else 0

    return tuple(map(first, key)) if type(key) is tuple else first(key)


def _set_at(array: Any, value: Any, *parts: Any) -> None:
    """Sets an item of an array; each number among these may be followed."""
    array[parts] = value


def index(key: Any) -> Any:
    """What tensors are indexed by in the place of arrays: torch copies these."""
    parts = _parts(key)
    made = tuple(_index_of(part) if type(part) is numpy.ndarray else part for part in parts)
    if any(part is None for part, before in zip(made, parts, strict=True) if before is not None):
        core.refuse_array()
        return key
    return made if type(key) is tuple else made[0]


def _index_of(array: Any) -> torch.Tensor | None:
    tensor = core.tensor_of_array(array)
    known = tensor is not None and array.dtype in (numpy.int64, numpy.bool_) and array.ndim == 1
    return tensor.clone() if known and tensor is not None else None


class Operand:
    """An array that an instruction works with."""

    __slots__ = ("alone", "array")
    __array_ufunc__ = None  # scalars of numpy leave operators to it

    def __init__(self, array: Any) -> None:
        self.array, self.alone = array, False

    @staticmethod
    def for_number(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`call` where what it gives becomes a number of Python at once, and may be an array for so long."""
        return _made(function, args, kwargs, False, alone=True)

    @staticmethod
    def rows(array: Any) -> Any:
        """What a loop over the array goes through instead: its items, each when it is asked for."""
        return _each(array) if _has_few_rows(array) else array

    @staticmethod
    def turned(array: Any) -> Any:
        """What is asked for `[::-1]` instead, where that is gone through at once."""
        return _Turned(array) if _has_few_rows(array) else Operand(array)

    @staticmethod
    def parts(array: Any) -> Any:
        """Its items, all at once."""
        return list(_each(array)) if _has_few_rows(array) else array

    @classmethod
    def methods(cls) -> dict[str, Any]:
        """Those that Python code calls by their name."""
        return {name: getattr(cls, name) for name in _METHODS}

    def __getitem__(self, key: Any) -> Any:
        array, tensor = self.array, core.tensor_of_array(self.array)
        key = _with_numbers(array, key)
        if _is_bound_by_arrays(key):
            return call(operator.getitem, array, key)
        key = _within(array, carriers.with_dims(key))
        first = _at_first(key)
        if tensor is None or not _is_basic(first):
            return call(operator.getitem, array, key)
        plain = _asked(array, lambda: array[first])
        if not isinstance(plain, numpy.ndarray):
            return _scalar(_selected(tensor, key))
        return _view(array, lambda shown: _selected(shown, key), lambda: plain)

    def __setitem__(self, key: Any, value: Any) -> None:
        key = _with_numbers(self.array, key)
        if type(key) is tuple:
            _write(_set_at, self.array, value, *key)
        else:
            _write(operator.setitem, self.array, key, value)

    def __bool__(self) -> bool:
        tensor = core.tensor_of_array(self.array)
        if tensor is None or self.array.size != 1:
            core.refuse_array()
            return bool(self.array)
        core.pin_sizes(tensor)
        return bool(_scalar(tensor.reshape(())))

    @property
    def T(self) -> Any:
        """The array with its dimensions in the other order."""
        array = self.array
        if array.ndim > 2:
            core.refuse_array()
            return array.T
        return _view(
            array, lambda tensor: tensor.T if tensor.dim() == 2 else tensor.view_as(tensor), lambda: array.T
        )

    def transpose(self, *axes: Any) -> Any:
        """A view."""
        array = self.array
        given = axes[0] or () if len(axes) == 1 and type(axes[0]) in (tuple, list, type(None)) else axes
        order = tuple(map(carriers.read, given))
        if order:
            return _view(array, lambda tensor: tensor.permute(order), lambda: array.transpose(order))
        return _view(
            array, lambda tensor: tensor.permute(*range(array.ndim)[::-1]), lambda: array.transpose()
        )

    def squeeze(self, axis: Any = None) -> Any:
        """A view."""
        array, axis = self.array, carriers.read(axis)
        if axis is None:
            return _view(array, lambda tensor: tensor.squeeze(), lambda: array.squeeze())
        return _view(array, lambda tensor: tensor.squeeze(axis), lambda: array.squeeze(axis))

    def expand_dims(self, axis: Any) -> Any:
        """A view, as numpy's function of this name gives it."""
        array, axis = self.array, carriers.read(axis)
        if type(axis) is not int:
            core.refuse_array()
            return numpy.expand_dims(array, axis)
        plain = partial(numpy.expand_dims, array, axis)
        return _view(array, lambda tensor: tensor.unsqueeze(axis), lambda: core.aside(plain))

    def diag(self, k: Any = 0) -> Any:
        """A view that may not be written to, or of one dimension a matrix."""
        return self.diagonal(k) if self.array.ndim == 2 else call(numpy.diag, self.array, k)

    def diagonal(self, offset: Any = 0, *args: Any, **kwargs: Any) -> Any:
        """A view that may not be written to."""
        array, offset = self.array, carriers.read(offset)
        if args or kwargs or type(offset) is not int:
            core.refuse_array()
            return array.diagonal(offset, *args, **kwargs)
        return _view(array, lambda tensor: tensor.diagonal(offset), lambda: array.diagonal(offset))

    def __contains__(self, value: Any) -> bool:
        found = call(numpy.any, call(operator.eq, self.array, _inside(value)))
        return bool(found)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes, which are followed where others are."""
        return core.shape_of_array(self.array)

    @property
    def dtype(self) -> Any:
        """As numpy has it."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """How many dimensions there are."""
        return int(self.array.ndim)

    @property
    def size(self) -> int:
        """How many values there are, which is read."""
        _pin(self.array)
        return int(self.array.size)

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """A view."""
        array = self.array
        given = shape[0] if len(shape) == 1 and type(shape[0]) is tuple else shape
        sizes = tuple(map(carriers.read, given))
        if kwargs or not all(type(size) is int for size in sizes):
            core.refuse_array()
            return array.reshape(*shape, **kwargs)
        plain = _asked(array, lambda: array.reshape(sizes))
        if plain.size and not core.aside(partial(numpy.may_share_memory, plain, array)):
            return _made(numpy.ndarray.reshape, (array, sizes), {}, False)
        return _view(array, lambda tensor: tensor.view(plain.shape), lambda: plain)

    def ravel(self, *args: Any, **kwargs: Any) -> Any:
        """A view, if there can be one."""
        if args or kwargs:
            core.refuse_array()
            return self.array.ravel(*args, **kwargs)
        return self.reshape(-1)

    def swapaxes(self, one: Any, other: Any) -> Any:
        """A view."""
        array, axes = self.array, (carriers.read(one), carriers.read(other))
        plain = _asked(array, lambda: array.swapaxes(*axes))
        return _view(array, lambda tensor: tensor.transpose(*axes), lambda: plain)

    def fill(self, value: Any) -> None:
        """Writes."""
        _write(numpy.ndarray.fill, self.array, value)

    def sort(self, *args: Any, **kwargs: Any) -> None:
        """Writes."""
        if args or kwargs:
            core.refuse_array()
            self.array.sort(*args, **kwargs)
        else:
            _write(numpy.ndarray.sort, self.array)

    def item(self, *args: Any, **kwargs: Any) -> Any:
        """The number, followed."""
        tensor = core.tensor_of_array(self.array)
        if args or kwargs or tensor is None or self.array.size != 1:
            core.refuse_array()
            return self.array.item(*args, **kwargs)
        core.pin_sizes(tensor)
        return core.item_number(tensor, torch.Tensor.item)

    def tolist(self, *args: Any, **kwargs: Any) -> Any:
        """The numbers, followed, if there are few."""
        tensor = core.tensor_of_array(self.array)
        if args or kwargs or tensor is None or tensor.numel() > _MOST:
            core.refuse_array()
            return self.array.tolist(*args, **kwargs)
        core.pin_sizes(tensor)
        return values_of(tensor)

    def astype(self, *args: Any, **kwargs: Any) -> Any:
        """A copy of another dtype; itself where it is told to make none, and none is needed."""
        array = self.array
        copies = kwargs.get("copy", True)
        if len(args) != 1 or not kwargs.keys() <= {"copy"} or type(copies) is not bool:
            core.refuse_array()
            return array.astype(*args, **kwargs)
        if not copies and numpy.dtype(args[0]) == array.dtype:
            return array
        return _made(numpy.ndarray.astype, (array, args[0]), {}, False, self.alone)


_MOST: Final = 64


def _has_few_rows(array: Any) -> bool:
    tensor = core.tensor_of_array(array)
    if tensor is None or not array.ndim or len(array) > _MOST:
        return False
    core.pin_sizes(tensor)
    return True


class _Turned:
    """An array of which a loop goes through the items from its end on."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, key: slice) -> Any:
        return _each(self.array, -1)


def _each(array: Any, step: int = 1) -> Any:
    operand = Operand(array)
    for place in range(len(array))[::step]:
        # What holds it may outlive the recording, as a zip that is returned.
        yield operand[place] if core.is_recording() else array[place]


def values_of(tensor: torch.Tensor) -> Any:
    """The numbers of a tensor in lists, or its only one, each followed."""
    if not tensor.dim():
        return core.item_number(tensor, torch.Tensor.item)
    return [values_of(one) for one in tensor.unbind()]


def _set_operators() -> None:
    def left(function: Any) -> Any:
        return lambda self, other: call(function, self.array, _inside(other))

    def right(function: Any) -> Any:
        return lambda self, other: call(function, _inside(other), self.array)

    def in_place(function: Any, plain: Any) -> Any:
        def operate(self: Any, other: Any) -> Any:
            if type(self.array) is not numpy.ndarray:  # a scalar, which does not change
                return call(plain, self.array, _inside(other))
            _write(function, self.array, _inside(other))
            return self.array

        return operate

    for name in [
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
        "matmul",
    ]:
        own = {"and": "and_", "or": "or_"}.get(name, name)
        setattr(Operand, f"__{name}__", left(getattr(operator, own)))
        setattr(Operand, f"__r{name}__", right(getattr(operator, own)))
        setattr(Operand, f"__i{name}__", in_place(getattr(operator, f"i{name}"), getattr(operator, own)))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(Operand, f"__{name}__", left(getattr(operator, name)))
    for name in ("neg", "pos", "invert"):
        alone = getattr(operator, name)
        setattr(Operand, f"__{name}__", lambda self, alone=alone: call(alone, self.array))
    for name in _METHODS:
        if name not in vars(Operand):
            method = getattr(numpy.ndarray, name)
            setattr(Operand, name, _method(method))


def _method(method: Callable[..., Any]) -> Callable[..., Any]:
    # The core sets `alone` of one whose result becomes a number.
    return lambda self, *args, **kwargs: _made(method, (self.array, *args), kwargs, False, self.alone)


def _inside(value: Any) -> Any:
    return value.array if type(value) is Operand else value


def _number(kind: Callable[..., Any]) -> Callable[..., Any]:
    def convert(array: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = core.tensor_of_array(array)
        if args or kwargs or tensor is None or array.ndim or array.dtype.kind not in "biuf":
            core.refuse_array()
            return kind(array, *args, **kwargs)
        number = core.item_number(tensor, torch.Tensor.item)
        if kind is bool:
            return bool(carriers.read(number))
        return carriers.as_float(number) if kind is float else carriers.as_int(number)

    return convert


def numbers() -> dict[Any, Any]:
    """What is called in the place of classes of numbers that are handed an array."""
    return {kind: _number(kind) for kind in (float, int, bool)} if numpy else {}


def configure() -> None:
    """Tell the core of all this, once."""
    core.configure_asked(asked.functions(), ask, asked.of_numpy)
    if not numpy:
        return
    _set_operators()
    functions = {getattr(numpy, name): call for name in _FUNCTIONS if hasattr(numpy, name)}
    functions |= {value: call for value in vars(numpy).values() if isinstance(value, numpy.ufunc)}
    functions[abs] = call
    functions |= {getattr(numpy, name): call_as_method for name in _AS_METHODS}
    functions |= {numpy.ufunc.at: call_at, numpy.linalg.norm: call}
    makers = {getattr(numpy, name): call for name in _MAKERS}
    makers |= {numpy.asarray: call_for_array, numpy.asanyarray: call_for_array}
    core.configure_arrays(Operand, index, set(_METHODS), set(_VALUES), functions, makers, set(_OF_LISTS))
