"""The classes of the numbers that Python is given in place of sizes and other numbers."""

from __future__ import annotations

import collections
import math
import opcode
import operator
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from lazytrace._native import available, core
from lazytrace.originals import BUILTINS
from lazytrace.texts import Text

__builtins__ = BUILTINS


def read(value: Any) -> Any:
    """The plain value, which the program compares from now on; anything else as it is."""
    return core.read_carrier(value) if type(value) in _READABLE else value


def _is_whole(value: object) -> bool:
    return type(value) in (int, bool, Dim)


def is_followable(value: object) -> bool:
    """Whether it is a number of Python's, followed or not."""
    return type(value) in (int, bool, float, Dim, Real)


def _is_number(value: object) -> bool:
    """What is worked out with the plain value. Of numpy's, not all are int or float.

    One of numpy's that is followed has operators of its own, which come next.
    """
    return type(value) not in (Scalar, Single, Long) and (
        is_followable(value)
        or isinstance(value, int | float | complex)
        or hasattr(type(value), "__array_interface__")
    )


def _plain_operation(function: Callable[..., Any], *values: Any) -> Any:
    return function(*map(read, values))


def made_of(kind: str, function: Callable[..., Any], *values: Any) -> Any:
    """The number that `function` gives for one or two numbers, followed where that can be."""
    made = None
    if all(map(is_followable, values)):
        made = core.apply_to_carriers(kind, values[0], values[1] if len(values) > 1 else None)
    return _plain_operation(function, *values) if made is None else made


def _binary(kind: str, function: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def work_out(left: Any, right: Any) -> Any:
        if not (_is_number(left) and _is_number(right)):
            return NotImplemented
        return made_of(kind, function, left, right) if kind else _plain_operation(function, left, right)

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
            return function(read(self), read(other))
        return NotImplemented  # Python says which of the two stood on the left

    return compare


def _reading(kind: type, name: str) -> Callable[..., Any]:
    function = getattr(kind, name)

    def reading(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(read(self), *map(read, args), **kwargs)

    return reading


def _hash(self: Any) -> int:
    # That of a nan is where it lies, and so does what this one is once it is plain: it stays a key.
    value = read(self)
    return hash(value) if value == value else object.__hash__(self)


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
    return getattr(read(self), name)


def _powered(base: Any, exponent: Any) -> Any:
    if not (_is_number(base) and _is_number(exponent)):
        return NotImplemented
    if not (is_followable(base) and is_followable(exponent)):
        return _plain_operation(pow, base, exponent)
    if _is_whole(base) and _is_whole(exponent) and not exponent >= 0:
        # A float, by the power of floats (Objects/longobject.c).
        base, exponent = as_float(base), as_float(exponent)
    return made_of("Pow", pow, base, exponent)


def _power(self: Any, exponent: Any, modulus: Any = None) -> Any:
    if modulus is not None:
        return pow(read(self), read(exponent), read(modulus)) if _is_number(exponent) else NotImplemented
    return _powered(self, exponent)


def _reflected_power(self: Any, base: Any, modulus: Any = None) -> Any:
    return _power(read(base), read(self), modulus) if modulus is not None else _powered(base, self)


def _divided(left: Any, right: Any) -> Any:
    if (
        not (_is_number(left) and _is_number(right))
        or isinstance(left, complex)
        or isinstance(right, complex)
    ):
        return NotImplemented  # Python's words name divmod(), not the parts of it
    # Of zero it says something else than each part of it does, and so may a class of the user's.
    if not (is_followable(left) and is_followable(right) and right != 0):
        return _plain_operation(divmod, left, right)
    return left // right, left % right


def _same(self: Any, *_: Any) -> Any:
    return self


def _method(kind: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: made_of(kind, function, self)


def _round(self: Any, digits: Any = None) -> Any:
    if digits is None:
        return made_of("Round", round, self)
    return made_of("RoundTo", round, self, digits) if _is_whole(digits) else round(read(self), digits)


def _reduce(self: Any, protocol: Any = None) -> Any:
    value = read(self)
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
    "__sym_max__": lambda self, other: max(read(self), read(other)),
    "__sym_min__": lambda self, other: min(read(self), read(other)),
    "node": property(core.symbolic_node) if available() else None,
    "__torch_function__": property(core.torch_function_of) if available() else None,
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
    "__sym_float__": lambda self: as_float(self),
}

_OF_REAL: dict[str, Any] = {
    **_methods(float),
    **_COMMON,
    "__hash__": _hash,
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
SMALLEST, LARGEST = 1e-290, 1e290


def is_ordinary(value: Any, zero: bool = True) -> bool:
    """Asked of a number that is followed, and so compared by each replay."""
    return bool(SMALLEST < abs(value) < LARGEST or (zero and value == 0))


def as_scalar(number: Any) -> Any:
    """The number as a float64 of numpy's, followed if it is."""
    made = core.apply_to_carriers("Scalar", number, None)
    return numpy.float64(read(number)) if made is None else made


def as_single(number: Any) -> Any:
    """The number as a float32 of numpy's, followed if it is."""
    made = core.apply_to_carriers("Single", number, None)
    return numpy.float32(read(number)) if made is None else made


def as_long(number: Any) -> Any:
    """The number as an int64 of numpy's, followed if it is."""
    made = core.apply_to_carriers("Long", number, None)
    return numpy.int64(read(number)) if made is None else made


def as_double(number: Any) -> Any:
    """As numpy converts it. Of such operands a replay never raises what Python would raise of its own."""
    return number if type(number) in (numpy.float64, Scalar) else as_scalar(as_float(number))


# Within these, a result of single precision is that of double precision, rounded once more: this has more
# than twice as many digits.
_SMALLEST_SINGLE, _LARGEST_SINGLE = 1e-30, 1e30
# Whole numbers up to this one are exact in single precision.
_WHOLE_IN_SINGLE = 1 << 24


def _is_ordinary_single(value: Any, zero: bool = True) -> bool:
    return bool(_SMALLEST_SINGLE < abs(value) < _LARGEST_SINGLE or (zero and value == 0))


def to_single(number: Any) -> Any:
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
            return plain(read(self), other)
        if _takes_over(other):
            return NotImplemented
        if type(other) in (numpy.float64, Scalar, numpy.int64, Long):
            made = None if rest else _of_doubles(name, self, other, bool(side))
            if made is not None:
                return made
        made = _of_singles(followed, self, other, bool(side)) if followed and not rest else None
        if made is not None and _is_ordinary_single(made, zero):
            return as_single(made)
        if name != "divmod" and not rest and type(other) in _OPERANDS:
            by_numpy = getattr(operator, name)
            return OF_ARRAYS[0](by_numpy, *((other, self) if side else (self, other)))
        value, other = read(self), read(other)
        if not _computes_quietly(name, *((other, value) if side else (value, other))):
            core.refuse_scalar()
        return called(plain, value, other, *map(read, rest))

    return operate


# A product that is 0 may be one that is too small.
_MAY_BE_ZERO = ("add", "sub", "floordiv", "mod")


def _of_doubles(name: str, number: Any, other: Any, swapped: bool) -> Any:
    """The float64 that numpy works out of two, or what it makes of them; None where it may say something."""
    how = {**_FOLLOWED, "pow": "Pow"}.get(name)
    if how is None:
        return None
    left, right = map(as_double, (other, number) if swapped else (number, other))
    made = core.apply_to_carriers(how, left, right)
    if made is None:
        return None
    zero = name in _MAY_BE_ZERO or (made == 0 and _gives_zero(name, left, right))
    return as_scalar(made) if is_ordinary(made, zero) else None


def _gives_zero(name: str, left: Any, right: Any) -> bool:
    return bool((name in ("mul", "truediv") and left == 0) or (name == "mul" and right == 0))


def _of_singles(kind: str, number: Any, other: Any, swapped: bool) -> Any:
    """What is worked out of two in double precision; None of what cannot be."""
    left, right = to_single(number), to_single(other)
    if left is None or right is None:
        return None
    if kind == "TrueDiv":
        left, right = as_double(left), as_double(right)
    return core.apply_to_carriers(kind, *((right, left) if swapped else (left, right)))


def _single_comparison(kind: type, name: str, how: str, swapped: bool) -> Callable[..., Any]:
    plain = getattr(kind, f"__{name}__")

    def compare(self: Any, other: Any) -> Any:
        if _takes_over(other):
            return NotImplemented
        if type(other) in (numpy.float64, Scalar, numpy.int64, Long):
            left, right = map(as_float, (other, self) if swapped else (self, other))
            made = core.apply_to_carriers(how, left, right)
        else:
            made = _of_singles(how, self, other, swapped)
        return plain(read(self), read(other)) if made is None else numpy.bool_(read(made))

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
            return plain(read(self), other)
        if _takes_over(other):
            return NotImplemented
        if not rest and _stands_by_float64(other):
            made = _of_doubles(name, self, other, bool(side))
            if made is not None:
                return made
        value, other = read(self), read(other)
        if not _computes_quietly(name, *((other, value) if side else (value, other))):
            core.refuse_scalar()
        return called(plain, value, other, *map(read, rest))

    return operate


def _scalar_comparison(kind: type, name: str, how: str, swapped: bool) -> Callable[..., Any]:
    plain = getattr(kind, f"__{name}__")

    def compare(self: Any, other: Any) -> Any:
        if _takes_over(other):
            return NotImplemented
        if _stands_by_float64(other):
            left, right = map(as_float, (other, self) if swapped else (self, other))
            made = core.apply_to_carriers(how, left, right)
            if made is not None:
                return numpy.bool_(read(made))
        return plain(read(self), read(other))

    return compare


def _stands_by_float64(other: Any) -> bool:
    return are_numbers(other) or type(other) in (Single, numpy.int64, Long)


def _long_operation(kind: type, name: str, side: str) -> Callable[..., Any]:
    """Of int64, which is a float64 where a float stands beside it, or the operation gives one."""
    plain = getattr(kind, f"__{side}{name}__")
    followed = _FOLLOWED.get(name) if name != "truediv" else None

    def operate(self: Any, other: Any, *rest: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return plain(read(self), other)
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
                return as_long(made)
        value, other = read(self), read(other)
        if not _computes_quietly(name, *((other, value) if side else (value, other))):
            core.refuse_scalar()
        return called(plain, value, other, *map(read, rest))

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
                left, right = as_float(left), as_float(right)
            made = core.apply_to_carriers(how, left, right)
        return plain(read(self), read(other)) if made is None else numpy.bool_(read(made))

    return compare


def _long_alone(kind: str, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(self: Any) -> Any:
        made = core.apply_to_carriers(kind, self, None)
        return _quietly(method)(self) if made is None else as_long(made)

    return call


def _rounded_long(self: Any, digits: Any = None) -> Any:
    return core.number_of_scalar(self) if digits is None else _quietly(numpy.int64.__round__)(self, digits)


def _of_itself(
    kind: str, method: Callable[[Any], Any], as_kind: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    def call(self: Any) -> Any:
        made = core.apply_to_carriers(kind, self, None)
        return method(read(self)) if made is None else as_kind(made)

    return call


def _quietly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of float64 that is given no other number."""

    def call(self: Any, *args: Any) -> Any:
        value = read(self)
        if not _computes_quietly("add", value, value):
            core.refuse_scalar()
        return called(method, value, *map(read, args))

    return call


_ROUNDINGS: dict[str, Any] = {"__trunc__": math.trunc, "__floor__": math.floor, "__ceil__": math.ceil}


def _rounding(name: str) -> Callable[[Any], int]:
    rounded: Callable[[Any], int] = _ROUNDINGS[name]
    return lambda self: rounded(read(self))


def _hiding(kind: type, base: type) -> dict[str, Any]:
    """What torch's class has and numpy's has not, as it is asked of a number of numpy's."""
    names = {*dir(base)} - {*dir(kind), "__module__", "__dict__", "__weakref__"}
    return {name: _rounding(name) if name in _ROUNDINGS else property(partial(_part, name)) for name in names}


def _of_scalar(kind: Any, operation: Any, comparison: Any, as_kind: Any, base: type) -> dict[str, Any]:
    """The attributes of a number of numpy's: whatever is asked of one reads its value."""
    found = _hiding(kind, base)
    for name in dir(kind):
        if name in ("__new__", "__init__", "__class__", "__getattribute__", "__doc__", "__class_getitem__"):
            continue
        method = getattr(kind, name)
        found[name] = _reading(kind, name) if callable(method) else property(partial(_part, name))
    found["__hash__"] = _hash
    for name in _OPERATIONS:
        for side in ("", "r"):
            found[f"__{side}{name}__"] = operation(kind, name, side)
    for name, how, swapped in _COMPARISONS:
        found[f"__{name}__"] = comparison(kind, name, how, swapped)
    return {
        **found,
        # As that of numbers that are followed, below.
        "__array_priority__": math.inf,
        "__neg__": _of_itself("Neg", kind.__neg__, as_kind),
        "__pos__": _same,
        "__abs__": _of_itself("Abs", kind.__abs__, as_kind),
        "item": _item_of_scalar,
        "astype": _as_type,
        "round": lambda self, *args, **kwargs: OF_ARRAYS[0](numpy.round, self, *args, **kwargs),
        "clip": lambda self, *args, **kwargs: OF_ARRAYS[0](numpy.clip, self, *args, **kwargs),
        "dtype": kind(0).dtype,
        "__bool__": lambda self: bool(self != 0),
        "__round__": _quietly(kind.__round__),
        "__module__": "numpy",
        "__name__": f"numpy.{kind.__name__}",
        "__qualname__": kind.__name__,
        "__setattr__": lambda self, name, value: setattr(read(self), name, value),
        "__reduce__": lambda self: read(self).__reduce__(),
        "__reduce_ex__": lambda self, protocol: read(self).__reduce_ex__(protocol),
        "__float__": _same_float,
        # A class of Python that has items could be gone through by their numbers.
        "__iter__": None,
        "__reversed__": None,
        "node": property(core.symbolic_node) if available() else None,
        "__torch_function__": property(core.torch_function_of) if available() else None,
    }


def _as_type(self: Any, *args: Any, **kwargs: Any) -> Any:
    kind = args[0] if len(args) == 1 and not kwargs and isinstance(args[0], type) else None
    made = None
    if kind in (numpy.float64, float):
        made = as_double(self)
    elif kind is numpy.float32:
        made = single_of(self)
    elif type(self) is Long and kind in (numpy.int64, int):
        made = self
    return OF_ARRAYS[0](numpy.generic.astype, self, *args, **kwargs) if made is None else made


def _item_of_scalar(self: Any, *args: Any) -> Any:
    return read(self).item(*map(read, args)) if args else core.number_of_scalar(self)


def _same_float(self: Any) -> Any:
    return float(read(self))


# torch imports it, where it is installed.
numpy: Any = sys.modules.get("numpy") if available() else None


def _make_scalar_classes() -> tuple[Any, Any, Any]:
    if not numpy:
        return None, None, None
    double, single, long = numpy.float64, numpy.float32, numpy.int64
    real, whole = torch.SymFloat, torch.SymInt
    of_double = _of_scalar(double, _scalar_operation, _scalar_comparison, as_scalar, real)
    of_single = _of_scalar(single, _single_operation, _single_comparison, as_single, real)
    of_long = {
        **_of_scalar(long, _long_operation, _long_comparison, as_long, whole),
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
_READABLE = (*CARRIERS, Text, *([core.Flag] if available() else []))
# What may stand beside a float32 where numpy works the result out.
_OPERANDS = (int, float, bool, numpy.float32, Dim, Real, Single) if numpy else ()
NUMBERS = (int, float, *CARRIERS, *((numpy.float64, numpy.float32, numpy.int64) if numpy else ()))
# What is an int64 beside an int64, and what makes a float64 of it.
_WHOLE = (int, bool, numpy.int64, Dim, Long) if numpy else ()
_FLOATING = (float, Real, numpy.float64, Scalar, numpy.float32, Single) if numpy else ()


def _converted(function: Any, own: type, kind: str, value: Any) -> Any:
    """What `function` gives of a tensor or a carrier, followed; `value` itself where it is neither.

    `own` is the carrier that stays as it is, `kind` the number that is made of the other one.
    """
    found = core.item_number(value, function) if isinstance(value, torch.Tensor) else value
    return made_of(kind, function, found) if type(found) in (Dim, Real) and type(found) is not own else found


def as_int(*args: Any, **kwargs: Any) -> Any:
    """What `int` makes of a followed number."""
    if len(args) == 1 and not kwargs:
        value = _converted(int, Dim, "Trunc", core.number_of_scalar(args[0]))
        if type(value) is Dim or (value is not args[0] and type(value) is not bool):
            return value
    return int(*map(read, args), **kwargs)


def as_float(*args: Any) -> Any:
    """What `float` makes of a followed number."""
    if len(args) == 1:
        value = _converted(float, Real, "Float", core.number_of_scalar(args[0]))
        if type(value) is Real or (value is not args[0] and type(value) is not bool):
            return value
    return float(*map(read, args))


KINDS = {int: int, Dim: int, float: float, Real: float}


def are_numbers(*values: Any) -> bool:
    """Whether all are numbers of Python's or float64 of numpy's."""
    return all(type(value) in (int, float, numpy.float64, Dim, Real, Scalar) for value in values)


def call_plainly(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function with the plain values, which the program compares from now on."""
    return called(function, *map(read_inside, args), **{k: read_inside(v) for k, v in kwargs.items()})


def call_torch_plainly(
    function: Callable[..., Any],
    types: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """What torch calls where a thread hands it a number in state that another thread follows."""
    return function(*map(read_inside, args), **{k: read_inside(v) for k, v in (kwargs or {}).items()})


def called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Called where the user's code stands: what it warns of names that line."""
    return core.call_as_caller(function, args, kwargs)


def read_inside(data: Any) -> Any:
    """The same where no number inside is followed, else a list, or a tuple, of the plain values."""
    if not isinstance(data, list | tuple | collections.deque):
        return read(data)
    items = [read_inside(item) for item in data]
    if all(map(operator.is_, items, data)):
        return data
    return tuple(items) if isinstance(data, tuple) else items


def with_dims(key: Any) -> Any:
    """The same with numbers of Python's for those of numpy's int64: in lists and slices, too."""
    if type(key) is Long:
        return core.number_of_scalar(key)
    if numpy and type(key) is numpy.int64:
        return int(key)
    if type(key) in (tuple, list):
        items = [with_dims(item) for item in key]
        return key if all(map(operator.is_, items, key)) else type(key)(items)
    if type(key) is slice:
        return slice(*map(with_dims, (key.start, key.stop, key.step)))
    return key


def read_key(key: Any) -> Any:
    """An index with the plain numbers in the place of those that are followed."""
    if isinstance(key, tuple):
        return tuple(map(read_key, key))
    return slice(*map(read, (key.start, key.stop, key.step))) if isinstance(key, slice) else read(key)


# What makes a step of a call of numpy, which is told later.
OF_ARRAYS: list[Callable[..., Any]] = []


def single_of(number: Any) -> Any:
    """A followed number as a followed float32, or None."""
    if type(number) in (Scalar, Long):
        number = core.number_of_scalar(number)
    made = to_single(number)
    return None if made is None else as_single(made)
