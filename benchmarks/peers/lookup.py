"""S5: a hit among n cached signatures, in microseconds."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import torch

from peers.cases import hit_orders, last_differs_source
from peers.child import Answer, ask, ask_jax
from peers.contenders import (
    COMPILE_EAGER,
    EAGER,
    JIT_TRACE,
    LAZYTRACE,
    builder,
    compiles,
    fresh,
    keep_all,
    one_thread,
)
from peers.effort import Effort
from peers.markdown import Notes, number, ranged, table
from peers.measuring import differences, interleaved, seconds

TITLE = "S5: a hit among many signatures"
CONTENDERS = (LAZYTRACE, COMPILE_EAGER)
ORDERS = ("newest", "oldest", "cycle", "random")
MANY = 256
ARGUMENTS = (1, 8)


# ---------------------------------------------------------------- in a child
def walking(call: Callable[..., Any], order: Iterable[tuple[Any, ...]]) -> Callable[[], Any]:
    """Call with the next arguments each time, round and round."""
    following = itertools.cycle(order).__next__
    return lambda: call(*following())


def measure(spec: dict[str, Any]) -> Answer:
    """By cache size: milliseconds to fill in an entry, and microseconds per call in each order and round.

    All orders are interleaved, each beside eager in the same order: of `"random"` there is `"eager random"`.
    """
    one_thread()
    name, count, sizes = spec["contender"], spec["arguments"], spec["sizes"]
    keep_all(name)
    options = {"dynamic": False} if compiles(name) else {"cache_limit": 10**6}
    source = last_differs_source(count)
    head = tuple(torch.randn(4) for _ in range(count - 1))
    signatures = [(*head, torch.randn(k + 2)) for k in range(max(sizes))]
    eager, call = fresh(source), builder(name, **options)(fresh(source), signatures[0], {})
    found, filled = {}, 0
    with torch.no_grad():
        for size in sizes:
            new = signatures[filled:size]
            fill_ms = seconds(walking(call, new), len(new)) * 1e3
            filled = size
            thunks = {}
            for order, args in hit_orders(signatures[:size]).items():
                thunks[f"eager {order}"] = walking(eager, args)
                thunks[order] = walking(call, args)
            found[str(size)] = {"fill_ms": fill_ms, "times": interleaved(thunks, spec["rounds"])}
    return found


# ---------------------------------------------------------------- in the parent
def run(effort: Effort) -> Answer:
    """Ask one child for each contender and number of arguments."""
    sizes, rounds = effort.pick([1, 4, 16, 64, MANY], [1, 16]), effort.pick(15, 5)
    data: Answer = {"sizes": sizes, "torch": {}, "jax": {}}
    for count in ARGUMENTS:
        spec = {"arguments": count, "sizes": sizes, "rounds": rounds}
        for name in CONTENDERS:
            if effort.wants(name):
                answer = ask("lookup.measure", spec | {"contender": name})
                data["torch"].setdefault(name, {})[str(count)] = answer
        if effort.wants("jax.jit"):
            data["jax"][str(count)] = ask_jax("lookup", spec)
    return data


def added(times: dict[str, list[float]], order: str) -> float:
    """Microseconds over the bare call."""
    return statistics.median(differences(times[order], times[f"{EAGER} {order}"]))


def random_over_newest(data: Answer, arguments: int, size: int = MANY) -> dict[str, float] | None:
    """lazytrace's random hit among `size` beside its newest: microseconds added, and of whole calls."""
    answer = data["torch"].get(LAZYTRACE, {}).get(str(arguments), {})
    times = answer.get(str(size), {}).get("times")
    if times is None:
        return None
    return {
        "random added": added(times, "random"),
        "newest added": added(times, "newest"),
        "random whole": statistics.median(times["random"]),
        "newest whole": statistics.median(times["newest"]),
        "whole ratio": statistics.median(
            a / b for a, b in zip(times["random"], times["newest"], strict=True)
        ),
    }


def torch_rows(data: Answer, notes: Notes) -> list[list[str]]:
    """Two rows for each contender, number of arguments and order: what is added, and whole calls."""
    rows = []
    sizes = [str(size) for size in data["sizes"]]
    for name, by_count in data["torch"].items():
        for count, answer in by_count.items():
            label = f"{name}, {count} tensor{'s' if count != '1' else ''}"
            if "error" in answer:
                rows.append([label, "", *[notes.refer(f"{name}: {answer['error']}")] * len(sizes)])
                continue
            for order in ORDERS:
                over = [number(added(answer[size]["times"], order)) for size in sizes]
                rows.append([label, f"{order}, added", *over])
            whole = [ranged(answer[size]["times"]["random"]) for size in sizes]
            rows.append([label, "random, whole call", *whole])
            rows.append([label, "ms to fill in one", *(number(answer[size]["fill_ms"]) for size in sizes)])
    return rows


def jax_rows(data: Answer, notes: Notes) -> list[list[str]]:
    """The same of jax.jit: whole calls only."""
    rows = []
    sizes = [str(size) for size in data["sizes"]]
    for count, answer in data["jax"].items():
        label = f"jax.jit, {count} tensor{'s' if count != '1' else ''}"
        if "error" in answer:
            rows.append([label, "", *[notes.refer(f"jax.jit: {answer['error']}")] * len(sizes)])
            continue
        for order in ORDERS:
            rows.append([label, f"{order}, whole call", *(number(answer[size][order]) for size in sizes)])
        rows.append([label, "ms to fill in one", *(number(answer[size]["fill_ms"]) for size in sizes)])
    return rows


def tables(data: Answer) -> list[str]:
    """Microseconds by number of cached signatures."""
    notes = Notes()
    rows = [*torch_rows(data, notes), *jax_rows(data, notes)]
    rows.append(
        [JIT_TRACE, "", *[notes.refer(f"{JIT_TRACE}: a trace has one signature")] * len(data["sizes"])]
    )
    text = (
        "Microseconds per hit by the number of cached signatures, median of the rounds: over the bare call "
        "with the same arguments (`added`), and whole calls. The signatures differ in the size of one tensor."
    )
    header = ["contender", "hit", *(str(size) for size in data["sizes"])]
    return ["", text, *table(header, rows), *notes.lines()]
