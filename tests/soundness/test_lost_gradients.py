"""A view that inference mode makes of a tensor with a graph: steps record, and no gradient comes to it."""

from __future__ import annotations

import pytest
import torch

from tests.soundness.runner import Holder, X, around, call, check


def lost(seed: float = 1.0) -> torch.Tensor:
    """Requires gradients, has no node and is no leaf that could hold one."""
    made = torch.full((1, 2, 3), seed + 0.5, requires_grad=True).clone()
    with torch.inference_mode():
        return made.view(-1)


def kept(seed: float = 1.0) -> torch.Tensor:
    return torch.full((6,), seed + 0.5, requires_grad=True)


def pass_outside(x, y):
    return x * y


def pass_inside(x, y):
    (x * y).sum().backward()
    return x.detach() + 1


def one_gradient(x, y):
    return torch.autograd.grad((x * y).sum(), [y])[0] + x.detach()


@pytest.mark.parametrize("function", [pass_outside, pass_inside, one_gradient])
def test_as_an_argument(function):
    def make(trace):
        traced = trace(function)

        def run(x, y):
            z = traced(x, y)
            if z.requires_grad:
                z.sum().backward()
            return z, x.grad, y.grad

        return run, [call(lost(i), kept(i)) for i in range(9)]

    check(make, hits=8)


@pytest.mark.parametrize("order", [(kept, lost), (lost, kept)], ids=["kept first", "lost first"])
def test_it_is_not_taken_for_a_leaf(order):
    def make(trace):
        traced = trace(pass_outside)

        def run(x, y):
            z = traced(x, y)
            z.sum().backward()
            return z, x.grad, y.grad

        return run, [call(maker(i), kept(i)) for maker in order for i in range(8)]

    check(make, hits=14)


def test_of_state():
    def make(trace):
        holder = Holder(held=kept())

        def function(y):
            return holder.held * y

        def change():
            holder.held = lost()

        return trace(function), around(change, X(6))

    check(make, hits=2)


def test_made_inside():
    def make(trace):
        def function(x):
            with torch.inference_mode():
                view = x.view(-1)
            return view * view

        return trace(function), [call(X(2, 3).requires_grad_().clone()) for _ in range(3)]

    check(make, hits=2)
