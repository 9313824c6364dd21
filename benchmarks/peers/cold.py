"""S2: the first call, in milliseconds, in a fresh process and in a warmed one; and what importing costs."""

from __future__ import annotations

import copy
import gc
import importlib
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from torch import nn

from peers.child import Answer, ask, environment, reason
from peers.contenders import (
    COMPILE,
    COMPILE_AOT,
    COMPILE_EAGER,
    EAGER,
    JIT_TRACE,
    LAZYTRACE,
    builder,
    compiles,
    forget,
    must_replay,
    one_thread,
    same,
)
from peers.effort import Effort
from peers.markdown import Notes, number, ranged, table
from peers.measuring import geometric_mean, seconds
from peers.models import SUBJECTS, build, inputs

TITLE = "S2: the first call"
CONTENDERS = (EAGER, LAZYTRACE, COMPILE_EAGER, COMPILE_AOT, JIT_TRACE)
MANY_OPERATORS = 100
"""A model of as many operators counts for the goal."""

MACHINERY = {LAZYTRACE: "lazytrace", COMPILE: "torch._dynamo"}
"""What a contender imports that `import torch` does not; its own imports on first use come on top."""

IMPORTS = """
from time import perf_counter
start = perf_counter()
import torch
between = perf_counter()
import lazytrace
print(between - start, perf_counter() - between)
"""
TORCH_ONLY = "import torch"


# ---------------------------------------------------------------- in a child
def import_machinery(contender: str) -> float:
    """Milliseconds to import what a contender needs beside torch."""
    start = time.perf_counter()
    for prefix, module in MACHINERY.items():
        if contender.startswith(prefix):
            importlib.import_module(module)
    return (time.perf_counter() - start) * 1e3


def first_call(name: str, model: nn.Module, args: tuple[Any, ...], expected: Any) -> tuple[Answer, Any]:
    """Milliseconds to build, of the first and of the second call of a model; and what was built."""
    start = time.perf_counter()
    call = builder(name)(model, args, {})
    built = time.perf_counter()
    result = call(*args)
    called = time.perf_counter()
    call(*args)
    again = time.perf_counter()
    if not same(result, expected):
        raise ValueError("another result than eager's")
    taken = {"build": built - start, "first": called - built, "second": again - called}
    return {key: value * 1e3 for key, value in taken.items()}, call


def measure(spec: dict[str, Any]) -> Answer:
    """First calls of fresh copies of a model: one in the fresh process, `copies` more once it is warm."""
    one_thread()
    name = spec["contender"]
    import_ms = import_machinery(name)
    model, args = build(spec["model"]).eval(), inputs(spec["model"], "small")
    copies: list[Answer] = []
    operators = 0
    with torch.no_grad():
        expected = model(*args)
        for _ in range(spec["copies"] + 1):
            fresh = copy.deepcopy(model)
            gc.collect()
            eager_ms = seconds(lambda: model(*args), 5) * 1e3
            taken, call = first_call(name, fresh, args, expected)
            copies.append(taken | {"eager": eager_ms})
            if name == LAZYTRACE:
                must_replay(name, call)
                operators = call.stats().operators[-1]
            del call
            forget(name)
    return {"import": import_ms, "fresh": copies[0], "warm": copies[1:], "operators": operators}


# ---------------------------------------------------------------- in the parent
def import_times(processes: int) -> Answer:
    """Milliseconds, by turns in fresh processes: what `import lazytrace` adds, and whole processes."""
    times: dict[str, list[float]] = {"torch": [], "lazytrace": [], "process": [], "process, torch only": []}

    def whole(code: str) -> tuple[float, str]:
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
        )
        return (time.perf_counter() - start) * 1e3, done.stdout

    whole(IMPORTS)
    for _ in range(processes):
        both, printed = whole(IMPORTS)
        times["process"].append(both)
        times["process, torch only"].append(whole(TORCH_ONLY)[0])
        for key, text in zip(("torch", "lazytrace"), printed.split(), strict=True):
            times[key].append(float(text) * 1e3)
    return times


def run(effort: Effort) -> Answer:
    """Ask one child for each model and contender, and but for torch.compile, which takes long, another."""
    models: dict[str, dict[str, list[Answer]]] = {}
    for process in range(effort.pick(2, 1)):
        for model in filter(effort.wants_case, SUBJECTS):
            for name in filter(effort.wants, CONTENDERS):
                if process > 0 and compiles(name):
                    continue
                copies = effort.pick(3, 1) if compiles(name) else effort.pick(9, 3)
                found = ask("cold.measure", {"model": model, "contender": name, "copies": copies})
                models.setdefault(model, {}).setdefault(name, []).append(found)
    try:
        imports = import_times(effort.pick(9, 2))
    except (OSError, subprocess.CalledProcessError) as error:
        imports = {"error": reason(error)}
    return {"models": models, "imports": imports}


def good(answers: list[Answer]) -> list[Answer]:
    """The answers that have numbers."""
    return [answer for answer in answers if "error" not in answer]


def recording_ratios(data: Answer) -> dict[str, tuple[int, float]]:
    """Of each model its operators, and the first call in a warmed process over eager calls just before it."""
    found = {}
    for model, by_name in data["models"].items():
        answers = good(by_name.get(LAZYTRACE, []))
        if answers:
            all_copies = [copied for answer in answers for copied in answer["warm"]]
            ratio = statistics.median(copied["first"] / copied["eager"] for copied in all_copies)
            found[model] = (answers[0]["operators"], ratio)
    return found


def ratios_to_first(data: Answer) -> dict[str, float]:
    """Of each model the first call in a warmed process over eager's own first call of a fresh copy."""
    found = {}
    for model, by_name in data["models"].items():
        ours, eagers = (
            [copied["first"] for answer in good(by_name.get(name, [])) for copied in answer["warm"]]
            for name in (LAZYTRACE, EAGER)
        )
        if ours and eagers:
            found[model] = statistics.median(ours) / statistics.median(eagers)
    return found


def whole_first(taken: Answer) -> float:
    """Milliseconds of building and of the first call."""
    return float(taken["build"] + taken["first"])


def first_call_table(data: Answer, warm: bool) -> list[str]:
    """Building and the first call of each model, in milliseconds."""
    notes, rows = Notes(), []
    for model, by_name in data["models"].items():
        row = [model]
        for name in CONTENDERS:
            answers = by_name.get(name, [])
            copies = [c for a in good(answers) for c in (a["warm"] if warm else [a["fresh"]])]
            why = next((a["error"] for a in answers if "error" in a), "not measured")
            row.append(
                ranged([whole_first(c) for c in copies], 1) if copies else notes.refer(f"{name}: {why}")
            )
        rows.append(row)
    return [*table(["model", *CONTENDERS], rows), *notes.lines()]


def recording_table(data: Answer) -> list[str]:
    """lazytrace's recording call beside eager calls."""
    rows, first_ratios = [], ratios_to_first(data)
    for model, (operators, ratio) in recording_ratios(data).items():
        copies = [c for a in good(data["models"][model][LAZYTRACE]) for c in a["warm"]]
        columns = [[c[key] for c in copies] for key in ("eager", "build", "first", "second")]
        like = first_ratios.get(model)
        cells = [ranged(column) for column in columns]
        rows.append([model, operators, *cells, number(ratio), number(like) if like else "none"])
    header = [
        "model",
        "operators",
        "eager",
        "`traced(model)`",
        "first call",
        "second call",
        "first / eager",
        "first / eager's first",
    ]
    return table(header, rows)


def import_table(data: Answer) -> list[str]:
    """What imports cost before a contender can be used."""
    rows = []
    for name in CONTENDERS[1:]:
        values = [a["import"] for by in data["models"].values() for a in good(by.get(name, []))]
        if values:
            rows.append([name, ranged(values, 0)])
    return table(["contender", "import after `import torch`"], rows)


def tables(data: Answer) -> list[str]:
    """Milliseconds of first calls and imports."""
    imports = data["imports"]
    lines = [
        "",
        "Milliseconds, `no_grad`, median [smallest, largest]. Building and the first call of a fresh copy of "
        "the model, in a process that has called nothing before (imports are not counted):",
        *first_call_table(data, warm=False),
        "",
        "The same in a warmed process, which has done so with another copy:",
        *first_call_table(data, warm=True),
        "",
        "lazytrace in the warmed process: the first call records and proves. `eager` are calls just before, "
        "and the first ratio is the median of the ratios to them; the second is to eager's own first call of "
        "a fresh copy:",
        *recording_table(data),
    ]
    ratios = [ratio for _, ratio in recording_ratios(data).values()]
    if ratios:
        lines += ["", f"Geometric mean {number(geometric_mean(ratios))}, largest {number(max(ratios))}."]
    lines += ["", "Milliseconds of imports:", *import_table(data)]
    if "error" not in imports:
        lines += [
            "",
            f"In fresh processes, by turns: `import torch` {ranged(imports['torch'], 0)} ms, then "
            f"`import lazytrace` {ranged(imports['lazytrace'], 0)} ms; the whole processes take "
            f"{ranged(imports['process, torch only'], 0)} ms with torch only and "
            f"{ranged(imports['process'], 0)} ms with both.",
        ]
    return lines
