"""Training steps that draw by numpy, once they are flat: nothing is drawn twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, Holder, agree, call, check
from tests.soundness.test_flat_steps import ENOUGH, forms

cases = Cases()
ROWS = torch.linspace(-1, 1, 120).reshape(30, 4)
BUFFER = np.linspace(-1, 1, 120, dtype=np.float32).reshape(30, 4)


def of_global(state):
    return ROWS[torch.as_tensor(np.random.randint(0, 30, size=8))]


def of_buffer(state):
    return torch.as_tensor(BUFFER[np.random.randint(0, state.filled, size=8)])


def of_generator(state):
    return ROWS[torch.as_tensor(state.generator.permutation(30)[:8])]


def of_random_state(state):
    return ROWS[torch.as_tensor(state.old.permutation(30)[:8])]


def noise(state):
    return torch.as_tensor(np.random.normal(size=(8, 4)).astype(np.float32))


def written_to(state):
    drawn = np.random.rand(8, 4)
    drawn += 1
    drawn[drawn > 1.5] = 0
    return torch.as_tensor(drawn).float()


def several(state):
    first = torch.as_tensor(np.random.randint(0, 30, size=8))
    second = torch.as_tensor(np.random.randint(0, 30, size=8))
    return ROWS[first] - ROWS[second] + torch.rand(8, 4)


def in_two_ways(state):
    x = of_global(state)
    return x * 2 if x.sum() > 0 else x


def choice(state):
    return ROWS[torch.as_tensor(np.random.choice(30, 8, replace=False))]


def shuffled(state):
    order = np.arange(30)
    np.random.shuffle(order)
    return ROWS[torch.as_tensor(order[:8])]


def shuffled_twice(state):
    order = np.arange(30)
    np.random.shuffle(order)
    order += 1
    np.random.shuffle(order)
    return ROWS[torch.as_tensor(order[:8] - 1)]


def shuffled_of_state(state):
    np.random.shuffle(state.order)
    return ROWS[torch.as_tensor(state.order[:8])]


BODIES = [
    shuffled,
    shuffled_twice,
    shuffled_of_state,
    of_global,
    of_buffer,
    of_generator,
    of_random_state,
    noise,
    written_to,
    several,
    in_two_ways,
    choice,
]


def training(body, after=lambda loss: loss.detach(), count=ENOUGH + 6):
    def make(trace):
        torch.manual_seed(2)
        np.random.seed(2)
        state = Holder(filled=20, kept=None, order=np.arange(30))
        state.generator, state.old = np.random.default_rng(3), np.random.RandomState(4)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

        @trace
        def step(scale):
            x = body(state)
            optimizer.zero_grad()
            loss = (model(x) * scale - x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return after(loss)

        def streams():
            return (
                np.random.get_state()[1:3],
                state.generator.bit_generator.state["state"],
                state.old.get_state()[1:3],
                state.order,
            )

        steps = [call(torch.full((), 1 + k / 10)) for k in range(count)]
        return step, steps, lambda: (model, [p.grad for p in model.parameters()], streams())

    return make


@pytest.mark.parametrize("body", BODIES, ids=[body.__name__ for body in BODIES])
def test_training(body):
    check(training(body), hits=ENOUGH)


@pytest.mark.parametrize("body", [shuffled, of_global, of_buffer, noise, written_to, several, choice])
def test_it_becomes_flat(body):
    assert "flat" in forms(agree(training(body)))


@pytest.mark.parametrize("body", BODIES, ids=[body.__name__ for body in BODIES])
def test_another_way_behind_it(body):
    """The flat form stops, and what it has drawn is what the program is given."""

    def after(loss):
        return loss.detach() * 2 if loss.item() > 0.2 else loss.detach()

    check(training(body, after, ENOUGH * 3), hits=ENOUGH)


@cases(hits=ENOUGH)
def what_is_drawn_leaves(trace):
    torch.manual_seed(2)
    np.random.seed(2)
    model, log = nn.Linear(4, 4), Holder(last=None)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @trace
    def step(scale):
        drawn = np.random.rand(8, 4)
        x = torch.as_tensor(drawn).float()
        optimizer.zero_grad()
        loss = (model(x) * scale).pow(2).mean()
        loss.backward()
        optimizer.step()
        drawn *= 2
        if loss.item() > 0.3:
            drawn += 1
        return drawn, loss.detach()

    return step, [call(torch.full((), 1 + k % 3 / 10)) for k in range(ENOUGH * 2)], lambda: (model, log)


@cases(hits=ENOUGH)
def other_limits(trace):
    torch.manual_seed(2)
    np.random.seed(2)
    model, state = nn.Linear(4, 4), Holder(filled=5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @trace
    def step():
        state.filled = min(state.filled + 1, 30)
        x = torch.as_tensor(BUFFER[np.random.randint(0, state.filled, size=8)])
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    stream = lambda: np.random.get_state()[1:3]  # noqa: E731
    return step, [call()] * (ENOUGH * 2), lambda: (model, state, stream())


@cases(hits=ENOUGH)
def other_sizes_of_what_is_drawn_in_a_graph(trace):
    """A flat form that meets one is given up, and the program is given what it has drawn."""
    torch.manual_seed(2)
    model, state = nn.Linear(4, 4), Holder(size=3, generator=np.random.default_rng(2))

    def step(x):
        loss = (
            (model(x) * torch.from_numpy(state.generator.normal(size=state.size)).float().sum()).pow(2).mean()
        )
        loss.backward()
        return loss.detach()

    steps = [call(torch.full((2, 4), 1 + k % 3 / 10)) for k in range(ENOUGH * 3)]
    for at, size in ((ENOUGH * 2, 5), (ENOUGH + 4, 2), (ENOUGH, 4)):
        steps.insert(at, lambda size=size: setattr(state, "size", size))
    watch = lambda: (model, [p.grad for p in model.parameters()], repr(state.generator.bit_generator.state))  # noqa: E731
    return trace(step), steps, watch


@cases.parametrize
def test_draws(make, expected):
    check(make, **expected)
