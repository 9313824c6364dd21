"""Training steps that draw by a generator that they are given or keep, once they are flat."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, Holder, agree, call, check
from tests.soundness.test_flat_steps import ENOUGH, forms

cases = Cases()
ROWS = torch.linspace(-1, 1, 120).reshape(30, 4)


def indices(g):
    return ROWS[torch.randint(0, 30, (8,), generator=g)]


def noise(g):
    return torch.randn(8, 4, generator=g)


def permuted(g):
    return ROWS[torch.randperm(30, generator=g)[:8]]


def in_place(g):
    return torch.empty(8, 4).uniform_(-1, 1, generator=g)


def beside_the_default_one(g):
    return torch.rand(8, 4, generator=g) - torch.rand(8, 4)


def in_two_ways(g):
    x = indices(g)
    return x * 2 if x.sum() > 0 else x


BODIES = [indices, noise, permuted, in_place, beside_the_default_one, in_two_ways]


def training(body, after=lambda loss, g: loss.detach(), other=None, count=ENOUGH + 6):
    """`other`: which generator each call passes, of three; None: the one that is kept."""

    def make(trace):
        torch.manual_seed(2)
        generators = [torch.Generator().manual_seed(k) for k in range(3)]
        state = Holder(generator=generators[0])
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

        @trace
        def step(scale, given=None):
            g = state.generator if given is None else given
            x = body(g)
            optimizer.zero_grad()
            loss = (model(x) * scale - x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return after(loss, g)

        def steps():
            for k in range(count):
                scale = torch.full((), 1 + k / 10)
                yield call(scale) if other is None else call(scale, generators[other(k)])

        def watch():
            return model, [p.grad for p in model.parameters()], [g.get_state() for g in generators]

        return step, list(steps()), watch

    return make


@pytest.mark.parametrize("body", BODIES, ids=[body.__name__ for body in BODIES])
def test_training(body):
    check(training(body), hits=ENOUGH)


@pytest.mark.parametrize("body", BODIES, ids=[body.__name__ for body in BODIES])
def test_another_generator_at_each_call(body):
    check(training(body, other=lambda k: k % 3, count=ENOUGH + 9), hits=ENOUGH)


@pytest.mark.parametrize("body", BODIES[:-1], ids=[body.__name__ for body in BODIES[:-1]])
@pytest.mark.parametrize("other", [None, lambda k: 0, lambda k: k % 3], ids=["kept", "passed", "others"])
def test_it_becomes_flat(body, other):
    assert "flat" in forms(agree(training(body, other=other)))


@pytest.mark.parametrize("other", [None, lambda k: k % 3], ids=["kept", "passed"])
@pytest.mark.parametrize("body", BODIES, ids=[body.__name__ for body in BODIES])
def test_another_way_behind_it(body, other):
    """The flat form stops, and the program is given the same numbers again."""

    def after(loss, g):
        return loss.detach() * 2 if loss.item() > 0.4 else loss.detach() + torch.rand((), generator=g)

    check(training(body, after, other, ENOUGH * 3), hits=ENOUGH)


@cases(hits=ENOUGH)
def the_default_generator_by_name(trace):
    torch.manual_seed(2)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @trace
    def step(given):
        optimizer.zero_grad()
        loss = model(torch.rand(8, 4, generator=given) - torch.rand(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.item() > 0.2, torch.rand(2, generator=given)

    given = [torch.default_generator, torch.Generator().manual_seed(4)]
    steps = [call(given[k % 5 == 4]) for k in range(ENOUGH * 2)]
    return step, steps, lambda: (model, given[1].get_state(), torch.get_rng_state())


@cases(hits=ENOUGH)
def it_is_seeded_between(trace):
    torch.manual_seed(2)
    model, generator = nn.Linear(4, 4), torch.Generator()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @trace
    def step():
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4, generator=generator)).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    steps = [one for k in range(ENOUGH + 6) for one in (lambda k=k: generator.manual_seed(k), call(), call())]
    return step, steps, lambda: (model, generator.get_state())


@cases.parametrize
def test_draws(make, expected):
    check(make, **expected)
