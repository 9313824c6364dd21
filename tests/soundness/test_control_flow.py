"""Python that branches and loops on tensor values, before, between and after what draws or writes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import lazytrace
from tests.soundness.runner import Cases, X, call, calls, check

cases = Cases()


def mixed(x=None):
    x = X() if x is None else x
    return [call(x), call(x), call(-x), call(-x), call(x), call(-x)]


@cases(hits=3)
def branch(trace):
    return trace(lambda x: x * 2 if x.sum() > 0 else x - 1), mixed()


@cases(hits=3)
def branch_with_gradients(trace):
    return trace(lambda x: x * 2 if x.sum() > 0 else x - 1), [
        call(X(grad=True)),
        call(X(grad=True)),
        call((-X()).requires_grad_()),
    ] * 2


@cases(hits=4)
def branch_then_dropout(trace):
    return trace(lambda x: F.dropout(x) if x.sum() > 0 else x - 1), mixed()


@cases(hits=4)
def branch_then_dropout_in_both(trace):
    return trace(lambda x: F.dropout(x) if x.sum() > 0 else F.dropout(x - 1)), mixed()


@cases(hits=3)
def branch_then_write(trace):
    def fn(x):
        if x.sum() > 0:
            x.add_(1)
        else:
            x.sub_(1)
        return x * 2

    x = X()
    return trace(fn), [call(x), call(x), lambda: x.neg_(), call(x), call(x), lambda: x.neg_(), call(x)]


@cases(hits=2)
def write_then_branch(trace):
    def fn(x):
        x.add_(1)
        return x * 2 if x.sum() > 0 else x * 3

    x = X()
    return trace(fn), [call(x), call(x), lambda: x.sub_(9), call(x), call(x)]


@cases(hits=6)
def dropout_then_branch(trace):
    return trace(lambda x: x * 2 if F.dropout(x).sum() > 0 else x - 1), [call(X())] * 8


@cases(hits=1)
def random_then_mask(trace):
    return trace(lambda x: x[torch.rand_like(x) > 0.5] * 2), [call(X(20))] * 5


@cases(hits=3)
def mask_then_random(trace):
    return trace(lambda x: F.dropout(x[x > 0])), [call(X()), call(X()), call(-X()), call(-X()), call(X())]


@cases(hits=3)
def mask_then_write(trace):
    def fn(x, total):
        picked = x[x > 0]
        total.add_(picked.sum())
        return picked * total

    total = torch.zeros(())
    return trace(fn), [
        call(X(), total),
        call(X(), total),
        call(-X(), total),
        call(-X(), total),
        call(X(), total),
    ]


@cases(hits=3)
def write_then_mask(trace):
    def fn(x, total):
        total.add_(1)
        return x[x > 0] * total

    total = torch.zeros(())
    return trace(fn), [
        call(X(), total),
        call(X(), total),
        call(-X(), total),
        call(-X(), total),
        call(X(), total),
        call(torch.zeros(3), total),
    ]


@cases(hits=5)
def while_loop(trace):
    @trace
    def fn(x):
        while x.norm() > 1:
            x = x * 0.5
        return x

    return fn, [call(X() * k) for k in (1, 1, 10, 10, 100, 1000, 0.1, 1, 10, 3, 30, 300, 3000, 1)]


class Choosing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return choose(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def choose(x):
    return torch.ops.higher_order.cond(x.sum() > 2, lambda a: a * 2, lambda a: a - 1, (x.detach(),))


@pytest.mark.parametrize("way", [choose, lazytrace.opaque(choose), Choosing.apply])
def test_operators_that_take_functions(way):
    """Such an operator found no kernel for the key of a recording, and raised."""
    check(lambda trace: (trace(lambda x: way(x) + 1), calls(4)), eager="calls torch.ops.higher_order.cond()")


@cases(hits=1)
def item_in_arithmetic(trace):
    x = torch.tensor([2.0, 3.0])
    return trace(lambda x: x * x[0].item()), [call(x), call(x), call(x + 1), call(x + 1), call(x)]


@cases(hits=3)
def item_of_nan_and_zero(trace):
    fn = trace(lambda x: (x.item(), x * x.item()))
    return fn, [
        call(torch.tensor(v)) for v in (0.0, -0.0, 0.0, float("nan"), float("nan"), float("inf"), -0.0)
    ]


@cases(hits=3)
def size_from_a_value(trace):
    fn = trace(lambda x: torch.zeros(int(x.max())) + x.sum())
    return fn, [call(torch.tensor([v])) for v in (2.0, 2.0, 3.0, 3.0, 2.0)]


@cases(hits=4)
def range_over_a_value(trace):
    @trace
    def fn(x, n):
        for i in range(n):
            x = x + i
        return x

    return fn, [call(X(), torch.tensor(n)) for n in (2, 2, 3, 3, 0, 0, 2)]


@cases(hits=3)
def nonzero_shapes(trace):
    fn = trace(lambda x: (x.nonzero().shape[0], x[x > 0].mean(), x.unique()))
    return fn, [call(x) for x in (X(), X(), -X(), -X(), X() * 0, torch.ones(3), X())]


@cases(hits=3)
def empty_selection(trace):
    @trace
    def fn(x):
        picked = x[x > 0]
        return picked.max() if picked.numel() else x.sum()

    return fn, [call(X()), call(X()), call(-X().abs()), call(-X().abs()), call(X()), call(X() + 5)]


@cases(hits=3)
def equal_and_allclose(trace):
    fn = trace(lambda x, y: (torch.equal(x, y), torch.allclose(x, y), x is y, (x == y).all().item()))
    x = X()
    return fn, [
        call(x, x),
        call(x, x),
        call(x, x.clone()),
        call(x, x + 1),
        call(x, x + 1),
        call(x, x.clone()),
    ]


@cases(hits=2)
def python_max_of_tensors(trace):
    fn = trace(lambda x, y: max(x, y) * 2)
    a, b = torch.tensor(1.0), torch.tensor(2.0)
    return fn, [call(a, b), call(a, b), call(b, a), call(b, a), call(a, a)]


@cases(hits=2)
def sorted_tensors(trace):
    fn = trace(lambda *xs: sorted(xs))
    a, b, c = (torch.tensor(v) for v in (1.0, 2.0, 3.0))
    return fn, [call(a, b, c), call(a, b, c), call(c, b, a), call(c, a, b), call(a, b, c)]


@cases(hits=3)
def tensor_in_a_list(trace):
    fn = trace(lambda x: x * 2 if x in [torch.tensor(1.0), torch.tensor(2.0)] else x * 3)
    return fn, [call(torch.tensor(v)) for v in (1.0, 1.0, 2.0, 3.0, 3.0, 1.0)]


@cases(hits=3)
def list_indexed_by_a_value(trace):
    layers = [lambda x: x * 2, lambda x: x - 1, torch.sin]
    fn = trace(lambda x: layers[x.argmax()](x))
    return fn, [call(X()), call(X()), call(-X()), call(-X()), call(X())]


@cases(hits=3)
def dict_indexed_by_a_value(trace):
    table = {0: 2.0, 2: 3.0}
    fn = trace(lambda x: x * table[int(x.argmax())])
    return fn, [call(X()), call(X()), call(-X()), call(-X()), call(X())]


@cases(hits=5)
def short_circuit(trace):
    fn = trace(lambda x, y: x if x.sum() > 0 and y.sum() > 0 else y)
    return fn, [call(a, b) for a in (X(), -X()) for b in (X(), -X()) for _ in range(2)]


@cases(hits=4)
def early_return_with_view(trace):
    fn = trace(lambda x: x[:2] if x[0] > 0 else x)
    return fn, mixed()


@cases(eager="too-many-branches")
def many_branches(trace):
    fn = trace(lambda x: x * len("a" * int(x.sum())))
    return fn, [call(torch.tensor([float(i % 15)])) for i in range(40)]


@cases(hits=2)
def match_statement(trace):
    o = {"kind": "a"}

    @trace
    def fn(x):
        match o:
            case {"kind": "a"}:
                return x * 2
            case {"kind": other}:
                return x, other

    return fn, [call(X()), call(X()), lambda: o.update(kind="b"), call(X()), call(X())]


@cases(hits=1)
def comprehension_over_rows(trace):
    fn = trace(lambda x: torch.stack([row * i for i, row in enumerate(x) if row.sum() > -9]))
    return fn, [call(X(3, 2)), call(X(3, 2)), call(X(3, 2))]


@cases(hits=4)
def unused_read(trace):
    def fn(x):
        x.sum().item()
        return x * 2

    return trace(fn), mixed()


@cases(hits=2)
def custom_op_shape(trace):
    fn = trace(lambda x: torch.histc(x, bins=int(x.numel()), min=0, max=1))
    return fn, [call(X()), call(X()), call(X().abs())]


@cases.parametrize
def test_control_flow(make, expected):
    check(make, **expected)
