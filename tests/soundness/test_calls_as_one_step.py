"""Calls that a replay makes again as they are: caches that drop what they hold, switches, assignments."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F

from tests.soundness.runner import Cases, X, agree, call, check

cases = Cases()
HOSTILE = []


def hostile(make):
    """A case that may be replayed or not, and is what the plain function gives."""
    HOSTILE.append(make)
    return make


def calls(n=8):
    return [call(k * X()) for k in range(1, n + 1)]


# ---------------------------------------------------------------- functools caches
@cases(hits=5)
def keys_by_turns(trace):
    """As a model that asks for the positions of three levels."""

    @functools.lru_cache(maxsize=1)
    def positions(size, dtype):
        return torch.arange(size, dtype=dtype)

    def step(x):
        return [x.sum() * positions(size, x.dtype) for size in (2, 3, 4)]

    return trace(step), calls(), lambda: positions.cache_info()


@cases(hits=4)
def a_tensor_as_key(trace):
    @functools.lru_cache(maxsize=2)
    def doubled(x):
        return x * 2

    return trace(lambda x: x + doubled(x)), calls(16), lambda: doubled.cache_info()


@cases(hits=4)
def a_method_with_a_cache(trace):
    class Positions:
        made = 0

        @functools.lru_cache(maxsize=1)  # noqa: B019
        def of(self, size, *, scale=1):
            return torch.arange(size) * scale

    held = Positions()

    def step(x):
        return x.sum() * held.of(2), x.sum() * held.of(size=3, scale=2)

    return trace(step), calls(16), lambda: Positions.of.cache_info()


@hostile
def what_it_gives_is_changed(trace):
    @functools.lru_cache(maxsize=1)
    def zeros(size):
        return torch.zeros(size)

    def step(x):
        a, b = zeros(2), zeros(3)
        b += x
        return a, b, zeros(3), zeros(3) is b

    return trace(step), calls()


@hostile
def it_counts_its_calls(trace):
    seen = []

    @functools.lru_cache(maxsize=1)
    def noted(size):
        seen.append(size)
        return torch.ones(size)

    def step(x):
        return x.sum() * noted(2) + len(seen), noted(3), len(seen)

    return trace(step), calls(), lambda: seen


@hostile
def it_raises(trace):
    @functools.lru_cache(maxsize=1)
    def picky(size):
        if size > 2:
            raise ValueError(f"{size} is too many")
        return torch.ones(size)

    def step(x):
        said = []
        for size in (1, 2, 3):
            try:
                said.append(picky(size))
            except ValueError as error:
                said.append(str(error))
        return x, said

    return trace(step), calls()


@cases(hits=5)
def before_a_side_exit(trace):
    @functools.lru_cache(maxsize=1)
    def scaled(size, by):
        return torch.arange(size) * by

    def step(x):
        total = [x.sum() * scaled(2, 3), x.sum() * scaled(2, 4), x.sum() * scaled(3, 5)]
        return total if x.sum() > 5 else total[::-1]

    return trace(step), calls(12), lambda: scaled.cache_info()


@cases(hits=7)
def a_cache_that_holds_all(trace):
    @functools.lru_cache(maxsize=4)
    def positions(size):
        return torch.arange(size)

    for size in (2, 3):
        positions(size)
    return trace(lambda x: (x * positions(3), positions(2))), calls(), lambda: positions.cache_info()


# ---------------------------------------------------------------- switches of cuDNN
def flags():
    backend = torch.backends.cudnn
    return backend.enabled, backend.benchmark, backend.deterministic


def loss_of_characters(x):
    scores = x.view(1, 1, 3).repeat(4, 1, 1).log_softmax(-1)
    with torch.backends.cudnn.flags(enabled=False):
        assert not torch.backends.cudnn.enabled
        return F.ctc_loss(scores, torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2]))


def test_switched_for_a_loss():
    tracer = agree(lambda trace: (trace(loss_of_characters), calls(), flags))
    assert tracer.count("hits") >= 6


def test_switched_by_others_between_calls():
    def make(trace):
        def change():
            torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark

        return trace(loss_of_characters), [*calls(3), change, *calls(3), change, *calls(3)], flags

    agree(make)


def test_put_back_where_it_raises():
    def make(trace):
        def step(x):
            with torch.backends.cudnn.flags(enabled=False):
                if x.sum() > 5:
                    raise ValueError("too large")
                return x * 2

        return trace(step), calls(), flags

    agree(make)


# ---------------------------------------------------------------- scipy
def test_assignments():
    optimize = pytest.importorskip("scipy.optimize")

    def make(trace):
        torch.manual_seed(0)

        def step(costs):
            found = [optimize.linear_sum_assignment(cost) for cost in costs]
            return [(torch.as_tensor(i), torch.as_tensor(j, dtype=torch.int64)) for i, j in found]

        return trace(step), [call(torch.rand(2, 4, 3)) for _ in range(8)]

    assert agree(make).count("hits") >= 6


def test_an_assignment_with_gradients_raises():
    optimize = pytest.importorskip("scipy.optimize")

    def step(cost):
        try:
            return optimize.linear_sum_assignment(cost)[0]
        except RuntimeError as error:
            return str(error)

    agree(lambda trace: (trace(step), [call(torch.rand(3, 3, requires_grad=True)) for _ in range(4)]))


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
def test_what_may_run_eagerly(make):
    agree(make)


@cases.parametrize
def test_agrees(make, expected):
    check(make, **expected)
