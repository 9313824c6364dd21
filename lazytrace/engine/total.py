"""The limit over all functions and instances: `LAZYTRACE_TOTAL_LIMIT`."""

from __future__ import annotations

from lazytrace.engine.owner import Owner
from lazytrace.engine.store import TraceCache
from lazytrace.originals import BUILTINS
from lazytrace.recorded import Trace
from lazytrace.stats import owners

__builtins__ = BUILTINS


def evict_over(limit: int, newest: Trace) -> None:
    """Drop the traces that were not used for longest, of whatever function, until `limit` are left.

    `newest` stays, and so do the traces of frozen functions, which could not be recorded again. What is
    dropped is counted as an eviction of the function whose it was.
    """
    functions = [owner for owner in owners() if isinstance(owner, Owner)]
    excess = sum(len(cache.traces) for owner in functions for cache in owner.caches()) - limit
    if excess <= 0:
        return
    known: list[tuple[int, Trace, TraceCache]] = [
        (trace.native.used, trace, cache)
        for owner in functions
        if not owner.frozen
        for cache in owner.caches()
        for trace in cache.traces.all()
        if trace is not newest
    ]
    known.sort(key=lambda one: one[0])
    for _, trace, cache in known[:excess]:
        cache.evict(trace, limit)
