"""For tests of traced code: how often it was recorded, or that it was not, with the reasons if it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from lazytrace.errors import unexpected_calls, wrong_traces
from lazytrace.function import TracedFunction
from lazytrace.stats import Baseline, CompileProfiler, Snapshot, baseline, number_of, since
from lazytrace.steering import event_lines, traced_of

# What traced functions had counted when the running test began; empty when no plugin is at work.
_before_test: Baseline = {}


def count_from_now() -> None:
    """Count for the test that starts now: what others recorded is no concern of it."""
    _before_test.clear()
    _before_test.update(baseline(gone=False))


def _in_test(function: TracedFunction) -> Snapshot:
    engine = function._self_engine
    return since(_before_test.get(number_of(engine)), engine.stats())


def assert_traces(
    function: Callable[..., Any], *, exactly: int | None = None, at_most: int | None = None
) -> None:
    """Assert how often a traced function was recorded, over all instances.

    Under the pytest plugin only the recordings of the running test count. Raises `AssertionError` with the
    reason of each recording.

    >>> import torch
    >>> from lazytrace import traced
    >>> step = traced(lambda x: x * 2)
    >>> _ = step(torch.ones(2)), step(torch.ones(2))
    >>> assert_traces(step, exactly=1)
    """
    if (exactly is None) == (at_most is None):
        raise TypeError("assert_traces takes exactly= or at_most=, one of them")
    snapshot = _in_test(traced_of(function, "assert_traces"))
    wanted = f"exactly {exactly}" if exactly is not None else f"at most {at_most}"
    if snapshot.recordings != exactly if at_most is None else snapshot.recordings > at_most:
        lines = event_lines([snapshot], "recorded")
        raise AssertionError(wrong_traces(snapshot.name, wanted, snapshot.recordings, lines))


@contextlib.contextmanager
def no_retrace() -> Iterator[None]:
    """Assert that no traced function is recorded again inside the block; first recordings are allowed.

    >>> with no_retrace():
    ...     pass
    """
    with CompileProfiler() as profiler:
        yield
    found = profiler.snapshots()
    _assert_none(
        "retrace", sum(s.retraces for s in found), event_lines(found, "recorded", retraces_only=True)
    )


@contextlib.contextmanager
def no_eager() -> Iterator[None]:
    """Assert that no traced function runs eagerly inside the block.

    >>> with no_eager():
    ...     pass
    """
    with CompileProfiler() as profiler:
        yield
    found: tuple[Snapshot, ...] = profiler.snapshots()
    _assert_none("eager call", sum(s.eager_calls for s in found), event_lines(found, "eager"))


def _assert_none(what: str, count: int, lines: list[str]) -> None:
    if count:
        raise AssertionError(unexpected_calls(what, 0, count, lines))
