"""Which traced functions there are: the weak registry behind the statistics of the whole process."""

from __future__ import annotations

import atexit
import functools
import itertools
import logging
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, overload

from lazytrace.stats.counters import Counters, Program, Snapshot
from lazytrace.stats.document import Report, since
from lazytrace.stats.events import Callback, EventLog, Stream
from lazytrace.stats.output import Format, formatted, on_terminal, wants_timed_hits, write

Baseline = dict[int, Snapshot]
"""The snapshot of each registered function, by the number of its registration."""


class Counted(Protocol):
    """What can be registered: it gives its own snapshot, and it can be weakly referenced.

    Its class may also have `__lazytrace_time_hits__(owner, enabled)`, which switches the timing of hits.

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
        self.target = ""
        self.started_by = os.getpid()
        # What a forked child had from its parent, and what a test had from those before it.
        self.inherited: Baseline = {}
        self.test_started: Baseline = {}
        self.lock = threading.RLock()
        self._entries: dict[int, _Entry] = {}
        self._numbers = itertools.count()

    def add(
        self,
        owner: Counted,
        last: Callable[[], Snapshot] | None,
        programs: Callable[[], Sequence[Program]],
    ) -> None:
        number = next(self._numbers)
        reference = weakref.ref(owner, functools.partial(self._died, number))
        entry = self._entries[number] = _Entry(reference, last, programs)
        if self.stream.timing:
            entry.time_hits(True)

    def numbered(self, programs: bool = False) -> Iterator[tuple[int, Snapshot]]:
        # The copy is atomic: owners may die, in any thread, while the snapshots are made.
        for number, entry in self._entries.copy().items():
            snapshot = entry.snapshot()
            if snapshot is not None:
                snapshot = replace(snapshot, made=max(1, self.made[snapshot.source]))
                yield number, replace(snapshot, programs=tuple(entry.programs())) if programs else snapshot

    def number_of(self, owner: Counted) -> int:
        found = (number for number, entry in self._entries.copy().items() if entry.owner() is owner)
        return next(found, -1)

    def time_hits(self, enabled: bool) -> None:
        self.stream.timing = enabled
        for entry in self._entries.copy().values():
            entry.time_hits(enabled)

    def drop_dead(self) -> None:
        for number, entry in self._entries.copy().items():
            if entry.owner() is None:
                self._entries.pop(number, None)

    def _died(self, number: int, _: object) -> None:
        # No lock and no snapshot here: the collector may call this in the middle of anything.
        if not self.keepers:
            self._entries.pop(number, None)


_registry = _Registry()


def register(
    owner: Counted,
    last: Callable[[], Snapshot] | None = None,
    source: str = "",
    programs: Callable[[], Sequence[Program]] = tuple,
) -> None:
    """List `owner` in `stats` and `report` for as long as it lives; call once per owner.

    `last` gives the counts when the owner is gone, and is asked only while `report_at_exit` is on. It must
    not refer to the owner, which would then never go: `functools.partial(counters.snapshot, name, 0, limit)`
    is what fits. `source` is the line of the function that the owner decorates, `programs` gives what it has
    stored, and must not refer to the owner either. Raises `TypeError` where `owner` cannot be weakly
    referenced.

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


def time_hits(enabled: bool = True) -> None:
    """Time each hit from now on, for the timelines of HTML and Chrome reports, or no longer do so.

    A timed hit takes some microseconds more: its guards are checked once more, to know what that takes.

    >>> time_hits()
    >>> time_hits(False)
    """
    _registry.time_hits(enabled)


def stats() -> list[Snapshot]:
    """The counts of every traced function, in the order in which they were decorated.

    Those that are gone are included as far as they went while `report_at_exit` was on.

    >>> isinstance(stats(), list)
    True
    """
    return [snapshot for _, snapshot in _registry.numbered()]


def baseline() -> Baseline:
    """The counts of every traced function as they are now, to count from.

    >>> isinstance(baseline(), dict)
    True
    """
    return dict(_registry.numbered())


def start_of_test(begins: Baseline | None = None) -> Baseline:
    """What the running test counts from; sets it, too, where `begins` is given.

    >>> isinstance(start_of_test(), dict)
    True
    """
    if begins is not None:
        _registry.test_started = begins
    return _registry.test_started


def in_test(owner: Counted) -> Snapshot:
    """What an owner counted in the running test; everything where no test plugin is at work.

    >>> class Step:
    ...     def stats(self) -> Snapshot:
    ...         return Snapshot("step", hits=3)
    >>> in_test(Step()).hits
    3
    """
    return since(_registry.test_started.get(_registry.number_of(owner)), owner.stats())


def keep_dead(change: Literal[1, -1]) -> None:
    """Keep the counts of functions that are gone for one more, or one fewer, who asks.

    >>> keep_dead(+1)
    >>> keep_dead(-1)
    """
    with _registry.lock:
        _registry.keepers += change
        if not _registry.keepers:
            _registry.drop_dead()


def full_report() -> Report:
    """Everything that is known of this process, programs included.

    >>> full_report().processes[0].pid == os.getpid()
    True
    """
    found = dict(_registry.numbered(programs=True))
    inherited = _registry.inherited
    return Report.of([since(inherited.get(number), snapshot) for number, snapshot in found.items()])


def report(width: int | None = None, *, format: Format = "text") -> str:
    """The report on every traced function that was called, as "text", "json", "csv", "html" or "chrome".

    `width` in characters bounds the table of the text; by default that of the terminal on stdout, where the
    titles are bold, and 100 anywhere else. Raises `ValueError` for another format.

    >>> report().startswith("lazytrace: ")
    True
    >>> report(format="csv").splitlines()[0]
    'process,function,what,detail,count,seconds,where'
    """
    if format == "text" and width is None:
        return on_terminal(Report.of(stats()), sys.stdout)
    return formatted(full_report(), format, width)


@overload
def compile_times(repr: Literal["str"] = "str") -> str: ...
@overload
def compile_times(repr: Literal["csv"]) -> tuple[list[str], list[str]]: ...
def compile_times(repr: Literal["str", "csv"] = "str") -> str | tuple[list[str], list[str]]:
    """Seconds per function and phase, in the shapes of `torch._dynamo.utils.compile_times`.

    "str" gives a table as text, "csv" a list of headers and a list of values. Checking and replaying are
    known only of hits that were timed.

    >>> compile_times().splitlines()[0]
    'lazytrace recording metrics:'
    """
    from lazytrace.stats.tables import compile_times_of

    return compile_times_of(stats(), repr)


def report_at_exit(target: bool | str = True) -> None:
    """Write the report when the process exits, or no longer do so.

    `target` is "text" (or True) for stderr, a file that ends with .json, .csv, .html, .trace or .txt, or a
    folder that ends with a slash, where each process writes a file of its own. Until then the counts of
    traced functions that are gone are kept, and for .html and .trace hits are timed. Writes nothing where no
    traced function was called.

    >>> report_at_exit()
    >>> report_at_exit(False)
    """
    # Taken off first, so that asking twice still writes once.
    atexit.unregister(_write_report)
    if _registry.target:
        keep_dead(-1)
    before = _registry.target
    _registry.target = target if isinstance(target, str) else "text" * target
    # Who switched the timing of hits on otherwise goes on having them timed.
    if wants_timed_hits(before) != wants_timed_hits(_registry.target):
        time_hits(wants_timed_hits(_registry.target))
    if not _registry.target:
        return
    _registry.started_by = os.getpid()
    keep_dead(+1)
    atexit.register(_write_report)
    if _registry.target.endswith("/"):
        multiprocessing.util.register_after_fork(_registry, _started_as_child)


def _started_as_child(_: object) -> None:
    # Children of multiprocessing end without atexit, and start with the counts of their parent.
    _registry.inherited = baseline()
    multiprocessing.util.Finalize(None, _write_report, exitpriority=0)


def _write_report() -> None:
    if any(snapshot.calls for snapshot in stats()):
        child = multiprocessing.parent_process() is not None or os.getpid() != _registry.started_by
        write(full_report(), _registry.target, child)
