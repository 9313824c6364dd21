"""Clocks and generators of random numbers other than torch's, which a replay asks where the function did."""

from __future__ import annotations

import functools
import itertools
import random
import time

import numpy as np
import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, X, agree, around, call, check

cases = Cases()


def calls(n, *args):
    return [call(*(args or (X(),))) for _ in range(n)]


def drawing(body, n=12):
    """Of a function that draws: numpy's stream is compared, too."""

    def make(trace):
        np.random.seed(0)
        return trace(body), calls(n), lambda: (np.random.get_state()[2], bytes(np.random.get_state()[1]))

    return make


# ---------------------------------------------------------------- random numbers
def mixed_up(x):
    weight = np.random.beta(0.4, 0.4)
    return x * weight + (1 - weight) * x.flip(0)


def of_numpy(x):
    return x * np.random.uniform(low=0.5, high=2.0) + np.random.normal() - np.random.randint(3, 9)


def of_python(x):
    return x * random.random() + random.uniform(-1, 2), random.random()


def of_many_kinds(x):
    return x * np.random.rand(), np.random.gamma(2.0), np.random.exponential(), random.getrandbits(12)


def how_many(x):
    n = np.random.binomial(6, 0.5)
    rows = torch.cat([torch.rand(n, 3), x.new_zeros(8 - n, 3)])
    return rows * np.random.poisson(3.0), np.random.geometric(0.4), np.random.standard_t(3.0)


def worked_out(x):
    a, b = random.random(), np.random.random()
    return x * (a + b) / (1 + a * b), int(a * 1e6), round(b), max(a, b)


def branched(x):
    for _ in range(2):
        x = x * 2 if random.random() < 0.5 else x + 1
    return x


def between_draws_of_torch(x):
    a = random.random()
    noise = torch.randn_like(x)
    return x * a + noise * np.random.rand() + torch.rand(len(x))


def drawn_in_a_branch(x):
    if random.random() < 0.7:
        x = x * random.random()
    return x + random.random()


DRAWS = [
    mixed_up, of_numpy, of_python, of_many_kinds, worked_out, branched, between_draws_of_torch,
    drawn_in_a_branch, how_many,
]  # fmt: skip
FEWER = {branched: 7, drawn_in_a_branch: 9, how_many: 8}


@pytest.mark.parametrize("body", DRAWS, ids=lambda body: body.__name__)
def test_drawn(body):
    check(drawing(body), hits=FEWER.get(body, 11))


@cases(hits=6)
def normal_numbers_that_come_in_pairs(trace):
    return trace(lambda x: x + random.gauss(0, 1)), calls(10)


def drawn_below(trace, body):
    """Numbers up to a bound: Python draws until one is small enough, which no recording sees."""
    random.seed(0)
    return trace(body), calls(14), lambda: random.getstate()


def an_int(x):
    return x * random.randint(0, 4) + random.randrange(3, 12, 4), random.randint(-7, 7)


def an_int_up_to_another(x):
    width = random.randint(1, 3)
    return x * random.randint(0, 9 - width) + random.randrange(width)


def a_window(x):
    x = x.repeat(6)
    at = random.randint(0, 8)
    x[at : at + 3] = 0
    return x


def a_window_of_any_width(x):
    x = x.repeat(6)
    width = random.randint(0, 4)
    at = random.randint(0, 12 - width)
    x[at : at + width] = 0.5
    return x


def a_number_far_from_another(x):
    first = random.randint(0, 1000)
    return x * random.randint(first, 2000) - random.randrange(first + 1), first


@pytest.mark.parametrize(
    "body", [an_int, an_int_up_to_another, a_window, a_window_of_any_width, a_number_far_from_another]
)
def test_drawn_below(body):
    check(lambda trace: drawn_below(trace, body), hits=10)


def chosen(x):
    return x * random.choice([1.5, 2.5])


def shuffled(x):
    order = [0, 1, 2]
    random.shuffle(order)
    return x.repeat(3)[order]


@pytest.mark.parametrize("body", [chosen, shuffled])
def test_chosen_below(body):
    check(lambda trace: drawn_below(trace, body), hits=5)


def raising_where_there_is_none(x):
    return x * random.randint(3, random.randint(2, 5))


def test_drawn_below_nothing():
    check(lambda trace: (trace(raising_where_there_is_none), calls(14)), hits=6)


class Counting(random.Random):
    """Bits that are drawn are counted."""

    drawn = 0

    def getrandbits(self, k):
        self.drawn += 1
        return super().getrandbits(k)


def mixes(x):
    weight = random.betavariate(0.4, 0.4)
    return x * weight + random.gauss(0.0, 2.0) * (1 - weight), random.gauss()


def drawn_in_loops(x):
    scale = random.gammavariate(0.7, 2.0) + random.normalvariate(mu=1.0)
    return x * scale + random.vonmisesvariate(0.5, 4.0) - random.lognormvariate(0.0, 0.1)


def of_what_was_drawn(x):
    first = random.random() + 0.5
    return x * random.gammavariate(first, first * 2) * random.betavariate(alpha=first, beta=2.0)


@pytest.mark.parametrize("body", [mixes, drawn_in_loops, of_what_was_drawn])
def test_what_python_code_draws_in_loops(body):
    """Each way through its loops would be a branch."""
    check(lambda trace: (trace(body), calls(30), lambda: random.getstate()), hits=27)


class Halved(random.Random):
    def gammavariate(self, alpha, beta):
        return super().gammavariate(alpha, beta) / 2


class Tenths(random.Random):
    def random(self):
        return round(super().random(), 1)


@pytest.mark.parametrize("kind", [random.Random, Halved, Tenths])
@pytest.mark.parametrize("later", [False, True])
def test_of_an_object_that_draws_by_itself(kind, later):
    """What such code calls of its object may be of the user's, also from some call on."""

    def make(trace):
        own = kind(3)

        def change():
            if later:
                own.gammavariate = lambda alpha, beta: alpha + beta

        steps = [*calls(8), change, *calls(8)]
        return trace(lambda x: x * own.betavariate(0.5, 0.7) + own.gauss()), steps, lambda: own.getstate()

    agree(make)


def test_a_class_that_draws_otherwise_from_some_call_on():
    def make(trace):
        class Own(random.Random):
            pass

        own = Own(3)

        def change():
            Own.random = lambda self: 0.25

        steps = [*calls(8), change, *calls(8)]
        return trace(lambda x: x * own.normalvariate() + own.gammavariate(2.0, 1.0)), steps

    agree(make)


class Unbitten(random.Random):
    """Python draws from random() then, by another way."""

    def random(self):
        return super().random() / 2


@pytest.mark.parametrize("kind", [random.Random, Counting, Unbitten])
def test_of_a_class_of_its_own(kind):
    def make(trace):
        own = kind(3)
        return trace(lambda x: x * own.randint(0, 5)), calls(12), lambda: (own.getstate(), vars(own))

    agree(make)


def test_bits_of_its_own():
    """An object may have another way to draw bits than its class."""

    def make(trace):
        own = random.Random(3)

        def fewer(n):
            return random.Random.getrandbits(own, n) // 2

        def change():
            own.getrandbits = fewer

        steps = [*calls(4), change, *calls(4)]
        return trace(lambda x: x * own.randint(0, 5)), steps, lambda: own.getstate()

    agree(make)


@cases(hits=30)
def an_index_that_is_drawn(trace):
    rows = torch.arange(3 * X().numel()).view(3, -1)
    return trace(lambda x: rows[random.randrange(3)] + x), calls(50)


@cases(hits=8)
def generators_of_its_own(trace):
    numpy, python = np.random.default_rng(3), random.Random(4)

    def step(x):
        draw = python.random
        return x * numpy.random() + numpy.normal() * draw() + python.uniform(1, 2)

    return trace(step), calls(9), lambda: (str(numpy.bit_generator.state), python.getstate())


@cases(hits=6)
def a_generator_that_is_replaced(trace):
    state = {"draw": random.Random(1)}
    step = trace(lambda x: x * state["draw"].random())

    def replace():
        state["draw"] = random.Random(2)

    return step, [*calls(4), replace, *calls(4)], lambda: state["draw"].getstate()


@cases(hits=4)
def another_function_under_its_name(trace, first=random.random):
    def put(function):
        return lambda: setattr(random, "random", function)

    changes = [put(lambda: 0.25), put(np.random.rand), put(first)]
    np.random.seed(0)
    steps = [one for change in changes for one in (*calls(2), change)]
    return trace(lambda x: x * random.random()), [*calls(2), *steps, *calls(2)]


@cases(hits=3)
def seeded_between(trace):
    return trace(lambda x: x * random.random()), around(lambda: random.seed(7), X())


class Halved(random.Random):
    def random(self):
        return super().random() / 2


@cases(eager="calls .random() of a Halved")
def a_generator_of_another_class(trace):
    draw = Halved(1)
    return trace(lambda x: x * draw.random()), calls(5), lambda: draw.getstate()


@cases(hits=3)
def seeded_inside(trace):
    def step(x):
        random.seed(5)
        return x * random.random()

    return trace(step), calls(4)


@cases(eager="calls .random() of a Random")
def called_by_a_partial(trace):
    draw = functools.partial(random.random)
    return trace(lambda x: x * draw()), calls(4)


@cases(eager="hands .random() to C code")
def called_by_map(trace):
    return trace(lambda x: x * next(map(random.Random.random, [random._inst]))), calls(4)


@cases(hits=4)
def an_array_of_numbers(trace):
    np.random.seed(0)
    return trace(lambda x: x * float(np.random.rand(3).sum())), calls(5)


@cases(eager="calls .getrandbits() of a Random")
def more_bits_than_an_int_has(trace):
    return trace(lambda x: x * (random.getrandbits(100) % 7)), calls(5)


@cases(hits=4)
def a_drawn_number_as_text(trace):
    return trace(lambda x: (x * 2, f"{random.random():.3f}")), calls(5)


@cases(eager="asked-value")
def a_drawn_number_as_text_that_is_looked_at(trace):
    return trace(lambda x: (x * 2, f"{random.random():.3f}".split("."))), calls(5)


@cases(hits=8, eager="raised ValueError")
def raised_behind_a_draw(trace):
    @trace
    def step(x):
        drawn = random.random()
        if drawn > 0.6:
            raise ValueError("unlucky")
        return x * drawn

    def careful(x):
        try:
            return step(x)
        except ValueError as error:
            return str(error), random.random()

    return careful, calls(20)


@cases(hits=8)
def nested_calls(trace):
    inner = trace(lambda x: x * random.random())
    return trace(lambda x: inner(x) + random.random()), calls(9)


# ---------------------------------------------------------------- clocks
@cases(hits=6)
def time_that_a_call_took(trace):
    meter = {"sum": 0.0, "n": 0}

    def step(x):
        begin = time.perf_counter()
        y = (x * 2).relu()
        meter["sum"] += time.perf_counter() - begin
        meter["n"] += 1
        meter["last"] = time.time()
        return y

    def now():
        return (
            meter["n"],
            type(meter["sum"]),
            meter["sum"] > 0,
            abs(meter.get("last", 0) - time.time()) < 60,
        )

    return trace(step), calls(8), now


@cases(hits=5)
def a_clock_that_goes_on(trace):
    seen = []
    step = trace(lambda x: (x * 2, [time.monotonic(), time.monotonic_ns(), time.time_ns()]))

    def forward(x):
        y, times = step(x)
        seen.append(times)
        return y

    def grows():
        pairs = [pair for old, new in itertools.pairwise(seen) for pair in zip(old, new, strict=True)]
        return all(before < after for before, after in pairs)

    return forward, calls(6), lambda: (grows(), [type(t) for t in seen[-1]] if seen else None)


@cases(hits=5)
def a_limit_that_is_not_reached(trace):
    def step(x):
        return x + 1 if time.monotonic() < 0 else x * 2

    return trace(step), calls(6)


@cases(hits=5)
def a_branch_behind_a_clock(trace):
    times = []

    def step(x):
        now = time.perf_counter()
        y = x * ((now * 10) % 1)
        return (now, y + 1) if x.sum() > 0 else (now, y - 1)

    fn = trace(step)

    def as_said(x):
        now, y = fn(x)
        times.append(now)
        time.sleep(0.02)  # so that the number in the result is another one
        return torch.equal(y, x * ((now * 10) % 1) + (1 if x.sum() > 0 else -1))

    steps = [call(X() * (1 if i % 3 else -1)) for i in range(8)]
    return as_said, steps, lambda: all(a < b for a, b in itertools.pairwise(times))


@cases(hits=4)
def a_clock_that_is_replaced(trace, first=time.time):
    def put(function):
        return lambda: setattr(time, "time", function)

    steps = [*calls(3), put(lambda: 2.5), *calls(3), put(first)]
    return trace(lambda x: x * (2 if time.time() == 2.5 else 3)), steps


@cases(eager="asked-value")
def a_time_as_text(trace):
    return trace(lambda x: (x * 2, len(str(time.time())) > 0)), calls(4)


# ---------------------------------------------------------------- steps
def training(trace, extra):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    state = {"r": 0.0, "t": 0.0}

    def step(x):
        begin = time.time()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        extra(model, state, loss)
        optimizer.step()
        state["t"] += time.time() - begin
        return loss.item()

    return trace(step), calls(14, X(2, 3)), lambda: (list(model.parameters()), state["r"], type(state["t"]))


def adds_it_up(model, state, loss):
    state["r"] += random.random()


def scales_gradients(model, state, loss):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad.mul_(random.uniform(0.5, 1.5))


def goes_two_ways(model, state, loss):
    if random.random() < 0.3:
        state["r"] += random.random()
    state["r"] += random.random()


def looks_at_the_loss(model, state, loss):
    state["r"] += random.random()
    if loss.item() > 0.5:
        state["r"] += random.random()


@pytest.mark.parametrize(
    ("extra", "hits"),
    [(adds_it_up, 10), (scales_gradients, 10), (goes_two_ways, 9), (looks_at_the_loss, 9)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_training(extra, hits):
    check(lambda trace: training(trace, extra), hits=hits)


@cases.parametrize
def test_agrees(make, expected):
    try:
        check(make, **expected)
    finally:
        random.random, time.time = random._inst.random, FIRST_TIME


FIRST_TIME = time.time


@pytest.mark.parametrize("other", [1.0, 2, None, "a"], ids=str)
def test_whether_it_is_another_object(other):
    """The recording ends at the first of both operands, and the second is none of its numbers any more."""

    def body(x):
        drawn, count = np.random.rand(), np.random.randint(3)
        return x, drawn is other, other is drawn, drawn is drawn + 1, count is other, count is count

    agree(drawing(body))
