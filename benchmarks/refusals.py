"""What a call costs that runs eagerly because its signature cannot be recorded.

    python benchmarks/refusals.py

The plain and the traced function take turns; each number is the median over rounds of the time of one call,
in microseconds, and what the traced one takes more.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lazytrace import traced

ROUNDS, CALLS = 41, 2000


def _refused(x: torch.Tensor) -> torch.Tensor:
    id(object())
    return x


def _takes_array(array: np.ndarray[Any, Any]) -> object:
    return array


def _many(a: Any, b: Any, c: Any, *, d: Any, e: dict[str, Any]) -> Any:
    id(object())
    return a


def _always_new(x: torch.Tensor, k: float) -> float:
    return k


def _seconds(function: Callable[[int], object], start: int) -> float:
    begin = time.perf_counter()
    for i in range(start, start + CALLS):
        function(i)
    return (time.perf_counter() - begin) / CALLS


def measure(name: str, plain: Callable[..., Any], call: Callable[[Any, int], object]) -> None:
    """One row of the table."""
    refused, start = traced(plain), 0
    for i in range(64):
        call(refused, -i)
    before, after = [], []
    for _ in range(ROUNDS):
        before.append(_seconds(lambda i: call(plain, i), start))
        after.append(_seconds(lambda i: call(refused, i), start))
        start += CALLS
    usual, now = statistics.median(before) * 1e6, statistics.median(after) * 1e6
    counted = sum(refused.stats().eager.values())
    print(f"{name:34} {usual:8.2f} {now:8.2f} {now - usual:+8.2f}   {counted} eager calls counted")


def _main() -> None:
    torch.set_num_threads(1)
    x, array = torch.ones(3, 4), np.ones(4)
    print(f"{'':34} {'plain':>8} {'traced':>8} {'more':>8}")
    measure("refused by what it does", _refused, lambda f, _: f(x))
    measure("the same, with five arguments", _many, lambda f, _: f(x, x, 3, d=x, e={"lr": 0.1, "x": x}))
    measure("refused by an argument", _takes_array, lambda f, _: f(array))
    measure("recorded too often", _always_new, lambda f, i: f(x, float(i)))


if __name__ == "__main__":
    _main()
