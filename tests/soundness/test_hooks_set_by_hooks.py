"""Hooks of the user's that set hooks on a leaf, or take some off, at some calls only, while a replay runs."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from tests.soundness.runner import Holder, X, call, check


def triple(gradient):
    return gradient * 3


def sets_one(state):
    state.w.register_hook(lambda g: g * 2)


def sets_and_keeps_one(state):
    state.handle = state.w.register_hook(lambda g: g * 2)


def takes_one_off(state):
    state.there.remove()


def takes_all_off(state):
    state.w._backward_hooks.clear()


def sets_another_dict(state):
    state.w._backward_hooks = OrderedDict({5: lambda g: g * 7})


def sets_one_behind(state):
    state.w.register_post_accumulate_grad_hook(lambda p: state.log.append(p.grad.clone()))


CHANGES = {
    sets_one: False,
    sets_and_keeps_one: True,
    takes_one_off: True,
    takes_all_off: True,
    sets_another_dict: False,
    sets_one_behind: True,
}


def nothing_more(state, x):
    return x * 1


def another_pass(state, x):
    (state.w * x * 2).sum().backward()
    return x * 1


@pytest.mark.parametrize("behind", [nothing_more, another_pass], ids=lambda one: one.__name__)
@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
def test_set_in_a_replay(change, behind):
    """The function is led back to before the pass, with the hooks of before; those of then stay behind it."""

    def make(trace):
        state = Holder(w=nn.Parameter(torch.tensor([1.0, 2.0, 3.0])), add=False, log=[], count=torch.zeros(1))
        if CHANGES[change]:
            state.there = state.w.register_hook(triple)

        def fn(x):
            state.count.add_(1)

            def hook(gradient):
                if state.add:
                    change(state)
                return gradient * 3

            y = state.w * x
            y.register_hook(hook)
            y.sum().backward()
            return behind(state, x)

        def switch():
            state.add = not state.add

        def watch():
            return [state.w.grad, state.count, state.log, len(state.w._backward_hooks or ())]

        steps = [call(X()), call(X() * 2), call(X() * 3), switch, call(X()), switch, call(X()), call(X() * 2)]
        return trace(fn), steps, watch

    check(make, hits=1, eager="resumes-after-opaque")
