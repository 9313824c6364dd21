"""What a traced function owns beside its wrapper, and the path of a call: match, guards, replay or record."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lazytrace._native import available, core, problem
from lazytrace.cache import TraceCache
from lazytrace.config import Environment, Options
from lazytrace.errors import (
    CacheLimitError,
    ProofWarning,
    ReplayError,
    UntraceableError,
    cache_limit,
    proof_failed,
    replay_diverged,
    untraceable,
)
from lazytrace.guards import failed_guard
from lazytrace.recording import Recorded, place, record
from lazytrace.signature import Parameters, describe, differences, nearest, root_names
from lazytrace.stats import Counters, Snapshot
from lazytrace.trace import Trace

if TYPE_CHECKING:
    from lazytrace._core import Call, Miss, Resume

_disabled_by_environment = Environment.read().disabled
_disabled: contextvars.ContextVar[bool] = contextvars.ContextVar("lazytrace_disabled", default=False)


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Run every traced function eagerly inside the block, in this thread or task.

    >>> import lazytrace, torch
    >>> @lazytrace.traced
    ... def double(x):
    ...     return x * 2
    >>> with lazytrace.disabled():
    ...     _ = double(torch.ones(1))
    >>> double.cache_info().currsize
    0
    """
    token = _disabled.set(True)
    try:
        yield
    finally:
        _disabled.reset(token)


def is_tracing() -> bool:
    """Whether this thread is recording a traced function right now.

    >>> is_tracing()
    False
    """
    return available() and core.is_recording()


class CacheInfo(NamedTuple):
    """As `functools.lru_cache` has it: hits, misses, maxsize and currsize (the last two in traces)."""

    hits: int
    misses: int
    maxsize: int
    currsize: int


def _row(traces: tuple[Trace, ...], trace: Trace, miss: Miss) -> dict[str, Any]:
    """The step of a miss, which another trace than the one that was asked may have come to."""
    at = next((one for one in traces if one.number == miss.trace), trace)
    return at.native.rows()[miss.step]


def _inside_other_tracer() -> bool:
    return torch.compiler.is_compiling() or core.must_step_aside()


class Engine:
    """Everything that a traced function owns beside the wrapper: options, counts, and traces by instance."""

    def __init__(
        self, function: Callable[..., Any], options: Options, name: str, parameters: Parameters | None
    ) -> None:
        self.function = function
        self.options = options
        self.name = options.name or name
        self.counters = Counters()
        self.parameters = parameters
        # `Net.forward` says where it belongs; `step(x, w)` shows what its reasons speak of.
        self.shown = str(parameters) if parameters is not None and "." not in self.name else ""
        self.cache = self._new_cache()
        # Instances by id, with a reference that clears the entry: an instance need not be hashable.
        self._instances: dict[int, tuple[weakref.ref[Any], TraceCache]] = {}
        self._lock = threading.Lock()

    def _new_cache(self) -> TraceCache:
        return TraceCache(self.options.cache_limit, self.counters.evicted)

    def cache_of(self, instance: object) -> TraceCache:
        """The traces of an instance, or of the function itself (`None`, and what has no weak references)."""
        if instance is None:
            return self.cache
        known = self._instances.get(id(instance))
        if known is not None and known[0]() is instance:
            return known[1]
        try:
            # The callback passes the dead reference on, as what pop() gives where the entry is gone already.
            reference = weakref.ref(instance, functools.partial(self._instances.pop, id(instance)))
        except TypeError:
            return self.cache
        with self._lock:
            known = self._instances.get(id(instance))
            if known is None or known[0]() is not instance:
                known = self._instances[id(instance)] = (reference, self._new_cache())
            return known[1]

    def caches(self) -> list[TraceCache]:
        """Every cache that is alive: the function's, and one per instance."""
        return [self.cache, *(cache for _, cache in list(self._instances.values()))]

    # ------------------------------------------------------------ a call
    def call(self, instance: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call: a hit, a recording, an eager call or an inlined call, each counted."""
        if problem:
            return self.eager(args, kwargs, problem)
        if core.is_recording():
            self.counters.inlined()
            return self.function(*args, **kwargs)
        if _inside_other_tracer():
            return self.eager(args, kwargs, "runs inside another tracer or transform")
        if _disabled_by_environment or _disabled.get():
            return self.eager(args, kwargs, "lazytrace is disabled")
        if self.options.backend == "eager":
            return self.eager(args, kwargs, 'backend="eager"')
        assert self.parameters is not None
        call = self.parameters.native.bind(self.function, args, kwargs, self.parameters.defaults())
        if call is None:
            return self.eager(args, kwargs, "the arguments do not fit the parameters")
        if call.unsupported:
            return self._untraced(args, kwargs, call.unsupported, "")
        return self._match(self.cache_of(instance), call, args, kwargs)

    def eager(self, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str, where: str = "") -> Any:
        """Run the plain function, counted with its reason."""
        self.counters.eager(reason, where)
        return self.function(*args, **kwargs)

    def _untraced(self, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str, where: str) -> Any:
        if self.options.on_untraceable == "raise":
            raise UntraceableError(untraceable(self.name, f"{reason} ({where})" if where else reason))
        return self.eager(args, kwargs, reason, where)

    def _match(self, cache: TraceCache, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        traces = cache.find(call.key)
        changed: tuple[str, ...] | None = None
        restarts = 0
        for trace in traces:
            try:
                result = trace.native.replay(call)
            except BaseException as error:
                self.counters.eager(f"raised {type(error).__name__}")
                raise
            if type(result) is core.Branched:
                self.counters.hit()
                cache.branched(call.key, result.trace)
                return result.result
            if type(result) is not core.Miss:
                self.counters.hit()
                cache.used(trace)
                return result
            if result.resume is not None:
                return self._resume(
                    cache, call, args, kwargs, result, self._why(traces, trace, result, call, args, kwargs)
                )
            if result.step >= 0:
                restarts += 1
                self._refuse_to_go_on(traces, trace, result)
            if changed is None or result.step >= 0:
                changed = (self._why(traces, trace, result, call, args, kwargs),)
        if restarts >= self.options.exit_limit and changed:
            cache.refuse_for_good(call.key, self._too_many(changed[0]))
        return self._miss(cache, call, args, kwargs, changed)

    def _too_many(self, said: str) -> str:
        return f"too many branches: {said}; a @script_if_tracing function keeps them in one program"

    def _resume(
        self,
        cache: TraceCache,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        miss: Miss,
        why: str,
    ) -> Any:
        """Go on after a side exit: what the replay has done is fed to the function, and the rest recorded."""
        key = call.key
        assert miss.resume is not None
        full = cache.full() and self.options.on_limit != "evict"
        if full and not miss.effects:
            return self._over_limit(cache, key, args, kwargs)
        many = (
            miss.resume.branches >= self.options.exit_limit
            or len(cache.find(key)) >= self.options.branch_limit
        )
        claimed = cache.begin(key)
        unkept = (
            "another thread is recording this signature"
            if not claimed
            else self._too_many(why)
            if many
            else f"cache_limit={cache.limit} was reached"
            if full
            else ""
        )
        try:
            return self._record(cache, call, args, kwargs, (why,), miss.resume, unkept)
        except core.Diverged as divergence:
            detail = f"Python asked for something else than it did when it was recorded: {divergence}"
            if miss.effects:
                raise ReplayError(replay_diverged(self.name, detail)) from None
        finally:
            if claimed:
                cache.end(key)
            if many:
                cache.refuse_for_good(key, self._too_many(why))
        return self.eager(args, kwargs, detail)

    def _refuse_to_go_on(self, traces: tuple[Trace, ...], trace: Trace, miss: Miss) -> None:
        if not miss.effects:
            return
        row = _row(traces, trace, miss)
        detail = f"{row['operator']} ({place(row['place'])}) gave {miss.found}"
        raise ReplayError(replay_diverged(self.name, detail))

    def _why(
        self,
        traces: tuple[Trace, ...],
        trace: Trace,
        miss: Miss,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> str:
        if miss.step >= 0:
            row = _row(traces, trace, miss)
            old = (row["results"] or [("none", None, "")])[0]
            was = repr(old[1]) if old[0] == "read" else "the recorded shape"
            at = place(row["place"])
            name = row["operator"].removeprefix("aten::")
            return f"result of {name} {was} -> {miss.found}" + (f" ({at})" if at else "")
        assert self.parameters is not None
        names = root_names(self.name, self.parameters.named(args, kwargs))
        return failed_guard(trace.native.explain(miss.node, call, names))

    def _miss(
        self,
        cache: TraceCache,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        changed: tuple[str, ...] | None,
    ) -> Any:
        key = call.key
        refusal = cache.refusal(key)
        if refusal is not None and not refusal.again():
            return self._untraced(args, kwargs, refusal.reason, refusal.where)
        if cache.full() and self.options.on_limit != "evict":
            return self._over_limit(cache, key, args, kwargs)
        if not cache.begin(key):
            return self.eager(args, kwargs, "another thread is recording this signature")
        try:
            return self._record(cache, call, args, kwargs, changed)
        finally:
            cache.end(key)

    def _over_limit(
        self, cache: TraceCache, key: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        cache.wanted.add((hash(key), len(cache.find(key))))
        self.counters.wanted(len(cache.wanted))
        if self.options.on_limit == "raise":
            raise CacheLimitError(cache_limit(self.name, cache.limit, len(cache.wanted)))
        return self.eager(args, kwargs, f"cache_limit={cache.limit} was reached")

    def _record(
        self,
        cache: TraceCache,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        changed: tuple[str, ...] | None,
        resume: Resume | None = None,
        unkept: str = "",
    ) -> Any:
        assert self.parameters is not None
        named = self.parameters.named(args, kwargs)
        words = describe(named, core.describe_ambient())
        names = root_names(self.name, named)
        start = time.perf_counter()
        try:
            recorded = record(call, self.function, args, kwargs, check=self.options.check, resume=resume)
        except core.Diverged:
            raise
        except BaseException as error:
            self.counters.eager(f"raised {type(error).__name__}", seconds=time.perf_counter() - start)
            raise
        if unkept:
            self.counters.eager(unkept, seconds=recorded.seconds)
            return recorded.result
        if recorded.native is None:
            return self._rejected(cache, call.key, recorded, resume)
        trace = Trace(recorded.native, call.key, words, names)
        self._keep(cache, trace, changed, recorded.seconds)
        return recorded.result

    def _keep(self, cache: TraceCache, trace: Trace, reasons: tuple[str, ...] | None, seconds: float) -> None:
        known = cache.traces()
        if reasons is None and known:
            closest = nearest(trace.description, [other.description for other in known])
            reasons = differences(closest, trace.description) if closest is not None else ()
        cache.wanted.add((hash(trace.key), len(cache.find(trace.key))))
        self.counters.wanted(len(cache.wanted))
        cache.add(trace)
        self.counters.recorded(
            seconds, trace.native.size, self._reasons(reasons, bool(known)), retrace=bool(known)
        )

    def _reasons(self, reasons: tuple[str, ...] | None, retrace: bool) -> tuple[str, ...]:
        if not retrace:
            return ("first call",)
        return reasons or ("recorded again after an eviction",)

    def _rejected(self, cache: TraceCache, key: bytes, recorded: Recorded, resume: Resume | None) -> Any:
        if recorded.wrong:
            self.counters.proof_failed()
            warnings.warn(proof_failed(self.name, recorded.wrong), ProofWarning, stacklevel=6)
        if resume is None:
            cache.refuse(key, recorded.reason, recorded.where)
        else:  # the other branches stay, unless this one is taken again and again
            cache.refuse_branch(key, recorded.reason, recorded.where, self.options.exit_limit)
        self.counters.eager(recorded.reason, recorded.where, recorded.seconds)
        if self.options.on_untraceable == "raise" and resume is None:
            reason = f"{recorded.reason} ({recorded.where})" if recorded.where else recorded.reason
            raise UntraceableError(untraceable(self.name, reason))
        return recorded.result

    # ------------------------------------------------------------ asking
    def snapshot(self) -> Snapshot:
        """The counts, over all instances."""
        size = sum(len(cache) for cache in self.caches())
        return self.counters.snapshot(self.name, size, self.options.cache_limit, self.shown)

    def last_snapshot(self) -> Callable[[], Snapshot]:
        """A snapshot for when this engine is gone."""
        return functools.partial(self.counters.snapshot, self.name, 0, self.options.cache_limit, self.shown)

    def cache_info(self, cache: TraceCache) -> CacheInfo:
        """Hits and misses of the function; size and limit of one cache."""
        counted = self.snapshot()
        return CacheInfo(
            counted.hits, counted.calls - counted.hits - counted.inlined, cache.limit, len(cache)
        )

    def find(self, cache: TraceCache, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trace:
        """The trace that a call would hit; `LookupError` where it would not."""
        if self.parameters is None:
            raise LookupError(f"{self.name} has no programs: {problem}")
        call = self.parameters.native.bind(self.function, args, kwargs, self.parameters.defaults())
        for trace in cache.find(call.key) if call is not None else ():
            if call is not None and trace.native.check(call) < 0:
                return trace
        raise LookupError(f"{self.name} has no program for these arguments: call it with them first")

    def clear(self, cache: TraceCache | None = None) -> None:
        """Drop the traces of one cache, or of all."""
        for one in [cache] if cache is not None else self.caches():
            one.clear()
