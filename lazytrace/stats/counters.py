"""What one traced function counts, and the frozen copy of it that everything else reads."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Protocol

from lazytrace.stats.events import Event, Hit, Reason, said

_REASONS_KEPT = 200
_PROGRAMS_KEPT = 1000
# A first pass over a few sizes is no waste yet.
_RECORDINGS_TO_JUDGE = 16
_OTHER_REASONS = f"other reasons, past the first {_REASONS_KEPT}"
_NO_REASON = "no difference found (a bug of lazytrace: please report it)"


@dataclass(frozen=True)
class Retrace:
    """One reason for retracing: how many recordings it caused, and the seconds that these took.

    `paths` are what changed, without the values; `where` is the line that made the newest of the calls.

    >>> Retrace("x.shape[0] 64 -> 13", count=3, seconds=0.0012, paths=("x.shape[0]",)).count
    3
    """

    text: str
    count: int
    seconds: float
    paths: tuple[str, ...] = ()
    where: str = ""


@dataclass(frozen=True)
class Step:
    """One step of a program as text, and the line of the user's code that it comes from.

    >>> Step("r1 = aten::tanh(r0)", "train.py:12", "return torch.tanh(x)").place
    'train.py:12'
    """

    text: str
    place: str
    source: str


@dataclass(frozen=True)
class Program:
    """A stored program: what it answers, what it does and how big it is.

    Programs with one `signature_id` answer the same arguments: each is a branch, told apart by `guards` (the
    state that it was recorded under) and by `reads`, the values that Python looked at. `effects` says that it
    writes to what outlives the call, `random` that it draws random numbers, `bytes` what its literals take.

    >>> Program("x: float32[3]", 0, operators=2, reads=("is_nonzero True (train.py:4)",)).reads
    ('is_nonzero True (train.py:4)',)
    """

    signature: str
    signature_id: int
    operators: int = 0
    guards: int = 0
    reads: tuple[str, ...] = ()
    effects: bool = False
    random: bool = False
    bytes: int = 0
    instance: int = 0
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """The counts of one traced function at one moment.

    Every call is exactly one of `hits`, `recordings` (recorded and stored), `eager_calls` and `inlined`
    (recorded into an outer traced function); `retraces` are the recordings after an owner's first.
    `eager` maps each reason to its calls. `operators` has the operators of each stored program, oldest first,
    the newest 1000. `retrace_reasons` has the newest 200 distinct reasons, newest last, and
    `retrace_reasons_dropped` counts the retraces of the others. `cache_size` and `cache_limit` count traces;
    `limit_enough` is the `cache_limit` that no call would have gone past, None where none did.
    `parameters`, as in `"(x, w)"`, may follow the name where a reason speaks of arguments.

    `seconds_recording` holds recordings that were given up too; `seconds_eager` the other eager calls.
    `seconds_hits` and `seconds_checking` (of those, in guards) are of the `hits_timed` hits only.
    `eager_seconds` and `eager_called_at` tell of each eager reason what it took and the line that called
    last. `events` are the newest, oldest first, `timeline` the newest timed hits; `programs` is filled in
    reports only. `source` is the line of the function, `made` how often a function of that line was
    decorated.

    >>> snapshot = Snapshot("step", hits=8, recordings=1, eager={"calls x.tolist() (train.py:41)": 2})
    >>> snapshot.calls, snapshot.eager_calls
    (11, 2)
    """

    name: str
    hits: int = 0
    recordings: int = 0
    retraces: int = 0
    evictions: int = 0
    inlined: int = 0
    eager: dict[str, int] = field(default_factory=dict)
    proof_failures: int = 0
    seconds_recording: float = 0.0
    operators: tuple[int, ...] = ()
    retrace_reasons: tuple[Retrace, ...] = ()
    retrace_reasons_dropped: int = 0
    cache_size: int = 0
    cache_limit: int = 0
    limit_enough: int | None = None
    parameters: str = ""
    seconds_eager: float = 0.0
    seconds_hits: float = 0.0
    seconds_checking: float = 0.0
    hits_timed: int = 0
    eager_seconds: dict[str, float] = field(default_factory=dict)
    eager_called_at: dict[str, str] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    timeline: tuple[Hit, ...] = ()
    programs: tuple[Program, ...] = ()
    source: str = ""
    made: int = 1

    @property
    def seconds_lost(self) -> float:
        """What was spent on anything but hits.

        >>> Snapshot("step", seconds_recording=0.5, seconds_eager=0.25).seconds_lost
        0.75
        """
        return self.seconds_recording + self.seconds_eager

    @property
    def happened(self) -> tuple[Event | Hit, ...]:
        """The events and timed hits that are kept, in the order of their starts.

        >>> Snapshot("step").happened
        ()
        """
        every: list[Event | Hit] = [*self.events, *self.timeline]
        return tuple(sorted(every, key=lambda one: one.time))

    @property
    def eager_calls(self) -> int:
        """Calls that ran eagerly, whatever the reason.

        >>> Snapshot("step", eager={"disabled": 2, "calls x.item()": 1}).eager_calls
        3
        """
        return sum(self.eager.values())

    @property
    def calls(self) -> int:
        """All calls: hits, recordings, eager and inlined calls.

        >>> Snapshot("step", hits=5, recordings=1, inlined=1).calls
        7
        """
        return self.hits + self.recordings + self.eager_calls + self.inlined

    def as_dict(self) -> dict[str, object]:
        """The same as plain dicts, lists and numbers, ready for JSON, with `calls` and `eager_calls`.

        >>> Snapshot("step", hits=5).as_dict()["calls"]
        5
        """
        plain: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["operators"] = list(self.operators)
        for name in ("retrace_reasons", "timeline", "programs"):
            plain[name] = [_listed(asdict(one)) for one in plain[name]]
        plain["events"] = [event.as_dict() for event in self.events]
        return {**plain, "calls": self.calls, "eager_calls": self.eager_calls}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Snapshot:
        """The snapshot behind `as_dict`; raises `KeyError` or `TypeError` where it is none.

        >>> Snapshot.from_dict(Snapshot("step", hits=5).as_dict()).hits
        5
        """
        known = {f.name: plain[f.name] for f in fields(cls) if f.name in plain}
        known["operators"] = tuple(known.get("operators", ()))
        known["retrace_reasons"] = tuple(_made(Retrace, one) for one in plain.get("retrace_reasons", ()))
        known["events"] = tuple(Event.from_dict(one) for one in plain.get("events", ()))
        known["timeline"] = tuple(Hit(**one) for one in plain.get("timeline", ()))
        known["programs"] = tuple(_program(one) for one in plain.get("programs", ()))
        return cls(**known)


def _listed(plain: dict[str, Any]) -> dict[str, Any]:
    """Tuples as the lists that JSON has."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def _made(kind: Callable[..., Any], plain: Mapping[str, Any]) -> Any:
    """The instance behind such a dict."""
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()})


def _program(plain: Mapping[str, Any]) -> Program:
    made: Program = _made(Program, {**plain, "steps": [Step(**step) for step in plain["steps"]]})
    return made


class HitCount:
    """Counts hits where the core does not do so.

    >>> hits = HitCount()
    >>> hits.add()
    >>> hits.value
    1
    """

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """Count one hit."""
        with self._lock:
            self.value += 1


class Hits(Protocol):
    """What counts hits."""

    @property
    def value(self) -> int:
        """The hits so far."""

    def add(self) -> None:
        """Count one hit."""


class Counters:
    """The counts of one traced function; any thread may count at any time.

    Call exactly one of `hit`, `recorded`, `eager` and `inlined` per call of the function; the other methods
    count events beside the call.
    Hits are counted by `hits`, which the core may share, so that a replay counts without Python.

    >>> counters = Counters()
    >>> counters.recorded(0.0002, 35, ("first call",), retrace=False)
    >>> _ = counters.hit()
    >>> counters.snapshot("step", size=1, limit=64).calls
    2
    """

    __slots__ = (
        "__weakref__",
        "_eager",
        "_eager_called_at",
        "_eager_seconds",
        "_evictions",
        "_hits",
        "_hits_timed",
        "_inlined",
        "_lock",
        "_operators",
        "_peak_wanted",
        "_proof_failures",
        "_recordings",
        "_retrace_reasons",
        "_retraces",
        "_seconds",
        "_seconds_checking",
        "_seconds_eager",
        "_seconds_hits",
        "_unjudged",
        "_warming",
        "hit",
    )

    def __init__(self, hits: Hits | None = None) -> None:
        self._hits: Final = hits if hits is not None else HitCount()
        # Replaced only while hits are timed, so that timing costs nothing while they are not.
        self.hit: Callable[[], object] = self._hits.add
        # Reentrant: a destructor that counts may run while this thread counts.
        self._lock = threading.RLock()
        self._recordings = self._retraces = self._evictions = self._inlined = 0
        self._proof_failures = self._peak_wanted = 0
        self._unjudged = self._warming = 0
        self._seconds = self._seconds_eager = self._seconds_hits = self._seconds_checking = 0.0
        self._hits_timed = 0
        self._eager: Counter[str] = Counter()
        self._eager_seconds: dict[str, float] = {}
        self._eager_called_at: dict[str, str] = {}
        self._operators: deque[int] = deque(maxlen=_PROGRAMS_KEPT)
        self._retrace_reasons: dict[str, Retrace] = {}

    def recorded(
        self,
        seconds: float,
        operators: int,
        reasons: Sequence[str | Reason],
        *,
        retrace: bool,
        where: str = "",
    ) -> None:
        """Count a call that was recorded and stored as a program of `operators` operators.

        `seconds` is what the call took. `retrace` says that its owner had a recording before; `reasons` are
        then what changed, each with old and new value, and `where` is the line that called.

        >>> counters = Counters()
        >>> counters.recorded(0.0002, 35, ("x.shape[0] 64 -> 13", "x.dtype float32 -> float64"), retrace=True)
        >>> counters.snapshot("step", 1, 64).retrace_reasons[0].text
        'x.shape[0] 64 -> 13; x.dtype float32 -> float64'
        """
        with self._lock:
            self._recordings += 1
            self._seconds += seconds
            self._operators.append(operators)
            if retrace:
                paths = tuple(r.path for r in reasons if isinstance(r, Reason))
                self._retraced(said(reasons) or _NO_REASON, seconds, paths, where)

    def eager(
        self,
        reason: str,
        where: str = "",
        seconds: float = 0.0,
        *,
        recording: bool = True,
        called_at: str = "",
    ) -> None:
        """Count a call that ran eagerly, with its reason and the `file:line` that it is about.

        `seconds` is what it took, as a recording that was given up or, with `recording` off, as a plain call;
        `called_at` is the line that called.

        >>> counters = Counters()
        >>> counters.eager("calls x.tolist()", "train.py:41")
        >>> counters.snapshot("step", 0, 64).eager
        {'calls x.tolist() (train.py:41)': 1}
        """
        text = f"{reason} ({where})" if where else reason
        with self._lock:
            if recording:
                self._seconds += seconds
            else:
                self._seconds_eager += seconds
            if text not in self._eager and len(self._eager) >= _REASONS_KEPT:
                text = _OTHER_REASONS
            self._eager[text] += 1
            self._eager_seconds[text] = self._eager_seconds.get(text, 0.0) + seconds
            self._eager_called_at[text] = called_at

    def time_hits(self, stop: Callable[[], object] | None) -> None:
        """Call `stop` at each hit, right where it is counted; None for no longer.

        >>> counters = Counters()
        >>> counters.time_hits(lambda: print("hit"))
        >>> counters.hit()
        hit
        """
        count = self._hits.add

        def hit() -> None:
            count()
            if stop is not None:
                stop()

        self.hit = count if stop is None else hit

    def timed(self, seconds: float, checking: float) -> None:
        """Add the time of one hit, and what of it checking guards took; the hit itself is counted by `hit`.

        >>> counters = Counters()
        >>> counters.timed(0.5, 0.25)
        >>> counters.snapshot("step", 0, 64).seconds_hits
        0.5
        """
        with self._lock:
            self._hits_timed += 1
            self._seconds_hits += seconds
            self._seconds_checking += checking

    def wastes(self) -> bool:
        """Whether recording has certainly cost more than the hits saved: no hit saves what a recording takes.

        >>> Counters().wastes()
        False
        """
        with self._lock:
            judged = self._recordings - self._unjudged
            return not self._warming and judged >= _RECORDINGS_TO_JUDGE and self._hits.value < judged

    @contextlib.contextmanager
    def unjudged(self) -> Iterator[list[int]]:
        """Do not take the recordings inside the block for waste; gives a list of their numbers.

        >>> counters = Counters()
        >>> with counters.unjudged() as made:
        ...     counters.recorded(0.1, 3, (), retrace=False)
        >>> len(made)
        1
        """
        made: list[int] = []
        with self._lock:
            before = self._recordings
            self._warming += 1
        try:
            yield made
        finally:
            with self._lock:
                self._warming -= 1
                made += range(before, self._recordings)
                self._unjudged += len(made)

    def inlined(self) -> None:
        """Count a call that was recorded into an outer traced function.

        >>> counters = Counters()
        >>> counters.inlined()
        >>> counters.snapshot("step", 0, 64).inlined
        1
        """
        with self._lock:
            self._inlined += 1

    def evicted(self, count: int = 1) -> None:
        """Count `count` traces that were dropped for others at the limit.

        >>> counters = Counters()
        >>> counters.evicted()
        >>> counters.snapshot("step", 2, 2).evictions
        1
        """
        with self._lock:
            self._evictions += count

    def proof_failed(self) -> None:
        """Count a recording whose replay differed from the eager call; the call itself is an eager one.

        >>> counters = Counters()
        >>> counters.proof_failed()
        >>> counters.snapshot("step", 0, 64).proof_failures
        1
        """
        with self._lock:
            self._proof_failures += 1

    def wanted(self, count: int) -> None:
        """Note that `count` traces at once would have been needed; the most ever wanted is kept.

        >>> counters = Counters()
        >>> counters.wanted(7)
        >>> counters.snapshot("step", 2, limit=2).limit_enough
        7
        """
        with self._lock:
            self._peak_wanted = max(self._peak_wanted, count)

    def snapshot(self, name: str, size: int, limit: int, parameters: str = "") -> Snapshot:
        """The counts now; `size` and `limit` are those of the cache, in traces.

        >>> Counters().snapshot("step", size=0, limit=64).calls
        0
        """
        with self._lock:
            return Snapshot(
                name=name,
                hits=self._hits.value,
                recordings=self._recordings,
                retraces=self._retraces,
                evictions=self._evictions,
                inlined=self._inlined,
                eager=dict(self._eager),
                proof_failures=self._proof_failures,
                seconds_recording=self._seconds,
                operators=tuple(self._operators),
                retrace_reasons=tuple(self._retrace_reasons.values()),
                retrace_reasons_dropped=self._retraces
                - sum(reason.count for reason in self._retrace_reasons.values()),
                cache_size=size,
                cache_limit=limit,
                limit_enough=self._limit_enough(limit),
                parameters=parameters,
                seconds_eager=self._seconds_eager,
                seconds_hits=self._seconds_hits,
                seconds_checking=self._seconds_checking,
                hits_timed=self._hits_timed,
                eager_seconds=dict(self._eager_seconds),
                eager_called_at={text: where for text, where in self._eager_called_at.items() if where},
            )

    def _retraced(self, text: str, seconds: float, paths: tuple[str, ...], where: str) -> None:
        self._retraces += 1
        known = self._retrace_reasons.pop(text, Retrace(text, 0, 0.0))
        self._retrace_reasons[text] = Retrace(text, known.count + 1, known.seconds + seconds, paths, where)
        if len(self._retrace_reasons) > _REASONS_KEPT:
            del self._retrace_reasons[next(iter(self._retrace_reasons))]

    def _limit_enough(self, limit: int) -> int | None:
        if not self._evictions and self._peak_wanted <= limit:
            return None
        # Whoever evicts without saying how many were wanted, wanted one more than fits.
        return max(self._peak_wanted, limit + 1)
