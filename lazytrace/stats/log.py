"""The events of one function: each is counted, kept in a ring, and told to whoever listens."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import current_thread
from time import perf_counter
from typing import Any, Final

from lazytrace.locks import new_lock
from lazytrace.originals import BUILTINS
from lazytrace.stats.counters import Counters
from lazytrace.stats.metrics import Phases
from lazytrace.stats.model import Event, Hit, Kind, Reason, topic_of

__builtins__ = BUILTINS

_SIGNATURES_KEPT = 128
_HITS_KEPT = 20_000
_RECORDINGS_KEPT = 64

_LOGGERS: Final = {
    topic: logging.getLogger(f"lazytrace.{topic}") for topic in ("record", "retrace", "eager", "evict")
}


Callback = Callable[[Event], object]


@dataclass
class Stream:
    """Where the events of a process go: their numbers, and who listens."""

    numbers: itertools.count[int] = field(default_factory=itertools.count)
    callbacks: tuple[Callback, ...] = ()
    lock: threading.RLock = field(default_factory=new_lock)
    # The newest recordings, as the fields of `RecordingMetrics`.
    recordings: deque[tuple[Any, ...]] = field(default_factory=lambda: deque(maxlen=_RECORDINGS_KEPT))
    # Who is told of each recording with all that it was.
    watchers: tuple[Callable[[Any], object], ...] = ()
    timing: bool = False
    # Monotonic seconds become seconds since the epoch, the same for the whole process.
    epoch: float = field(default_factory=lambda: time.time() - perf_counter())

    def listens(self) -> bool:
        """Whether somebody is told of eager calls."""
        return bool(self.callbacks) or _LOGGERS["eager"].isEnabledFor(logging.INFO)

    def tell(self, event: Event) -> None:
        """Pass an event to logging and to every callback; what a callback raises is logged, not raised."""
        logger = _LOGGERS[event.topic]
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", event.line())
        for callback in self.callbacks:
            try:
                callback(event)
            except Exception:  # the traced call must not fail for what listens to it
                logging.getLogger("lazytrace").exception("lazytrace: a callback of on_event raised")


class EventLog:
    """The newest events of one function, and its counters: both are told of an event in one call."""

    def __init__(self, stream: Stream, counters: Counters, function: str, keep: int) -> None:
        self._stream = stream
        self._counters = counters
        self._function = function
        # Flat tuples of plain values: quick to make, and the garbage collector does not visit them.
        self._kept: deque[tuple[Any, ...]] = deque(maxlen=keep)
        self._hits: deque[tuple[Any, ...]] = deque(maxlen=_HITS_KEPT)
        # The words of a signature are worked out once, and kept for as long as an event may have its key.
        self._signatures: dict[object, Mapping[str, str]] = {}
        self._signatures_kept = max(keep, _SIGNATURES_KEPT)
        # Reentrant: a destructor that calls the function may run while this thread is told of another call.
        self._lock = new_lock()
        self._asked: tuple[tuple[Any, ...] | None, tuple[Event, ...]] = (None, ())

    def listens(self) -> bool:
        """Whether somebody is told of eager calls."""
        return self._stream.listens()

    def watched(self) -> bool:
        """Whether somebody is told of each recording."""
        return bool(self._stream.watchers)

    def tell(self, finished: object) -> None:
        """Tell who watches recordings of one."""
        for watcher in self._stream.watchers:
            watcher(finished)

    def events(self) -> tuple[Event, ...]:
        """The events that are kept, oldest first."""
        kept = self._kept.copy()
        newest, events = self._asked
        # Asked again and again, as by a plugin at each test, most functions have nothing new.
        if kept and kept[-1] is not newest:
            events = tuple(self._unpacked(packed) for packed in kept)
            self._asked = (kept[-1], events)
        return events

    def hits(self) -> tuple[Hit, ...]:
        """The newest timed hits, oldest first; none unless hits are timed."""
        return tuple(Hit(*one) for one in self._hits.copy())

    def remember(self, key: bytes, signature: Mapping[str, str]) -> None:
        """Remember the words of a signature, for the events that have its key."""
        with self._lock:
            self._signatures.pop(key, None)
            self._signatures[key] = signature
            if len(self._signatures) > self._signatures_kept:
                del self._signatures[next(iter(self._signatures))]

    def recorded(
        self,
        start: float,
        seconds: float,
        operators: int,
        reasons: Sequence[Reason],
        *,
        retrace: bool,
        where: str = "",
        key: bytes | None = None,
        instance: int = 0,
    ) -> None:
        """Count and tell a call that was recorded and stored; `start` is of `time.perf_counter`."""
        self._counters.recorded(seconds, operators, reasons, retrace=retrace, where=where)
        flat = tuple(text for r in reasons for text in (r.path, r.old, r.new, r.kind, r.where))
        self._add("recorded", start, seconds, where, key, retrace, operators, instance, flat)

    def eager(
        self,
        reason: str,
        place: str,
        start: float,
        seconds: float,
        *,
        recording: bool = False,
        where: str = "",
        key: bytes | None = None,
    ) -> None:
        """Count and tell a call that ran eagerly; `recording` says that a recording was given up."""
        self._counters.eager(reason, place, seconds, recording=recording, called_at=where)
        flat = (reason, "", "", "eager", place)
        self._add("eager", start, seconds, where, key, False, 0, 0, flat)

    def measured(
        self,
        start: float,
        seconds: float,
        phases: Phases,
        *,
        stored: bool,
        reason: str = "",
        where: str = "",
        operators: int = 0,
        guards: int = 0,
        cache_size: int = 0,
        retrace: bool = False,
    ) -> None:
        """Note what a recording took and gave, for `recording_metrics`."""
        self._counters.phased(phases)
        head = (
            self._function,
            self._stream.epoch + start,
            seconds,
            phases,
            "stored" if stored else "given up",
        )
        self._stream.recordings.append((*head, reason, where, operators, guards, cache_size, retrace))

    def evicted(self, key: bytes, operators: int, why: str, instance: int = 0) -> None:
        """Count and tell a trace that was dropped for another at a limit, which `why` names."""
        self._counters.evicted()
        flat = (why, "", "", "limit", "")
        self._add("evicted", perf_counter(), 0.0, "", key, False, operators, instance, flat)

    def hit(self, start: float, seconds: float, checking: float) -> None:
        """Note a hit that was timed; it is counted elsewhere."""
        thread = current_thread()
        when = self._stream.epoch + start
        self._hits.append((when, seconds, checking, thread.name, thread.ident or 0))
        self._counters.timed(seconds, checking)

    def _add(
        self,
        kind: Kind,
        start: float,
        seconds: float,
        where: str,
        key: bytes | None,
        retrace: bool,
        operators: int,
        instance: int,
        reasons: tuple[str, ...],
    ) -> None:
        thread, stream = current_thread(), self._stream
        number, when = next(stream.numbers), stream.epoch + start
        head = (kind, number, when, seconds, thread.name, thread.ident, where, key)
        packed: tuple[Any, ...] = (*head, retrace, operators, instance, *reasons)
        self._kept.append(packed)
        if stream.callbacks or _LOGGERS[topic_of(kind, retrace)].isEnabledFor(logging.INFO):
            stream.tell(self._unpacked(packed))

    def _unpacked(self, packed: tuple[Any, ...]) -> Event:
        kind, number, when, seconds, thread, ident, where, key, *rest = packed
        signature = self._signatures.get(key, {})
        reasons = tuple(Reason(*rest[at : at + 5]) for at in range(3, len(rest), 5))
        head = (kind, self._function, number, when, seconds, thread, ident or 0, where)
        return Event(*head, signature, reasons, *rest[:3])
