"""`retain_grad()` of what the call has made: read later in it, left on results, and attacked."""

from __future__ import annotations

import threading

import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, X, call, check

cases = Cases()


def training(trace, forward):
    """A training step: `forward` gives a loss and what else is returned, made after the backward pass."""
    torch.manual_seed(0)
    first, second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss, rest = forward(first, second, x)
        loss.backward()
        given = rest()
        optimizer.step()
        return loss.detach(), given

    return trace(step), lambda: [parameters, [p.grad for p in parameters]]


def many():
    return [call(X(2, 3) * k) for k in range(1, 7)]


@cases(hits=4)
def read_later(trace):
    def forward(first, second, x):
        h = first(x).relu()
        h.retain_grad()
        return second(h).pow(2).mean(), lambda: h.grad * 2

    fn, watch = training(trace, forward)
    return fn, many(), watch


@cases(hits=4)
def the_gradient_itself(trace):
    def forward(first, second, x):
        h = first(x).relu()
        h.retain_grad()
        return second(h).pow(2).mean(), lambda: h.grad

    fn, watch = training(trace, forward)
    return fn, many(), watch


@cases(hits=4)
def left_on_what_is_returned(trace):
    def forward(first, second, x):
        h = first(x).relu()
        h.retain_grad()
        return second(h).pow(2).mean(), lambda: h

    fn, watch = training(trace, forward)

    def use(x):
        loss, h = fn(x)
        return loss, h.grad, h.retains_grad, h.is_leaf

    return use, many(), watch


@cases(hits=4)
def written_to_after(trace):
    def forward(first, second, x):
        h = first(x)
        h.retain_grad()
        h.mul_(3)
        return second(h).pow(2).mean(), lambda: h.grad + 1

    fn, watch = training(trace, forward)
    return fn, many(), watch


@cases(hits=4)
def one_of_two_that_are_equal(trace):
    def forward(first, second, x):
        h = first(x)
        a, b = h + 1, h + 1
        a.retain_grad()
        return (second(a) + 2 * second(b)).mean(), lambda: (a.grad + 0, b)

    fn, watch = training(trace, forward)
    return fn, many(), watch


@cases(hits=4)
def one_nobody_uses(trace):
    def forward(first, second, x):
        h = first(x)
        unused = h * 2
        unused.retain_grad()
        return second(h).mean(), lambda: unused.grad is None

    fn, watch = training(trace, forward)
    return fn, many(), watch


@cases(hits=4)
def twice_and_beside_a_hook(trace):
    def forward(first, second, x):
        h = first(x)
        h.register_hook(lambda g: g * 2)
        h.retain_grad()
        h.retain_grad()
        h.register_hook(lambda g: g * 5)
        return second(h).mean(), lambda: h.grad + 0

    fn, watch = training(trace, forward)
    return fn, many(), watch


@cases(hits=4)
def through_a_view(trace):
    def forward(first, second, x):
        h = first(x)
        v = h.view(-1)
        v.retain_grad()
        h.retain_grad()
        return second(v.view(2, 4)).mean(), lambda: (v.grad + 0, h.grad + 0)

    fn, watch = training(trace, forward)
    return fn, many(), watch


@cases(hits=4)
def backward_outside(trace):
    w = torch.nn.Parameter(X(3))

    def fn(x):
        h = x * w
        h.retain_grad()
        return h, (h * h).sum()

    traced = trace(fn)

    def use(x):
        h, loss = traced(x)
        before = h.grad
        loss.backward(retain_graph=True)
        once = h.grad.clone()
        loss.backward()
        return before, once, h.grad, h.retains_grad

    return use, many(), lambda: [w, w.grad]


@cases(hits=4)
def emptied_and_set_between(trace):
    w, kept = torch.nn.Parameter(X(3)), []

    def fn(x):
        h = x * w
        h.retain_grad()
        loss = (h * h).sum()
        loss.backward(retain_graph=True)
        first = h.grad
        first.mul_(10)
        h.grad = None
        loss.backward(retain_graph=True)
        loss.backward()
        return first, h.grad, h

    traced = trace(fn)

    def use(x):
        first, second, h = traced(x)
        kept.append(second)
        h.grad.add_(1)
        return first, second, second is h.grad

    return use, many(), lambda: [w, w.grad, kept]


@cases(hits=4)
def branch_on_the_gradient(trace):
    def forward(first, second, x):
        h = first(x)
        h.retain_grad()

        def rest():
            if h.grad.sum() * x.sum() > 0:
                return h.grad * 2
            return h.grad - 1, h

        return second(h).pow(2).mean(), rest

    fn, watch = training(trace, forward)
    signs = [1, 1, -1, -1, 1, -1, 1]
    return fn, [call(torch.ones(2, 3) * sign) for sign in signs], watch


@cases(eager="hook-outside")
def of_an_argument(trace):
    def fn(x):
        x.retain_grad()
        return x * 2

    traced = trace(fn)

    def use(x):
        y = x * 3
        traced(y).sum().backward()
        return y.grad

    return use, [call(X(3, grad=True))] * 3


@cases(eager="hook-outside")
def of_state(trace):
    held = [X(3, grad=True) * 2]

    def fn(x):
        held[0].retain_grad()
        return x * held[0]

    return trace(fn), [call(X(3))] * 3, lambda: held[0].retains_grad


@cases.parametrize
def test_retained_gradients(make, expected):
    check(make, **expected)


@pytest.mark.parametrize("x", [torch.ones(3), torch.ones(3, requires_grad=True).detach()])
def test_what_requires_no_gradient(x):
    def fn(x):
        y = x * 2
        y.retain_grad()
        return y

    traced = lazytrace.traced(fn)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="requires_grad=False"):
            traced(x)


def test_another_method_under_the_name(monkeypatch):
    seen = []

    def fn(x):
        y = x * 2
        y.retain_grad()
        return y

    traced = lazytrace.traced(fn)
    x = torch.ones(3, requires_grad=True)
    assert [traced(x).retains_grad for _ in range(3)] == [True] * 3
    monkeypatch.setattr(torch.Tensor, "retain_grad", lambda self: seen.append(1))
    assert [traced(x).retains_grad for _ in range(3)] == [False] * 3
    assert len(seen) == 3


def test_function_modes_are_told():
    class Notes(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    def fn(x):
        y = x * 2
        with Notes():
            y.retain_grad()
        return y

    traced, x, seen = lazytrace.traced(fn), torch.ones(3, requires_grad=True), []
    for _ in range(4):
        traced(x)
    assert seen.count("retain_grad") == 4


def test_threads():
    def fn(x):
        y = x * 2
        y.retain_grad()
        (y * y).sum().backward()
        return y.grad + 0

    traced, wrong = lazytrace.traced(fn), []

    def run(k):
        for _ in range(20):
            x = torch.full((3,), float(k), requires_grad=True)
            if not torch.equal(traced(x), x.detach() * 4):
                wrong.append(k)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_exception_midway():
    def fn(x, fails):
        y = x * 2
        y.retain_grad()
        if fails.item():
            raise KeyError("midway")
        y.sum().backward()
        return y.grad * 3, y

    traced, yes, no = lazytrace.traced(fn), torch.tensor(True), torch.tensor(False)
    for fails in (no, no, yes, yes, no, yes, no):
        x = torch.ones(3, requires_grad=True)
        if fails:
            with pytest.raises(KeyError):
                traced(x, fails)
            assert x.grad is None
        else:
            given, y = traced(x, fails)
            assert [t.tolist() for t in (given, y.grad, x.grad)] == [[3] * 3, [1] * 3, [2] * 3]


def test_inside_a_transform():
    def fn(x):
        def inner(v):
            y = v * 2
            y.retain_grad()
            return (y * y).sum()

        return torch.func.grad(inner)(x)

    def told(function):
        try:
            return function(torch.ones(3)).tolist()
        except RuntimeError as error:
            return str(error)

    traced = lazytrace.traced(fn)
    assert [told(traced) for _ in range(3)] == [told(fn)] * 3


def test_without_gradients_then_with_them():
    def fn(x):
        y = x * 2
        y.retain_grad()
        return y

    traced = lazytrace.traced(fn)
    x = torch.ones(3, requires_grad=True)
    for _ in range(3):
        y = traced(x)
        y.sum().backward()
        assert y.grad.tolist() == [1] * 3
        with torch.no_grad(), pytest.raises(RuntimeError, match="requires_grad=False"):
            traced(x)
