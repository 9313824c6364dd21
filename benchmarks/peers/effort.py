"""How thorough a run is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Effort:
    """`quick` takes few rounds and small sizes; the others are parts of names to measure, all if empty.

    >>> effort = Effort(cases=("lstm",))
    >>> effort.wants_case("lstm50"), effort.wants_case("gpt2"), effort.wants("lazytrace")
    (True, False, True)
    """

    quick: bool = False
    cases: tuple[str, ...] = ()
    contenders: tuple[str, ...] = ()

    def pick(self, full: T, quick: T) -> T:
        """`quick` in quick runs, `full` in others."""
        return quick if self.quick else full

    def wants(self, contender: str) -> bool:
        """Whether a contender is to be measured."""
        return not self.contenders or any(part in contender for part in self.contenders)

    def wants_case(self, name: str) -> bool:
        """Whether a case or model is to be measured."""
        return not self.cases or any(part in name for part in self.cases)

    @property
    def trial(self) -> bool:
        """Whether the numbers are to be kept apart from those of full runs."""
        return self.quick or bool(self.cases) or bool(self.contenders)
