"""The traces of one function or one instance: looked up by signature, bounded, least recently used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import cachetools

from lazytrace._native import available, core
from lazytrace.trace import Trace

# A refused signature costs its key and a line of text; far more of them than traces may be remembered.
_REFUSALS_KEPT = 1024
# Signatures that are new at each call would otherwise be remembered without end; no limit is set that high.
_WANTED_KEPT = 16384
# A call that could not be recorded once may be recordable later: lazily made state is there the second time.
_TRIED_AGAIN_AT = (2, 8)


@dataclass
class Refusal:
    """Why a signature runs eagerly, and how often it has."""

    reason: str
    where: str
    calls: int = 1
    final: bool = False

    def again(self) -> bool:
        """Count one more call; says whether this one should try to record once more.

        >>> refusal = Refusal("calls print()", "train.py:3")
        >>> [refusal.again() for _ in range(8)]
        [True, False, False, False, False, False, True, False]
        """
        due = self.due()
        self.calls += 1
        return due

    def due(self) -> bool:
        """Whether the next call should try to record once more.

        >>> Refusal("calls print()", "train.py:3").due()
        True
        """
        return self.calls + 1 in _TRIED_AGAIN_AT and not self.final


class _Lru(cachetools.Cache[int, Trace]):
    """Drops what was not used for longest, and keeps it for its owner: cachetools evicts in `__setitem__`.

    Not an `LRUCache`: the core marks what it has used, without Python.
    """

    def __init__(self, maxsize: int) -> None:
        super().__init__(maxsize)
        # Not told by a callback, which would make a cycle: the traces of an instance go when it goes.
        self.evicted: list[Trace] = []

    def popitem(self) -> tuple[int, Trace]:
        number = min(self, key=lambda number: self[number].native.used)
        trace = self.pop(number)
        self.evicted.append(trace)
        return number, trace


class TraceCache:
    """Traces by signature. Each signature may have several, told apart by their guards and branches.

    Lookups take a hash of the key, however many traces there are. Any thread may call any method; no lock is
    held while a function runs.
    """

    def __init__(
        self, limit: int, evicted: Callable[[Trace], object] = lambda _: None, instance: int = 0
    ) -> None:
        self.limit = limit
        self.instance = instance
        self._on_evicted = evicted
        self._lock = threading.RLock()
        self._lru = _Lru(limit)
        self._by_key: dict[bytes, tuple[Trace, ...]] = {}
        # The same for hits: they look up and mark traces without Python.
        self.native = core.TraceTable() if available() else None
        self._refused: cachetools.LRUCache[bytes, Refusal] = cachetools.LRUCache(_REFUSALS_KEPT)
        self._branches_refused: cachetools.LRUCache[bytes, int] = cachetools.LRUCache(_REFUSALS_KEPT)
        self._recording: set[bytes] = set()
        # Signatures that were asked for, with the traces each had by then: what limit would have done.
        self._wanted: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        return len(self._lru)

    def find(self, key: bytes) -> tuple[Trace, ...]:
        """The traces of a signature, newest first."""
        return self._by_key.get(key, ())

    def used(self, trace: Trace) -> None:
        """Mark a trace as the most recently used."""
        if self.native is not None:
            self.native.mark(trace.native)

    def branched(self, key: bytes, number: int) -> None:
        """Mark the trace with this number as the most recently used, and ask it first from now on."""
        with self._lock:
            traces = self._by_key.get(key, ())
            taken = tuple(trace for trace in traces if trace.number == number)
            for trace in taken:
                self.used(trace)
            if taken:
                self._store(key, taken + tuple(trace for trace in traces if trace.number != number))

    def want(self, key: bytes) -> int:
        """Note that a signature needs one trace more; how many are needed by now, were none ever dropped."""
        with self._lock:
            if len(self._wanted) < _WANTED_KEPT:
                self._wanted.add((hash(key), len(self.find(key))))
            return len(self._wanted)

    def traces(self) -> list[Trace]:
        """All traces, newest first."""
        with self._lock:
            stored = [trace for traces in self._by_key.values() for trace in traces]
            return sorted(stored, key=lambda trace: -trace.number)

    def full(self) -> bool:
        """Whether one more trace needs an eviction."""
        return len(self._lru) >= self.limit

    def overbooked(self) -> bool:
        """Whether the recordings under way need more room than there is."""
        return len(self._lru) + len(self._recording) > self.limit

    def add(self, trace: Trace) -> None:
        """Store a trace, evicting the least recently used at the limit."""
        with self._lock:
            self._refused.pop(trace.key, None)
            trace.native.join()
            self.used(trace)
            self._lru[trace.number] = trace
            gone, self._lru.evicted = self._lru.evicted, []
            for one in gone:
                self._forget(one)
            self._store(trace.key, (trace, *self._by_key.get(trace.key, ())))
        # Whoever is told may take locks of its own, and wait for a thread that waits for this one.
        for one in gone:
            self._on_evicted(one)

    def discard(self, trace: Trace) -> None:
        """Drop one trace without counting it as evicted."""
        with self._lock:
            if self._lru.pop(trace.number, None) is not None:
                self._forget(trace)

    def refuse(self, key: bytes, reason: str, where: str) -> None:
        """Remember that a signature runs eagerly."""
        with self._lock:
            known = self._refused.get(key)
            if known is None:
                self._refused[key] = Refusal(reason, where)
            else:
                known.reason, known.where = reason, where

    def refuse_branch(self, key: bytes, reason: str, where: str, limit: int) -> None:
        """Note that a branch of a signature could not be recorded; at the limit the whole runs eagerly."""
        with self._lock:
            count = self._branches_refused[key] = self._branches_refused.get(key, 0) + 1
            if count >= limit:
                self.refuse_for_good(key, reason, where)

    def refuse_for_good(self, key: bytes, reason: str, where: str = "") -> None:
        """Remember that a signature runs eagerly until the cache is cleared, and drop its traces."""
        with self._lock:
            for trace in self.find(key):
                self.discard(trace)
            self._branches_refused.pop(key, None)
            self._refused[key] = Refusal(reason, where, final=True)

    def refusal(self, key: bytes) -> Refusal | None:
        """Why a signature runs eagerly, or None where it does not."""
        with self._lock:
            return self._refused.get(key)

    def begin(self, key: bytes) -> bool:
        """Claim the recording of a signature; False where another call is at it."""
        with self._lock:
            if key in self._recording:
                return False
            self._recording.add(key)
            return True

    def end(self, key: bytes) -> None:
        """Give the claim back, however the recording ended."""
        with self._lock:
            self._recording.discard(key)

    def clear(self) -> None:
        """Drop all traces and refusals."""
        with self._lock:
            self._by_key.clear()
            if self.native is not None:
                self.native.clear()
            self._refused.clear()
            self._branches_refused.clear()
            self._wanted.clear()
            self._lru = _Lru(self.limit)

    def _forget(self, trace: Trace) -> None:
        self._store(trace.key, tuple(t for t in self._by_key.get(trace.key, ()) if t is not trace))

    def _store(self, key: bytes, traces: tuple[Trace, ...]) -> None:
        if traces:
            self._by_key[key] = traces
        else:
            self._by_key.pop(key, None)
        if self.native is not None:
            self.native.set(key, [trace.native for trace in traces])
