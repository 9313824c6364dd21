"""Numbers in state that code reads and sets in one line: they are followed from the first recording on.

What such a line reads may be anything all the same: no number, a number of another kind at the next call, or
one that other code has read before.
"""

from __future__ import annotations

import copy
import math
import types

import torch

from lazytrace import traced
from tests.soundness.runner import Cases, agree, call, check

cases = Cases()
total = 0


def ones():
    return torch.ones(2)


def calls(n):
    return [call(ones()) for _ in range(n)]


def between(changes):
    return [step for change in changes for step in (change, call(ones()))]


class Meter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.value = self.average = self.sum = self.count = 0

    def update(self, value, n=1):
        self.value = value
        self.sum += value * n
        self.count += n
        self.average = self.sum / self.count


def keeping(body, **attributes):
    """A case with an object whose attributes are compared after each call."""

    def make(trace):
        kept = types.SimpleNamespace(**copy.deepcopy(attributes))
        return trace(lambda x: body(kept, x)), calls(10), lambda: vars(kept)

    return make


# ---------------------------------------------------------------- where they are
def counted(kept, x):
    kept.n += 1
    return x * kept.n


def counted_in_full(kept, x):
    kept.n = (kept.n + 12) % 48
    return x * kept.n


def counted_after_it_was_used(kept, x):
    x = x * kept.n
    kept.n += 1
    return x


def smallest(kept, x):
    kept.best = min(kept.best, x.sum().item() - kept.n)
    kept.n += 1
    return kept.best


def of_a_dict(kept, x):
    kept.d["n"] += 2
    kept.d["sum"] += x.sum().item()
    return x / kept.d["n"], kept.d["sum"]


def of_a_list(kept, x):
    kept.l[0] += 1
    kept.l[-1] *= 0.5
    return x * kept.l[0] * kept.l[1]


def metered(kept, x):
    kept.meter.update((x * kept.meter.count).sum().item(), len(x))
    return f"{kept.meter.value:.3f} ({kept.meter.average:.3f})"


def of_a_dict_that_is_asked_first(kept, x):
    if "n" not in kept.d:
        kept.d["n"] = 0
    kept.d["n"] += 1
    return x * (1 - 0.9 ** kept.d["n"])


WHERE = {
    counted: {"n": 0},
    counted_in_full: {"n": 0},
    counted_after_it_was_used: {"n": 1},
    smallest: {"n": 0, "best": math.inf},
    of_a_dict: {"d": {"n": 0, "sum": 0.0}},
    of_a_dict_that_is_asked_first: {"d": {"n": 0}},
    of_a_list: {"l": [1, 8.0]},
}


def test_the_first_recording_is_the_last():
    for body, attributes in WHERE.items():
        tracer = agree(keeping(body, **attributes))
        counts = [tracer.count("hits"), tracer.count("recordings"), len(tracer.reasons())]
        assert counts == [9, 1, 0], f"{body.__name__}: {tracer.account()}"


# Other code has read the count before.
@cases(hits=8)
def a_meter(trace):
    kept = types.SimpleNamespace(meter=Meter())
    return trace(lambda x: metered(kept, x)), calls(10), lambda: vars(kept.meter)


@cases(hits=9)
def a_global(trace):
    global total
    total = 0

    def run(x):
        global total
        total += 1
        return x * total

    return trace(run), calls(10), lambda: total


@cases(hits=9)
def a_variable_of_an_enclosing_function(trace):
    n = 0

    def run(x):
        nonlocal n
        n += 1
        return x * n

    return trace(run), calls(10), lambda: n


# ---------------------------------------------------------------- what they are
VALUES = [
    1,
    2.5,
    -0.0,
    True,
    7,
    2**62,
    2**70,
    math.nan,
    math.inf,
    3,
    4,
    5.5,
    6.5,
    None,
    "a",
    8,
    9,
    1 + 2j,
    10,
]


@cases(hits=10)
def another_kind_at_each_call(trace):
    kept = types.SimpleNamespace(n=0)

    def run(x):
        try:
            kept.n += 1
        except TypeError as error:
            return str(error)
        return x * kept.n, type(kept.n).__name__

    changes = [lambda value=value: setattr(kept, "n", value) for value in VALUES * 3]
    return trace(run), between(changes), lambda: kept.n


@cases(hits=2)
def numbers_that_grow_too_large(trace):
    kept = types.SimpleNamespace(n=1, f=1e300)

    def run(x):
        kept.n *= 2**20
        kept.f *= 1e10
        return x, kept.n, kept.f

    return trace(run), calls(10), lambda: (kept.n, kept.f)


@cases(hits=8)
def tensors_and_lists(trace):
    kept = types.SimpleNamespace(t=torch.zeros(2), w=(1, 2))

    def run(x):
        kept.t = kept.t + x
        kept.w += ()
        return kept.t * sum(kept.w)

    return trace(run), calls(10), lambda: (kept.t, kept.w)


@cases(hits=8)
def gone_and_back(trace):
    kept = types.SimpleNamespace(n=0)

    def run(x):
        try:
            kept.n += 1
        except AttributeError:
            kept.n = 5
        return x * kept.n

    changes = [lambda: None, lambda: None, lambda: delattr(kept, "n"), *[lambda: None] * 3]
    return trace(run), between(changes * 2), lambda: vars(kept)


# ---------------------------------------------------------------- other ways to them
@cases(hits=8)
def two_names_of_one_object(trace):
    one = types.SimpleNamespace(n=0)
    two = types.SimpleNamespace(inner=one)

    def run(x):
        one.n += 1
        two.inner.n += 10
        return x * one.n

    return trace(run), calls(10), lambda: one.n


@cases(hits=14)
def two_objects_and_then_one(trace):
    both = [types.SimpleNamespace(n=0), types.SimpleNamespace(n=100)]
    at = types.SimpleNamespace(a=both[0], b=both[1])

    def run(x):
        at.a.n += 1
        at.b.n += 2
        return x * at.a.n - at.b.n

    def swap():
        at.a, at.b = at.b, at.a

    def join():
        at.a = at.b

    steps = [*calls(4), swap, *calls(5), join, *calls(5), swap, *calls(4)]
    return trace(run), steps, lambda: [one.n for one in both]


class Guarded:
    def __init__(self):
        self._n = 0

    @property
    def n(self):
        return self._n

    @n.setter
    def n(self, value):
        self._n = min(value, 6)


@cases(hits=6)
def a_property(trace):
    kept = Guarded()

    def run(x):
        kept.n += 1
        return x * kept.n

    return trace(run), calls(10), lambda: kept._n


class Everywhere:
    n = 3


@cases(hits=9)
def an_attribute_that_the_class_has_at_first(trace):
    kept = Everywhere()

    def run(x):
        kept.n += 1
        return x * kept.n

    return trace(run), calls(12), lambda: vars(kept)


@cases(hits=7)
def a_counter_that_decides(trace):
    kept = types.SimpleNamespace(n=0, seen=0.0)

    def run(x):
        kept.n += 1
        if kept.n % 4 == 0:
            kept.seen += x.sum().item()
            kept.n = 0
        return x * kept.n

    return trace(run), calls(16), lambda: vars(kept)


@cases(hits=14)
def a_counter_behind_a_branch(trace):
    kept = types.SimpleNamespace(n=0, m=0.0)

    def run(x):
        x = x * 2
        if x.sum() > 0:
            x = x.flip(0).exp().sin()
            kept.m = kept.m * 0.5 + 1
        kept.n += 1
        return x * kept.n + kept.m

    x = ones()
    return trace(run), [call(x if i % 3 else -x) for i in range(1, 17)], lambda: vars(kept)


@cases(hits=9)
def an_entry_that_comes_goes_and_changes_its_kind(trace):
    kept = {"other": 1}

    def run(x):
        found = "n" in kept, "no" in kept
        if not found[0]:
            kept["n"] = 0
        if "n" in kept:
            kept["n"] += 1
        return x * kept["n"], found

    changes = [
        *[lambda: None] * 4,
        lambda: kept.pop("n"),
        *[lambda: None] * 3,
        lambda: kept.update(n=0.5),
        *[lambda: None] * 3,
        lambda: kept.update(n=True),
        lambda: kept.update(n=2**70),
        lambda: kept.update(n=7, no=1),
        lambda: None,
        lambda: kept.update(n=torch.ones(())),
        lambda: kept.pop("no"),
    ]
    return trace(run), between(changes), lambda: dict(kept)


@cases(hits=8)
def an_entry_that_is_asked_for_alone(trace):
    """Its value has no part in it, unless it is looked at, too."""
    kept = {"n": 0}

    def run(x):
        return x + 1 if "n" in kept else x - 1

    def run_and_look(x):
        return (x + 1 if "n" in kept else x - 1), kept.get("n") == 4

    both = trace(run), trace(run_and_look)

    def fn(x):
        return [one(x) for one in both]

    return fn, between([lambda n=n: kept.update(n=n) for n in (1, 2, 3, 4, 5, 4, 0.5, -1)])


@cases(hits=10)
def changed_from_outside(trace):
    kept = types.SimpleNamespace(n=0)

    def run(x):
        kept.n += 1
        return x * kept.n

    changes = [
        lambda value=value: setattr(kept, "n", value) for value in (5, 5, -3, 0, 0, 8, 9, 9, 2, 1, 0, 0)
    ]
    return trace(run), between(changes), lambda: kept.n


@cases(hits=6)
def an_exception_behind_the_line(trace):
    kept = types.SimpleNamespace(n=0)

    def run(x):
        kept.n += 1
        if kept.n == 4:
            raise ValueError(f"at {kept.n}")
        return x * kept.n

    return trace(run), calls(10), lambda: kept.n


@cases(hits=5)
def a_counter_that_takes_many_ways(trace):
    kept = types.SimpleNamespace(n=0)

    def run(x):
        kept.n = (kept.n + 1) % 3
        for _ in range(kept.n):
            x = x * 2
        return x

    return trace(run), calls(30), lambda: kept.n


@cases(hits=8)
def a_step_of_training(trace):
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    meter = Meter()

    def run(x):
        optimizer.zero_grad()
        loss = net(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        meter.update(loss.item(), len(x))
        return meter.average

    return trace(run), calls(10), lambda: (vars(meter), net.state_dict())


class Taken:
    def __init__(self, of):
        self.kind = of.kind


@cases(hits=5, recordings=2)
def looked_at_where_no_replay_can_leave(trace):
    """What the state held at the start is guarded then."""
    held = types.SimpleNamespace(kind=0)

    def step(x):
        taken = Taken(held)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            drawn = torch.rand(2)
            if taken.kind == 0:
                drawn = drawn + 1
        return drawn * x

    def change():
        held.kind = 1

    return trace(step), [*calls(4), change, *calls(3)]


@cases(hits=0, eager="caught-after-change")
def counted_where_no_replay_can_leave(trace):
    """Each call would find another number."""
    held = types.SimpleNamespace(count=0)

    def step(x):
        held.count = held.count + 1
        torch.clear_autocast_cache()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            drawn = torch.rand(2)
            if held.count > 2:
                drawn = drawn + 1
        return drawn * x

    return trace(step), calls(5), lambda: held.count


@cases.parametrize
def test_renewed(make, expected):
    check(make, **expected)


def test_two_lines_are_followed_from_the_second_on():
    def body(kept, x):
        n = kept.n
        kept.n = n + 1
        return x * n

    tracer = agree(keeping(body, n=0))
    assert (tracer.count("hits"), len(tracer.reasons())) == (8, 1), tracer.account()


def test_what_is_not_followed_stays_so():
    kept = types.SimpleNamespace(n=0)

    @traced(dynamic=False)
    def run(x):
        kept.n += 1
        return x * kept.n

    for n in range(1, 5):
        assert torch.equal(run(ones()), ones() * n)
    assert run.stats().hits == 0
