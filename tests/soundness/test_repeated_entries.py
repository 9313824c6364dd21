"""Tensors that are expanded to more elements than anyone could look at, of which all are the same few."""

from __future__ import annotations

import torch

import lazytrace
from lazytrace.checks import checkpoint_tensors, same
from tests.soundness.runner import Cases, call, check

cases = Cases()

MANY = 10**18 + 1


def look(many):
    """What can be told of such a tensor."""
    return many.shape, many.stride(), many[0], many[-1], many.requires_grad


@cases(hits=3)
def a_result_that_is_expanded(trace):
    fn = trace(lambda x: (x * 2).expand(MANY, *x.shape))
    return (lambda x: look(fn(x))), [call(torch.ones(3, 2)) for _ in range(5)]


@cases(hits=4)
def at_many_sizes(trace):
    fn = trace(lambda x: (x * 2).unsqueeze(1).expand(x.shape[0], MANY // 16, 2))

    def run(x):
        many = fn(x)
        return many.shape, many.stride(), many[:, 0], many[:, -1]

    return run, [call(torch.ones(n, 2)) for n in (2, 3, 5, 2, 1, 7, 3)]


@cases(hits=3)
def an_argument_that_is_expanded(trace):
    fn = trace(lambda many: many[0] + 1)
    return (lambda x: fn(x.expand(MANY, 2))), [call(torch.ones(2)) for _ in range(5)]


@cases(hits=3)
def state_that_is_expanded(trace):
    state = {"many": torch.ones(2).expand(MANY, 2)}

    def fn(x):
        state["last"] = state["many"][1:]
        return state["many"][-1] + x

    traced = trace(fn)
    return (lambda x: (traced(x), look(state["last"]))), [call(torch.ones(2)) for _ in range(5)]


@cases(hits=20)
def in_a_step_that_is_flat(trace):
    weight = torch.ones(2, requires_grad=True)

    def fn(x):
        loss = (x * weight).sum()
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
        weight.grad = None
        return loss.detach().expand(MANY), x.expand(MANY, 2)

    traced = trace(fn)

    def run(x):
        loss, many = traced(x)
        return loss[0], loss.shape, look(many)

    return run, [call(torch.full((2,), float(i))) for i in range(26)]


@cases(hits=20)
def of_a_graph(trace):
    """There is no memory for the gradient of a part of it, which torch says behind the replay, too."""
    weight = torch.ones(2, requires_grad=True)
    traced = trace(lambda x: (x * weight).expand(MANY, 2))

    def run(x):
        many = traced(x)
        loss = many[0].sum() + many[1].sum()
        weight.grad = None
        loss.backward()
        return look(many.detach()), weight.grad.clone()

    return run, [call(torch.full((2,), float(i))) for i in range(26)]


@cases(hits=3)
def memory_that_nobody_has_filled(trace):
    fn = trace(lambda x: torch.empty(2).expand(MANY, 2))
    return (lambda x: fn(x).shape), [call(torch.ones(2)) for _ in range(5)]


def test_comparing():
    one, other = torch.ones(2).expand(MANY, 2), torch.ones(2).expand(MANY, 2)
    assert same(one, other)
    assert "2 of 2 elements differ" in str(same(one, (other[0] * 2).expand(MANY, 2)))


def test_putting_back():
    memory = torch.ones(2)
    many = memory.expand(MANY, 2)
    restore = checkpoint_tensors([many])
    memory.zero_()
    restore()
    assert memory.tolist() == [1, 1]


def test_verifying():
    fn = lazytrace.traced(lambda x: (x * 2).expand(MANY, 2))
    lazytrace.verify(fn, torch.ones(2))


@cases.parametrize
def test_repeated(make, expected):
    check(make, **expected)
