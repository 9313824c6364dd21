"""Results whose graph a backward pass has used up, asked again: flat steps give what eager calls give.

How a pass ends hangs on the way that it takes. Leaves that it comes to before it raises are added to, nodes
that save nothing still work, and what was written to since raises another error.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import lazytrace
from tests.soundness.runner import X, call, check
from tests.soundness.test_flat_steps import ENOUGH, forms_of


def returns_what_was_added(x, w, b, k):
    y = x @ w + b
    y.pow(2).mean().backward()
    return y


def returns_the_loss(x, w, b, k):
    y = x @ w + b
    loss = y.pow(2).mean()
    loss.backward()
    return loss


def returns_both(x, w, b, k):
    y = F.linear(x, w.t(), b)
    loss = F.mse_loss(y, torch.ones_like(y))
    loss.backward()
    return loss, y


def returns_a_sum_and_its_parts(x, w, b, k):
    y = (x @ w).tanh()
    loss = y.sum()
    loss.backward()
    return loss, y


def returns_three_in_a_row(x, w, b, k):
    y = (x @ w + b).tanh()
    z = y.exp()
    loss = z.mean()
    loss.backward()
    return loss, z, y


def scales_by_state(x, w, b, k):
    loss = (x @ w + b).pow(2).mean()
    loss.backward()
    return loss * k


def scales_by_a_number(x, w, b, k):
    loss = (x @ w + b).pow(2).mean()
    loss.backward()
    return loss * 2


def retains_and_writes(x, w, b, k):
    loss = ((x @ w + b).pow(2) @ w.t()).mean()
    loss.backward(retain_graph=True)
    with torch.no_grad():
        w.mul_(0.9)
    return loss


def adds_a_leaf_later(x, w, b, k):
    loss = (x @ w + b).pow(2).mean()
    loss.backward()
    return loss + b.sum()


def adds_a_leaf_on_the_way(x, w, b, k):
    loss = ((x @ w).tanh() + b).sum()
    loss.backward()
    return loss


BODIES = [
    returns_what_was_added,
    returns_the_loss,
    returns_both,
    returns_a_sum_and_its_parts,
    returns_three_in_a_row,
    scales_by_state,
    scales_by_a_number,
    retains_and_writes,
    adds_a_leaf_later,
    adds_a_leaf_on_the_way,
]


def passes_again(results, w, b, k):
    results[0].sum().backward()


def passes_after_writes(results, w, b, k):
    with torch.no_grad():
        w.add_(1)
        k.add_(1)
    results[0].sum().backward()


def asks_for_the_weight(results, w, b, k):
    return torch.autograd.grad(results[0].sum(), [w])


def asks_for_the_bias(results, w, b, k):
    return torch.autograd.grad(results[0].sum(), [b], allow_unused=True)


def asks_for_the_last_result(results, w, b, k):
    return torch.autograd.grad(results[0].sum(), [results[-1]], allow_unused=True)


THEN = [
    passes_again,
    passes_after_writes,
    asks_for_the_weight,
    asks_for_the_bias,
    asks_for_the_last_result,
]


@pytest.mark.parametrize("then", THEN)
@pytest.mark.parametrize("body", BODIES)
def test_a_graph_is_asked_again(body, then):
    def make(trace):
        w = torch.linspace(-1, 1, 12).view(4, 3).clone().requires_grad_()
        b, k = torch.zeros(3, requires_grad=True), torch.ones(3)
        step = trace(lambda x: body(x, w, b, k))

        def fn(x):
            w.grad = b.grad = None
            found = step(x)
            try:
                given = then(found if isinstance(found, tuple) else (found,), w, b, k)
            except RuntimeError as error:
                given = str(error)
            return given, w.grad, b.grad

        return fn, [call(X(2, 4)) for _ in range(6)], lambda: [w, b]

    check(make, hits=5)


FLAT = [returns_the_loss, returns_both, scales_by_a_number]
KEPT = [returns_what_was_added, returns_a_sum_and_its_parts, scales_by_state, adds_a_leaf_on_the_way]


@pytest.mark.parametrize("body", [*FLAT, *KEPT])
def test_which_of_them_are_flat(body):
    w = torch.linspace(-1, 1, 12).view(4, 3).clone().requires_grad_()
    b, k = torch.zeros(3, requires_grad=True), torch.ones(3)

    @lazytrace.traced
    def step(x):
        w.grad = b.grad = None
        return body(x, w, b, k)

    for _ in range(6):
        step(X(2, 4))
    forms = forms_of(step)
    assert ("flat" in forms) is (body in FLAT), forms


def test_results_of_one_node():
    """They have one node again, each with its place."""
    w = torch.nn.Parameter(torch.randn(4, 4))

    @lazytrace.traced
    def step(x):
        w.grad = None
        deviation, mean = torch.std_mean(x @ w, 0)
        (deviation + mean).sum().backward()
        return mean, deviation

    for _ in range(ENOUGH):
        mean, deviation = step(torch.randn(5, 4))
    assert forms_of(step) == ["flat"]
    assert (deviation.output_nr, mean.output_nr) == (0, 1)
    assert mean.grad_fn is deviation.grad_fn
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        mean.sum().backward()
