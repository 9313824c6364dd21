"""Python code that stands for functions that draw entries of a sequence, watched as the user's is."""

from __future__ import annotations

import collections
import random
from typing import Any, Final

from lazytrace.asked import places_of_sample
from lazytrace.library import is_original
from lazytrace.library_calls import work_out

_SAMPLE: Final[Any] = random.Random.sample
_BELOW: Final[Any] = random.Random._randbelow  # type: ignore[attr-defined]
_RANDOM: Final[Any] = random.Random.random
_BITS: Final[Any] = random.Random.getrandbits


def sample(generator: Any, population: Any, k: Any, *, counts: Any = None) -> Any:
    """`random.sample`: how often it draws a place that it has says no more than the places do."""
    cls = type(generator)
    drawn_plainly = (
        cls is random.Random
        and cls._randbelow is _BELOW
        and cls.random is _RANDOM
        and cls.getrandbits is _BITS
    )
    plain = type(population) in (list, tuple, collections.deque) and type(k) is int and counts is None
    if not drawn_plainly or not plain or not 0 <= k <= len(population):
        return _SAMPLE(generator, population, k, counts=counts)
    count = range(k).stop  # how many there are is none that is followed
    return [population[place] for place in work_out(places_of_sample, (generator, len(population), count))]


def rows() -> dict[Any, Any]:
    """What stands for each function."""
    return {_SAMPLE: sample} if is_original(_SAMPLE, random) else {}
