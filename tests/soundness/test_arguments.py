"""Values that are neither tensors nor containers, told apart as arguments and as state."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import math

import numpy as np
import pytest
import torch

from tests.soundness.runner import X, around, call, check


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Mode(str, enum.Enum):  # noqa: UP042
    A = "a"
    B = "b"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.Flag):
    A = 1
    B = 2


class Text(str):
    __slots__ = ()


class Number(float):
    pass


class Whole(int):
    pass


class Raw(bytes):
    pass


def by_slice(x, v):
    return x[v]


def by_value(x, v):
    return x * v


def by_float(x, v):
    return x * float(v)


def by_first(x, v):
    return x * next(iter(v))


def by_member(x, v):
    return x * v.value


def by_branch(x, v):
    return x * 2 if v == "a" else x * 3


def by_name(x, v):
    return (x, f"{v}")


def by_equal(x, v):
    return x * 2 if v == Color.RED else x * 3


def by_bool(x, v):
    return x * 2 if v else x * 3


def by_return(x, v):
    return x, v


PAIRS = {
    "slice": (by_slice, slice(0, 2), slice(1, 3)),
    "slice_with_step": (by_slice, slice(0, 3, 2), slice(0, 2)),
    "range": (by_first, range(1, 3), range(2, 4)),
    "frozenset": (by_first, frozenset({1}), frozenset({2})),
    "enum": (by_member, Color.RED, Color.BLUE),
    "enum_equal": (by_equal, Color.RED, Color.BLUE),
    "text_enum": (by_branch, Mode.A, Mode.B),
    "int_enum": (by_value, Level.LOW, Level.HIGH),
    "flag": (by_member, Flags.A, Flags.A | Flags.B),
    "text_subclass": (by_branch, Text("a"), Text("b")),
    "text_subclass_name": (by_name, Text("a"), Text("b")),
    "float_subclass": (by_value, Number(2.0), Number(3.0)),
    "int_subclass": (by_value, Whole(2), Whole(3)),
    "bytes_subclass": (by_first, Raw(b"\x02"), Raw(b"\x03")),
    "numpy_float": (by_value, np.float64(2.0), np.float64(3.0)),
    "numpy_float32": (by_value, np.float32(2.0), np.float32(3.0)),
    "numpy_int": (by_value, np.int64(2), np.int64(3)),
    "numpy_bool": (by_bool, np.bool_(True), np.bool_(False)),
    "numpy_text": (by_branch, np.str_("a"), np.str_("b")),
    "decimal": (by_float, decimal.Decimal(2), decimal.Decimal(3)),
    "fraction": (by_float, fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    "date": (lambda x, v: x * v.day, datetime.date(2024, 1, 2), datetime.date(2024, 1, 3)),
    "delta": (lambda x, v: x * v.total_seconds(), datetime.timedelta(1), datetime.timedelta(2)),
    "complex": (by_value, 1 + 2j, 1 - 2j),
    "bool_and_int": (by_return, True, 1),
    "int_and_float": (by_return, 1, 1.0),
    "zeros": (by_return, 0.0, -0.0),
    "nan": (by_return, math.nan, 1.0),
    "sign_of_nan": (lambda x, v: x * math.copysign(1.0, v), math.nan, -math.nan),
    "big_int": (by_return, 2**70, 2**70 + 1),
    "text": (by_return, "a", "b"),
    "bytes": (by_return, b"a", b"b"),
    "none": (by_return, None, False),
    "ellipsis": (by_slice, ..., None),
    "dtype": (lambda x, v: x.to(v), torch.float64, torch.int32),
    "class": (lambda x, v: v()(x), torch.nn.ReLU, torch.nn.Tanh),
    "builtin": (lambda x, v: v(x), torch.sin, torch.cos),
    "math": (lambda x, v: x * v(2.0), math.sqrt, math.exp),
    "method": (lambda x, v: x * v(), "ab".__len__, "abc".__len__),
    "module": (lambda x, v: x * v.k, Number, Whole),
    "tuple_of_slices": (lambda x, v: x[v[0]], (slice(0, 2),), (slice(1, 3),)),
    "list_of_enums": (lambda x, v: x * v[0].value, [Color.RED], [Color.BLUE]),
    "dict_of_slices": (lambda x, v: x[v["s"]], {"s": slice(0, 2)}, {"s": slice(1, 3)}),
    "tuple_of_frozensets": (lambda x, v: x * next(iter(v[0])), (frozenset({1}),), (frozenset({2}),)),
    "range_length": (lambda x, v: x * len(v), range(2), range(3)),
    "size": (lambda x, v: x.sum() * torch.ones(v), torch.Size([2]), torch.Size([3])),
    "index_list": (by_slice, [0, 1], [1, 2]),
    "bool_list": (by_slice, [True, False, True], [False, True, True]),
    "memory_format": (lambda x, v: x.clone(memory_format=v), torch.contiguous_format, torch.preserve_format),
}
Number.k, Whole.k = 2.0, 3.0

# Pairs that are not replayed, and why.
EAGER = {
    "text_subclass_name": "writes the address of a Text as text",
    "decimal": "reads a Decimal",
    "delta": "calls .total_seconds() of a timedelta",
}


def expected(name):
    return {"eager": EAGER[name]} if name in EAGER else {"hits": 2}


@pytest.mark.parametrize("name", PAIRS)
def test_two_arguments(name):
    function, one, two = PAIRS[name]

    def make(trace):
        x = X()
        return trace(function), [call(x, one), call(x, one), call(x, two), call(x, two), call(x, one)]

    check(make, **expected(name))


@pytest.mark.parametrize("name", PAIRS)
def test_two_values_of_state(name):
    function, one, two = PAIRS[name]

    def make(trace):
        value = one

        def change():
            nonlocal value
            value = two

        return trace(lambda x: function(x, value)), around(change, X())

    check(make, **expected(name))


def test_attribute_of_an_enum_member():
    class Kind(enum.Enum):
        A = 1

    def make(trace):
        Kind.A.scale = 2.0
        return trace(lambda x: x * Kind.A.scale), around(lambda: setattr(Kind.A, "scale", 3.0), X())

    check(make, hits=2)


def test_mutable_value_of_an_enum_member():
    def make(trace):
        class Kind(enum.Enum):
            A = [1.0]  # noqa: RUF012

        return trace(lambda x: x * sum(Kind.A.value)), around(lambda: Kind.A.value.append(2.0), X())

    check(make, hits=2)


@pytest.mark.parametrize("spelling", ["positional", "keyword", "default", "star"])
def test_spelling_makes_no_difference(spelling):
    def make(trace):
        fn = trace(lambda x, k=2.0: x * k)
        x = X()
        other = {
            "positional": call(x, 2.0),
            "keyword": call(x=x, k=2.0),
            "default": call(x),
            "star": call(*[x, 2.0]),
        }
        return fn, [call(x, 2.0), other[spelling]]

    check(make, hits=1, recordings=1)


def test_wrong_arguments_raise_as_eager_does():
    def make(trace):
        return trace(lambda x, k: x * k), [
            call(),
            call(X()),
            call(X(), 1, 2),
            call(X(), z=1),
            call(X(), 1, k=2),
            call(X(), 2),
        ]

    check(make, eager="the arguments do not fit the parameters")


# What writes to a list or a dict. A call of another signature is compared with that.
WRITES = {
    "an entry of a list": ("if isinstance(x, list): x[0] = x[0] * 2", "[t, u]"),
    "the end of a list": ("if isinstance(x, list): x.append(x[0] * 2)", "[t, u]"),
    "all of a list": ("if isinstance(x, list): x.reverse()", "[t, u]"),
    "an entry of a dict": ("if isinstance(x, dict): x['a'] = x['a'] * 2", "{'a': t}"),
    "all of a dict": ("if isinstance(x, dict): x.clear()", "{'a': t}"),
}
OTHERS = ("(t, t)", "(t, u)", "[t]", "{}", "deque([t, u])", "None", "t", "'text'", "3", "(t,)", "{'a': 1}")


@pytest.mark.parametrize("name", WRITES)
def test_another_kind_of_argument_comes_where_one_was_written_to(name):
    body, first = WRITES[name]

    def make(trace):
        names = {"deque": collections.deque, "t": torch.ones(2), "u": torch.zeros(2)}
        exec(f"def fn(x):\n    {body}\n    return x", names)
        steps = [call(eval(text, names)) for other in OTHERS for text in (first, other)]
        return trace(names["fn"]), steps, lambda: (names["t"], names["u"])

    check(make, hits=4)
