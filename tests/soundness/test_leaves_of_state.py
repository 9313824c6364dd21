"""Whether a tensor of state is a leaf, as optimizers ask when they are made: a guard asks it again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.soundness.runner import Holder, X, around, call, check


def result(x):
    return (x.clone().requires_grad_() * 2).sum(0)


CHANGES = {
    "a result": lambda s: setattr(s, "w", result(X(2, 3))),
    "a view of a weight": lambda s: setattr(s, "w", nn.Parameter(X(2, 3))[0]),
    "a leaf": lambda s: setattr(s, "w", X(3).requires_grad_()),
    "no gradient": lambda s: setattr(s, "w", X(3)),
    "written to": lambda s: setattr(s, "w", X(3).mul_(nn.Parameter(X(3)))),
    "detached in place": lambda s: s.w.detach_(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("first", ["a leaf", "no gradient"])
def test_it_is_asked_again(change, first):
    def make(trace):
        s = Holder(w=None)
        CHANGES[first](s)

        def fn(x):
            return (x + 1) * s.w.detach(), s.w.is_leaf

        return trace(fn), [*around(lambda: change(s), X(3)), *around(lambda: CHANGES[first](s), X(3))]

    check(make, hits=1)


def test_a_result_has_no_guard():
    def make(trace):
        s = Holder(w=result(X(2, 3)))
        return trace(lambda x: x if s.w.is_leaf else x * 2), [call(X(3))] * 3

    check(make, eager="reads .is_leaf of a tensor")


def comes_to_require(w):
    w.mul_(nn.Parameter(X(3)))


def stays(w):
    w.add_(1)


@pytest.mark.parametrize(
    ("written", "expected"),
    [(comes_to_require, {"eager": "runs aten::mul_ where an exception"}), (stays, {"hits": 3})],
)
def test_what_the_call_has_written_to(written, expected):
    def make(trace):
        s = Holder(w=X(3))

        def fn(x):
            before = s.w.is_leaf
            s.w = s.w.clone()
            written(s.w)
            after = s.w.is_leaf
            s.w = s.w.detach()
            return x * 2, before, after, s.w.is_leaf

        return trace(fn), [call(X(3))] * 5

    check(make, **expected)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_optimizers_that_a_call_makes(kind):
    def make(trace):
        model = nn.Linear(3, 1)

        def fn(x):
            before = {name: value.clone() for name, value in model.state_dict().items()}
            inner = kind(model.parameters(), 0.02)
            for row in x:
                loss = model(row).pow(2).mean()
                inner.zero_grad()
                loss.backward()
                inner.step()
            after = model.state_dict()
            model.load_state_dict({k: before[k] + (after[k] - before[k]) * 0.5 for k in before})
            return loss.item()

        steps = [call(X(4, 3) + i) for i in range(5)]
        freeze = lambda: model.bias.requires_grad_(False)  # noqa: E731
        return trace(fn), [*steps, freeze, *steps[:3]], lambda: [model, [p.grad for p in model.parameters()]]

    check(make, hits=4)


@pytest.mark.parametrize("other", [lambda: X(3).requires_grad_() * 2, lambda: nn.Parameter(X(2, 3))[0]])
@pytest.mark.parametrize("calls", [3, 14])
def test_what_has_a_history_in_the_place_of_a_leaf_that_a_pass_gives_a_gradient(calls, other):
    """Of neither there is a gradient when the call begins."""

    def make(trace):
        s = Holder(w=X(3).requires_grad_())

        def fn(x):
            (x * s.w).sum().backward()
            return x * 2 if s.w.grad is None else s.w.grad.clone()

        step = [lambda: setattr(s.w, "grad", None), call(X(3))]
        change = lambda: setattr(s, "w", other())  # noqa: E731
        return trace(fn), [*step * calls, change, call(X(3)), call(X(3))], lambda: s.w

    check(make, hits=calls - 2, eager="reads .grad of a tensor that is no leaf")


def test_what_retains_its_gradient_in_the_place_of_a_leaf():
    def make(trace):
        s = Holder(w=X(3).requires_grad_())

        def fn(x):
            (x * s.w).sum().backward()
            return x * 2 if s.w.grad is None else s.w.grad.clone()

        def change():
            s.w = X(3).requires_grad_() * 2
            s.w.retain_grad()

        one = [lambda: setattr(s.w, "grad", None), call(X(3))]
        return trace(fn), [*one * 4, change, call(X(3))], lambda: s.w

    check(make, hits=3)


OTHERS = {
    "a leaf": lambda: X(3).requires_grad_(),
    "what has a history": lambda: X(3).requires_grad_() * 2,
    "a view": lambda: nn.Parameter(X(2, 3))[0],
    "what retains its gradient": lambda: retaining(),
}


def retaining():
    made = X(3).requires_grad_() * 2
    made.retain_grad()
    return made


@pytest.mark.parametrize("value", [lambda: None, lambda: torch.zeros(3)])
@pytest.mark.parametrize("first", ["a leaf", "what retains its gradient"])
@pytest.mark.parametrize("other", OTHERS)
def test_what_lies_in_the_place_of_a_tensor_whose_gradient_the_call_sets_itself(value, first, other):
    """Nothing is read of it when the call begins."""

    def make(trace):
        s = Holder(w=OTHERS[first]())

        def fn(x):
            s.w.grad = value()
            (x * s.w).sum().backward(retain_graph=True)
            return x * 2 if s.w.grad is None else s.w.grad.clone()

        change = lambda: setattr(s, "w", OTHERS[other]())  # noqa: E731
        return trace(fn), [*[call(X(3))] * 12, change, *[call(X(3))] * 3], lambda: s.w

    check(make, hits=8)
