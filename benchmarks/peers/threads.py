"""S7: first calls from several threads at once, hits from several threads, and the throughput of two."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from peers.cases import operators_source
from peers.child import Answer, ask, ask_jax, reason
from peers.contenders import (
    COMPILE_EAGER,
    EAGER,
    JIT_TRACE,
    LAZYTRACE,
    builder,
    counted,
    fresh,
    one_thread,
    same,
)
from peers.effort import Effort
from peers.markdown import Notes, number, ranged, table
from peers.measuring import ratios
from peers.models import build, inputs

TITLE = "S7: threads"
RACERS = (LAZYTRACE, COMPILE_EAGER)
JAX = "jax.jit"
SCALERS = (EAGER, LAZYTRACE, COMPILE_EAGER, JIT_TRACE)
CROWD = 8
HITS = 2000
SOURCE = operators_source(10)
RACES = {"alone": "one thread", "same": f"{CROWD} threads, same shape", "shapes": f"{CROWD} shapes"}


# ---------------------------------------------------------------- in a child
def race(call: Callable[[Any], Any], all_args: Sequence[Any], times: int = 1) -> Answer:
    """Call in one thread for each argument, all at once; the milliseconds of the slowest thread."""
    ready = threading.Barrier(len(all_args))
    taken: list[float] = []
    errors: list[str] = []
    wrong: list[bool] = []

    def work(argument: Any) -> None:
        ready.wait()
        start = time.perf_counter()
        try:
            with torch.no_grad():
                for _ in range(times):
                    result = call(argument)
                taken.append((time.perf_counter() - start) * 1e3)
                wrong.append(not same(result, fresh(SOURCE)(argument)))
        except Exception as error:
            errors.append(reason(error))

    threads = [threading.Thread(target=work, args=(argument,)) for argument in all_args]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    slowest = max(taken, default=float("nan"))
    return {
        "slowest_ms": slowest,
        "errors": len(errors),
        "error": next(iter(errors), None),
        "wrong": sum(wrong),
    }


def hit_times(call: Callable[[Any], Any], x: Any, threads: int) -> list[float]:
    """Microseconds of wall time per hit, in each of five trials."""
    race(call, [x] * threads)
    return [race(call, [x] * threads, HITS)["slowest_ms"] * 1e3 / HITS / threads for _ in range(5)]


def measure(spec: dict[str, Any]) -> Answer:
    """Races for the first call, and hits from one thread and from many."""
    one_thread()
    name = spec["contender"]
    with torch.no_grad():
        builder(name)(fresh(SOURCE), (), {})(torch.randn(3))  # loads what is loaded on first use
    x = torch.randn(7)
    arguments = {"alone": [x], "same": [x] * CROWD, "shapes": [torch.randn(7 + i) for i in range(CROWD)]}
    races: dict[str, list[Answer]] = {label: [] for label in arguments}
    for _ in range(spec["trials"]):
        for label, all_args in arguments.items():
            make, counts = counted(name)
            found = race(make(fresh(SOURCE), (), {}), all_args)
            races[label].append(found | {"recordings": counts().recordings})
    hits = {}
    for who in (EAGER, name):
        for threads in (1, CROWD):
            hits[f"{who} {threads}"] = hit_times(builder(who)(fresh(SOURCE), (), {}), x, threads)
    return {"races": races, "hits": hits}


def wall_seconds(call: Callable[..., Any], all_args: Sequence[tuple[Any, ...]], times: int) -> float:
    """Seconds until every thread has called `times` times, each with arguments of its own."""
    ready = threading.Barrier(len(all_args) + 1)

    def work(args: tuple[Any, ...]) -> None:
        with torch.no_grad():
            call(*args)
            ready.wait()
            for _ in range(times):
                call(*args)

    threads = [threading.Thread(target=work, args=(args,)) for args in all_args]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def scale(spec: dict[str, Any]) -> Answer:
    """Calls per second of the model of small operators, by one thread and by two in turns."""
    one_thread()
    model, times = build("smallops").eval(), spec["calls"]
    all_args = [tuple(x.clone() for x in inputs("smallops", "small")) for _ in range(2)]
    rates: dict[str, list[float]] = {"1": [], "2": []}
    with torch.no_grad():
        call = builder(spec["contender"])(model, all_args[0], {})
        for _ in range(4):
            call(*all_args[0])
    for _ in range(spec["trials"]):
        for threads in (1, 2):
            taken = wall_seconds(call, all_args[:threads], times)
            rates[str(threads)].append(threads * times / taken)
    return {"rates": rates}


# ---------------------------------------------------------------- in the parent
def run(effort: Effort) -> Answer:
    """Ask one child for each contender, and one more for its throughput."""
    data: Answer = {"races": {}, "throughput": {}}
    for name in RACERS:
        if effort.wants(name):
            spec = {"contender": name, "trials": effort.pick(7, 2)}
            data["races"][name] = ask("threads.measure", spec)
    if effort.wants(JAX):
        data["races"][JAX] = ask_jax("threads", {"trials": effort.pick(7, 2)})
    for name in SCALERS:
        if effort.wants(name):
            spec = {"contender": name, "trials": effort.pick(9, 3), "calls": effort.pick(500, 100)}
            data["throughput"][name] = ask("threads.scale", spec)
    return data


def speedups(data: Answer, name: str) -> list[float]:
    """Two threads' throughput over one's, in each trial."""
    rates = data["throughput"].get(name, {}).get("rates")
    return ratios(rates["2"], rates["1"]) if rates else []


def race_cell(trials: list[Answer]) -> str:
    """Recordings in each trial, the slowest thread, and what went wrong."""
    recordings = sorted({trial["recordings"] for trial in trials})
    counts = " or ".join(str(count) for count in recordings)
    wrong, errors = (sum(trial[key] for trial in trials) for key in ("wrong", "errors"))
    text = f"{counts} / {number(statistics.median(trial['slowest_ms'] for trial in trials))}"
    return text + (f", {wrong} wrong" if wrong else "") + (f", {errors} errors" if errors else "")


def race_rows(data: Answer, notes: Notes) -> list[list[str]]:
    """A row for each contender, and one for eager's hits."""
    rows = []
    for name, answer in data["races"].items():
        if "error" in answer:
            cell = notes.refer(f"{name}: {answer['error']}")
            rows.append([name, cell, *[""] * (len(RACES) + 1)])
            continue
        races = [race_cell(answer["races"][label]) for label in RACES]
        hits = [ranged(answer["hits"][f"{name} {threads}"], 1) for threads in (1, CROWD)]
        rows.append([name, *races, *hits])
    with_eager = [
        answer["hits"] for answer in data["races"].values() if f"{EAGER} 1" in answer.get("hits", {})
    ]
    if with_eager:
        cells = [ranged([us for h in with_eager for us in h[f"{EAGER} {n}"]], 1) for n in (1, CROWD)]
        rows.append([EAGER, *[""] * len(RACES), *cells])
    return rows


def throughput_rows(data: Answer, notes: Notes) -> list[list[str]]:
    """Calls per second of one thread and of two."""
    rows = []
    for name, answer in data["throughput"].items():
        if "error" in answer:
            rows.append([name, notes.refer(f"{name}: {answer['error']}"), "", ""])
            continue
        one, two = (ranged(answer["rates"][threads], 0) for threads in ("1", "2"))
        rows.append([name, one, two, ranged(speedups(data, name))])
    return rows


def tables(data: Answer) -> list[str]:
    """Races and hits, and the throughput of two threads."""
    notes, more = Notes(), Notes()
    races, throughput = race_rows(data, notes), throughput_rows(data, more)
    header = ["contender", *RACES.values(), "hit, 1 thread, us", f"hit, {CROWD} threads, us"]
    return [
        "",
        "First calls of a fresh function of 10 operators, from all threads at once: recordings in a trial / "
        "milliseconds of the slowest thread (median of the trials). Then hits of it: wall time per call in "
        "microseconds, median [smallest, largest].",
        *table(header, races),
        *notes.lines(),
        "",
        "Throughput of a model of 130 small operators in `no_grad`, each thread with its own input: calls "
        "per second, median [smallest, largest] of the trials.",
        *table(["contender", "1 thread", "2 threads", "2 threads over 1"], throughput),
        *more.lines(),
    ]
