"""Reports as tables for other programs: CSV, and the times of each phase as dynamo's `compile_times`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Literal, overload

from lazytrace.stats.model import Snapshot
from lazytrace.stats.report.document import Report, by_loss

_COLUMNS = ("process", "function", "what", "detail", "count", "seconds", "where")
_COUNTS = ("calls", "hits", "recordings", "retraces", "eager_calls", "inlined", "evictions", "proof_failures")
_SECONDS = {
    "recordings": "seconds_recording",
    "eager_calls": "seconds_eager",
    "hits": "seconds_hits",
}
_PHASES = (
    ("recording", "seconds_recording"),
    ("run", "seconds_run"),
    ("verdict", "seconds_verdict"),
    ("lowering", "seconds_lowering"),
    ("proof", "seconds_proof"),
    ("checking", "seconds_checking"),
    ("replaying", "seconds_hits"),
    ("eager", "seconds_eager"),
)

_Row = tuple[object, ...]


def csv_table(report: Report) -> str:
    """A report as one CSV table: a row per count, per retrace reason, per eager reason and per suggestion.

    >>> print(csv_table(Report.of([Snapshot("step", hits=2)])).splitlines()[0])
    process,function,what,detail,count,seconds,where
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for owner, snapshot in zip(report.owners, report.functions, strict=True):
        if snapshot.calls:
            label = report.processes[owner].label
            writer.writerows((label, snapshot.name, *row) for row in _rows(snapshot))
    for one in report.suggestions():
        writer.writerow(
            ("", one.function, "suggestion", f"{one.pattern}: {one.text}", one.count, "", one.where)
        )
    return out.getvalue()


def _rows(s: Snapshot) -> Iterator[_Row]:
    for name in _COUNTS:
        seconds = getattr(s, _SECONDS[name]) if name in _SECONDS else ""
        yield name, "", getattr(s, name), seconds, s.source
    for reason in s.retrace_reasons:
        yield "retrace reason", reason.text, reason.count, reason.seconds, reason.where
    for text, count in s.eager.items():
        yield "eager reason", text, count, s.eager_seconds.get(text, 0.0), s.eager_called_at.get(text, "")
    if s.limit_enough is not None:
        what = "limit that is enough" if s.limit_exact else "limit that is needed at least"
        yield what, f"cache_limit={s.limit_enough}", s.limit_enough, "", s.source


@overload
def compile_times_of(snapshots: Sequence[Snapshot], repr: Literal["str"], aggregate: bool = False) -> str: ...
@overload
def compile_times_of(
    snapshots: Sequence[Snapshot], repr: Literal["csv"], aggregate: bool = False
) -> tuple[list[str], list[str]]: ...
def compile_times_of(
    snapshots: Sequence[Snapshot], repr: Literal["str", "csv"], aggregate: bool = False
) -> str | tuple[list[str], list[str]]:
    """Seconds per function and phase, as a text or as (headers, values); with `aggregate` all added up.

    >>> compile_times_of([Snapshot("step", recordings=1, seconds_recording=0.25)], "csv")[1]
    ['0.250000', '0.000000', '0.000000', '0.000000', '0.000000', '0.000000', '0.000000', '0.000000']
    """
    called = by_loss(snapshots)
    if aggregate:
        summed = {field: sum(getattr(s, field) for s in called) for _, field in _PHASES}
        called = (Snapshot("all functions", **summed),)
    if repr == "csv":
        headers = [f"{s.name}.{phase}" for s in called for phase, _ in _PHASES]
        return headers, [_seconds(s, field) for s in called for _, field in _PHASES]
    rows = [("Function", *(f"{phase} (s)" for phase, _ in _PHASES))]
    rows += [(s.name, *(_seconds(s, field) for _, field in _PHASES)) for s in called]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(_aligned(cell, i, widths[i]) for i, cell in enumerate(row)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(["lazytrace recording metrics:", *lines])


def _seconds(snapshot: Snapshot, field: str) -> str:
    return f"{getattr(snapshot, field):.6f}"


def _aligned(cell: str, column: int, width: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)
