"""S4: calls whose arguments or state change: how often it is recorded anew, and what that takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from peers.cases import LENGTHS, function
from peers.child import Answer, ask, ask_jax, reason
from peers.contenders import (
    COMPILE_AOT,
    COMPILE_EAGER,
    EAGER,
    JIT_TRACE,
    LAZYTRACE,
    counted,
    forget,
    fresh,
    one_thread,
    same,
)
from peers.effort import Effort
from peers.markdown import Notes, number, table
from peers.models import WORDS, MiniGPT, norm_mlp

TITLE = "S4: retraces"
STATIC = f"{COMPILE_EAGER}, dynamic=False"
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    EAGER: (EAGER, {}),
    LAZYTRACE: (LAZYTRACE, {}),
    COMPILE_EAGER: (COMPILE_EAGER, {}),
    STATIC: (COMPILE_EAGER, {"dynamic": False}),
    COMPILE_AOT: (COMPILE_AOT, {}),
    JIT_TRACE: (JIT_TRACE, {}),
}
JAX = "jax.jit"


@dataclass(frozen=True)
class Scenario:
    """Something to call, and the arguments of each call; `before` may change it before a call."""

    made: Any
    calls: list[tuple[Any, ...]]
    before: Callable[[Any, int], object] = lambda made, number: None


# ---------------------------------------------------------------- in a child
def scenarios() -> dict[str, Scenario]:
    """All scenarios, with the same numbers each time."""
    torch.manual_seed(0)
    x = torch.randn(16, 64)
    types = (torch.float32, torch.bfloat16, torch.float64)
    weights = {dtype: torch.randn(64, 64).to(dtype) for dtype in types}
    lengths = [(torch.randint(0, WORDS, (1, length)),) for length in LENGTHS]
    scaled = function("x, s", "x.sin() * s + s")
    return {
        "50 sequence lengths": Scenario(MiniGPT(), lengths),
        "3 dtypes, 5 times": Scenario(
            fresh(function("x, w", "(x @ w).tanh() + x")),
            [(x.to(d), weights[d]) for _ in range(5) for d in types],
        ),
        "train and eval by turns": Scenario(
            norm_mlp(), [(x,)] * 20, lambda model, number: model.train(number % 2 == 0)
        ),
        "12 shapes, twice": Scenario(
            fresh(function("x", "x.sin() * 2")), [(x[:, : i + 2],) for i in range(12)] * 2
        ),
        "20 floats": Scenario(fresh(scaled), [(x, 0.1 * i + 0.05) for i in range(20)]),
        "20 ints": Scenario(fresh(scaled), [(x, i) for i in range(20)]),
        "lists of 1 to 20": Scenario(fresh(function("xs", "sum(xs)")), [([x] * i,) for i in range(1, 21)]),
    }


def measure_one(spec: dict[str, Any], name: str) -> Answer:
    """Recordings, replays, wrong results, errors, and the milliseconds of each call of a scenario."""
    scenario, reference = scenarios()[name], scenarios()[name]
    build, counts = counted(spec["contender"], **spec["options"])
    call, wrong, errors = None, 0, []
    taken: list[float] = []
    for number_of_call, args in enumerate(scenario.calls):
        for one in (scenario, reference):
            one.before(one.made, number_of_call)
        start, result = time.perf_counter(), None
        try:
            call = build(scenario.made, args, {}) if call is None else call
            result = call(*args)
        except Exception as error:
            errors.append(reason(error))
        taken.append((time.perf_counter() - start) * 1e3)
        expected = reference.made(*args)
        wrong += result is not None and not same(result, expected)
    found = counts()
    return {
        "calls": len(taken),
        "recordings": found.recordings,
        "replays": found.replays,
        "wrong": wrong,
        "errors": len(errors),
        "error": next(iter(errors), None),
        "ms": taken,
    }


def measure(spec: dict[str, Any]) -> Answer:
    """All scenarios of one contender, by name."""
    one_thread()
    found = {}
    with torch.no_grad():
        for name in scenarios():
            found[name] = measure_one(spec, name)
            forget(spec["contender"])
    return found


# ---------------------------------------------------------------- in the parent
def run(effort: Effort) -> Answer:
    """Ask one child for each contender."""
    contenders: dict[str, Answer] = {}
    for label, (name, options) in CONTENDERS.items():
        if effort.wants(label):
            contenders[label] = ask("retraces.measure", {"contender": name, "options": options})
    if effort.wants(JAX):
        contenders[JAX] = ask_jax("retraces", {"lengths": LENGTHS})
    return {"contenders": contenders}


def cell(scenario: Answer) -> str:
    """Recordings / replays / milliseconds of all calls, and what went wrong."""
    parts = f"{scenario['recordings']} / {scenario['replays']} / {number(sum(scenario['ms']), 1)}"
    wrong = f", {scenario['wrong']} wrong" if scenario["wrong"] else ""
    errors = f", {scenario['errors']} errors" if scenario["errors"] else ""
    return parts + wrong + errors


def tables(data: Answer) -> list[str]:
    """A row for each scenario, a column for each contender."""
    notes, contenders = Notes(), data["contenders"]
    names = next((list(answer) for answer in contenders.values() if "error" not in answer), [])
    rows = []
    for name in names:
        calls = next(answer[name]["calls"] for answer in contenders.values() if name in answer)
        row = [name, str(calls)]
        for label, answer in contenders.items():
            why = f"{label}: {answer.get('error', 'not measured')}"
            row.append(cell(answer[name]) if name in answer else notes.refer(why))
        rows.append(row)
    text = (
        "Recordings / calls that ran a recording / milliseconds of all calls; wrong results and errors where "
        "there are some. With lazytrace the call that makes a recording is not among those that run one."
    )
    return ["", text, *table(["scenario", "calls", *contenders], rows), *notes.lines()]
