"""The report as one self-contained HTML file: no network, no other files, readable on a phone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lazytrace.stats.model import Event, Hit, Program, Snapshot
from lazytrace.stats.report.document import Report, branches, by_loss
from lazytrace.stats.words import signature_line

_EVENTS_SHOWN = 100
# Marks nearer than this share of the timeline would lie on each other.
_RESOLUTION = 0.001


@dataclass(frozen=True)
class Mark:
    """Something on a timeline: its place and width in percent, what it is, and its text."""

    left: float
    width: float
    kind: str
    title: str


def page(report: Report) -> str:
    """The page as HTML.

    >>> page(Report.of([Snapshot("step", hits=1)])).startswith("<!doctype html>")
    True
    """
    # Only here: the template engine takes a while to import, and most programs never need it.
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["ms"] = lambda seconds: f"{seconds * 1e3:.1f}"
    template = environment.from_string(Path(__file__).with_name("page.html").read_text())
    return template.render(**_values(report))


def _values(report: Report) -> dict[str, Any]:
    called = by_loss(report.functions)
    span = _span(called)
    many = len(report.processes) > 1
    labels = {id(s): report.processes[o].label for o, s in zip(report.owners, report.functions, strict=True)}
    return {
        "processes": report.processes,
        "written": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(report.processes[0].written)),
        "totals": _totals(called),
        "suggestions": report.suggestions(),
        "span": span[1] - span[0],
        "functions": [
            {
                "id": f"f{number}",
                "s": s,
                "process": labels[id(s)] if many else "",
                "marks": _marks(s, span),
                "events": [(e, signature_line(e.signature)) for e in reversed(s.events[-_EVENTS_SHOWN:])],
                "kept": len(s.events),
                "signatures": _signatures(s.programs),
            }
            for number, s in enumerate(called)
        ],
    }


def _totals(called: Sequence[Snapshot]) -> list[tuple[str, str]]:
    calls, hits = sum(s.calls for s in called), sum(s.hits for s in called)
    share = f" ({1000 * hits // calls / 10:.1f} %)" if calls else ""
    return [
        ("calls", str(calls)),
        ("hits", f"{hits}{share}"),
        ("recordings", str(sum(s.recordings for s in called))),
        ("retraces", str(sum(s.retraces for s in called))),
        ("eager calls", str(sum(s.eager_calls for s in called))),
        ("evictions", str(sum(s.evictions for s in called))),
        ("recording", f"{sum(s.seconds_recording for s in called) * 1e3:.1f} ms"),
        ("eager", f"{sum(s.seconds_eager for s in called) * 1e3:.1f} ms"),
    ]


def _signatures(programs: Sequence[Program]) -> list[tuple[str, list[Program]]]:
    return [(found[0].signature, found) for found in branches(programs).values()]


def _span(called: Sequence[Snapshot]) -> tuple[float, float]:
    """When the first and the last thing that is known of happened, in seconds since the epoch."""
    every = [one for s in called for one in s.happened]
    start = min((one.time for one in every), default=0.0)
    return start, max((one.time + one.seconds for one in every), default=start)


def _marks(s: Snapshot, span: tuple[float, float]) -> list[Mark]:
    marks: list[Mark] = []
    covered: dict[str, float] = {}
    for one in s.happened:
        mark = _mark(one, span)
        if mark.left >= covered.get(mark.kind, 0.0):
            covered[mark.kind] = mark.left + 100 * _RESOLUTION
            marks.append(mark)
    return marks


def _mark(one: Event | Hit, span: tuple[float, float]) -> Mark:
    whole = (span[1] - span[0]) or 1.0
    left, width = 100 * (one.time - span[0]) / whole, 100 * one.seconds / whole
    if isinstance(one, Hit):
        return Mark(round(left, 2), round(width, 2), "hit", f"hit, {one.seconds * 1e6:.0f} us")
    return Mark(round(left, 2), round(width, 2), one.topic, one.line())
