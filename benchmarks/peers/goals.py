"""The goals, and how far the measured numbers are from them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from peers import cold, dispatch, lookup, memory, steady, threads
from peers.cases import ADD_2, ADD_32, ALL_OF_500, IDENTITY, ONE_OF_500
from peers.contenders import JIT_TRACE, LAZYTRACE
from peers.markdown import number, ranged, table
from peers.measuring import geometric_mean
from peers.models import SUBJECTS

Results = dict[str, dict[str, Any]]
"""The raw numbers of each section, by its name."""


@dataclass(frozen=True)
class Row:
    """A goal in words, what it asks for, what was measured; `met` is None where it was not."""

    goal: str
    target: str
    measured: str = "not measured"
    met: bool | None = None

    def cells(self) -> list[str]:
        """As the table has them."""
        return [self.goal, self.target, self.measured, {True: "yes", False: "no", None: ""}[self.met]]


def at_most(goal: str, limit: float, unit: str, values: Sequence[float], digits: int = 2) -> Row:
    """A goal that the median is not above a limit."""
    target = f"at most {limit:g} {unit}".strip()
    if not values:
        return Row(goal, target)
    return Row(goal, target, ranged(values, digits), statistics.median(values) <= limit)


# ---------------------------------------------------------------- S1
def hits(data: dict[str, Any]) -> list[Row]:
    """What a hit adds to the bare call, in microseconds."""
    limits = {IDENTITY: 0.2, ADD_2: 0.25, ADD_32: 0.6}
    rows = [
        at_most(f"hit over the bare call: {case}", limit, "us", dispatch.added(data, case, LAZYTRACE))
        for case, limit in limits.items()
    ]
    return [*rows, one_used(data), all_used(data)]


def one_used(data: dict[str, Any]) -> Row:
    """A hit of a large module of which little is used."""
    goal, values = f"hit over the bare call: {ONE_OF_500}", dispatch.added(data, ONE_OF_500, LAZYTRACE)
    if not values:
        return Row(goal, "below 0 us")
    return Row(goal, "below 0 us", ranged(values), statistics.median(values) < 0)


def all_used(data: dict[str, Any]) -> Row:
    """A hit of a large module of which all is used, beside torch.jit.trace."""
    goal, target = f"hit over the bare call: {ALL_OF_500}", f"below {JIT_TRACE}"
    ours, theirs = (dispatch.added(data, ALL_OF_500, name) for name in (LAZYTRACE, JIT_TRACE))
    if not ours or not theirs:
        return Row(goal, target)
    met = statistics.median(ours) < statistics.median(theirs)
    return Row(goal, target, f"{ranged(ours, 1)} us; {JIT_TRACE} {ranged(theirs, 1)} us", met)


# ---------------------------------------------------------------- S5
def lookups(data: dict[str, Any]) -> list[Row]:
    """A random hit among many beside the newest."""
    rows = []
    for count in lookup.ARGUMENTS:
        goal = f"random hit among {lookup.MANY} over the newest, {count} tensor{'s' if count > 1 else ''}"
        found = lookup.random_over_newest(data, count)
        if found is None:
            rows.append(Row(goal, "at most 1.1 times"))
            continue
        ratio = found["random added"] / found["newest added"]
        measured = (
            f"{number(ratio)} "
            f"({number(found['random added'])} over {number(found['newest added'])} us added); "
            f"whole call {number(found['whole ratio'])} "
            f"({number(found['random whole'])} over {number(found['newest whole'])} us)"
        )
        # A newest hit that adds nothing has no ratio.
        met = ratio <= 1.1 if found["newest added"] > 0 else found["random added"] <= 0
        rows.append(Row(goal, "at most 1.1 times", measured, met))
    return rows


# ---------------------------------------------------------------- S2
def recordings(data: dict[str, Any]) -> list[Row]:
    """The recording call over eager, and the import."""
    goal = f"first recording call over eager, models of {cold.MANY_OPERATORS} operators and more"
    ratios = {
        model: ratio
        for model, (operators, ratio) in cold.recording_ratios(data).items()
        if operators >= cold.MANY_OPERATORS
    }
    like = [ratio for model, ratio in cold.ratios_to_first(data).items() if model in ratios]
    first = Row(goal, "at most 2.0 times")
    if ratios:
        mean = geometric_mean(ratios.values())
        models = f"{len(ratios)} model{'s' if len(ratios) > 1 else ''}"
        measured = f"geometric mean {number(mean)}, largest {number(max(ratios.values()))} of {models}"
        if like:
            measured += f"; over eager's first call of a copy {number(geometric_mean(like))}"
        first = Row(goal, "at most 2.0 times", measured, mean <= 2.0)
    imports = data["imports"].get("lazytrace", [])
    return [first, at_most("`import lazytrace` added over `import torch`", 50, "ms", imports, 0)]


# ---------------------------------------------------------------- S3
def replays(data: dict[str, Any]) -> list[Row]:
    """Replays over eager."""
    rows = []
    modes = {
        "no_grad": ("replay over eager in `no_grad`", 0.48),
        "train": ("the same in a training step", 0.85),
    }
    for mode, (words, limit) in modes.items():
        goal, found = (
            f"{words}, geometric mean of the six small models",
            steady.medians(data, LAZYTRACE, f"small {mode}"),
        )
        complete = len(found) == len(SUBJECTS)
        rows.append(at_most(goal, limit, "times", [geometric_mean(found.values())] if complete else []))
    return [*rows, slowest(data)]


def slowest(data: dict[str, Any]) -> Row:
    """The model that gains least at medium size."""
    goal = "slowest model at medium size, over eager"
    ratios = {
        f"{model}, {mode}": ratio
        for mode in steady.MODES
        for model, ratio in steady.medians(data, LAZYTRACE, f"medium {mode}").items()
    }
    if not ratios:
        return Row(goal, "at most 1.02 times")
    worst = max(ratios, key=lambda name: ratios[name])
    return Row(goal, "at most 1.02 times", f"{number(ratios[worst])} ({worst})", ratios[worst] <= 1.02)


# ---------------------------------------------------------------- S6, S7
def memories(data: dict[str, Any]) -> list[Row]:
    """Memory per program."""
    goal = f"memory per cached program of {memory.LARGE} operators beyond its tensors"
    found = memory.program_kb(data)
    if not found["resident"]:
        return [Row(goal, "at most 10 KB")]
    measured = f"{ranged(found['resident'], 1)} resident; tracemalloc {ranged(found['allocated'], 1)}"
    return [Row(goal, "at most 10 KB", measured, statistics.median(found["resident"]) <= 10)]


def throughputs(data: dict[str, Any]) -> list[Row]:
    """What a second thread brings."""
    goal = "throughput of two threads over one's, model of small operators"
    values = threads.speedups(data, LAZYTRACE)
    if not values:
        return [Row(goal, "at least 1.7 times")]
    return [Row(goal, "at least 1.7 times", ranged(values), statistics.median(values) >= 1.7)]


PARTS: dict[str, Callable[[dict[str, Any]], list[Row]]] = {
    "S1": hits,
    "S5": lookups,
    "S2": recordings,
    "S3": replays,
    "S7": throughputs,
    "S6": memories,
}


def tables(results: Results) -> list[str]:
    """All goals whose section has been measured."""
    rows = [row.cells() for name, part in PARTS.items() if name in results for row in part(results[name])]
    return table(["goal", "target", "measured", "met"], rows)
