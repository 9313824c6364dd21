"""Backward passes that begin at a leaf: a temperature, a bias, a parameter by itself."""

from __future__ import annotations

import pytest
import torch

from tests.soundness.runner import call, check
from tests.soundness.test_flat_steps import ENOUGH


def of_a_leaf(w, v, x):
    w.backward()


def of_a_leaf_beside_another(w, v, x):
    torch.autograd.backward([w, v * x])


def of_a_leaf_and_what_is_made_of_it(w, v, x):
    w.backward(x)
    (w * x).backward()


def of_a_view_of_a_leaf(w, v, x):
    w.view_as(w).backward()


def of_a_leaf_whose_gradient_was_set(w, v, x):
    w.grad = None
    w.backward()
    w.grad.mul_(3)


def of_a_leaf_that_is_named(w, v, x):
    torch.autograd.backward(w, inputs=[w])


def returned(w, v, x):
    return torch.autograd.grad(w, w)


def returned_of_two(w, v, x):
    return torch.autograd.grad([w, v * w], [v, w], [x, x], allow_unused=True)


def of_a_leaf_with_a_loss(w, v, x):
    loss = (v * x).tanh() * w
    (loss + w).backward()
    w.backward()
    return loss


BODIES = (
    of_a_leaf,
    of_a_leaf_beside_another,
    of_a_leaf_and_what_is_made_of_it,
    of_a_view_of_a_leaf,
    of_a_leaf_whose_gradient_was_set,
    of_a_leaf_that_is_named,
    returned,
    returned_of_two,
    of_a_leaf_with_a_loss,
)


@pytest.mark.parametrize("body", BODIES, ids=[one.__name__ for one in BODIES])
@pytest.mark.parametrize("clears", [True, False])
def test_a_pass_that_begins_at_a_leaf(body, clears):
    """Nobody but the pass holds the node that accumulates its gradient."""

    def make(trace):
        w, v = torch.nn.Parameter(torch.ones(())), torch.nn.Parameter(torch.full((), 2.0))
        inner = trace(lambda x: body(w, v, x))

        def step(x):
            if clears:
                w.grad = v.grad = None
            return inner(x)

        return step, [call(torch.tensor(float(i))) for i in range(ENOUGH + 3)], lambda: (w.grad, v.grad)

    check(make, hits=ENOUGH)
