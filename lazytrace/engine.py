"""What a traced function owns beside its wrapper, and the path of a call: match, guards, replay or record."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import itertools
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lazytrace._native import available, core, problem
from lazytrace.cache import TraceCache
from lazytrace.callsite import Site, call_site
from lazytrace.config import Environment, Options
from lazytrace.errors import (
    CacheLimitError,
    ProofWarning,
    ReplayError,
    RetraceError,
    RetraceWarning,
    UntraceableError,
    cache_limit,
    proof_failed,
    replay_diverged,
    retrace_refused,
    retraced,
    retraces_waste,
    untraceable,
)
from lazytrace.explain import AGAIN, FIRST, Explanation, Search, candidates
from lazytrace.guards import failed_guard
from lazytrace.recording import Recorded, place, record
from lazytrace.signature import Parameters, describe, root_names
from lazytrace.stats import Counters, EventLog, Program, Reason, Snapshot, new_log, said, wasted
from lazytrace.trace import Trace

if TYPE_CHECKING:
    from lazytrace._core import Call, Matcher, Miss, Resume

_OTHER_TRACER = "runs inside another tracer or transform"
_DISABLED = "lazytrace is disabled"
_EAGER_BACKEND = 'backend="eager"'
_RECORDED_ELSEWHERE = "another thread is recording this signature"
_CHANGED_MEANWHILE = "another thread changed what it was called with"
_DO_NOT_FIT = "the arguments do not fit the parameters"

_disabled_by_environment = Environment.read().disabled
_disabled: contextvars.ContextVar[bool] = contextvars.ContextVar("lazytrace_disabled", default=False)
if available():
    core.configure_disabled(_disabled)


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


def _row(traces: tuple[Trace, ...], trace: Trace | None, miss: Miss) -> dict[str, Any] | None:
    """The step of a miss, which another trace than the one asked may have come to; None: that is gone."""
    at = next((one for one in traces if one.number == miss.trace), trace)
    return at.native.rows()[miss.step] if at is not None and at.number == miss.trace else None


def _inside_other_tracer() -> bool:
    return torch.compiler.is_compiling() or core.must_step_aside()


def _tell_evicted(log: EventLog, limit: int, instance: int, trace: Trace) -> None:
    # Not a method: a cache that refers to its engine would live until the collector comes.
    log.evicted(trace.key, trace.operators, limit, instance)


def _forget(
    instances: dict[int, tuple[weakref.ref[Any], TraceCache]],
    matcher: Matcher | None,
    instance: int,
    reference: weakref.ref[Any],
) -> None:
    # Another object may have taken the place, and be known by now.
    if instance in instances and instances[instance][0] is reference:
        del instances[instance]
        if matcher is not None:
            matcher.leave(instance)


def _snapshot(
    counters: Counters, log: EventLog, name: str, limit: int, parameters: str, source: str, size: int = 0
) -> Snapshot:
    counted = counters.snapshot(name, size, limit, parameters)
    return dataclasses.replace(counted, events=log.events(), timeline=log.hits(), source=source)


def _programs(cache: TraceCache, instances: dict[int, tuple[Any, TraceCache]]) -> list[Program]:
    found: list[Program] = []
    signatures: dict[tuple[int, bytes], int] = {}
    for one in [cache, *(other for _, other in list(instances.values()))]:
        for trace in reversed(one.traces()):
            number = signatures.setdefault((one.instance, trace.key), len(signatures))
            found.append(trace.described(number, one.instance))
    return found


def _source(function: Callable[..., Any]) -> str:
    """`train.py:41`, the line where a function begins; "" of what has no Python code."""
    code = getattr(function, "__code__", None)
    return str(Site(code.co_filename, code.co_firstlineno)) if code is not None else ""


class Engine:
    """Everything that a traced function owns beside the wrapper: options, counts, and traces by instance."""

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
        self._instance_numbers = itertools.count()
        self.cache = self._new_cache()
        # Instances by id, with a reference that clears the entry: an instance need not be hashable.
        self._instances: dict[int, tuple[weakref.ref[Any], TraceCache]] = {}
        # Reentrant, as all locks here: a destructor that calls a traced function may run in the middle.
        self._lock = threading.RLock()
        self.matcher: Matcher | None = None
        self.hits_natively = options.backend != "eager" and not _disabled_by_environment
        if parameters is not None and hits is not None and self.cache.native is not None:
            self.matcher = core.Matcher(parameters.native, self.cache.native, hits)
            self.matcher.enabled = self.hits_natively

    def _new_cache(self) -> TraceCache:
        limit, number = self.options.cache_limit, next(self._instance_numbers)
        return TraceCache(limit, functools.partial(_tell_evicted, self.log, limit, number), number)

    def cache_of(self, instance: object) -> TraceCache:
        """The traces of an instance, or of the function itself (`None`, and what has no weak references)."""
        if instance is None:
            return self.cache
        known = self._instances.get(id(instance))
        if known is not None and known[0]() is instance:
            return known[1]
        try:
            forget = functools.partial(_forget, self._instances, self.matcher, id(instance))
            reference = weakref.ref(instance, forget)
        except TypeError:
            return self.cache
        with self._lock:
            known = self._instances.get(id(instance))
            if known is None or known[0]() is not instance:
                known = self._instances[id(instance)] = (reference, self._new_cache())
                if self.matcher is not None and known[1].native is not None:
                    self.matcher.enter(instance, reference, known[1].native)
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
            return self.eager(args, kwargs, _OTHER_TRACER)
        if _disabled_by_environment or _disabled.get():
            return self.eager(args, kwargs, _DISABLED)
        if self.options.backend == "eager":
            return self.eager(args, kwargs, _EAGER_BACKEND)
        assert self.parameters is not None
        call = self.parameters.bind(self.function, args, kwargs)
        if call is None:
            return self.eager(args, kwargs, _DO_NOT_FIT)
        if call.unsupported:
            return self._untraced(args, kwargs, call.unsupported, "")
        return self._match(self.cache_of(instance), call, args, kwargs)

    def eager(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reason: str,
        where: str = "",
        key: bytes | None = None,
    ) -> Any:
        """Run the plain function, counted with its reason."""
        site = str(call_site())
        start = time.perf_counter()
        try:
            return self.function(*args, **kwargs)
        finally:
            self.log.eager(reason, where, start, time.perf_counter() - start, where=site, key=key)

    def _untraced(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str, where: str, key: bytes | None = None
    ) -> Any:
        if self.options.on_untraceable == "raise":
            raise UntraceableError(untraceable(self.name, f"{reason} ({where})" if where else reason))
        return self.eager(args, kwargs, reason, where, key)

    def go_on(
        self,
        instance: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Call,
        number: int,
        outcome: Any,
    ) -> Any:
        """A call that the core has begun: the trace with this number ran and took a side exit, or raised."""
        return self._match(self.cache_of(instance), call, args, kwargs, (number, outcome))

    def _match(
        self,
        cache: TraceCache,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        ran: tuple[int, Any] = (-1, None),
    ) -> Any:
        traces = cache.find(call.key)
        number, outcome = ran
        changed: tuple[Reason, ...] | None = None
        restarts = 0
        # The trace that ran may be gone by now: its outcome counts all the same, as it ran.
        begin = next((i for i, trace in enumerate(traces) if trace.number == number), -1)
        for trace in (None, *traces) if number >= 0 and begin < 0 else traces[max(begin, 0) :]:
            try:
                result = outcome if trace is None or trace.number == number else trace.native.replay(call)
                if type(result) is core.Raised:
                    result.rethrow()
            except BaseException as error:
                # Its time is not known: a clock would have to be read at every hit.
                reason = f"raised {type(error).__name__}"
                self._gave_up(call.key, call_site(), reason, "", time.perf_counter())
                raise
            if type(result) is core.Branched:
                self.counters.hit()
                cache.branched(call.key, result.trace)
                return result.result
            if type(result) is not core.Miss:
                self.counters.hit()
                if trace is not None:
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
        return self._miss(cache, call, args, kwargs, changed, traces)

    def _too_many(self, newest: Reason) -> str:
        return f"too many branches: {newest}; a @script_if_tracing function keeps them in one program"

    def _resume(
        self,
        cache: TraceCache,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        miss: Miss,
        why: Reason,
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
        if not claimed:
            unkept = _RECORDED_ELSEWHERE
        elif many:
            unkept = self._too_many(why)
        elif full:
            unkept = self._limit_reached(cache)
        elif miss.effects and self._refuses():
            # What has been done cannot be undone: the call is finished, and its branch not kept.
            unkept = f"{self._refuses()}: {why}"
        else:
            unkept = ""
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

    def _refuse_to_go_on(self, traces: tuple[Trace, ...], trace: Trace | None, miss: Miss) -> None:
        if not miss.effects:
            return
        row = _row(traces, trace, miss)
        what = f"{row['operator']} ({place(row['place'])})" if row is not None else "an operator"
        detail = f"{what} gave {miss.found}"
        raise ReplayError(replay_diverged(self.name, detail))

    def _why(
        self,
        traces: tuple[Trace, ...],
        trace: Trace | None,
        miss: Miss,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Reason:
        if miss.step >= 0:
            row = _row(traces, trace, miss)
            if row is None:
                return Reason("result of a step whose trace was dropped meanwhile", "", miss.found, "branch")
            old = (row["results"] or [("none", None, "")])[0]
            was = repr(old[1]) if old[0] == "read" else "the recorded shape"
            at = place(row["place"])
            name = row["operator"].removeprefix("aten::")
            return Reason(f"result of {name}", was, miss.found, "branch", at)
        assert self.parameters is not None
        assert trace is not None  # what the core hands over has run
        names = root_names(self.name, self.parameters.named(args, kwargs))
        return failed_guard(trace.native.explain(miss.node, call, names))

    def _miss(
        self,
        cache: TraceCache,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        changed: tuple[Reason, ...] | None,
        asked: tuple[Trace, ...],
    ) -> Any:
        key = call.key
        refusal = cache.refusal(key)
        if refusal is not None and (self.frozen or not refusal.again()):
            return self._untraced(args, kwargs, refusal.reason, refusal.where, key)
        if cache.full() and self.options.on_limit != "evict":
            return self._over_limit(cache, key, args, kwargs)
        if not cache.begin(key):
            return self.eager(args, kwargs, _RECORDED_ELSEWHERE, key=key)
        try:
            # Another thread may have recorded this very call since the traces were asked, or be about to take
            # the last place.
            current = cache.find(key) == asked and cache.refusal(key) is refusal
            if current and (self.options.on_limit == "evict" or not cache.overbooked()):
                return self._record_steadily(cache, call, args, kwargs, changed)
        finally:
            cache.end(key)
        if current:
            return self._over_limit(cache, key, args, kwargs)
        return self._match(cache, call, args, kwargs)

    def _record_steadily(
        self,
        cache: TraceCache,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        changed: tuple[Reason, ...] | None,
    ) -> Any:
        """Record a call whose defaults may be assigned by another thread before the function reads them."""
        assert self.parameters is not None
        all_args, all_kwargs = self.parameters.explicit(args, kwargs)
        if len(all_args) == len(args) and len(all_kwargs) == len(kwargs):
            return self._record(cache, call, args, kwargs, changed)
        again = self.parameters.bind(self.function, all_args, all_kwargs)
        if again is None or again.key != call.key:
            return self.eager(args, kwargs, _CHANGED_MEANWHILE, key=call.key)
        return self._record(cache, again, all_args, all_kwargs, changed)

    def _over_limit(
        self, cache: TraceCache, key: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        wanted = cache.want(key)
        self.counters.wanted(wanted)
        if self.options.on_limit == "raise":
            raise CacheLimitError(cache_limit(self.name, cache.limit, wanted))
        return self.eager(args, kwargs, self._limit_reached(cache), key=key)

    def _limit_reached(self, cache: TraceCache) -> str:
        return f"cache_limit={cache.limit} was reached"

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | None:
        assert self.parameters is not None
        call = self.parameters.bind(self.function, args, kwargs)
        return call.key if call is not None else None

    def _record(
        self,
        cache: TraceCache,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        changed: tuple[Reason, ...] | None,
        resume: Resume | None = None,
        unkept: str = "",
    ) -> Any:
        search, site = self._search(cache, call, args, kwargs, changed), call_site()
        retrace, reasons = bool(search.known), search.before()
        if not unkept:
            self._steer(retrace, reasons, site)
        self.log.knows(call.key, search.words)
        start = time.perf_counter()
        try:
            recorded = record(
                call,
                self.function,
                args,
                kwargs,
                check=self.options.check,
                key_now=functools.partial(self._key, args, kwargs),
                resume=resume,
                ignore=self.options.ignore,
            )
        except core.Diverged:
            raise
        except BaseException as error:
            self._gave_up(call.key, site, f"raised {type(error).__name__}", "", start)
            raise
        if unkept:
            self._gave_up(call.key, site, unkept, "", start)
            return recorded.result
        if recorded.native is None:
            self._gave_up(call.key, site, recorded.reason, recorded.where, start)
            return self._rejected(cache, call.key, recorded, resume)
        trace = Trace(recorded.native, call.key, search.words, search.names)
        self._keep(cache, trace, search, reasons, start, recorded.seconds, site)
        return recorded.result

    def _keep(
        self,
        cache: TraceCache,
        trace: Trace,
        search: Search,
        reasons: tuple[Reason, ...],
        start: float,
        seconds: float,
        site: Site,
    ) -> None:
        self.counters.wanted(cache.want(trace.key))
        cache.add(trace)
        self.log.recorded(
            start,
            seconds,
            trace.native.size,
            reasons,
            retrace=bool(search.known),
            where=str(site),
            key=trace.key,
            instance=cache.instance,
        )
        self._warn_of_waste(site)

    def _search(
        self,
        cache: TraceCache,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        changed: tuple[Reason, ...] | None,
    ) -> Search:
        assert self.parameters is not None
        named, ambient = self.parameters.named(args, kwargs), core.describe_ambient()
        words, names = describe(named, ambient), root_names(self.name, named)
        same_key = cache.find(call.key)
        told_by = same_key[0] if changed and same_key else None
        return Search(cache.traces(), call, words, names, ambient, changed, told_by)

    def _gave_up(self, key: bytes, site: Site, reason: str, place: str, start: float) -> None:
        seconds = time.perf_counter() - start
        self.log.eager(reason, place, start, seconds, recording=True, where=str(site), key=key)

    def _refuses(self) -> str:
        """What forbids a retrace, to go on after the function's name; "" where nothing does."""
        if self.frozen:
            return "is frozen"
        return "has on_retrace='raise'" if self.options.on_retrace == "raise" else ""

    def _steer(self, retrace: bool, reasons: tuple[Reason, ...], site: Site) -> None:
        """Refuse a retrace, or warn of it, where that is asked for."""
        how = self._refuses()
        if how and (retrace or self.frozen):
            raise RetraceError(retrace_refused(self.name, how, said(reasons), str(site)))
        if retrace and self.options.on_retrace == "warn":
            self._warn(retraced(self.name, said(reasons)), site)

    def _warn_of_waste(self, site: Site) -> None:
        if not self.warned_of_waste and self.counters.wastes():
            self.warned_of_waste = True
            self._warn(retraces_waste(self.name, *wasted(self.snapshot())), site)

    def _warn(self, text: str, site: Site) -> None:
        # Of the line that called, however many frames of torch and lazytrace lie between.
        warnings.warn_explicit(text, RetraceWarning, site.file or "?", site.line)

    def _rejected(self, cache: TraceCache, key: bytes, recorded: Recorded, resume: Resume | None) -> Any:
        if recorded.wrong:
            self.counters.proof_failed()
            warnings.warn(proof_failed(self.name, recorded.wrong), ProofWarning, stacklevel=6)
        if resume is None:
            cache.refuse(key, recorded.reason, recorded.where)
        else:  # the other branches stay, unless this one is taken again and again
            cache.refuse_branch(key, recorded.reason, recorded.where, self.options.exit_limit)
        if self.options.on_untraceable == "raise" and resume is None:
            reason = f"{recorded.reason} ({recorded.where})" if recorded.where else recorded.reason
            raise UntraceableError(untraceable(self.name, reason))
        return recorded.result

    # ------------------------------------------------------------ asking
    def snapshot(self) -> Snapshot:
        """The counts, over all instances."""
        return self.last_snapshot()(sum(len(cache) for cache in self.caches()))

    def last_snapshot(self) -> Callable[..., Snapshot]:
        """A snapshot for when this engine is gone; takes how many traces there are."""
        limit = self.options.cache_limit
        return functools.partial(
            _snapshot, self.counters, self.log, self.name, limit, self.shown, self.source
        )

    def explain(self, cache: TraceCache, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
        """What a call would do, and why; nothing runs and nothing is counted."""
        reason = self._never_recorded()
        call = None
        if not reason:
            assert self.parameters is not None
            call = self.parameters.bind(self.function, args, kwargs)
            reason = _DO_NOT_FIT if call is None else call.unsupported
        if reason or call is None:
            return Explanation(self.name, "eager", (Reason(reason, kind="eager"),))
        for trace in cache.find(call.key):
            if trace.native.check(call) < 0:
                return Explanation(self.name, "hit", depends=trace.reads())
        refusal = cache.refusal(call.key)
        if refusal is not None and (self.frozen or not refusal.due()):
            why = Reason(refusal.reason, kind="eager", where=refusal.where)
            return Explanation(self.name, "eager", (why,))
        search = self._search(cache, call, args, kwargs, None)
        known = candidates(search.known, call, search.words, search.names, search.modes)
        reasons = (known[0].reasons or (AGAIN,)) if known else (FIRST,)
        outcome, more = self._instead_of_recording(cache, bool(known))
        return Explanation(self.name, outcome, (*more, *reasons), known)

    def _instead_of_recording(self, cache: TraceCache, retrace: bool) -> tuple[str, tuple[Reason, ...]]:
        """What becomes of a call that would need a recording, and what in the options says so."""
        if cache.full() and self.options.on_limit != "evict":
            return self.options.on_limit, (Reason(f"cache_limit={cache.limit} was reached", kind="limit"),)
        if self.frozen:
            return "raise", (Reason("frozen", kind="limit"),)
        if retrace and self.options.on_retrace == "raise":
            return "raise", (Reason("on_retrace='raise'", kind="limit"),)
        return "record", ()

    def _never_recorded(self) -> str:
        """Why no call is recorded now, whatever its arguments; "" where calls are."""
        if problem:
            return problem
        if _inside_other_tracer():
            return _OTHER_TRACER
        if _disabled_by_environment or _disabled.get():
            return _DISABLED
        return _EAGER_BACKEND if self.options.backend == "eager" else ""

    def cache_info(self, cache: TraceCache) -> CacheInfo:
        """Hits and misses of the function; size and limit of one cache."""
        counted = self.counters.snapshot(self.name, 0, cache.limit)
        return CacheInfo(
            counted.hits, counted.calls - counted.hits - counted.inlined, cache.limit, len(cache)
        )

    def find(self, cache: TraceCache, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trace:
        """The trace that a call would hit; `LookupError` where it would not."""
        if self.parameters is None:
            raise LookupError(f"{self.name} has no programs: {problem}")
        call = self.parameters.bind(self.function, args, kwargs)
        for trace in cache.find(call.key) if call is not None else ():
            if call is not None and trace.native.check(call) < 0:
                return trace
        raise LookupError(f"{self.name} has no program for these arguments: call it with them first")

    def last_programs(self) -> Callable[[], list[Program]]:
        """The programs for when this engine is gone: traces hold nothing of the user's."""
        return functools.partial(_programs, self.cache, self._instances)

    def clear(self, cache: TraceCache | None = None) -> None:
        """Drop the traces of one cache, or of all."""
        for one in [cache] if cache is not None else self.caches():
            one.clear()
