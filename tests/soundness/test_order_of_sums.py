"""In which order gradients are added up, where one node stands for the graph and others use the same tensors.

Three gradients of one tensor have other bits in another order.
"""

from __future__ import annotations

import pytest
import torch

import lazytrace
from tests.soundness.runner import call, check
from tests.soundness.test_flat_steps import ENOUGH, forms_of


def squashes(x, w):
    h = torch.tanh(x @ w) * x.sum(1, keepdim=True).sin()
    return torch.sigmoid(h @ w).exp() * h


def shows_a_row(x, w):
    h = (x @ w).clamp(-1, 1)
    return torch.where(h > 0, h, h.unbind(0)[0].expand_as(h) * 0.1)


def multiplies_twice(x, w):
    return torch.tanh(torch.sigmoid(x @ w @ w) * x @ w).exp() * x


def plainly(loss, leaves):
    loss.backward()


def with_a_penalty(loss, leaves):
    found = torch.autograd.grad(loss, leaves, create_graph=True)
    (sum(one.pow(2).sum() for one in found) + loss).backward()


def with_a_penalty_alone(loss, leaves):
    found = torch.autograd.grad(loss, leaves[1:], create_graph=True)
    sum(one.pow(2).sum() for one in found).backward()


def once_more(loss, leaves):
    torch.autograd.grad(loss, leaves[1:], retain_graph=True)
    loss.backward(retain_graph=True)
    loss.backward()


def once_more_with_a_penalty(loss, leaves):
    found = torch.autograd.grad(loss, leaves, create_graph=True)
    penalty = sum(one.pow(2).sum() for one in found)
    penalty.backward(retain_graph=True)
    (penalty + loss).backward()


def used_before(x, w):
    return (w * 0.3).sin().sum() + (x * x * 0.7).sum()


def nothing(x, w):
    return 0.0


PASSES = [with_a_penalty, with_a_penalty_alone, once_more, once_more_with_a_penalty]


@pytest.mark.parametrize("model", [squashes, shows_a_row, multiplies_twice], ids=lambda one: one.__name__)
@pytest.mark.parametrize("passes", PASSES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("before", [used_before, nothing], ids=lambda one: one.__name__)
@pytest.mark.parametrize("after", [used_before, nothing], ids=lambda one: one.__name__)
def test_uses_outside_of_the_node(model, passes, before, after):
    seen = []

    def make(trace):
        w = torch.nn.Parameter(torch.linspace(-0.7, 1.3, 16).view(4, 4))
        function = trace(lambda x: model(x, w))

        def step(x, how):
            x = x.clone().requires_grad_()
            early = before(x, w)
            out = function(x)
            scaled = (out * torch.linspace(0.5, 1.5, out.numel()).view(out.shape)).sum()
            if trace.enabled and how is not plainly:
                seen.extend(forms_of(function))
            how(scaled + early + after(x, w), [x, w])
            found, w.grad = w.grad, None
            return out, x.grad, found

        how = [plainly] * ENOUGH + [passes, passes]
        return function, [call(torch.randn(3, 4), one).of(step) for one in how]

    check(make, hits=ENOUGH)
    assert seen[0] == "one node", seen


def test_memory_that_is_another_by_the_next_pass():
    """Nodes of torch would show it, those of a graph that was built late cannot: they say so."""
    w = torch.nn.Parameter(torch.linspace(-0.7, 1.3, 16).view(4, 4))
    function = lazytrace.traced(lambda x: multiplies_twice(x, w))
    for _ in range(ENOUGH):
        function(torch.randn(3, 4)).sum().backward()
    loss = function(torch.randn(3, 4)).sum()
    torch.autograd.grad(loss, [w], create_graph=True)
    w.data = w.data * 2
    with pytest.raises(RuntimeError, match="was given other memory"):
        loss.backward()
