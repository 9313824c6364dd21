"""Functions and training steps that seed generators of random numbers themselves."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from tests.soundness.runner import Holder, X, agree, call, check
from tests.soundness.test_flat_steps import ENOUGH, forms


def streams():
    of_numpy = np.random.get_state()
    return of_numpy[2], bytes(of_numpy[1]), random.getstate()


def seeding(body, *args, count=8):
    """`args`: made for each call, by its number."""

    def make(trace):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        return trace(body), [call(X(), *(one(k) for one in args)) for k in range(count)], streams

    return make


def constant(x):
    torch.manual_seed(3)
    return x + torch.rand(3)


def twice_the_same(x):
    torch.manual_seed(3)
    torch.manual_seed(3)
    first = torch.rand(3)
    torch.random.manual_seed(3)
    return x + first, torch.rand(3)


def at_the_end(x):
    drawn = torch.rand(3)
    torch.manual_seed(12)
    return x + drawn


def by_number(x, seed):
    torch.manual_seed(seed)
    return nn.functional.dropout(x, 0.5)


def worked_out(x, seed):
    torch.manual_seed(seed * 1000 + 7)
    a = torch.randn(3)
    torch.manual_seed(int(seed / 2))
    return x + a, torch.randint(0, 99, (4,))


def by_value(x, seed):
    torch.manual_seed(int((x.sum() * seed).abs().item()) % 5)
    return x + torch.rand(3)


def behind_an_exit(x, seed):
    torch.manual_seed(seed)
    a = torch.rand(3)
    if a[0] > 0.5:
        a = a + torch.rand(3)
        torch.manual_seed(seed + 1)
    return x + a + torch.rand(3)


def given_back(x):
    generator = torch.manual_seed(5)
    return x + torch.rand(3, generator=generator), generator is torch.default_generator


def of_all_libraries(x, seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    first = x * random.random() + np.random.rand() + torch.rand(3)
    return first + random.gauss(0.0, 1.0) + np.random.normal(0.0, 1.0)


def of_python_behind_an_exit(x, seed):
    random.seed(seed)
    a = random.random()
    if a > 0.5:
        a += random.gauss(0.0, 1.0)
        random.seed(seed + 1)
    return x * a, random.random(), random.gauss(0.0, 1.0)


def array_of_numpy(x, seed):
    np.random.seed(seed)
    return x + torch.from_numpy(np.random.rand(3)), np.random.randint(5)


# ---------------------------------------------------------------- generators
def of_generators(body, count=8):
    def make(trace):
        made = [torch.Generator().manual_seed(k) for k in range(2)]
        state = Holder(generator=made[0])

        def function(x, seed, given=None):
            return body(x, seed, state.generator if given is None else given, state)

        pairs = [call(X(), k, made[k % 2]) if k % 3 else call(X(), k) for k in range(count)]
        return trace(function), pairs, lambda: [one.get_state() for one in made]

    return make


def kept(x, seed, generator, state):
    generator.manual_seed(seed)
    return x + torch.rand(3, generator=generator) + torch.rand(3)


def kept_and_passed(x, seed, generator, state):
    state.generator.manual_seed(seed)
    a = torch.rand(3, generator=generator)
    same = generator.manual_seed(seed + 3) is generator
    return x + a, torch.rand(3, generator=state.generator), same


# ---------------------------------------------------------------- what is left to torch
def large(x):
    torch.manual_seed(2**64 - 3)
    return x + torch.rand(3)


def of_a_bool(x):
    torch.manual_seed(True)
    return x + torch.rand(3)


def of_a_tensor(x):
    torch.manual_seed(torch.tensor(4))
    return x + torch.rand(3)


def of_a_text(x):
    random.seed("seven")
    return x * random.random()


def without_a_number(x):
    random.seed()
    random.seed(3)
    return x * random.random()


def too_large(x):
    torch.manual_seed(2**70)
    return x


def a_float(x):
    try:
        torch.default_generator.manual_seed(1.5)
    except TypeError as error:
        return x, str(error)


def inside_a_transform(x):
    def draw(row):
        torch.manual_seed(7)
        return row * torch.rand(())

    return torch.func.vmap(draw, randomness="same")(x), torch.func.grad(lambda y: draw(y).sum())(x)


CASES = [
    pytest.param(seeding(constant), {"hits": 7}, id="a constant"),
    pytest.param(seeding(twice_the_same), {"hits": 7}, id="the same one twice"),
    pytest.param(seeding(at_the_end), {"hits": 7}, id="behind what is drawn"),
    pytest.param(seeding(by_number, lambda k: k % 3), {"hits": 6}, id="a number that is passed"),
    pytest.param(seeding(by_number, lambda k: -k - 1), {"hits": 6}, id="a negative number"),
    pytest.param(seeding(worked_out, lambda k: k), {"hits": 6}, id="numbers that are worked out"),
    pytest.param(seeding(by_value, lambda k: k), {"hits": 6}, id="a number that hangs on values"),
    pytest.param(seeding(behind_an_exit, lambda k: k, count=14), {"hits": 10}, id="behind an exit"),
    pytest.param(seeding(given_back), {"hits": 7}, id="what it gives back"),
    pytest.param(seeding(of_all_libraries, lambda k: k), {"hits": 6}, id="of all libraries"),
    pytest.param(
        seeding(of_python_behind_an_exit, lambda k: k, count=14),
        {"hits": 10},
        id="of Python, behind an exit",
    ),
    pytest.param(seeding(array_of_numpy, lambda k: k), {"hits": 6}, id="arrays of numpy"),
    pytest.param(of_generators(kept), {"hits": 4}, id="a generator in state or passed"),
    pytest.param(of_generators(kept_and_passed), {"hits": 3}, id="two that may be one"),
    pytest.param(seeding(large), {"eager": "_mps_is_in_bad_fork"}, id="a number of 64 bits"),
    pytest.param(seeding(of_a_bool), {"hits": 7}, id="a bool"),
    pytest.param(seeding(of_a_tensor), {"hits": 7}, id="a tensor"),
    pytest.param(seeding(of_a_text), {"eager": "_sha512"}, id="a text"),
    pytest.param(seeding(without_a_number), {"eager": ".seed() of a Random"}, id="none"),
    pytest.param(seeding(too_large), {"eager": "raised ValueError"}, id="one that is too large"),
    pytest.param(seeding(a_float), {"eager": "raised RuntimeError"}, id="a float"),
    pytest.param(seeding(inside_a_transform), {"eager": "_mps_is_in_bad_fork"}, id="inside a transform"),
]


@pytest.mark.parametrize(("make", "expected"), CASES)
def test_functions(make, expected):
    check(make, **expected)


# ---------------------------------------------------------------- steps
def training(body, count=ENOUGH + 6):
    def make(trace):
        torch.manual_seed(2)
        np.random.seed(2)
        random.seed(2)
        state = Holder(steps=0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

        @trace
        def step(x):
            body(state)
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True) + torch.rand(4, 1)).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, [call(X(4, 4)) for _ in range(count)], lambda: (*model.parameters(), streams())

    return make


def each_time(state):
    torch.manual_seed(11)


def counted(state):
    torch.manual_seed(1000 + state.steps)
    state.steps += 1


def all_counted(state):
    np.random.seed(state.steps)
    random.seed(state.steps)
    torch.manual_seed(state.steps)
    state.steps += 1


def exit_in_between(state):
    torch.manual_seed(state.steps)
    state.steps += 1
    if torch.rand(()) > 0.5:
        torch.manual_seed(state.steps)
        torch.rand(2)


@pytest.mark.parametrize("body", [each_time, counted, all_counted, exit_in_between])
def test_steps(body):
    make = training(body)
    tracer = agree(make)
    assert tracer.count("hits") >= ENOUGH, tracer.account()
    assert "flat" in forms(tracer), forms(tracer)


def test_seeding_when_the_caller_passes_backward():
    def make(trace):
        model = nn.Linear(3, 3)

        @trace
        def forward(x, seed):
            torch.manual_seed(seed)
            return nn.functional.dropout(model(x), 0.4).sum()

        def one(x, seed):
            loss = forward(x, seed)
            drawn = torch.rand(2)
            loss.backward()
            return loss.detach(), drawn, torch.rand(2)

        return (
            one,
            [call(X(2, 3), k % 2) for k in range(ENOUGH + 4)],
            lambda: [p.grad for p in model.parameters()],
        )

    check(make, hits=4)
