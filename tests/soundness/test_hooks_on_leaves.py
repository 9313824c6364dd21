"""Hooks that the function sets on parameters and arguments, and takes off before it ends."""

from __future__ import annotations

import contextlib

import torch

from lazytrace import opaque
from tests.soundness.runner import Cases, X, call, check

cases = Cases()


def weight(trace, body, calls=6, sign=lambda i: 1):
    """Calls of `body(w, x)`, whose pass comes to the parameter; the hooks that it has are watched."""
    w = torch.nn.Parameter(torch.ones(3))

    def fn(x):
        return body(w, x)

    values = [call(X() * (i + 1) * sign(i)) for i in range(calls)]
    return trace(fn), values, lambda: [w.grad, len(w._backward_hooks or ())]


def net_and_step(trace, body):
    """A training step whose loss `body(parameters, loss, back)` makes, with `back` for the pass."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    parameters = list(net.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = body(parameters, lambda: net(x).pow(2).mean())
        optimizer.step()
        return loss.detach()

    def watch():
        return [parameters, [p.grad for p in parameters], [len(p._backward_hooks or ()) for p in parameters]]

    return trace(step), [call(X(2, 3) * k) for k in range(1, 9)], watch


def twice(gradient):
    return gradient * 2


@cases(hits=4)
def removed_behind_the_pass(trace):
    def body(w, x):
        handle = w.register_hook(lambda g: g * 2)
        (w * x).sum().backward()
        handle.remove()
        return x

    return weight(trace, body)


@cases(hits=4)
def in_a_block(trace):
    def body(w, x):
        with w.register_hook(twice):
            (w * x).sum().backward()
        return x

    return weight(trace, body)


@cases(hits=4)
def removed_in_any_case(trace):
    def body(w, x):
        handle = w.register_hook(twice)
        try:
            (w * x).sum().backward()
        finally:
            handle.remove()
        return x

    return weight(trace, body)


@cases(hits=5)
def of_an_argument(trace):
    def fn(x):
        with x.register_hook(twice):
            (x * x).sum().backward()
        return x.grad

    return trace(fn), [call((X() * k).requires_grad_()) for k in range(1, 7)]


@cases(hits=6)
def of_each_parameter(trace):
    def body(parameters, forward):
        handles = [p.register_hook(lambda g: g.clamp(-0.1, 0.1)) for p in parameters]
        loss = forward()
        loss.backward()
        for handle in handles:
            handle.remove()
        return loss

    return net_and_step(trace, body)


@cases(hits=6)
def some_behind_the_forward(trace):
    def body(parameters, forward):
        loss = forward()
        handles = [p.register_hook(lambda g: g * 0.5) for p in parameters[::2]]
        loss.backward()
        while handles:
            handles.pop().remove()
        return loss

    return net_and_step(trace, body)


@cases(hits=3)
def a_branch_while_they_are_set(trace):
    """The function that runs again is given the handles that the replay has."""

    def body(parameters, forward):
        handles = [p.register_hook(twice) for p in parameters]
        loss = forward()
        if loss > 5:
            loss = loss * 0.5
        loss.backward()
        for handle in handles:
            handle.remove()
        return loss

    return net_and_step(trace, body)


@cases(hits=3)
def a_branch_behind_them(trace):
    def body(parameters, forward):
        handles = [p.register_hook(twice) for p in parameters]
        loss = forward()
        loss.backward()
        for handle in handles:
            handle.remove()
        return loss * 2 if loss > 5 else loss

    return net_and_step(trace, body)


@cases(hits=3)
def set_in_one_branch(trace):
    def body(parameters, forward):
        loss = forward()
        handles = [p.register_hook(twice) for p in parameters] if loss > 5 else []
        loss.backward()
        for handle in handles:
            handle.remove()
        return loss

    return net_and_step(trace, body)


@cases(hits=4)
def several_and_several_passes(trace):
    def body(w, x):
        first, second = w.register_hook(twice), w.register_hook(lambda g: g + 1)
        loss = (w * x).sum()
        loss.backward(retain_graph=True)
        first.remove()
        loss.backward()
        with w.register_hook(lambda g: g - 1):
            (w * w * x).sum().backward()
        second.remove()
        return x

    return weight(trace, body)


@cases(hits=5)
def without_a_pass(trace):
    w = torch.nn.Parameter(torch.ones(3))

    def fn(x):
        with w.register_hook(twice):
            return w * x

    traced = trace(fn)

    def use(x):
        traced(x).sum().backward()

    return use, [call(X() * k) for k in range(1, 7)], lambda: w.grad


@cases(hits=5)
def for_gradients_of_gradients(trace):
    def body(w, x):
        with w.register_hook(twice):
            (gradient,) = torch.autograd.grad((w * w * x).sum(), [w], create_graph=True)
        return gradient

    return weight(trace, body)


@cases(hits=5)
def beside_hooks_of_before(trace):
    """Which are guarded: one comes, the oldest goes, then the last."""
    w, outside = torch.nn.Parameter(torch.ones(3)), []

    def fn(x):
        with w.register_hook(twice):
            (w * x).sum().backward()
        return x

    traced = trace(fn)

    def use(x, change):
        change()
        return traced(x)

    changes = {
        3: lambda: outside.append(w.register_hook(lambda g: g + 1)),
        6: lambda: outside.append(w.register_hook(lambda g: g * 3)),
        9: lambda: outside.pop(0).remove(),
        12: lambda: outside.pop(0).remove(),
    }
    calls = [call(X() * (k + 1), changes.get(k, lambda: None)) for k in range(15)]
    return use, calls, lambda: [w.grad, len(w._backward_hooks or ())]


@cases(hits=4)
def of_a_parameter_that_is_frozen_for_a_while(trace):
    w = torch.nn.Parameter(torch.ones(3))

    def fn(x):
        if w.requires_grad:
            with w.register_hook(twice):
                (w * x).sum().backward()
        return w * x

    traced = trace(fn)

    def use(x, frozen):
        w.requires_grad_(not frozen)
        return traced(x)

    return use, [call(X() * (k + 1), k in (3, 4)) for k in range(9)], lambda: w.grad


@cases(hits=2)
def one_that_raises(trace):
    """It stays set, as it does in an eager call, and the next call finds another list of hooks."""
    w = torch.nn.Parameter(torch.ones(3))

    def judge(gradient):
        if gradient.sum() < 0:
            raise ValueError("falls")
        return gradient * 2

    def fn(x):
        handle = w.register_hook(judge)
        (w * x).sum().backward()
        handle.remove()
        return x

    traced = trace(fn)

    def use(x):
        with contextlib.suppress(ValueError):
            return traced(x)

    calls = [call(torch.full((3,), k)) for k in (1.0, 2.0, 3.0, -1.0, 1.0, 2.0, 3.0)]
    return use, calls, lambda: [w.grad, len(w._backward_hooks or ())]


@cases(hits=3)
def an_operator_that_raises_while_it_is_set(trace):
    def body(w, x):
        handle = w.register_hook(twice)
        try:
            torch.linalg.cholesky((w * x).sum().reshape(1, 1)).sum().backward()
        except RuntimeError:
            (w * x).sum().backward()
        finally:
            handle.remove()
        return x

    return weight(trace, body, 9, lambda i: -1 if i in (4, 5) else 1)


@cases(hits=5)
def handed_over_by_a_function_inside(trace):
    w = torch.nn.Parameter(torch.ones(3))
    inner = trace(lambda x: w.register_hook(twice))

    def fn(x):
        handle = inner(x)
        (w * x).sum().backward()
        handle.remove()
        return x

    return trace(fn), [call(X() * k) for k in range(1, 8)], lambda: w.grad


@cases(hits=3)
def python_code_that_sets_one_of_its_own(trace):
    """At one call alone: a replay says which hooks there are once such code has run."""
    w, seen = torch.nn.Parameter(torch.ones(3)), []

    @opaque
    def meddle(x):
        seen.append(1)
        if len(seen) == 5:
            w.register_hook(lambda g: g * 10)
        return x * 1

    def fn(x):
        y = meddle(x)
        with w.register_hook(twice):
            (w * y).sum().backward()
        return y

    return trace(fn), [call(X() * k) for k in range(1, 9)], lambda: [w.grad, len(w._backward_hooks or ())]


@cases(hits=6)
def beside_one_of_a_module(trace):
    """Both count handles."""

    def body(parameters, forward):
        with parameters[0].register_hook(twice):
            loss = forward()
            loss.register_hook(twice)
            loss.backward()
        return loss

    return net_and_step(trace, body)


@cases(eager="hook-outside")
def one_that_stays(trace):
    def body(w, x):
        w.register_hook(twice)
        (w * x).sum().backward()
        return x

    return weight(trace, body, 3)


@cases(eager="hook-outside")
def one_that_stays_at_some_calls(trace):
    def body(w, x):
        handle = w.register_hook(twice)
        (w * x).sum().backward()
        if x[0] > 2:
            handle.remove()
        return x

    return weight(trace, body, 2)


@cases(eager="reads ._backward_hooks of a tensor")
def asked_how_many_there_are(trace):
    def body(w, x):
        with w.register_hook(twice):
            return x * len(w._backward_hooks)

    return weight(trace, body, 3)


@cases(eager="hook-outside")
def of_what_has_a_history_outside(trace):
    def fn(x):
        with x.register_hook(twice):
            return x * 2

    traced = trace(fn)
    w = X(grad=True)
    return lambda x: traced(w * x), [call(X())] * 3


@cases.parametrize
def test_hooks_on_leaves(make, expected):
    check(make, **expected)
