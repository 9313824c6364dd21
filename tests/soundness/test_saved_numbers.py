"""Numbers that nodes of autograd have saved: whoever asks a node for one may write to it."""

from __future__ import annotations

import pytest
import torch

from tests.soundness.runner import X, call, check
from tests.soundness.test_flat_steps import ENOUGH


def nodes(out):
    """All nodes of the graph behind a tensor, once each."""
    found, waiting = [], [out.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or any(node is known for known in found):
            continue
        found.append(node)
        waiting += [following for following, _ in node.next_functions]
    return found


def saved_numbers(out):
    shown = (getattr(node, "_saved_other", None) for node in nodes(out))
    return [value for value in shown if isinstance(value, torch.Tensor) and not value.dim()]


def product(x, w):
    return x * 2 * w


def one_number_twice(x, w):
    return (x * 2).sin() * w * 2 + (w / 2).exp()


def whole_and_not(x, w):
    return x * 2 * w / 2.0 - 3 * w


@pytest.mark.parametrize("model", [product, one_number_twice, whole_and_not], ids=lambda one: one.__name__)
@pytest.mark.parametrize("pass_before", [False, True])
@pytest.mark.parametrize(
    "when", [range(ENOUGH), range(1), range(3, ENOUGH, 3)], ids=["each", "first", "some"]
)
def test_numbers_that_are_written_to(model, pass_before, when):
    def make(trace):
        w = torch.tensor([1.0, -2.0, 0.5], requires_grad=True)
        fn, last = trace(model), []

        def called(x):
            last[:] = [fn(x, w)]
            return last[0]

        def passes():
            torch.autograd.backward(last[0].sum(), retain_graph=True)

        def write():
            for number in saved_numbers(last[0]):
                number.data.mul_(5)

        def steps():
            for i in range(ENOUGH):
                yield call(X(grad=True)).of(called)
                if pass_before:
                    yield passes
                if i in when:
                    yield write
                yield passes

        return fn, steps(), lambda: [w, w.grad, last and saved_numbers(last[0])]

    check(make, hits=ENOUGH - 2)
