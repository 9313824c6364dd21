"""Tensor subclasses, sparse, complex, quantized, nested and named tensors, custom operators."""

from __future__ import annotations

import pytest
import torch

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


class Tagged(torch.Tensor):
    pass


class Logging(torch.Tensor):
    seen: list = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs or {})


class Scaled(torch.Tensor):
    factor = 2.0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out * cls.factor if getattr(func, "__name__", "") == "sin" else out


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [a.inner if isinstance(a, Wrapper) else a for a in args]
        out = func(*plain, **(kwargs or {}))
        return Wrapper(out + 1)


@cases(hits=2)
def subclass_argument(trace):
    fn = trace(lambda x: x * 2)
    return fn, [call(X()), call(X()), call(X().as_subclass(Tagged)), call(X().as_subclass(Tagged)), call(X())]


@cases(eager="reads a container with a method-wrapper as a key")
def subclass_of_state(trace):
    w = X().as_subclass(Tagged)
    return trace(lambda x: x * w), [call(X())] * 3


@cases(hits=1)
def subclass_of_state_appears(trace):
    o = {"w": X()}
    return trace(lambda x: x * o["w"]), around(lambda: o.update(w=X().as_subclass(Tagged)), X())


@cases(eager="tensor-escapes")
def subclass_made_inside(trace):
    return trace(lambda x: (x * 2).as_subclass(Tagged)), [call(X())] * 3


@cases(eager="calls .as_subclass() of a tensor")
def subclass_that_logs(trace):
    Logging.seen.clear()
    w = X().as_subclass(Logging)
    return trace(lambda x: torch.sin(w) * x), [call(X())] * 3, lambda: list(Logging.seen)


@cases(eager="calls .as_subclass() of a tensor")
def subclass_with_a_factor(trace):
    Scaled.factor = 2.0
    w = X().as_subclass(Scaled)
    return trace(lambda x: torch.sin(w) * x), around(lambda: setattr(Scaled, "factor", 3.0), X())


@cases(eager="takes-subclass")
def wrapper_argument(trace):
    fn = trace(lambda x: x * 2)
    use = lambda x: fn(Wrapper(x)).inner  # noqa: E731
    return use, [call(X())] * 3


@cases(eager="_make_wrapper_subclass")
def wrapper_of_state(trace):
    w = Wrapper(X())
    fn = trace(lambda x: w * x)
    return (lambda x: fn(x).inner), [
        call(X()),
        call(X()),
        lambda: setattr(w, "inner", torch.ones(3)),
        call(X()),
    ]


@cases(hits=3)
def parameter_argument(trace):
    fn = trace(lambda x: (x, x * 2, type(x).__name__))
    p = torch.nn.Parameter(X())
    return fn, [call(p), call(p), call(X(grad=True)), call(X(grad=True)), call(p)]


@cases(hits=1)
def parameter_and_buffer_types(trace):
    fn = trace(lambda x: isinstance(x, torch.nn.Parameter))
    return fn, [
        call(torch.nn.Parameter(X())),
        call(torch.nn.Parameter(X())),
        call(torch.nn.Buffer(X())),
        call(X(grad=True)),
    ]


@cases(hits=3)
def sparse_argument(trace):
    fn = trace(lambda s, x: s @ x)
    a = torch.tensor([[0.0, 1.0], [2.0, 0.0]]).to_sparse()
    b = torch.tensor([[3.0, 1.0], [2.0, 4.0]]).to_sparse()
    return fn, [call(a, X(2, 2)), call(a, X(2, 2)), call(b, X(2, 2)), call(b, X(2, 2))]


@cases(hits=3)
def number_of_stored_values(trace):
    fn = trace(lambda s: (s._nnz(), s.values().shape[0]))
    a = torch.tensor([[0.0, 1.0], [2.0, 0.0]]).to_sparse()
    b = torch.tensor([[3.0, 1.0], [2.0, 4.0]]).to_sparse()
    return fn, [call(a), call(a), call(b), call(b), call(a)]


@cases(hits=3)
def uncoalesced(trace):
    fn = trace(lambda s: s.is_coalesced())
    a = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,))
    return fn, [call(a), call(a), call(a.coalesce()), call(a.coalesce()), call(a)]


@cases(hits=2)
def compressed_sparse(trace):
    fn = trace(lambda s, x: (s @ x, s.crow_indices()))
    a = torch.tensor([[0.0, 1.0], [2.0, 0.0]]).to_sparse_csr()
    return fn, [call(a, X(2, 2))] * 3


@cases(hits=2)
def complex_numbers(trace):
    fn = trace(lambda z: (z * 1j, z.conj() @ z, z.real, torch.view_as_real(z), z.abs()))
    return fn, [call(torch.tensor([1 + 2j, 3 - 1j], requires_grad=True))] * 3


@cases(hits=2)
def quantized(trace):
    fn = trace(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize())
    return fn, [call(X())] * 3


@cases(hits=1)
def quantized_argument(trace):
    fn = trace(lambda q: (q.dequantize() * 2, q.q_scale()))
    a, b = (torch.quantize_per_tensor(X(), s, 0, torch.qint8) for s in (0.1, 0.2))
    use = lambda q: fn(q)  # noqa: E731
    return use, [call(0)] and [
        call(a).of(lambda q: fn(q)[1]),
        call(a).of(lambda q: fn(q)[1]),
        call(b).of(lambda q: fn(q)[1]),
    ]


@cases(eager="takes-nested")
def nested(trace):
    fn = trace(lambda n: torch.nested.to_padded_tensor(n, 0.0))
    n = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    return (lambda k: fn(n) * k), [call(1), call(1), call(2)]


@cases(hits=3, recordings=1)
def scripted_callee(trace):
    @torch.jit.script
    def helper(x):
        if x.sum() > 0:
            return x * 2
        return x - 1

    return trace(lambda x: helper(x) + 1), [call(X()), call(X()), call(-X()), call(-X())]


@cases.parametrize
@pytest.mark.filterwarnings("ignore")
def test_subclasses(make, expected):
    check(make, **expected)
