"""The counters of one traced function."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from lazytrace._native import core
from lazytrace.locks import new_lock
from lazytrace.originals import BUILTINS
from lazytrace.stats.metrics import Phases
from lazytrace.stats.model import Reason, Retrace, Snapshot
from lazytrace.stats.words import line_of

if TYPE_CHECKING:
    from lazytrace._core import EagerCount

__builtins__ = BUILTINS

_REASONS_KEPT = 200
_PROGRAMS_KEPT = 1000
# A first pass over a few sizes is no waste yet.
_RECORDINGS_TO_JUDGE = 16
_OTHER_REASONS = f"other reasons, past the first {_REASONS_KEPT}"
_NO_REASON = "no difference found (a bug of lazytrace: please report it)"


class HitCount:
    """Counts hits where the core does not do so.

    >>> hits = HitCount()
    >>> hits.add()
    >>> hits.value
    1
    """

    def __init__(self) -> None:
        self.value = 0
        self._lock = new_lock()

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
        "_limit_exact",
        "_lock",
        "_operators",
        "_peak_wanted",
        "_phases",
        "_promised",
        "_proof_failures",
        "_recordings",
        "_retrace_reasons",
        "_retraces",
        "_seconds",
        "_seconds_checking",
        "_seconds_eager",
        "_seconds_hits",
        "_settled",
        "_unjudged",
        "_untraced",
        "_warming",
        "hit",
    )

    def __init__(self, hits: Hits | None = None) -> None:
        self._hits: Final = hits if hits is not None else HitCount()
        # Replaced only while hits are timed, so that timing costs nothing while they are not.
        self.hit: Callable[[], object] = self._hits.add
        # Reentrant: a destructor that counts may run while this thread counts.
        self._lock = new_lock()
        self._recordings = self._retraces = self._evictions = self._inlined = 0
        self._proof_failures = self._peak_wanted = self._promised = 0
        self._limit_exact = True
        self._unjudged = self._warming = 0
        self._seconds = self._seconds_eager = self._seconds_hits = self._seconds_checking = 0.0
        self._hits_timed = 0
        self._phases = Phases()
        self._eager: Counter[str] = Counter()
        self._eager_seconds: dict[str, float] = {}
        self._eager_called_at: dict[str, str] = {}
        self._settled: dict[str, EagerCount] = {}
        self._untraced: dict[str, None] = {}
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
                self._retraced(line_of(reasons) or _NO_REASON, seconds, paths, where)

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

    def settled(self, reason: str, where: str = "") -> EagerCount:
        """What counts eager calls of one reason without Python; `eager` has counted the first of them."""
        text = f"{reason} ({where})" if where else reason
        with self._lock:
            if text not in self._eager:
                text = _OTHER_REASONS
            return self._settled.setdefault(text, core.EagerCount())

    def _eager_now(self) -> tuple[dict[str, int], dict[str, float]]:
        calls, seconds = dict(self._eager), dict(self._eager_seconds)
        for text, count in self._settled.items():
            calls[text] = calls.get(text, 0) + count.calls
            seconds[text] = seconds.get(text, 0.0) + count.seconds
        return calls, seconds

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

    def wastes(self, first: int = 0) -> bool:
        """Whether recording has certainly cost more than the hits saved: no hit saves what a recording takes.

        `first` recordings are left out: those that each instance needs, and that its later calls may hit.

        >>> Counters().wastes()
        False
        """
        with self._lock:
            judged = self._recordings - self._unjudged - first
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

    def untraced(self, method: str) -> None:
        """Note that a method of a traced module calls the plain module.

        >>> counters = Counters()
        >>> counters.untraced("Net.training_step")
        >>> counters.snapshot("Net", 0, 64).untraced
        ('Net.training_step',)
        """
        with self._lock:
            self._untraced[method] = None

    @property
    def warming(self) -> bool:
        """Whether recordings are made ahead of need, inside `unjudged`."""
        return self._warming > 0

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

    def promised(self, count: int) -> None:
        """Note how many guards on state are left out by now, since it is promised not to change.

        >>> counters = Counters()
        >>> counters.promised(7)
        >>> counters.snapshot("step", 1, 64).promised
        7
        """
        with self._lock:
            self._promised = count

    def phased(self, phases: Phases) -> None:
        """Add what the phases of one recording took.

        >>> counters = Counters()
        >>> counters.phased(Phases(run=0.5))
        >>> counters.snapshot("step", 1, 64).seconds_run
        0.5
        """
        with self._lock:
            self._phases = Phases(*(a + b for a, b in zip(self._phases, phases, strict=True)))

    def wanted(self, count: int, exact: bool = True) -> None:
        """Note that `count` traces at once would have been needed; the most ever wanted is kept.

        `exact` says that so many are certainly enough.

        >>> counters = Counters()
        >>> counters.wanted(7)
        >>> counters.snapshot("step", 2, limit=2).limit_enough
        7
        """
        with self._lock:
            if count >= self._peak_wanted:
                self._limit_exact = exact and (self._limit_exact or count > self._peak_wanted)
                self._peak_wanted = count

    def mark(self) -> tuple[int, ...]:
        """Another one whenever a snapshot would be another one.

        >>> counters = Counters()
        >>> before = counters.mark()
        >>> counters.inlined()
        >>> counters.mark() == before
        False
        """
        with self._lock:
            return (
                self._hits.value,
                self._hits_timed,
                self._recordings,
                self._evictions,
                self._inlined,
                self._proof_failures,
                self._promised,
                self._peak_wanted,
                self._limit_exact,
                len(self._untraced),
                self._eager.total(),
                *(count.calls for count in self._settled.values()),
            )

    def snapshot(self, name: str, size: int, limit: int, parameters: str = "") -> Snapshot:
        """The counts now; `size` and `limit` are those of the cache, in traces.

        >>> Counters().snapshot("step", size=0, limit=64).calls
        0
        """
        with self._lock:
            eager, eager_seconds = self._eager_now()
            settled = sum(count.seconds for count in self._settled.values())
            return Snapshot(
                name=name,
                hits=self._hits.value,
                recordings=self._recordings,
                retraces=self._retraces,
                evictions=self._evictions,
                inlined=self._inlined,
                eager=eager,
                proof_failures=self._proof_failures,
                seconds_recording=self._seconds,
                operators=tuple(self._operators),
                retrace_reasons=tuple(self._retrace_reasons.values()),
                retrace_reasons_dropped=self._retraces
                - sum(reason.count for reason in self._retrace_reasons.values()),
                cache_size=size,
                cache_limit=limit,
                limit_enough=self._limit_enough(limit),
                limit_exact=self._limit_exact,
                parameters=parameters,
                seconds_eager=self._seconds_eager + settled,
                seconds_hits=self._seconds_hits,
                seconds_checking=self._seconds_checking,
                hits_timed=self._hits_timed,
                eager_seconds=eager_seconds,
                untraced=tuple(self._untraced),
                promised=self._promised,
                seconds_run=self._phases.run,
                seconds_verdict=self._phases.verdict,
                seconds_lowering=self._phases.lowering,
                seconds_proof=self._phases.proof,
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
