"""`.data` of tensors that is set inside of a function."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.soundness.runner import Cases, X, agree, around, call, check
from tests.soundness.test_flat_steps import forms

cases = Cases()


def calls(n):
    return [call(X(2, 3) * (i + 1)) for i in range(n)]


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


# ---------------------------------------------------------------- ways of training
@cases(hits=6)
def a_key_encoder_that_follows(trace):
    query, key = linear(), linear()
    optimizer = torch.optim.SGD(query.parameters(), 0.1)

    def step(x):
        with torch.no_grad():
            for q, k in zip(query.parameters(), key.parameters(), strict=True):
                k.data = k.data * 0.9 + q.data * (1.0 - 0.9)
            target = key(x)
        loss = F.mse_loss(query(x), target + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return trace(step), calls(8), lambda: (list(query.parameters()), list(key.parameters()))


class Sharp(torch.optim.Optimizer):
    """Sharpness-aware minimization, as https://github.com/davda54/sam writes it."""

    def __init__(self, params, rho=0.05):
        super().__init__(params, {"rho": rho})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self):
        grads = [p.grad.norm(p=2) for group in self.param_groups for p in group["params"]]
        norm = torch.norm(torch.stack(grads), p=2)
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def descend(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base.step()
        self.zero_grad()


@cases(hits=6)
def sharpness_aware_minimization(trace):
    model = linear()
    optimizer = Sharp(model.parameters())

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.climb()
        model(x).square().mean().backward()
        optimizer.descend()
        return loss.item()

    return trace(step), calls(9), lambda: (list(model.parameters()), list(optimizer.state.values()))


@cases(hits=6)
def projected_gradient_descent(trace):
    model = linear()

    def attack(x):
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(3):
            model(x + delta).square().sum().backward()
            delta.data = (delta + 0.1 * delta.grad.detach().sign()).clamp(-0.2, 0.2)
            delta.grad.zero_()
        return delta.detach()

    return trace(attack), calls(8), lambda: [p.grad for p in model.parameters()]


@cases(hits=6)
def averages_of_weights(trace):
    model = linear()
    shadow = copy.deepcopy(model)

    def update(x):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.9)
        for now, average in zip(model.parameters(), shadow.parameters(), strict=True):
            old, up = average.data, now.data
            average.data = old * 0.9 + (1 - 0.9) * up
        return shadow(x)

    return trace(update), calls(8), lambda: (list(model.parameters()), list(shadow.parameters()))


# ---------------------------------------------------------------- whose memory it is
@cases(hits=6)
def memory_of_an_argument(trace):
    p = nn.Parameter(torch.zeros(2, 3))

    def step(x):
        p.data = x
        with torch.no_grad():
            p.add_(1)
        return x * 2

    return trace(step), calls(8), lambda: p


@cases(hits=6)
def memory_of_the_result(trace):
    p = nn.Parameter(torch.zeros(2, 3))

    def step(x):
        y = x * 2
        p.data = y
        y.add_(1)
        return y

    return trace(step), calls(8), lambda: p


@cases(hits=6)
def two_of_one_memory(trace):
    a, b = nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.ones(2, 3))

    def step(x):
        a.data = b.data
        with torch.no_grad():
            b.add_(x)
        return a * 1

    return trace(step), calls(8), lambda: (a, b)


@cases(hits=6)
def a_view_taken_before(trace):
    p = nn.Parameter(torch.zeros(2, 3))

    def step(x):
        view = p.detach()[0]
        p.data = x * 2
        view.add_(1)
        return view.clone(), p * 1

    return trace(step), calls(8), lambda: p


@cases(hits=6)
def a_tensor_made_inside(trace):
    def step(x):
        made = torch.zeros(2, 3)
        made.data = x
        made.mul_(2)
        return made

    return trace(step), calls(8)


@cases(hits=6)
def set_to_itself(trace):
    p = nn.Parameter(torch.ones(2, 3))

    def step(x):
        p.data = p.data
        with torch.no_grad():
            p.mul_(2)
        return p * x

    return trace(step), calls(8), lambda: p


@cases(hits=6)
def by_setattr(trace):
    p = nn.Parameter(torch.ones(2, 3))

    def step(x):
        name = "data"
        setattr(p, name, x + 1)
        return p * x

    return trace(step), calls(8), lambda: p


@cases(hits=2)
def other_memory_between_calls(trace):
    p = nn.Parameter(torch.ones(2, 3))
    kept = p.data

    def step(x):
        p.data = p.data * 2
        return p * x

    def change():
        p.data = torch.full((2, 3), 5.0)

    return trace(step), around(change, X(2, 3)), lambda: (p, kept)


# ---------------------------------------------------------------- what a graph has saved
@cases(hits=6)
def a_graph_that_has_saved_the_leaf(trace):
    p = nn.Parameter(torch.full((2, 3), 3.0))

    def step(x):
        y = (p * p * x).sum()
        p.data = x + 1
        y.backward()
        return y.detach()

    return trace(step), calls(8), lambda: (p, p.grad, p._version)


# ---------------------------------------------------------------- exits
@cases(hits=6)
def a_branch_behind_it(trace):
    p = nn.Parameter(torch.zeros(2, 3))

    def step(x):
        before = p.data.clone()
        p.data = x * 2
        if x.sum() > 20:
            return before + p
        return before - p

    return trace(step), calls(10), lambda: p


@cases(hits=6)
def what_was_read_before_it_is_used_behind_the_branch(trace):
    p = nn.Parameter(torch.zeros(2, 3))

    def step(x):
        old = p.data
        total = old.sum()
        p.data = x * 2
        if x.sum() > 20:
            return old + 1 + total
        return old + 2 + total

    return trace(step), calls(10), lambda: p


@cases(hits=4)
def set_twice_around_a_branch(trace):
    p = nn.Parameter(torch.zeros(2, 3))

    def step(x):
        p.data = x * 2
        big = p.sum() > 20
        p.data = p.data + 1
        if big:
            p.data = p.data * 3
        return p * 1

    return trace(step), calls(8), lambda: p


@cases(hits=4)
def an_exception_behind_it(trace):
    p = nn.Parameter(torch.zeros(2, 3))

    def step(x, index):
        p.data = x * 2
        return p.detach()[index]

    steps = [call(X(2, 3) * (i + 1), torch.tensor([0, 1 if i % 3 else 7])) for i in range(9)]
    return trace(step), steps, lambda: p


@cases(hits=4)
def weights_that_are_exchanged_for_their_averages(trace):
    model = linear()
    shadow = {name: p.data.clone() * 2 for name, p in model.named_parameters()}

    def evaluate(x):
        backup = {}
        for name, p in model.named_parameters():
            backup[name] = p.data
            p.data = shadow[name]
        y = model(x)
        for name, p in model.named_parameters():
            p.data = backup[name]
            p.data.add_(1)
        return y.detach()

    return trace(evaluate), calls(6), lambda: (list(model.parameters()), shadow)


# ---------------------------------------------------------------- what is eager
@cases(hits=2, eager="sets-attribute")
def of_another_shape(trace):
    p = nn.Parameter(torch.zeros(2, 3))

    def step(x):
        p.data = torch.cat([x, x])
        return p * 1

    return trace(step), calls(4), lambda: p


@cases(eager="sets-attribute")
def of_another_dtype(trace):
    p = nn.Parameter(torch.zeros(2, 3))

    def step(x):
        p.data = x.double()
        return p * 1

    return trace(step), calls(1), lambda: p


@cases(hits=2)
def what_was_read_before_and_comes_back(trace):
    p = nn.Parameter(torch.zeros(2, 3))

    def step(x):
        old = p.data
        p.data = x * 2
        y = p * 3
        p.data = old
        return y

    return trace(step), calls(4), lambda: p


def projected(trace, after=lambda d, moved: None, before=lambda d, moved: None):
    """Projected gradient descent sets the `.data` of what it moves to a result that has a graph."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        d = torch.zeros_like(x, requires_grad=True)
        for _ in range(2):
            model(x + d).square().mean().backward()
            moved = (d + 0.1 * d.grad.sign()).clamp(-0.2, 0.2)
            before(d, moved)
            d.data = moved
            after(d, moved)
            d.grad.zero_()
        optimizer.zero_grad()
        loss = model(x + d).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item(), d.detach()

    return trace(step), calls(14), lambda: list(model.parameters())


def goes_back(d, moved):
    (moved * d).sum().backward()


def writes_to_it(d, moved):
    with torch.no_grad():
        d.mul_(0.5)
    (moved.exp() + d).sum().backward()


def goes_back_before(d, moved):
    moved.square().sum().backward(retain_graph=True)


def uses_it_up(d, moved):
    moved = F.relu(moved) * 2
    moved.add_(1.0)
    (moved * d).sum().backward()


@pytest.mark.parametrize("after", [None, goes_back, writes_to_it, uses_it_up])
@pytest.mark.parametrize("before", [None, goes_back_before])
def test_what_has_a_graph(after, before):
    ways = {k: v for k, v in (("after", after), ("before", before)) if v is not None}
    tracer = agree(lambda trace: projected(trace, **ways))
    assert tracer.count("hits") >= 10, tracer.account()
    assert "flat" in forms(tracer), forms(tracer)


@cases(hits=6)
def exchanged_and_read_again(trace):
    w, e = nn.Parameter(X(3)), nn.Parameter(X(3))

    def step(x):
        w.data, e.data = e.data, w.data
        w.data.mul_(0.9).add_(e.data * 0.1)
        e.data.sub_(0.5)
        return x + w.detach(), e.data

    return trace(step), calls(8), lambda: (w, e)


@cases(hits=6)
def one_memory_under_two_names(trace):
    w, e = nn.Parameter(X(3)), nn.Parameter(X(3))

    def step(x):
        fresh = w.data * 0.5
        e.data = fresh
        w.data = fresh
        e.data.add_(1)
        w.data.mul_(2)
        return fresh * x[0, 0], w.data + e.data

    return trace(step), calls(8), lambda: (w, e)


@cases(hits=6)
def given_back_twice(trace):
    w, e = nn.Parameter(X(3)), nn.Parameter(X(3))

    def step(x):
        own, other = w.data, e.data
        w.data = other
        w.data.mul_(0.5)
        w.data = own
        w.data.add_(1)
        e.data = own
        e.data.add_(w.data)
        e.data = other
        return own + other + e.data + x[0]

    return trace(step), calls(8), lambda: (w, e)


@cases(eager="unknown-tensor")
def two_that_happen_to_show_one_memory(trace):
    w, e = nn.Parameter(X(3)), nn.Parameter(X(3))
    e.data = w.data

    def step(x):
        return w.data.add_(e.data * x[0])

    return trace(step), [*calls(4), lambda: setattr(e, "data", torch.ones(3)), *calls(4)], lambda: (w, e)


def shared_before_an_exit(other):
    """Two parameters come to show one memory right before a call that goes another way behind a write."""

    def make(trace):
        torch.manual_seed(0)
        w, e = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
        state = {"n": 0}

        def step(x):
            state["n"] += 1
            a, b = e.data, w.data
            if other:
                a, b = b, a
            e.data = b.clone()
            e.data.mul_(0.9)
            w.mul_(0.5) if state["n"] > 20 else None
            if state["n"] > 6:
                x = x * 2 + w.detach() - e.detach() + a
            return x + 1

        def change():
            e.data = w.data

        ones = [call(torch.ones(3)) for _ in range(6)]
        return trace(step), [*ones, change, *ones[2:], change, *ones[2:]], lambda: (w, e, state)

    make.__name__ = f"shared_before_an_exit_{other}"
    return make


cases(shared_before_an_exit(False), hits=8)
cases(shared_before_an_exit(True), hits=8)


@cases.parametrize
def test_agrees(make, expected):
    check(make, **expected)
