"""Why a call does not hit: every difference to the nearest trace, found without running the function."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazytrace.guards import failed_guard
from lazytrace.signature import Description, changes, nearest
from lazytrace.stats import Reason, said, texts
from lazytrace.trace import Trace

if TYPE_CHECKING:
    from lazytrace._core import Call

AGAIN = Reason("recorded again after an eviction", kind="limit")
FIRST = Reason("first call", kind="first")


@dataclass(frozen=True)
class Candidate:
    """A trace that a call does not hit, and everything that keeps it from doing so.

    >>> str(Candidate(3, (Reason("x.shape[0]", "64", "13", "shape"),)))
    'trace 3: x.shape[0] 64 -> 13'
    """

    number: int
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        return f"trace {self.number}: {said(self.reasons)}"


@dataclass(frozen=True)
class Explanation:
    """What a call would do: `outcome` is "hit", "record", "eager" or "raise".

    `reasons` say why it would not hit: every difference to the nearest trace, or what makes it run eagerly or
    raise.
    `candidates` are all traces by the number of differences, the nearest first. `depends` names the values in
    the program of a hit that Python looked at: a call in which one of them differs takes another branch.

    >>> print(Explanation("step", "record", (Reason("k", "1", "2", "value"),)))
    step would be recorded: k 1 -> 2
    """

    function: str
    outcome: str
    reasons: tuple[Reason, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    depends: tuple[str, ...] = ()

    @property
    def hit(self) -> bool:
        """Whether the call would be answered by a trace.

        >>> Explanation("step", "hit").hit
        True
        """
        return self.outcome == "hit"

    def __str__(self) -> str:
        if self.hit:
            unless = f", unless one of these differs: {'; '.join(self.depends)}" if self.depends else ""
            return f"{self.function} would hit{unless}"
        verb = {"record": "be recorded", "eager": "run eagerly"}.get(self.outcome, "raise")
        lines = [f"{self.function} would {verb}: {'; '.join(texts(self.reasons))}"]
        others = self.candidates[1:] if self.outcome == "record" else ()
        return "\n".join([*lines, *(f"  {one}" for one in others)])


def guard_reasons(trace: Trace, call: Call, names: list[str]) -> tuple[Reason, ...]:
    """All guards of a trace that a call fails; () where all hold."""
    return tuple(dict.fromkeys(failed_guard(one) for one in trace.native.explain_all(call, names)))


def against(
    trace: Trace, call: Call, words: Description, names: list[str], modes: Container[str]
) -> tuple[Reason, ...]:
    """Every difference between a call and a trace: what the signature holds, then the state."""
    return changes(trace.description, words, modes) + guard_reasons(trace, call, names)


def candidates(
    traces: Iterable[Trace], call: Call, words: Description, names: list[str], modes: Container[str]
) -> tuple[Candidate, ...]:
    """All traces with what keeps the call from hitting them, the nearest first, the newest of equals."""
    found = [Candidate(trace.number, against(trace, call, words, names, modes)) for trace in traces]
    return tuple(sorted(found, key=lambda one: len(one.reasons)))


@dataclass
class Search:
    """The differences of one call to the traces that are known when it is made.

    `told` is what the match found: guards that failed, or a value that differed, under the very same
    signature. Otherwise the nearest signature is asked.
    """

    known: list[Trace]
    call: Call
    words: Description
    names: list[str]
    modes: Container[str]
    told: tuple[Reason, ...] | None
    told_by: Trace | None = None
    _nearest: Trace | None = None

    def before(self) -> tuple[Reason, ...]:
        """What is known of the reasons before the function runs."""
        if not self.known:
            return (FIRST,)
        if self.told is not None:
            if self.told_by is None or self.told[0].kind == "branch":
                return self.told
            return guard_reasons(self.told_by, self.call, self.names) or self.told
        # Of equals the newest, and the known ones come newest first.
        closest = nearest(self.words, [trace.description for trace in self.known])
        self._nearest = next(trace for trace in self.known if trace.description is closest)
        return against(self._nearest, self.call, self.words, self.names, self.modes) or (AGAIN,)
