"""What happened, as data: each recording, eager call and eviction with its reasons; a ring per function."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from lazytrace.stats.counters import Counters

Kind = Literal["recorded", "eager", "evicted"]

_SAID_AT_ONCE = 8
_SIGNATURES_KEPT = 128
_HITS_KEPT = 20_000

# What torch starts with, and what need not be said.
_USUAL: Final = {
    "grad_mode": "True",
    "inference_mode": "False",
    "autocast_cache": "True",
    "anomaly_mode": "False",
    "default_dtype": "Float",
    "deterministic_algorithms": "False",
    "cudnn.benchmark": "False",
    "mkldnn.enabled": "True",
}

_LOGGERS: Final = {
    topic: logging.getLogger(f"lazytrace.{topic}") for topic in ("record", "retrace", "eager", "evict")
}


@dataclass(frozen=True, slots=True)
class Reason:
    """One difference to the nearest known trace, or one cause of an eager call or an eviction.

    `path` is what a person would write (`x.shape[0]`, `global SCALE`, `grad_mode`), `old` and `new` its two
    values as text; both are empty where the path says it all. `kind` is "shape", "dtype", "device", "layout",
    "grad", "structure", "memory", "mode" or "value" for what the signature holds, "state" for Python state,
    "branch" for a value that Python looked at, and "first", "eager" or "limit" for what is no difference.
    `where` is the place that it is about.

    >>> str(Reason("scale", "2.0", "3.0", "state", "closure of step, model.py:12"))
    'scale 2.0 -> 3.0 (closure of step, model.py:12)'
    """

    path: str
    old: str = ""
    new: str = ""
    kind: str = "state"
    where: str = ""

    def __str__(self) -> str:
        change = f" {self.old} -> {self.new}" if self.old or self.new else ""
        return f"{self.path}{change}" + (f" ({self.where})" if self.where else "")


def texts(reasons: Sequence[object]) -> tuple[str, ...]:
    """The first eight reasons as texts, and how many more there are.

    >>> texts([Reason("k", str(n), "2") for n in range(12)])[-2:]
    ('k 7 -> 2', 'and 4 more')
    """
    shown = [str(reason) for reason in reasons[:_SAID_AT_ONCE]]
    more = len(reasons) - _SAID_AT_ONCE
    return (*shown, f"and {more} more") if more > 0 else tuple(shown)


def said(reasons: Sequence[object]) -> str:
    """The same as one line.

    >>> said([Reason("x.shape[0]", "64", "13"), Reason("k", "1", "2")])
    'x.shape[0] 64 -> 13; k 1 -> 2'
    """
    return "; ".join(texts(reasons))


def brief(signature: Mapping[str, str]) -> str:
    """A signature in one line: tensors as dtype and shape, and the modes that are not as usual.

    >>> brief({"x.dtype": "float32", "x.shape[0]": "64", "x.shape[1]": "3", "k": "2", "grad_mode": "False"})
    'x: float32[64, 3], k: 2, grad_mode: False'
    """
    parts: dict[str, list[str]] = {}
    for path, value in signature.items():
        if _USUAL.get(path) == value or (path.startswith("autocast(") and value == "off"):
            continue
        owner, dot, what = path.rpartition(".")
        if dot and what == "dtype":
            parts[owner] = [value]
        elif dot and what.startswith("shape[") and owner in parts:
            parts[owner].append(value)
        elif path[-1:] not in ")" and owner not in parts and not path.startswith("memory of "):
            parts[path] = ["", value]
    return ", ".join(f"{path}: {_brief(*found)}" for path, found in parts.items())


def _brief(dtype: str, *rest: str) -> str:
    return f"{dtype}[{', '.join(rest)}]" if dtype else "".join(rest)


@dataclass(frozen=True, slots=True)
class Event:
    """One recording, eager call or eviction.

    `number` orders the events of a process; `time` is the start in seconds since the epoch (it never runs
    backwards), `seconds` what the call took. `where` is the line that called, `signature` every property of
    the call by its path ({} where it was not looked at), `reasons` all differences to the nearest trace.
    `instance` numbers the object whose method it was, 0 for none.

    >>> event = Event("eager", "step", 7, 0.0, 0.5, "MainThread", 1, "train.py:9", {}, (Reason("disabled"),))
    >>> event.line()
    'step: ran eagerly in 500.0 ms, called at train.py:9: disabled'
    """

    kind: Kind
    function: str
    number: int
    time: float
    seconds: float
    thread: str
    thread_id: int
    where: str
    signature: Mapping[str, str]
    reasons: tuple[Reason, ...]
    retrace: bool = False
    operators: int = 0
    instance: int = 0

    @property
    def topic(self) -> str:
        """The logger that tells of it: "record", "retrace", "eager" or "evict"."""
        return _topic(self.kind, self.retrace)

    def line(self) -> str:
        """The event in one line, as logging shows it."""
        verb = {"record": "recorded", "retrace": "retraced", "eager": "ran eagerly", "evict": "evicted"}
        took = f" in {self.seconds * 1e3:.1f} ms" if self.kind != "evicted" else ""
        place = f", called at {self.where}" if self.where else ""
        text = f"{self.function}: {verb[self.topic]}{took}{place}: {said(self.reasons)}"
        return text.replace("\r", "\\r").replace("\n", "\\n")

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, ready for JSON."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        plain["signature"] = dict(self.signature)
        plain["reasons"] = [{n: getattr(r, n) for n in Reason.__slots__} for r in self.reasons]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Event:
        """The event behind `as_dict`; raises `KeyError` or `TypeError` where it is none."""
        return cls(**{**plain, "reasons": tuple(Reason(**reason) for reason in plain["reasons"])})


@dataclass(frozen=True, slots=True)
class Hit:
    """A timed hit: its start (seconds since the epoch), its seconds, those of the guard check, its thread."""

    time: float
    seconds: float
    checking: float
    thread: str
    thread_id: int


Callback = Callable[[Event], object]


@dataclass
class Stream:
    """Where the events of a process go: their numbers, and who listens."""

    numbers: itertools.count[int] = field(default_factory=itertools.count)
    callbacks: tuple[Callback, ...] = ()
    lock: threading.RLock = field(default_factory=threading.RLock)
    timing: bool = False
    # Monotonic seconds become seconds since the epoch, the same for the whole process.
    epoch: float = field(default_factory=lambda: time.time() - time.perf_counter())

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
        self._lock = threading.RLock()
        self._asked: tuple[tuple[Any, ...] | None, tuple[Event, ...]] = (None, ())

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

    def knows(self, key: bytes, signature: Mapping[str, str]) -> None:
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
        self._add("recorded", start, seconds, where, key, retrace, operators, instance, reasons)

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
        reasons = (Reason(reason, kind="eager", where=place),)
        self._add("eager", start, seconds, where, key, False, 0, 0, reasons)

    def evicted(self, key: bytes, operators: int, limit: int, instance: int = 0) -> None:
        """Count and tell a trace that was dropped for another at the limit."""
        self._counters.evicted()
        reasons = (Reason(f"cache_limit={limit} was reached", kind="limit"),)
        self._add("evicted", time.perf_counter(), 0.0, "", key, False, operators, instance, reasons)

    def hit(self, start: float, seconds: float, checking: float) -> None:
        """Note a hit that was timed; it is counted elsewhere."""
        thread = threading.current_thread()
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
        reasons: Sequence[Reason],
    ) -> None:
        thread, stream = threading.current_thread(), self._stream
        number, when = next(stream.numbers), stream.epoch + start
        packed: tuple[Any, ...] = (kind, number, when, seconds, thread.name, thread.ident, where, key)
        packed += (retrace, operators, instance)
        for r in reasons:
            packed += (r.path, r.old, r.new, r.kind, r.where)
        self._kept.append(packed)
        if stream.callbacks or _LOGGERS[_topic(kind, retrace)].isEnabledFor(logging.INFO):
            stream.tell(self._unpacked(packed))

    def _unpacked(self, packed: tuple[Any, ...]) -> Event:
        kind, number, when, seconds, thread, ident, where, key, *rest = packed
        signature = self._signatures.get(key, {})
        reasons = tuple(Reason(*rest[at : at + 5]) for at in range(3, len(rest), 5))
        head = (kind, self._function, number, when, seconds, thread, ident or 0, where)
        return Event(*head, signature, reasons, *rest[:3])


def _topic(kind: Kind, retrace: bool) -> str:
    if kind == "recorded":
        return "retrace" if retrace else "record"
    return "eager" if kind == "eager" else "evict"
