"""Functions and training steps that ask and set where generators of random numbers are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.soundness.runner import Holder, X, agree, call, check
from tests.soundness.test_flat_steps import ENOUGH, forms


def drawing(body, count=8):
    def make(trace):
        torch.manual_seed(1)
        state = Holder(
            generator=torch.Generator().manual_seed(2), before=torch.Generator().manual_seed(3).get_state()
        )
        seen = lambda: (torch.get_rng_state(), state.generator.get_state(), state.before)  # noqa: E731
        return trace(lambda x: body(x, state)), [call(X()) for _ in range(count)], seen

    return make


def drawn_twice(x, state):
    before = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(before)
    return x + first, torch.rand(3)


def given_back(x, state):
    return x + torch.rand(3), torch.get_rng_state(), torch.rand(3)


def kept(x, state):
    state.before = torch.random.get_rng_state()
    return x + torch.rand(3)


def from_before_the_call(x, state):
    torch.set_rng_state(state.before)
    return x + torch.rand(3)


def forked(x, state):
    with torch.random.fork_rng():
        first = torch.rand(3)
    return x + first, torch.rand(3)


def forked_and_seeded(x, state):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        first = torch.randn(3)
    return x + first, torch.randn(3)


def forked_within(x, state):
    with torch.random.fork_rng(devices=[]):
        first = torch.rand(3)
        with torch.random.fork_rng(devices=[]):
            second = torch.rand(1)
        third = torch.rand(2)
    return x + first, second, third, torch.rand(3)


def exit_behind(x, state):
    with torch.random.fork_rng(devices=[]):
        first = torch.rand(3)
    if first[0] > 0.5:
        first = first + torch.rand(3)
    return x + first, torch.rand(2)


def exit_within(x, state):
    with torch.random.fork_rng(devices=[]):
        first = torch.rand(3)
        if first[0] > 0.5:
            first = first * torch.rand(3)
    return x + first, torch.rand(2)


def raises_within(x, state):
    try:
        with torch.random.fork_rng(devices=[]):
            if torch.rand(()) > 0.5:
                raise ValueError
    except ValueError:
        x = x + 1
    return x, torch.rand(2)


def of_a_generator(x, state):
    before = state.generator.get_state()
    first = torch.rand(3, generator=state.generator)
    same = state.generator.set_state(before) is state.generator
    return x + first, torch.rand(2, generator=state.generator), same


def to_another_generator(x, state):
    state.generator.set_state(torch.get_rng_state())
    return x + torch.rand(3), torch.rand(3, generator=state.generator)


def the_default_one_by_name(x, state):
    before = torch.default_generator.get_state()
    first = torch.rand(3)
    torch.default_generator.set_state(before)
    return x + first, torch.rand(3, generator=torch.default_generator)


def written_to(x, state):
    before = torch.get_rng_state()
    changed = before.clone()
    changed[:8] = torch.tensor([7, 0, 0, 0, 0, 0, 0, 0], dtype=torch.uint8)
    torch.set_rng_state(changed)
    first = torch.rand(3)
    torch.set_rng_state(before)
    return x + first, torch.rand(3), torch.equal(before, changed)


def too_short(x, state):
    torch.set_rng_state(torch.zeros(5, dtype=torch.uint8))
    return x


def refused_by_torch(x, state):
    try:
        torch.set_rng_state(state.before[:5])
    except RuntimeError as error:
        return x + torch.rand(3), str(error)


def of_a_list(x, state):
    try:
        torch.set_rng_state([1, 2])
    except TypeError as error:
        return x, str(error)


def inside_a_transform(x, state):
    def draw(row):
        before = torch.get_rng_state()
        first = row * torch.rand(())
        torch.set_rng_state(before)
        return first + torch.rand(())

    return torch.func.vmap(draw, randomness="same")(x), torch.rand(2)


CASES = [
    (drawn_twice, {"hits": 7}),
    (given_back, {"hits": 7}),
    (kept, {"hits": 7}),
    (from_before_the_call, {"hits": 7}),
    (forked, {"hits": 7}),
    (forked_and_seeded, {"hits": 7}),
    (forked_within, {"hits": 7}),
    (exit_behind, {"hits": 6}),
    (exit_within, {"hits": 6}),
    (raises_within, {"hits": 6}),
    (of_a_generator, {"hits": 7}),
    (to_another_generator, {"hits": 7}),
    (the_default_one_by_name, {"hits": 7}),
    (written_to, {"hits": 7}),
    (too_short, {"eager": "raised RuntimeError"}),
    (refused_by_torch, {"eager": "set_random_state raised"}),
    (of_a_list, {"eager": "set_state"}),
    (inside_a_transform, {"eager": "get_state"}),
]


@pytest.mark.parametrize(("body", "expected"), CASES, ids=[body.__name__ for body, _ in CASES])
def test_functions(body, expected):
    check(drawing(body), **expected)


# ---------------------------------------------------------------- steps
def around_a_second_pass(model, x):
    before = torch.get_rng_state()
    first = model(x)
    torch.set_rng_state(before)
    return first + model(x)


def beside_the_stream(model, x):
    with torch.random.fork_rng(devices=[]):
        target = model(x + torch.rand(4, 4))
    return model(x) - target


def behind_the_pass(model, x):
    before = torch.get_rng_state()
    loss = model(x).sum()
    loss.backward()
    torch.set_rng_state(before)
    return model(x)


@pytest.mark.parametrize("body", [around_a_second_pass, beside_the_stream, behind_the_pass])
def test_steps(body):
    def make(trace):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)

        @trace
        def step(x):
            optimizer.zero_grad()
            loss = body(model, x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        def seen():
            return (*model.parameters(), torch.get_rng_state())

        return step, [call(X(4, 4)) for _ in range(ENOUGH + 6)], seen

    tracer = agree(make)
    assert tracer.count("hits") >= ENOUGH, tracer.account()
    assert "flat" in forms(tracer), forms(tracer)
