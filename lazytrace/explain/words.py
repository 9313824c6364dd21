"""What a call would do, as data and in words."""

from __future__ import annotations

from dataclasses import dataclass

from lazytrace.originals import BUILTINS
from lazytrace.stats import Reason, line_of, texts

__builtins__ = BUILTINS

_VERBS = {
    "record": "be recorded",
    "eager": "run eagerly",
    "raise": "raise",
    "inline": "be recorded into the function that is being recorded",
    # After a side exit, when the branch is not kept.
    "resume": "run without being kept",
}


@dataclass(frozen=True)
class Candidate:
    """A trace that a call does not hit, and everything that keeps it from doing so.

    >>> str(Candidate(3, (Reason("x.shape[0]", "64", "13", "shape"),)))
    'trace 3: x.shape[0] 64 -> 13'
    """

    number: int
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        return f"trace {self.number}: {line_of(self.reasons)}"


@dataclass(frozen=True)
class Explanation:
    """What a call would do: `outcome` is "hit", "record", "eager", "raise" or "inline".

    `reasons` say why it would not hit: every difference to the nearest trace, or what makes it run eagerly,
    raise, or become part of a recording that is under way.
    `candidates` are all traces by the number of differences, the nearest first. `depends` names the values in
    the program of a hit that Python looked at: a call in which one of them differs takes another branch.
    `otherwise` says what becomes of such a call when its branch can not be recorded; None when it can.

    >>> print(Explanation("step", "record", (Reason("k", "1", "2", "value"),)))
    step would be recorded: k 1 -> 2
    """

    function: str
    outcome: str
    reasons: tuple[Reason, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    depends: tuple[str, ...] = ()
    otherwise: Explanation | None = None

    @property
    def hit(self) -> bool:
        """Whether the call would be answered by a trace.

        >>> Explanation("step", "hit").hit
        True
        """
        return self.outcome == "hit"

    def __str__(self) -> str:
        if self.hit:
            return f"{self.function} would hit{self._unless()}"
        lines = [f"{self.function} would {self._what()}"]
        others = self.candidates[1:] if self.outcome == "record" else ()
        return "\n".join([*lines, *(f"  {candidate}" for candidate in others)])

    def _unless(self) -> str:
        if not self.depends:
            return ""
        then = f": then it would {self.otherwise._what()}" if self.otherwise is not None else ""
        return f", unless one of these differs: {'; '.join(self.depends)}{then}"

    def _what(self) -> str:
        return f"{_VERBS[self.outcome]}: {'; '.join(texts(self.reasons))}"
