"""Custom functions of autograd in flat steps: their Python is not run, as long as it is what it was."""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import math
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from lazytrace import pure
from tests.soundness.runner import Cases, call, check
from tests.soundness.test_autograd import InPlace
from tests.soundness.test_flat_steps import ENOUGH, flat, forms_of

cases = Cases()
HERE = sys.modules[__name__]
SCALE = 0.5
LEVELS: object = 16


# ---------------------------------------------------------------- functions
def levels(x, n):
    return torch.round(x * n) / n


class Sign(Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0).float()

    @staticmethod
    def backward(ctx, g):
        return g


class Levels(Function):
    @staticmethod
    def forward(ctx, x):
        return levels(x, LEVELS)

    @staticmethod
    def backward(ctx, g):
        return g * SCALE


class Reversed(Function):
    @staticmethod
    def forward(ctx, x, strength=0.3):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.neg() * ctx.strength, None


class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s * (1 + x * (1 - s)))


class Rectified(Function):
    """Writes to memory that it has made."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        mine = g.clone()
        mine[x < 0] = 0
        mine *= 2
        return mine.add_(1)


class Affine(Function):
    """Hangs on what requires gradients."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        out = x.mm(weight.t())
        if bias is not None:
            out += bias.unsqueeze(0).expand_as(out)
        return out

    @staticmethod
    def backward(ctx, g):
        x, weight, bias = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = g.mm(weight)
        if ctx.needs_input_grad[1]:
            of_weight = g.t().mm(x)
        if bias is not None and ctx.needs_input_grad[2]:
            of_bias = g.sum(0)
        return of_x, of_weight, of_bias


class Spike(Function):
    @staticmethod
    def forward(ctx, v, slope):
        if v.requires_grad:
            ctx.save_for_backward(v)
            ctx.slope = slope
        return (v >= 0).to(v)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        grad = None
        if ctx.needs_input_grad[0]:
            grad = ctx.slope / 2 / (1 + (math.pi / 2 * ctx.slope * ctx.saved_tensors[0]).pow(2)) * g
        return grad, None


class Apart(Function):
    """Two results, of which one may get no gradient."""

    @staticmethod
    def forward(x, y):
        return x * y, x + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y = inputs
        ctx.save_for_backward(x, y)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        of_x = of_y = None
        if g is not None:
            of_x, of_y = g * y, g * x
        if h is not None:
            of_x = h if of_x is None else of_x + h
            of_y = h if of_y is None else of_y + h
        return of_x, of_y


class Drawn(Function):
    @staticmethod
    def forward(ctx, x):
        p = torch.sigmoid(x)
        ctx.save_for_backward(p)
        return torch.bernoulli(p)

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return g * p * (1 - p) + torch.rand_like(p)


class Looks(Function):
    """Looks at values on both ways."""

    @staticmethod
    def forward(ctx, x):
        if x.abs().max() > 0.9:
            return x * SCALE
        return x * 1.0

    @staticmethod
    def backward(ctx, g):
        size = g.pow(2).sum().sqrt()
        if size > 0.6:
            g = g * (0.6 / size.item())
        return g


class Complains(Function):
    @staticmethod
    def forward(ctx, x):
        if x.abs().max() > 0.93:
            raise ValueError("forward")
        return x * 2

    @staticmethod
    def backward(ctx, g):
        if g.abs().max() > 0.6:
            raise ValueError("backward")
        return g * 2


class Marks(Function):
    @staticmethod
    def forward(ctx, x):
        value, place = x.max(1)
        ctx.mark_non_differentiable(place)
        ctx.save_for_backward(place)
        ctx.width = x.shape[1]
        return value, place

    @staticmethod
    def backward(ctx, g, _):
        (place,) = ctx.saved_tensors
        wide = torch.arange(ctx.width).expand(g.shape[0], ctx.width)
        return (wide == place.unsqueeze(1)) * g.unsqueeze(1)


class Gated(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.nn.functional.gelu(x, approximate="tanh")

    @staticmethod
    def backward(ctx, g):
        return g * torch.nn.functional.softplus(ctx.saved_tensors[0])


class Lengths(Function):
    @staticmethod
    def forward(ctx, x):
        return x * len(x)

    @staticmethod
    def backward(ctx, g):
        return abs(g) / len(g)


class Masked(Function):
    """Asks for the limits of a dtype, and says how ONNX is to show it."""

    @staticmethod
    def forward(ctx, x, mask, dim):
        ctx.dim = dim
        hidden = ~(mask.to(torch.bool))
        output = x.masked_fill(hidden, torch.tensor(torch.finfo(x.dtype).min))
        output = torch.softmax(output, ctx.dim)
        output.masked_fill_(hidden, 0)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx, g):
        (output,) = ctx.saved_tensors
        return torch._softmax_backward_data(g, output, ctx.dim, output.dtype), None, None

    @staticmethod
    def symbolic(g, x, mask, dim):
        import torch.onnx.symbolic_helper as helper

        return g.op("Softmax", x, axis_i=helper.cast_pytorch_to_onnx[dim])


class Inherits(Levels):
    pass


class Sparse(Function):
    """With methods of its own, as those that project to the simplex have."""

    @staticmethod
    def forward(ctx, x, dim=-1):
        ctx.dim = dim
        top, _ = x.max(dim=dim, keepdim=True)
        x = x - top
        tau, size = Sparse._threshold(x, dim=dim)
        output = torch.clamp(x - tau, min=0)
        ctx.save_for_backward(size, output)
        return output

    @staticmethod
    def backward(ctx, g):
        size, output = ctx.saved_tensors
        mine = g.clone()
        mine[output == 0] = 0
        mean = mine.sum(dim=ctx.dim) / size.to(output.dtype).squeeze(ctx.dim)
        return torch.where(output != 0, mine - mean.unsqueeze(ctx.dim), mine), None

    @staticmethod
    def _threshold(x, dim=-1):
        ordered, _ = torch.sort(x, descending=True, dim=dim)
        total = ordered.cumsum(dim) - 1
        places = torch.arange(1, x.size(dim) + 1, dtype=x.dtype)
        size = (places * ordered > total).sum(dim=dim).unsqueeze(dim)
        tau = total.gather(dim, size - 1)
        tau /= size.to(x.dtype)
        return tau, size


class Harmonics(Function):
    """Goes round as often as a number says, and stops before."""

    @staticmethod
    def forward(ctx, x, count):
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(x)
            ctx.count = count
        out = torch.zeros_like(x)
        for i, scale in zip(range(count), reversed((0.5, 0.25, 0.125)), strict=False):
            if i > 1:
                break
            out += (x * i).sin().mul_(scale).exp_()
        return out

    @staticmethod
    def backward(ctx, g):
        if not ctx.count:
            raise NotImplementedError("no harmonics")
        (x,) = ctx.saved_tensors
        out = torch.zeros_like(g)
        for i in range(ctx.count):
            if i == 1:
                continue
            out = out + torch.cos(x * i) * i
        return out * g, None


class Stepped(Function):
    """Makes tensors of constants, and calls torch's Python around operators."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.heaviside(x, torch.as_tensor(0.0).to(x.dtype)) + torch.tensor(0.5)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        ridge = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return g * F.softmax(F.pad(x, (1, 1)), dim=-1)[:, 1:-1] / ridge.type(x.dtype)


class Rows(Function):
    """Goes round the rows of a tensor, and calls what tensors have in Python."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        out = torch.zeros_like(x)
        for i, row in enumerate(reversed(x)):
            out += row * i
        for row in x:
            out += row / len(x)
        return out + 2 / (x.abs() + 1) + F.layer_norm(x, (6,)) + abs(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * F.softsign(x.float()) + F.pad(5 // (x.abs() + 1), (1, 1))[:, 1:-1] * round(math.fabs(-2))


FUNCTIONS = {
    "rows": lambda h, w: Rows.apply(h),
    "loops": lambda h, w: Loops.apply(h),
    "sparse": lambda h, w: Sparse.apply(h),
    "harmonics": lambda h, w: Harmonics.apply(h, 3),
    "stepped": lambda h, w: Stepped.apply(h),
    "sign": lambda h, w: Sign.apply(h),
    "levels": lambda h, w: Levels.apply(h),
    "reversed": lambda h, w: Reversed.apply(h, 0.3),
    "default": lambda h, w: Reversed.apply(h),
    "swish": lambda h, w: Swish.apply(h),
    "rectified": lambda h, w: Rectified.apply(h),
    "affine": lambda h, w: Affine.apply(h, w.weight, w.bias),
    "affine without bias": lambda h, w: Affine.apply(h, w.weight),
    "of a constant": lambda h, w: h * Affine.apply(torch.ones(1, 6), w.weight, None),
    "spike": lambda h, w: Spike.apply(h, 2.0),
    "apart": lambda h, w: sum(Apart.apply(h, h * 2)),
    "one of two": lambda h, w: Apart.apply(h, h * 2)[1],
    "beta": lambda h, w: torch.distributions.Beta(h.exp(), w(h).exp()).rsample(),
    "dirichlet": lambda h, w: torch.distributions.Dirichlet(h.exp()).rsample(),
    "drawn": lambda h, w: Drawn.apply(h),
    "marks": lambda h, w: h * Marks.apply(h)[0][:, None],
    "gated": lambda h, w: Gated.apply(h),
    "lengths": lambda h, w: Lengths.apply(h),
    "masked": lambda h, w: Masked.apply(h, (h > -0.2).int(), -1),
    "inherits": lambda h, w: Inherits.apply(h),
    "twice": lambda h, w: Swish.apply(Levels.apply(Swish.apply(h))),
    "without gradients": lambda h, w: h * Levels.apply(h.detach()),
}
# What is flat, too, but stops where a value differs.
LOOKING = {"looks": lambda h, w: Looks.apply(h), "complains": lambda h, w: Complains.apply(h)}


def trained(way, between=(), count=ENOUGH, seen=None, optimizer=None, after=ENOUGH):
    """A case: a training step through `way(hidden, layer)`; `between`: what changes once it is flat."""

    def make(trace):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 2))
        opt = optimizer(net) if optimizer else torch.optim.Adam(net.parameters(), lr=0.02)

        def step(x):
            opt.zero_grad()
            hidden = net[0](x).tanh()
            loss = net[2](way(hidden, net[1]) + 0.1 * hidden).square().mean()
            loss.backward()
            opt.step()
            return loss.detach()

        traced = trace(step)

        def note():
            if seen is not None and hasattr(traced, "stats"):
                seen.extend(forms_of(traced))

        steps = [call(torch.randn(3, 4)) for _ in range(count)] + [note]
        for change in between:
            steps += [change, *(call(torch.randn(3, 4)) for _ in range(after))]
        return traced, steps, lambda: [list(net.parameters()), [p.grad for p in net.parameters()]]

    return make


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function(name):
    seen = []
    check(trained(FUNCTIONS[name], seen=seen, count=ENOUGH + 6), hits=ENOUGH + 4)
    flat(seen)


def evaluated(way, between=(), count=ENOUGH, seen=None, after=ENOUGH, mode=torch.no_grad):
    """A case: a call that builds no graph, which draws and writes statistics around `way(hidden, layer)`."""

    def make(trace):
        torch.manual_seed(1)
        parts = (torch.nn.Linear(4, 6), torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.3))
        net = torch.nn.Sequential(*parts)
        if mode is frozen:
            net.requires_grad_(False)

        def step(x):
            hidden = net[0](x).tanh()
            return net[3](net[2](way(hidden, net[1]) + 0.1 * hidden)), hidden

        traced = trace(step)

        def in_mode(x):
            with mode():
                return traced(x)

        def note():
            if seen is not None and hasattr(traced, "stats"):
                seen.extend(forms_of(traced))

        steps = [call(torch.randn(3, 4)) for _ in range(count)] + [note]
        for change in between:
            steps += [change, *(call(torch.randn(3, 4)) for _ in range(after))]
        return in_mode, steps, lambda: list(net.buffers())

    return make


def frozen():
    """No parameter requires a gradient; the mode is as it is."""
    return contextlib.nullcontext()


@pytest.mark.parametrize("mode", [torch.no_grad, frozen], ids=lambda mode: mode.__name__)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_without_a_graph(name, mode):
    seen = []
    check(evaluated(FUNCTIONS[name], seen=seen, mode=mode), hits=ENOUGH - 2)
    flat(seen)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_in_inference_mode(name):
    """Kernels are not seen there: its code is called."""
    seen = []
    check(evaluated(FUNCTIONS[name], seen=seen, mode=torch.inference_mode), hits=ENOUGH - 2)
    assert seen
    assert "flat" not in seen


@pytest.mark.parametrize("name", LOOKING)
def test_a_function_that_looks_at_values(name):
    seen = []

    def quiet(h, w):
        try:
            return LOOKING[name](h, w)
        except ValueError:
            return h

    check(trained(LOOKING["looks"] if name == "looks" else quiet, seen=seen, count=40), hits=10)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_it_is_made_of(name):
    function = FUNCTIONS[name].__code__.co_names[0]
    if isinstance(cls := getattr(HERE, function, None), type):
        assert pure.reads_of(cls)


# ---------------------------------------------------------------- what changes
def put(owner, name, value):
    """A change, and what takes it back."""
    had = name in vars(owner) or isinstance(owner, types.FunctionType)
    before = getattr(owner, name) if isinstance(owner, types.FunctionType) else vars(owner).get(name)

    def change():
        setattr(owner, name, value)

    def back():
        if had:
            setattr(owner, name, before)
        elif name in vars(owner):
            delattr(owner, name)

    return change, back


def halves(x, n):
    return levels_before(x, n) / 2


levels_before = levels


def swapped_code(function, other):
    return put(function, "__code__", other.__code__)


def twice(ctx, g):
    return g * 2


def reversed_twice(ctx, g):
    return g * 2, None


def of_half(ctx, x):
    ctx.save_for_backward(x)
    return x / 2


def once_of(function):
    """The function inside `once_differentiable`, exchanged in its cell."""
    wrapper = vars(Spike)["backward"].__func__
    cell = wrapper.__closure__[wrapper.__code__.co_freevars.index("fn")]
    before = cell.cell_contents

    def change():
        cell.cell_contents = function

    def back():
        cell.cell_contents = before

    return change, back


def default_of_double():
    return lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)


def half_threshold(x, dim=-1):
    return x.mean(dim, keepdim=True) / 2, torch.ones(1, dtype=torch.int64)


class HalfSparse:
    """Stands for a function, under its name."""

    _threshold = staticmethod(half_threshold)


def padded_with_ones(input, pad, mode="constant", value=None):
    return torch._C._nn.pad(input, pad, mode, 1.0)


def padded_with_twos(input, pad, mode, value):
    return torch.constant_pad_nd(input, pad, 2.0) * 2


def first_halved(x, *others):
    return x / 2


class Limits:
    """Stands for what `torch.finfo` gives."""

    min = -1.0


ABS = builtins.abs
SIGMOID = torch.sigmoid
CLAMP = torch.Tensor.clamp
MUL = torch.Tensor.__mul__
TENSOR = torch.tensor
CHANGES = {
    "a global of the forward": ("levels", lambda: put(HERE, "LEVELS", 4)),
    "its type": ("levels", lambda: put(HERE, "LEVELS", 16.0)),
    "a tensor for it": ("levels", lambda: put(HERE, "LEVELS", torch.tensor(3.0))),
    "a global of the backward": ("levels", lambda: put(HERE, "SCALE", 0.25)),
    "a helper": ("levels", lambda: put(HERE, "levels", halves)),
    "the code of a helper": ("levels", lambda: swapped_code(levels, halves)),
    "a backward": ("sign", lambda: put(Sign, "backward", staticmethod(twice))),
    "a forward": ("swish", lambda: put(Swish, "forward", staticmethod(of_half))),
    "an inherited backward": ("inherits", lambda: put(Levels, "backward", staticmethod(twice))),
    "a backward that hides it": ("inherits", lambda: put(Inherits, "backward", staticmethod(twice))),
    "the code of a backward": ("sign", lambda: swapped_code(vars(Sign)["backward"].__func__, twice)),
    "a vjp": ("sign", lambda: put(Sign, "vjp", staticmethod(twice))),
    "an apply": ("sign", lambda: put(Sign, "apply", lambda x: x * 3)),
    "a default": ("default", lambda: put(vars(Reversed)["forward"].__func__, "__defaults__", (0.7,))),
    "inside a decorator": ("spike", lambda: once_of(reversed_twice)),
    "a function of torch": ("swish", lambda: put(torch, "sigmoid", lambda x: SIGMOID(x) * 2)),
    "a function of a module in a module": (
        "gated",
        lambda: put(F, "softplus", torch.exp),
    ),
    "a constant of math": ("spike", lambda: put(math, "pi", 3.0)),
    "a method of tensors": (
        "rectified",
        lambda: put(torch.Tensor, "clamp", lambda x, min: CLAMP(x, min=min) * 2),
    ),
    "an operator of tensors": ("levels", lambda: put(torch.Tensor, "__mul__", lambda x, y: MUL(x, y) * 2)),
    "a global that hides torch": ("swish", lambda: put(HERE, "torch", HERE.Stub)),
    "saved tensors are let go of": ("swish", lambda: put(Swish, "clear_saved_tensors_on_access", True)),
    "another node class": ("sign", lambda: put(Sign, "_backward_cls", vars(Levels)["_backward_cls"])),
    "the limits of dtypes": ("masked", lambda: put(torch, "finfo", lambda dtype: Limits)),
    "what makes tensors of them": ("masked", lambda: put(torch, "tensor", lambda value: TENSOR(-1.0))),
    "the default dtype": ("masked", default_of_double),
    "a builtin that is hidden": ("lengths", lambda: put(HERE, "len", lambda x: 7)),
    "a method of its own": ("sparse", lambda: put(Sparse, "_threshold", staticmethod(half_threshold))),
    "the code of that": ("sparse", lambda: swapped_code(vars(Sparse)["_threshold"].__func__, half_threshold)),
    "a global that hides its class": ("sparse", lambda: put(HERE, "Sparse", HalfSparse)),
    "a builtin that goes round": ("harmonics", lambda: put(HERE, "reversed", iter)),
    "torch's Python around an operator": ("stepped", lambda: put(F, "softmax", F.softmin)),
    "the code of that Python": ("stepped", lambda: swapped_code(F.pad, padded_with_ones)),
    "a function of torch.linalg": ("stepped", lambda: put(torch.linalg, "vector_norm", torch.sum)),
    "what makes tensors of constants": (
        "stepped",
        lambda: put(torch, "as_tensor", lambda value: TENSOR(1.0)),
    ),
    "a method that rows are found by": (
        "rows",
        lambda: put(torch.Tensor, "unbind", lambda x, dim: (x[0] * 2,)),
    ),
    "one that they are turned round by": ("rows", lambda: put(torch.Tensor, "flip", lambda x, dim: x * 3)),
    "a special method in Python": (
        "rows",
        lambda: put(torch.Tensor, "__reversed__", lambda x: iter((x[0],))),
    ),
    "a method that it calls": ("rows", lambda: put(torch.Tensor, "reciprocal", torch.Tensor.neg)),
    "a function that it calls": ("rows", lambda: put(torch, "floor_divide", torch.sub)),
    "a function that torch's Python calls": ("rows", lambda: put(torch, "layer_norm", first_halved)),
    "a binding that it calls": ("rows", lambda: put(torch._C._nn, "pad", padded_with_twos)),
    "a builtin": ("lengths", lambda: put(builtins, "abs", lambda x: ABS(x) + 1)),
}


class Stub:
    """Stands for torch."""

    sigmoid = staticmethod(torch.tanh)


def check_change(name, case):
    """A change between calls of `case`, `trained` or `evaluated`, once it is flat."""
    way, of = CHANGES[name]
    change, back = of()
    seen = []

    def make(trace):
        return case(FUNCTIONS[way], between=[change, back], seen=seen)(trace)

    try:
        check(make, hits=ENOUGH - 2)
    finally:
        back()
    flat(seen)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change(name):
    check_change(name, trained)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_without_a_graph(name):
    check_change(name, evaluated)


class Context:
    """What a call makes and leaves in state."""


@cases(hits=4)
def after_what_python_code_would_have_to_be_shown(trace):
    holder = Context()
    weight = torch.ones(6, requires_grad=True)

    def forward(x):
        holder.context = Context()
        return Masked.apply(x * weight, (x > 0).int(), -1)

    return trace(forward), [call(torch.randn(3, 6)) for _ in range(5)]


# ---------------------------------------------------------------- what is none
class Passes(Function):
    """Hands gradients on."""

    @staticmethod
    def backward(ctx, g):
        return g


class Shown(Passes):
    @staticmethod
    def forward(ctx, x):
        return x * 2


PLACES: list[object] = []


def counted(x):
    PLACES.append(1.0)
    return x


class Prints(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        print("backward")
        return g


class Counts(Passes):
    @staticmethod
    def forward(ctx, x):
        return counted(x) * 1


class WritesToSaved(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * 2

    @staticmethod
    def backward(ctx, g):
        mine = ctx.x
        mine += 1
        return g * mine


class WritesToGradient(Shown):
    @staticmethod
    def backward(ctx, g):
        g *= 2
        return g


class WritesThroughView(Shown):
    @staticmethod
    def backward(ctx, g):
        mine = g.view(-1)
        mine[0] = 3
        return g


class WritesSometimes(Shown):
    """What it writes to may be its own."""

    @staticmethod
    def backward(ctx, g):
        mine = g
        if g.shape[0] == 2:
            mine = g.clone()
        mine[0] = 3
        return mine


class WritesOut(Passes):
    @staticmethod
    def forward(ctx, x):
        return torch.mul(x, 2, out=x.detach())


class Lists(Passes):
    @staticmethod
    def forward(ctx, x):
        return x * len(x.tolist())


class Hooks(Passes):
    @staticmethod
    def forward(ctx, x):
        x.register_hook(lambda g: g * 2)
        return x * 2


class KeepsContext(Passes):
    @staticmethod
    def forward(ctx, x):
        PLACES.append(ctx)
        return x * 2


class Loops(Function):
    @staticmethod
    def forward(ctx, x):
        for _ in range(3):
            x = x * 2
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 8


class LoopsUntil(Passes):
    @staticmethod
    def forward(ctx, x):
        while x.norm() > 1:
            x = x * 0.5
        return x


class LoopsOverState(Passes):
    @staticmethod
    def forward(ctx, x):
        for scale in PLACES:
            x = x * scale
        return x


class WritesInLoop(Shown):
    """What it writes to is its own from the second time round on."""

    @staticmethod
    def backward(ctx, g):
        mine = g
        for _ in range(2):
            mine *= 2
            mine = mine.clone()
        return mine


class CallsOwnMethod(Passes):
    @staticmethod
    def forward(ctx, x):
        return CallsOwnMethod._count(x)

    @staticmethod
    def _count(x):
        PLACES.append(1.0)
        return x * 2


class KeepsClass(Passes):
    @staticmethod
    def forward(ctx, x):
        return x * len([KeepsClass])


class ReadsOwnClass(Passes):
    @staticmethod
    def forward(ctx, x):
        return x * len(ReadsOwnClass.__name__)


class Tries(Passes):
    @staticmethod
    def forward(ctx, x):
        try:
            return x * 2
        finally:
            PLACES.clear()


class Nested(Passes):
    @staticmethod
    def forward(ctx, x):
        return Sign.apply(x)


class ReadsState(Passes):
    @staticmethod
    def forward(ctx, x):
        return x * len(PLACES)


class Seeds(Passes):
    @staticmethod
    def forward(ctx, x):
        torch.manual_seed(3)
        return x * 2


class Normalises(Function):
    """Writes to statistics, which its schema does not say."""

    @staticmethod
    def forward(ctx, x, mean, var):
        return torch.batch_norm(x, None, None, mean, var, True, 0.1, 1e-5, False)

    @staticmethod
    def backward(ctx, g):
        return g, None, None


class Forward(Shown):
    """Has a derivative in the other direction."""

    @staticmethod
    def jvp(ctx, t):
        return t


class KeepsOnClass(Shown):
    calls = 0


class Formats(Passes):
    @staticmethod
    def forward(ctx, x):
        return x * len(f"{x}")


class ChangesContext(Passes):
    @staticmethod
    def forward(ctx, x):
        ctx.needs_input_grad = (False,)
        return x * 2


class ReturnsBuiltin(Shown):
    """max() gives back what it is given, unlike the operator of that name."""

    @staticmethod
    def backward(ctx, g):
        mine = max(g, g, key=len)
        mine += 1
        return mine


class Imports(Passes):
    @staticmethod
    def forward(ctx, x):
        import random

        return x * random.random()


class TensorOfValue(Passes):
    @staticmethod
    def forward(ctx, x):
        return x * torch.tensor(float(x.sum()))


class TensorElsewhere(Passes):
    @staticmethod
    def forward(ctx, x):
        return x.to(dtype=torch.finfo)


class CallsDefault(Passes):
    @staticmethod
    def forward(ctx, x, function=counted):
        return function(x) * 2


class CallsNamedDefault(Passes):
    @staticmethod
    def forward(ctx, x, *, function=counted):
        return function(x) * 2


class CallsMethodOfDefault(Passes):
    @staticmethod
    def forward(ctx, x, function=(HERE, [3.0, 1.0])):
        function[1].sort()
        return x * 2


class KeepsInHelper(Passes):
    @staticmethod
    def forward(ctx, x):
        return KeepsInHelper._scale(x)

    @staticmethod
    def _scale(x, kept=set()):  # noqa: B006
        kept.add(len(kept))
        return x * len(kept)


class Warns(Passes):
    """Of a dimension that it does not name."""

    @staticmethod
    def forward(ctx, x):
        return F.softmax(x)


class WarnsAtTimes(Passes):
    @staticmethod
    def forward(ctx, x, dim):
        return F.log_softmax(x, dim)


class WarnsOfOthers(Passes):
    @staticmethod
    def forward(ctx, x):
        return F.softmin(x, _stacklevel=1)


def closing():
    factor = 2.0

    class Closes(Passes):
        @staticmethod
        def forward(ctx, x):
            return x * factor

    return Closes


OTHERS = [
    *(Prints, Counts, InPlace, WritesToSaved, WritesToGradient, WritesThroughView, WritesSometimes),
    *(
        WritesOut,
        Lists,
        Hooks,
        KeepsContext,
        LoopsUntil,
        LoopsOverState,
        WritesInLoop,
        Tries,
        Nested,
        ReadsState,
        Seeds,
        Normalises,
        Forward,
    ),
    *(KeepsOnClass, Formats, ChangesContext, ReturnsBuiltin, Imports, closing(), Function, int),
    *(TensorOfValue, TensorElsewhere, CallsOwnMethod, KeepsClass, ReadsOwnClass),
    *(CallsDefault, CallsNamedDefault, CallsMethodOfDefault, KeepsInHelper),
    *(Warns, WarnsAtTimes, WarnsOfOthers),
]


@pytest.mark.parametrize("function", OTHERS, ids=lambda one: one.__name__)
def test_what_may_do_more_than_run_operators(function):
    assert pure.reads_of(function) is None
    assert pure.reads_of(Shown)  # what they have in common is no reason


REPLACED = [
    *((builtins, "reversed"), (builtins, "enumerate"), (builtins, "round"), (math, "fabs")),
    *((torch.Tensor, "abs"), (torch.Tensor, "float"), (torch.Tensor, "unbind"), (torch.Tensor, "flip")),
    *((torch.Tensor, "__iter__"), (torch.Tensor, "__reversed__"), (torch.Tensor, "__abs__")),
    *(
        (torch.Tensor, "__len__"),
        (torch.Tensor, "reciprocal"),
        (torch, "floor_divide"),
        (torch, "zeros_like"),
    ),
    *((torch, "layer_norm"), (torch._C._nn, "pad"), (F, "has_torch_function_unary"), (F, "layer_norm")),
    (inspect.unwrap(torch.Tensor.__rdiv__), "__code__"),
    (F.layer_norm, "__code__"),
]


@pytest.mark.parametrize("place", REPLACED, ids=lambda place: place[1])
def test_what_stands_in_the_place_of_torchs_may_do_more(place):
    owner, name = place
    assert pure.reads_of(Rows)
    change, back = put(owner, name, counted.__code__ if name == "__code__" else counted)
    change()
    try:
        found = pure.reads_of(Rows)
    finally:
        back()
    assert found is None
    assert pure.reads_of(Rows)


CALLED = [WritesToSaved, WritesToGradient, WritesSometimes, Counts, ReturnsBuiltin, CallsDefault]


@pytest.mark.parametrize("function", CALLED, ids=lambda one: one.__name__)
def test_it_is_called_at_each_replay(function):
    PLACES.clear()
    check(trained(lambda h, w: function.apply(h * 1), count=ENOUGH), hits=ENOUGH - 2)


# ---------------------------------------------------------------- where it is called
@cases(hits=ENOUGH)
def a_global_that_differs_at_each_call(trace):
    """Such a number is left to the function to find, at each replay."""
    w = torch.nn.Parameter(torch.ones(4))

    def step(x):
        w.grad = None
        Levels.apply(x * w).square().sum().backward()

    def change(level):
        HERE.LEVELS = level

    steps = [
        one
        for i in range(2 * ENOUGH)
        for one in (functools.partial(change, i + 1.5), call(torch.randn(3, 4)))
    ]
    return trace(step), [*steps, functools.partial(change, 16)], lambda: w.grad


@cases(hits=ENOUGH - 2)
def a_number_that_differs(trace):
    """A number that is followed is the function's to see."""
    w = torch.nn.Parameter(torch.ones(4))

    def step(x, strength):
        w.grad = None
        Reversed.apply(x * w, strength).square().sum().backward()
        return strength * 2

    calls = [call(torch.randn(3, 4), 0.1 * (i // 2)) for i in range(2 * ENOUGH)]
    return trace(step), calls, lambda: w.grad


@cases(hits=ENOUGH)
def a_tensor_with_attributes(trace):
    """What was put on a tensor hides its methods."""
    w, x = torch.nn.Parameter(torch.ones(4)), torch.randn(3, 4)

    def step(x):
        w.grad = None
        Rectified.apply(x).mul(w).sum().backward()

    def hide():
        x.clamp = lambda min: torch.full((3, 4), 7.0)

    def show():
        del x.clamp

    return trace(step), [*[call(x)] * ENOUGH, hide, *[call(x)] * 3, show, *[call(x)] * 3], lambda: w.grad


class Strange(torch.Tensor):
    """Does otherwise what a tensor does."""

    def clamp(self, min):
        return torch.Tensor.clamp(self, min=min) * 3


@cases(eager="takes-subclass")
def a_tensor_of_another_class(trace):
    w, x = torch.nn.Parameter(torch.ones(4)), torch.randn(3, 4).as_subclass(Strange)

    def step(x):
        w.grad = None
        Rectified.apply(x * w).sum().backward()

    return trace(step), [call(x)] * 4, lambda: w.grad


@cases(hits=ENOUGH - 1)
def its_result_is_returned(trace):
    w = torch.nn.Parameter(torch.ones(4))

    def step(x):
        w.grad = None
        out = Swish.apply(x * w)
        out.sum().backward()
        return out

    return trace(step), [call(torch.randn(3, 4)) for _ in range(ENOUGH)], lambda: w.grad


@cases(hits=ENOUGH - 1)
def its_graph_is_left(trace):
    """The caller runs the pass through it."""
    w = torch.nn.Parameter(torch.ones(4))
    forward = trace(lambda x: Swish.apply(x * w).sum())

    def step(x):
        w.grad = None
        loss = forward(x)
        loss.backward()
        return loss, loss.grad_fn.name()

    return step, [call(torch.randn(3, 4)) for _ in range(ENOUGH)], lambda: w.grad


@cases(hits=ENOUGH)
def two_passes(trace):
    w = torch.nn.Parameter(torch.ones(4))

    def step(x):
        w.grad = None
        out = Levels.apply(Swish.apply(x * w)).sum()
        out.backward(retain_graph=True)
        out.backward()

    return trace(step), [call(torch.randn(3, 4)) for _ in range(ENOUGH + 3)], lambda: w.grad


@cases(hits=ENOUGH)
def a_derivative_of_a_derivative(trace):
    w = torch.nn.Parameter(torch.ones(4))

    def step(x):
        w.grad = None
        (g,) = torch.autograd.grad(Swish.apply(x * w).sum(), w, create_graph=True)
        g.square().sum().backward()

    return trace(step), [call(torch.randn(3, 4)) for _ in range(ENOUGH + 3)], lambda: w.grad


@cases(hits=ENOUGH)
def frozen_between(trace):
    """Which gradients are asked for is part of what the code finds."""
    layer = torch.nn.Linear(4, 4)

    def step(x):
        layer.zero_grad()
        Affine.apply(x, layer.weight, layer.bias).square().sum().backward()

    def freeze():
        layer.weight.requires_grad_(False)

    calls = [call(torch.randn(3, 4)) for _ in range(2 * ENOUGH)]
    return (
        trace(step),
        [*calls[:ENOUGH], freeze, *calls[ENOUGH:]],
        lambda: [p.grad for p in layer.parameters()],
    )


@cases(hits=ENOUGH)
def hooks_on_what_it_gives(trace):
    w, seen = torch.nn.Parameter(torch.ones(4)), []

    def step(x):
        w.grad = None
        out = Swish.apply(x * w)
        out.register_hook(lambda g: g * 2)
        out.sum().backward()

    return trace(step), [call(torch.randn(3, 4)) for _ in range(ENOUGH + 3)], lambda: [w.grad, seen]


@cases(hits=ENOUGH)
def written_between_its_passes(trace):
    """What it keeps on its context is written to before the backward pass."""
    w = torch.nn.Parameter(torch.ones(4))
    buffer = torch.zeros(3, 4)

    class Keeps(Function):
        @staticmethod
        def forward(ctx, x, other):
            ctx.other = other
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.other, None

    def step(x):
        w.grad = None
        out = Keeps.apply(x * w, buffer)
        buffer.add_(1)
        out.sum().backward()

    return trace(step), [call(torch.randn(3, 4)) for _ in range(ENOUGH + 3)], lambda: [w.grad, buffer]


@cases(hits=ENOUGH + 4)
def without_a_graph_and_behind_a_value(trace):
    """The value leads away in some calls, before and behind what is written."""
    weight, total = torch.nn.Parameter(torch.ones(4)), torch.zeros(4)

    def step(x):
        with torch.no_grad():
            spikes = Spike.apply(x * weight, 2.0)
            if spikes.sum() > 2:
                return Swish.apply(spikes * x)
            total.add_(spikes)
            y = Reversed.apply(x, 0.3)
            return y, Levels.apply(y) if y.max() > 1 else y

    steps = [call(scale * torch.tensor([-1.0, 0.5, 2.0, -0.25])) for scale in (1, 0.25, -1) for _ in range(6)]
    return trace(step), [*steps, *steps[::-2], *steps[::3]], lambda: total


@cases(hits=ENOUGH)
def without_a_graph_at_sizes_that_come_again(trace):
    def step(x):
        with torch.no_grad():
            return Swish.apply(Levels.apply(x)), Sign.apply(x[1:]).sum(0)

    return trace(step), [call(torch.randn(rows, 4)) for _ in range(6) for rows in (3, 5, 2)]


@cases(hits=ENOUGH)
def without_a_graph_what_it_is_given_leaves(trace):
    """Its result is a view of what it is given, which the caller writes to."""
    kept = torch.ones(4)

    def step(x):
        with torch.no_grad():
            return Reversed.apply(kept), Reversed.apply(x).mul_(2), Swish.apply(kept)

    def write():
        kept.mul_(1.5)

    steps = [call(torch.randn(4)) for _ in range(ENOUGH + 2)]
    return trace(step), [*steps, write, *steps[:3]], lambda: kept


@cases(hits=ENOUGH)
def under_other_modes(trace):
    w = torch.nn.Parameter(torch.ones(4))

    def step(x):
        w.grad = None
        with torch.no_grad():
            kept = Levels.apply(x * w)
        (Swish.apply(x * w) * kept).sum().backward()
        return kept

    return trace(step), [call(torch.randn(3, 4)) for _ in range(ENOUGH + 3)], lambda: w.grad


class Views(Passes):
    """One result shows memory of the other."""

    @staticmethod
    def forward(ctx, x):
        doubled = x * 2
        return doubled, doubled[:1]


@cases(hits=ENOUGH)
def without_a_graph_views_that_are_written_to(trace):
    """Autograd forbids it, and says where the view was made."""
    weight = torch.ones(1, requires_grad=True)

    def step(x):
        with torch.no_grad():
            y = x + 1
            return Views.apply(x), Reversed.apply(y)

    traced = trace(step)

    def use(x):
        said = []
        for view in (traced(x)[0][1], traced(x)[1]):
            with pytest.raises(RuntimeError) as error:
                view.mul_(weight)
            said.append(str(error.value))
        return said

    return use, [call(torch.randn(3)) for _ in range(ENOUGH)]


@cases.parametrize
def test_where_it_is_called(make, expected):
    check(make, **expected)
