"""A report as a Chrome trace, for Perfetto and chrome://tracing: slices per thread with their reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lazytrace.stats.model import Event, Hit, Snapshot
from lazytrace.stats.report.document import Report
from lazytrace.stats.words import signature_line


def chrome_trace(report: Report) -> dict[str, Any]:
    """The trace as the dict behind its JSON.

    Recordings, eager calls and timed hits are slices, guard checks slices within hits, evictions instants.
    Times are microseconds since the first of them.

    >>> sorted(chrome_trace(Report.of([])))
    ['displayTimeUnit', 'traceEvents']
    """
    writer = _Writer(report)
    return {"displayTimeUnit": "ms", "traceEvents": [*writer.names(), *writer.slices()]}


class _Writer:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._threads: dict[tuple[int, int], tuple[int, str]] = {}
        times = [one.time for s in report.functions for one in s.happened]
        self._origin = min(times, default=0.0)
        for owner, snapshot in zip(report.owners, report.functions, strict=True):
            for one in snapshot.happened:
                # Idents are addresses; viewers want small numbers.
                number = len(self._threads) + 1
                self._threads.setdefault((owner, one.thread_id), (number, one.thread))

    def names(self) -> Iterator[dict[str, Any]]:
        for number, process in enumerate(self._report.processes):
            yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": process.label}}
        for (owner, _), (number, name) in self._threads.items():
            yield {"ph": "M", "name": "thread_name", "pid": owner, "tid": number, "args": {"name": name}}

    def slices(self) -> Iterator[dict[str, Any]]:
        for owner, snapshot in zip(self._report.owners, self._report.functions, strict=True):
            for event in snapshot.events:
                yield self._event(owner, event)
            for hit in snapshot.timeline:
                yield from self._hit(owner, snapshot, hit)

    def _at(self, owner: int, one: Event | Hit) -> dict[str, Any]:
        number, _ = self._threads[owner, one.thread_id]
        return {"pid": owner, "tid": number, "ts": _micro(one.time - self._origin)}

    def _event(self, owner: int, event: Event) -> dict[str, Any]:
        arguments = {
            "reasons": [str(reason) for reason in event.reasons],
            "called at": event.where,
            "signature": signature_line(event.signature),
            "number": event.number,
        }
        name = {"record": "record", "retrace": "retrace", "eager": "eager", "evict": "evict"}[event.topic]
        common = {"name": f"{name} {event.function}", "cat": name, **self._at(owner, event)}
        if event.kind == "evicted":
            return {"ph": "i", "s": "t", **common, "args": arguments}
        arguments["operators"] = event.operators
        return {"ph": "X", "dur": _micro(event.seconds), **common, "args": arguments}

    def _hit(self, owner: int, snapshot: Snapshot, hit: Hit) -> Iterator[dict[str, Any]]:
        at = self._at(owner, hit)
        yield {
            "ph": "X",
            "name": f"replay {snapshot.name}",
            "cat": "replay",
            **at,
            "dur": _micro(hit.seconds),
        }
        checking = _micro(min(hit.checking, hit.seconds))
        yield {"ph": "X", "name": f"check {snapshot.name}", "cat": "check", **at, "dur": checking}


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)
