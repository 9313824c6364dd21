"""The traces of one function or one instance, and what is remembered of the signatures that have none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from os import getpid
from typing import TYPE_CHECKING, Literal

import cachetools

from lazytrace._native import available, core
from lazytrace.locks import new_lock
from lazytrace.originals import BUILTINS
from lazytrace.recorded import NUMBERS, SIZES, Trace
from lazytrace.stats import Reason
from lazytrace.stats.reasons import say

if TYPE_CHECKING:
    from lazytrace._core import Call, EagerCount

__builtins__ = BUILTINS

# A refused signature costs its key and a line of text; far more of them than traces may be remembered.
_REFUSALS_KEPT = 1024
_EVICTED_KEPT = 1024
# Signatures that are new at each call would otherwise be remembered without end; no limit is set that high.
_WANTED_KEPT = 16384
# Each is looked for at each read of a number.
_FOLLOWED_KEPT = 256
# A call that could not be recorded once may be recordable later: lazily made state is there the second time.
_TRIED_AGAIN_AT = (2, 8)
# One that made state lazily may be followed by one that makes the rest of it: an optimizer that steps at each
# second call only, layers that are left out at random.
_MAKES_STATE = "looks up a missing key of a "
_MADE_BY = 6
# What is filled at each call, until the next one finds it.
_FILLS_CACHE = "calls a function with a functools cache, which has no entry"
# So many recordings in a row without a hit are no first pass over a few signatures any more. A long one takes
# as much time as many short ones: a few of those that have so many steps together are as telling.
UNHIT_AT_MOST = 16
_UNHIT_AT_LEAST = 6
_UNHIT_STEPS = 12288
_LONGEST_REST = 1 << 20
_LONGEST_ASIDE = 128  # calls that may have become hits meanwhile
# So many refusals in a row for one reason, of a function of which nothing was recorded, say that of its other
# signatures, too.
_ALIKE_AT_MOST = 4
# So many recordings without a hit, as the same lists were longer each time: the next one finds it
# longer, too.
_GROWING_AT_LEAST = 8
# A recording takes as much time as six or seven calls, of which a hit saves half of one. So many are a first
# pass over signatures that may come again; after them, recordings must be hit more often than once.
_FIRST_PASS = 32
_HITS_OF_EACH = 4
_BOTH_WAYS = 3  # from None to something else, and back
_REFUSED = -1  # traces are numbered from 0
_NEVER = (1 << 63) - 1


def makes_state(reason: Reason) -> bool:
    """Whether a call has made state lazily, which is there the next time.

    >>> makes_state(Reason("looks up a missing key of a defaultdict", where="train.py:5"))
    True
    """
    return reason.path.startswith(_MAKES_STATE)


@dataclass
class Refusal:
    """Why a signature runs eagerly, and how often it has."""

    reason: Reason
    calls: int = 1
    final: bool = False

    def count(self) -> None:
        """Count one more call."""
        self.calls += 1

    def due(self) -> bool:
        """Whether the next call should try to record once more.

        >>> refusal = Refusal(Reason("calls print()", where="train.py:3"))
        >>> [(refusal.due(), refusal.count())[0] for _ in range(8)]
        [True, False, False, False, False, False, True, False]
        >>> refusal = Refusal(Reason("looks up a missing key of a defaultdict", where="train.py:5"))
        >>> [(refusal.due(), refusal.count())[0] for _ in range(8)]
        [True, True, True, True, True, False, True, False]
        """
        made = self.calls < _MADE_BY and makes_state(self.reason)
        return not self.final and (made or self.calls + 1 in _TRIED_AGAIN_AT)

    @property
    def settled(self) -> bool:
        """Whether no call tries to record any more."""
        return self.final or self.calls >= _TRIED_AGAIN_AT[-1]


class Refusals:
    """The signatures that run eagerly, and the branches that could not be recorded."""

    def __init__(self) -> None:
        self._lock = new_lock()
        # The oldest goes first: an order of use would have to be kept at each refused call.
        self._by_key: cachetools.FIFOCache[bytes, Refusal] = cachetools.FIFOCache(_REFUSALS_KEPT)
        self._branches: cachetools.FIFOCache[bytes, int] = cachetools.FIFOCache(_REFUSALS_KEPT)

    def of(self, key: bytes) -> Refusal | None:
        """Why a signature runs eagerly; None when it does not.

        >>> Refusals().of(b"key") is None
        True
        """
        if not self._by_key:
            return None
        with self._lock:
            return self._by_key.get(key)

    def refuse(self, key: bytes, reason: Reason, *, final: bool = False) -> None:
        """Remember that a signature runs eagerly; with `final` until the cache is cleared."""
        with self._lock:
            known = self._by_key.get(key)
            if known is None or final:
                self._by_key[key] = Refusal(reason, final=final)
            else:
                known.reason = reason
            if final:
                self._branches.pop(key, None)

    def refuse_branch(self, key: bytes) -> int:
        """Note that a branch of a signature could not be recorded; how many could not by now.

        >>> refusals = Refusals()
        >>> refusals.refuse_branch(b"key"), refusals.refuse_branch(b"key")
        (1, 2)
        """
        with self._lock:
            count: int = self._branches.get(key, 0) + 1
            self._branches[key] = count
            return count

    def forget(self, key: bytes) -> None:
        """A signature was recorded after all."""
        with self._lock:
            self._by_key.pop(key, None)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._by_key.clear()
            self._branches.clear()


class Claims:
    """The signatures that are being recorded right now, each by one call.

    >>> claims = Claims()
    >>> claims.begin(b"key"), claims.begin(b"key"), len(claims)
    (True, False, 1)
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        # By which process: the recordings of other threads do not go on in a child.
        self._keys: dict[object, int] = {}

    def __len__(self) -> int:
        return list(self._keys.values()).count(getpid())

    def __contains__(self, key: object) -> bool:
        return self._keys.get(key) == getpid()

    def begin(self, key: bytes) -> bool:
        """Claim the recording of a signature; False when another call is at it."""
        with self._lock:
            if key in self:
                return False
            self._keys[key] = getpid()
            return True

    def end(self, key: bytes) -> None:
        """Give the claim back, however the recording ended."""
        with self._lock:
            self._keys.pop(key, None)


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


# See `Shapes.take`.
Way = Literal["anew", "whole operators", "early stores"]


@dataclass
class _Followed:
    """What is known of one structure of calls; see `Shapes`."""

    first: tuple[list[int], object] | None = None
    exact: int = 0
    plain: bool = False
    sizes: bool = False
    state: tuple[str, ...] = ()
    fixed: frozenset[str] = frozenset()
    blocks: bool = True
    failed: int = 0
    refused: str = ""
    turns: int = 0
    ways: frozenset[Way] = frozenset()


class Shapes:
    """What of a structure of calls was recorded with other values, and what has recordings for each value.

    A structure is a key without sizes and numbers, and without the constants that lie in containers.

    >>> shapes = Shapes()
    >>> shapes.meet(b"[?]", ([3], [])), shapes.meet(b"[?]", ([3], [])), shapes.meet(b"[?]", ([4], []))
    (0, 0, 1)
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._by_structure: cachetools.FIFOCache[bytes, _Followed] = cachetools.FIFOCache(_REFUSALS_KEPT)

    def _of(self, structure: bytes) -> _Followed:
        with self._lock:
            known: _Followed = self._by_structure.setdefault(structure, _Followed())
            return known

    def meet(self, structure: bytes, values: tuple[list[int], object]) -> int:
        """Note a call that is to be recorded; in which values it differs from the first of its structure.

        `values` are its sizes, and its numbers and other constants.
        """
        known = self._of(structure)
        with self._lock:
            if known.first is None:
                known.first = values
            sizes, numbers = known.first
        return SIZES * (sizes != values[0]) | NUMBERS * (numbers != values[1])

    def keep_exact(self, structure: bytes, loose: int) -> None:
        """From now on each size, or each number, has recordings of its own."""
        known = self._of(structure)
        with self._lock:
            known.exact |= loose

    def exact(self, structure: bytes) -> int:
        """What has recordings for each value.

        >>> Shapes().exact(b"f32[?]")
        0
        """
        return self._of(structure).exact

    def refuse(self, structure: bytes, reason: Reason) -> None:
        """Note why a recording in which nothing was followed has no program."""
        self._of(structure).refused = str(reason)

    def refused_for(self, structure: bytes, reason: Reason) -> bool:
        """Whether the last of these had no program for the same reason: what is followed is not to blame.

        >>> Shapes().refused_for(b"f32[?]", Reason("sets the global n"))
        False
        """
        return self._of(structure).refused == str(reason)

    def keep_plain(self, structure: bytes) -> None:
        """From now on no number is followed."""
        self._of(structure).plain = True

    def is_plain(self, structure: bytes) -> bool:
        """Whether no number is followed.

        >>> Shapes().is_plain(b"f32[?]")
        False
        """
        return self._of(structure).plain

    def follow_sizes(self, structure: bytes) -> None:
        """From now on sizes are followed, as numbers say how large results are."""
        self._of(structure).sizes = True

    def follows_sizes(self, structure: bytes) -> bool:
        """Whether sizes are followed from the first recording on.

        >>> Shapes().follows_sizes(b"f32[?]")
        False
        """
        return self._of(structure).sizes

    def follow_state(self, structure: bytes, paths: Iterable[str]) -> bool:
        """From now on the numbers at these paths are followed; whether that is new of any.

        >>> shapes = Shapes()
        >>> shapes.follow_state(b"f32[?]", ["self.n"]), shapes.state(b"f32[?]")
        (True, ('self.n',))
        """
        known = self._of(structure)
        with self._lock:
            new = [path for path in dict.fromkeys(paths) if path not in known.fixed | {*known.state}]
            fits = len(known.state) + len(new) <= _FOLLOWED_KEPT and not known.plain
            if fits:
                known.state += tuple(new)
        return fits and bool(new)

    def fix_state(self, structure: bytes, paths: Iterable[str]) -> bool:
        """From now on each number at these paths has recordings of its own; whether that is new of any.

        >>> shapes = Shapes()
        >>> shapes.fix_state(b"f32[?]", ["self.n"]), shapes.fix_state(b"f32[?]", ["self.n"])
        (True, False)
        """
        known = self._of(structure)
        with self._lock:
            before = known.fixed
            known.fixed |= {*paths}
            known.state = tuple(path for path in known.state if path not in known.fixed)
            return known.fixed != before

    def take(self, structure: bytes, way: Way) -> bool:
        """Whether recordings go this way from now on, and did not before.

        "anew": what was recorded is dropped, once, since an operator that is a step has changed Python state
        when it was recorded: torch makes some at its first call. "whole operators": operators with kernels in
        Python are steps, since what these do could not be recorded. "early stores": attributes are set by
        steps, where the function sets them, since a hook has set one, too.

        >>> shapes = Shapes()
        >>> [shapes.take(b"f32[?]", "anew") for _ in range(2)]
        [True, False]
        """
        known = self._of(structure)
        with self._lock:
            first = way not in known.ways
            known.ways |= {way}
            return first

    def takes(self, structure: bytes, way: Way) -> bool:
        """Whether recordings go this way.

        >>> Shapes().takes(b"f32[?]", "whole operators")
        False
        """
        return way in self._of(structure).ways

    def leave_blocks(self, structure: bytes, *, to_blame: bool) -> bool:
        """Whether from now on nobody watches what activation checkpointing calls.

        A recording that did so has failed: because of that, if it is `to_blame`; so may a second one.

        >>> shapes = Shapes()
        >>> [shapes.leave_blocks(b"f32[?]", to_blame=False) for _ in range(3)]
        [False, True, False]
        """
        known = self._of(structure)
        with self._lock:
            known.failed += 1
            leaves = known.blocks and (to_blame or known.failed > 1)
            known.blocks &= not leaves
            return leaves

    def leaves_blocks(self, structure: bytes) -> bool:
        """Whether it is so.

        >>> Shapes().leaves_blocks(b"f32[?]")
        False
        """
        return not self._of(structure).blocks

    def take_turn(self, structure: bytes, way: int) -> bool:
        """Whether from now on places in state may hold None and something else by turns.

        They may once a call has been refused as what it has written took the place of None (`way` is 1), and
        another one as None took the place of what (2).

        >>> shapes = Shapes()
        >>> [shapes.take_turn(b"f32[?]", way) for way in (1, 1, 2, 1)]
        [False, False, True, False]
        """
        known = self._of(structure)
        with self._lock:
            before, known.turns = known.turns, known.turns | way
            return before != known.turns == _BOTH_WAYS

    def keeps_turns(self, structure: bytes) -> bool:
        """Whether it is so.

        >>> Shapes().keeps_turns(b"f32[?]")
        False
        """
        return self._of(structure).turns == _BOTH_WAYS

    def state(self, structure: bytes) -> tuple[str, ...]:
        """The paths of the numbers in state that are followed.

        >>> Shapes().state(b"f32[?]")
        ()
        """
        known = self._of(structure)
        return () if known.plain else known.state

    def fixed(self, structure: bytes) -> frozenset[str]:
        """The paths of the numbers in state that have recordings of their own.

        >>> Shapes().fixed(b"f32[?]")
        frozenset()
        """
        with self._lock:
            return frozenset(self._of(structure).fixed)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._by_structure.clear()


class TraceStore:
    """Traces by signature. Each signature may have several, told apart by their guards and branches.

    Lookups take a hash of the key, however many traces there are.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = new_lock()
        self._lru = _Lru(limit)
        self._by_key: dict[bytes, tuple[Trace, ...]] = {}
        self._late = -1  # the trace that answered behind others, the last time that one did
        self._evicted: dict[bytes, None] = {}
        # The same for hits: they look up and mark traces without Python.
        self.native = core.TraceTable() if available() else None

    def __len__(self) -> int:
        return len(self._lru)

    def find(self, key: bytes) -> tuple[Trace, ...]:
        """The traces of a signature, newest first.

        >>> TraceStore(8).find(b"key")
        ()
        """
        return self._by_key.get(key, ())

    def matching(self, call: Call) -> tuple[Trace, ...]:
        """The traces that a call is tried with: those of its very values, then those that fit others."""
        found = self._by_key.get(call.key, ())
        for loose in (SIZES, NUMBERS, SIZES | NUMBERS):
            if call.loose_in(loose) == loose:
                found += self._by_key.get(call.key_of(loose), ())
        return found

    def all(self) -> list[Trace]:
        """All traces, newest first.

        >>> TraceStore(8).all()
        []
        """
        with self._lock:
            stored = [trace for traces in self._by_key.values() for trace in traces]
            return sorted(stored, key=lambda trace: -trace.number)

    def of_structure(self, structure: bytes) -> list[Trace]:
        """Those of calls that have this structure, newest first.

        >>> TraceStore(8).of_structure(b"f32[?]")
        []
        """
        return [trace for trace in self.all() if trace.key.startswith(structure)]

    def full(self) -> bool:
        """Whether one more trace needs an eviction.

        >>> TraceStore(8).full()
        False
        """
        return len(self._lru) >= self.limit

    def has_evicted(self, key: bytes) -> bool:
        """Whether a trace of a signature was dropped at the limit; the newest 1024 signatures are remembered.

        >>> TraceStore(8).has_evicted(b"key")
        False
        """
        return key in self._evicted

    def used(self, trace: Trace) -> None:
        """Mark a trace as the most recently used."""
        if self.native is not None:
            self.native.mark(trace.native)

    def hits(self, number: int) -> int:
        """How often a trace was hit or marked; 0 of one that is gone.

        >>> TraceStore(8).hits(3)
        0
        """
        try:
            return self._lru[number].native.hits
        except KeyError:  # cachetools' get() looks twice, and another thread may drop it in between
            return 0

    def answered_late(self, trace: Trace) -> None:
        """A trace has answered behind others, which ran until a value differed: is it better asked first?

        It is from the second time in a row on; those that take turns stay as they are.
        """
        again, self._late = trace.number == self._late, trace.number
        if again:
            with self._lock:
                self._ask_first(trace.key, trace.number)

    def branched(self, key: bytes, number: int) -> None:
        """Mark the trace with this number as the most recently used, and ask it first from now on."""
        with self._lock:
            for trace in self._ask_first(key, number):
                self.used(trace)

    def _ask_first(self, key: bytes, number: int) -> tuple[Trace, ...]:
        traces = self._by_key.get(key, ())
        taken = tuple(trace for trace in traces if trace.number == number)
        if taken:
            self._store(key, taken + tuple(trace for trace in traces if trace.number != number))
        return taken

    def add(self, trace: Trace) -> list[Trace]:
        """Store a trace; the least recently used ones that were dropped for it."""
        with self._lock:
            trace.native.join()
            self.used(trace)
            self._lru[trace.number] = trace
            dropped, self._lru.evicted = self._lru.evicted, []
            for gone in dropped:
                self._forget(gone)
                self._evicted[gone.key] = None
            if len(self._evicted) > _EVICTED_KEPT:
                del self._evicted[next(iter(self._evicted))]
            self._store(trace.key, (trace, *self._by_key.get(trace.key, ())))
        return dropped

    def evict(self, trace: Trace) -> bool:
        """Drop one trace for the limit over all functions; False when it has gone meanwhile."""
        with self._lock:
            if self._lru.pop(trace.number, None) is None:
                return False
            self._forget(trace)
            self._evicted[trace.key] = None
            return True

    def drop(self, key: bytes) -> None:
        """Drop the traces of a signature without counting them as evicted."""
        with self._lock:
            for trace in self.find(key):
                if self._lru.pop(trace.number, None) is not None:
                    self._forget(trace)

    def clear(self) -> None:
        """Drop all traces."""
        with self._lock:
            self._by_key.clear()
            if self.native is not None:
                self.native.clear()
            self._evicted.clear()
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


@dataclass
class _Newest:
    """One of the newest recordings."""

    number: int
    stored: int = 0  # its mark when it was stored
    hits: int = 0  # at that time; once it is dropped, those that it has had since, below 0
    key: bytes = b""
    steps: int = 0
    branch: bool = False  # a replay had begun, and had come to a value that it had no way for
    uses: int = 0  # how often any trace had been used by then


class Retreat:
    """Whether recording has paid lately; where it has not, it rests for twice as many calls each time.

    A recording that no call was answered by has not paid, nor has one that was refused, of a signature that
    was not refused before: where each call has a signature of its own, each would be tried. After a first
    pass over some signatures, recordings that are hit once or twice each do not pay either.

    >>> retreat = Retreat(TraceStore(8))
    >>> retreat.resting()
    False
    """

    def __init__(self, traces: TraceStore) -> None:
        self._traces = traces
        self._newest: tuple[_Newest, ...] = ()  # replaced as a whole, as any thread may look
        self._rest = UNHIT_AT_MOST
        self._left = 0
        self._aside = False  # until the rest is over
        self._refusal: Reason | None = None  # why the newest was refused
        self._alike = 0  # how many in a row were refused for that
        # For the lengths of which lists alone the newest were recorded, and how many in a row.
        self._growing: tuple[tuple[str, ...], int] = ((), 0)
        self._recordings = 0

    def recorded(self, trace: Trace, reasons: tuple[Reason, ...] = (), *, branch: bool = False) -> None:
        """A trace was stored, which was recorded for these reasons; `branch`: behind another one's replay."""
        native = trace.native
        self._recordings += 1
        self._alike = 0
        paths = tuple(reason.path for reason in reasons)
        growing = paths if all(path.startswith("len(") for path in paths) else ()
        self._growing = (growing, self._growing[1] + 1 if growing == self._growing[0] else 1)
        newest = _Newest(trace.number, native.used, native.hits, trace.key, native.size, branch, self._uses())
        self._note(newest, None)

    def dropped(self, trace: Trace) -> None:
        """A trace has made room for another: its hits count as before."""
        for one in self._newest:
            if one.number == trace.number:
                one.hits -= trace.native.hits

    def refused(self, reason: Reason, *, again: bool = False) -> None:
        """A signature could not be recorded; with `again` it was refused before.

        >>> retreat = Retreat(TraceStore(8))
        >>> for line in range(UNHIT_AT_MOST):
        ...     retreat.refused(Reason("calls print()", where=f"train.py:{line}"))
        >>> retreat.resting(), str(retreat.reason())
        (True, 'calls print() (train.py:15)')
        >>> retreat = Retreat(TraceStore(8))
        >>> for _ in range(4):
        ...     retreat.refused(Reason("calls print()", where="train.py:3"))
        >>> retreat.resting()
        True
        """
        known, self._refusal = self._refusal, reason
        makes = reason.path.startswith((_MAKES_STATE, _FILLS_CACHE))
        self._alike = 0 if makes else self._alike + 1 if str(known) == str(reason) else 1
        if not again:
            self._note(_Newest(_REFUSED), reason)
        elif self._is_hopeless():
            self._begin_rest()

    def raised(self) -> None:
        """A call that was recorded raised, and so will the next one, maybe.

        >>> retreat = Retreat(TraceStore(8))
        >>> for _ in range(UNHIT_AT_MOST):
        ...     retreat.raised()
        >>> str(retreat.reason())
        'records too often: none of its last 16 recordings was hit'
        """
        self._alike = 0
        self._note(_Newest(_REFUSED), None)

    def branches_pay(self, key: bytes) -> bool:
        """Whether to record one more way from a side exit.

        Not if none of the newest, all of `key`, was taken twice, nor any older one meanwhile.

        >>> Retreat(TraceStore(8)).branches_pay(b"key")
        True
        """
        newest = self._newest
        # There may be none where another thread has cleared them since.
        if not newest or self._pay(newest) or any(one.key != key for one in newest):
            return True
        known, since = {one.number for one in newest}, newest[0].stored
        older = (trace for trace in self._traces.find(key) if trace.number not in known)
        return any(trace.native.used > since for trace in older)

    def reason(self) -> Reason:
        """Why a call is better not recorded.

        >>> str(Retreat(TraceStore(8)).reason())
        'records too often: none of its last 16 recordings was hit'
        """
        if self._refusal is not None:
            return self._refusal
        enough = self._enough(self._newest)
        if self._recordings <= _FIRST_PASS:
            return Reason(say("records-too-often", enough), kind="eager")
        return Reason(say("seldom-hit", enough, self._hits_needed(enough)), kind="eager")

    def _hits_needed(self, enough: int) -> int:
        return 1 if self._recordings <= _FIRST_PASS else _HITS_OF_EACH * enough

    def _note(self, one: _Newest, refusal: Reason | None) -> None:
        newest = (*self._newest, one)[-UNHIT_AT_MOST:]
        # What was hit before those that are enough says nothing of them.
        while _are_long(newest[1:]):
            newest = newest[1:]
        self._newest = newest
        self._refusal = refusal
        if self._pay(self._newest):
            self._rest = UNHIT_AT_MOST
        else:
            self._begin_rest()

    def _begin_rest(self) -> None:
        self._take_back()
        if self._left <= 0:  # not in the midst of one, in which ways behind side exits are recorded
            self._left = self._rest
            self._rest = min(2 * self._rest, _LONGEST_REST)
        if self._ends_in_exits():
            self._left = min(self._left, _LONGEST_ASIDE)
            self._set_aside(True)

    def _ends_in_exits(self) -> bool:
        """Whether calls are better not replayed: all replays ended in side exits, for as long as is known."""
        newest = self._newest[-self._enough(self._newest) :]
        used = self._uses() - newest[0].uses if newest else 0
        # A recording is marked when it is stored.
        return bool(newest) and all(one.branch for one in newest) and used < len(newest)

    def _uses(self) -> int:
        return self._traces.native.uses() if self._traces.native is not None else 0

    def _set_aside(self, aside: bool) -> None:
        self._aside = aside
        if self._traces.native is not None:
            self._traces.native.set_aside(aside)

    def aside(self) -> bool:
        """Whether the next call is better not even replayed.

        A replay that ends in a side exit costs as much as several calls, as the function runs once more to be
        recorded.

        >>> Retreat(TraceStore(8)).aside()
        False
        """
        return self._aside and self.resting()

    def wake(self) -> None:
        """Let each call be seen, and traces be asked: it may have to raise rather than run eagerly."""
        self._take_back()
        self._set_aside(False)

    def _is_hopeless(self) -> bool:
        return self._alike >= _ALIKE_AT_MOST and len(self._traces) == 0

    def resting(self) -> bool:
        """Whether the next call is better not recorded."""
        self._take_back()
        return self._left > 0 and not self._pay(self._newest)

    def rest(self, count: EagerCount | None) -> None:
        """A call was not recorded since recording rests; with `count` the core counts those that are left."""
        self._take_back()
        native = self._traces.native
        if count is None or native is None or self._left <= 1:
            self._left -= 1
        else:
            native.retreat(count, self._left, self._first())
            self._left = 0

    def _take_back(self) -> None:
        if self._traces.native is not None:
            self._left += self._traces.native.end_retreat()
        if self._aside and self._left <= 0:
            self._set_aside(False)

    def _first(self) -> int:
        """The number of the oldest of the newest traces: a hit of any from it on may end the rest."""
        return min((one.number for one in self._newest if one.number != _REFUSED), default=_NEVER)

    def clear(self) -> None:
        """Forget all."""
        self._newest = ()
        self._rest = UNHIT_AT_MOST
        self._take_back()
        self._left = 0
        self._set_aside(False)
        self._alike = 0
        self._growing = ((), 0)
        self._recordings = 0

    def _pay(self, newest: tuple[_Newest, ...]) -> bool:
        if self._is_hopeless():
            return False
        enough = self._enough(newest)
        hits = (self._traces.hits(one.number) - one.hits for one in newest[-enough:])
        return len(newest) < enough or sum(hits) >= self._hits_needed(enough)

    def _enough(self, newest: tuple[_Newest, ...]) -> int:
        """How many of the newest tell whether recording pays."""
        lists, count = self._growing
        if lists and count >= _GROWING_AT_LEAST and len(newest) >= count:
            return count
        return len(newest) if _are_long(newest) else UNHIT_AT_MOST


def _are_long(newest: tuple[_Newest, ...]) -> bool:
    return len(newest) >= _UNHIT_AT_LEAST and sum(one.steps for one in newest) >= _UNHIT_STEPS


class Wanted:
    """How many traces at once would have been needed, were none ever dropped: what limit would have done.

    Until the limit is reached that is how many there are. From then on each trace is known by its signature
    and by what its guards expect in words, so that one that is recorded again is not counted again.
    """

    def __init__(self, traces: TraceStore) -> None:
        self._traces = traces
        self._known: set[int] = set()
        self._exact = True

    def one_more(self, key: bytes, trace: Trace | None) -> tuple[int, bool]:
        """Count a trace that is about to be stored, or with None one that is not; see `TraceCache.want`."""
        if not self._known and not self._traces.full():
            return len(self._traces) + 1, True
        if not self._known:
            self._known = {known.likeness for known in self._traces.all()}
        found = self._unrecorded(key) if trace is None else self._recorded(trace)
        if len(self._known) < _WANTED_KEPT:
            self._known.add(found)
        return max(len(self._known), self._traces.limit + (not self._exact)), self._exact

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()
        self._exact = True

    def _unrecorded(self, key: bytes) -> int:
        if self._traces.find(key):
            # The state differs, and it is not known whether this one was asked for before.
            self._exact = False
        return hash(key)

    def _recorded(self, trace: Trace) -> int:
        if not self._exact:
            return trace.likeness
        alike = [old for old in self._traces.find(trace.key) if old.likeness == trace.likeness]
        if not alike:
            return trace.likeness
        # Branches are told apart by values in their programs, which take longer to look up.
        reads = trace.reads()
        if any(old.reads() == reads for old in alike):
            # What tells the two apart, such as which object it is, has no words.
            self._exact = False
        return hash((trace.likeness, reads))


class TraceCache:
    """What is known of the calls of one function or one instance: traces, refusals, and claims.

    Any thread may call any method; no lock is held while a function runs.
    """

    def __init__(
        self,
        limit: int,
        evicted: Callable[[Trace, str], object] = lambda _trace, _why: None,
        instance: int = 0,
    ) -> None:
        """`evicted` is told of each trace that is dropped for another, and of the reason."""
        self.instance = instance
        self.traces = TraceStore(limit)
        self.shapes = Shapes()
        self.refusals = Refusals()
        self.claims = Claims()
        self.retreat = Retreat(self.traces)
        self._on_evicted = evicted
        self._lock = new_lock()
        self._wanted = Wanted(self.traces)

    @property
    def limit(self) -> int:
        """How many traces fit."""
        return self.traces.limit

    def booked_up(self) -> bool:
        """Whether the recordings under way need all the room that is left.

        >>> TraceCache(8).booked_up()
        False
        """
        return len(self.traces) + len(self.claims) >= self.limit

    def overbooked(self) -> bool:
        """Whether the recordings under way need more room than there is.

        >>> TraceCache(8).overbooked()
        False
        """
        return len(self.traces) + len(self.claims) > self.limit

    def want(self, key: bytes, trace: Trace | None = None) -> tuple[int, bool]:
        """Note that a signature needs one trace more: `trace`, or one that is not recorded for lack of room.

        Gives how many traces are needed by now, were none ever dropped, and whether so many are certainly
        enough.
        """
        with self._lock:
            return self._wanted.one_more(key, trace)

    def add(
        self,
        trace: Trace,
        *,
        judged: bool = True,
        reasons: tuple[Reason, ...] = (),
        branch: bool = False,
    ) -> None:
        """Store a trace, evicting the least recently used at the limit.

        `judged`: whether it counts as one that does not pay as long as it is not hit. `reasons`: why it was
        recorded; with `branch` a replay had begun.
        """
        self.refusals.forget(trace.key)
        # Whoever is told may take locks of its own, and wait for a thread that waits for this one.
        for dropped in self.traces.add(trace):
            self.retreat.dropped(dropped)
            self._on_evicted(dropped, say("cache-limit", self.limit))
        with self._lock:
            if self.traces.native is not None:
                self.traces.native.unsettle(trace.key)
            if judged:
                self.retreat.recorded(trace, reasons, branch=branch)

    def evict(self, trace: Trace, limit: int) -> None:
        """Drop a trace for the `limit` over all functions."""
        if self.traces.evict(trace):
            self.retreat.dropped(trace)
            self._on_evicted(trace, say("total-limit", limit))

    def settle(self, key: bytes, count: EagerCount) -> None:
        """Let calls of a refused signature run without Python, counted by `count`."""
        if self.traces.native is not None:
            self.traces.native.settle(key, count)

    def wake(self) -> None:
        """No call goes by unseen, or without a look at the traces, since recording rests."""
        with self._lock:
            self.retreat.wake()

    def rest(self, count: EagerCount | None) -> None:
        """A call was not recorded since recording rests; with `count` the core counts those that are left."""
        with self._lock:
            self.retreat.rest(count)

    def keep_exact(self, call: Call, loose: int, what: int) -> None:
        """Record each size or number (`what`) by itself from now on; drop the traces that fit `loose`."""
        with self._lock:
            self.shapes.keep_exact(call.structure, what)
            self.traces.drop(call.key_of(loose))
            self.retreat.clear()  # what was dropped has not shown that it does not pay

    def fix_state(self, call: Call, key: bytes, paths: Iterable[str]) -> None:
        """Record each number at these paths by itself from now on, and drop the traces of `key`."""
        with self._lock:
            self.shapes.fix_state(call.structure, paths)
            # These stay among those that were not hit: a function may follow many numbers in vain.
            self.traces.drop(key)

    def refuse_branch(self, key: bytes, reason: Reason, limit: int) -> None:
        """Note that a branch of a signature could not be recorded; at the limit the whole runs eagerly."""
        if self.refusals.refuse_branch(key) >= limit:
            self.refuse_for_good(key, reason)

    def refuse_for_good(self, key: bytes, reason: Reason) -> None:
        """Remember that a signature runs eagerly until the cache is cleared, and drop its traces."""
        with self._lock:
            self.traces.drop(key)
            self.refusals.refuse(key, reason, final=True)

    def stop(self, call: Call, reason: Reason) -> None:
        """A replay of such a call could not end: these run eagerly now, whatever sizes and numbers."""
        with self._lock:
            for loose in range((SIZES | NUMBERS) + 1):
                self.traces.drop(call.key_of(loose))
            self.refusals.refuse(call.structure, reason, final=True)

    def refusal_of(self, call: Call) -> Refusal | None:
        """Why calls like this one run eagerly; None when they do not."""
        return self.refusals.of(call.key) or self.refusals.of(call.structure)

    def clear(self) -> None:
        """Drop all traces and refusals."""
        with self._lock:
            self.traces.clear()
            self.shapes.clear()
            self.refusals.clear()
            self.retreat.clear()
            self._wanted.clear()
