"""Numbers that are followed and put into tensors by an index: positions of queues, counts, weights."""

from __future__ import annotations

import math

import torch
from torch import nn

from tests.soundness.runner import Cases, X, call, check

cases = Cases()


@cases(hits=8, recordings=1)
def pointer_of_a_queue(trace):
    """As MoCo keeps it: a buffer that says where the next keys go."""

    class Queue(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("queue", torch.zeros(2, 12))
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

        @torch.no_grad()
        def forward(self, keys):
            at = int(self.pointer)
            self.queue[:, at : at + keys.shape[0]] = keys.T
            self.pointer[0] = (at + keys.shape[0]) % self.queue.shape[1]
            return self.queue.sum()

    queue = Queue()
    return trace(queue), [call(X(3, 2)) for _ in range(9)], lambda: dict(queue.state_dict())


def put(dtype, key, of=lambda x: x.sum().item(), size=4):
    def make(trace):
        held = torch.zeros(size, 2, dtype=dtype)

        def fn(x):
            held[key] = of(x)
            return held * 2

        return (
            trace(fn),
            [call(torch.full((2,), v)) for v in (1.0, 2.5, -3.0, 0.25, 7.0)],
            lambda: held.clone(),
        )

    return make


# Floats are followed into those that take each of them; into uint8 goes none below 0.
EXACT = {torch.int64: 5, torch.int32: 5, torch.uint8: 4, torch.bool: 5, torch.bfloat16: 5, torch.complex64: 5}
PLACES = {"row": 1, "entry": (1, 0), "slice": slice(1, 3), "all": ..., "last": (-1, slice(None))}
for dtype in (torch.float32, torch.float64, *EXACT):
    for name, key in PLACES.items():
        made = put(dtype, key)
        made.__name__ = f"{name}_{str(dtype)[6:]}"
        cases(made, **({"recordings": EXACT[dtype]} if dtype in EXACT else {"hits": 4}))


def whole(x):
    return int(x.sum().item() * 4)


for dtype in (torch.float32, torch.float64, torch.int64):
    made = put(dtype, 2, whole)
    made.__name__ = f"int_{str(dtype)[6:]}"
    cases(made, hits=4)


@cases(hits=3)
def by_a_mask(trace):
    def fn(x, mask):
        y = torch.zeros(3)
        y[mask] = x.sum().item()
        return y

    masks = ((1, 0, 1), (1, 1, 1), (0, 0, 0), (0, 1, 0), (1, 0, 0))
    return trace(fn), [call(X() * i, torch.tensor(m, dtype=torch.bool)) for i, m in enumerate(masks)]


@cases(hits=3)
def odd_floats(trace):
    def fn(x):
        y = torch.ones(3)
        y[1] = x.sum().item()
        return y

    return trace(fn), [call(torch.full((2,), v)) for v in (1.0, 2.0, math.nan, math.inf, -0.0, 3e38)]


@cases(hits=1)
def float_that_is_too_large(trace):
    def fn(x):
        y = torch.ones(3)
        try:
            y[1] = x.sum().item()
        except RuntimeError as error:
            return str(error)
        return y

    values = (1.0, 2.0, 1e300, 3.0, 1e300)
    return trace(fn), [call(torch.full((1,), v, dtype=torch.float64)) for v in values]


@cases(hits=2)
def into_what_requires_grad(trace):
    def fn(x, w):
        y = w * 1
        y[0] = x.sum().item()
        return y.square().sum()

    return trace(fn), [call(X() * i, X(grad=True)) for i in range(4)]


@cases.parametrize()
def test_number_set(make, expected):
    check(make, **expected)
