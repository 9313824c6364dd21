"""Attacks made by rule: a sample of them agrees, and no row of their tables is dead.

`python -m tests.soundness.attacks --count 100000 --seed 1 --jobs 2` runs many more, with `--kind training` of
training steps, with `--kind entries` of programs that draw from pools, with `--kind meetings` of several
features in one function, with `--kind handed` of what calls make and hand to hooks and opaque functions, with
`--kind orders` of the cases of the other files in other orders.
"""

from __future__ import annotations

import random
import warnings

import pytest

from tests.soundness.attacks.changes import BOUND, Change
from tests.soundness.attacks.consumers import CONSUMERS
from tests.soundness.attacks.drawing import entries
from tests.soundness.attacks.handed import handed
from tests.soundness.attacks.meetings import meetings
from tests.soundness.attacks.orders import orders
from tests.soundness.attacks.programs import Attack, Program, attack, limited, program, trial
from tests.soundness.attacks.reaching import WAYS
from tests.soundness.attacks.running import KINDS, against, compare, run_many, run_one
from tests.soundness.attacks.sources import (
    CALLABLES,
    CONTAINERS,
    ELEMENTS,
    ENDLESS,
    SINGLES,
    SPECIALS,
    Source,
    combined,
)
from tests.soundness.attacks.training import training
from tests.soundness.runner import drive

SAMPLE = 600
FEW = {"training": 20, "entries": 24, "meetings": 4, "handed": 24, "orders": 24}  # each of 19 calls and more
# A step with gradients, between whose calls little changes; one that keeps the tensor that it draws.
HONEST = {"training": 98, "entries": 93}
ENOUGH = 8  # hits of a step that has had time to become flat
LIST = Source("list", "s = [1, 2]", "[4, 5, 6]", ())
BASIC = [
    container for container in CONTAINERS if container.name in ("one", "list", "dict", "SimpleNamespace")
]


def fits(source, consumer):
    try:
        with limited(2), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial(source, consumer)
    except BaseException:
        return False
    return True


def held(container):
    """The container with the first element that it accepts."""
    return next(source for e in ELEMENTS if fits(source := combined(container, e), "S is not None"))


ALL = [
    *SINGLES,
    *CALLABLES,
    *SPECIALS,
    *map(held, CONTAINERS),
    *(combined(container, element) for container in BASIC for element in ELEMENTS),
]


def test_a_sample_agrees(tmp_path):
    results = list(run_many(0, range(SAMPLE), 2, tmp_path))
    wrong = [result for result in results if result.verdict in ("wrong", "crash")]
    shown = "\n".join(f"{result.case[-1]}# case {result.number}: {result.text}\n" for result in wrong[:3])
    assert not wrong, f"{len(wrong)} of {SAMPLE} attacks succeed, among them\n{shown}"
    assert len(results) == SAMPLE
    assert sum(result.verdict == "hit" for result in results) > SAMPLE / 4
    assert sum(result.verdict == "hit" and result.telling for result in results) > SAMPLE / 10


@pytest.mark.parametrize("kind", FEW)
def test_a_small_sample_agrees(kind, tmp_path):
    results = list(run_many(0, range(FEW[kind]), 2, tmp_path, size=FEW[kind] // 2, kind=kind))
    wrong = [result for result in results if result.verdict in ("wrong", "crash")]
    shown = "\n".join(f"{result.case[-1]}# case {result.number}: {result.text}\n" for result in wrong[:3])
    assert not wrong, f"{len(wrong)} of {FEW[kind]} attacks succeed, among them\n{shown}"
    assert len(results) == FEW[kind]
    assert sum(result.verdict == "hit" and result.hits > ENOUGH for result in results) > FEW[kind] / 5


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_every_way_leads_to_the_source_and_is_replaced(way):
    source = Source("set", "class Sub(set): pass\ns = Sub([1, 2])", "Sub([4, 5, 6])", ())
    text = program(source, way, "len(S)", BOUND, "x * v", True)
    result = compare(0, Attack("set", way.name, "len(S)", "rebind", text), lambda case: None)
    assert result.telling, text
    assert result.verdict in ("hit", "eager"), result


@pytest.mark.parametrize("source", ALL, ids=lambda source: source.name)
def test_every_source_can_be_made(source):
    trial(source, "S is not None")
    trial(Source(source.name, f"{source.setup}\ns = {source.other}", "", ()), "S is not None")


def test_every_consumer_fits_a_source():
    order = [source for source in ALL if not source.name.startswith(ENDLESS)]
    dead = [consumer for consumer in CONSUMERS if not any(fits(source, consumer) for source in order)]
    assert not dead


@pytest.mark.parametrize("number", range(3))
def test_a_case_is_what_its_seed_makes_it(number):
    assert attack(1, number) == attack(1, number) != attack(2, number)
    assert run_one(1, number) == run_one(1, number)
    for make in (training, entries, meetings, handed, orders):
        assert make(1, number) == make(1, number) != make(2, number)


# What only the traced step does wrong: of which kind, and the line of the program that it stands for.
LIES = {
    "an update that is lost": (
        "training",
        "f = trace(step)",
        "f = trace(step)\n    if trace.enabled: f = lambda x, y: None",
    ),
    "memory that two tensors of state share": (
        "training",
        "f = trace(step)",
        "g = trace(step)\n"
        "    def f(x, y):\n"
        "        out, mine = g(x, y), P[1].data\n"
        "        S.mine = mine if trace.enabled else mine.clone()\n"
        "        return out",
    ),
    "an error of a change": (
        "training",
        "def change():",
        "def change():\n        if trace.enabled: raise ValueError",
    ),
    "an error of a change that another one follows": (
        "training",
        "def change():",
        "def change():\n        if trace.enabled: C.errors.append(('ValueError', ''))",
    ),
    "a gradient until the next call": (
        "training",
        "def change():",
        "def change():\n        if trace.enabled: P[0].grad = None",
    ),
    "an entry too many": (
        "entries",
        "def change():",
        "def change():\n        if trace.enabled: S.pool.append(S.pool[0])",
    ),
    "an equal entry in place of the one that was drawn": (
        "entries",
        "def change():",
        "def change():\n        if trace.enabled: S.pool[0] = S.pool[0].clone()",
    ),
    "one more number drawn": (
        "entries",
        "def change():",
        "def change():\n        if trace.enabled: random.random()",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_step_that_is_wrong_is_found(lie):
    kind, old, new = LIES[lie]
    text = KINDS[kind](0, HONEST[kind]).text
    assert text.count(old) == 1
    honest, lying = Program(text), Program(text.replace(old, new))
    found, tracer = against(honest, drive(honest, False)[0])
    assert not found
    assert tracer.count("hits") > ENOUGH
    found, _ = against(lying, drive(lying, False)[0])
    assert found


REORDERED = """
from tests.soundness.attacks.orders import reordered
make = reordered("test_numbers_by_numpy", "mean_of_state", [
    *[("step", 0, 0)] * 12, ("put", "another", "f0:history[1]"), ("varied", 0, 1), ("back", "f0:history[1]"),
    ("in", "thread", 0, 0), ("result", "grown"), ("put", "of another type", "f0:history"), ("step", 1, 0),
])
"""
WITHOUT = """
honest = make
def make(trace):
    f, steps, watch = honest(trace)
    if trace.enabled: steps[{number}] = lambda: None
    return f, steps, watch
"""


def test_another_order_that_is_wrong_is_found():
    honest = Program(REORDERED)
    plain, _ = drive(honest, False)
    found, tracer = against(honest, plain)
    assert not found
    assert tracer.count("hits") > ENOUGH
    assert not any("Error" in repr(seen["state"]) for name, seen in plain if seen and "step" in name)
    for number in (3, 12, 13, 14, 15, 16, 18):
        lying = Program(REORDERED + WITHOUT.format(number=number))
        assert against(lying, plain)[0], number


def test_a_wrong_result_is_found():
    change = Change("append", "s.append(3)", "s.pop()")
    text = program(LIST, WAYS[0], "len(S)", change, "x * v", True)
    lies = text.replace("    f = trace(f)", "    f = trace(f)\n    if trace.enabled: f = lambda x: x * 2")
    case = Attack("list", "global", "len(S)", "append", lies)
    assert compare(0, case, lambda case: None).verdict == "wrong"


def test_random_differences_do_not_count():
    text = program(LIST, WAYS[0], "time.perf_counter()", BOUND, "x * v", True)
    assert compare(0, Attack("list", "global", "", "", text), lambda case: None).verdict != "wrong"


def test_the_seeds_differ():
    assert random.Random("0:1").random() != random.Random("1:1").random()
