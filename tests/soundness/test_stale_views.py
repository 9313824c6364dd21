"""Views that were written to in a way that autograd forbids, and views of a graph that were made without one.

Torch raises where a stale view is asked for its node, or whether it is a leaf; all else is done with it as
with any tensor. A view that was made without gradients requires them, and no graph leads to it.
"""

from __future__ import annotations

import pytest
import torch

import lazytrace

W = torch.full((3,), 2.0, requires_grad=True)


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def one_of_several(base):
    return base.unbind()[0]


def of_a_custom_function(base):
    return Same.apply(base[0])


@torch.no_grad()
def without_gradients(base):
    return base[0]


def under_inference_mode(base):
    with torch.inference_mode():
        return base[0]


def as_usual(base):
    return base[0]


FORBIDDEN = [one_of_several, of_a_custom_function, without_gradients]
VIEWS = [*FORBIDDEN, under_inference_mode, as_usual]


def view_of(make, stale):
    view = make((torch.arange(6.0).reshape(2, 3) * torch.ones(2, 3, requires_grad=True)).clone())
    if stale:
        with torch.no_grad():
            view.mul_(2)
    return view


def shown(value):
    if isinstance(value, torch.Tensor):
        return value.detach().tolist(), value.requires_grad
    return [shown(one) for one in value] if isinstance(value, tuple) else value


def outcome(f, view, after):
    """What one call shows: its result, or what it raises, gradients, and what is said of the view by then."""
    W.grad = None
    seen = []
    for ask in (lambda: shown(f(view)), lambda: type(view.grad_fn).__name__, *after(view)):
        try:
            seen.append(ask())
        except RuntimeError as error:
            seen.append(str(error))
    return [*seen, shown(view), W.grad if W.grad is None else W.grad.tolist()]


def after(view):
    return (lambda: shown(view.add_(1)), lambda: (view * 2).sum().backward())


def doubled_without_gradients(view):
    with torch.no_grad():
        return view * 2


def beside_another_result(view):
    return view, W * 2


def given_back(view):
    return view


def beside_a_step(view):
    with torch.no_grad():
        scaled = view * 2
    (W * scaled).tanh().sum().backward()
    return scaled


def detached(view):
    return view.detach() * W


def used(view):
    return (view * W).tanh()


def written_to(view):
    with torch.no_grad():
        view.mul_(2)
    return view.detach() * W


def turned(view):
    with torch.no_grad():
        view.unsqueeze_(0)
    return view


def asked_whether_it_is_a_leaf(view):
    return view.is_leaf


def asked_for_its_node(view):
    return view.grad_fn is None


def caught(view):
    try:
        return view * 2
    except RuntimeError:
        return None


USES = [
    doubled_without_gradients,
    beside_another_result,
    given_back,
    beside_a_step,
    detached,
    used,
    written_to,
    turned,
    asked_whether_it_is_a_leaf,
    asked_for_its_node,
    caught,
]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("make", VIEWS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_stale_and_other_views_at_one_function(use, make, grad):
    for order in ([False, True], [True, False], [True, True]):
        traced = lazytrace.traced(use)
        for stale in [order[0]] * 5 + [order[1]] * 5 + [order[0]] * 2:
            seen = []
            for f in (use, traced):
                with torch.set_grad_enabled(grad):
                    seen.append(outcome(f, view_of(make, stale), after))
            assert seen[0] == seen[1]


HITTING = [doubled_without_gradients, beside_another_result, given_back, beside_a_step, detached]


@pytest.mark.parametrize("make", FORBIDDEN, ids=lambda make: make.__name__)
@pytest.mark.parametrize("use", HITTING, ids=lambda use: use.__name__)
def test_functions_of_stale_views_hit(use, make):
    traced = lazytrace.traced(use)
    for _ in range(10):
        W.grad = None
        traced(view_of(make, True))
    assert traced.stats().hits == 9, traced.stats().eager


def made_inside(x):
    base = x * W
    view = base.unbind()[0]
    with torch.no_grad():
        view.mul_(2)
    return base.sum()


def made_inside_and_given_back(x):
    view = (x * W).unbind()[0]
    with torch.no_grad():
        view.mul_(2)
    return view


def made_inside_beside_a_pass(x):
    base = x * W
    view = base.unbind()[0]
    with torch.no_grad():
        view.mul_(2)
    base.sum().backward()
    return view


@pytest.mark.parametrize("f", [made_inside, made_inside_and_given_back, made_inside_beside_a_pass])
def test_made_inside(f):
    traced = lazytrace.traced(f)
    for _ in range(10):
        seen = []
        for function in (f, traced):
            W.grad = None
            result = function(torch.ones(2, 3))
            if f is made_inside:
                result.backward()
            seen.append((shown(result), None if W.grad is None else W.grad.tolist()))
        assert seen[0] == seen[1]
    assert traced.stats().hits == 9, traced.stats().eager


def test_what_changed_is_named():
    traced = lazytrace.traced(given_back)
    traced(view_of(one_of_several, False))
    traced(view_of(one_of_several, True))
    assert any("is_leaf" in str(reason) for event in traced.stats().events for reason in event.reasons)
