"""Recordings made and checked ahead of time."""

from __future__ import annotations

import collections
import functools
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
    same,
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


def test_the_steps_that_differ_stand_side_by_side():
    class Scaled(torch.nn.Module):
        scale = 2.0

        def forward(self, x):
            x = x * self.scale
            if self.scale > 2:
                x = x.relu()
            return x

    net = Scaled()
    fn = trace(net, X, freeze=True, name="scaled")
    net.scale = 3.0
    with pytest.raises(TracingCheckError) as caught:
        verify(fn, X)
    line = Scaled.forward.__code__.co_firstlineno
    assert str(caught.value).splitlines() == [
        "scaled: plain and replayed differ (first the plain value, then the replay's):",
        "  result: 6 of 6 elements differ, by at most 4 (relative 1) at [0, 1]: 0 and -4",
        "Two recordings differ, so the function is not the same at each call:",
        "  recorded                                 recorded again",
        "  r1: float32[2, 3] = mul.Tensor(r0, 2.0)  r1: float32[2, 3] = mul.Tensor(r0, 3.0)  "
        f"test_ahead.py:{line + 1}: x = x * self.scale",
        "  return r1                                r2: float32[2, 3] = relu(r1)             "
        f"test_ahead.py:{line + 3}: x = x.relu()",
        "                                           return r2",
    ]


def test_other_random_numbers_are_a_difference():
    source = random.Random(0)

    @lazytrace.opaque
    def noise(x):
        return x + torch.rand(source.randrange(1, 100)).sum() * 0

    fn = traced(lambda x: noise(x), name="noisy")
    with pytest.raises(TracingCheckError, match="the random stream: the replay draws other numbers"):
        verify(fn, X)


def test_what_is_not_replayed_cannot_be_checked():
    fn = traced(lambda x: x * x.data_ptr() % 3, name="listed")
    with pytest.raises(UntraceableError) as caught:
        verify(fn, X)
    assert str(caught.value).startswith(
        "listed: this call is not replayed, so there is nothing to check or keep: "
    )
    assert "data_ptr" in str(caught.value)
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
        trace(lambda x: x * x.data_ptr() % 3, X, check_trace=False)


def test_methods_of_a_module():
    net = Net()
    assert trace_module(net, {"forward": X, "encode": (X, 3.0)}, check_inputs=[{"encode": X}]) is net
    hits = handle(net.encode).stats().hits
    assert torch.equal(net.encode(X, 3.0), net.linear(X) * 3)
    assert handle(net.encode).stats().hits == hits + 1
    torch.manual_seed(0)
    assert net(X).shape == (2, 3)
    assert handle(net.forward).stats().hits > 0


class Slotted:
    __slots__ = ("net",)

    def __init__(self, net):
        self.net = net

    def __call__(self, x):
        return self.net(x)


class Counting:
    calls = 0
    seen: list[float] = []  # noqa: RUF012 - shared on purpose

    def __init__(self, net):
        self.net = net

    def __call__(self, x):
        Counting.calls += 1
        self.seen.append(1.0)
        return self.net(x)


def decorated(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)

    return call


def behind(net):
    def helper(x):
        return net(x)

    return lambda x: helper(x)


def hooked(net):
    outer = torch.nn.Sequential(torch.nn.Identity())
    outer.register_forward_hook(lambda module, args, output: net(output))
    return outer


def values_of(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


WAYS = {
    "a closure in a closure": behind,
    "a partial": lambda net: functools.partial(lambda n, x: n(x), net),
    "a decorated function": lambda net: decorated(lambda x: net(x)),
    "slots": Slotted,
    "a class": Counting,
    "a hook": hooked,
    "a default": lambda net: lambda x, n=net: n(x),
    "an object in a list": lambda net: (lambda held: lambda x: held[0](x))([Counting(net)]),
}


@pytest.mark.parametrize("way", WAYS)
def test_state_is_found_and_put_back(way):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    before = values_of(net)
    Counting.calls, Counting.seen = 0, []
    function = traced(WAYS[way](net))
    try:
        found = verify(function, torch.randn(4, 3))
    except UntraceableError:  # a counter of its class, which each call reads
        assert way in ("a class", "an object in a list")
    else:
        assert (found.state, found.gradients) == (7, 4), found
    assert same(values_of(net), before)
    assert all(p.grad is None for p in net.parameters())
    assert (Counting.calls, Counting.seen) == (0, [])


def test_a_module_among_the_arguments():
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    before = values_of(net)
    found = verify(traced(lambda m, x: m(x)), (net, torch.randn(4, 3)))
    assert (found.state, found.gradients) == (7, 4)
    assert same(values_of(net), before)
    assert all(p.grad is None for p in net.parameters())


# ---------------------------------------------------------------- what belongs to a signature beside values
def of_two(x):
    return x * 2


def marked():
    x = torch.ones(4, 3)
    lazytrace.mark_dynamic(x, 0)
    return x


def with_attributes():
    x = torch.ones(3)
    x.label, x.other = "x", torch.ones(2)
    x.itself = x
    return x


def with_hook():
    x = torch.ones(3, requires_grad=True)
    x.register_hook(of_two)
    return x


def with_hook_after_accumulation():
    x = torch.ones(3, requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda x: None)
    return x


def no_leaf():
    return torch.ones(3, requires_grad=True) * 2


@pytest.mark.parametrize("make", [marked, with_attributes, with_hook, with_hook_after_accumulation, no_leaf])
@pytest.mark.parametrize("grad", [False, True])
def test_copies_have_the_signature_of_the_original(make, grad, tmp_path):
    x = make()
    with torch.set_grad_enabled(grad):
        fn = trace(of_two, x)
        recordings = fn.cache_info().misses
        assert fn.explain(x).hit
        assert torch.equal(fn(x), x * 2)
        assert fn.cache_info().misses == recordings == 1
        assert verify(fn, x).outputs == 1


def test_hooks_are_compared():
    x = torch.ones(3, requires_grad=True)
    seen = []
    x.register_hook(lambda g: seen.append(g) or g * 5)
    assert verify(traced(of_two), x).gradients == 1
    assert len(seen) >= 2
    assert x.grad is None
    (copied,) = lazytrace.clone_inputs((x,))
    copied.sum().backward()
    assert torch.equal(copied.grad, torch.full((3,), 5.0))


def test_sizes_that_are_marked_take_one_recording():
    fn = trace(of_two, marked())
    for rows in (5, 6):
        x = torch.ones(rows, 3)
        lazytrace.mark_dynamic(x, 0)
        assert torch.equal(fn(x), x * 2)
    assert fn.cache_info().misses == 1


class Reluctant(collections.OrderedDict):
    """A dict that cannot be copied, and loads what is asked for."""

    def __init__(self, mapping, more):
        super().__init__(mapping)

    def __setitem__(self, key, value):
        raise TypeError("cannot be assigned to")

    def items(self):
        raise AssertionError("loads all that there is")


def test_state_in_containers_of_classes_of_their_own():
    held = Reluctant({}, None)
    collections.OrderedDict.__setitem__(held, "calls", 0)
    collections.OrderedDict.__setitem__(held, "order", 1)

    def count(x):
        collections.OrderedDict.__setitem__(held, "calls", held["calls"] + 1)
        collections.OrderedDict.move_to_end(held, "calls")
        return x * held["calls"]

    counts = lazytrace.opaque(count)
    step = trace(lambda x: counts(x) + 2, (torch.ones(2),))
    assert list(collections.OrderedDict.items(held)) == [("calls", 0), ("order", 1)]
    assert torch.equal(step(torch.ones(2)), torch.full((2,), 3.0))


COUNT = 0


def test_variables_are_put_back():
    calls, last = 0, None

    def step(x):
        nonlocal calls, last
        global COUNT, SET_BY_STEP
        calls, last = calls + 1, x
        COUNT += 1
        SET_BY_STEP = x * 2
        return x * COUNT * calls

    x = torch.ones(2)
    assert verify(traced(step), x).outputs == 1
    assert (calls, last, COUNT, "SET_BY_STEP" in globals()) == (0, None, 0, False)
    assert torch.equal(trace(step, x)(x), x)
    assert torch.equal(SET_BY_STEP, x * 2)
    assert (calls, COUNT) == (1, 1)
