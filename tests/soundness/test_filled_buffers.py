"""Fresh tensors that come to require gradients in place, and side exits behind that."""

from __future__ import annotations

import functools
import operator

import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, call, check

cases = Cases()

# Each goes both ways behind the write, after something that must not be done again.
SIGNS = [call(sign * torch.ones(2, 3)) for sign in (1, 1, -1, 1, -1, -1, 1)]


def filled(trace, fill, ask=lambda out: None, tail=lambda out: out):
    """A case: `fill` writes what requires gradients to zeros that `ask` has looked at before."""
    w, count = torch.arange(1.0, 4.0).requires_grad_(), torch.zeros(())

    def fn(x):
        count.add_(1)
        out = torch.zeros(2, 3)
        seen = ask(out)
        fill(out, x[0] * w)
        if x.sum() > 0:
            return tail(out), seen, out.requires_grad
        return tail(out * 2), seen, out.is_leaf

    return trace(fn), SIGNS, lambda: [count.item()]


def a_row(out, value):
    out[0] = value


def through_a_view(out, value):
    out.view(6)[1:4] += value


def scattered(out, value):
    out.scatter_add_(0, torch.tensor([[0, 1, 1]]), value[None])


def added_by_index(out, value):
    out.index_add_(0, torch.tensor([1]), value[None])


def detached_again(out, value):
    out[1] = value
    out.detach_()


def refused(call):
    """What torch says where it refuses a call, which it would not of a tensor that requires gradients."""

    def ask(out):
        try:
            call(out)
        except RuntimeError as error:
            return str(error)

    return ask


FILLS = [a_row, through_a_view, scattered, added_by_index, detached_again]
ASKS = {
    "the_flag": lambda out: out.requires_grad,
    "by_getattr": lambda out: getattr(out, "requires_grad"),  # noqa: B009
    "by_attrgetter": lambda out: operator.attrgetter("requires_grad")(out),
    "by_map": lambda out: list(map(operator.attrgetter("is_leaf"), [out])),
    "by_super": lambda out: super(torch.Tensor, out).requires_grad,
    "is_leaf": lambda out: out.is_leaf,
    "grad_fn": lambda out: out.grad_fn is None,
    "of_a_view": lambda out: out[1:].requires_grad,
    "any": lambda out: any(t.requires_grad for t in (out, out[0])),
    "of_detached": lambda out: out.detach().requires_grad,
    "by_a_partial": lambda out: functools.partial(getattr, out)("requires_grad"),
    "sets_it": lambda out: out.requires_grad_(False) is out,
    "assigns_it": lambda out: setattr(out, "requires_grad", False),
    "text": lambda out: "requires_grad" in repr(out),
    "hasattr": lambda out: hasattr(out, "requires_grad"),
    "keeps_its_gradient": refused(lambda out: out.retain_grad()),
    "keeps_that_of_a_view": refused(lambda out: out[1:].retain_grad()),
    "by_super_keeps_it": refused(lambda out: super(torch.Tensor, out).retain_grad()),
    "hooks_it": refused(lambda out: out.register_hook(torch.neg)),
}


NOT_AGAIN = "comes to require gradients in place"
# Not seen into, so that nothing is replayed.
UNSEEN = {
    "by_a_partial": "hands getattr()",
    "text": "_DisableFuncTorch",
}


@pytest.mark.parametrize("fill", FILLS, ids=lambda fill: fill.__name__)
def test_each_way_to_fill(fill):
    expected = {"eager": NOT_AGAIN} if fill is detached_again else {"hits": 2}
    check(lambda trace: filled(trace, fill), **expected)


@pytest.mark.parametrize("fill", [a_row, through_a_view], ids=lambda fill: fill.__name__)
@pytest.mark.parametrize("name", ASKS)
def test_each_way_to_ask(name, fill):
    """What Python code has been told before the write, it is told again when it runs again."""
    check(lambda trace: filled(trace, fill, ASKS[name]), eager=UNSEEN.get(name, NOT_AGAIN))


@cases(hits=3)
def collected_in_a_loop(trace):
    w, log = torch.ones(3, requires_grad=True), torch.zeros(())

    def fn(x):
        out = torch.empty(4, 3)
        for i in range(4):
            out[i] = x * w * i
            log.add_(1)
            if out[i].sum() > 5:
                out[i] = out[i] / 2
        return out.sum()

    return trace(fn), [call(torch.ones(3) * k) for k in (1, 1, 2, 1, 2, 3, 3)], lambda: [log.item()]


@cases(hits=2)
def drawn_before(trace):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        noise = torch.rand(3)
        out = x.new_zeros(3)
        out += w * noise
        y = out * 2 if x.sum() > 0 else out - 1
        y.sum().backward()
        grad, w.grad = w.grad, None
        return grad, y.detach()

    return trace(fn), [call(sign * torch.ones(3)) for sign in (1, 1, -1, 1, -1)]


@cases(hits=2)
def one_that_was_there(trace):
    w, kept = torch.ones(3, requires_grad=True), []

    def fn(x, out):
        out.zero_()
        out += w * x
        return out * 2 if x.sum() > 0 else out - 1

    def step(x):
        out = torch.zeros(3)
        kept.append(out)
        return traced(x, out), out.requires_grad

    traced = trace(fn)
    return step, [call(sign * torch.ones(3)) for sign in (1, 1, -1, 1, -1)]


def by_parts(trace, write):
    """Whether a slice takes all is read where gradients are required, and only there."""
    torch.manual_seed(0)
    w = torch.randn(4, 6, requires_grad=True)

    def fn(x):
        w.grad = None
        h = x @ w
        out = torch.zeros(h.shape[0], 6)
        write(out, h)
        if x.shape[0] > 2:
            out = out * 2
        out.pow(2).mean().backward()
        return out.detach(), out.requires_grad, w.grad.clone()

    return trace(fn), [call(torch.randn(rows, 4)) for rows in (5, 9, 7, 5, 1, 6, 1, 8, 2)]


def copied(out, h):
    out[..., :4].copy_(h[..., :4])
    out[..., 4:].copy_(h[..., 4:])


def set_in_turn(out, h):
    out[:, :3] = h[:, :3]
    out[:, :5] += h[:, :5]
    out[:, :9] *= 2


def through_views(out, h):
    left = out[:, :4]
    left[:, :2].copy_(h[:, :2])
    left[:, :9].add_(h[:, :4])
    out[:, :7].mul_(3)


def constants_first(out, h):
    out[:, :2] = 1
    out[:, :9] = 2
    out[:, :9].copy_(h)


@pytest.mark.parametrize("write", [copied, set_in_turn, through_views, constants_first])
def test_slices_are_read_again_as_they_were(write):
    check(lambda trace: by_parts(trace, write), hits=6)


def behind_super(ask, **expected):
    """`Tensor.unflatten()` of attention and its kind are Python code that asks `super()`."""

    def make(trace):
        weight = nn.Parameter(torch.ones(3))
        opt = torch.optim.Adam([weight], 0.1)

        def step(x):
            opt.zero_grad()
            out = x.new_zeros(6)
            ask(x, out)
            out.scatter_add_(0, torch.arange(3), weight * x)
            drawn = torch.rand(6)
            loss = (out * drawn).square().sum()
            loss.backward()
            opt.step()
            return loss.item()

        return trace(step), [call(k * torch.arange(3.0)) for k in range(1, 7)], lambda: weight

    make.__name__ = f"behind_super_{ask.__name__}"
    cases(make, **expected)


def unflatten(x, out):
    x.unflatten(0, (3, 1))


def attention(x, out):
    h = x.expand(1, 2, 3)
    layer = nn.functional.multi_head_attention_forward
    weights = torch.ones(9, 3), torch.ones(9), None, None, False, 0.0, torch.ones(3, 3), torch.ones(3)
    layer(h, h, h, 3, 1, *weights, need_weights=False)


def requires_grad(x, out):
    super(torch.Tensor, out).requires_grad  # noqa: B018


behind_super(unflatten, hits=3)
behind_super(attention, hits=3)
behind_super(requires_grad, eager="read-after-change")


@cases(hits=5)
def refused_before_a_branch(trace):
    hooks_it, keeps_it = refused(lambda out: out.register_hook(torch.neg)), refused(torch.Tensor.retain_grad)

    def fn(x):
        out, drawn = x * 2, torch.rand(3)
        said = hooks_it(out), keeps_it(out)
        return (out * drawn if x.sum() > 0 else out - drawn), said

    return trace(fn), SIGNS, lambda: None


# torch's factories give a function that runs again a copy, in the place of which comes the tensor itself.
def held_weakly(name, body):
    def make(trace):
        w = torch.arange(1.0, 4.0).requires_grad_()

        def fn(x):
            kept, loss = body(x, w)
            drawn = torch.rand(3)
            loss = loss * drawn if x.sum() > 0 else loss - drawn
            loss.sum().backward()
            return kept.grad, loss.detach()

        return trace(fn), SIGNS, lambda: w.grad

    make.__name__ = f"held_weakly_{name}"
    cases(make, hits=4)


def keeps_its_gradient(x, w):
    out = torch.zeros(3)
    out.add_(x[0] * w).retain_grad()
    return out, out * 2


def keeps_it_and_is_written_to_again(x, w):
    out = torch.zeros(2, 3)
    out[0].copy_(w)
    out.retain_grad()
    return out, out.mul_(3).sum(0)


def keeps_that_of_a_view(x, w):
    out = torch.ones(3)
    out.mul_(w).retain_grad()
    view = out.view(3, 1)
    view.retain_grad()
    return view, view[:, 0] + out


def keeps_it_behind_a_pass(x, w):
    out = torch.ones(3)
    out.mul_(w).retain_grad()
    out.sum().backward(retain_graph=True)
    return out, out + 1


held_weakly("by_what_keeps_its_gradient", keeps_its_gradient)
held_weakly("by_what_keeps_its_gradient_where_it_is_written_to", keeps_it_and_is_written_to_again)
held_weakly("by_what_keeps_that_of_a_view", keeps_that_of_a_view)
held_weakly("behind_a_pass", keeps_it_behind_a_pass)


@cases(hits=5)
def held_weakly_by_autocast(trace):
    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            weight = torch.ones(3, 3, requires_grad=True)
            out, drawn = x @ weight, torch.rand(3)
            out = (out * drawn if x.sum() > 0 else out - drawn) @ weight
        out.sum().backward()
        return out.detach(), weight.grad

    return trace(fn), SIGNS, lambda: None


@cases.parametrize
def test_filled(make, expected):
    check(make, **expected)
