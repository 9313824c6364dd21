"""Learning rates that torch's schedulers set inside the step, each at every call another one."""

from __future__ import annotations

import bisect
import collections
import warnings

import pytest
import torch
from torch.optim import lr_scheduler as of

from tests.soundness.runner import Cases, X, agree, call, check

cases = Cases()


def warmed_up(opt):
    return of.SequentialLR(opt, [of.LinearLR(opt, 0.1, total_iters=4), of.ExponentialLR(opt, 0.9)], [4])


def in_three_parts(opt):
    parts = [of.ConstantLR(opt, 0.5, 3), of.StepLR(opt, 2, 0.5), of.CosineAnnealingLR(opt, 10)]
    return of.SequentialLR(opt, parts, [3, 7])


# Each with the least number of 24 calls that hit.
SCHEDULERS = {
    "lambda": (lambda opt: of.LambdaLR(opt, lambda n: 0.9**n), 16),
    "multiplicative": (lambda opt: of.MultiplicativeLR(opt, lambda n: 0.9), 16),
    "step": (lambda opt: of.StepLR(opt, 3, 0.5), 16),
    "milestones": (lambda opt: of.MultiStepLR(opt, [4, 9], 0.5), 12),
    "constant": (lambda opt: of.ConstantLR(opt, 0.5, 5), 14),
    "linear": (lambda opt: of.LinearLR(opt, 0.1, total_iters=6), 14),
    "exponential": (lambda opt: of.ExponentialLR(opt, 0.9), 16),
    "polynomial": (lambda opt: of.PolynomialLR(opt, 12), 14),
    "cosine": (lambda opt: of.CosineAnnealingLR(opt, 30), 16),
    "restarts": (lambda opt: of.CosineAnnealingWarmRestarts(opt, 5), 12),
    "one_cycle": (lambda opt: of.OneCycleLR(opt, 0.1, total_steps=60), 12),
    "cyclic": (lambda opt: of.CyclicLR(opt, 0.01, 0.1, 4, cycle_momentum=False), 12),
    "warmed_up": (warmed_up, 12),
    "in_three_parts": (in_three_parts, 6),
    "chained": (
        lambda opt: of.ChainedScheduler([of.ConstantLR(opt, 0.5, 4), of.ExponentialLR(opt, 0.9)]),
        12,
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_scheduler(name, kind):
    make_scheduler, hits = SCHEDULERS[name]

    def make(trace):
        weight = torch.nn.Parameter(torch.ones(3))
        opt = kind([weight], lr=0.1)
        with warnings.catch_warnings(action="ignore"):
            schedule = make_scheduler(opt)

        def step(x):
            opt.zero_grad()
            (weight * x).square().sum().backward()
            opt.step()
            schedule.step()
            return schedule.get_last_lr()

        return trace(step), [call(X()) for _ in range(24)], lambda: [weight, opt.param_groups[0]["lr"]]

    check(make, hits=hits)


# ---------------------------------------------------------------- where a counter is among places
def searched(function, places, options=None):
    def make(trace):
        state = {"n": 0, "places": places}

        def step(x):
            state["n"] += 1
            return x * 2, function(state["places"], state["n"], **(options or {}))

        return trace(step), [call(X()) for _ in range(16)], lambda: state

    return make


@pytest.mark.parametrize("function", [bisect.bisect, bisect.bisect_left, bisect.bisect_right])
@pytest.mark.parametrize("places", [[4, 9], (4, 4, 12), [], [1, 2, 30], [4.5, 8.0]])
def test_places(function, places):
    check(searched(function, places), hits=9)


@pytest.mark.parametrize("options", [{"lo": 1}, {"hi": 1}, {"key": abs}])
def test_options_that_read_the_counter(options):
    check(searched(bisect.bisect_left, [4, 9], options), eager="sets ['n'] of a dict", recordings=8)


@cases(hits=4)
def places_that_change(trace):
    places, state = [3, 6], {"n": 0}

    def step(x):
        state["n"] += 1
        return x * 2, bisect.bisect(places, state["n"])

    def change():
        places[0] = 12
        places.sort()

    steps = [call(X()) for _ in range(18)]
    steps[9:9] = [change]
    return trace(step), steps, lambda: (places, state)


class Keys(dict):
    """Holds what is written in it elsewhere."""

    def __contains__(self, key):
        return key == 5


def counted(container, hits_of=16):
    def make(trace):
        state = {"n": 0}

        def step(x):
            state["n"] += 1
            found = "yes" if state["n"] in container else "no"
            return x * 2, found, state["n"] not in container

        return trace(step), [call(X()) for _ in range(hits_of)], lambda: (state, container)

    return make


FEW = {
    "list": [4, 9],
    "tuple": (9, 4, 4),
    "set": {4, 9},
    "frozenset": frozenset({2, 11}),
    "dict": {4: "a", 9: "b"},
    "counter": collections.Counter([4, 9, 9]),
    "defaultdict": collections.defaultdict(list, {4: []}),
    "nothing": [],
}


@pytest.mark.parametrize("name", FEW)
def test_a_counter_among_a_few(name):
    check(counted(FEW[name]), hits=9)


OTHERS = {
    "floats": [4.0, 9.0],
    "bools": [True, 4],
    "texts": ["4", 4],
    "ordered": collections.OrderedDict({9: 1, 4: 2}),
    "many": list(range(4, 40)),
    "range": range(4, 6),
    "keys": Keys({4: 1}),
    "values": {"a": 4}.values(),
    "nested": [[4], 4],
    "none": [None, 4],
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_counter_among_others(name):
    agree(counted(OTHERS[name]))


@pytest.mark.parametrize("kind", [list, set, dict.fromkeys, collections.Counter])
def test_a_few_that_change(kind):
    def make(trace):
        state, held = {"n": 0}, {"places": kind([3, 8])}

        def step(x):
            state["n"] += 1
            return x * 2, state["n"] in held["places"]

        def replaced():
            held["places"] = kind([12, 3])

        def cleared():
            held["places"].clear()

        def seventeen():
            held["places"] = kind(range(20, 37))

        steps = []
        for change in (replaced, cleared, seventeen, replaced):
            steps += [*(call(X()) for _ in range(5)), change]
        return trace(step), [*steps, call(X()), call(X())], lambda: (state, list(held["places"]))

    check(make, hits=6)


@cases(hits=6)
def a_key_of_a_dict_that_the_call_makes(trace):
    state = {"n": 0}

    def step(x):
        state["n"] += 1
        names = {2: "two", 5: "five"}
        return names[5] if 5 in names and state["n"] in names else "other", x + 1

    return trace(step), [call(X()) for _ in range(12)], lambda: state


@cases(hits=4)
def things_among_which_a_counter_is(trace):
    class Place:
        at = 3

        def __lt__(self, other):
            return self.at < other

        def __gt__(self, other):
            return self.at > other

    place, state = Place(), {"n": 0}

    def step(x):
        state["n"] += 1
        return x * 2, bisect.bisect([place], state["n"]), bisect.bisect_left([place], state["n"])

    def change():
        place.at = 12

    steps = [call(X()) for _ in range(18)]
    steps[9:9] = [change]
    return trace(step), steps, lambda: state


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)
