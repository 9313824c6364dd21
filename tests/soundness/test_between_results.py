"""Gradients of one result with respect to another, where one node of autograd stands for the whole graph.

The results of a model are often made of each other (loss and scores, hidden states of layers). Each case asks
for gradients alone until the node is there, then for what comes from one result to others, then for gradients
alone again.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.soundness.runner import agree, call, check
from tests.soundness.test_flat_steps import ENOUGH
from tests.soundness.test_one_node import (
    agree_to_the_last_bit_but_one,
    asking,
    hidden_and_what_follows,
    loss_and_a_view_of_scores,
    loss_and_parts,
    loss_and_scores,
    loss_of,
    of_all_that_have_a_graph,
    of_the_first_result,
    of_the_last_result,
    plainly,
    ready,
)


# ---------------------------------------------------------------- what is traced
def states_of_layers(x, w, b):
    """Each is made of those before it; the last one of all."""
    first = torch.tanh(x @ w + b)
    second = torch.sigmoid(F.layer_norm(first @ w, (4,)) + first)
    third = (second @ w.t() + first * b).exp()
    return third.mean() + first.sum(), first, second, third


def parts_of_one_node(x, w, b):
    """Several results of one operator, and what is made of some of them."""
    first, second, third = torch.tanh(F.linear(torch.sigmoid(x @ w), w, b)).unsafe_split_with_sizes(
        [1, 1, 2], 1
    )
    return (first * second.exp()).sum().tanh() + b.sum(), first, second, third


# ---------------------------------------------------------------- what is asked
def graphs(out):
    return [o for o in out if o.requires_grad]


def of_one_by_the_others(out, x, w, b):
    others = graphs(out)[1:]
    return torch.autograd.grad(loss_of(out[0]), others, allow_unused=True)


def of_one_by_each_other(out, x, w, b):
    loss = loss_of(out[0])
    return [torch.autograd.grad(loss, o, allow_unused=True, retain_graph=True) for o in graphs(out)[1:]]


def of_each_by_each(out, x, w, b):
    made = [loss_of(o) for o in graphs(out)]
    return [
        torch.autograd.grad(loss, o, allow_unused=True, retain_graph=True)
        for loss in made
        for o in graphs(out)
    ]


def of_all_by_all_of_them(out, x, w, b):
    made = [loss_of(o) for o in graphs(out)]
    return torch.autograd.grad(made, graphs(out), allow_unused=True)


def by_results_and_leaves(out, x, w, b):
    made = [loss_of(o) for o in graphs(out)]
    return torch.autograd.grad(made, [*graphs(out)[1:], w, x, b], allow_unused=True)


def by_one_result_and_a_leaf(out, x, w, b):
    loss = loss_of(out[0])
    first = torch.autograd.grad(loss, [w, graphs(out)[-1]], allow_unused=True, retain_graph=True)
    return first, torch.autograd.grad(loss, [graphs(out)[1], b], allow_unused=True)


def with_a_graph_of_their_own(out, x, w, b):
    given = torch.autograd.grad(loss_of(out[0]), graphs(out)[1:], allow_unused=True, create_graph=True)
    total = sum((g * g).sum() for g in given if g is not None)
    if isinstance(total, torch.Tensor) and total.requires_grad:
        total.backward()
    return given


def kept_in_grad(out, x, w, b):
    o = graphs(out)[1]
    loss_of(out[0]).backward(inputs=[o])
    return o.grad


def kept_in_grad_with_a_leaf(out, x, w, b):
    o = graphs(out)[1]
    loss_of(out[0]).backward(inputs=[o, w])
    return o.grad


def then_plainly(out, x, w, b):
    loss = loss_of(out[0])
    given = torch.autograd.grad(loss, graphs(out)[1], allow_unused=True, retain_graph=True)
    loss.backward()
    return given


def plainly_before(out, x, w, b):
    loss = loss_of(out[0])
    loss.backward(retain_graph=True)
    return torch.autograd.grad(loss, graphs(out)[1], allow_unused=True)


def without_keeping(out, x, w, b):
    loss = loss_of(out[0])
    given = torch.autograd.grad(loss, graphs(out)[1], allow_unused=True)
    loss.backward()
    return given


def under_a_hook(out, x, w, b):
    seen = []
    o = graphs(out)[1]
    o.register_hook(lambda g: seen.append(g) or g * 2)
    return torch.autograd.grad(loss_of(out[0]), o, allow_unused=True), seen


def hooked_behind_it(out, x, w, b):
    loss, o = loss_of(out[0]), graphs(out)[1]
    given = torch.autograd.grad(loss, o, allow_unused=True, retain_graph=True)
    seen = []
    o.register_hook(lambda g: seen.append(g) or g * 2)
    o.retain_grad()
    (loss + loss_of(o)).backward()
    return given, seen, o.grad


def through_what_the_caller_made_of_it(out, x, w, b):
    o = graphs(out)[1]
    mine = torch.tanh(o)
    given = torch.autograd.grad(loss_of(out[0]) + mine.sum(), [o, mine], retain_graph=True, allow_unused=True)
    (loss_of(out[0]) + mine.sum()).backward()
    return given


def of_many_by_one(out, x, w, b):
    many = torch.eye(out[0].numel()).view(-1, *out[0].shape)
    return torch.autograd.grad(out[0], graphs(out)[1], many, is_grads_batched=True, allow_unused=True)


ASKED = (
    of_one_by_each_other,
    then_plainly,
    plainly_before,
    without_keeping,
    under_a_hook,
    of_many_by_one,
)
# What comes to a result from the caller, or by way of another one that is asked for, is added up by itself.
# So the last bit may differ.
ASKED_TO_THE_LAST_BIT_BUT_ONE = (
    of_one_by_the_others,
    of_each_by_each,
    of_all_by_all_of_them,
    by_results_and_leaves,
    by_one_result_and_a_leaf,
    with_a_graph_of_their_own,
    kept_in_grad,
    kept_in_grad_with_a_leaf,
    hooked_behind_it,
    through_what_the_caller_made_of_it,
)
USED = (
    (loss_and_scores, of_the_first_result),
    (loss_and_scores, plainly),
    (loss_and_scores, of_the_last_result),
    (loss_and_a_view_of_scores, of_the_first_result),
    (loss_and_parts, of_the_first_result),
    (hidden_and_what_follows, of_the_first_result),
    (hidden_and_what_follows, of_all_that_have_a_graph),
    (states_of_layers, of_the_first_result),
    (states_of_layers, of_all_that_have_a_graph),
    (parts_of_one_node, of_the_first_result),
)


USED_NAMES = [f"{model.__name__}-{usual.__name__}" for model, usual in USED]


@pytest.mark.parametrize("asks", ASKED, ids=[one.__name__ for one in ASKED])
@pytest.mark.parametrize(("model", "usual"), USED, ids=USED_NAMES)
def test_gradients_between_results(model, usual, asks):
    seen = []
    tracer = agree(asking(model, asks, seen, usual=usual))
    assert seen == ["one node"], seen
    assert tracer.count("hits") >= ENOUGH, tracer.account()


@pytest.mark.parametrize("asks", ASKED_TO_THE_LAST_BIT_BUT_ONE, ids=lambda one: one.__name__)
@pytest.mark.parametrize(("model", "usual"), USED, ids=USED_NAMES)
def test_gradients_between_several_results(model, usual, asks):
    def asks_or_raises(*given):
        try:
            return asks(*given)
        except RuntimeError as error:
            return str(error)

    agree_to_the_last_bit_but_one(model, asks_or_raises, usual, (ENOUGH, ENOUGH + 7), ENOUGH + 8)


def test_a_hook_beside_a_gradient_that_is_asked_for():
    fn, w, b = ready(loss_and_scores, of_the_first_result)
    x = torch.randn(6, 4)

    def asks(out):
        seen = []
        out[1].register_hook(lambda g: seen.append(g) or g * 2)
        return torch.autograd.grad(out[0], [out[1], w]), seen

    with pytest.raises(RuntimeError, match="has a hook, and the gradient of such a result is asked for"):
        asks(fn(x))
    torch.testing.assert_close(asks(fn(x)), asks(loss_and_scores(x, w, b)), rtol=0, atol=0)


@pytest.mark.parametrize("written", range(2, 14, 3))
def test_a_sum_of_all_results(written):
    """What comes to a result from the caller alone is a number that is expanded, unlike all that comes to it:
    the node stands for the graph all the same, which could not be built once a weight was written to."""

    def make(trace):
        torch.manual_seed(0)
        w, v = (torch.randn(4, 4).div(2).requires_grad_() for _ in range(2))

        def model(x):
            y = torch.tanh(torch.tanh(x @ w) @ v)
            return y, y.sum()

        fn = trace(model)

        def step(x, writes):
            y, total = fn(x)
            if writes:
                with torch.no_grad():
                    w.mul_(1.25)
            (y.sum() + total).backward()
            return y, total, y.grad_fn.name()

        steps = [call(torch.randn(3, 4), at == written) for at in range(16)]
        return step, steps, lambda: (w, v, w.grad, v.grad)

    check(make, hits=12)
