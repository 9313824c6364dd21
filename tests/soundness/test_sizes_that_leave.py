"""`return h, x.shape` and `self.shape = x.shape`: a torch.Size of followed sizes leaves the call."""

from __future__ import annotations

import pickle
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, call, check

cases = Cases()

SHAPES = [(4, 2), (6, 2), (5, 3), (1, 1), (0, 2), (7, 5), (4, 2)]
Size = namedtuple("Size", "height width")


def kinds(value):
    """What can be seen of it: its class and those of its items."""
    return type(value).__name__, [type(item).__name__ for item in value], repr(value)


GIVEN = {
    "shape": lambda x: x.shape,
    "size": lambda x: x.size(),
    "a_part": lambda x: x.shape[:1],
    "its_end": lambda x: x.shape[-1:],
    "longer": lambda x: (*x.shape, 2),
    "added": lambda x: torch.Size([3]) + x.shape,
    "made": lambda x: torch.Size([x.shape[0], 2]),
    "of_a_product": lambda x: torch.Size((2 * x.shape[0], x.numel())),
    "in_a_dict": lambda x: {"shape": x.shape, "rows": len(x)},
    "in_a_tuple": lambda x: (x.shape, x.t().shape),
    "of_a_class": lambda x: Size(*x.shape),
    "of_a_result": lambda x: (x @ x.t()).shape,
    "of_none": lambda x: x.sum().shape,
    "twice": lambda x: [x.shape] * 2,
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_size_is_given_back(name):
    def make(trace):
        given = GIVEN[name]
        return trace(lambda x: (x * 2, given(x))), [call(torch.ones(shape)) for shape in SHAPES]

    check(make, hits=5, recordings=2)


@cases(hits=5, recordings=2)
def kept_for_later(trace):
    """A decoder is told what the encoder has seen."""

    class Coder(nn.Module):
        def __init__(self):
            super().__init__()
            self.shape = None

        def forward(self, x):
            self.shape = x.shape
            return x.reshape(-1) * 2

    coder = Coder()
    return (
        trace(coder),
        [call(torch.ones(shape)) for shape in SHAPES],
        lambda: coder.shape and kinds(coder.shape),
    )


@cases(recordings=7)
def asked_in_the_next_call(trace):
    """What lies in a value of state is no number that is followed."""
    held = SimpleNamespace(shape=torch.Size([1, 1]))

    def fn(x):
        before, held.shape = held.shape, x.shape
        return x.sum() * before[0], before.numel(), tuple(before)

    return trace(fn), [call(torch.ones(shape)) for shape in SHAPES], lambda: kinds(held.shape)


@cases(eager="compares the identity of two values of type Size")
def one_that_is_the_same_twice(trace):
    def fn(x):
        shape = x.shape
        return x * 2, shape, shape, x.shape is shape, shape == x.shape

    return trace(fn), [call(torch.ones(shape)) for shape in SHAPES]


@cases(hits=3)
def appended(trace):
    seen = []

    def fn(x):
        seen.append(x.shape)
        return x * 2

    return trace(fn), [call(torch.ones(shape)) for shape in SHAPES], lambda: [kinds(one) for one in seen]


def test_nothing_that_leaves_is_followed():
    fn = lazytrace.traced(lambda x: (x * 2, x.shape, {"n": x.size()}), dynamic=True)
    for shape in SHAPES:
        _, given, inside = fn(torch.ones(shape))
        for size in (given, inside["n"]):
            assert type(size) is torch.Size
            assert {type(item) for item in size} == {int}
            assert pickle.loads(pickle.dumps(size)) == torch.Size(shape)
            assert torch.zeros(size).shape == size
            assert {size: 1}[torch.Size(shape)]
    assert fn.stats().hits >= 5


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)
