"""What a recording and a replay cost beside the eager call, on small models, in one process and interleaved.

`python benchmarks/overhead.py` prints, per model: eager microseconds, then the medians over rounds of the
ratios of a recording call (with and without its proof) and of a replay to the eager call. One torch thread,
`no_grad`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from peers.models import SmallOps
from torch import nn

from lazytrace import traced

ROUNDS = 15


class Layers(nn.Module):
    """A stack of nn.TransformerEncoderLayer in eval mode on a (16, 1, 64) tensor."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(64, 4, 128, norm_first=True) for _ in range(layers)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(length, batch, 64) -> (length, batch, 64)."""
        for layer in self.layers:
            x = layer(x)
        return x


def seconds(call: Callable[[], Any], times: int) -> float:
    """Seconds per call, over `times` calls."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def measure(name: str, model: nn.Module, x: torch.Tensor) -> None:
    """Print one row."""
    hit, proved, bare = traced(model), traced(model), traced(model, check=False)

    def record(function: Any) -> None:
        function.cache_clear()
        function(x)

    ways = {
        "eager": lambda: model(x),
        "recording": lambda: record(proved),
        "recording, check=False": lambda: record(bare),
        "replay": lambda: hit(x),
    }
    for way in ways.values():
        way()
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for label, way in ways.items():
            taken[label].append(seconds(way, 20))
    eager = taken.pop("eager")
    ratios = {k: statistics.median(a / b for a, b in zip(v, eager, strict=True)) for k, v in taken.items()}
    operators = hit.stats().operators[-1:]
    cells = ", ".join(f"{label} {ratio:.2f}" for label, ratio in ratios.items())
    print(
        f"{name}: {operators} operators, eager {statistics.median(eager) * 1e6:.0f} us; over eager: {cells}"
    )


def main() -> None:
    """Measure every model."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.no_grad():
        measure("small operators", SmallOps().eval(), torch.randn(4, 64))
        measure("transformer layers", Layers().eval(), torch.randn(16, 1, 64))


if __name__ == "__main__":
    main()
