"""Describing a call runs no code of its arguments, and names the roots of guards as the core numbers them."""

from __future__ import annotations

import collections
import enum
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

import lazytrace
from lazytrace import traced
from lazytrace.signature import Parameters, describe, root_names

X = torch.ones(2)


class Meta(type):
    """Every question to the class itself is an error."""

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("compared")

    def __hash__(cls) -> int:
        raise RuntimeError("hashed")

    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError("asked for instances")

    @property
    def __name__(cls) -> str:
        raise RuntimeError("named")


class OfMeta(metaclass=Meta):
    v = 2.0


class TupleOfMeta(tuple, metaclass=Meta):
    __slots__ = ()


class Int(int):
    def __repr__(self) -> str:
        raise RuntimeError("shown")


class Str(str):
    __slots__ = ()

    def __repr__(self) -> str:
        raise RuntimeError("shown")


class AttrDict(dict):
    def __getattr__(self, name: str) -> Any:
        return self[name]


class LazyTuple(tuple):
    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class OtherClass:
    v = 2.0

    @property
    def __class__(self) -> type:
        raise RuntimeError("asked for its class")


class NoAttributes:
    def __getattribute__(self, name: str) -> Any:
        if name == "v":
            return 2.0
        raise RuntimeError(name)


class Items(collections.OrderedDict):
    def items(self) -> Any:
        raise RuntimeError("items")

    def __len__(self) -> int:
        raise RuntimeError("len")


class Pair(collections.namedtuple("Pair", "a b")):
    def __iter__(self) -> Any:
        raise RuntimeError("iter")


class SlotPair(collections.namedtuple("SlotPair", "a b")):
    __slots__ = ()

    def __iter__(self) -> Any:
        raise RuntimeError("iter")

    def __len__(self) -> int:
        raise RuntimeError("len")


HOSTILE = {
    "class whose metaclass raises": (OfMeta, lambda x, d: x + d().v),
    "instance of it": (OfMeta(), lambda x, d: x + d.v),
    "tuple of it": (TupleOfMeta((2.0,)), lambda x, d: x + d[0]),
    "int with a repr": (Int(3), lambda x, d: x + d),
    "str with a repr": (Str("abc"), lambda x, d: x + len(d)),
    "dict whose attributes are items": (AttrDict(v=2.0), lambda x, d: x + d.v),
    "tuple whose attributes raise": (LazyTuple((2.0,)), lambda x, d: x + d[0]),
    "object whose class raises": (OtherClass(), lambda x, d: x + d.v),
    "object without attributes": (NoAttributes(), lambda x, d: x + d.v),
    "ordered dict with items": (Items(a=2.0), lambda x, d: x + d["a"]),
    "named tuple with an iterator": (Pair(2.0, 3.0), lambda x, d: x + d.a),
    "named tuple without a dict": (SlotPair(2.0, 3.0), lambda x, d: x + d.a),
}


@pytest.mark.parametrize("nested", [False, True], ids=["argument", "in a list"])
@pytest.mark.parametrize("case", HOSTILE)
def test_no_code_of_an_argument_runs(case, nested):
    value, function = HOSTILE[case]
    if nested:
        value, inner = [value], function

        def function(x, d):
            return inner(x, d[0])

    step = traced(function)
    with lazytrace.CompileProfiler() as profiler:
        for _ in range(3):
            assert torch.equal(step(X, value), function(X, value))
        assert step.explain(X, value).outcome in ("hit", "eager")
        assert step.explain(torch.ones(3), value).outcome in ("record", "eager")
        assert step.stats().calls == 3
    assert "3 calls" in profiler.report()


def test_an_int_of_more_digits_than_python_writes():
    assert describe([("n", 1 << 20_000)], {})["n"] == hex(1 << 20_000)


class Named(NamedTuple):
    a: object
    b: object


class WithDict(Named):
    """Has a dict beside its items, so it is guarded by what is read of it."""


class OddDict(dict):
    pass


OddDict.__name__ = "OrderedDict"


class Color(enum.IntEnum):
    RED = 1


FIRST = {
    "tensor": torch.ones(1),
    "parameter": torch.nn.Parameter(torch.ones(1)),
    "ellipsis": ...,
    "not implemented": NotImplemented,
    "memory format": torch.channels_last,
    "dtype": torch.float32,
    "size": torch.Size([2]),
    "int subclass": Int(3),
    "enum member": Color.RED,
    "named tuple": Named(SimpleNamespace(scale=1.0), 2.0),
    "named tuple with a dict": WithDict(SimpleNamespace(scale=1.0), 2.0),
    "struct sequence": torch.return_types.max((torch.ones(1), torch.ones(1))),
    "dict": {"a": SimpleNamespace(scale=1.0), 2: [SimpleNamespace()]},
    "ordered dict": collections.OrderedDict(a=SimpleNamespace(scale=1.0)),
    "dict subclass": OddDict(a=SimpleNamespace(scale=1.0)),
    "list": [SimpleNamespace(), (SimpleNamespace(),)],
    "list subclass": type("L", (list,), {})([SimpleNamespace()]),
    "function": len,
}


@pytest.mark.parametrize("case", FIRST)
def test_guards_are_named_after_the_argument_they_start_from(case):
    config = SimpleNamespace(scale=2.0)

    @traced
    def step(x, first, config):
        return x * config.scale

    step(X, FIRST[case], config)
    config.scale = 3.0
    found = step.explain(X, FIRST[case], config)
    assert [str(reason) for reason in found.reasons] == ["config.scale 2.0 -> 3.0"]
    assert found.outcome == "record"


def test_a_keyword_named_like_a_positional_only_parameter():
    def step(first=1.0, /, **others):
        return first, others

    assert Parameters(step).named((), {"first": 2.0}) == [("first", 1.0), ("first", 2.0)]


def test_the_names_of_roots():
    nested = {"a": [OfMeta()], "b": Named(1, (2,))}
    assert root_names("step", [("x", X), ("d", nested)]) == [
        *("step", "d", "d['a']", "d['a'][0]", "d['b']", "d['b'][1]"),
    ]


@pytest.mark.parametrize("wrap", [lambda t: (t,), lambda t: [t], lambda t: {"a": t}, lambda t: slice(t)])
def test_an_argument_that_is_nested_very_deeply(wrap):
    deep: Any = 1.0
    for _ in range(100_000):
        deep = wrap(deep)

    @traced
    def step(batch):
        return batch["x"] * len(batch)

    for _ in range(3):
        assert torch.equal(step({"x": X, "deep": deep}), 2 * X)
    assert step.stats().calls == 3
    while isinstance(deep, slice):  # level by level: the interpreter frees slices by recursion
        deep = deep.stop
