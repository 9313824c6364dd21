"""What Python is given in place of numbers that a recording follows: ints and floats of known origin."""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import math
import opcode
import operator
import sys
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch.overrides import has_torch_function

from lazytrace._native import available, core
from lazytrace._torch import (
    default_device,
    default_tensors_device,
    pad,
    pad_sequence,
    takers_of_floats,
    takers_of_scales,
)
from lazytrace.originals import BUILTINS
from lazytrace.texts import Text

__builtins__ = BUILTINS

# C code reads the value of a number without asking. `Dim` is an int, and `Real` a float, to `isinstance`
# alone: C code must call one of the methods below to see the value. torch's parser takes them for a SymInt
# and a SymFloat.

# So many numbers are put into a tensor by one operator; more of them are read.
_FEW = 256
# So many numbers numpy adds up in one piece.
_AT_ONCE = 128


def _read(value: Any) -> Any:
    """The plain value, which the program compares from now on; anything else as it is."""
    return core.read_carrier(value) if type(value) in _READABLE else value


def _turns(*bounds: Any) -> range:
    """`range` for a loop that goes through it: of its end, no more is read than how often the loop turns."""
    if len(bounds) == 3 and type(bounds[1]) is Dim:
        start, stop, step = bounds
        if type(start) is int and type(step) is int and step > 1:
            return range(start, start + step * max(_read((stop - start + step - 1) // step), 0), step)
    return range(*map(_read, bounds))


def _is_whole(value: object) -> bool:
    return type(value) in (int, bool, Dim)


def _is_followable(value: object) -> bool:
    return type(value) in (int, bool, float, Dim, Real)


def _is_number(value: object) -> bool:
    """What is worked out with the plain value. Of numpy's, not all are int or float.

    One of numpy's that is followed has operators of its own, which come next.
    """
    return type(value) not in (Scalar, Single, Long) and (
        _is_followable(value)
        or isinstance(value, int | float | complex)
        or hasattr(type(value), "__array_interface__")
    )


def _plain_operation(function: Callable[..., Any], *values: Any) -> Any:
    return function(*map(_read, values))


def _made(kind: str, function: Callable[..., Any], *values: Any) -> Any:
    """The number that `function` gives for one or two numbers, followed where that can be."""
    made = None
    if all(map(_is_followable, values)):
        made = core.apply_to_carriers(kind, values[0], values[1] if len(values) > 1 else None)
    return _plain_operation(function, *values) if made is None else made


def _binary(kind: str, function: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def work_out(left: Any, right: Any) -> Any:
        if not (_is_number(left) and _is_number(right)):
            return NotImplemented
        return _made(kind, function, left, right) if kind else _plain_operation(function, left, right)

    def forward(self: Any, other: Any) -> Any:
        # Under a trace function each frame has its price: one, in place of six.
        if kind and type(other) in (int, Dim, float, Real, bool):
            made = core.apply_to_carriers(kind, self, other)
            return _plain_operation(function, self, other) if made is None else made
        return work_out(self, other)

    def reflected(self: Any, other: Any) -> Any:
        return work_out(other, self)

    return forward, reflected


def _comparison(kind: str, swapped: bool, function: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    ordered = kind in ("Less", "LessEqual")

    def compare(self: Any, other: Any) -> Any:
        if type(other) in (int, Dim, float, Real, bool):
            left, right = (other, self) if swapped else (self, other)
            made = core.apply_to_carriers(kind, left, right)
            if made is not None:
                return bool(core.read_carrier(made) if type(made) in (Dim, Real) else made)
        if _is_number(other) and not (ordered and isinstance(other, complex)):
            return function(_read(self), _read(other))
        return NotImplemented  # Python says which of the two stood on the left

    return compare


def _reading(kind: type, name: str) -> Callable[..., Any]:
    function = getattr(kind, name)

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(_read(self), *map(_read, args), **kwargs)

    return read


_FOLLOWED = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "truediv": "TrueDiv",
    "floordiv": "FloorDiv",
    "mod": "Mod",
}


# How they come about, and whether of the operands the other way round.
_COMPARISONS = (
    ("lt", "Less", False),
    ("le", "LessEqual", False),
    ("gt", "Less", True),
    ("ge", "LessEqual", True),
    ("eq", "Equal", False),
    ("ne", "NotEqual", False),
)


def _methods(kind: type) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: _reading(kind, name) for name in vars(kind) if callable(getattr(kind, name))
    }
    for name in ("__new__", "__getattribute__", "__doc__", "from_bytes", "__class_getitem__"):
        found.pop(name, None)
    for name in ("fromhex", "__getformat__", "__setformat__"):
        found.pop(name, None)
    for name in ("real", "imag", "numerator", "denominator"):
        if hasattr(kind, name):
            found[name] = property(partial(_part, name))
    for name in (*_FOLLOWED, "and", "or", "xor", "lshift", "rshift", "matmul"):
        function = getattr(operator, name, None) or getattr(operator, name + "_")
        forward, reflected = _binary(_FOLLOWED.get(name, ""), function)
        found[f"__{name}__"], found[f"__r{name}__"] = forward, reflected
    for name, how, swapped in _COMPARISONS:
        found[f"__{name}__"] = _comparison(how, swapped, getattr(operator, name))
    return found


def _part(name: str, self: Any) -> Any:
    return getattr(_read(self), name)


def _powered(base: Any, exponent: Any) -> Any:
    if not (_is_number(base) and _is_number(exponent)):
        return NotImplemented
    if _is_whole(base) and _is_whole(exponent) and not exponent >= 0:
        # A float, by the power of floats (Objects/longobject.c).
        base, exponent = _float(base), _float(exponent)
    return _made("Pow", pow, base, exponent)


def _power(self: Any, exponent: Any, modulus: Any = None) -> Any:
    if modulus is not None:
        return pow(_read(self), _read(exponent), _read(modulus)) if _is_number(exponent) else NotImplemented
    return _powered(self, exponent)


def _reflected_power(self: Any, base: Any, modulus: Any = None) -> Any:
    return _power(_read(base), _read(self), modulus) if modulus is not None else _powered(base, self)


def _divided(left: Any, right: Any) -> Any:
    if (
        not (_is_number(left) and _is_number(right))
        or isinstance(left, complex)
        or isinstance(right, complex)
    ):
        return NotImplemented  # Python's words name divmod(), not the parts of it
    # Of zero it says something else than each part of it does.
    return (left // right, left % right) if right != 0 else _plain_operation(divmod, left, right)


def _same(self: Any, *_: Any) -> Any:
    return self


def _method(kind: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: _made(kind, function, self)


def _round(self: Any, digits: Any = None) -> Any:
    if digits is None:
        return _made("Round", round, self)
    return _made("RoundTo", round, self, digits) if _is_whole(digits) else round(_read(self), digits)


def _reduce(self: Any, protocol: Any = None) -> Any:
    value = _read(self)
    return type(value), (value,)


_COMMON: dict[str, Any] = {
    "__module__": "builtins",
    # Numpy's numbers would take it for an object, and give plain ones: they leave operators to it.
    "__array_priority__": math.inf,
    "__pos__": _same,
    "__copy__": _same,
    "__deepcopy__": _same,
    "conjugate": _same,
    "__pow__": _power,
    "__rpow__": _reflected_power,
    "__neg__": _method("Neg", operator.neg),
    "__abs__": _method("Abs", abs),
    "__bool__": lambda self: self != 0,
    "__divmod__": lambda self, other: _divided(self, other),
    "__rdivmod__": lambda self, other: _divided(other, self),
    "__reduce_ex__": _reduce,
    "__reduce__": _reduce,
    "__sym_max__": lambda self, other: max(_read(self), _read(other)),
    "__sym_min__": lambda self, other: min(_read(self), _read(other)),
    "node": property(core.symbolic_node) if available() else None,
}

# What C code says of a wrong argument names its class.
_OF_DIM: dict[str, Any] = {
    **_methods(int),
    **_COMMON,
    "__name__": "int",
    "__qualname__": "int",
    "__doc__": "An int that is followed, such as the size of a tensor.",
    "__trunc__": _same,
    "__floor__": _same,
    "__ceil__": _same,
    "__invert__": lambda self: -self - 1,
    "__sym_int__": _same,
    "__sym_float__": lambda self: _float(self),
}

_OF_REAL: dict[str, Any] = {
    **_methods(float),
    **_COMMON,
    "__name__": "float",
    "__qualname__": "float",
    "__doc__": "A float that is followed, such as the value of a tensor.",
    "__trunc__": _method("Trunc", math.trunc),
    "__floor__": _method("Floor", math.floor),
    "__ceil__": _method("Ceil", math.ceil),
    "__round__": _round,
    "__sym_int__": _method("Trunc", math.trunc),
    "__sym_float__": _same,
}

Dim: Any = core.make_carrier_class(False, _OF_DIM, torch.SymInt) if available() else None
Real: Any = core.make_carrier_class(True, _OF_REAL, torch.SymFloat) if available() else None


# What numpy may warn of, or raise, is a setting of the thread, so such numbers are not followed.
_SMALLEST, _LARGEST = 1e-290, 1e290


def _is_ordinary(value: Any, zero: bool = True) -> bool:
    """Asked of a number that is followed, and so compared by each replay."""
    return bool(_SMALLEST < abs(value) < _LARGEST or (zero and value == 0))


def _as_scalar(number: Any) -> Any:
    made = core.apply_to_carriers("Scalar", number, None)
    return numpy.float64(_read(number)) if made is None else made


def _as_single(number: Any) -> Any:
    made = core.apply_to_carriers("Single", number, None)
    return numpy.float32(_read(number)) if made is None else made


def _as_long(number: Any) -> Any:
    made = core.apply_to_carriers("Long", number, None)
    return numpy.int64(_read(number)) if made is None else made


def _as_double(number: Any) -> Any:
    """As numpy converts it. Of such operands a replay never raises what Python would raise of its own."""
    return number if type(number) in (numpy.float64, Scalar) else _as_scalar(_float(number))


# Within these, a result of single precision is that of double precision, rounded once more: this has more
# than twice as many digits.
_SMALLEST_SINGLE, _LARGEST_SINGLE = 1e-30, 1e30
# Whole numbers up to this one are exact in single precision.
_WHOLE_IN_SINGLE = 1 << 24


def _is_ordinary_single(value: Any, zero: bool = True) -> bool:
    return bool(_SMALLEST_SINGLE < abs(value) < _LARGEST_SINGLE or (zero and value == 0))


def _to_single(number: Any) -> Any:
    """The double that a number has in single precision, as numpy converts what stands beside a float32.

    None where it may say something, or where it is another kind of number.
    """
    if type(number) in (numpy.float32, Single):
        return core.apply_to_carriers("Float", number, None)
    if type(number) in (int, Dim) and abs(number) <= _WHOLE_IN_SINGLE:
        return core.apply_to_carriers("Float", number, None)
    if type(number) in (float, Real) and (_is_ordinary_single(number) or abs(number) == math.inf):
        return core.apply_to_carriers("Float", core.apply_to_carriers("Single", number, None), None)
    return None


def _single_operation(kind: type, name: str, side: str) -> Callable[..., Any]:
    """Of float32, which numpy works with in single precision unless the other one is a float64."""
    plain = getattr(kind, f"__{side}{name}__")
    followed = _FOLLOWED.get(name) if name in ("add", "sub", "mul", "truediv") else None
    zero = name in ("add", "sub")

    def operate(self: Any, other: Any, *rest: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return plain(_read(self), other)
        if _takes_over(other):
            return NotImplemented
        if type(other) in (numpy.float64, Scalar, numpy.int64, Long):
            made = None if rest else _of_doubles(name, self, other, bool(side))
            if made is not None:
                return made
        made = _of_singles(followed, self, other, bool(side)) if followed and not rest else None
        if made is not None and _is_ordinary_single(made, zero):
            return _as_single(made)
        if name != "divmod" and not rest and type(other) in _OPERANDS:
            by_numpy = getattr(operator, name)
            return _OF_ARRAYS[0](by_numpy, *((other, self) if side else (self, other)))
        value, other = _read(self), _read(other)
        if not _computes_quietly(name, *((other, value) if side else (value, other))):
            core.refuse_scalar()
        return plain(value, other, *map(_read, rest))

    return operate


# A product that is 0 may be one that is too small.
_MAY_BE_ZERO = ("add", "sub", "floordiv", "mod")


def _of_doubles(name: str, number: Any, other: Any, swapped: bool) -> Any:
    """The float64 that numpy works out of two, or what it makes of them; None where it may say something."""
    how = {**_FOLLOWED, "pow": "Pow"}.get(name)
    if how is None:
        return None
    left, right = map(_as_double, (other, number) if swapped else (number, other))
    made = core.apply_to_carriers(how, left, right)
    if made is None:
        return None
    zero = name in _MAY_BE_ZERO or (made == 0 and _gives_zero(name, left, right))
    return _as_scalar(made) if _is_ordinary(made, zero) else None


def _gives_zero(name: str, left: Any, right: Any) -> bool:
    return bool((name in ("mul", "truediv") and left == 0) or (name == "mul" and right == 0))


def _of_singles(kind: str, number: Any, other: Any, swapped: bool) -> Any:
    """What is worked out of two in double precision; None of what cannot be."""
    left, right = _to_single(number), _to_single(other)
    if left is None or right is None:
        return None
    if kind == "TrueDiv":
        left, right = _as_double(left), _as_double(right)
    return core.apply_to_carriers(kind, *((right, left) if swapped else (left, right)))


def _single_comparison(kind: type, name: str, how: str, swapped: bool) -> Callable[..., Any]:
    plain = getattr(kind, f"__{name}__")

    def compare(self: Any, other: Any) -> Any:
        if _takes_over(other):
            return NotImplemented
        if type(other) in (numpy.float64, Scalar, numpy.int64, Long):
            left, right = map(_float, (other, self) if swapped else (self, other))
            made = core.apply_to_carriers(how, left, right)
        else:
            made = _of_singles(how, self, other, swapped)
        return plain(_read(self), _read(other)) if made is None else numpy.bool_(_read(made))

    return compare


def _takes_over(other: Any) -> bool:
    """Whether numpy leaves operators to the class of the other operand, as it does to arrays here."""
    return getattr(type(other), "__array_ufunc__", numpy) is None


# How CPython numbers the operators that are not followed for all values (_nb_ops of opcode.py).
_NUMBERED = {name.removeprefix("NB_"): number for number, (name, _) in enumerate(opcode._nb_ops)}  # type: ignore[attr-defined]
_OPERATIONS = {
    "add": "ADD",
    "sub": "SUBTRACT",
    "mul": "MULTIPLY",
    "truediv": "TRUE_DIVIDE",
    "floordiv": "FLOOR_DIVIDE",
    "mod": "REMAINDER",
    "pow": "POWER",
    "divmod": "FLOOR_DIVIDE",
}


def _computes_quietly(name: str, left: Any, right: Any) -> bool:
    """Whether numpy has nothing to say of the operation, whatever is set for the thread."""
    return bool(core.computes_quietly(_NUMBERED[_OPERATIONS[name]], left, right))


def _scalar_operation(kind: type, name: str, side: str) -> Callable[..., Any]:
    """Of float64: followed where the other operand is a number, too, and numpy has nothing to say of it."""
    plain = getattr(kind, f"__{side}{name}__")

    def operate(self: Any, other: Any, *rest: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return plain(_read(self), other)
        if _takes_over(other):
            return NotImplemented
        if not rest and _stands_by_float64(other):
            made = _of_doubles(name, self, other, bool(side))
            if made is not None:
                return made
        value, other = _read(self), _read(other)
        if not _computes_quietly(name, *((other, value) if side else (value, other))):
            core.refuse_scalar()
        return plain(value, other, *map(_read, rest))

    return operate


def _scalar_comparison(kind: type, name: str, how: str, swapped: bool) -> Callable[..., Any]:
    plain = getattr(kind, f"__{name}__")

    def compare(self: Any, other: Any) -> Any:
        if _takes_over(other):
            return NotImplemented
        if _stands_by_float64(other):
            left, right = map(_float, (other, self) if swapped else (self, other))
            made = core.apply_to_carriers(how, left, right)
            if made is not None:
                return numpy.bool_(_read(made))
        return plain(_read(self), _read(other))

    return compare


def _stands_by_float64(other: Any) -> bool:
    return _are_numbers(other) or type(other) in (Single, numpy.int64, Long)


def _long_operation(kind: type, name: str, side: str) -> Callable[..., Any]:
    """Of int64, which is a float64 where a float stands beside it, or the operation gives one."""
    plain = getattr(kind, f"__{side}{name}__")
    followed = _FOLLOWED.get(name) if name != "truediv" else None

    def operate(self: Any, other: Any, *rest: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return plain(_read(self), other)
        if _takes_over(other):
            return NotImplemented
        whole = type(other) in _WHOLE
        if not rest and (type(other) in _FLOATING or (whole and name == "truediv")):
            made = _of_doubles(name, self, other, bool(side))
            if made is not None:
                return made
        elif whole and not rest and (followed or (name == "pow" and _is_exponent(self if side else other))):
            made = core.apply_to_carriers(followed or "Pow", *((other, self) if side else (self, other)))
            # Of one with more than 64 bits numpy has something to say.
            if made is not None:
                return _as_long(made)
        value, other = _read(self), _read(other)
        if not _computes_quietly(name, *((other, value) if side else (value, other))):
            core.refuse_scalar()
        return plain(value, other, *map(_read, rest))

    return operate


def _is_exponent(number: Any) -> bool:
    """Whether an int64 has an int64 for that power, whatever it is."""
    return type(number) in _WHOLE and bool(number >= 0)


def _long_comparison(kind: type, name: str, how: str, swapped: bool) -> Callable[..., Any]:
    plain = getattr(kind, f"__{name}__")

    def compare(self: Any, other: Any) -> Any:
        if _takes_over(other):
            return NotImplemented
        made = None
        if type(other) in _WHOLE or type(other) in _FLOATING:
            left, right = (other, self) if swapped else (self, other)
            if type(other) in _FLOATING:  # numpy compares as floats, Python as they are
                left, right = _float(left), _float(right)
            made = core.apply_to_carriers(how, left, right)
        return plain(_read(self), _read(other)) if made is None else numpy.bool_(_read(made))

    return compare


def _long_alone(kind: str, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(self: Any) -> Any:
        made = core.apply_to_carriers(kind, self, None)
        return _quietly(method)(self) if made is None else _as_long(made)

    return call


def _rounded_long(self: Any, digits: Any = None) -> Any:
    return core.number_of_scalar(self) if digits is None else _quietly(numpy.int64.__round__)(self, digits)


def _of_itself(
    kind: str, method: Callable[[Any], Any], as_scalar: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    def call(self: Any) -> Any:
        made = core.apply_to_carriers(kind, self, None)
        return method(_read(self)) if made is None else as_scalar(made)

    return call


def _quietly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of float64 that is given no other number."""

    def call(self: Any, *args: Any) -> Any:
        value = _read(self)
        if not _computes_quietly("add", value, value):
            core.refuse_scalar()
        return method(value, *map(_read, args))

    return call


_ROUNDINGS: dict[str, Any] = {"__trunc__": math.trunc, "__floor__": math.floor, "__ceil__": math.ceil}


def _rounding(name: str) -> Callable[[Any], int]:
    rounded: Callable[[Any], int] = _ROUNDINGS[name]
    return lambda self: rounded(_read(self))


def _hiding(kind: type, base: type) -> dict[str, Any]:
    """What torch's class has and numpy's has not, as it is asked of a number of numpy's."""
    names = {*dir(base)} - {*dir(kind), "__module__", "__dict__", "__weakref__"}
    return {name: _rounding(name) if name in _ROUNDINGS else property(partial(_part, name)) for name in names}


def _of_scalar(kind: Any, operation: Any, comparison: Any, as_scalar: Any, base: type) -> dict[str, Any]:
    """The attributes of a number of numpy's: whatever is asked of one reads its value."""
    found = _hiding(kind, base)
    for name in dir(kind):
        if name in ("__new__", "__init__", "__class__", "__getattribute__", "__doc__", "__class_getitem__"):
            continue
        method = getattr(kind, name)
        found[name] = _reading(kind, name) if callable(method) else property(partial(_part, name))
    for name in _OPERATIONS:
        for side in ("", "r"):
            found[f"__{side}{name}__"] = operation(kind, name, side)
    for name, how, swapped in _COMPARISONS:
        found[f"__{name}__"] = comparison(kind, name, how, swapped)
    return {
        **found,
        # As that of numbers that are followed, below.
        "__array_priority__": math.inf,
        "__neg__": _of_itself("Neg", kind.__neg__, as_scalar),
        "__pos__": _same,
        "__abs__": _of_itself("Abs", kind.__abs__, as_scalar),
        "item": _item_of_scalar,
        "astype": _as_type,
        "round": lambda self, *args, **kwargs: _OF_ARRAYS[0](numpy.round, self, *args, **kwargs),
        "clip": lambda self, *args, **kwargs: _OF_ARRAYS[0](numpy.clip, self, *args, **kwargs),
        "dtype": kind(0).dtype,
        "__bool__": lambda self: bool(self != 0),
        "__round__": _quietly(kind.__round__),
        "__module__": "numpy",
        "__name__": f"numpy.{kind.__name__}",
        "__qualname__": kind.__name__,
        "__setattr__": lambda self, name, value: setattr(_read(self), name, value),
        "__reduce__": lambda self: _read(self).__reduce__(),
        "__reduce_ex__": lambda self, protocol: _read(self).__reduce_ex__(protocol),
        "__float__": _same_float,
        # A class of Python that has items could be gone through by their numbers.
        "__iter__": None,
        "__reversed__": None,
        "node": property(core.symbolic_node) if available() else None,
    }


def _as_type(self: Any, *args: Any, **kwargs: Any) -> Any:
    kind = args[0] if len(args) == 1 and not kwargs and isinstance(args[0], type) else None
    made = None
    if kind in (numpy.float64, float):
        made = _as_double(self)
    elif kind is numpy.float32:
        made = _single_of(self)
    elif type(self) is Long and kind in (numpy.int64, int):
        made = self
    return _OF_ARRAYS[0](numpy.generic.astype, self, *args, **kwargs) if made is None else made


def _item_of_scalar(self: Any, *args: Any) -> Any:
    return _read(self).item(*map(_read, args)) if args else core.number_of_scalar(self)


def _same_float(self: Any) -> Any:
    return float(_read(self))


# torch imports it, where it is installed.
numpy: Any = sys.modules.get("numpy") if available() else None


def _make_scalar_classes() -> tuple[Any, Any, Any]:
    if not numpy:
        return None, None, None
    double, single, long = numpy.float64, numpy.float32, numpy.int64
    real, whole = torch.SymFloat, torch.SymInt
    of_double = _of_scalar(double, _scalar_operation, _scalar_comparison, _as_scalar, real)
    of_single = _of_scalar(single, _single_operation, _single_comparison, _as_single, real)
    of_long = {
        **_of_scalar(long, _long_operation, _long_comparison, _as_long, whole),
        "__neg__": _long_alone("Neg", long.__neg__),
        "__abs__": _long_alone("Abs", long.__abs__),
        "__invert__": lambda self: -1 - self,
        "__round__": _rounded_long,
    }
    return (
        core.make_scalar_class(double, 0, of_double, real),
        core.make_scalar_class(single, 1, of_single, real),
        core.make_scalar_class(long, 2, of_long, whole),
    )


Scalar: Any
Single: Any
Long: Any
Scalar, Single, Long = _make_scalar_classes()
CARRIERS = (Dim, Real, Scalar, Single, Long) if numpy else (Dim, Real)
_READABLE = (*CARRIERS, Text)
# What may stand beside a float32 where numpy works the result out.
_OPERANDS = (int, float, bool, numpy.float32, Dim, Real, Single) if numpy else ()
NUMBERS = (int, float, *CARRIERS, *((numpy.float64, numpy.float32, numpy.int64) if numpy else ()))
# What is an int64 beside an int64, and what makes a float64 of it.
_WHOLE = (int, bool, numpy.int64, Dim, Long) if numpy else ()
_FLOATING = (float, Real, numpy.float64, Scalar, numpy.float32, Single) if numpy else ()


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


def _size(tensor: torch.Tensor, /, dim: Any = None) -> Any:
    if dim is None:
        return core.shape_of(tensor)
    index = _dimension(tensor, dim)
    return torch.Tensor.size(tensor, _read(dim)) if index is None else _size_of("Size", tensor, index)


def _stride(tensor: torch.Tensor, /, dim: Any = None) -> Any:
    if dim is None:
        return tuple(_size_of("Stride", tensor, i) for i in range(tensor.dim()))
    index = _dimension(tensor, dim)
    return torch.Tensor.stride(tensor, _read(dim)) if index is None else _size_of("Stride", tensor, index)


def _count(input: Any) -> int:
    return _size_of("Count", input) if isinstance(input, torch.Tensor) else torch.numel(_read_inside(input))


def _storage_offset(tensor: torch.Tensor, /) -> int:
    return _size_of("Offset", tensor)


def _is_contiguous(
    tensor: torch.Tensor, /, *, memory_format: torch.memory_format = torch.contiguous_format
) -> bool:
    if tensor.layout is not torch.strided:
        return torch.Tensor.is_contiguous(tensor, memory_format=memory_format)
    formats = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]
    return bool(_read(_size_of("Contiguous", tensor, formats.index(memory_format))))


def _contiguous(
    tensor: torch.Tensor, /, *, memory_format: torch.memory_format = torch.contiguous_format
) -> torch.Tensor:
    # torch's binding calls no operator for a tensor that is contiguous already.
    return core.call_contiguous(tensor, memory_format)


def _pad_sequence(
    sequences: Any, batch_first: Any = False, padding_value: Any = 0.0, padding_side: Any = "right"
) -> torch.Tensor:
    """As torch pads (aten/src/ATen/native/PackedSequence.cpp): there, C++ code compares the lengths."""
    given = (sequences, batch_first, padding_value, padding_side)
    plain = type(sequences) in (list, tuple) and sequences and type(batch_first) is bool
    if not plain or type(padding_value) not in (int, float) or padding_side not in ("left", "right"):
        return _called(pad_sequence, *given)  # type: ignore[no-any-return]
    first = sequences[0]
    if not all(type(one) is torch.Tensor and one.dim() and _is_as(one, first) for one in sequences):
        return _called(pad_sequence, *given)  # type: ignore[no-any-return]
    lengths = [_size_of("Size", one, 0) for one in sequences]
    longest = _largest(lengths)
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


def _length(value: Any, /) -> int:
    if isinstance(value, torch.Tensor) and value.dim():
        return _size_of("Size", value, 0)
    return len(_read(value))


def _item(tensor: torch.Tensor, /) -> Any:
    return core.item_number(tensor, torch.Tensor.item)


def _converted(function: Any, own: type, kind: str, value: Any) -> Any:
    """What `function` gives of a tensor or a carrier, followed; `value` itself where it is neither.

    `own` is the carrier that stays as it is, `kind` the number that is made of the other one.
    """
    found = core.item_number(value, function) if isinstance(value, torch.Tensor) else value
    return _made(kind, function, found) if type(found) in (Dim, Real) and type(found) is not own else found


def _int(*args: Any, **kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs:
        value = _converted(int, Dim, "Trunc", core.number_of_scalar(args[0]))
        if value is not args[0] or type(value) is Dim:
            return value
    return int(*map(_read, args), **kwargs)


def _index(value: Any, /) -> Any:
    value = _with_dims(value)
    return value if type(value) is Dim else operator.index(value)


def _float(*args: Any) -> Any:
    if len(args) == 1:
        value = _converted(float, Real, "Float", core.number_of_scalar(args[0]))
        if value is not args[0] or type(value) is Real:
            return value
    return float(*map(_read, args))


_KINDS = {int: int, Dim: int, float: float, Real: float}


def _extreme(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(*args: Any, **kwargs: Any) -> Any:
        items: Sequence[Any] = args
        if len(args) == 1:
            items = args[0] if isinstance(args[0], list | tuple) else ()
        kinds = {_KINDS.get(type(item)) for item in items}
        if kwargs or len(kinds) != 1 or None in kinds:
            return function(*args, **kwargs)
        found = items[0]
        for item in items[1:]:
            found = _made(kind, function, found, item)
        return found

    return extreme


_largest, _smallest = _extreme("Max", max), _extreme("Min", min)


def _sum(items: Any, /, start: Any = 0) -> Any:
    return reduce(operator.add, items, start) if isinstance(items, list | tuple) else sum(items, start)


def _product(items: Any, /, *, start: Any = 1) -> Any:
    if isinstance(items, list | tuple):
        return reduce(operator.mul, items, start)
    return math.prod(items, start=start)


def _bisect(function: Callable[..., Any], goes_right: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """As Python's own, by comparisons: which ones are true is read, and not the number that is looked for."""

    def search(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 2 or kwargs or type(args[0]) not in (list, tuple):
            return function(*map(_read, args), **{name: _read(value) for name, value in kwargs.items()})
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


def _elements(size: torch.Size, /) -> Any:
    found = _product(size)
    # torch counts in 64 bits.
    return found if type(found) is Dim else torch.Size.numel(torch.Size(_read_inside(size)))


def _math(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    takes = 2 if kind in _OF_TWO else 1

    def call(*args: Any) -> Any:
        if len(args) != takes:
            return function(*map(_read, args))
        return _made(kind, function, *map(_as_math, args))

    return call


def _as_math(value: Any) -> Any:
    """What math works with; of a tensor it asks for the float, and numpy's float64 is one."""
    return _float(value) if isinstance(value, torch.Tensor) else core.number_of_scalar(value)


def _whole_by_math(function: Callable[[Any], Any]) -> Callable[..., Any]:
    # An int64 has no method for it, and math takes its float.
    return lambda *args: function(*(_float(arg) if type(arg) is Long else _as_math(arg) for arg in args))


def _is_close(*args: Any, rel_tol: Any = 1e-09, abs_tol: Any = 0.0) -> bool:
    """As `math.isclose` does it: by comparisons."""
    values = [*map(_as_math, args), rel_tol, abs_tol]
    if len(args) != 2 or not all(map(_is_followable, values)) or rel_tol < 0 or abs_tol < 0:
        return math.isclose(*map(_read, args), rel_tol=_read(rel_tol), abs_tol=_read(abs_tol))
    a, b, rel, least = map(_float, values)
    if a == b:
        return True
    if abs(a) == math.inf or abs(b) == math.inf:
        return False
    apart = abs(b - a)
    return bool(apart <= abs(rel * b) or apart <= abs(rel * a) or apart <= least)


def _pow(*args: Any, **kwargs: Any) -> Any:
    # Of three, Python asks no method of the last ones.
    if len(args) != 2 or kwargs:
        return _call_plainly(pow, args, kwargs)
    return args[0] ** args[1]


def _log(*args: Any) -> Any:
    args = tuple(map(_as_math, args))
    if len(args) == 2:  # as math.log does it
        return _log(args[0]) / _log(args[1])
    return _made("Log", math.log, *args) if len(args) == 1 else math.log(*args)


def _asks(function: Callable[[Any], bool], ask: Callable[[Any], Any]) -> Callable[..., bool]:
    def asks(*args: Any) -> bool:
        if len(args) != 1:
            return function(*map(_read, args))
        value = _as_math(args[0])
        return bool(ask(value)) if type(value) in (Dim, Real) else function(value)

    return asks


def _by_numpy(function: Callable[..., Any], follow: Callable[..., Any], takes: int = 1) -> Callable[..., Any]:
    """What is called for a function of numpy; `follow` gives None for what is not followed."""

    def call(*args: Any, **kwargs: Any) -> Any:
        made = follow(*args) if len(args) == takes and not kwargs else None
        if made is not None:
            return made
        if _holds(args, (Single, Long)):
            return _OF_ARRAYS[0](function, *args, **kwargs)
        core.refuse_scalar()
        return _call_plainly(function, args, kwargs)

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
            return _as_long(abs(value))
        value = _float(value)  # as numpy does
    made = core.apply_to_carriers(kind, value, None) if type(value) in (Real, Scalar) else None
    return None if made is None else _as_scalar(made)


def _asked_by_numpy(ask: Callable[[Any], Any], value: Any) -> Any:
    return numpy.bool_(bool(ask(_float(value)))) if type(value) in CARRIERS else None


def _rounded_by_numpy(rounds: Callable[[Any], Any], value: Any) -> Any:
    if type(value) not in (Real, Scalar):
        return None
    value = _float(value)
    # Of what is below 0 it may make -0.0.
    return _as_scalar(_float(rounds(value))) if value > 0 and _is_ordinary(value) else None


def _power_by_numpy(base: Any, exponent: Any) -> Any:
    # Of two ints it is an int.
    if type(base) not in (float, Real, Scalar) or not _are_numbers(base, exponent):
        return None
    made = core.apply_to_carriers("NumpyPower", _float(base), _float(exponent))
    return None if made is None else _as_scalar(made)


def _are_numbers(*values: Any) -> bool:
    return all(type(value) in (int, float, numpy.float64, Dim, Real, Scalar) for value in values)


def _are_whole(*values: Any) -> bool:
    """Whether numpy has an int64 for each."""
    if not all(type(value) in (int, numpy.int64, Dim, Long) for value in values):
        return False
    return all(-(1 << 63) <= value < 1 << 63 for value in values if type(value) is int)


def _extreme_by_numpy(choose: Callable[[Any, Any], Any], *values: Any) -> Any:
    if _are_whole(*values):
        return _as_long(choose(*map(_int, values)))
    if not _are_numbers(*values) or not any(type(value) in (float, Real, Scalar) for value in values):
        return None
    first, second = map(_float, values)
    # A nan is handed on, and of two zeros it is not said which one.
    if not (_is_ordinary(first) and _is_ordinary(second)) or (first == 0 and second == 0):
        return None
    return _as_scalar(choose(first, second))


def _clip_by_numpy(value: Any, low: Any, high: Any) -> Any:
    followed = type(value) in (Real, Scalar) or _are_whole(value, low, high)
    raised = _extreme_by_numpy(_largest, value, low) if followed else None
    return None if raised is None else _extreme_by_numpy(_smallest, raised, high)


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
        total = 0.0 + _pairwise_sum([_as_single(_to_single(item)) for item in items])
        return _as_single(_float(total) / len(items)) if type(total) is Single else None
    if few and _are_numbers(*items):
        # An array has one kind of numbers, and adds to 0.
        total = 0.0 + _pairwise_sum([_float(item) for item in items])
        if _is_followable(total) and _is_ordinary(total):
            return _as_scalar(total / len(items))
    return None


def _tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    # The binding fills memory with the value; an operator can be given another one.
    made = None
    if not args and set(kwargs) <= {"dtype", "device"}:
        made = _tensor_of(data, **kwargs)
    return _called(torch.tensor, _read_inside(data), *args, **kwargs) if made is None else made


def _tensor_of(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor | None:
    if device not in (None, "cpu", torch.device("cpu")):
        return None
    if type(data) is Scalar:  # numpy says the dtype of one by itself
        return _scalar(_float(data), dtype or torch.float64, device)
    if type(data) is Single:
        return _scalar(_float(data), dtype or torch.float32, device)
    data = _with_dims(data)
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
        or not all(type(item) is torch.Tensor or _is_followable(item) for item in data)
    ):
        return data
    return [_item(item) if type(item) is torch.Tensor else item for item in data]


def _new_tensor(
    self: torch.Tensor, data: Any, *args: Any, dtype: Any = None, device: Any = None, **kwargs: Any
) -> torch.Tensor:
    plain = type(self) in (torch.Tensor, torch.nn.Parameter) and self.layout is torch.strided
    if plain and not args and not kwargs:
        followed = _tensor_of(data, dtype or self.dtype, self.device if device is None else device)
        if followed is not None:
            return followed
    kwargs |= {"dtype": dtype, "device": device}
    made: torch.Tensor = _called(torch.Tensor.new_tensor, self, _read_inside(data), *args, **kwargs)
    return made


def _scalar(data: Any, dtype: torch.dtype | None, device: Any) -> torch.Tensor | None:
    """A tensor of a number that is followed; None where the binding looks at the value."""
    wide = _wide({_KINDS[type(data)]}, dtype)
    return None if wide is None else _narrowed(torch.full((), data, dtype=wide, device=device), dtype)


def _vector(data: Sequence[Any], dtype: torch.dtype | None, device: Any) -> torch.Tensor | None:
    """A tensor of numbers of which some are followed, by an operator for each; None of anything else.

    `data` may hold lists of these, all of one length.
    """
    flat = _flat(data)
    kinds = {float if type(item) in (Scalar, Single) else _KINDS.get(type(item)) for item in flat}
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
    if wide is None or not fits or _lengths(data) is None:
        return None
    return _narrowed(_stacked(data, wide, device), dtype)


def _array_of(data: Sequence[Any]) -> torch.Tensor | None:
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
        return _stacked(_with_dims(data), torch.int64, None)
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
    if type(number) in (
        numpy.float64,
        numpy.float32,
        numpy.int64,
    ):  # of which torch makes no number of its own
        return number.item()
    as_float = type(number) in (Scalar, Single) or (wide is torch.float64 and type(number) is int)
    return _float(number) if as_float else number


def _wide(kinds: set[Any], dtype: torch.dtype | None) -> torch.dtype | None:
    """What torch's binding first makes of numbers of these kinds; None where it looks at their values."""
    if dtype is None:
        return torch.float64 if float in kinds else torch.int64
    if dtype.is_floating_point:
        return torch.float64
    return torch.int64 if dtype is torch.int64 and float not in kinds else None


def _narrowed(wide: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    # The binding makes infinity of what is too large, as a conversion does.
    return wide.to(dtype or torch.get_default_dtype()) if wide.is_floating_point() else wide


def _as_tensor(data: Any, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    if type(data) in CARRIERS or isinstance(data, list | tuple | collections.deque):
        return _tensor(data, dtype=dtype, device=device)
    made: torch.Tensor = _called(torch.as_tensor, _read(data), dtype=dtype, device=device)
    return made


def _deque(*args: Any, **kwargs: Any) -> collections.deque[Any]:
    # It keeps what it is given, and looks at how many that may be.
    sizes = {name: value if name == "iterable" else _read(value) for name, value in kwargs.items()}
    return collections.deque(*args[:1], *map(_read, args[1:]), **sizes)


def _of_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """One that makes a tensor of values; of those that stand for a SymInt it keeps 32 bits."""

    def of_values(*args: Any, **kwargs: Any) -> Any:
        return _call_plainly(function, args, kwargs)

    return functools.wraps(function)(of_values)


def _made_by(cls: Any, dtype: torch.dtype | None) -> Callable[..., Any]:
    """A class of tensors of this dtype, of which a list gives the values. Without any: of the default one."""

    def make(*args: Any, **kwargs: Any) -> Any:
        values: Any = args[0] if len(args) == 1 and not kwargs else None
        plain = type(values) in (list, tuple) and not any(type(item) is torch.Tensor for item in values)
        if plain and (dtype is not None or default_tensors_device() == "cpu"):
            made = _tensor_of(values, dtype or torch.get_default_dtype(), "cpu")
            if made is not None:
                return made
        return _call_plainly(cls, args, kwargs)

    return functools.wraps(cls, updated=())(make)


def _call_plainly(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _called(function, *map(_read_inside, args), **{k: _read_inside(v) for k, v in kwargs.items()})


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Called where the user's code stands: what it warns of names that line."""
    return core.call_as_caller(function, args, kwargs)


def _read_inside(data: Any) -> Any:
    """The same where no number inside is followed, else a list, or a tuple, of the plain values."""
    if not isinstance(data, list | tuple | collections.deque):
        return _read(data)
    items = [_read_inside(item) for item in data]
    if all(map(operator.is_, items, data)):
        return data
    return tuple(items) if isinstance(data, tuple) else items


def _normal(*args: Any, **kwargs: Any) -> Any:
    """With floats for both the mean and the deviation, and no tensor of the caller's to fill."""
    given = dict(zip(("mean", "std", "size"), args, strict=False)) | kwargs
    if "out" in given or not {type(given.get(name)) for name in ("mean", "std")} <= {int, float, Dim, Real}:
        return _called(torch.normal, *args, **kwargs)
    return core.call_with_numbers(torch.normal, "aten::normal", "float_float", args, kwargs)


def _with_scales(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """One whose parser takes no ints that are followed for floats of a list."""

    def plain(value: Any) -> Any:
        return _read_inside(value) if isinstance(value, list | tuple) else value

    def resampled(tensor: Any, size: Any, *rest: Any, **kwargs: Any) -> Any:
        if size is None and rest and not kwargs:
            sizes = _scaled_sizes(tensor, rest[-1])
            if sizes is not None:
                given = (tensor, sizes, *rest[:-1], *(scale * 1.0 for scale in rest[-1]))
                return core.call_with_numbers(function, name, "", given, {})
        return _called(function, tensor, size, *map(plain, rest), **{k: plain(v) for k, v in kwargs.items()})

    return resampled


def _scaled_sizes(tensor: Any, scales: Any) -> list[Any] | None:
    """The sizes that torch computes of followed scales (`compute_output_size` in ATen's UpSample.cpp)."""
    if type(tensor) is not torch.Tensor or type(scales) not in (list, tuple):
        return None
    if not all(type(scale) in (float, Real, int, Dim) for scale in scales):
        return None
    if not any(type(scale) in (Real, Dim) for scale in scales) or len(scales) != tensor.dim() - 2:
        return None
    scaled = [size * (scale * 1.0) for size, scale in zip(core.shape_of(tensor)[2:], scales, strict=True)]
    # Of one that is too large for a size, or is none, torch has something to say.
    return [math.trunc(size) for size in scaled] if all(abs(size) < 2**53 for size in scaled) else None


# What a tensor may be passed for by name.
_VALUES = ("fill_value", "start", "end", "step", "size", "pad")


def _asking_tensors(
    function: Callable[..., Any], place: int, *, of: Callable[[Any], Any]
) -> Callable[..., Any]:
    """One whose parser asks a tensor for its value, where it wants a number: from this argument on.

    `of` gives the value of one that the parser takes there.
    """

    def asking(*args: Any, **kwargs: Any) -> Any:
        if has_torch_function((*args, *kwargs.values())):
            return _called(function, *args, **kwargs)
        named = {k: of(v) if k in _VALUES else v for k, v in kwargs.items()}
        return _called(function, *args[:place], *map(of, args[place:]), **named)

    return asking


def _value_of(value: Any) -> Any:
    takes = type(value) is torch.Tensor and not value.dim() and value.layout is torch.strided
    return _item(value) if takes and not core.requires_gradients(value) else value


def _size_of_tensor(value: Any) -> Any:
    """Of a whole number, by itself or in the place of a size."""
    if type(value) in (list, tuple):
        return type(value)(map(_size_of_tensor, value))
    whole = type(value) is torch.Tensor and value.dtype in (torch.int64, torch.int32)
    return _value_of(value) if whole else value


def _with_floats(function: Callable[..., Any], name: str, overload: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        for value in (*args, *kwargs.values()):
            if isinstance(value, list | tuple):
                given += value
        if has_torch_function(given):
            return _called(function, *args, **kwargs)
        args = tuple(map(core.number_of_scalar, args))
        kwargs = {name: core.number_of_scalar(value) for name, value in kwargs.items()}
        return core.call_with_numbers(function, name, overload, args, kwargs)

    return call


# What C code raises before it calls an operator may follow from sizes, and the function may catch it. Not by
# a `try` of Python's: where an exception could be caught, what an operator gives is an exit.
def _minded(function: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    # Arguments that `own` does not take `function` refuses in its own words.
    plain = partial(_call_plainly, function)
    return functools.wraps(own)(lambda *args, **kwargs: core.minding(own, plain, *args, **kwargs))


# ---------------------------------------------------------------- in place of operands
def _as_dims(key: Any) -> Any:
    """Slices whose bounds torch compares with no size before it calls the operator."""
    if isinstance(key, tuple):
        return tuple(map(_as_dims, key))
    return core.followed_index(key) if isinstance(key, slice) else key


def _with_dims(key: Any) -> Any:
    """The same with numbers of Python's for those of numpy's int64: in lists and slices, too."""
    if type(key) is Long:
        return core.number_of_scalar(key)
    if numpy and type(key) is numpy.int64:
        return int(key)
    if type(key) in (tuple, list):
        items = [_with_dims(item) for item in key]
        return key if all(map(operator.is_, items, key)) else type(key)(items)
    if type(key) is slice:
        return slice(*map(_with_dims, (key.start, key.stop, key.step)))
    return key


def _read_key(key: Any) -> Any:
    """An index with the plain numbers in the place of those that are followed."""
    if isinstance(key, tuple):
        return tuple(map(_read_key, key))
    return slice(*map(_read, (key.start, key.stop, key.step))) if isinstance(key, slice) else _read(key)


def _is_index(item: Any) -> bool:
    return type(item) is Dim or type(item) is int


def _is_plain_index(item: Any) -> bool:
    return _is_index(item) or isinstance(item, slice) or item is Ellipsis or item is None


def _plain_index(item: Any) -> Any:
    if isinstance(item, slice):
        return slice(*map(_plain_index, (item.start, item.stop, item.step)))
    return _item(item) if core.is_index(item) else item


def _selected(tensor: torch.Tensor, key: Any) -> tuple[torch.Tensor, Any]:
    """`tensor[key]` with the numbers among the indices taken out by an operator each."""
    items = key if isinstance(key, tuple) else (key,)
    if all(_is_plain_index(item) or isinstance(item, torch.Tensor) for item in items):
        # As torch's binding does it: it asks such a tensor for its value (handleDimInMultiDimIndexing).
        items = tuple(map(_plain_index, items))
        key = items if isinstance(key, tuple) else items[0]
    plain = all(map(_is_plain_index, items))
    if not any(type(i) is Dim or _strides(i) for i in items):
        return tensor, key
    if not plain:
        return _taken_beside_tensors(tensor, items) or (tensor, tuple(map(_read, items)))
    full = _without_ellipsis(tensor, items)
    if _strides(key) and tensor.dim():
        found = _strided(tensor, key)
        return (tensor, key) if found is None else (found, Ellipsis)
    # torch says something else of an index than of an argument.
    found = _taken_out(tensor, full)
    if found is None:
        return tensor, tuple(map(_read, key)) if isinstance(key, tuple) else _read(key)
    return found, Ellipsis


def _strides(item: Any) -> bool:
    return isinstance(item, slice) and type(item.step) is Dim


def _has_stride(key: Any) -> bool:
    return any(map(_strides, key)) if isinstance(key, tuple) else _strides(key)


def _strided(tensor: torch.Tensor, key: slice, dim: int = -1) -> torch.Tensor | None:
    """What torch's binding does with such a slice, by the operator to which it hands the value of the stride.

    As one of several indices it is for a dimension; None where the binding would raise.
    """
    start, stop = 0 if key.start is None else key.start, sys.maxsize if key.stop is None else key.stop

    def plainly(*_: Any) -> torch.Tensor:
        item = _as_dims(key)
        return torch.Tensor.__getitem__(tensor, item if dim < 0 else (*[slice(None)] * dim, item))

    if not key.step > 0:
        return None
    if dim >= 0 and key.step == 1:  # all of it may be the tensor itself
        return plainly()
    args = tensor, max(dim, 0), start, stop, key.step
    made: torch.Tensor = core.call_with_numbers(plainly, "aten::slice", "Tensor", args, {})
    return made


def _without_ellipsis(tensor: torch.Tensor, items: tuple[Any, ...]) -> list[tuple[int, Any]]:
    """The indices, one for each dimension that it stands for, with their places among those written."""
    used = sum(i is not None and i is not Ellipsis for i in items)
    full: list[tuple[int, Any]] = []
    for place, item in enumerate(items):
        several = [slice(None)] * (tensor.dim() - used) if item is Ellipsis else [item]
        full += [(place, one) for one in several]
    return full


def _taken_beside_tensors(
    tensor: torch.Tensor, items: tuple[Any, ...]
) -> tuple[torch.Tensor, tuple[Any, ...]] | None:
    """As torch's binding does it, which takes numbers out before it calls the operator that takes tensors.

    None of a mask that stands for several dimensions, of slices, which it takes in turn with the numbers,
    and where torch would raise.
    """
    if sum(item is Ellipsis for item in items) > 1:
        return None
    rest: list[Any] = []
    for place, item in _without_ellipsis(tensor, items):
        if isinstance(item, torch.Tensor):
            mask = item.dtype is torch.bool and item.dim() == 1
            if not mask and (not item.dim() or item.dtype not in (torch.int64, torch.int32)):
                return None
        elif type(item) is list:
            if not item or not all(type(one) is int for one in item):
                return None
        elif not _is_index(item):
            if not isinstance(item, slice) or item != slice(None):
                return None
        else:
            if not core.is_within(tensor, len(rest), item):
                return None
            tensor = tensor.select(len(rest), item)
            if type(item) is Dim:
                core.note_index(place)
            continue
        rest.append(item)
    return tensor, tuple(rest)


def _taken_out(tensor: torch.Tensor, items: list[tuple[int, Any]]) -> torch.Tensor | None:
    """What torch's binding does with each index, in its order; None where it would raise.

    Each comes with its place among those that were written.
    """
    dim = 0
    for place, item in items:
        if _is_index(item):
            if not core.is_within(tensor, dim, item):
                return None
            tensor = tensor.select(dim, item)
            if type(item) is Dim:
                core.note_index(place)
            continue
        if item is None:
            tensor = tensor.unsqueeze(dim)
        elif _strides(item):
            strided = _strided(tensor, item, dim)
            if strided is None:
                return None
            tensor = strided
        elif item != slice(None):
            tensor = torch.Tensor.__getitem__(tensor, ((slice(None),) * dim + (_as_dims(item),)))
        dim += 1
    return tensor


def _without_lists(key: Any, tensor: torch.Tensor) -> Any:
    """`key` with the numbers in lists read, of which torch would make a tensor of the lower bits of each.

    And with numpy's floats read, which are no indices. Of a list of whole numbers there is a tensor.
    """
    items = key if isinstance(key, tuple) else (key,)
    if tensor.is_cpu and default_device().type == "cpu" and any(map(_lists_dims, items)):
        items = tuple(_tensor(item) if _lists_dims(item) else item for item in items)
        key = items if isinstance(key, tuple) else items[0]

    def is_read(item: Any) -> bool:
        return type(item) in (Scalar, Single) or isinstance(item, list | tuple | collections.deque)

    if not any(map(is_read, items)):
        return key
    made = tuple(_read_inside(item) if is_read(item) else item for item in items)
    return made if isinstance(key, tuple) else made[0]


def _lists_dims(item: Any) -> bool:
    return type(item) is list and all(map(_is_index, item)) and any(type(one) is Dim for one in item)


def _with_wholes(key: Any, tensor: torch.Tensor) -> Any:
    """`key` with slices of everything as such; for the others, it is read that they are not.

    torch takes the tensor itself for such a slice (`applySlice`), which shows in graphs alone.
    """
    items = key if isinstance(key, tuple) else (key,)
    if not all(_is_plain_index(item) or isinstance(item, torch.Tensor) for item in items):
        return key
    made: list[Any] = []
    dim, left = 0, tensor.dim() - sum(map(_dimensions, items))
    for item in items:
        if isinstance(item, slice) and dim < tensor.dim() and _takes_all(item, tensor, dim):
            item = slice(None)
        dim += left if item is Ellipsis else _dimensions(item)
        made.append(item)
    return tuple(made) if isinstance(key, tuple) else made[0]


def _dimensions(item: Any) -> int:
    """How many dimensions the index is for."""
    if isinstance(item, torch.Tensor):
        return item.dim() if item.dtype in (torch.bool, torch.uint8) else 1
    return 0 if item is None or item is Ellipsis else 1


def _takes_all(item: slice, tensor: torch.Tensor, dim: int) -> bool:
    bounds = (item.start, item.stop, item.step)
    if not all(bound is None or _is_index(bound) for bound in bounds):
        return False
    start, stop, step = 0 if item.start is None else item.start, item.stop, item.step
    if (step is not None and step != 1) or (type(start) is int and start != 0):
        return False
    # The end first: a window that moves is seldom at it.
    return bool((stop is None or stop >= _size_of("Size", tensor, dim)) and start == 0)


def _chooses(items: tuple[Any, ...]) -> bool:
    """Whether what is set goes to `index_put_` as it is: torch asks for no size but to take slices."""
    tensors = [item for item in items if isinstance(item, torch.Tensor)]
    others = (item for item in items if not isinstance(item, torch.Tensor))
    return (
        bool(tensors)
        and all(item.dim() for item in tensors)
        and all(isinstance(item, slice) or item is None or item is Ellipsis for item in others)
    )


def _filled(tensor: torch.Tensor, value: Any) -> Any:
    """What torch's binding makes of a number that is set (valueToTensor, python_variable_indexing.cpp).

    Only where each number of its kind can be converted; otherwise the plain value.
    """
    kinds = {torch.float32: (Dim, Real), torch.float64: (Dim, Real), torch.int64: (Dim,)}
    if type(value) not in kinds.get(tensor.dtype, ()) or not tensor.is_cpu:
        return _read(value)
    return torch.full((), value, dtype=tensor.dtype)


def _copy(target: torch.Tensor, value: torch.Tensor) -> None:
    """As torch's binding does where slices and numbers are set (`copy_to`, TensorIndexing.h)."""
    wanted, sizes = core.shape_of(target), core.shape_of(value)
    if len(wanted) == len(sizes) and wanted == sizes:
        target.copy_(value)
    elif not sizes and value.is_cpu:
        target.fill_(value)
    else:
        ones = 0
        while ones < len(sizes) and sizes[ones] == 1:
            ones += 1
        value = value.view(sizes[ones:])
        target.copy_(value if wanted == sizes[ones:] else value.expand(wanted))


class _Among:
    """Stands for a container of ints that is asked whether it holds one."""

    __slots__ = ("container",)

    def __init__(self, container: Any) -> None:
        self.container = container

    def __contains__(self, number: Any) -> bool:
        for item in self.container:  # noqa: SIM110 (any() would be handed the number)
            if item == number:
                return True
        return False


class _Indexed:
    """Stands for a tensor that is indexed."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getitem__(self, key: Any) -> torch.Tensor:
        return core.minding(self._get, None, key, self.tensor)  # type: ignore[no-any-return]

    def __setitem__(self, key: Any, value: Any) -> None:
        core.minding(self._set, None, key, value, self.tensor)

    def _get(self, key: Any, tensor: torch.Tensor) -> torch.Tensor:
        key = _without_lists(_with_dims(key), self.tensor)
        item: torch.Tensor
        if (
            tensor.layout is not torch.strided
        ):  # there is no operator that slices one: a bound that says nothing
            item = _called(torch.Tensor.__getitem__, tensor, _read_key(key))
            return item
        if isinstance(key, tuple) and core.requires_gradients(tensor) and torch.is_grad_enabled():
            key = _with_wholes(key, tensor)
        followed = NotImplemented if _has_stride(key) else core.followed_index(key)
        if followed is not NotImplemented:
            return torch.Tensor.__getitem__(tensor, followed)
        tensor, rest = _selected(tensor, key)
        if rest is Ellipsis and key is not Ellipsis:
            return tensor
        item = _called(torch.Tensor.__getitem__, tensor, _as_dims(rest))
        return item

    def _set(self, key: Any, value: Any, *_: Any) -> None:
        key = _without_lists(_with_dims(key), self.tensor)
        if type(value) in CARRIERS:
            value = _filled(self.tensor, _with_dims(value))
        if self.tensor.layout is not torch.strided:  # torch refuses, in words that name no operator
            _called(torch.Tensor.__setitem__, self.tensor, _read_key(key), value)
            return
        tensors = [part for part in (self.tensor, value) if isinstance(part, torch.Tensor)]
        grows = any(map(core.requires_gradients, tensors))
        if grows and torch.is_grad_enabled():
            key = _with_wholes(key, self.tensor)
        tensor, rest = _selected(self.tensor, key)
        if isinstance(value, torch.Tensor):
            items = rest if isinstance(rest, tuple) else (rest,)
            if all(isinstance(i, slice | int) or i is Ellipsis or i is None for i in items):
                whole = all(i is Ellipsis or i == slice(None) for i in items)
                target = tensor if whole else torch.Tensor.__getitem__(tensor, _as_dims(rest))
                _copy(target, value)
                return
            # Leading dimensions of size 1 are dropped, or not.
            if not _chooses(items) or (value.dim() and _size_of("Size", value, 0) == 1):
                core.pin_sizes(value)
                core.pin_sizes(tensor)
        _called(torch.Tensor.__setitem__, tensor, _as_dims(rest), value)


class _Table:
    """Stands for a list or a dict of texts that a number is looked up in."""

    __slots__ = ("texts",)

    def __init__(self, texts: Any) -> None:
        self.texts = texts

    def __getitem__(self, number: Any) -> Any:
        made = core.minding(_picked, None, self.texts, _with_dims(number))
        return self.texts[_read(number)] if made is None else made


def _picked(texts: Any, number: Any) -> Any:
    """The text under a number, as one that follows from it; None where there may be none."""
    count = len(texts)
    if type(texts) is dict:
        if not all(i in texts for i in range(count)) or not 0 <= number < count:
            return None
        texts = [texts[i] for i in range(count)]
    elif not -count <= number < count:
        return None
    return core.follow_text(operator.getitem, tuple(texts), number)


def _indexed(container: Any) -> Any:
    return _Indexed(container) if isinstance(container, torch.Tensor) else _Table(container)


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
        torch.Size.numel: _elements,
        pad_sequence: _pad_sequence,
        torch.tensor: _tensor,
        torch.as_tensor: _as_tensor,
        torch.Tensor.new_tensor: _new_tensor,
        collections.deque: _deque,
        **{function: _of_values(function) for function in _MADE_OF_VALUES},
        **{cls: _made_by(cls, dtype) for cls, dtype in _CLASSES.items()},
        **{function: _with_scales(function, name) for function, name in takers_of_scales().items()},
        torch.normal: _normal,
        abs: abs,
        round: round,
        divmod: divmod,
        operator.index: _index,
        len: _length,
        **_items(),
        range: _turns,
        max: _largest,
        min: _smallest,
        sum: _sum,
        math.prod: _product,
        bisect.bisect_left: _bisect(bisect.bisect_left, lambda item, value: item < value),
        bisect.bisect_right: _bisect(bisect.bisect_right, lambda item, value: not value < item),
        math.trunc: math.trunc,
        pow: _pow,
        **{function: _with_floats(function, *op) for function, op in takers_of_floats().items()},
        **_of_numpys(),
    }


def _of_numpys() -> dict[Any, Any]:
    if numpy is None:
        return {}
    follows: dict[Any, Callable[[Any], Any]] = {
        **{function: partial(_of_numpy, kind) for kind, (function, _) in _NUMPY.items()},
        **{getattr(numpy, name): partial(_asked_by_numpy, ask) for name, ask in _ODD.items()},
        numpy.ceil: partial(_rounded_by_numpy, math.ceil),
        numpy.floor: partial(_rounded_by_numpy, math.floor),
        numpy.mean: _mean_by_numpy,
    }
    return {
        **{function: _by_numpy(function, follow) for function, follow in follows.items()},
        numpy.power: _by_numpy(numpy.power, _power_by_numpy, 2),
        numpy.maximum: _by_numpy(numpy.maximum, partial(_extreme_by_numpy, _largest), 2),
        numpy.minimum: _by_numpy(numpy.minimum, partial(_extreme_by_numpy, _smallest), 2),
        numpy.clip: _by_numpy(numpy.clip, _clip_by_numpy, 3),
        numpy.float32: _kind_of_numpys(numpy.float32, _single_of),
        numpy.float64: _kind_of_numpys(numpy.float64, _as_double),
        numpy.int64: _kind_of_numpys(numpy.int64, _whole_of),
    }


# What makes a step of a call of numpy, which is told later.
_OF_ARRAYS: list[Callable[..., Any]] = []


def _kind_of_numpys(kind: type, follow: Callable[[Any], Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        made = follow(args[0]) if len(args) == 1 and type(args[0]) in CARRIERS else None
        return kind(*map(_read, args)) if made is None else made

    return call


def _single_of(number: Any) -> Any:
    if type(number) in (Scalar, Long):
        number = core.number_of_scalar(number)
    made = _to_single(number)
    return None if made is None else _as_single(made)


def _whole_of(number: Any) -> Any:
    # Of what is too large for one, numpy says other things of its own floats than of Python's.
    return _as_long(_int(number)) if type(number) in (Dim, Long) else None


# What is asked of a float by this name, by math and by numpy.
_ODD: dict[str, Callable[[Any], Any]] = {
    "isfinite": lambda value: abs(value) < math.inf,
    "isinf": lambda value: abs(value) == math.inf,
    "isnan": lambda value: value != value,
}


def _as_numpy(function: Callable[..., Any], fits: Callable[..., bool]) -> Callable[..., Any]:
    """The float that numpy gives; None where it may warn."""
    return lambda *values: float(function(*values)) if fits(*values) else None


def _is_positive(value: float) -> bool:
    return _SMALLEST < value < _LARGEST


def _has_power(base: float, exponent: float) -> bool:
    return _is_positive(base) and abs(exponent * math.log10(base)) < 280


# What numpy's functions give, and for which numbers they have nothing to say of it.
_NUMPY: dict[str, tuple[Any, Callable[..., bool]]] = (
    {
        "NumpyAbsolute": (numpy.absolute, _is_ordinary),
        "NumpyExp": (numpy.exp, lambda value: abs(value) < 600),
        "NumpyLog": (numpy.log, _is_positive),
        "NumpyLog10": (numpy.log10, _is_positive),
        "NumpyLog2": (numpy.log2, _is_positive),
        "NumpySqrt": (numpy.sqrt, lambda value: value == 0 or _is_positive(value)),
        "NumpyLog1p": (numpy.log1p, _is_positive),
        "NumpyExpm1": (numpy.expm1, lambda value: value == 0 or 1e-290 < abs(value) < 600),
        "NumpySin": (numpy.sin, _is_ordinary),
        "NumpyCos": (numpy.cos, _is_ordinary),
        "NumpyTanh": (numpy.tanh, _is_ordinary),
    }
    if numpy
    else {}
)


_MADE_OF_VALUES = (
    torch.asarray,
    torch.sparse_coo_tensor,
    torch.sparse_compressed_tensor,
    *(getattr(torch, f"sparse_{kind}_tensor") for kind in ("csr", "csc", "bsr", "bsc")),
)


_CLASSES: dict[Any, torch.dtype | None] = {
    torch.Tensor: None,
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.LongTensor: torch.int64,
}


def _items() -> dict[Any, Any]:
    """What gives the value of a tensor, or asks for it."""
    return {
        torch.Tensor.item: _item,
        int: _int,
        float: _float,
        math.floor: _whole_by_math(math.floor),
        math.ceil: _whole_by_math(math.ceil),
        math.log: _log,
        math.isclose: _is_close,
        **{getattr(math, name): _asks(getattr(math, name), ask) for name, ask in _ODD.items()},
        **{function: _math(kind, function) for kind, function in _MATH.items()},
    }


def _askers() -> dict[Any, Any]:
    """What asks a tensor for its value, where it is given one for a number."""
    values: dict[Any, int] = {torch.arange: 0, torch.full: 1, torch.full_like: 1, torch.Tensor.new_full: 2}
    sizes: dict[Any, int] = {getattr(torch, name): 0 for name in ("zeros", "ones", "rand", "randn")}
    sizes[pad] = sizes[torch.reshape] = 1
    for name in ("view", "reshape", "expand", "repeat", "new_zeros", "new_ones"):
        sizes[getattr(torch.Tensor, name)] = 1
    return {
        **{function: _asking_tensors(function, place, of=_value_of) for function, place in values.items()},
        **{
            function: _asking_tensors(function, place, of=_size_of_tensor)
            for function, place in sizes.items()
        },
    }


_OF_TWO = ("MathPow", "Atan2", "Copysign", "Hypot", "Fmod")

_MATH: dict[str, Callable[..., Any]] = {
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


def _in_single_precision(number: Any) -> float:
    return float(core.aside(partial(numpy.float32, number)))


# What Python does where the core has no short way.
_WORKED_OUT: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "TrueDiv": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": pow,
    "Max": max,
    "Min": min,
    "Less": operator.lt,
    "LessEqual": operator.le,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
    "Neg": operator.neg,
    "Abs": abs,
    "Float": float,
    "Long": int,
    "Trunc": int,
    "Floor": math.floor,
    "Ceil": math.ceil,
    "Round": round,
    "RoundTo": round,
    "Log": math.log,
    "Scalar": float,
    "Single": _in_single_precision,
    **_MATH,
    **{kind: _as_numpy(*how) for kind, how in _NUMPY.items()},
    **({"NumpyPower": _as_numpy(numpy.power, _has_power)} if numpy else {}),
}


# They store what they are given, or hand it on as it is, and look at none of it but the keys.
_KEEPERS: list[Any] = [list, tuple, dict, zip, enumerate, reversed, slice, iter, next, setattr, torch.Size]
_KEEPERS += [type.__instancecheck__]  # of a tensor, as of all else, it asks for the class
_KEEPERS += [object.__setattr__, object.__init__, object.__new__, tuple.__new__, functools.partial]
_KEEPERS += [
    getattr(list, name)
    for name in ("append", "insert", "extend", "copy", "pop", "clear", "__setitem__", "__iter__")
]
_KEEPERS += [
    getattr(kind, name)
    for kind in (dict, collections.OrderedDict)
    for name in ("get", "pop", "setdefault", "update", "values", "items", "keys", "copy", "__setitem__")
]
_KEEPERS += [itertools.chain, itertools.combinations, itertools.combinations_with_replacement]
_KEEPERS += [itertools.cycle, itertools.islice, itertools.pairwise, itertools.permutations]
_KEEPERS += [itertools.product, itertools.repeat, itertools.zip_longest]
_KEEPERS += [vars(itertools.chain)["from_iterable"]]
_KEEPERS += [dict.clear, dict.popitem, collections.OrderedDict.clear, collections.deque.clear]
_KEEPERS += [
    getattr(collections.deque, name)
    for name in ("append", "appendleft", "extend", "extendleft", "copy", "pop", "popleft", "__iter__")
]


read, read_key, array_of = _read, _read_key, _array_of
as_float, as_int = _float, _int
as_scalar, as_single, as_long = _as_scalar, _as_single, _as_long
with_dims = _with_dims


def configure(by_step: Callable[..., Any]) -> None:
    """Tell the core of all this, once. `by_step` makes a step of a call of numpy."""
    _OF_ARRAYS[:] = [by_step]
    core.configure_numbers(_WORKED_OUT)
    exchanged = {function: _minded(function, own) for function, own in _exchanged().items()}
    askers = {function: _minded(function, own) for function, own in _askers().items()}
    core.configure_exchange(exchanged, list(_items()), _indexed, _Among, _KEEPERS, [pad_sequence], askers)
