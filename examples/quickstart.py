"""Trace a function whose loop depends on the data: three calls, one recording, plain Python's results."""

import torch

from lazytrace import report, script_if_tracing, traced


@script_if_tracing
def shrink(x: torch.Tensor) -> torch.Tensor:
    while bool(x.norm() > 1):
        x = x / 2
    return x


@traced
def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return shrink(torch.relu(x @ w) + 1)


for scale in (0.1, 10.0, 1000.0):
    x, w = torch.full((2, 3), scale), torch.eye(3)
    assert torch.equal(step(x, w), step.original(x, w))
    print(f"scale {scale:g}: norm {step(x, w).norm():.4f}")
assert step.cache_info().misses == 1, step.cache_info()
print(report(), end="")
