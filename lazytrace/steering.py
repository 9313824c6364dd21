"""Steering when recordings happen: all of them before, none or a known number inside a block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lazytrace.buckets import Bucketed
from lazytrace.errors import NotTraceableError, RetraceError, not_traced, unexpected_calls
from lazytrace.function import BoundTracedFunction, TracedFunction
from lazytrace.originals import BUILTINS
from lazytrace.stats import CompileProfiler, Snapshot, line_of

__builtins__ = BUILTINS


def warmup(function: Callable[..., Any], calls: Iterable[Any]) -> int:
    """Call a traced function once with each of some arguments, so that it is recorded for them.

    Each of `calls` is a tuple of positional arguments, a dict of keyword arguments, or one argument. Returns
    how many recordings were made. They count as wanted: `RetraceWarning` is not given for them. The calls are
    real ones, whatever they write to is written to. Raises `NotTraceableError` where `function` is no traced
    function.

    >>> import torch
    >>> from lazytrace import traced
    >>> step = traced(lambda x, k: x * k)
    >>> warmup(step, [(torch.ones(2), 1), (torch.ones(3), 1), {"x": torch.ones(2), "k": 1}])
    2
    >>> step.freeze()
    """
    counters = traced_of(function, "warmup")._self_engine.counters
    with counters.unjudged() as recorded:
        for one in calls:
            if isinstance(one, dict):
                function(**one)
            else:
                function(*(one if isinstance(one, tuple) else (one,)))
    return len(recorded)


@contextlib.contextmanager
def expect(*, traces: int | None = None, eager: int | None = None) -> Iterator[None]:
    """Expect exactly so many recordings, and so many eager calls, of all traced functions inside a block.

    Raises `RetraceError` at its end where there were others, with the reason of each. Exceptions of the block
    pass through.

    >>> import torch
    >>> from lazytrace import traced
    >>> step = traced(lambda x: x * 2, name="step")
    >>> with expect(traces=1):
    ...     _ = step(torch.ones(2)), step(torch.ones(2))
    >>> with expect(traces=0):  # doctest: +ELLIPSIS
    ...     _ = step(torch.ones(3))
    Traceback (most recent call last):
        ...
    lazytrace.errors.RetraceError: expected 0 traces in this block, 1 was recorded:
      step: x.shape[0] 2 -> 3 (called at <doctest ...
    """
    with CompileProfiler() as profiler:
        yield
    found = profiler.snapshots()
    recordings, eagerly = sum(s.recordings for s in found), sum(s.eager_calls for s in found)
    if traces is not None and recordings != traces:
        raise RetraceError(unexpected_calls("trace", traces, recordings, event_lines(found, "recorded")))
    if eager is not None and eagerly != eager:
        raise RetraceError(unexpected_calls("eager call", eager, eagerly, event_lines(found, "eager")))


def traced_of(function: object, asker: str) -> TracedFunction:
    """The traced function behind what a person has in hand, a bound method for example."""
    if isinstance(function, Bucketed):
        function = function.__wrapped__
    found = getattr(function, "_self_parent", None) if isinstance(function, BoundTracedFunction) else function
    if not isinstance(found, TracedFunction):
        raise NotTraceableError(not_traced(asker, function))
    return found


def event_lines(snapshots: Iterable[Snapshot], *kinds: str, retraces_only: bool = False) -> list[str]:
    """A line per kept event of some kinds, with its reasons and the line that called."""
    events = [event for s in snapshots for event in s.events if event.kind in kinds]
    return [
        f"{event.function}: {line_of(event.reasons)}" + (f" (called at {event.where})" if event.where else "")
        for event in sorted(events, key=lambda event: event.number)
        if event.retrace or not retraces_only
    ]
