"""Which traced functions there are: the weak registry behind the statistics of the whole process."""

from __future__ import annotations

import atexit
import functools
import itertools
import logging
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from lazytrace.stats.counters import Counters, Snapshot
from lazytrace.stats.events import Callback, EventLog, Stream
from lazytrace.stats.report import render


class Counted(Protocol):
    """What can be registered: it gives its own snapshot, and it can be weakly referenced.

    >>> class Step:
    ...     def stats(self) -> Snapshot:
    ...         return Snapshot("step")
    >>> Step().stats().name
    'step'
    """

    def stats(self) -> Snapshot:
        """The counts now."""
        ...


@dataclass(frozen=True)
class _Entry:
    owner: Callable[[], Counted | None]
    last: Callable[[], Snapshot] | None

    def snapshot(self) -> Snapshot | None:
        owner = self.owner()
        if owner is not None:
            return owner.stats()
        return self.last() if self.last is not None else None


class _Registry:
    def __init__(self) -> None:
        self.keeps_dead = False
        self.stream = Stream()
        # How often the function of a line was decorated: the earlier ones may be gone.
        self.made: Counter[str] = Counter()
        self._entries: dict[int, _Entry] = {}
        self._numbers = itertools.count()

    def add(self, owner: Counted, last: Callable[[], Snapshot] | None) -> None:
        number = next(self._numbers)
        reference = weakref.ref(owner, functools.partial(self._died, number))
        self._entries[number] = _Entry(reference, last)

    def snapshots(self) -> Iterator[Snapshot]:
        # The copy is atomic: owners may die, in any thread, while the snapshots are made.
        for entry in self._entries.copy().values():
            snapshot = entry.snapshot()
            if snapshot is not None:
                yield replace(snapshot, made=max(1, self.made[snapshot.source]))

    def drop_dead(self) -> None:
        for number, entry in self._entries.copy().items():
            if entry.owner() is None:
                self._entries.pop(number, None)

    def _died(self, number: int, _: object) -> None:
        # No lock and no snapshot here: the collector may call this in the middle of anything.
        if not self.keeps_dead:
            self._entries.pop(number, None)


_registry = _Registry()


def register(owner: Counted, last: Callable[[], Snapshot] | None = None, source: str = "") -> None:
    """List `owner` in `stats` and `report` for as long as it lives; call once per owner.

    `last` gives the counts when the owner is gone, and is asked only while `report_at_exit` is on. It must
    not refer to the owner, which would then never go: `functools.partial(counters.snapshot, name, 0, limit)`
    is what fits. `source` is the line of the function that the owner decorates. Raises `TypeError` where
    `owner` cannot be weakly referenced.

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
        _registry.made[source] += 1
    _registry.add(owner, last)


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

    def stop() -> None:
        with stream.lock:
            kept = list(stream.callbacks)
            if callback in kept:
                kept.remove(callback)
            stream.callbacks = tuple(kept)

    return stop


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


def stats() -> list[Snapshot]:
    """The counts of every traced function, in the order in which they were decorated.

    Those that are gone are included as far as they went while `report_at_exit` was on.

    >>> isinstance(stats(), list)
    True
    """
    return list(_registry.snapshots())


def report(width: int | None = None) -> str:
    """The report on every traced function that was called; `width` in characters bounds its table.

    >>> report().startswith("lazytrace: ")
    True
    """
    return render(stats(), width)


def report_at_exit(enabled: bool | str = True) -> None:
    """Print the report to stderr when the process exits, or no longer do so.

    While it is on, the counts of traced functions that are gone are kept for the report. Prints nothing
    where no traced function was called.

    >>> report_at_exit()
    >>> report_at_exit(False)
    """
    # Taken off first, so that asking twice still prints once.
    atexit.unregister(_print_report)
    _registry.keeps_dead = bool(enabled)
    if enabled:
        atexit.register(_print_report)
    else:
        _registry.drop_dead()


def _print_report() -> None:
    snapshots = stats()
    # Without a console, as under pythonw, there is no stderr.
    if sys.stderr is not None and any(snapshot.calls for snapshot in snapshots):
        print(render(snapshots), end="", file=sys.stderr)
