"""torch.func and functional_call, around traced functions and inside them."""

from __future__ import annotations

import functools
import types

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

from tests.soundness.runner import Cases, X, call, check

cases = Cases()


def both(name, inner, use, x=X, **expected_inside):
    """A transform around a traced function, and a traced function with the transform inside."""

    def around(trace):
        fn = trace(inner)
        return use(fn), [
            call(x()),
            call(x()),
            call(x()).of(fn),
            call(x()).of(fn),
            call(x() + 1),
            call(x() + 1).of(fn),
        ]

    def inside(trace):
        return trace(lambda x: use(inner)(x)), [
            call(x()),
            call(x()),
            call(x() + 1),
            call(
                x(),
            ),
        ]

    around.__name__, inside.__name__ = f"{name}_around", f"{name}_inside"
    cases(around, hits=2, eager="runs inside another tracer or transform")
    cases(inside, **expected_inside)


def loss(x):
    return (x.sin() * x).sum()


both("vmap", lambda x: x.sin() * 2, vmap, hits=2)
both("vmap_with_a_literal", lambda x: x * torch.tensor(2.0), vmap, hits=2)
both(
    "vmap_nested",
    lambda x: x.sum() * x,
    lambda f: vmap(vmap(f)),
    lambda: X(2, 2, 3),
    hits=2,
)
both(
    "vmap_random",
    lambda x: x + torch.rand(1),
    lambda f: vmap(f, randomness="different"),
    hits=2,
)
both(
    "vmap_chunked",
    lambda x: x * 2,
    lambda f: vmap(f, chunk_size=2),
    hits=2,
)
both("grad", loss, grad, hits=2)
both("grad_of_grad", lambda x: x**3, lambda f: vmap(grad(grad(f))), hits=2)
both("vmap_grad", lambda x: (x**2).sum(), lambda f: vmap(grad(f)), lambda: X(4, 3), hits=2)
both("jacrev", lambda x: x.sin(), jacrev, hits=2)
both("hessian", loss, hessian, hits=2)
both(
    "jvp",
    lambda x: x.sin(),
    lambda f: lambda x: jvp(f, (x,), (torch.ones_like(x),)),
    hits=2,
)
both("vjp", lambda x: x.sin(), lambda f: lambda x: vjp(f, x)[1](torch.ones_like(x)), hits=2)
both(
    "functionalize",
    lambda x: x.clone().add_(1),
    torch.func.functionalize,
    eager="uses a tensor of unknown origin",
)
both("aux", lambda x: (loss(x), x * 2), lambda f: grad(f, has_aux=True), hits=2)


@cases(hits=4)
def functional_call_of_a_traced_module(trace):
    model = torch.nn.Linear(3, 2)
    fn = trace(model)
    other = {k: v.detach() * 2 for k, v in model.named_parameters()}

    def use(x):
        return functional_call(fn, other, (x,))

    return (
        fn,
        [call(X()), call(X()), call(X()).of(use), call(X()).of(use), call(X()), call(X()).of(use)],
        lambda: model,
    )


@cases(hits=4)
def functional_call_inside(trace):
    model = torch.nn.Linear(3, 2)
    fn = trace(lambda params, x: functional_call(model, params, (x,)))
    a = {k: v.detach().clone() for k, v in model.named_parameters()}
    b = {k: v * 2 for k, v in a.items()}
    return fn, [call(a, X()), call(a, X()), call(b, X()), call(b, X()), call(a, X())], lambda: model


@cases(hits=1)
def ensemble(trace):
    models = [torch.nn.Linear(3, 2) for _ in range(2)]
    params, buffers = stack_module_state(models)
    params = {k: v.detach() for k, v in params.items()}
    base = models[0]

    def one(p, b, x):
        return functional_call(base, (p, b), (x,))

    fn = trace(lambda x: vmap(one, in_dims=(0, 0, None))(params, buffers, x))
    return fn, [call(X())] * 3, lambda: base


@cases(hits=1)
def per_sample_gradients(trace):
    model = torch.nn.Linear(3, 1)
    params = {k: v.detach() for k, v in model.named_parameters()}

    def one(p, x):
        return functional_call(model, p, (x,)).sum()

    fn = trace(lambda x: vmap(grad(one), in_dims=(None, 0))(params, x))
    return fn, [call(X(4, 3))] * 3


@cases(hits=1)
def vmap_over_state(trace):
    w = torch.ones(3)
    fn = trace(lambda x: vmap(lambda y: y * w.sum())(x))

    def change():
        w.fill_(3)

    return fn, [call(X()), call(X()), change, call(X()), call(X())]


@cases(hits=2)
def traced_script(trace):
    fn = trace(lambda x: x * 2)

    def use(x):
        return torch.jit.trace(fn, (x,))(x)

    return use, [call(X()), call(X()), call(X()).of(fn), call(X()).of(fn)]


@cases(hits=2)
def exported_graph(trace):
    from torch.fx.experimental.proxy_tensor import make_fx

    fn = trace(lambda x: x * 2 + 1)

    def use(x):
        return make_fx(fn)(x)(x)

    return use, [call(X()).of(fn), call(X()).of(fn), call(X()), call(X()), call(X()).of(fn)]


@cases(hits=2)
def fake_tensors(trace):
    from torch._subclasses.fake_tensor import FakeTensorMode

    fn = trace(lambda x: x * 2)

    def use(x):
        with FakeTensorMode() as mode:
            return tuple(fn(mode.from_tensor(x)).shape)

    return use, [call(X()).of(fn), call(X()).of(fn), call(X()), call(X()), call(X()).of(fn)]


@cases(hits=1)
def meta_tensors(trace):
    fn = trace(lambda x: x @ x.t())
    return fn, [call(torch.empty(2, 3, device="meta"))] * 3 + [call(X(2, 3))] * 2


# ---------------------------------------------------------------- functions that transforms have made
MADE = {
    "vmap": vmap,
    "vmap of vmap": lambda fn: vmap(vmap(fn)),
    "grad": lambda fn: grad(lambda x: fn(x).sum()),
    "vmap of grad": lambda fn: vmap(grad(lambda x: fn(x).sum())),
    "partial of vmap": lambda fn: functools.partial(vmap(fn)),
    "no_grad": lambda fn: torch.no_grad()(fn),
    "list of vmap": lambda fn: [vmap(fn)],
}
ASKED = {
    "jvp": lambda fn, x: jvp(fn, (x,), (x + 1,)),
    "jacfwd": lambda fn, x: jacfwd(fn)(x),
    "grad": lambda fn, x: grad(lambda y: fn(y).sum())(x),
    "vmap": lambda fn, x: vmap(fn)(x.expand(2, *x.shape)),
    "linearize": lambda fn, x: torch.func.linearize(fn, x)[1](x),
    "itself": lambda fn, x: fn(x),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("made", MADE)
def test_another_function_of_the_same_code(made, asked):
    """A transform is handed what another one has made, whose code says nothing of the function in it."""

    def make(trace):
        state = types.SimpleNamespace(fn=MADE[made](torch.sin))

        def run(x):
            return ASKED[asked](state.fn[0] if isinstance(state.fn, list) else state.fn, x)

        def change(to):
            return lambda: setattr(state, "fn", MADE[made](to))

        x = [call(X(2, 3))] * 3
        return trace(run), [*x, change(torch.cos), *x, change(torch.sin), *x, change(torch.tanh), *x]

    # What linearize() gives is a graph that is made anew at each call.
    check(make, **({"eager": "calls"} if asked == "linearize" else {"hits": 4}))


@cases.parametrize
def test_transforms(make, expected):
    check(make, **expected)
