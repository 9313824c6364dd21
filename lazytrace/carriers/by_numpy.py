"""What functions of numpy make of followed numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

from torch import Size

from lazytrace._native import core
from lazytrace.carriers.classes import (
    CARRIERS,
    LARGEST,
    OF_ARRAYS,
    SMALLEST,
    Dim,
    Long,
    Real,
    Scalar,
    Single,
    are_numbers,
    as_double,
    as_float,
    as_int,
    as_long,
    as_scalar,
    as_single,
    call_plainly,
    is_followable,
    is_ordinary,
    numpy,
    read,
    single_of,
    to_single,
)
from lazytrace.carriers.functions import ODD, largest, smallest
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

# So many numbers numpy adds up in one piece.
_AT_ONCE = 128
_LARGEST_WHOLE = 1 << 62


def _by_numpy(
    function: Callable[..., Any], follow: Callable[..., Any], takes: int = 1, *, step: bool = False
) -> Callable[..., Any]:
    """What is called for a function of numpy; `follow` gives None for what is not followed.

    With `step` it is a step then, as it is with arrays.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        made = follow(*args) if len(args) == takes and not kwargs else None
        if made is not None:
            return made
        if step or _holds(args, (Single, Long)):
            return OF_ARRAYS[0](function, *args, **kwargs)
        core.refuse_scalar()
        return call_plainly(function, args, kwargs)

    return call


def _holds(values: Sequence[Any], kinds: tuple[Any, ...], deepest: bool = False) -> bool:
    for value in values:
        if type(value) in kinds or (
            type(value) in (list, tuple) and not deepest and _holds(value, kinds, True)
        ):
            return True
    return False


def _of_numpy(kind: str, value: Any) -> Any:
    if type(value) in (Dim, Long):
        if kind == "NumpyAbsolute":
            return as_long(abs(value))
        value = as_float(value)  # as numpy does
    made = core.apply_to_carriers(kind, value, None) if type(value) in (Real, Scalar) else None
    return None if made is None else as_scalar(made)


def _asked_by_numpy(ask: Callable[[Any], Any], value: Any) -> Any:
    return numpy.bool_(bool(ask(as_float(value)))) if type(value) in CARRIERS else None


def _rounded_by_numpy(rounds: Callable[[Any], Any], value: Any) -> Any:
    if type(value) not in (Real, Scalar):
        return None
    value = as_float(value)
    # Of what is below 0 it may make -0.0.
    return as_scalar(as_float(rounds(value))) if value > 0 and is_ordinary(value) else None


def _power_by_numpy(base: Any, exponent: Any) -> Any:
    # Of two ints it is an int.
    if type(base) not in (float, Real, Scalar) or not are_numbers(base, exponent):
        return None
    made = core.apply_to_carriers("NumpyPower", as_float(base), as_float(exponent))
    return None if made is None else as_scalar(made)


def _are_whole(*values: Any) -> bool:
    """Whether numpy has an int64 for each."""
    if not all(type(value) in (int, numpy.int64, Dim, Long) for value in values):
        return False
    return all(-(1 << 63) <= value < 1 << 63 for value in values if type(value) is int)


def _extreme_by_numpy(choose: Callable[[Any, Any], Any], *values: Any) -> Any:
    if _are_whole(*values):
        return as_long(choose(*map(as_int, values)))
    if not are_numbers(*values) or not any(type(value) in (float, Real, Scalar) for value in values):
        return None
    first, second = map(as_float, values)
    # A nan is handed on, and of two zeros it is not said which one.
    if not (is_ordinary(first) and is_ordinary(second)) or (first == 0 and second == 0):
        return None
    return as_scalar(choose(first, second))


def _clip_by_numpy(value: Any, low: Any, high: Any) -> Any:
    followed = type(value) in (Real, Scalar) or _are_whole(value, low, high)
    raised = _extreme_by_numpy(largest, value, low) if followed else None
    return None if raised is None else _extreme_by_numpy(smallest, raised, high)


def _pairwise_sum(items: list[Any]) -> Any:
    """As numpy adds up to 128 floats (pairwise_sum, numpy/_core/src/umath/loops_utils.h)."""
    width = 8
    if len(items) < width:
        return reduce(operator.add, items)
    whole = len(items) - len(items) % width
    rows = [items[i : i + width] for i in range(0, whole, width)]
    a, b, c, d, e, f, g, h = (reduce(operator.add, column) for column in zip(*rows, strict=True))
    return reduce(operator.add, items[whole:], ((a + b) + (c + d)) + ((e + f) + (g + h)))


def _mean_by_numpy(items: Any) -> Any:
    few = type(items) in (list, tuple) and 0 < len(items) <= _AT_ONCE
    if few and all(type(item) in (numpy.float32, Single) for item in items):
        total = 0.0 + _pairwise_sum([as_single(to_single(item)) for item in items])
        return as_single(as_float(total) / len(items)) if type(total) is Single else None
    if few and are_numbers(*items):
        # An array has one kind of numbers, and adds to 0.
        total = 0.0 + _pairwise_sum([as_float(item) for item in items])
        if is_followable(total) and is_ordinary(total):
            return as_scalar(total / len(items))
    return None


def _whole_by_numpy(combine: Callable[[Any, Any], Any], items: Any) -> Any:
    """What numpy makes of whole numbers, which are int64 to it."""
    if type(items) not in (list, tuple, Size) or not items or not _are_whole(*items):
        return None
    found = as_int(items[0])
    for item in items[1:]:
        found = combine(found, as_int(item))
        if type(found) is int and abs(found) > _LARGEST_WHOLE:  # numpy's goes round
            return None
    return as_long(found)


def of_numpys() -> dict[Any, Any]:
    """What stands for the functions of numpy."""
    if numpy is None:
        return {}
    follows: dict[Any, Callable[[Any], Any]] = {
        **{function: partial(_of_numpy, kind) for kind, (function, _) in NUMPY.items()},
        **{getattr(numpy, name): partial(_asked_by_numpy, ask) for name, ask in ODD.items()},
        numpy.ceil: partial(_rounded_by_numpy, math.ceil),
        numpy.floor: partial(_rounded_by_numpy, math.floor),
        numpy.mean: _mean_by_numpy,
    }
    return {
        **{function: _by_numpy(function, follow) for function, follow in follows.items()},
        numpy.prod: _by_numpy(numpy.prod, partial(_whole_by_numpy, operator.mul), step=True),
        numpy.sum: _by_numpy(numpy.sum, partial(_whole_by_numpy, operator.add), step=True),
        numpy.power: _by_numpy(numpy.power, _power_by_numpy, 2),
        numpy.maximum: _by_numpy(numpy.maximum, partial(_extreme_by_numpy, largest), 2),
        numpy.minimum: _by_numpy(numpy.minimum, partial(_extreme_by_numpy, smallest), 2),
        numpy.clip: _by_numpy(numpy.clip, _clip_by_numpy, 3),
        numpy.float32: _kind_of_numpys(numpy.float32, single_of),
        numpy.float64: _kind_of_numpys(numpy.float64, as_double),
        numpy.int64: _kind_of_numpys(numpy.int64, _whole_of),
    }


def _kind_of_numpys(kind: type, follow: Callable[[Any], Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        made = follow(args[0]) if len(args) == 1 and type(args[0]) in CARRIERS else None
        return kind(*map(read, args)) if made is None else made

    return call


def _whole_of(number: Any) -> Any:
    # Of what is too large for one, numpy says other things of its own floats than of Python's.
    return as_long(as_int(number)) if type(number) in (Dim, Long) else None


def as_numpy(function: Callable[..., Any], fits: Callable[..., bool]) -> Callable[..., Any]:
    """The float that numpy gives; None where it may warn."""
    return lambda *values: float(function(*values)) if fits(*values) else None


def _is_positive(value: float) -> bool:
    return SMALLEST < value < LARGEST


def has_power(base: float, exponent: float) -> bool:
    """Whether numpy and C give the same power: a positive base, and no overflow."""
    return _is_positive(base) and abs(exponent * math.log10(base)) < 280


# What numpy's functions give, and for which numbers they have nothing to say of it.
NUMPY: dict[str, tuple[Any, Callable[..., bool]]] = (
    {
        "NumpyAbsolute": (numpy.absolute, is_ordinary),
        "NumpyExp": (numpy.exp, lambda value: abs(value) < 600),
        "NumpyLog": (numpy.log, _is_positive),
        "NumpyLog10": (numpy.log10, _is_positive),
        "NumpyLog2": (numpy.log2, _is_positive),
        "NumpySqrt": (numpy.sqrt, lambda value: value == 0 or _is_positive(value)),
        "NumpyLog1p": (numpy.log1p, _is_positive),
        "NumpyExpm1": (numpy.expm1, lambda value: value == 0 or 1e-290 < abs(value) < 600),
        "NumpySin": (numpy.sin, is_ordinary),
        "NumpyCos": (numpy.cos, is_ordinary),
        "NumpyTanh": (numpy.tanh, is_ordinary),
    }
    if numpy
    else {}
)


def in_single_precision(number: Any) -> float:
    """A number as float32 has it."""
    return float(core.aside(partial(numpy.float32, number)))
