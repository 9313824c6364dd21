"""Steps done in a shorter way without gradients: nobody can tell what they give from eager results."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lazytrace import traced

A = torch.randn(4, 6)
B = torch.randn(4, 6)
V = torch.randn(6)
W = torch.nn.Parameter(torch.randn(5, 6))
BIAS = torch.nn.Parameter(torch.randn(5))
T3 = torch.randn(2, 3, 6)
INTS = torch.arange(24).reshape(4, 6)
CHANNELS_LAST = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)

OPERATORS = {
    "pointwise": lambda: (A + B, A - B * 2, A * B / 3, torch.maximum(A, B), torch.minimum(A, B)),
    "unary": lambda: (
        A.sigmoid(),
        A.tanh(),
        A.exp(),
        A.neg(),
        A.sin(),
        A.cos(),
        A.erf(),
        F.silu(A),
        F.gelu(A),
    ),
    "roots": lambda: (A.abs().sqrt(), (A.abs() + 1).rsqrt(), A.reciprocal(), (A.abs() + 1).log()),
    "gelu tanh": lambda: F.gelu(A, approximate="tanh"),
    "relu": lambda: (A.relu(), F.relu(INTS - 5)),
    "pow": lambda: (A**2, A**3, A.abs() ** 0.5, A**0, A**1),
    "numbers": lambda: (A + 1, A * 2, A - 0.5, A / 4, 1 - A, 2 / (A.abs() + 1), A.add(B, alpha=0.5)),
    "promotion": lambda: (
        INTS + A,
        INTS * 2,
        INTS / 2,
        INTS * 1.5,
        A.half() + B,
        A.double() * B,
        INTS + True,
    ),
    "broadcast": lambda: (A + V, V * A, A[:, :1] * A, A[0] + A[:, :1]),
    "reductions": lambda: (A.mean(-1), A.mean(0, keepdim=True), A.sum(-1), A.sum((0, 1)), INTS.sum(0)),
    "matrices": lambda: (A @ B.t(), torch.mm(A, B.t()), torch.addmm(BIAS, A, W.t()), torch.bmm(T3, T3.mT)),
    "baddbmm": lambda: torch.baddbmm(torch.ones(2, 3, 3), T3, T3.mT, beta=0.5, alpha=2),
    "linear": lambda: (F.linear(A, W, BIAS), F.linear(A, W), F.linear(T3, W, BIAS), F.linear(T3, W)),
    "linear of what is not contiguous": lambda: (
        F.linear(A.t().contiguous().t(), W, BIAS),
        F.linear(T3[:, ::2], W),
    ),
    "linear of a vector": lambda: F.linear(V, W, BIAS),
    "softmax": lambda: (A.softmax(-1), A.softmax(0), A.softmax(-1, dtype=torch.float64), F.softmax(T3, 1)),
    "cat": lambda: (torch.cat([A, B]), torch.cat([A, B, A], 1), torch.cat([A, INTS]), torch.cat([A[:0], B])),
    "channels last": lambda: (
        CHANNELS_LAST * 2,
        CHANNELS_LAST.relu(),
        CHANNELS_LAST + 1,
        CHANNELS_LAST.sum(1),
    ),
    "not dense": lambda: (A[:, ::2] + 1, A.t() * 2, A[::2].sigmoid(), A.expand(3, 4, 6) + 1),
    "empty": lambda: (A[:0] + 1, A[:0].sum(0), torch.mm(A[:0], B.t()), torch.cat([A[:0], B[:0]])),
    "scalars": lambda: (A.sum() + 1, A[0, 0] * 2, torch.tensor(2.0) * A, A.mean((0, 1)).exp()),
    "complex": lambda: (
        torch.complex(A, B) * 2,
        torch.complex(A, B).conj() + 1,
        torch.complex(A, B).conj().imag.neg(),
    ),
    "views": lambda: (
        A.view(6, 4) + 1,
        A.t() + 1,
        A.reshape(2, 12) + 1,
        A.unsqueeze(1) + 1,
        A.expand(2, 4, 6) + 1,
        A[1:3] + 1,
        A[2] + 1,
        T3.permute(2, 0, 1) + 1,
        T3.transpose(1, 2) + 1,
        T3.flatten(1) + 1,
        T3.unflatten(2, (2, 3)) + 1,
    ),
    "lists of views": lambda: (
        [x + 1 for x in A.split(2)],
        [x + 1 for x in A.chunk(2, 1)],
        [x * 2 for x in A.unbind()],
        sum(A.split([1, 3])[1]),
        A.split(2)[0],
    ),
    "views of views": lambda: (
        T3.transpose(0, 1).reshape(3, 12)[:, 2:8].unsqueeze(0).expand(2, 3, 6).permute(2, 0, 1) + 1
    ),
    "nothing to do": lambda: (
        A.to(torch.float32) + 1,
        A.contiguous() + 1,
        F.dropout(A, 0.5, False) + 1,
        A.float(),
    ),
}


def looks(value):
    """Everything about a result that Python could see."""
    if isinstance(value, torch.Tensor):
        inference = value.is_inference()
        return (
            *(value.dtype, value.shape, value.stride(), value.storage_offset(), value.requires_grad),
            *(value.untyped_storage().nbytes(), inference, None if inference else value._version),
            *(value._is_view(), value.is_contiguous(), value.is_conj(), value.is_neg(), value.is_leaf),
        )
    return [looks(one) for one in value]


def parts(value):
    return [value] if isinstance(value, torch.Tensor) else [part for one in value for part in parts(one)]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", OPERATORS)
def test_results_look_as_eager_ones(name, mode):
    plain = OPERATORS[name]
    fn = traced(plain)
    with mode():
        expected = plain()
        results = [fn() for _ in range(4)]
    assert fn.stats().hits == 3
    for result in results:
        assert looks(result) == looks(expected)
        for a, b in zip(parts(result), parts(expected), strict=True):
            assert torch.equal(a, b)


def test_results_are_not_written_again():
    fn = traced(lambda x: ((x + 1) * 2).tanh() - 1)
    xs = [torch.full((5,), float(i)) for i in range(8)]
    with torch.no_grad():
        results = [fn(x) for x in xs]
        kept = [result.clone() for result in results]
        for x in reversed(xs):
            fn(x)
    for result, copy, x in zip(results, kept, xs, strict=True):
        assert torch.equal(result, copy)
        assert torch.equal(result, ((x + 1) * 2).tanh() - 1)


def test_a_view_that_leaves_is_a_view():
    x = torch.randn(4, 6)

    def step(x):
        y = x.transpose(0, 1)
        z = y.unsqueeze(0)
        return z.squeeze(0)[1:], y.reshape(2, 12) * 2

    fn = traced(step)
    with torch.no_grad():
        for _ in range(3):
            view, _ = fn(x)
            assert view._base is x
            assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            before = x._version
            view.add_(1)
            assert x._version == before + 1
    assert fn.stats().hits == 2


def test_a_view_of_a_leaf_cannot_be_written_to():
    w = torch.nn.Parameter(torch.randn(4, 6))
    fn = traced(lambda: w.t().unsqueeze(0)[0])
    with torch.no_grad():
        views = [fn() for _ in range(3)]
    assert fn.stats().hits == 2
    for view in views:
        with pytest.raises(RuntimeError, match="no_grad"):
            view.add_(1)


def test_written_views_reach_their_base():
    def step(x):
        y = x * 1
        y.t()[1:3].mul_(2)
        y.view(-1)[0] = 7.0
        return y, y.t().reshape(-1)

    fn, x = traced(step), torch.randn(4, 6)
    with torch.no_grad():
        expected = step(x)
        for _ in range(3):
            result = fn(x)
            assert looks(result) == looks(expected)
            assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))
    assert fn.stats().hits == 2


def test_saved_views_know_of_writes():
    """A view made without gradients, saved for backward, and written to through its base."""
    w = torch.randn(6, requires_grad=True)

    def step(x):
        with torch.no_grad():
            part = x.view(-1)
        y = w * part
        x.add_(1)
        return y

    for fn in (step, traced(step)):
        for _ in range(3):
            y = fn(torch.randn(6))
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()


def test_forward_mode_sees_every_operator():
    fn = traced(lambda x: (x * 2).tanh() + 1)
    x = torch.tensor([-0.5, 0.2, 0.7])  # where 1 - tanh(x) ** 2 cancels little
    with torch.no_grad():
        for _ in range(3):
            fn(x)
    with torch.autograd.forward_ad.dual_level(), torch.no_grad():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones(3))
        for _ in range(3):
            tangent = torch.autograd.forward_ad.unpack_dual(fn(dual)).tangent
            assert torch.allclose(tangent, 2 * (1 - (x * 2).tanh() ** 2))


def test_a_profiler_sees_the_operators_of_the_program():
    fn = traced(lambda x: F.linear(x, W, BIAS).t())
    with torch.no_grad():
        for _ in range(3):
            fn(A)
        with torch.profiler.profile() as profile:
            fn(A)
    assert {"aten::linear", "aten::t"} <= {event.name for event in profile.events()}


def test_threads_have_memory_of_their_own():
    from concurrent.futures import ThreadPoolExecutor

    fn = traced(lambda x: ((x + 1) * 2 - 3).tanh().exp() + x)

    def work(i):
        x = torch.full((64,), i / 100)
        with torch.no_grad():
            return [torch.equal(fn(x), ((x + 1) * 2 - 3).tanh().exp() + x) for _ in range(200)]

    with torch.no_grad():
        fn(torch.zeros(64))
    with ThreadPoolExecutor(8) as pool:
        assert all(all(one) for one in pool.map(work, range(16)))


def test_an_operator_that_python_replaced_runs():
    calls = []
    with torch.library._scoped_library("aten", "IMPL") as library:

        def tanh(x):
            calls.append(1)
            return torch.zeros_like(x)

        library.impl("tanh", tanh, "CPU")
        fn = traced(lambda x: x.tanh() + 1)
        with torch.no_grad():
            assert all(torch.equal(fn(A), torch.ones(4, 6)) for _ in range(3))
