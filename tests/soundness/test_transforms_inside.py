"""Derivatives by torch.func inside a traced function: `vjp`, what is made of it, and what they depend on."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn
from torch._C import _functorch as functorch
from torch._functorch.vmap import vmap_increment_nesting
from torch.autograd import functional
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

from tests.soundness.runner import Cases, X, call, check

cases = Cases()
FIRST = torch.tensor([1])


def curve(x):
    return x.sin() * x + 0.5 * x**2


def total(x):
    return curve(x).sum()


def pull(fn, *primals):
    """The result, and what the function that vjp() gives makes of it."""
    out, back = vjp(fn, *primals)
    return out, back(out * 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.second(self.first(x).tanh())


def other_values_and_sizes(shape, grad=False):
    """Twice other values, then another size."""
    sizes = [shape] * 3 + [(shape[0] + 1, *shape[1:])] * 4
    return [
        call((torch.linspace(-1, 2, torch.Size(s).numel()).reshape(s) * (i + 1)).requires_grad_(grad))
        for i, s in enumerate(sizes)
    ]


OF_A_VECTOR = {
    "vjp": lambda x: pull(curve, x),
    "of one operator": lambda x: vjp(torch.sin, x)[1](torch.ones_like(x)),
    "of what is linear": lambda x: vjp(lambda y: y * 2, x)[1](x),
    "of what gives its argument": lambda x: pull(lambda y: y, x),
    "of what is used nowhere": lambda x: vjp(lambda y: y.detach() * 2, x)[1](x),
    "of a sum": lambda x: vjp(total, x)[1](torch.tensor(2.0)),
    "of an object": lambda x: vjp(lambda d: {"r": curve(d["a"])}, {"a": x})[1]({"r": x}),
    "of a tuple": lambda x: vjp(lambda y: (curve(y), y.cos()), x)[1]((x, x + 1)),
    "of one tensor for two": lambda x: vjp(lambda a, b: a * b.sin(), x, x)[1](x),
    "twice": lambda x: (lambda back: (back(x), back(x + 1)))(vjp(curve, x)[1]),
    "with auxiliary results": lambda x: (lambda out: (out[0], out[1](x), out[2]))(
        vjp(lambda y: (curve(y), {"twice": y * 2}), x, has_aux=True)
    ),
    "without a graph": lambda x: vjp(curve, x)[1](x, create_graph=False),
    "in no_grad": torch.no_grad()(lambda x: pull(lambda y: y * y + y.sin() + y * 3, x)),
    "in inference mode": torch.inference_mode()(lambda x: pull(curve, x)),
    "with no_grad inside": lambda x: pull(torch.no_grad()(curve), x)[0],
    "with a part in no_grad": lambda x: pull(lambda y: y.sin() * torch.no_grad()(curve)(y), x),
    "changed afterwards": lambda x: (lambda y, back: (y.add_(1), back(x)))(*vjp(curve, x.clone())),
    "changed in place": lambda x: pull(lambda y: y.sin().mul_(y).add_(1), x),
    "vmap of the function": lambda x: vmap(vjp(curve, x)[1])(torch.eye(x.shape[0])),
    "of grad": lambda x: vjp(grad(total), x)[1](x),
    "of vjp": lambda x: pull(lambda y: pull(curve, y)[1][0], x),
    "under grad": lambda x: grad(lambda y: pull(curve, y)[1][0].sum())(x),
    "under jvp": lambda x: jvp(lambda y: pull(curve, y)[1][0], (x,), (x + 1,)),
    "grad": lambda x: grad(total)(x),
    "grad and value": lambda x: grad_and_value(total)(x),
    "grad of grad": lambda x: grad(lambda y: grad(total)(y).sum())(x),
    "jvp": lambda x: jvp(curve, (x,), (x + 1,)),
    "jvp of grad": lambda x: jvp(grad(total), (x,), (x + 1,)),
    "jacrev": lambda x: jacrev(curve)(x),
    "jacrev of a tuple": lambda x: jacrev(lambda y: (curve(y), y.sum()))(x),
    "jacrev of two": lambda x: jacrev(lambda a, b: a * b, argnums=(0, 1))(x, x + 1),
    "jacrev of the second": lambda x: jacrev(lambda a, b: a * b, argnums=1)(x, x + 1),
    "jacrev in chunks": lambda x: jacrev(curve, chunk_size=2)(x),
    "jacrev by rows": lambda x: jacrev(curve, chunk_size=1)(x),
    "jacrev with auxiliary results": lambda x: jacrev(lambda y: (curve(y), y * 2), has_aux=True)(x),
    "jacfwd": lambda x: jacfwd(curve)(x),
    "jacfwd of jacfwd": lambda x: jacfwd(jacfwd(total))(x),
    "jacrev of jacrev": lambda x: jacrev(jacrev(total))(x),
    "jacrev of jacfwd": lambda x: jacrev(jacfwd(total))(x),
    "hessian": lambda x: hessian(total)(x),
    "hessian of a loss": lambda x: hessian(lambda y: nn.functional.cross_entropy(y[None], FIRST))(x),
    "hessian of a norm": lambda x: hessian(lambda y: nn.functional.layer_norm(y, y.shape).pow(3).sum())(x),
    "vector times hessian": lambda x: vjp(grad(total), x)[1](x)[0] @ x,
}

OF_ROWS = {
    "vmap": lambda x: vmap(curve)(x),
    "vmap in chunks": lambda x: vmap(curve, chunk_size=2)(x),
    "vmap of grad": lambda x: vmap(grad(total))(x),
    "vmap of vjp": lambda x: vmap(lambda y: pull(curve, y)[1][0])(x),
    "vmap of jacrev": lambda x: vmap(jacrev(curve))(x),
    "vmap of hessian": lambda x: vmap(hessian(total))(x),
    "numbers in vmap": lambda x: vmap(lambda y: (2 * y + 1) / 3 - y**2 + torch.where(y > 0, y, 0.5))(x),
    "numbers of another type": lambda x: vmap(lambda y: y.long() * 2.5 + (y > 0) * 2 + y.double() * 3)(x),
}


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "requires grad"])
@pytest.mark.parametrize("name", OF_A_VECTOR)
def test_of_a_vector(name, grad):
    check(lambda trace: (trace(OF_A_VECTOR[name]), other_values_and_sizes((3,), grad)), hits=3)


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "requires grad"])
@pytest.mark.parametrize("name", OF_ROWS)
def test_of_rows(name, grad):
    check(lambda trace: (trace(OF_ROWS[name]), other_values_and_sizes((4, 3), grad)), hits=3)


# ---------------------------------------------------------------- models and their training
def at(model, x):
    return lambda parameters: functional_call(model, parameters, (x,))


@cases(hits=2)
def pulled_back_to_parameters(trace):
    model = Net()

    def step(x):
        out, back = vjp(at(model, x), dict(model.named_parameters()))
        return out, back(out)[0]

    return trace(step), [call(X(2, 3)) for _ in range(4)], lambda: model


@cases(hits=2)
def jacobian_of_parameters(trace):
    model = Net()
    fn = trace(lambda x: jacrev(at(model, x))(dict(model.named_parameters())))
    return fn, [call(X(2, 3)) for _ in range(4)], lambda: model


@cases(hits=2)
def penalty_on_the_slope(trace):
    """The slope by vjp() belongs to the graph of the parameters, too."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        out, back = vjp(model, x)
        (slope,) = back(torch.ones_like(out))
        loss = out.square().mean() + slope.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return trace(step), [call(X(2, 3)) for _ in range(5)], lambda: model


@cases(hits=2)
def differential_equation(trace):
    """A network that solves one, with the Laplacian by hessian()."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())

    def at_point(parameters, x):
        return functional_call(model, parameters, (x[None],))[0, 0]

    def step(x):
        optimizer.zero_grad()
        parameters = dict(model.named_parameters())
        laplacian = vmap(lambda y: hessian(at_point, argnums=1)(parameters, y).diagonal().sum())(x)
        loss = (laplacian + 0.5 * x[:, 0]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return trace(step), [call(X(4, 3)) for _ in range(6)], lambda: model


@cases(hits=2)
def a_change_behind_a_product_of_vectors(trace):
    """By then the parameters are those that were there: nothing is left behind if an operator raises."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        parameters = dict(model.named_parameters())
        loss = vmap(lambda y: functional_call(model, parameters, (y,)))(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return trace(step), [call(X(4, 3)) for _ in range(5)], lambda: model


@cases(hits=3)
def raises_behind_what_was_put_back(trace):
    state = types.SimpleNamespace(w=torch.ones(3), h=torch.zeros(3))

    def step(x, at):
        before, state.w = state.w, x
        y = state.w * 2
        state.w = before
        state.h.add_(1)
        return y[at]

    ats = [torch.tensor([k]) for k in (0, 0, 1, 7, 2, 7)]
    return trace(step), [call(X(), at) for at in ats], lambda: state


@cases(hits=1)
def a_change_before_a_product_of_vectors(trace):
    """A row becomes a vector in place, and functional_call() puts the parameters back whatever is raised."""
    model = Net()

    def step(x):
        model.zero_grad()
        parameters = dict(model.named_parameters())
        loss = vmap(lambda y: functional_call(model, parameters, (y,)))(x).square().mean()
        loss.backward()
        return loss.detach()

    return trace(step), [call(X(4, 3)) for _ in range(4)], lambda: model


@cases(hits=2)
def adapted_to_tasks(trace):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(parameters, x, y):
        return (functional_call(model, parameters, (x,)) - y).square().mean()

    def step(xs, ys):
        optimizer.zero_grad()
        parameters = dict(model.named_parameters())

        def task(x, y):
            slopes = grad(loss_of)(parameters, x, y)
            return loss_of({k: v - 0.1 * slopes[k] for k, v in parameters.items()}, x, y)

        loss = vmap(task)(xs, ys).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return trace(step), [call(X(2, 4, 3), X(2, 4, 2)) for _ in range(5)], lambda: model


@cases(hits=2)
def models_stacked_inside(trace):
    models = [Net() for _ in range(3)]

    def step(x):
        parameters, buffers = stack_module_state(models)
        return vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(parameters, buffers)

    def change():
        with torch.no_grad():
            models[1].first.weight.mul_(3)

    steps = [call(X(2, 3)) for _ in range(3)]
    return trace(step), [*steps, change, *steps], lambda: [m.state_dict(keep_vars=True) for m in models]


@cases(hits=2)
def kernel_of_two_batches(trace):
    model = Net()
    parameters = {k: v.detach() for k, v in model.named_parameters()}

    def rows(x):
        jacobians = vmap(jacrev(lambda p, y: functional_call(model, p, (y,))), (None, 0))(parameters, x)
        return torch.cat([j.flatten(2) for j in jacobians.values()], 2)

    fn = trace(lambda a, b: torch.einsum("naf,mbf->nmab", rows(a), rows(b)))
    return fn, [call(X(2, 3), X(4, 3)) for _ in range(4)]


@cases(hits=2)
def dropout_that_differs(trace):
    fn = trace(lambda x: vmap(jacrev(lambda y: nn.functional.dropout(y, 0.5) * y), randomness="different")(x))
    return fn, [call(X(4, 3)) for _ in range(4)]


@cases(hits=2)
def dropout_in_vjp(trace):
    return trace(lambda x: pull(lambda y: nn.functional.dropout(y, 0.5) * y, x)), [
        call(X(4)) for _ in range(4)
    ]


@cases(eager="raised")
def dropout_that_is_refused(trace):
    return trace(lambda x: vmap(lambda y: nn.functional.dropout(y, 0.5))(x)), [
        call(X(4, 3)) for _ in range(3)
    ]


# ---------------------------------------------------------------- values, branches and exceptions
@cases(hits=4)
def branch_behind(trace):
    @torch.no_grad()
    def step(x):
        out = vjp(lambda y: y * y + y.sin() + y * 3, x)[1](x)[0]
        return out + 1 if out.sum() > 0 else out - 1

    return trace(step), [call(X() * k) for k in (1, 2, -3, -4, 5, 6, -7)]


@cases(hits=4)
def branch_inside(trace):
    def inner(y):
        return y.sin() if y.sum() > 0 else y.cos() * y

    return trace(lambda x: pull(inner, x)), [call(X() * k) for k in (1, 2, -3, -4, 5, 6, -7)]


@cases(hits=2)
def branch_between(trace):
    def step(x):
        out, back = vjp(curve, x)
        return back(x if out.sum() > 0.5 else -out)

    return trace(step), [call(X() * k) for k in (1, 2, -3, -4, 1, 2, -3)]


@cases(eager="raised")
def raises_inside(trace):
    def step(x):
        try:
            return vjp(lambda y: y @ torch.ones(7), x)[1](x)
        except RuntimeError:
            return x * 2

    return trace(step), [call(X()) for _ in range(3)]


@cases(eager="raised RuntimeError")
def used_up(trace):
    def step(x):
        back = vjp(curve, x)[1]
        return back(x, retain_graph=False), back(x)

    return trace(step), [call(X()) for _ in range(3)]


@cases(eager="raised RuntimeError")
def cotangents_of_another_shape(trace):
    return trace(lambda x: vjp(curve, x)[1](torch.ones(5))), [call(X()) for _ in range(3)]


# ---------------------------------------------------------------- state that changes
@cases(hits=4)
def another_scale(trace):
    state = types.SimpleNamespace(scale=torch.tensor(2.0), power=2)
    fn = trace(lambda x: pull(lambda y: state.scale * y**state.power, x))

    def scale():
        state.scale = torch.tensor(3.0)

    def power():
        state.power = 3

    x = [call(X()) for _ in range(3)]
    return fn, [*x, scale, *x, power, *x]


@cases(hits=3)
def variable_bound_again(trace):
    inner = torch.sin

    def step(x):
        return pull(lambda y: inner(y) * 2, x)

    def change():
        nonlocal inner
        inner = torch.cos

    return trace(step), [call(X()) for _ in range(3)] + [change] + [call(X()) for _ in range(3)]


@cases(hits=3)
def captured_tensor_written(trace):
    """By an operator that comes after what reads it: of a transform, the tensor is not written to."""
    seen = torch.zeros(3)

    def step(x):
        out, back = vjp(lambda y: y * seen, x)
        seen.add_(1)
        return out, back(x)

    return trace(step), [call(X()) for _ in range(5)], lambda: seen


@cases(eager="raised RuntimeError")
def captured_tensor_written_inside(trace):
    seen = torch.zeros(3)

    def inner(y):
        seen.add_(1)
        return y * seen

    return trace(lambda x: pull(inner, x)), [call(X()) for _ in range(3)], lambda: seen


@cases(eager="returns a tensor that no recorded operator made")
def tensors_of_the_transform_kept(trace):
    state = types.SimpleNamespace(kept=None)

    def step(x):
        def inner(y):
            state.kept = y
            return y * 2

        return vjp(inner, x)[0]

    return trace(step), [call(X()) for _ in range(3)]


@cases(hits=2)
def tensors_of_the_transform_used_later(trace):
    """A tensor of a transform that has ended stands for another one."""

    def step(x):
        kept = []

        def inner(y):
            kept.append(y * 3)
            return curve(y)

        out = vjp(inner, x)[0]
        return out + kept[0], torch.cat([kept[0], x]), kept[0].clone().add_(1)

    return trace(step), [call(X()) for _ in range(4)]


def of_an_old_transform(x):
    kept = []
    vjp(lambda y: (kept.append(y), y * 2)[1], x)
    return kept[0]


@pytest.mark.parametrize("inside", [False, True])
def test_a_tensor_of_an_old_transform(inside):
    """What it stands for is an argument of the first calls, and none of the later ones."""

    def make(trace):
        first = X()
        state = types.SimpleNamespace(kept=of_an_old_transform(first))

        def step(x):
            return vjp(lambda y: y * state.kept, x)[0] if inside else x * state.kept

        return trace(step), [call(first)] * 3 + [call(X() + k) for k in range(3)]

    check(make, **({"eager": "uses a tensor of unknown origin"} if inside else {"hits": 3}))


@cases(eager="returns a")
def given_back(trace):
    fn = trace(lambda x: vjp(torch.sin, x)[1])
    return (lambda x: fn(x)(x)), [call(X()) for _ in range(3)]


@pytest.mark.parametrize("batched", [False, True])
def test_a_function_of_before_the_call(batched):
    """Its graph is another one at the next call, and looks the same."""

    def make(trace):
        state = types.SimpleNamespace(back=vjp(lambda y: y * 2, torch.ones(3))[1])

        def change():
            state.back = vjp(lambda y: y * 3, torch.ones(3))[1]

        x = [call(torch.eye(3))] * 3 if batched else [call(X())] * 3
        return trace(lambda x: (vmap(state.back) if batched else state.back)(x)), [*x, change, *x]

    check(make, **({"eager": "graph-of-others"} if batched else {"hits": 4}))


# ---------------------------------------------------------------- plain graphs inside vmap
def rows_of(y, x, basis):
    return vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True, allow_unused=True)[0])(basis)


@cases(hits=2)
def rows_of_a_jacobian(trace):
    return trace(lambda x: rows_of(curve(x), x, torch.eye(3))), [call(X(grad=True)) for _ in range(4)]


@cases(eager="graph-of-others")
def graph_of_before_in_state(trace):
    x = torch.ones(3, requires_grad=True)
    state = types.SimpleNamespace(y=x * 2)
    eye = [call(torch.eye(3))] * 3
    return trace(lambda e: rows_of(state.y, x, e)), [*eye, lambda: setattr(state, "y", x * 3), *eye]


@cases(eager="graph-of-others")
def graph_of_before_in_an_argument(trace):
    x = torch.ones(3, requires_grad=True)
    return trace(lambda y, e: rows_of(y, x, e)), [call(x * k, torch.eye(3)) for k in (2, 2, 3)]


@cases(eager="graph-of-others")
def graph_of_before_behind(trace):
    """The other argument comes to depend on the first."""
    x = torch.full((3,), 2.0, requires_grad=True)
    other = torch.ones(3, requires_grad=True)
    fn = trace(lambda x, b, e: rows_of(b * 2 + x * 3, x, e))
    return fn, [call(x, b, torch.eye(3)) for b in (other * 3, other * 3, x * 4, x * 4)]


@cases(hits=2)
def input_with_a_history(trace):
    """What lies behind the only input is none of the function's business."""
    x = torch.full((3,), 2.0, requires_grad=True)
    fn = trace(lambda y, e: rows_of(curve(y), y, e))
    return fn, [call(y, torch.eye(3)) for y in (x * 3, x * 3, x.sin() * x, x * 4)]


@pytest.mark.parametrize("argument", [False, True])
def test_leaves_that_become_one(argument):
    """Which of them is the input is told by identity."""

    def make(trace):
        state = types.SimpleNamespace(
            w=torch.ones(3, requires_grad=True), x=torch.ones(3, requires_grad=True)
        )

        def step(e, x=None):
            x = state.x if x is None else x
            return rows_of(state.w * 2 + x * 3, x, e)

        def change():
            state.w = state.x

        calls = [call(torch.eye(3), *([state.x] if argument else [])) for _ in range(3)]
        return trace(step), [*calls, change, *calls]

    check(make, hits=3)


@cases(eager="reads .grad_fn of a tensor")
def edges_of_the_graph(trace):
    def step(x, e):
        edge = torch.autograd.graph.get_gradient_edge(curve(x))
        return rows_of(edge, x, e)

    return trace(step), [call(X(grad=True), torch.eye(3)) for _ in range(3)]


# ---------------------------------------------------------------- what runs Python code, or makes graphs
@cases(eager="calls Python code in the backward pass of a transform")
def hooks_inside(trace):
    def inner(y):
        z = y * 2
        z.register_hook(lambda g: g * 3)
        return z.sin()

    return trace(lambda x: pull(inner, x)), [call(X()) for _ in range(3)]


@cases(eager="calls hash()")
def linearized(trace):
    """A graph is made anew at each call."""
    return trace(lambda x: linearize(curve, x)[1](x)), [call(X()) for _ in range(3)]


# ---------------------------------------------------------------- many gradients at once
def batched_grad(y, x, basis, **options):
    return torch.autograd.grad(y, x, basis, is_grads_batched=True, **options)


BATCHED = {
    "rows": lambda x: batched_grad(x.tanh() * x, x, torch.eye(x.shape[0])),
    "of two": lambda x: batched_grad(x.exp() * 2, [x, x], torch.eye(x.shape[0])),
    "of what is used nowhere": lambda x: batched_grad(
        x.sin(), [x, torch.ones(2, requires_grad=True)], torch.eye(x.shape[0]), allow_unused=True
    ),
    "with a graph": lambda x: batched_grad(x.tanh() * x, x, torch.eye(x.shape[0]), create_graph=True),
    "of what is linear": lambda x: batched_grad(x * 2, x, torch.eye(x.shape[0])),
    "used afterwards": lambda x: batched_grad((x * x).sin(), x, torch.eye(x.shape[0]))[0].sum(0) * x,
}


@pytest.mark.parametrize("name", BATCHED)
def test_many_gradients_at_once(name):
    check(lambda trace: (trace(BATCHED[name]), other_values_and_sizes((3,), True)), hits=3)


@cases(hits=4)
def graph_of_before_for_many(trace):
    """A replay runs the engine, on the graph that is there then."""
    x = torch.ones(3, requires_grad=True)
    state = types.SimpleNamespace(y=x * 2)
    fn = trace(lambda e: batched_grad(state.y, x, e, retain_graph=True))
    eye = [call(torch.eye(3))] * 3
    return fn, [*eye, lambda: setattr(state, "y", x * 3), *eye]


@cases(hits=2)
def hooks_for_many(trace):
    def step(x, e):
        y = x * 2
        y.register_hook(lambda g: g * 3)
        return batched_grad(y.sin(), x, e)

    return trace(step), [call(X(grad=True), torch.eye(3)) for _ in range(4)]


@cases(hits=2)
def branch_behind_many(trace):
    def step(x, e):
        (rows,) = batched_grad((x * x).sin(), x, e)
        return rows * 2 if rows.sum() > 0 else rows - 1

    return trace(step), [
        call(X(grad=True).detach().mul(k).requires_grad_(), torch.eye(3)) for k in (1, 1, 3, 3, 1)
    ]


@cases(hits=2)
def literal_inside(trace):
    fn = trace(lambda x: grad(lambda y: (y * torch.tensor([1.0, 2.0, 3.0])).sum())(x))
    return fn, [call(X()) for _ in range(3)]


# ---------------------------------------------------------------- torch.autograd.functional
FUNCTIONAL = {
    "jacobian": lambda x, create: functional.jacobian(curve, x, create_graph=create),
    "hessian": lambda x, create: functional.hessian(total, x, create_graph=create),
    "vjp": lambda x, create: functional.vjp(curve, x, x, create_graph=create),
    "jvp": lambda x, create: functional.jvp(curve, x, x, create_graph=create),
    "hvp": lambda x, create: functional.hvp(total, x, x, create_graph=create),
    "vhp": lambda x, create: functional.vhp(total, x, x, create_graph=create),
    "strict": lambda x, create: functional.vhp(total, x, x, create_graph=create, strict=True),
    "jacobian at once": lambda x, create: functional.jacobian(curve, x, create_graph=create, vectorize=True),
    "hessian at once": lambda x, create: functional.hessian(total, x, create_graph=create, vectorize=True),
    "jacobian of two at once": lambda x, create: functional.jacobian(
        lambda a, b: (a.tanh() * 2, b.exp().sum()), (x, x + 1), create_graph=create, vectorize=True
    ),
}


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional(name, create):
    def make(trace):
        return trace(lambda x: FUNCTIONAL[name](x, create)), other_values_and_sizes((3,), create)

    check(make, hits=3)


@cases(hits=2)
def models_in_other_modes_are_stacked(trace):
    """It raises where not all of them are in training."""
    models = [nn.Linear(3, 2) for _ in range(2)]
    change = lambda: models[0].train(False)  # noqa: E731
    twice = [call(X()), call(X())]
    return trace(lambda x: (x + 1, stack_module_state(models)[0])), [*twice, call(X()), change, *twice]


def mapped(body):
    """As tensordict maps over what its containers hold: dimensions are hidden and shown by C functions."""

    def make(trace):
        weights = nn.Parameter(torch.linspace(-1, 1, 12).reshape(2, 3, 2))

        def function(x):
            with vmap_increment_nesting(2, "error") as level:
                found = body(x, functorch._add_batch_dim(weights, 0, level), level)
                out = functorch._remove_batch_dim(found, level, 2, 0)
            out.sum().backward()
            gradient, weights.grad = weights.grad, None
            return out.detach(), gradient

        def replace():
            weights.data = weights.detach() * 2

        calls = other_values_and_sizes((4, 3))
        return trace(function), [*calls, replace, *calls[-3:]], lambda: weights

    make.__name__ = body.__name__
    cases(make, hits=5)


def a_product(x, weights, level):
    return (x @ weights).tanh()


def what_is_asked_of_a_batched_tensor(x, weights, level):
    assert functorch.is_batchedtensor(weights)
    assert not functorch.is_batchedtensor(x)
    depth = functorch.maybe_get_level(weights) - level + 1
    return x @ weights * (depth + functorch.maybe_get_bdim(weights)) * weights.dim()


def one_that_is_kept_in_a_list(x, weights, level):
    kept = [weights, functorch._add_batch_dim(x.expand(2, *x.shape), 0, level)]
    return kept[1] @ kept[0] + x.sum()


for body in (a_product, what_is_asked_of_a_batched_tensor, one_that_is_kept_in_a_list):
    mapped(body)


@cases.parametrize
def test_transforms_inside(make, expected):
    check(make, **expected)
