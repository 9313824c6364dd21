"""What one traced function owns beside its wrapper: options, counts, and traces by instance."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from lazytrace._native import available, core
from lazytrace.callsite import Site, call_site
from lazytrace.config import Options
from lazytrace.engine.instances import Instances
from lazytrace.engine.store import TraceCache
from lazytrace.engine.switches import disabled_by_environment
from lazytrace.errors import LazytraceWarning, RetraceWarning, retraces_waste
from lazytrace.originals import BUILTINS
from lazytrace.recorded import Trace
from lazytrace.signature import Parameters, Unread
from lazytrace.stats import Counters, EventLog, Program, Reason, Snapshot, new_log

if TYPE_CHECKING:
    from lazytrace._core import EagerCount, Matcher

__builtins__ = BUILTINS


class CacheInfo(NamedTuple):
    """As `functools.lru_cache` has it: hits, misses, maxsize and currsize (the last two in traces)."""

    hits: int
    misses: int
    maxsize: int
    currsize: int


# These are functions, not methods: a cache or a snapshot that referred to its owner would keep it alive until
# the collector comes, and the user's function with it.
def _tell_evicted(log: EventLog, instance: int, trace: Trace, why: str) -> None:
    log.evicted(trace.key, trace.operators, why, instance)


def _new_cache(log: EventLog, limit: int, numbers: itertools.count[int]) -> TraceCache:
    number = next(numbers)
    return TraceCache(limit, partial(_tell_evicted, log, number), number)


def _snapshot(
    counters: Counters,
    log: EventLog,
    name: str,
    options: Options,
    parameters: str,
    source: str,
    unread: Unread,
    size: int = 0,
) -> Snapshot:
    counted = counters.snapshot(name, size, options.cache_limit, parameters)
    # Only what was recorded again is told of its arguments.
    names = unread.names() if counted.retraces else ()
    return dataclasses.replace(
        counted,
        events=log.events(),
        timeline=log.hits(),
        source=source,
        unread=names,
        dynamic=options.dynamic,
    )


def _programs(cache: TraceCache, instances: Instances) -> list[Program]:
    found: list[Program] = []
    signatures: dict[tuple[int, bytes], int] = {}
    for one in [cache, *instances.caches()]:
        for trace in reversed(one.traces.all()):
            number = signatures.setdefault((one.instance, trace.key), len(signatures))
            found.append(trace.described(number, one.instance))
    return found


def _source(function: Callable[..., Any]) -> str:
    """`train.py:41`, the line where a function begins; "" of what has no Python code."""
    code = getattr(function, "__code__", None)
    return str(Site(code.co_filename, code.co_firstlineno)) if code is not None else ""


class Owner:
    """The plain function, its options, its counts, and its traces by instance."""

    def __init__(
        self, function: Callable[..., Any], options: Options, name: str, parameters: Parameters | None
    ) -> None:
        self.function = function
        self.options = options
        self.name = options.name or name
        self.source = _source(function)
        hits = core.HitCount() if available() else None
        self.counters = Counters(hits)
        self.log = new_log(self.counters, self.name, options.events)
        self.frozen = False
        self.warned_of_waste = False
        self.parameters = parameters
        # `Net.forward` says where it belongs; `step(x, w)` shows what its reasons speak of.
        self.shown = str(parameters) if parameters is not None and "." not in self.name else ""
        self._unread = parameters.unread() if parameters is not None else Unread(None)
        new_cache = partial(_new_cache, self.log, options.cache_limit, itertools.count())
        self.cache = new_cache()
        self.matcher: Matcher | None = None
        self.hits_natively = options.backend != "eager" and not disabled_by_environment
        if parameters is not None and hits is not None and self.cache.traces.native is not None:
            self.matcher = core.Matcher(parameters.native, self.cache.traces.native, hits)
            self.matcher.enabled = self.hits_natively
        self._instances = Instances(new_cache, self.matcher)
        self._counted: tuple[tuple[int, ...], Snapshot | None] = ((), None)

    def cache_of(self, instance: object) -> TraceCache:
        """The traces of an instance, or of the function itself (`None`, and what has no weak references)."""
        if instance is None:
            return self.cache
        return self._instances.cache_of(instance) or self.cache

    def caches(self) -> list[TraceCache]:
        """Every cache that is alive: the function's, and one per instance."""
        return [self.cache, *self._instances.caches()]

    def clear(self, cache: TraceCache | None = None) -> None:
        """Drop the traces of one cache, or of all."""
        for one in [cache] if cache is not None else self.caches():
            one.clear()

    def freeze(self) -> None:
        """Record no more; a call that would be recorded raises, and so must be seen."""
        self.frozen = True
        for cache in self.caches():
            cache.wake()

    def promise(self, cache: TraceCache | None, first_argument: int) -> None:
        """State will not change: leave out the guards on it, of the traces of one cache or of all.

        `first_argument` is the first root of a call that is no state.
        """
        for one in [cache] if cache is not None else self.caches():
            for trace in one.traces.all():
                trace.native.promise(first_argument)
        self._count_promised()

    def doubt(self) -> None:
        """Take every promise back."""
        for cache in self.caches():
            for trace in cache.traces.all():
                trace.native.doubt()
        self._count_promised()

    def _count_promised(self) -> None:
        traces = [trace for cache in self.caches() for trace in cache.traces.all()]
        self.counters.promised(sum(trace.native.unguarded for trace in traces))

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the plain function, which finds behind it the code that called the traced one."""
        if available():
            return core.call_as_caller(self.function, args, kwargs)
        return self.function(*args, **kwargs)

    # ------------------------------------------------------------ counting
    def eager(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reason: Reason,
        key: bytes | None = None,
    ) -> Any:
        """Run the plain function, counted with its reason."""
        site = str(call_site())
        start = perf_counter()
        try:
            return self.run(args, kwargs)
        finally:
            seconds = perf_counter() - start
            self.log.eager(reason.path, reason.where, start, seconds, where=site, key=key)

    def count_natively(self, reason: Reason) -> EagerCount | None:
        """What counts calls with a reason without Python; None when somebody is told of each."""
        if self.matcher is None or not self.matcher.enabled or self.log.listens():
            return None
        return self.counters.settled(reason.path, reason.where)

    def settle(self, cache: TraceCache, key: bytes, reason: Reason) -> None:
        """Let the calls of a signature that will not be recorded again run without Python."""
        refusal = cache.refusals.of(key)
        count = self.count_natively(reason) if refusal is not None and refusal.settled else None
        if count is not None:
            cache.settle(key, count)

    def gave_up(self, key: bytes, site: Site, reason: Reason, start: float) -> None:
        """Count a recording that was given up; it began at `start` seconds of `time.perf_counter`."""
        seconds = perf_counter() - start
        self.log.eager(reason.path, reason.where, start, seconds, recording=True, where=str(site), key=key)

    def warn(self, text: str, site: Site, category: type[LazytraceWarning] = RetraceWarning) -> None:
        """Warn of the line that called, however many frames of torch and lazytrace lie between."""
        warnings.warn_explicit(text, category, site.file or "?", site.line)

    def warn_of_waste(self, site: Site) -> None:
        """Warn once when the recordings have certainly cost more than the hits saved."""
        if self.warned_of_waste or not self.counters.wastes():
            return
        # The first pass over many layers is no waste; instances that are gone by now were.
        if self.counters.wastes(first=sum(len(cache.traces) > 0 for cache in self._instances.caches())):
            self.warned_of_waste = True
            from lazytrace.stats import wasted

            self.warn(retraces_waste(self.name, *wasted(self.stats())), site)

    # ------------------------------------------------------------ asking
    def stats(self) -> Snapshot:
        """The counts, over all instances."""
        size = sum(len(cache.traces) for cache in self.caches())
        mark = (size, *self.counters.mark())
        counted, snapshot = self._counted
        # Asked again and again, as by a plugin at each test, most functions have nothing new.
        if snapshot is None or counted != mark:
            snapshot = self.last_snapshot()(size)
            self._counted = (mark, snapshot)
        return snapshot

    def last_snapshot(self) -> Callable[..., Snapshot]:
        """A snapshot for when this owner is gone; takes how many traces there are."""
        return partial(
            _snapshot, self.counters, self.log, self.name, self.options, self.shown, self.source, self._unread
        )

    def last_programs(self) -> Callable[[], list[Program]]:
        """The programs for when this owner is gone: traces hold nothing of the user's."""
        return partial(_programs, self.cache, self._instances)

    def cache_info(self, cache: TraceCache) -> CacheInfo:
        """Hits and misses of the function; size and limit of one cache."""
        counted = self.counters.snapshot(self.name, 0, cache.limit)
        misses = counted.calls - counted.hits - counted.inlined
        return CacheInfo(counted.hits, misses, cache.limit, len(cache.traces))
