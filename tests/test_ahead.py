"""Recordings made and checked ahead of time."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

import lazytrace
from lazytrace import (
    TracingCheckError,
    UntraceableError,
    Verification,
    handle,
    trace,
    trace_module,
    traced,
    verify,
)

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.drop = torch.nn.Dropout(0.5)
        self.last = None
        self.seen = []

    def forward(self, x):
        self.last = self.drop(self.norm(self.linear(x)))
        return self.last.relu()

    def encode(self, x, k=2.0):
        return self.linear(x) * k


def state_of(net: torch.nn.Module) -> tuple[object, ...]:
    gradients = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    return dict(net.state_dict(keep_vars=False)), gradients, torch.get_rng_state(), net.last


# ---------------------------------------------------------------- verify
def test_a_module_with_effects_and_random_numbers():
    net = Net()
    net(X).sum().backward()
    before = lazytrace.clone_inputs(state_of(net))
    last = net.last
    fn = traced(net)
    found = verify(fn, X, rtol=0, atol=0)
    # 4 parameters, 3 buffers and what forward kept; gradients of all parameters
    assert (found.outputs, found.arguments, found.state, found.gradients) == (1, 1, 8, 4)
    assert lazytrace.same(state_of(net), before, rtol=0, atol=0)
    assert net.last is last
    assert fn.stats().hits == 1


def test_arguments_that_are_written_to():
    log = torch.zeros(2, 3)
    kept = {"n": [torch.zeros(3)]}

    def fill(batch, scale, *, out):
        log.add_(batch["x"])
        out.copy_(batch["x"] * scale)
        kept["n"][0].add_(1)
        return out.sum() + log.sum()

    fn = traced(fill)
    x, out = X.clone().requires_grad_(), torch.zeros(2, 3)
    assert verify(fn, ({"x": x}, 2.0), {"out": out}) == Verification(1, 3, 2, 1)
    assert torch.equal(out, torch.zeros(2, 3))
    assert torch.equal(log, torch.zeros(2, 3))
    assert torch.equal(kept["n"][0], torch.zeros(3))
    assert x.grad is None


def test_gradients_of_a_loss():
    fn = traced(lambda x, y: (x * y, x.sin()))
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    assert verify(fn, (x, y), loss=lambda result: result[1].sum()).gradients == 1
    assert verify(fn, (x, y)).gradients == 2


def test_a_function_that_raises_raises_in_both():
    fn = traced(lambda x: x.view(7))
    assert verify(fn, X).outputs == 1
    assert fn.stats().calls > 0


def test_views_and_leaves_are_as_they_were():
    fn = traced(lambda a, b: a.add_(1) + b)
    base = torch.arange(6.0)
    fn(base, base[2:][:4].sum() + base)
    inner = (torch.ones(3, requires_grad=True) * 2)[1:]
    assert verify(traced(lambda a: (a * 2, a.is_leaf)), inner).outputs == 2
    shared = torch.arange(4.0)
    assert verify(traced(lambda a, b: (a.add_(1), b * 2)), (shared[:2], shared[1:])).arguments == 2
    assert torch.equal(shared, torch.arange(4.0))


def test_a_difference_is_told():
    numbers = itertools.count(1)

    @lazytrace.opaque
    def scaled(x):
        return x * next(numbers)

    fn = traced(lambda x: (scaled(x), x), name="step")
    with pytest.raises(TracingCheckError) as caught:
        verify(fn, X)
    assert str(caught.value) == (
        "step: plain and replayed differ (first the plain value, then the replay's):\n"
        "  result[0]: 6 of 6 elements differ, by at most 6 (relative 0.667) at [0, 2]: 3 and 9\n"
        "Two recordings are alike. If the function is the same at each call, please report this as a bug."
    )


def test_other_random_numbers_are_a_difference():
    source = random.Random(0)

    @lazytrace.opaque
    def noise(x):
        return x + torch.rand(source.randrange(1, 100)).sum() * 0

    fn = traced(lambda x: noise(x), name="noisy")
    with pytest.raises(TracingCheckError, match="the random stream: the replay draws other numbers"):
        verify(fn, X)


def test_what_is_not_replayed_cannot_be_checked():
    fn = traced(lambda x: x * len(x.tolist()), name="listed")
    with pytest.raises(UntraceableError) as caught:
        verify(fn, X)
    assert str(caught.value).startswith(
        "listed: this call is not replayed, so there is nothing to check or keep: "
    )
    assert "tolist" in str(caught.value)
    with pytest.raises(lazytrace.NotTraceableError):
        verify(lambda x: x, X)


# ---------------------------------------------------------------- trace
def test_a_traced_function_is_recorded_now():
    fn = trace(lambda x, k=1.0: x * k, [X, (X, 2.0), {"x": X, "k": 3.0}], dynamic=False)
    assert handle(fn).cache_info().currsize == 3
    hits = fn.stats().hits
    assert torch.equal(fn(X, 3.0), X * 3)
    assert fn.stats().hits == hits + 1
    assert trace(fn, X[:1]) is fn
    assert fn.explain(X[:1]).hit


def test_tracing_leaves_no_trace():
    net = Net()
    before = lazytrace.clone_inputs(state_of(net))
    fn = trace(net, X, check_inputs=[X * 2, (X + 1,)])
    assert lazytrace.same(state_of(net), before, rtol=0, atol=0)
    assert fn.cache_info().currsize == 1
    recordings = fn.stats().recordings
    torch.manual_seed(1)
    out = fn(X)
    torch.manual_seed(1)
    net.load_state_dict(before[0])
    assert torch.equal(out, net(X))
    assert fn.stats().recordings == recordings


def test_keywords_are_for_all_examples():
    fn = trace(lambda x, *, k: x * k, [X, X[:1]], kwargs={"k": 2.0}, check_trace=False)
    assert fn.explain(X, k=2.0).hit
    assert fn.explain(X[:1], k=2.0).hit
    assert not fn.explain(X, k=3.0).hit
    constant = trace(lambda: torch.ones(2), ())
    assert constant.explain().hit


def test_a_frozen_function_records_no_more():
    fn = trace(lambda x: x * 2, X, freeze=True, name="double")
    assert torch.equal(fn(X), X * 2)
    with pytest.raises(lazytrace.RetraceError, match="double is frozen"):
        fn(X[0])


def test_a_check_that_fails():
    numbers = itertools.count(1)

    @lazytrace.opaque
    def scaled(x):
        return x * next(numbers)

    with pytest.raises(TracingCheckError):
        trace(lambda x: scaled(x), X)
    fn = trace(lambda x: scaled(x), X, check_trace=False)
    assert fn.explain(X).hit
    with pytest.raises(UntraceableError, match="this call is not replayed"):
        trace(lambda x: x * len(x.tolist()), X, check_trace=False)


def test_methods_of_a_module():
    net = Net()
    assert trace_module(net, {"forward": X, "encode": (X, 3.0)}, check_inputs=[{"encode": X}]) is net
    hits = handle(net.encode).stats().hits
    assert torch.equal(net.encode(X, 3.0), net.linear(X) * 3)
    assert handle(net.encode).stats().hits == hits + 1
    torch.manual_seed(0)
    assert net(X).shape == (2, 3)
    assert handle(net.forward).stats().hits > 0
