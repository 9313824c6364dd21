"""What events cost: a recording with and without them, and what a hit does for them, in one process,
interleaved.

`python benchmarks/events.py` prints, per kind of recording, the median over rounds of the microseconds
without events (counters only, no line of the caller, the first failed guard only) and of the share that
events add; then the microseconds of a hit and of its count, which is all that a hit does beside replaying.
One torch thread.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn

from lazytrace import RetraceWarning, engine, explain, traced
from lazytrace.callsite import Site
from lazytrace.stats import EventLog

ROUNDS = 41
NOWHERE = Site("", 0)
STEPS = itertools.count()
SCALE = 0


# Not mocks, which would take longer than what they stand for.
def _nothing(*_: object) -> None: ...


def _nowhere() -> Site:
    return NOWHERE


@contextlib.contextmanager
def without_events() -> Iterator[None]:
    """Count only: no event is made, no line is looked for, no further difference."""
    with (
        mock.patch.object(EventLog, "_add", _nothing),
        mock.patch.object(EventLog, "knows", _nothing),
        mock.patch.object(engine, "call_site", _nowhere),
        mock.patch.object(explain.Search, "after", lambda self, reasons, new: reasons),
    ):
        yield


def small(x: torch.Tensor, k: int) -> torch.Tensor:
    """One operator."""
    return x * k


def layers(x: torch.Tensor, k: int) -> torch.Tensor:
    """Thirty operators."""
    for _ in range(10):
        x = torch.relu(x * k) + 1
    return x


def scaled(x: torch.Tensor) -> torch.Tensor:
    """One operator that reads a global."""
    return x * SCALE


def kinds() -> dict[str, Callable[[], Any]]:
    """Each makes one recording."""
    x, wide = torch.ones(4), torch.randn(16, 1, 64)
    first, value, state, longer = traced(small), traced(small), traced(scaled), traced(layers)
    model = traced(nn.TransformerEncoderLayer(64, 4, 128, norm_first=True).eval())

    def first_call() -> None:
        first.cache_clear()
        first(x, 1)

    def changed_state() -> None:
        global SCALE
        SCALE += 1
        state(x)

    def first_of_model() -> None:
        model.cache_clear()
        model(wide)

    return {
        "first call, 1 operator": first_call,
        "argument changed, 1 operator": lambda: value(x, next(STEPS)),
        "argument changed, 30 operators": lambda: longer(x, next(STEPS)),
        "global changed, 1 operator": changed_state,
        "first call, transformer layer": first_of_model,
    }


def microseconds(call: Callable[[], Any], times: int) -> float:
    """Microseconds per call, over `times` calls."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times * 1e6


def main() -> None:
    """Measure every kind."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RetraceWarning)
    with torch.no_grad():
        for name, call in kinds().items():
            bare, full = [], []
            for _ in range(ROUNDS):
                with without_events():
                    bare.append(microseconds(call, 20))
                full.append(microseconds(call, 20))
            share = statistics.median(b / a - 1 for a, b in zip(bare, full, strict=True))
            print(f"{name}: {statistics.median(bare):.0f} us, events add {share:.1%}")
        step, x = traced(small), torch.ones(4)
        step(x, 1)
        hit = statistics.median(microseconds(lambda: step(x, 1), 2000) for _ in range(ROUNDS))
        count = statistics.median(microseconds(step._self_engine.counters.hit, 20000) for _ in range(ROUNDS))
        print(f"a hit: {hit:.2f} us, its count {count:.3f} us, nothing else")


if __name__ == "__main__":
    main()
