"""How often a tensor was written to, which Python code may ask."""

from __future__ import annotations

import torch
from torch import nn

from lazytrace import opaque
from tests.soundness.runner import Cases, Holder, X, call, calls, check

cases = Cases()


def case(name, body, hits=4, **expected):
    def make(trace):
        state = Holder(p=nn.Parameter(X()), kept=None, snapshot=None, times=1)
        return trace(lambda x: body(x, state)), calls(), lambda: state.snapshot

    make.__name__ = name
    cases(make, hits=hits, **expected)


def written(x, _):
    y = x * 2
    before = y._version
    y.add_(1).mul_(2)
    view = y[1:]
    view.zero_()
    return y, before, y._version, view._version, y.detach()._version


case("of_one_that_is_made", written)


def snapshot(x, state):
    """As kornia asks whether parameters of an augmentation were edited since."""
    state.kept = {"angle": torch.rand(3) * x, "flip": x > 0}
    state.kept["angle"].clamp_(0, 1)
    state.snapshot = tuple((name, value._version) for name, value in state.kept.items())
    return x * state.kept["angle"]


case("of_some_that_are_kept", snapshot)


def looks_back(x, state):
    old = state.kept
    state.kept = x + 1
    return x * (1 if old is None else old._version + 1)


def before_an_exit(x, _):
    y = x * 2
    before = y._version
    y.add_(1)
    drawn = torch.rand(3)
    return (y if x.sum() > 6 else y * drawn), before, y._version


case("before_a_branch_behind_draws", before_an_exit, hits=0, eager="read-after-change")


def of_one_that_nobody_writes_to(x, _):
    y = x * 2
    drawn = torch.rand(3) * y._version + torch.rand(3)
    return (y if x.sum() > 6 else y * drawn), y._version, drawn._version


def behind_the_branch(x, _):
    y = x * 2
    before = y._version
    drawn = torch.rand(3)
    z = y + 1 if x.sum() > 6 else y * drawn
    return z, before, y._version, z.add_(1)._version, y.mul_(3)._version


def written_through_a_view_that_outlives_it(x, _):
    y = x * 2
    before = y._version
    view = y.view(-1)
    del y
    view.add_(1)
    drawn = torch.rand(3)
    return (view if x.sum() > 6 else view * drawn), before


@opaque
def adds_one(y):
    y.add_(1)


def written_in_an_opaque_function(x, _):
    y = x * 2
    before = y._version
    adds_one(y)
    drawn = torch.rand(3)
    return (y if x.sum() > 6 else y * drawn), before


def written_in_the_step_that_asks_for_a_value(x, _):
    y = x * 2
    before = y._version
    drawn = torch.rand(3)
    return (y if y.add_(drawn).sum() > 6 else y * drawn), before


case("before_a_branch_where_nothing_is_written", of_one_that_nobody_writes_to, hits=3)
case("before_and_behind_a_branch", behind_the_branch, hits=3)
written_before = (
    written_through_a_view_that_outlives_it,
    written_in_an_opaque_function,
    written_in_the_step_that_asks_for_a_value,
)
for body in written_before:
    case(f"before_a_branch_and_{body.__name__}", body, hits=0, eager="read-after-change")


@cases(hits=10)
def before_a_branch_behind_a_step_that_is_flat(trace):
    p = nn.Parameter(X())
    opt = torch.optim.SGD([p], 0.1)

    def step(x):
        opt.zero_grad()
        y = p * x
        before = y._version
        loss = y.square().sum() + torch.rand(())
        loss.backward()
        opt.step()
        return (before, y._version, y.detach() * 2) if loss.item() > 1e4 else (before, y._version)

    steps = [call(k * X()) for k in [1.0] * 12 + [1e3, 1.0, 1e3, 1.0]]
    return trace(step), steps, lambda: p


case("of_one_that_an_earlier_call_has_made", looks_back, hits=0, eager="reads-of-tensor")
case("of_an_argument", lambda x, _: (x * 2, x._version), hits=0, eager="reads-of-tensor")
case("of_a_view_of_an_argument", lambda x, _: (x * 2, x[1:]._version), hits=0, eager="reads-of-tensor")
case("of_the_same_memory_apart", lambda x, _: (x * 2, x.detach()._version), hits=0, eager="reads-of-tensor")
case("of_a_parameter", lambda x, state: (x * 2, state.p._version), hits=0, eager="reads-of-tensor")


def of_a_gradient(x, state):
    state.p.grad = None
    (state.p * x).sum().backward()
    return state.p.grad._version


case("of_a_gradient", of_a_gradient, hits=0, eager="reads-of-tensor")


@opaque
def write_often(y, state):
    state.times = state.times % 3 + 1
    for _ in range(state.times):
        y.add_(1)


def behind(x, state):
    y = x * 2
    write_often(y, state)
    return y, y._version


case("behind_an_opaque_function", behind, hits=0, eager="reads-of-tensor")


@cases.parametrize
def test_versions(make, expected):
    check(make, **expected)
