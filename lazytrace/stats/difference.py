"""What was counted between two snapshots of one function, and in several functions together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from lazytrace.originals import BUILTINS
from lazytrace.stats.model import Retrace, Snapshot

__builtins__ = BUILTINS

_SUMMED: Final = (
    "hits",
    "recordings",
    "retraces",
    "evictions",
    "inlined",
    "proof_failures",
    "seconds_recording",
    "seconds_eager",
    "seconds_hits",
    "seconds_checking",
    "hits_timed",
    "seconds_run",
    "seconds_verdict",
    "seconds_lowering",
    "seconds_proof",
    "retrace_reasons_dropped",
)
# What is kept of functions that are told of together.
_EVENTS_KEPT: Final = 256
_PROGRAMS_KEPT: Final = 1000
_REASONS_KEPT: Final = 200


def since(before: Snapshot | None, after: Snapshot) -> Snapshot:
    """What was counted between two snapshots of one function.

    >>> since(Snapshot("step", hits=3), Snapshot("step", hits=5, recordings=1)).calls
    3
    """
    if before is None:
        return after
    last = before.events[-1].number if before.events else -1
    return replace(
        after,
        **{name: getattr(after, name) - getattr(before, name) for name in _SUMMED},
        eager=_positive(before.eager, after.eager),
        eager_seconds=_positive(before.eager_seconds, after.eager_seconds),
        operators=_newest(after.operators, after.recordings - before.recordings),
        retrace_reasons=_reasons_since(before, after),
        events=tuple(event for event in after.events if event.number > last),
        timeline=_newest(after.timeline, after.hits_timed - before.hits_timed),
    )


def _positive(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value - before.get(key, 0) for key, value in after.items() if value > before.get(key, 0)}


def _newest(values: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    return values[max(0, len(values) - count) :]


def _reasons_since(before: Snapshot, after: Snapshot) -> tuple[Retrace, ...]:
    known = {reason.text: reason for reason in before.retrace_reasons}
    found = []
    for reason in after.retrace_reasons:
        old = known.get(reason.text, Retrace(reason.text, 0, 0.0))
        if reason.count > old.count:
            found.append(
                replace(reason, count=reason.count - old.count, seconds=reason.seconds - old.seconds)
            )
    return tuple(found)


def together(first: Snapshot, second: Snapshot) -> Snapshot:
    """What two functions of one name and line have counted, `second` being the newer one.

    >>> together(Snapshot("step", hits=3, operators=(2,)), Snapshot("step", hits=4, operators=(5,))).hits
    7
    """
    events = sorted((*first.events, *second.events), key=lambda event: event.number)
    summed = {name: getattr(first, name) + getattr(second, name) for name in _SUMMED}
    reasons = _reasons_together(first, second)
    summed["retrace_reasons_dropped"] += sum(reason.count for reason in reasons[:-_REASONS_KEPT])
    return replace(
        second,
        **summed,
        eager=_summed(first.eager, second.eager),
        eager_seconds=_summed(first.eager_seconds, second.eager_seconds),
        eager_called_at={**first.eager_called_at, **second.eager_called_at},
        operators=(first.operators + second.operators)[-_PROGRAMS_KEPT:],
        retrace_reasons=reasons[-_REASONS_KEPT:],
        limit_enough=max(first.limit_enough or 0, second.limit_enough or 0) or None,
        events=tuple(events[-_EVENTS_KEPT:]),
    )


def _summed(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    return {key: first.get(key, 0) + second.get(key, 0) for key in {**first, **second}}


def _reasons_together(first: Snapshot, second: Snapshot) -> tuple[Retrace, ...]:
    found = {reason.text: reason for reason in first.retrace_reasons}
    for reason in second.retrace_reasons:
        old = found.pop(reason.text, Retrace(reason.text, 0, 0.0))
        found[reason.text] = replace(
            reason, count=reason.count + old.count, seconds=reason.seconds + old.seconds
        )
    return tuple(found.values())
