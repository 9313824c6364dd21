"""Gradients: custom Functions, double backward, hooks, checkpoint, saved tensors, backward inside."""

from __future__ import annotations

import torch
from torch.autograd.function import Function, once_differentiable
from torch.utils.checkpoint import checkpoint

from tests.soundness.runner import Cases, X, around, bits, call, check

cases = Cases()


class Cube(Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x**3 * k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 30 * x**2 * ctx.k, None


class Positive(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mask = x > 0
        return x[ctx.mask]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        out = torch.zeros_like(ctx.mask, dtype=g.dtype)
        out[ctx.mask] = g
        return out


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 7


class Separate(Function):
    @staticmethod
    def forward(x):
        return x * 2, x.sum().item()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.s = output[1]

    @staticmethod
    def backward(ctx, g, _):
        return g * ctx.s


def g():
    return X(grad=True)


@cases(hits=2)
def custom_function(trace):
    return trace(lambda x: Cube.apply(x, 2.0) + x), [call(g())] * 3


@cases(hits=2)
def custom_function_with_state(trace):
    o = {"k": 2.0}
    return trace(lambda x: Cube.apply(x, o["k"]) + x), around(lambda: o.update(k=3.0), g())


@cases(hits=2)
def custom_function_backward_replaced(trace):
    class Mine(Cube):
        pass

    change = lambda: setattr(Mine, "backward", staticmethod(lambda ctx, g: (g * 99, None)))  # noqa: E731
    return trace(lambda x: Mine.apply(x, 1.0)), around(change, g())


@cases(hits=3)
def custom_function_of_other_shapes(trace):
    fn = trace(lambda x: Positive.apply(x) * 2)
    return fn, [call(g()), call(g()), call((-X()).requires_grad_()), call((-X()).requires_grad_()), call(g())]


@cases(hits=2)
def custom_function_then_more(trace):
    fn = trace(lambda x: Positive.apply(x * 2).sum() + x.sum())
    return fn, [call(g()), call(g()), call((-X()).requires_grad_()), call(g())]


@cases(hits=2)
def custom_function_in_place(trace):
    fn = trace(lambda x: InPlace.apply(x * 1) + 1)
    return fn, [call(g())] * 3


@cases(hits=2)
def custom_function_with_a_number(trace):
    fn = trace(lambda x: Separate.apply(x)[0])
    return fn, [call(g()), call(g()), call((X() + 1).requires_grad_()), call(g())]


@cases(hits=2)
def custom_function_that_returns_its_input(trace):
    class Same(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 5

    return trace(lambda x: Same.apply(x)), [call(g())] * 3


@cases(hits=2)
def custom_function_with_side_effects(trace):
    seen = []

    class Noisy(Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(x.sum().item())
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g

    return trace(lambda x: Noisy.apply(x) + 1), [call(g())] * 3, lambda: list(seen)


@cases(hits=3)
def custom_function_reads_state(trace):
    o = {"k": 2.0}

    class Scaled(Function):
        @staticmethod
        def forward(ctx, x):
            return x * o["k"]

        @staticmethod
        def backward(ctx, g):
            return g

    return trace(lambda x: Scaled.apply(x) + 1), around(lambda: o.update(k=3.0), g())


@cases(hits=3)
def custom_function_gets_an_object(trace):
    class Box:
        k = 2.0

    o = Box()

    class Scaled(Function):
        @staticmethod
        def forward(ctx, x, o):
            return x * o.k

        @staticmethod
        def backward(ctx, g):
            return g, None

    return trace(lambda x: Scaled.apply(x, o)), around(lambda: setattr(o, "k", 3.0), g())


def second(fn):
    def use(x):
        y = fn(x).sum()
        (d,) = torch.autograd.grad(y, x, create_graph=True)
        (dd,) = torch.autograd.grad(d.sum(), x)
        return d, dd

    return use


@cases(hits=2)
def double_backward(trace):
    fn = second(trace(lambda x: x.tanh() * x))
    return fn, [call(g())] * 3


@cases(hits=2)
def double_backward_of_a_custom_function(trace):
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0]

    fn = second(trace(lambda x: Square.apply(x) * x))
    return fn, [call(g())] * 3


# Could be a hit: the engine copies the context of the thread, which nothing here reads.
@cases(hits=2)
def gradient_inside(trace):
    def fn(x):
        y = (x**3).sum()
        (d,) = torch.autograd.grad(y, x, create_graph=True)
        return d * 2

    return trace(fn), [call(g()), call(g()), call((X() + 1).requires_grad_())]


@cases(hits=1)
def backward_inside(trace):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        loss = (x * w).sum()
        loss.backward()
        return loss.detach()

    return trace(fn), [call(X())] * 3, lambda: (w, w.grad)


# Could be a hit: optimizers are wrapped by a decorator that keeps dynamo out.
@cases(hits=2)
def training_step_inside(trace):
    model = torch.nn.Linear(3, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def fn(x):
        opt.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        opt.step()
        return loss.detach()

    return trace(fn), [call(X())] * 4, lambda: [p.detach().clone() for p in model.parameters()]


@cases(hits=3)
def training_step_outside(trace):
    model = torch.nn.Linear(3, 1)
    opt = torch.optim.Adam(model.parameters(), lr=0.1)
    forward = trace(lambda x: model(x).pow(2).sum())

    def fn(x):
        opt.zero_grad()
        loss = forward(x)
        loss.backward()
        opt.step()
        return loss.detach()

    return fn, [call(X())] * 4, lambda: [p.detach().clone() for p in model.parameters()]


@cases(hits=2)
def hook_registered_inside(trace):
    seen = []

    def fn(x):
        y = x * 2
        y.register_hook(lambda grad: seen.append(grad.sum().item()))
        return y * 3

    return trace(fn), [call(g())] * 3, lambda: list(seen)


@cases(hits=2)
def hook_that_scales(trace):
    def fn(x):
        y = x * 2
        y.register_hook(lambda grad: grad * 10)
        return y * 3

    return trace(fn), [call(g())] * 3


@cases(hits=2)
def retained_gradient(trace):
    kept = []

    def fn(x):
        y = x * 2
        y.retain_grad()
        kept.append(y)
        return y.sum()

    traced = trace(fn)

    def use(x):
        traced(x).backward()
        return [k.grad for k in kept]

    return use, [call(g())] * 3


@cases(hits=2)
def checkpoint_reentrant(trace):
    w = torch.ones(3, requires_grad=True)
    fn = trace(lambda x: checkpoint(lambda y: (y * w).tanh(), x, use_reentrant=True) * 2)

    def use(x):
        out = fn(x).sum()
        out.backward()
        return out.detach(), bits(w.grad)

    return use, [call(g())] * 3


@cases(hits=2)
def checkpoint_not_reentrant(trace):
    w = torch.ones(3, requires_grad=True)
    fn = trace(lambda x: checkpoint(lambda y: (y * w).tanh(), x, use_reentrant=False) * 2)
    return fn, [call(g())] * 3, lambda: w


@cases(hits=7)
def checkpoint_in_a_step_that_clears_gradients_last(trace):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5)

    def step(x):
        loss = checkpoint(net, x, use_reentrant=False).square().sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    def leave_one():
        net[0].bias.grad = torch.ones(3)

    calls = [call(X(2, 3)) for _ in range(6)]
    return trace(step), [*calls, leave_one, *calls], lambda: (list(net.parameters()), net[0].bias.grad)


@cases(hits=3)
def checkpoint_around(trace):
    w = torch.ones(3, requires_grad=True)
    inner = trace(lambda y: (y * w).tanh().dropout(0.5, True) if hasattr(y, "dropout") else (y * w).tanh())
    return (lambda x: checkpoint(inner, x, use_reentrant=False) * 2), [call(g())] * 4, lambda: w


@cases(hits=3)
def checkpoint_around_with_dropout(trace):
    w = torch.ones(3, requires_grad=True)
    inner = trace(lambda y: torch.nn.functional.dropout(y * w, 0.5))
    return (lambda x: checkpoint(inner, x, use_reentrant=False) * 2), [call(g())] * 4, lambda: w


@cases(eager="calls-unseen-function")
def saved_tensor_hooks_inside(trace):
    def fn(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
            y = x * x
        return y

    return trace(fn), [call(g())] * 3


@cases(eager="saved-hooks")
def saved_tensor_hooks_around(trace):
    packed = []
    fn = trace(lambda x: x * x)

    def use(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t * 2, lambda t: t):
            return fn(x)

    return use, [call(g())] * 3, lambda: list(packed)


@cases(hits=2, eager="saved-hooks")
def saved_tensor_hooks_alternating(trace):
    fn = trace(lambda x: x * x)

    def use(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
            return fn(x)

    return fn, [call(g()), call(g()), call(g()).of(use), call(g()), call(g()).of(use)]


@cases(eager="calls-unseen-function")
def save_on_cpu_inside(trace):
    def fn(x):
        with torch.autograd.graph.save_on_cpu():
            y = x * x
        return y * 2

    return trace(fn), [call(g())] * 3


@cases(hits=3)
def accumulated_gradients(trace):
    w = torch.ones(3, requires_grad=True)
    fn = trace(lambda x: (x * w).sum())

    def use(x):
        fn(x).backward()
        return w.grad.clone()

    return use, [call(X())] * 4, lambda: w


@cases(hits=2)
def backward_twice(trace):
    fn = trace(lambda x: (x * x).sum())

    def use(x):
        y = fn(x)
        y.backward()
        y.backward()

    return use, [call(g())] * 3


@cases(hits=2)
def post_accumulate_hook(trace):
    seen = []
    w = torch.ones(3, requires_grad=True)
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
    fn = trace(lambda x: (x * w).sum())

    def use(x):
        fn(x).backward()

    return use, [call(X())] * 3, lambda: list(seen)


@cases(hits=3)
def hook_on_a_parameter_added_later(trace):
    w = torch.ones(3, requires_grad=True)
    return trace(lambda x: x * w), around(lambda: w.register_hook(lambda grad: grad * 10), X()), lambda: w


@cases(hits=2)
def detached_parts(trace):
    def fn(x):
        y = x * 2
        z = y.detach()
        return y * z, z.requires_grad_() if False else z

    return trace(fn), [call(g())] * 3


@cases(hits=2)
def graph_kept_between_calls(trace):
    state = {"h": torch.zeros(3)}
    cell = trace(lambda x, h: torch.tanh(x + h))

    def use(x):
        state["h"] = cell(x, state["h"])
        return state["h"]

    return use, [call(g())] * 4


@cases(eager="sets [-1] of a list")
def forward_mode(trace):
    fn = trace(lambda x: x.sin() * 2)

    def use(x):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones(3))
            return torch.autograd.forward_ad.unpack_dual(fn(dual)).tangent

    return use, [
        call(X()),
        call(X()),
        call(X()).of(lambda x: fn(x)),
        call(X()).of(lambda x: fn(x)),
        call(X()),
    ]


@cases(eager="forward-mode")
def forward_mode_inside(trace):
    def fn(x):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones(3))
            return torch.autograd.forward_ad.unpack_dual(dual.sin()).tangent

    return trace(fn), [call(X())] * 3


@cases(hits=2)
def gradient_of_captured_only(trace):
    w = torch.ones(3, requires_grad=True)
    return trace(lambda: w * 2), [call()] * 3, lambda: w


@cases.parametrize
def test_autograd(make, expected):
    check(make, **expected)
