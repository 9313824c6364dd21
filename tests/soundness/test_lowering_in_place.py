"""Operators that write in place, item() and arithmetic with numbers, without a graph: as eager ones."""

from __future__ import annotations

import pytest
import torch

from tests.soundness.runner import Cases, X, call, check

cases = Cases()

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32]
REAL = [torch.float32, torch.float64]


def arithmetic(x, y, n):
    x.add_(y, alpha=2).mul_(3).sub_(1).mul_(y)
    x.add_(n).mul_(n).sub_(y)
    return x


def of_floats(x, y, n):
    x.div_(3).mul_(0.1).add_(1e-3).lerp_(y, 0.3).addcmul_(y, y, value=0.7)
    x.addcdiv_(y, y.abs() + 0.1, value=-0.2).div_(n + 0.7).add_(y, alpha=0.1)
    x.abs_().sqrt_()
    x.sub_(y).relu_().sub_(y).sigmoid_().neg_().exp_().sub_(y)
    return x.tanh_(), torch.nn.functional.silu(x, inplace=True), torch.nn.functional.relu(x[1], inplace=True)


def without_graph(make):
    """Calls of a function on a tensor that they change, without gradients."""

    def case(trace):
        body, x, y = make()

        def fn(x, y):
            with torch.no_grad():
                return body(x, y, x.numel())

        return trace(fn), [call(x, y)] * 4, lambda: (x, y)

    return case


@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic_in_place(dtype):
    made = lambda: (arithmetic, X(4, 3).mul(4).to(dtype), X(4, 3).mul(4).to(dtype))  # noqa: E731
    check(without_graph(made), hits=3)


@pytest.mark.parametrize("dtype", DTYPES[:4])
def test_floats_in_place(dtype):
    check(without_graph(lambda: (of_floats, X(4, 3).to(dtype), X(4, 3).to(dtype))), hits=3)


@pytest.mark.parametrize("default", REAL)
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_numbers_meet_tensors(shape, dtype, default):
    def make(trace):
        torch.set_default_dtype(default)
        x, y = torch.rand(shape).to(dtype), torch.rand(shape).to(dtype)

        def fn(x, y):
            with torch.no_grad():
                n = y.sum().item() / 3
                x.mul_(0.1).add_(n).div_(n + 1).addcdiv_(y, y + 1, value=-n)
                return x / 3 + 0.1, (x - n) / (n + 2), 1e-8 * x, n * x - 7, x.add(y, alpha=n)

        return trace(fn), [call(x, y)] * 4, lambda: x

    check(make, hits=3)


@pytest.mark.parametrize("value", [1e300, -1e300, 1e-300, float("inf"), float("nan"), 2.0**-149, 16777217.0])
def test_numbers_that_float32_does_not_hold(value):
    def make(trace):
        x, y = X(), torch.tensor(value, dtype=torch.float64)

        def fn(x, y):
            with torch.no_grad():
                n = y.item()
                return x.clone().add_(n), x * n, x * value, x.clone().mul_(value)

        return trace(fn), [call(x, y)] * 4

    check(make, hits=3)


@cases(hits=3)
def numbers_beside_tensors_of_two_dtypes(trace):
    x, y, z = X(), X().double(), torch.tensor(0.3)

    def fn():
        with torch.no_grad():
            n = z.item() + 0.1
            y.add_(x).mul_(0.1).add_(n)
            x.add_(y).mul_(z).mul_(n)
            return x * 0.1 + y, x * y * n, z * 0.1 + x, y / n, z * y

    return trace(fn), [call()] * 4, lambda: (x, y)


@cases(hits=3)
def values_of_all_kinds(trace):
    held = [torch.tensor(2.5), torch.tensor([[2.5]]).double(), torch.tensor([7]), torch.tensor(3).int()]

    def fn(x):
        with torch.no_grad():
            for one in held:
                x = x * one.item() + one.view(-1)[0].item()
                one += 1
            return x

    return trace(fn), [call(X())] * 4, lambda: held


@cases(hits=3)
def leaves_their_views_and_what_they_share(trace):
    w = torch.nn.Parameter(X(3, 4))
    view = w.detach()

    def fn(x):
        with torch.no_grad():
            w.mul_(0.9)
            w[0].add_(x, alpha=0.5)
            w.t()[1].zero_()
            view.add_(1)
        return (w * x).sum()

    return trace(fn), [call(X(4))] * 4, lambda: (w, view)


@cases(hits=3)
def a_tensor_with_itself(trace):
    x = X(3, 3)

    def fn():
        with torch.no_grad():
            return x.mul_(x).add_(x.clone().t()).addcmul_(x, x, value=0.1).lerp_(x.clone(), 0.5).div_(2)

    return trace(fn), [call()] * 4, lambda: x


@cases(hits=2)
def tensors_of_inference(trace):
    with torch.inference_mode():
        x = X()

    def fn(y):
        with torch.inference_mode():
            x.add_(y).mul_(0.5)
            return x.sum().item() * y

    return trace(fn), [call(X())] * 3


@cases(eager="raised")
def tensors_of_inference_outside(trace):
    with torch.inference_mode():
        x = X()

    def fn(y):
        with torch.no_grad():
            return x.add_(y)

    return trace(fn), [call(X())] * 3


# What is saved for a backward pass is told from what has been written since.
@cases(hits=2)
def a_saved_tensor_is_written_to(trace):
    x, w = X(), X(grad=True)

    def fn():
        with torch.no_grad():
            x.mul_(2)

    def step():
        out = (w * x).sum()
        function()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()

    function = trace(fn)
    return function, [call(), call(), call(), step], lambda: x


@cases(hits=2)
def an_operator_that_raises_in_between(trace):
    x, y, n = X(3), X(4), torch.tensor(0)

    def fn(which):
        with torch.no_grad():
            x.add_(1).mul_(2)
            x.add_(which)
            return x

    return trace(fn), [call(X(3)), call(X(3)), call(y), call(X(3)), call(n)], lambda: x


VIEWS = {
    "transpose": lambda a: a.transpose(0, 1),
    "part": lambda a: a[:, 1:4].repeat(1, 2),
    "slices": lambda a: torch.cat([a[:, 3:], a[:, :3]], 1)[::1],
    "view": lambda a: a.view(3, 12).view(6, 6),
    "chunk": lambda a: a.unsqueeze(0).chunk(1)[0][0],
}
WRITES = {
    "copy_": lambda s, v, at: s.copy_(v),
    "add_": lambda s, v, at: s.add_(v, alpha=0.5),
    "index_copy_": lambda s, v, at: s.index_copy_(0, at, v),
    "index_add_": lambda s, v, at: s.index_add_(1, at, v),
    "item": lambda s, v, at: s.__setitem__(slice(None), v),
    "out": lambda s, v, at: torch.mul(v, 2, out=s),
    "foreach": lambda s, v, at: torch._foreach_copy_([s], [v]),
    "data": lambda s, v, at: setattr(s, "data", v),
}


@pytest.mark.parametrize("then", ["", "view", "base", "state"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_view_that_is_written_to_state(view, write, then):
    """Nobody sees what it is to autograd, but where the state comes to show its memory."""

    def make(trace):
        state, at = X(6, 6), torch.arange(5, -1, -1)

        def fn(x):
            with torch.no_grad():
                made = torch.tanh(x)
                seen = view(made)
                write(state, seen, at)
                if then == "view":
                    seen.add_(1)
                if then == "base":
                    made.mul_(3)
                if then == "state":
                    state.sub_(1)
                return made.sum(), seen * 2

        return trace(fn), [call(X(6, 6) * k) for k in range(1, 6)], lambda: state

    check(make, hits=3)


@cases.parametrize
def test_in_place_without_a_graph(make, expected):
    check(make, **expected)
