"""Hooks that the function sets on what it has computed, and functions that it hands on."""

from __future__ import annotations

import functools

import torch

import lazytrace
from tests.soundness.runner import Cases, X, call, check

cases = Cases()
SCALE = 3.0


class Thing:
    """State with what the cases need."""

    def __init__(self, **values):
        self.__dict__.update(values)


def net_and_step(trace, set_hook, kept=None):
    """A training step that sets a hook on the output of its first layer."""
    torch.manual_seed(0)
    first, second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)

    def step(x):
        hidden = first(x).relu()
        set_hook(hidden)
        optimizer.zero_grad()
        loss = second(hidden).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return trace(step), lambda: [parameters, [p.grad for p in parameters], kept]


def six():
    return [call(X(2, 3) * k) for k in range(1, 7)]


@cases(hits=4)
def lambda_without_closure(trace):
    fn, watch = net_and_step(trace, lambda h: h.register_hook(lambda g: g * 2))
    return fn, six(), watch


@cases(hits=4)
def lambda_that_reads_a_global(trace):
    """It is called again each time, and finds what is there then."""
    fn, watch = net_and_step(trace, lambda h: h.register_hook(lambda g: g * SCALE))

    def change():
        global SCALE
        SCALE = 5.0

    def restore():
        global SCALE
        SCALE = 3.0

    return fn, [*six(), change, *six(), restore, call(X(2, 3))], watch


@cases(hits=4)
def partial_of_a_function(trace):
    def scaled(factor, g):
        return g * factor

    fn, watch = net_and_step(trace, lambda h: h.register_hook(functools.partial(scaled, 0.5)))
    return fn, six(), watch


@cases(hits=4)
def method_of_the_state(trace):
    class Seen:
        def __init__(self):
            self.norms = []

        def note(self, g):
            self.norms.append(g.norm().item())

    seen = Seen()
    fn, watch = net_and_step(trace, lambda h: h.register_hook(seen.note), seen.norms)
    return fn, six(), watch


@cases(hits=4)
def closure_over_the_state(trace):
    kept = []
    fn, watch = net_and_step(trace, lambda h: h.register_hook(lambda g: kept.append(g.sum().item())), kept)
    return fn, six(), watch


@cases(hits=4)
def closure_over_a_value(trace):
    def set_hook(h):
        factor = 0.25
        h.register_hook(lambda g: g * factor)

    fn, watch = net_and_step(trace, set_hook)
    return fn, six(), watch


@cases(eager="changes a variable of a function that it has handed to add_hook")
def closure_over_what_changes(trace):
    def set_hook(h):
        factor = 0.25
        h.register_hook(lambda g: g * factor)
        factor = 4.0

    fn, watch = net_and_step(trace, set_hook)
    return fn, six(), watch


@cases(hits=4)
def two_hooks(trace):
    def set_hooks(h):
        h.register_hook(lambda g: g * 2)
        h.register_hook(lambda g: g + 1)

    fn, watch = net_and_step(trace, set_hooks)
    return fn, six(), watch


@cases(hits=4)
def hook_that_is_removed(trace):
    def set_hook(h):
        h.register_hook(lambda g: g * 2).remove()

    fn, watch = net_and_step(trace, set_hook)
    return fn, six(), watch


@cases(hits=4)
def one_of_three_that_is_removed(trace):
    def set_hooks(h):
        handles = [h.register_hook(hook) for hook in (lambda g: g * 2, lambda g: g + 1, lambda g: g * 3)]
        handles[1].remove()
        handles[1].remove()

    fn, watch = net_and_step(trace, set_hooks)
    return fn, six(), watch


@cases(hits=4)
def removed_in_one_branch(trace):
    def set_hook(h):
        handle = h.register_hook(lambda g: g * 2)
        if h.sum() > 3:
            type(handle).remove(handle)

    fn, watch = net_and_step(trace, set_hook)
    return fn, [call(torch.full((2, 3), k)) for k in (1.0, 2.0, -30.0, 3.0, -9.0, 30.0, -60.0, 4.0)], watch


def passes(trace, set_hook):
    """Two passes over one graph, with the hook in the first of them alone."""
    w = torch.nn.Parameter(X())

    def fn(x):
        h = x * w
        loss = h.pow(2).sum()
        w.grad = None
        set_hook(h, lambda: loss.backward(retain_graph=True))
        loss.backward()
        return h

    traced = trace(fn)

    def use(x):
        h = traced(x)
        h.sum().backward()
        return len(h._backward_hooks or ()), w.grad.clone()

    return use, [call(X() * k) for k in range(1, 7)]


@cases(hits=4)
def hook_for_one_pass(trace):
    def once(h, back):
        handle = h.register_hook(lambda g: g * 2)
        back()
        handle.remove()

    return passes(trace, once)


@cases(hits=4)
def hook_for_a_block(trace):
    def once(h, back):
        h.register_hook(lambda g: g + 1)
        with h.register_hook(lambda g: g * 2):
            back()

    return passes(trace, once)


@cases(hits=4)
def removed_behind_its_tensor(trace):
    def fn(x):
        y = x * 2
        handle = y.register_hook(lambda g: g * 2)
        del y
        handle.remove()
        return x * 3

    return trace(fn), [call(X(grad=True))] * 6


@cases(eager="reads-touched")
def number_of_a_handle(trace):
    def fn(x):
        return x * 2 + ((x * 3).register_hook(lambda g: g * 2).id < 0)

    return trace(fn), [call(X(grad=True))] * 3


@cases(eager="hook-elsewhere")
def removed_where_its_tensor_was_changed(trace):
    def fn(x):
        y = x * 2
        handle = y.register_hook(lambda g: g * 2)
        y.mul_(2)
        handle.remove()
        return y

    return trace(fn), [call(X(grad=True))] * 3


@cases(hits=2)
def hook_on_a_parameter(trace):
    w = torch.nn.Parameter(X())

    def fn(x):
        handle = w.register_hook(lambda g: g * 2)
        (w * x).sum().backward()
        handle.remove()
        return x

    return trace(fn), [call(X())] * 4, lambda: w.grad


@cases(hits=3)
def hook_that_is_called_after_the_call(trace):
    kept = []
    fn = trace(lambda x, w: note(x * w))

    def note(y):
        y.register_hook(lambda g: kept.append(g.sum().item()))
        return y.sum()

    w = torch.nn.Parameter(X())

    def use(x):
        fn(x, w).backward()
        return w.grad.clone()

    return use, [call(X() * k) for k in range(1, 6)], lambda: [kept, w.grad]


# ---------------------------------------------------------------- attributes of tensors
@cases(hits=3)
def attribute_of_a_tensor_that_stays_inside(trace):
    """As Pyro marks what it has constrained."""

    def fn(x):
        y = x.exp()
        y.unconstrained = x
        return y * y.unconstrained

    return trace(fn), [call(X() * k) for k in range(1, 5)]


@cases(hits=3)
def attribute_of_a_result(trace):
    def fn(x):
        y = x.exp()
        y.mark = 1
        return y

    def use(x):
        y = traced(x)
        return y, y.mark

    traced = trace(fn)
    return use, [call(X())] * 4


@cases(eager="with an argument that cannot be made again")
def attribute_that_opaque_code_asks_for(trace):
    def look(y):
        return y * y.mark

    seen = lazytrace.opaque(look) if trace.enabled else look

    def fn(x):
        y = x.exp()
        y.mark = 2
        return seen(y)

    return trace(fn), [call(X())] * 4


@cases(hits=2)
def attribute_of_a_parameter(trace):
    w = torch.nn.Parameter(X())

    def fn(x):
        w.mark = 3
        return x * w

    return trace(fn), [call(X())] * 4, lambda: getattr(w, "mark", None)


# ---------------------------------------------------------------- functions for custom autograd functions
class Applies(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, function):
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.function(ctx.saved_tensors[0]), None


@cases(hits=3)
def function_with_a_closure_over_state(trace):
    s = Thing(factor=torch.tensor(2.0))

    def fn(x):
        return Applies.apply(x, lambda v: v * s.factor)

    def change():
        s.factor = torch.tensor(7.0)

    steps = [call(X(grad=True)) for _ in range(3)]
    return trace(fn), [*steps, change, *steps], lambda: s


@cases(hits=3)
def function_with_defaults(trace):
    def fn(x, k):
        def inner(v, by=k * 2, *, plus=1.0):
            return v * by + plus

        return Applies.apply(x, inner)

    return trace(fn), [call(X(grad=True), X().abs()) for _ in range(5)]


@cases.parametrize
def test_hooks_inside(make, expected):
    check(make, **expected)
