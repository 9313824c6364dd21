"""Generators of random numbers that a function makes itself."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, X, call, check

cases = Cases()


def drawn(generator):
    return torch.randn(3, generator=generator)


def case(name, body, *args, hits=4, eager=None, count=6):
    """`args`: made for each call, by its number."""

    def make(trace):
        torch.manual_seed(1)
        steps = [call(X() * k, *(one(k) for one in args)) for k in range(count)]
        return trace(body), steps, torch.get_rng_state

    make.__name__ = name
    cases(make, hits=hits, **({"eager": eager} if eager else {}))


def seeded(x):
    return x + drawn(torch.Generator().manual_seed(3))


case("one_that_is_seeded", seeded)
case("one_of_a_device", lambda x: x + drawn(torch.Generator("cpu")))
case("one_of_a_named_device", lambda x: x + drawn(torch.Generator(device=torch.device("cpu"))))
case("one_that_is_not_seeded", lambda x: x + drawn(torch.Generator()))


def several(x):
    a, b = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    first, second = drawn(a), drawn(a)
    return x + first, second, drawn(b), a is b


case("two_of_one_seed", several)


def by_number(x, seed):
    generator = torch.Generator()
    generator.manual_seed(seed * 2 + 1)
    return nn.functional.softmax(x + drawn(generator), 0), torch.randperm(5, generator=generator)


case("seeded_with_a_number", by_number, lambda k: k + 3)


def beside_the_default(x):
    generator = torch.Generator().manual_seed(5)
    return x + torch.rand(3), drawn(generator), torch.rand(3)


case("beside_the_default_one", beside_the_default)


def looks_first(x, seed):
    generator = torch.Generator().manual_seed(seed)
    return x * generator.initial_seed() + drawn(generator)


case("first_seeds", looks_first, lambda k: k + 3)
case("first_seed_of_the_default_one", lambda x: x + torch.initial_seed())
case(
    "first_seed_of_64_bits",
    lambda x: (x, torch.Generator().manual_seed(-3).initial_seed()),
    hits=0,
    eager="opaque-result",
)


@cases(hits=2)
def first_seeds_of_64_bits_at_some_calls(trace):
    """After a write, and once as those of the default generator."""
    w = torch.zeros(())

    def fn(x, seed):
        w.add_(1)
        generator = torch.Generator().manual_seed(seed)
        return x + drawn(generator), generator.initial_seed(), torch.manual_seed(seed + 1).initial_seed()

    return trace(fn), [call(X(), seed) for seed in (1, 2, 3, -1, 4, -5, -1, 2)], lambda: w


def carried_on(x):
    generator = torch.Generator().manual_seed(5)
    other = torch.Generator()
    drawn(generator)
    other.set_state(generator.get_state())
    return x + drawn(generator) - drawn(other)


case("a_state_that_goes_from_one_to_another", carried_on)


def branches(x, flag):
    generator = torch.Generator().manual_seed(5)
    first = drawn(generator)
    if x.sum() > flag:
        return first + drawn(generator)
    return drawn(generator) * 2


case("a_branch_between_draws", branches, lambda k: k % 2 * 100.0, hits=5, count=8)


def branches_twice(x, flag):
    """A function that runs again goes on with the generators of the replay."""
    generator = torch.Generator().manual_seed(5)
    other = torch.Generator().manual_seed(6)
    first = drawn(generator)
    if x.sum() > flag:
        first = first + drawn(generator) * drawn(other)
    if x.sum() > flag - 60:
        third = torch.Generator().manual_seed(7)
        first = first * drawn(third) + drawn(generator)
    return first, drawn(generator), drawn(other), generator.initial_seed(), generator.get_state()


case("branches_between_draws", branches_twice, lambda k: k % 3 * 50.0, hits=7, count=12)


def caught(x, flag):
    generator = torch.Generator().manual_seed(5)
    first = drawn(generator)
    try:
        first = first + torch.ones(flag)
    except RuntimeError:
        first = first - drawn(generator)
    return first, drawn(generator)


case("an_exception_between_draws", caught, lambda k: 3 + k % 2, hits=4, eager="operator-raised", count=9)


@cases(hits=7)
def one_that_is_returned_from_a_branch(trace):
    def make(x):
        generator = torch.Generator().manual_seed(3)
        first = drawn(generator)
        if x.sum() > 20:
            return first * 2, generator
        return first + drawn(generator), generator

    def step(x):
        out, generator = made(x)
        return out, drawn(generator)

    made = trace(make)
    return made, [call(X() * (1 + k % 2 * 9)).of(step) for k in range(10)]


def branches_before(x, flag):
    if x.sum() > flag:
        x = x * 2
    generator = torch.Generator().manual_seed(5)
    return x + drawn(generator) + drawn(generator)


case("a_branch_before", branches_before, lambda k: k % 2 * 100.0, hits=3, count=8)


def made_first(x, flag):
    generator = torch.Generator()
    if x.sum() > flag:
        x = x * 2
    return x + drawn(generator.manual_seed(5))


case("a_branch_behind_an_idle_one", made_first, lambda k: k % 2 * 100.0, hits=3, count=8)


@cases(hits=3)
def one_that_is_returned(trace):
    """Each call gives another, which goes on from where the call has left it."""

    def make(x):
        generator = torch.Generator().manual_seed(3)
        return x + drawn(generator), generator

    kept = []

    def step(x):
        out, generator = made(x)
        kept.append(generator)
        return out, [drawn(one) for one in kept]

    made = trace(make)
    return made, [call(X()).of(made), *(call(X() * k).of(step) for k in range(4))]


@cases(hits=3)
def one_that_is_kept_and_drawn_from(trace):
    o = types.SimpleNamespace(generator=None)

    def step(x):
        o.generator = torch.Generator().manual_seed(3)
        return x + drawn(o.generator)

    return trace(step), [call(X() * k) for k in range(5)], lambda: drawn(o.generator)


@cases(hits=3)
def one_that_is_kept(trace):
    o = types.SimpleNamespace(generator=None)

    def step(x):
        generator = torch.Generator().manual_seed(3)
        out = x + drawn(generator)
        o.generator = generator
        return out

    return trace(step), [call(X() * k) for k in range(5)], lambda: drawn(o.generator)


@cases(hits=3)
def one_for_dropout_masks(trace):
    """In a step of training."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x, seed):
        generator = torch.Generator().manual_seed(seed)
        keep = torch.rand(x.shape, generator=generator) < 0.8
        optimizer.zero_grad()
        loss = model(x * keep).pow(2).sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    return trace(step), [call(X() * k, k + 7) for k in range(1, 12)], model.state_dict


def test_no_graph_holds_one():
    traced = lazytrace.traced(seeded)
    traced(X())
    with pytest.raises(NotImplementedError, match=r"from a torch\.Generator of its own"):
        traced.graph(X())


@cases.parametrize
def test_generators(make, expected):
    check(make, **expected)
