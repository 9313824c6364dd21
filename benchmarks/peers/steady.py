"""S3: time per call over eager, of six models at two sizes, without gradients and in a training step."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from peers.child import Answer, ask, reason
from peers.contenders import (
    COMPILE_AOT,
    COMPILE_EAGER,
    COMPILE_INDUCTOR,
    EAGER,
    EAGER_AGAIN,
    JIT_TRACE,
    LAZYTRACE,
    builder,
    forget,
    must_replay,
    one_thread,
    same,
)
from peers.effort import Effort
from peers.markdown import Notes, number, quartered, table
from peers.measuring import geometric_mean, interleaved, ratios
from peers.models import SUBJECTS, build, inputs

TITLE = "S3: steady state"
CONTENDERS = (LAZYTRACE, COMPILE_EAGER, COMPILE_AOT, COMPILE_INDUCTOR, JIT_TRACE)
SIZES = ("small", "medium")
MODES = ("no_grad", "train")
WARMUP_CALLS = 4  # the profiling executor of torch.jit.trace needs some


# ---------------------------------------------------------------- in a child
def step(call: Callable[..., Any], model: nn.Module, args: tuple[Any, ...], train: bool) -> Callable[[], Any]:
    """What is timed: a call, or forward and backward."""
    if not train:
        return lambda: call(*args)
    parameters = list((call if isinstance(call, nn.Module) else model).parameters())
    return lambda: torch.autograd.grad(call(*args).sum(), parameters)


def measure_one(spec: dict[str, Any], size: str, mode: str) -> Answer:
    """Microseconds per call in each round, of eager twice and of one contender."""
    train = mode == "train"
    base, args = build(spec["model"]).train(train), inputs(spec["model"], size)
    thunks, reasons = {}, {}
    with torch.set_grad_enabled(train):
        expected = copy.deepcopy(base)(*args)
        for name in (EAGER, EAGER_AGAIN, spec["contender"]):
            model = copy.deepcopy(base)
            try:
                call = builder(name)(model, args, {})
                if not same(call(*args), expected):
                    raise ValueError("another result than eager's")
                thunk = step(call, model, args, train)
                for _ in range(WARMUP_CALLS):
                    thunk()
                must_replay(name, call)
            except Exception as error:
                reasons[name] = reason(error)
            else:
                thunks[name] = thunk
        rounds = spec["rounds"][size]
        return {"times": interleaved(thunks, rounds, target=0.008), "reasons": reasons}


def measure(spec: dict[str, Any]) -> Answer:
    """One contender on one model, in both modes at the sizes wanted; by `"size mode"`."""
    one_thread()
    found = {}
    for size in spec["rounds"]:
        for mode in MODES:
            found[f"{size} {mode}"] = measure_one(spec, size, mode)
            forget(spec["contender"])
    return found


# ---------------------------------------------------------------- in the parent
def run(effort: Effort) -> Answer:
    """Ask one child for each model and contender: torch.compile must not share code objects."""
    rounds = effort.pick({"small": 21, "medium": 11}, {"small": 5})
    models: dict[str, dict[str, Answer]] = {}
    for model in filter(effort.wants_case, SUBJECTS):
        for name in filter(effort.wants, CONTENDERS):
            spec = {"model": model, "contender": name, "rounds": rounds}
            models.setdefault(model, {})[name] = ask("steady.measure", spec)
    return {"models": models}


def over_eager(data: Answer, model: str, name: str, setting: str) -> list[float]:
    """Time over eager in each round; empty where there is none. `setting` is `"size mode"`."""
    answer = data["models"].get(model, {}).get(name, {}).get(setting, {})
    times = answer.get("times", {})
    return ratios(times[name], times[EAGER]) if name in times else []


def medians(data: Answer, name: str, setting: str) -> dict[str, float]:
    """Time over eager of each model that has it."""
    found = {model: over_eager(data, model, name, setting) for model in data["models"]}
    return {model: statistics.median(values) for model, values in found.items() if values}


def eager_times(data: Answer, model: str, setting: str) -> Iterator[dict[str, list[float]]]:
    """The times of every child that measured a model."""
    for answer in data["models"][model].values():
        times = answer.get(setting, {}).get("times")
        if times:
            yield times


def why_not(answer: Answer, name: str, setting: str) -> str:
    """Why a contender has no number."""
    text = answer.get("error") or answer.get(setting, {}).get("reasons", {}).get(name, "not measured")
    return f"{name}: {text}"


def rows_of(data: Answer, setting: str, notes: Notes) -> list[list[str]]:
    """A row for each model, and one of geometric means."""
    rows = []
    for model, by_name in data["models"].items():
        all_times = list(eager_times(data, model, setting))
        if not all_times:
            continue
        eager = statistics.median(statistics.median(times[EAGER]) for times in all_times)
        again = [statistics.median(ratios(times[EAGER_AGAIN], times[EAGER])) for times in all_times]
        row = [model, number(eager, 0), f"{number(min(again))} to {number(max(again))}"]
        for name in CONTENDERS:
            values = over_eager(data, model, name, setting)
            why = why_not(by_name.get(name, {}), name, setting)
            row.append(quartered(values) if values else notes.refer(why))
        rows.append(row)
    means = [list(medians(data, name, setting).values()) for name in CONTENDERS]
    rows.append(["geometric mean", "", "", *(number(geometric_mean(m)) if m else "none" for m in means)])
    return rows


def tables(data: Answer) -> list[str]:
    """Time over eager: a table for each size and mode."""
    lines = [
        "",
        "Time per call over eager's in the same process: the median of the rounds, [quartiles]; lower is "
        "better. `noise` is eager beside itself, in the processes of all contenders. `train` is forward "
        "and backward.",
    ]
    for size in SIZES:
        for mode in MODES:
            notes, setting = Notes(), f"{size} {mode}"
            rows = rows_of(data, setting, notes)
            if len(rows) > 1:
                header = [setting, "eager, us", "noise", *CONTENDERS]
                lines += [*table(header, rows), *notes.lines()]
    return lines
