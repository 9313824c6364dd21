"""Why a call does not hit: every difference to the nearest trace, found without running the function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytrace.explain.differences import changes, differences, failed_guard, nearest
from lazytrace.explain.search import AGAIN, FIRST, UNKNOWN, Search, candidates
from lazytrace.later import later

if TYPE_CHECKING:
    from lazytrace.explain.words import Candidate, Explanation

__all__ = [
    "AGAIN",
    "FIRST",
    "UNKNOWN",
    "Candidate",
    "Explanation",
    "Search",
    "candidates",
    "changes",
    "differences",
    "failed_guard",
    "nearest",
]

# Most programs never ask why.
__getattr__ = later(__name__, dict.fromkeys(("Candidate", "Explanation"), "explain.words"))
