"""The command: measures sections, keeps their raw numbers, and renders what there is."""

from __future__ import annotations

import argparse
import datetime
import json
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from peers import cold, dispatch, goals, lookup, machine, memory, retraces, steady, threads
from peers.child import LAUNCHER, RESULTS
from peers.effort import Effort
from peers.markdown import number, table

SECTIONS: dict[str, ModuleType] = {
    "S1": dispatch,
    "S2": cold,
    "S3": steady,
    "S4": retraces,
    "S5": lookup,
    "S6": memory,
    "S7": threads,
}
CHOICES = {
    "--cases": "only cases of S1 and models of S2 and S3 with one of these in their names",
    "--contenders": "only contenders with one of these in their names",
}
Raw = dict[str, Any]


def arguments(argv: list[str]) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/peers.py",
        description="Measure lazytrace beside its peers. "
        "jax.jit takes part where JAX_PYTHON names a Python that has jax.",
        epilog="Raw numbers are kept in benchmarks/results. Those of trials (--quick, --cases, --contenders) "
        "are kept apart in benchmarks/results/trial, with a RESULTS.md of their own.",
    )
    parser.add_argument("sections", nargs="*", metavar="S1 .. S7", help="sections to measure; all by default")
    parser.add_argument("--quick", action="store_true", help="few rounds, small sizes: to see that all works")
    for name, words in CHOICES.items():
        parser.add_argument(name, nargs="+", default=[], metavar="TEXT", help=words)
    parser.add_argument("--out", type=Path, help="where to write; by default benchmarks/RESULTS.md")
    parser.add_argument("--render", action="store_true", help="measure nothing, write from the raw numbers")
    wanted = parser.parse_args(argv)
    unknown = sorted(set(wanted.sections) - set(SECTIONS))
    if unknown:
        parser.error(f"no such section: {', '.join(unknown)}")
    return wanted


def measure(name: str, effort: Effort) -> Raw:
    """The raw numbers of a section, and under what circumstances they were measured."""
    before, start = machine.load(), time.perf_counter()
    data = SECTIONS[name].run(effort)
    return {
        "data": data,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": time.perf_counter() - start,
        "load": [before, machine.load()],
        "trial": effort.trial,
        "machine": machine.description(),
    }


def read(folder: Path) -> dict[str, Raw]:
    """The raw numbers that there are, by section."""
    files = {name: folder / f"{name}.json" for name in SECTIONS}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def circumstances(results: dict[str, Raw]) -> list[str]:
    """Machine, dates and load averages."""
    newest = max(results.values(), key=lambda raw: raw["date"])
    rows = [
        [name, raw["date"], number(raw["seconds"], 0), *(number(load) for load in raw["load"])]
        for name, raw in results.items()
    ]
    header = ["section", "date", "seconds", "load before", "load after"]
    return [*table(["machine", ""], list(newest["machine"].items())), *table(header, rows)]


def render(results: dict[str, Raw]) -> str:
    """The whole page."""
    lines = [
        "# lazytrace beside its peers",
        "",
        "Written by `python benchmarks/peers.py`; do not edit. Each measurement runs in a process of its own "
        "with one torch thread, contenders by turns within each round.",
    ]
    if any(raw["trial"] for raw in results.values()):
        lines += ["", "**A trial run, with too few rounds or cases to be quoted.**"]
    lines += ["", "## Goals", *goals.tables({name: raw["data"] for name, raw in results.items()})]
    lines += ["", "## Circumstances", *circumstances(results)]
    for name, raw in results.items():
        lines += ["", f"## {SECTIONS[name].TITLE}", *SECTIONS[name].tables(raw["data"])]
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Measure, keep, render."""
    wanted = arguments(argv)
    effort = Effort(wanted.quick, tuple(wanted.cases), tuple(wanted.contenders))
    folder = RESULTS / "trial" if effort.trial else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    for name in [] if wanted.render else wanted.sections or SECTIONS:
        print(f"{SECTIONS[name].TITLE} ...", end=" ", flush=True)
        raw = measure(name, effort)
        (folder / f"{name}.json").write_text(json.dumps(raw, indent=1))
        print(f"{raw['seconds']:.0f} s", flush=True)
    results = read(folder)
    if not results:
        print("nothing has been measured yet")
        return 1
    out = wanted.out or (folder / "RESULTS.md" if effort.trial else LAUNCHER.parent / "RESULTS.md")
    out.write_text(render(results))
    print(f"written to {out.name}")
    return 0
