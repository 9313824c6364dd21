"""S6: memory per cached entry, and what of it is freed."""

from __future__ import annotations

import gc
import statistics
import tracemalloc
import weakref
from typing import Any

import torch
from torch import nn

from peers.cases import operators_source
from peers.child import Answer, ask, ask_jax
from peers.contenders import (
    COMPILE_AOT,
    COMPILE_EAGER,
    EAGER,
    JIT_TRACE,
    LAZYTRACE,
    Build,
    builder,
    compiles,
    forget,
    fresh,
    keep_all,
    one_thread,
)
from peers.effort import Effort
from peers.markdown import Notes, number, ranged, table
from peers.measuring import resident_kb

TITLE = "S6: memory"
CONTENDERS = (EAGER, LAZYTRACE, COMPILE_EAGER, COMPILE_AOT, JIT_TRACE)
JAX = "jax.jit"
LARGE = 35
OPERATORS = (10, LARGE)
WARMUP_CYCLES = 5


# ---------------------------------------------------------------- in a child
def layers(width: int, count: int) -> nn.Module:
    """Linear layers."""
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))


def filled(name: str, build: Build, function: Any, entries: int) -> Any:
    """What holds `entries` cached signatures of a function: one callable, or one for each with jit.trace."""
    held: list[Any] = []
    for k in range(entries):
        args = (torch.randn(k + 2),)
        if name == JIT_TRACE or not held:
            held.append(build(function, args, {}))
        held[-1](*args)
    return held


def measure_entries(name: str, build: Build, operators: int, entries: int) -> Answer:
    """KB and objects of the garbage collector per entry: added, freed with the function, freed by a reset."""
    source = operators_source(operators)
    filled(name, build, fresh(source), 4)  # what is loaded on first use is not counted
    forget(name)
    function = fresh(source)
    alive, before, objects = weakref.ref(function), resident_kb(), len(gc.get_objects())
    held = filled(name, build, function, entries)
    full, objects_full = resident_kb(), len(gc.get_objects())
    del function, held
    dropped, objects_dropped = resident_kb(), len(gc.get_objects())
    gone = alive() is None
    forget(name)
    reset = resident_kb()
    function = fresh(source)
    held = filled(name, build, function, entries)
    again = resident_kb()
    del function, held
    forget(name)
    return {
        "kb": (full - before) / entries,
        "freed_kb": (full - dropped) / entries,
        "reset_freed_kb": (full - reset) / entries,
        "refill_kb": (again - reset) / entries,
        "objects": (objects_full - objects) / entries,
        "objects_freed": (objects_full - objects_dropped) / entries,
        "function_freed": gone,
    }


def measure_allocations(name: str, build: Build, operators: int, entries: int) -> float:
    """KB per entry that Python's own allocators handed out."""
    function = fresh(operators_source(operators))
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    held = filled(name, build, function, entries)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del function, held
    forget(name)
    return (after - before) / 1024 / entries


def measure_model(name: str, build: Build) -> Answer:
    """MB of a model with 42 MB of parameters and its entry, and what is freed with it."""
    before = resident_kb()
    model, args = layers(1024, 10), (torch.randn(2, 1024),)
    call, alive = build(model, args, {}), weakref.ref(model)
    call(*args)
    full = resident_kb()
    del model, call
    dropped, gone = resident_kb(), alive() is None
    forget(name)
    return {
        "mb": (full - before) / 1024,
        "freed_mb": (full - dropped) / 1024,
        "reset_freed_mb": (full - resident_kb()) / 1024,
        "model_freed": gone,
    }


def measure_churn(build: Build, cycles: int) -> float:
    """KB that stay behind each time that a model is built, called twice and dropped."""
    before = 0
    for cycle in range(cycles + WARMUP_CYCLES):
        if cycle == WARMUP_CYCLES:
            before = resident_kb()
        model, args = layers(64, 3), (torch.randn(2, 64),)
        call = build(model, args, {})
        call(*args)
        call(*args)
        del model, call
    return (resident_kb() - before) / cycles


def measure(spec: dict[str, Any]) -> Answer:
    """Entries of a function of so many operators; beside large ones all the rest. For one contender."""
    one_thread()
    name, entries, operators = spec["contender"], spec["entries"], spec["operators"]
    keep_all(name)
    options: dict[str, Any] = {"dynamic": False} if compiles(name) else {}
    build = builder(name, **options | ({"cache_limit": 10**6} if name == LAZYTRACE else {}))
    with torch.no_grad():
        found: Answer = {"entries": measure_entries(name, build, operators, entries)}
        if operators == LARGE:
            found["allocated_kb"] = measure_allocations(name, build, LARGE, min(entries, 32))
            found["model"] = measure_model(name, build)
            found["churn_kb"] = measure_churn(build, spec["cycles"])
    return found


# ---------------------------------------------------------------- in the parent
def run(effort: Effort) -> Answer:
    """Ask children for each contender and number of operators: once for what takes long, else again."""
    contenders: dict[str, dict[str, list[Answer]]] = {}
    for name in (*CONTENDERS, JAX):
        slow = name == JAX or compiles(name)
        entries, cycles = effort.pick((32, 30) if slow else (256, 120), (8, 8))
        if not effort.wants(name):
            continue
        contenders[name] = {str(operators): [] for operators in OPERATORS}
        for _ in range(effort.pick(1 if slow else 3, 1)):
            for operators in OPERATORS:
                spec = {"contender": name, "entries": entries, "cycles": cycles, "operators": operators}
                answer = ask_jax("memory", spec) if name == JAX else ask("memory.measure", spec)
                contenders[name][str(operators)].append(answer)
    return {"contenders": contenders}


def good(data: Answer, name: str, operators: int) -> list[Answer]:
    """The answers that have numbers."""
    answers = data["contenders"].get(name, {}).get(str(operators), [])
    return [answer for answer in answers if "error" not in answer]


def program_kb(data: Answer) -> dict[str, list[float]]:
    """KB per cached program of 35 operators with lazytrace: resident, and allocated by Python."""
    answers = good(data, LAZYTRACE, LARGE)
    return {
        "resident": [answer["entries"]["kb"] for answer in answers],
        "allocated": [answer["allocated_kb"] for answer in answers],
    }


ENTRY_COLUMNS = {
    "kb": "KB",
    "freed_kb": "freed with the function",
    "reset_freed_kb": "and after a reset",
    "refill_kb": "KB when filled again",
    "objects": "objects",
    "objects_freed": "objects freed",
}


def entry_row(name: str, answers: list[Answer], operators: int) -> list[str]:
    """One row per contender: the columns above, and whether the function was freed."""
    entries = [answer["entries"] for answer in answers]
    cells = [ranged([entry[key] for entry in entries], 1) for key in ENTRY_COLUMNS]
    freed = all(entry["function_freed"] for entry in entries)
    return [f"{name}, {operators} operators", *cells, "yes" if freed else "no"]


def model_row(name: str, answers: list[Answer]) -> list[str]:
    """One row per contender: the large model, the churn of small ones, allocations."""
    models = [answer["model"] for answer in answers if "model" in answer]
    cells = [number(statistics.median(model[key] for model in models), 1) for key in MODEL_COLUMNS if models]
    cells = cells or [""] * len(MODEL_COLUMNS)
    freed = ("yes" if all(model["model_freed"] for model in models) else "no") if models else ""
    churn = ranged([answer["churn_kb"] for answer in answers], 1)
    allocated = [answer["allocated_kb"] for answer in answers if "allocated_kb" in answer]
    return [name, *cells, freed, churn, ranged(allocated, 1) if allocated else ""]


MODEL_COLUMNS = {"mb": "MB", "freed_mb": "freed with the model", "reset_freed_mb": "and after a reset"}


def tables(data: Answer) -> list[str]:
    """Memory per entry, and of models."""
    notes = Notes()
    entries: list[list[str]] = []
    models: list[list[str]] = []
    for name, by_operators in data["contenders"].items():
        for operators in OPERATORS:
            answers = good(data, name, operators)
            if answers:
                entries.append(entry_row(name, answers, operators))
            else:
                error = by_operators[str(operators)][0]["error"]
                cell = notes.refer(f"{name}: {error}")
                entries.append([f"{name}, {operators} operators", cell, *[""] * len(ENTRY_COLUMNS)])
        if good(data, name, LARGE):
            models.append(model_row(name, good(data, name, LARGE)))
    return [
        "",
        "Resident memory per cached signature of a function without constants, after garbage collection and "
        "`malloc_trim`; objects are those of the garbage collector. A reset is `torch._dynamo.reset()` or "
        "`jax.clear_caches()`.",
        *table(["per entry", *ENTRY_COLUMNS.values(), "function freed"], entries),
        *notes.lines(),
        "",
        "A model of 42 MB of parameters, called once; what stays behind per cycle of building, calling and "
        f"dropping a small model; and what Python's allocators hand out per entry of {LARGE} operators "
        "(tracemalloc; memory of C++ is not in it).",
        *table(["model", *MODEL_COLUMNS.values(), "model freed", "KB per cycle", "KB allocated"], models),
    ]
