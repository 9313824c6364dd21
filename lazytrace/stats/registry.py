"""Which traced functions there are: the weak registry behind the statistics of the whole process."""

from __future__ import annotations

import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, Protocol
from weakref import ref

from lazytrace._native import available, core
from lazytrace.locks import new_lock
from lazytrace.originals import BUILTINS
from lazytrace.stats.counters import Counters
from lazytrace.stats.difference import together
from lazytrace.stats.log import Callback, EventLog, Stream
from lazytrace.stats.metrics import RecordingMetrics
from lazytrace.stats.model import Program, Snapshot

__builtins__ = BUILTINS

Baseline = dict[int, Snapshot]
"""The snapshot of each registered function, by the number of its registration."""

# Functions that are gone, told of by name and line.
_GONE_KEPT: Final = 1024


class Counted(Protocol):
    """What can be registered: it gives its own snapshot, and it can be weakly referenced.

    Its class may also have `__lazytrace_time_hits__(owner, enabled)`, which switches the timing of hits, and
    `__lazytrace_reset__(owner)`, which forgets what was recorded.

    >>> class Step:
    ...     def stats(self) -> Snapshot:
    ...         return Snapshot("step")
    >>> Step().stats().name
    'step'
    """

    def stats(self) -> Snapshot:
        """The counts now."""
        ...


def _nobody() -> None:
    return None


@dataclass(frozen=True)
class _Entry:
    owner: Callable[[], Counted | None]
    last: Callable[[], Snapshot] | None
    programs: Callable[[], Sequence[Program]]

    def snapshot(self) -> Snapshot | None:
        owner = self.owner()
        if owner is not None:
            return owner.stats()
        return self.last() if self.last is not None else None

    def time_hits(self, enabled: bool) -> None:
        owner = self.owner()
        # Asked of the class: a wrapper passes attributes on to what it wraps.
        switch = getattr(type(owner), "__lazytrace_time_hits__", None)
        if switch is not None:
            switch(owner, enabled)


class _Registry:
    def __init__(self) -> None:
        self.keepers = 0
        self.stream = Stream()
        # How often the function of a line was decorated: the earlier ones may be gone.
        self.made: Counter[str] = Counter()
        self.lock = new_lock()
        self._entries: dict[int, _Entry] = {}
        self._numbers = itertools.count()
        # The numbers of functions that have died since these were last put together, and of those that were.
        self._died: deque[int] = deque()
        self._gone: dict[tuple[str, str], int] = {}

    def add(
        self,
        owner: Counted,
        last: Callable[[], Snapshot] | None,
        programs: Callable[[], Sequence[Program]],
    ) -> None:
        self.put_dead_together()
        number = next(self._numbers)
        reference = ref(owner, partial(self._dies, number))
        entry = self._entries[number] = _Entry(reference, last, programs)
        if self.stream.timing:
            entry.time_hits(True)

    def numbered(self, programs: bool = False, gone: bool = True) -> Iterator[tuple[int, Snapshot]]:
        self.put_dead_together()
        # The copy is atomic: owners may die, in any thread, while the snapshots are made.
        for number, entry in self._entries.copy().items():
            if not gone and entry.owner() is None:
                continue
            snapshot = entry.snapshot()
            if snapshot is not None:
                made = max(1, self.made[snapshot.source])
                snapshot = snapshot if snapshot.made == made else replace(snapshot, made=made)
                yield number, replace(snapshot, programs=tuple(entry.programs())) if programs else snapshot

    def number_of(self, owner: Counted) -> int:
        found = (number for number, entry in self._entries.copy().items() if entry.owner() is owner)
        return next(found, -1)

    def owners(self) -> list[Counted]:
        found = (entry.owner() for entry in self._entries.copy().values())
        return [owner for owner in found if owner is not None]

    def time_hits(self, enabled: bool) -> None:
        self.stream.timing = enabled
        for entry in self._entries.copy().values():
            entry.time_hits(enabled)

    def put_dead_together(self) -> None:
        """What has died becomes one entry for each name and line, unless each is wanted by itself."""
        with self.lock:
            while self._died and not self.keepers:
                self._put_together(self._died.popleft())

    def _put_together(self, number: int) -> None:
        entry = self._entries.get(number)
        snapshot = entry.snapshot() if entry is not None else None
        if snapshot is None or not snapshot.calls:
            self._entries.pop(number, None)
            return
        place = snapshot.name, snapshot.source
        first = self._gone.setdefault(place, number)
        if first != number:
            known = self._entries[first].snapshot()
            snapshot = together(known, snapshot) if known is not None else snapshot
            del self._entries[number]
        self._entries[first] = _Entry(_nobody, partial(_same, snapshot), tuple)
        if len(self._gone) > _GONE_KEPT:
            oldest = next(iter(self._gone))
            del self._entries[self._gone.pop(oldest)]

    def _dies(self, number: int, _: object) -> None:
        # No lock and no snapshot here: the collector may call this in the middle of anything.
        entry = self._entries.get(number)
        if entry is None:
            return
        if entry.last is None:
            self._entries.pop(number, None)
            return
        if not self.keepers:
            # What is counted stays; what was recorded goes with its function.
            self._entries[number] = _Entry(_nobody, entry.last, tuple)
        self._died.append(number)


def _same(snapshot: Snapshot) -> Snapshot:
    return snapshot


_registry = _Registry()


def register(
    owner: Counted,
    last: Callable[[], Snapshot] | None = None,
    source: str = "",
    programs: Callable[[], Sequence[Program]] = tuple,
) -> None:
    """List `owner` in `stats` and `report`; call once per owner.

    `last` gives the counts when the owner is gone; without it they go with the owner. It must not refer to
    the owner, which would then never go: `functools.partial(counters.snapshot, name, 0, limit)` is what fits.
    `source` is the line of the function that the owner decorates, `programs` gives what it has stored, and
    must not refer to the owner either. Raises `TypeError` where `owner` cannot be weakly referenced.

    >>> class Step:
    ...     def stats(self) -> Snapshot:
    ...         return Snapshot("registered for the example")
    >>> step = Step()
    >>> register(step)
    >>> any(snapshot.name == "registered for the example" for snapshot in stats())
    True
    >>> del step
    >>> any(snapshot.name == "registered for the example" for snapshot in stats())
    False
    """
    if source:
        with _registry.lock:
            _registry.made[source] += 1
    _registry.add(owner, last, programs)


def new_log(counters: Counters, function: str, keep: int) -> EventLog:
    """The event log of one function; it keeps its newest `keep` events.

    >>> new_log(Counters(), "step", 8).events()
    ()
    """
    return EventLog(_registry.stream, counters, function, keep)


def on_event(callback: Callback) -> Callable[[], None]:
    """Call `callback` with each `Event` (recordings, eager calls, evictions) of the process from now on.

    It runs in the thread of the call, right after it; what it raises is logged under `lazytrace` and goes no
    further. Returns a function that takes it off again.

    >>> seen = []
    >>> stop = on_event(seen.append)
    >>> new_log(Counters(), "step", 8).recorded(0.0, 0.1, 3, (), retrace=False)
    >>> stop()
    >>> [event.function for event in seen]
    ['step']
    """
    stream = _registry.stream
    with stream.lock:
        stream.callbacks += (callback,)
        _see_eager_calls(stream)

    def stop() -> None:
        with stream.lock:
            kept = list(stream.callbacks)
            if callback in kept:
                kept.remove(callback)
            stream.callbacks = tuple(kept)
            _see_eager_calls(stream)

    return stop


def watch_recordings(watcher: Callable[[Any], object]) -> Callable[[], None]:
    """Call `watcher` with each recording that has ended; a function that takes it off again.

    >>> watch_recordings(print)()
    """
    stream = _registry.stream
    with stream.lock:
        stream.watchers += (watcher,)

    def stop() -> None:
        with stream.lock:
            stream.watchers = tuple(one for one in stream.watchers if one is not watcher)

    return stop


def _see_eager_calls(stream: Stream) -> None:
    """Let each eager call through to Python while somebody is told of it."""
    if available():
        core.tell_eager_calls(stream.listens())


def log_events(*topics: str) -> None:
    """Write the events of some topics ("record", "retrace", "eager", "evict") to stderr, a line each.

    What they pass through is standard `logging`, under `lazytrace.retrace` and so on: with handlers of your
    own on any of these, set the level to INFO there instead.

    >>> log_events()
    """
    logger = logging.getLogger("lazytrace")
    if topics and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
        # The line would be written twice where the root logger writes, too.
        logger.propagate = False
    for topic in topics:
        logging.getLogger(f"lazytrace.{topic}").setLevel(logging.INFO)
    _see_eager_calls(_registry.stream)


def time_hits(enabled: bool = True) -> None:
    """Time each hit from now on, for the timelines of HTML and Chrome reports, or no longer do so.

    A timed hit takes some microseconds more: its guards are checked once more, to know what that takes.

    >>> time_hits()
    >>> time_hits(False)
    """
    _registry.time_hits(enabled)


def stats() -> list[Snapshot]:
    """The counts of every traced function, in the order in which they were decorated.

    Those that are gone are included as far as they went: each by itself while `report_at_exit` is on, those
    of one name and line together otherwise.

    >>> isinstance(stats(), list)
    True
    """
    return [snapshot for _, snapshot in _registry.numbered()]


def baseline(programs: bool = False, gone: bool = True) -> Baseline:
    """The counts of every traced function as they are now, to count from; with `programs` what it has stored.

    Without `gone` only those of functions that are alive: what nobody can call any more counts nothing.

    >>> isinstance(baseline(), dict)
    True
    """
    return dict(_registry.numbered(programs, gone))


def owners() -> list[Counted]:
    """Every registered function that is alive.

    >>> isinstance(owners(), list)
    True
    """
    return _registry.owners()


def reset() -> None:
    """Forget every recording of every traced function, as in a fresh process.

    Signatures that ran eagerly are tried again, frozen functions record again, and the list of
    `recording_metrics` is empty. What was counted stays.

    >>> import lazytrace, torch
    >>> step = lazytrace.traced(lambda x: x * 2)
    >>> _ = step(torch.ones(1))
    >>> lazytrace.reset()
    >>> step.cache_info().currsize
    0
    """
    for owner in owners():
        # Asked of the class: a wrapper passes attributes on to what it wraps.
        forget = getattr(type(owner), "__lazytrace_reset__", None)
        if forget is not None:
            forget(owner)
    clear_recording_metrics()


def recording_metrics() -> list[RecordingMetrics]:
    """The newest recordings of all functions, oldest first: what each took by phase, and what it gave.

    >>> import lazytrace, torch
    >>> lazytrace.clear_recording_metrics()
    >>> _ = lazytrace.traced(lambda x: x * 2, name="double")(torch.ones(1))
    >>> [(one.function, one.outcome, one.operators) for one in lazytrace.recording_metrics()]
    [('double', 'stored', 1)]
    """
    return [RecordingMetrics(*one) for one in _registry.stream.recordings.copy()]


def set_recording_metrics_limit(limit: int) -> None:
    """Keep the newest `limit` recordings for `recording_metrics`; 64 unless told.

    Raises `ValueError` below 1.

    >>> set_recording_metrics_limit(64)
    >>> set_recording_metrics_limit(0)
    Traceback (most recent call last):
        ...
    ValueError: set_recording_metrics_limit(0): the limit must be 1 or more
    """
    if limit < 1:
        raise ValueError(f"set_recording_metrics_limit({limit}): the limit must be 1 or more")
    stream = _registry.stream
    with stream.lock:
        stream.recordings = deque(stream.recordings, maxlen=limit)


def clear_recording_metrics() -> None:
    """Empty the list of `recording_metrics`.

    >>> clear_recording_metrics()
    >>> recording_metrics()
    []
    """
    _registry.stream.recordings.clear()


def number_of(owner: Counted) -> int:
    """The number of a registration, as a baseline has it; -1 of what is not registered.

    >>> class Step:
    ...     def stats(self) -> Snapshot:
    ...         return Snapshot("step")
    >>> number_of(Step())
    -1
    """
    return _registry.number_of(owner)


def keep_dead(change: Literal[1, -1]) -> None:
    """Keep each function that is gone by itself, for one more, or one fewer, who asks.

    >>> keep_dead(+1)
    >>> keep_dead(-1)
    """
    with _registry.lock:
        _registry.keepers += change
    _registry.put_dead_together()
