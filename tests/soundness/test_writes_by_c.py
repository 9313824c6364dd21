"""Python code in the middle of a program that writes to state through functions of C."""

from __future__ import annotations

import bisect
import collections
import functools
import heapq
import itertools
import operator

import pytest
import torch
import torch.utils.checkpoint

import lazytrace
from tests.soundness.runner import X, agree, call


class State:
    """Fresh for each case, with a class of its own."""

    def __init__(self):
        self.number = 1
        self.list = [3, 1, 2]
        self.dict = {"k": 1}


def set_number(state):
    return (state, "number", state.number + 1)


def set_entry(state):
    return "k", state.dict["k"] + 1


def in_a_loop(state):
    for _ in map(setattr, *([value] for value in set_number(state))):
        pass


def by_unpacking(state):
    (_,) = map(setattr, *([value] for value in set_number(state)))


def class_attribute(state):
    type(state).shared = getattr(type(state), "shared", 0) + 1


def deleted_and_set(state):
    value = state.dict["k"] + 1
    del state.dict["k"]
    state.dict["k"] = value


WRITES = {
    "setattr": lambda s: setattr(*set_number(s)),
    "object_setattr": lambda s: object.__setattr__(*set_number(s)),
    "namespace": lambda s: vars(s).update(number=s.number + 1),
    "entry_of_the_namespace": lambda s: dict.__setitem__(s.__dict__, "number", s.number + 1),
    "other_namespace": lambda s: setattr(s, "__dict__", {**s.__dict__, "number": s.number + 1}),
    "setattr_by_map": lambda s: list(map(setattr, [s], ["number"], [s.number + 1])),
    "setattr_by_a_partial": lambda s: functools.partial(setattr, s, "number")(s.number + 1),
    "setattr_by_starmap": lambda s: next(itertools.starmap(setattr, [set_number(s)])),
    "setattr_in_a_loop": in_a_loop,
    "setattr_by_unpacking": by_unpacking,
    "operator_setitem": lambda s: operator.setitem(s.dict, *set_entry(s)),
    "entry_by_map": lambda s: list(map(s.dict.__setitem__, ["k"], [s.dict["k"] + 1])),
    "entry_by_a_star": lambda s: [*map(s.dict.__setitem__, ["k"], [s.dict["k"] + 1])],
    "entry_by_keywords": lambda s: dict.update(s.dict, **dict([set_entry(s)])),
    "entry_deleted_and_set": deleted_and_set,
    "append_by_map": lambda s: collections.deque(map(s.list.append, [4]), maxlen=0),
    "append_by_filter": lambda s: list(filter(s.list.append, [4])),
    "append_by_reduce": lambda s: functools.reduce(operator.iadd, [[5]], s.list),
    "append_as_a_key": lambda s: sorted([1], key=s.list.append),
    "heap": lambda s: heapq.heappush(s.list, -len(s.list)),
    "insort": lambda s: bisect.insort(s.list, 0),
    "iadd": lambda s: operator.iadd(s.list, [7]),
    "reverse": lambda s: s.list.append(s.list[0] + 1) or s.list.reverse(),
    "made_anew": lambda s: s.list.__init__([s.list[0] + 1, 2]),
    "class_attribute": class_attribute,
    "setattr_of_a_class": lambda s: setattr(type(s), "shared", getattr(type(s), "shared", 0) + 1),
    "type_setattr": lambda s: type.__setattr__(type(s), "shared", getattr(type(s), "shared", 0) + 1),
    "exec": lambda s: exec("s.number += 1", {"s": s}),
}


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, write, state):
        write(state)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None, None


def by_opaque(x, write, state, helper):
    return helper(x)


def by_a_function_of_autograd(x, write, state, helper):
    return Custom.apply(x, write, state)


def by_checkpoint(x, write, state, helper):
    def inner(t):
        write(state)
        return t * 2

    return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)


def by_a_hook(x, write, state, helper):
    y = x * 2
    y.register_hook(lambda gradient: (write(state), None)[1])
    return torch.autograd.grad((y * y).sum(), x)[0]


def reads(x, state):
    factor = (
        state.number + state.list[0] + sum(state.list) + state.dict["k"] + getattr(type(state), "shared", 0)
    )
    return x * factor * len(state.list)


WAYS = [by_opaque, by_a_function_of_autograd, by_checkpoint, by_a_hook]
ORDERS = [(True, False), (False, True), (True, True), (False, False)]


@pytest.mark.parametrize(("before", "after"), ORDERS, ids=["before", "after", "both", "neither"])
@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
@pytest.mark.parametrize("name", WRITES)
def test_state_around_a_write(name, way, before, after):
    """What was read before is another thing afterwards, and the other way round."""

    def make(trace):
        state = type("Made", (State,), {})()
        write = WRITES[name]
        helper = lazytrace.opaque(lambda x: (write(state), x * 2)[1])

        def function(x):
            early = reads(x, state) if before else 0
            y = way(x, write, state, helper)
            late = reads(x, state) if after else 0
            return (early + y + late).detach()

        def watch():
            return state.number, state.list, state.dict, getattr(type(state), "shared", 0)

        return trace(function), [call(X(grad=True)) for _ in range(6)], watch

    tracer = agree(make)
    # Nothing that the program reads is written: it is replayed. What is checkpointed, or a hook, is watched
    # up to twice, as state that is made late may be what a recording fails by.
    assert before or after or tracer.count("hits") >= 3, tracer.account()


def test_a_class_that_counts_its_calls_is_replayed():
    """What is written to a class is one name of it: the rest is read on."""

    class Counting(torch.autograd.Function):
        calls = 0
        factor = 3

        @staticmethod
        def forward(ctx, x):
            Counting.calls += 1
            return x * Counting.factor

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3

    def make(trace):
        Counting.calls = 0
        function = trace(lambda x: Counting.apply(Counting.apply(x)) * Counting.factor)
        return function, [call(X()) for _ in range(4)], lambda: Counting.calls

    assert agree(make).count("hits") >= 3
