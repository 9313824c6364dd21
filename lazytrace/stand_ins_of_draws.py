"""Python code that stands for functions that draw entries of a sequence, watched as the user's is."""

from __future__ import annotations

import collections
import random
from typing import Any, Final

from lazytrace.asked import places_of_sample, shuffled
from lazytrace.library import is_original
from lazytrace.library_calls import work_out

_SAMPLE: Final[Any] = random.Random.sample
_SHUFFLE: Final[Any] = random.Random.shuffle
_BELOW: Final[Any] = random.Random._randbelow  # type: ignore[attr-defined]
_RANDOM: Final[Any] = random.Random.random
_BITS: Final[Any] = random.Random.getrandbits


# Watched code asks each of what is shuffled for its class.
_LONGEST: Final = 1024


def _draws_plainly(generator: Any) -> bool:
    cls = type(generator)
    return (
        cls is random.Random
        and cls._randbelow is _BELOW
        and cls.random is _RANDOM
        and cls.getrandbits is _BITS
    )


def sample(generator: Any, *args: Any, **named: Any) -> Any:
    """`random.sample`: how often it draws a place that it has says no more than the places do."""
    if len(args) == 1 and named.keys() == {"k"}:
        return _sample(generator, args[0], named["k"])
    if len(args) == 2 and not named:
        return _sample(generator, args[0], args[1])
    return _SAMPLE(generator, *args, **named)


def _sample(generator: Any, population: Any, k: Any) -> Any:
    plain = type(population) in (list, tuple, collections.deque, range) and type(k) is int
    if not _draws_plainly(generator) or not plain or not 0 <= k <= len(population):
        return _SAMPLE(generator, population, k)
    count = range(k).stop  # how many there are is none that is followed
    return [population[place] for place in work_out(places_of_sample, (generator, len(population), count))]


def shuffle(generator: Any, x: Any) -> Any:
    """`random.shuffle` of whole numbers, as rows of a batch are chosen: which lies where is followed."""
    plain = _draws_plainly(generator) and type(x) is list and 1 < len(x) <= _LONGEST
    if not plain or not all(type(number) is int for number in x):
        return _SHUFFLE(generator, x)
    x[:] = work_out(shuffled, (generator, *x))
    return None


def rows() -> dict[Any, Any]:
    """What stands for each function."""
    functions = {_SAMPLE: sample, _SHUFFLE: shuffle}
    return {function: own for function, own in functions.items() if is_original(function, random)}
