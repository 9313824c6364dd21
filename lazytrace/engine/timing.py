"""Timing of hits: switched on for timelines, and not there at all otherwise."""

from __future__ import annotations

from collections.abc import Callable
from threading import local
from time import perf_counter
from typing import Any
from weakref import ref

from lazytrace._native import core, problem
from lazytrace.engine.owner import Owner
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS


def time_hits(engine: Owner, call: Callable[..., Any], enabled: bool) -> None:
    """Time each hit of an engine, whose calls `call` answers, from now on, or no longer do so.

    While it is off a hit runs the very code that it would without this module.
    """
    # An attribute of the instance goes before the method of the class.
    engine.__dict__.pop("call", None)
    engine.counters.time_hits(None)
    if engine.matcher is not None:
        engine.matcher.enabled = not enabled and engine.hits_natively
    if enabled and not problem:
        clock = _Clock(engine, call)
        engine.counters.time_hits(clock.stop)
        engine.__dict__["call"] = clock.call


class _Clock:
    """Starts at a call and stops where the call is counted as a hit."""

    def __init__(self, engine: Owner, call: Callable[..., Any]) -> None:
        self._call = call
        # A strong reference would be a cycle, and the engine would live until the collector comes.
        self._engine = ref(engine)
        self._running = local()

    def call(self, instance: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        engine = self._engine()
        assert engine is not None
        if not core.is_recording():
            self._running.checking = _seconds_checking(engine, instance, args, kwargs)
            self._running.start = perf_counter()
        return self._call(engine, instance, args, kwargs)

    def stop(self) -> None:
        now, engine = perf_counter(), self._engine()
        start = getattr(self._running, "start", None)
        if engine is not None and start is not None:
            engine.log.hit(start, now - start, self._running.checking)
            self._running.start = None


def _seconds_checking(
    engine: Owner, instance: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> float:
    """What it takes to bind the arguments and to check the guards of the traces that they have."""
    assert engine.parameters is not None
    start = perf_counter()
    call = engine.parameters.bind(engine.function, args, kwargs)
    if call is not None and not call.unsupported:
        any(trace.native.check(call) < 0 for trace in engine.cache_of(instance).traces.matching(call))
    return perf_counter() - start
