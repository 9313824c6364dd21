"""Clocks, memory and the statistics of both. Free of torch."""

from __future__ import annotations

import ctypes
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Thunk = Callable[[], Any]
Times = dict[str, list[float]]
"""Microseconds per call of each contender, one number for each round."""


def seconds(thunk: Thunk, times: int = 1) -> float:
    """Seconds per call, over `times` calls."""
    steps = [None] * times
    start = time.perf_counter()
    for _ in steps:
        thunk()
    return (time.perf_counter() - start) / times


def calls_in(thunk: Thunk, target: float) -> int:
    """How many calls take about `target` seconds: 1 to 20,000."""
    seconds(thunk, 5)
    return max(1, min(20_000, int(target / max(1e-9, seconds(thunk, 3)))))


def interleaved(thunks: dict[str, Thunk], rounds: int, target: float = 0.004) -> Times:
    """Time all thunks in every round, in an order that is drawn anew: none always follows another.

    A round of one thunk is as many calls as take about `target` seconds. Garbage is collected before only.
    """
    calls = {name: calls_in(thunk, target) for name, thunk in thunks.items()}
    times: Times = {name: [] for name in thunks}
    shuffled = random.Random(0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name in shuffled.sample(list(thunks), len(thunks)):
                times[name].append(round(seconds(thunks[name], calls[name]) * 1e6, 4))
    finally:
        gc.enable()
    return times


def differences(times: Sequence[float], base: Sequence[float]) -> list[float]:
    """What each round adds to the base's time in the same round."""
    return [a - b for a, b in zip(times, base, strict=True)]


def ratios(times: Sequence[float], base: Sequence[float]) -> list[float]:
    """Each round's time over the base's in the same round."""
    return [a / b for a, b in zip(times, base, strict=True)]


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    (2.0, 4.0)
    """
    ordered = sorted(values)
    return ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]


def geometric_mean(values: Iterable[float]) -> float:
    """The mean for ratios.

    >>> round(geometric_mean([0.5, 2.0]), 6)
    1.0
    """
    return math.exp(statistics.fmean(math.log(value) for value in values))


def resident_kb() -> int:
    """KB of memory that are resident once garbage is collected and free memory is given back."""
    for _ in range(3):
        gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4
