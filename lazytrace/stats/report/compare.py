"""What one report has more of than another: retraces, eager calls and evictions, by function and reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lazytrace.stats.report.document import Report

_COUNTS = (("retraces", "retrace"), ("eager_calls", "eager call"), ("evictions", "eviction"))


def increases(old: Report, new: Report) -> list[str]:
    """A line per function and kind of call that `new` has more of, each followed by the reasons that grew.

    >>> from lazytrace.stats.model import Snapshot
    >>> increases(Report.of([Snapshot("step", retraces=1)]), Report.of([Snapshot("step", retraces=3)]))
    ['step: 3 retraces, 1 before']
    """
    before, after = _by_name(old), _by_name(new)
    return [line for name in after for line in _function(name, before.get(name, Counter()), after[name])]


def _by_name(report: Report) -> dict[str, Counter[tuple[str, str]]]:
    """Counts of every function, over processes, by (kind, reason); the reason is "" for all of a kind."""
    found: dict[str, Counter[tuple[str, str]]] = {}
    for s in report.functions:
        counts = found.setdefault(s.name, Counter())
        counts.update({(field, ""): getattr(s, field) for field, _ in _COUNTS})
        counts.update({("retraces", reason.text): reason.count for reason in s.retrace_reasons})
        counts.update({("eager_calls", text): count for text, count in s.eager.items()})
    return found


def _function(name: str, before: Counter[tuple[str, str]], after: Counter[tuple[str, str]]) -> Iterator[str]:
    for field, noun in _COUNTS:
        count, known = after[field, ""], before[field, ""]
        if count <= known:
            continue
        yield f"{name}: {count} {noun}{'s' * (count != 1)}, {known or 'none'} before"
        for (kind, text), times in after.items():
            if kind == field and text and times > before[kind, text]:
                yield f"  {text}   x{times - before[kind, text]}"
