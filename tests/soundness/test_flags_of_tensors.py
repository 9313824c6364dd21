"""`requires_grad` of tensors from before the call, set in the middle of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, X, call, check, opaque

cases = Cases()


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def state_of(*modules):
    return lambda: [
        (p, p.grad, p.requires_grad, None if p.grad is None else p.grad.clone())
        for m in modules
        for p in m.parameters()
    ]


def inputs(count):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 3, generator=generator) for _ in range(count)]


# ---------------------------------------------------------------- frozen and thawed
@cases(hits=6)
def one_network_is_frozen_while_the_other_learns(trace):
    one, two = net(0), net(1)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (one, two)]

    def step(x):
        for p in two.parameters():
            p.requires_grad = False
        for optimizer in optimizers:
            optimizer.zero_grad()
        first = (two(one(x).expand(-1, 3)) ** 2).mean()
        first.backward()
        optimizers[0].step()
        for p in two.parameters():
            p.requires_grad = True
        second = (two(x) - one(x).detach()).pow(2).mean()
        second.backward()
        optimizers[1].step()
        return first.item(), second.item()

    return trace(step), [call(x) for x in inputs(9)], state_of(one, two)


@cases(hits=4)
def frozen_at_the_end(trace):
    one = net()

    def step(x):
        one.requires_grad_(True)
        loss = one(x).sum()
        loss.backward()
        one.requires_grad_(False)
        return loss.detach(), one(x)

    return trace(step), [call(x) for x in inputs(6)], state_of(one)


@cases(hits=4)
def toggled_by_each_call(trace):
    one = net()

    def step(x):
        first = one[0].weight
        first.requires_grad = not first.requires_grad
        return one(x), first.requires_grad

    return trace(step), [call(x) for x in inputs(6)], state_of(one)


@cases(hits=3)
def set_by_the_caller_in_between(trace):
    one = net()

    def step(x):
        one.requires_grad_(False)
        y = one(x)
        one.requires_grad_(True)
        return y + one(x)

    a, b, c, d, e, f = (call(x) for x in inputs(6))
    return trace(step), [a, b, lambda: one[0].weight.requires_grad_(False), c, d, e, f], state_of(one)


@cases(hits=2)
def found_by_another_way_afterwards(trace):
    one = net()
    other = [one[0].weight]

    def step(x):
        one[0].weight.requires_grad = False
        y = (x @ other[0].t()).sum()
        other[0].requires_grad = True
        return y, (x @ one[0].weight.t()).sum()

    return trace(step), [call(x) for x in inputs(4)], state_of(one)


@cases(hits=3)
def a_gradient_from_before_is_added_to(trace):
    one = net()

    def step(x):
        one[2].requires_grad_(True)
        one(x).sum().backward()
        one[2].requires_grad_(False)

    def prepare():
        one(X(5, 3)).sum().backward()
        one[2].requires_grad_(False)

    return trace(step), [prepare, *(call(x) for x in inputs(5))], state_of(one)


@cases(hits=2)
def a_gradient_that_another_has_too(trace):
    one = net()

    def step(x):
        one.requires_grad_(True)
        one(x).sum().backward()
        one.requires_grad_(False)

    def share():
        shared = torch.ones(4, 3)
        one[0].weight.grad = shared
        one[0].weight.grad.note = one
        one[2].weight.grad = shared[:1, :1].expand(1, 4)

    one.requires_grad_(False)
    a, b, c, d, e, f = (call(x) for x in inputs(6))
    return trace(step), [a, b, c, d, share, e, f], state_of(one)


# ---------------------------------------------------------------- arguments
@cases(hits=3)
def argument(trace):
    def slope(x):
        x.requires_grad_(True)
        (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return g, x.requires_grad

    again = X(3)
    return trace(slope), [call(X(3)), call(X(3)), call(X(3)), call(X(3)), call(again), call(again)]


@cases(hits=2)
def argument_with_a_hook_from_when_it_required_gradients(trace):
    def step(x):
        x.requires_grad = True
        (x * 2).sum().backward()
        x.requires_grad = False
        return x.grad

    def hooked(scale):
        x = X(3).requires_grad_()
        x.register_hook(lambda g: g * scale)
        x.requires_grad_(False)
        return x

    plain = [X(3), X(3), X(3), X(3)]
    return trace(step), [call(x) for x in [*plain, hooked(10), hooked(100)]]


@cases(hits=2)
def argument_that_is_a_view(trace):
    def step(x):
        x.requires_grad = True
        return (x * x).sum()

    return trace(step), [call(torch.ones(4)[1:]) for _ in range(4)]


# ---------------------------------------------------------------- other ways behind it
@cases(hits=4)
def a_branch_behind_it(trace):
    one = net()

    def step(x):
        was = one[0].weight.requires_grad
        one[0].weight.requires_grad = not was
        y = one(x).sum()
        if y.item() > 0:
            y = y * 2
        one[0].weight.requires_grad = was
        return y, was

    return trace(step), [call(x) for x in (*inputs(8), *inputs(8))], state_of(one)


@cases(hits=2)
def a_branch_behind_it_and_a_write(trace):
    one, count = net(), torch.zeros(())

    def step(x):
        was = one[0].weight.requires_grad
        one[0].weight.requires_grad = False
        count.add_(1)
        y = one(x) if x.sum() > 0 else one(-x) * 3
        one[0].weight.requires_grad = was
        return y.sum()

    return trace(step), [call(x) for x in (*inputs(6), *inputs(6))], state_of(one)


@cases(hits=2)
def an_operator_that_raises_behind_it(trace):
    one = net()

    def step(x, index):
        one[0].weight.requires_grad = False
        y = one(x)[index]
        one[0].weight.requires_grad = True
        return y

    far = torch.tensor([70])
    a, b, c, d = inputs(4)
    near = torch.tensor([1])
    return (
        trace(step),
        [call(a, near), call(b, near), call(c, near), call(c, far), call(d, near)],
        state_of(one),
    )


@cases(hits=2)
def put_back_in_a_finally(trace):
    one = net()

    def step(x, index):
        one.requires_grad_(False)
        try:
            return one(x)[index]
        finally:
            one.requires_grad_(True)

    a, b, c, d = inputs(4)
    near, far = torch.tensor([1]), torch.tensor([70])
    return (
        trace(step),
        [call(a, near), call(b, near), call(c, near), call(c, far), call(d, near)],
        state_of(one),
    )


@cases(hits=2)
def python_in_the_middle_looks(trace):
    one = net()
    seen = []

    def note(x):
        seen.append([p.requires_grad for p in one.parameters()])
        return x * 1

    note = opaque(trace, note)

    def step(x):
        one[0].requires_grad_(False)
        x = note(x)
        y = one(x)
        one[0].requires_grad_(True)
        return y

    return trace(step), [call(x) for x in inputs(4)], lambda: (seen, state_of(one)())


@cases(hits=2)
def traced_inside(trace):
    one = net()
    inner = trace(lambda x: one(x).sum())

    def step(x):
        one.requires_grad_(False)
        y = inner(x)
        one.requires_grad_(True)
        return y + inner(x)

    return trace(step), [call(x) for x in inputs(4)], state_of(one)


# ---------------------------------------------------------------- what torch refuses
@cases(eager="raised")
def of_a_result(trace):
    w = X(3).requires_grad_()

    def step(x):
        y = x * w
        y.requires_grad = False
        return y

    return trace(step), [call(X(3)), call(X(3))]


@cases(eager="raised RuntimeError")
def of_whole_numbers(trace):
    def step(x):
        x.requires_grad = True
        return x

    return trace(step), [call(torch.arange(3)), call(torch.arange(3))]


@cases.parametrize
def test_flags(make, expected):
    check(make, **expected)


def test_a_graph_of_it_is_refused():
    weight = X(3).requires_grad_()

    @lazytrace.traced
    def step(x):
        weight.requires_grad_(False)
        y = x * weight
        weight.requires_grad_(True)
        return y

    step(X(3))
    with pytest.raises(NotImplementedError, match="sets requires_grad of a tensor from before the call"):
        step.graph(X(3))
