"""Switches of torch that are others at the backward pass than at the call, with one node for a graph."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.soundness.runner import call, check
from tests.soundness.test_flat_steps import ENOUGH
from tests.soundness.test_modes import default_dtype, deterministic

SWITCHES = {
    "attention": lambda: sdpa_kernel(SDPBackend.MATH),
    "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "dtype": default_dtype,
    "deterministic": deterministic,
    "invariants": lambda: torch.sparse.check_sparse_tensor_invariants(True),
}


def attends(x, w):
    h = torch.tanh(x @ w).view(1, 1, *x.shape)
    return F.scaled_dot_product_attention(h, h, h)


def convolves(x, w):
    kernel = torch.tanh(w).view(1, 1, *w.shape)
    return F.conv2d(F.pad(torch.sigmoid(x @ w).view(1, 1, *x.shape), (2, 1, 2, 1)), kernel)


def makes(x, w):
    return torch.tanh(x @ w) * torch.ones(4) + torch.sigmoid(x * w.sum()) * torch.full((4,), 0.1)


def sums_rows(x, w):
    h = torch.tanh(x @ w).exp()
    return torch.zeros(4, 4, dtype=x.dtype).index_put((torch.tensor([0, 1, 0, 2]),), h, accumulate=True)


def usual(loss, leaves):
    loss.backward()


def for_some(loss, leaves):
    return torch.autograd.grad(loss, leaves[:1])


def with_a_graph(loss, leaves):
    found = torch.autograd.grad(loss, leaves, create_graph=True)
    sum(one.pow(2).sum() for one in found).backward()
    return found


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("around", ["call", "pass"])
@pytest.mark.parametrize("passes", [usual, for_some, with_a_graph], ids=lambda one: one.__name__)
@pytest.mark.parametrize("model", [attends, convolves, makes, sums_rows], ids=lambda one: one.__name__)
def test_other_switches_at_the_pass(model, passes, around, switch):
    def make(trace):
        # Rounding tells the kernels apart.
        w = torch.nn.Parameter(torch.linspace(-0.7, 1.3, 16).view(4, 4))
        fn = trace(lambda x: model(x, w))
        seen = []

        def step(x, how):
            x = x.clone().requires_grad_()
            with SWITCHES[switch]() if around == "call" else contextlib.nullcontext():
                out = fn(x)
            with SWITCHES[switch]() if around == "pass" else contextlib.nullcontext():
                seen[:] = (
                    how((out * torch.linspace(0.5, 1.5, out.numel()).view(out.shape)).sum(), [x, w]) or ()
                )
            return out, x.grad

        calls = [call(torch.randn(4, 4), usual).of(step) for _ in range(ENOUGH)]
        return (
            fn,
            [*calls, *[call(torch.randn(4, 4), passes).of(step) for _ in range(3)]],
            lambda: [w.grad, seen],
        )

    check(make, hits=ENOUGH)
