"""What `torch.library.custom_op` makes: each call is a step, for its kernels are Python."""

from __future__ import annotations

import io
import itertools
import types

import numpy as np
import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()
numbers = itertools.count()
FILES = []
COUNTS = []
count = lazytrace.opaque(lambda: COUNTS.append(1))


def define(body, mutates=(), schema=None):
    """A custom operator under a name of its own."""
    name = f"lt_custom::{body.__name__}{next(numbers)}"
    return torch.library.custom_op(name, body, mutates_args=mutates, schema=schema)


def by_numpy(x: torch.Tensor, k: float = 2.0) -> torch.Tensor:
    return torch.from_numpy(np.tanh(x.detach().numpy()) * k)


tanh_by_numpy = define(by_numpy)


def differentiable():
    op = define(by_numpy)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.k = inputs[1]

    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (1 - torch.tanh(x) ** 2) * ctx.k, None

    op.register_autograd(backward, setup_context=keep)
    return op


@cases(hits=3)
def definition(trace):
    op = define(by_numpy)
    return trace(lambda x: op(torch.relu(x), 3.0) + 1), [call(X()), call(X() + 1), call(X()), call(-X())]


@cases(hits=2)
def packet(trace):
    packet = getattr(torch.ops.lt_custom, define(by_numpy)._name)
    return trace(lambda x: packet(x, k=3.0) + 1), [call(X()), call(X() + 1), call(X())]


@cases(hits=2)
def overload(trace):
    op = define(by_numpy)._opoverload
    return trace(lambda x: op(x) + 1), [call(X()), call(X() + 1), call(X())]


@cases(hits=2)
def in_a_list_and_through_a_method(trace):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.ops = [define(by_numpy)]

        def forward(self, x):
            return self.ops[0](x) * 2

    net = Net()
    return trace(lambda x: net(x)), [call(X()), call(X() + 1), call(X())]


@cases(hits=2, recordings=2)
def another_one(trace):
    def doubled(x: torch.Tensor, k: float = 2.0) -> torch.Tensor:
        return x * (2 * k)

    ops = [define(by_numpy), define(doubled)]
    return trace(lambda x: ops[0](x) + 1), around(ops.reverse, X())


@cases(hits=3)
def another_one_before_a_branch(trace):
    def doubled(x: torch.Tensor, k: float = 2.0) -> torch.Tensor:
        return x * (2 * k)

    ops = [define(by_numpy), define(doubled)]

    def fn(x):
        y = ops[0](x)
        return y + 1 if y.sum() > 4 else y - 1

    steps = [call(X() - 2 * k) for k in (0, 1, 0, 1)]
    return trace(fn), [*steps, ops.reverse, *steps, ops.reverse, *steps]


@cases(hits=3, recordings=1)
def another_kernel(trace):
    op = define(by_numpy)

    def change():
        op.register_kernel("cpu", lambda x, k=2.0: x * 100)

    return trace(lambda x: op(x) + 1), around(change, X())


@cases(hits=2)
def state_that_it_reads(trace):
    o = {"k": 2.0}

    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * o["k"]

    op = define(scale)
    return trace(lambda x: op(x) + 1), around(lambda: o.update(k=3.0), X())


@cases(eager="reads a list that an opaque function has changed")
def state_that_it_writes_and_the_function_reads(trace):
    seen = []

    def noisy(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.sum()))
        return x * 2

    op = define(noisy)

    def fn(x):
        y = op(x)
        return y * seen[-1], len(seen)

    return trace(fn), [call(X()), call(X() + 1), call(X()), call(X() + 2), call(X())], lambda: list(seen)


@cases(hits=2)
def state_that_it_writes(trace):
    seen = []

    def noisy(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.sum()))
        return x * 2

    op = define(noisy)
    return trace(lambda x: op(x) + 1), [call(X()), call(X() + 1), call(X())], lambda: list(seen)


@cases(hits=3)
def one_that_writes_to_its_argument(trace):
    def bump(x: torch.Tensor, by: int) -> None:
        x.add_(by)

    op = define(bump, ("x",))

    def fn(x):
        y = x * 2
        op(y, 3)
        op(x, 1)
        return y + x

    return trace(fn), [call(X()), call(X()), call(X() + 1), call(X())]


@cases(hits=3)
def one_that_writes_to_its_argument_before_a_branch(trace):
    def bump(x: torch.Tensor, by: float) -> None:
        x.add_(by)

    op = define(bump, ("x",))

    def fn(x):
        y = x * 2
        op(y, 3.0)
        return y + x if y.sum() > 40 else y - x

    return trace(fn), [call(X() + 9 * k) for k in (0, 1, 0, 1, 0, 1, 0, 1)]


@cases(hits=2)
def one_that_writes_to_a_buffer(trace):
    def count(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        seen.add_(1)
        return x * seen

    op = define(count, ("seen",))
    buffer = torch.zeros(())
    return trace(lambda x: op(x, buffer) + buffer), [call(X()), call(X()), call(X() + 1)], lambda: buffer


@cases(hits=2)
def several_results(trace):
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order = np.argsort(x.numpy(), axis=-1)
        return torch.from_numpy(order), x.clone()

    op = define(both)

    def fn(x):
        order, same = op(x * 1)
        return same.gather(-1, order), order

    return trace(fn), [call(X()), call(-X()), call(X() ** 2)]


@cases(hits=2)
def a_list_of_tensors(trace):
    def add_all(xs: list[torch.Tensor], weights: list[float]) -> list[torch.Tensor]:
        return [x * w for x, w in zip(xs, weights, strict=True)]

    op = define(add_all)
    return trace(lambda x, y: op([x, y * 2, x + y], [1.0, 2.0, 3.0])[1:]), [
        call(X(), X() + 1),
        call(X() + 1, X()),
        call(X(), X()),
    ]


@cases(hits=3)
def numbers_that_are_results(trace):
    def largest(x: torch.Tensor) -> float:
        return float(x.max())

    op = define(largest)
    # The first exit shows that the recording was of the operator's first call, in which torch makes things.
    return trace(lambda x: x / op(x * 2)), [call(X() + k) for k in (0, 1, 0, 1, 0, 1, 0)]


@cases(hits=3)
def a_number_that_a_branch_hangs_on(trace):
    def largest(x: torch.Tensor) -> float:
        return float(x.max())

    op = define(largest)
    fn = trace(lambda x: x * 2 if op(x) > 2 else x - 1)
    return fn, [call(X() + k) for k in (0, 9, 0, 9, 0, 9, 0)]


@cases(hits=3)
def shapes_that_hang_on_values(trace):
    def positive(x: torch.Tensor) -> torch.Tensor:
        return (x > 0).nonzero().flatten()

    op = define(positive)
    many = [torch.tensor([1.0, -1.0, 2.0]), torch.tensor([1.0, 3.0, 2.0]), torch.tensor([-1.0, -1.0, -2.0])]
    return trace(lambda x: x[op(x)] * 2), [call(x) for x in many * 3]


@cases(hits=4)
def other_sizes(trace):
    def padded(x: torch.Tensor, to: int) -> torch.Tensor:
        return torch.from_numpy(np.pad(x.numpy(), (0, to - x.shape[0])))

    op = define(padded)
    return trace(lambda x: op(x, x.shape[0] + 2) * 2), [
        call(torch.arange(n) + 1.0) for n in (3, 4, 5, 6, 7, 4)
    ]


@cases(hits=4)
def with_gradients(trace):
    op, w = differentiable(), torch.tensor([1.0, -0.5, 0.25], requires_grad=True)
    fn = trace(lambda x: (op(x * w, 3.0) ** 2).sum())
    return fn, [call(X(3)), call(X(3) + 1), call(X(3)), call(X(3)), call(X(3) + 2)], lambda: w.grad


@cases(hits=4)
def in_a_training_step(trace):
    op = differentiable()
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 3)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = (op(net(x), 2.0) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    xs = [X(2, 3) + k for k in range(7)]
    return trace(step), [call(x) for x in xs], lambda: [*net.parameters()]


@cases(hits=3)
def an_autograd_formula_that_comes_later(trace):
    op, w = define(by_numpy), torch.ones(3, requires_grad=True)

    def change():
        op.register_autograd(lambda ctx, g: (g * 7, None))

    def fn(x):
        y = op(x * w) + w.sum()
        return y, y.requires_grad

    return trace(fn), around(change, X(3)), lambda: w.grad


@cases(hits=1)
def one_that_raises_at_some_calls(trace):
    def picky(x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 100:
            raise ValueError("too much")
        return x * 2

    op = define(picky)

    def fn(x):
        try:
            return op(x) + 1
        except ValueError as error:
            return x * 0, str(error)

    return trace(fn), [call(X()), call(X()), call(X() + 1000), call(X()), call(X() + 1000)]


@cases(hits=2)
def random_numbers(trace):
    def noise(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)

    op = define(noise)
    return trace(lambda x: op(x) * torch.rand(3)), [call(X(3)), call(X(3)), call(X(3))]


@cases(hits=1, recordings=2)
def under_autocast(trace):
    op = define(by_numpy)
    op.register_autocast("cpu", torch.float32)

    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return op(x @ x, 2.0)

    plain = trace(lambda x: op(x))
    return trace(fn), [call(X(2, 2)), call(X(2, 2) + 1), call(X(2, 2)).of(plain), call(X(2, 2)).of(plain)]


@cases(hits=1)
def in_a_checkpoint(trace):
    op, w = differentiable(), torch.ones(3, requires_grad=True)

    def fn(x):
        run = torch.utils.checkpoint.checkpoint
        return run(lambda v: op(v * w, 2.0) * v, x, use_reentrant=False).sum()

    return trace(fn), [call(X(3)), call(X(3) + 1), call(X(3))], lambda: w.grad


@cases(eager="cannot be made again")
def under_vmap(trace):
    op = define(by_numpy)
    op.register_vmap(lambda info, in_dims, x, k=2.0: (op(x, k), in_dims[0]))
    return trace(lambda x: torch.vmap(lambda row: op(row, 2.0) + 1)(x)), [call(X(2, 3))] * 3


@cases(eager="calls .numpy() of a tensor")
def called_by_map(trace):
    op = define(by_numpy)
    return trace(lambda x: sum(map(op, [x, x + 1]))), [call(X())] * 3


@cases(hits=2)
def what_it_gives_is_changed_by_the_caller(trace):
    op = define(by_numpy)

    def fn(x):
        y = op(x)
        y.add_(1)
        return y

    def use(x):
        y = traced(x)
        y.mul_(3)
        return y

    traced = trace(fn)
    return use, [call(X()).of(use), call(X()).of(use), call(X() + 1).of(use)]


def library_operator(body, schema, key="CPU"):
    """An operator of `torch.library.Library`, called by its name."""
    name = f"{body.__name__}{next(numbers)}"
    library = torch.library.Library("lt_library", "FRAGMENT")
    library.define(name + schema)
    library.impl(name, body, key)
    operator = getattr(torch.ops.lt_library, name)
    return library, operator


def relu_twice(x):
    return torch.relu(x) * 2


@cases(hits=2)
def of_a_library_and_made_of_operators(trace):
    library, op = library_operator(relu_twice, "(Tensor x) -> Tensor")
    return trace(lambda x: op(x) + 1), [call(X()), call(X() - 2), call(X())], lambda: library.ns


@cases(hits=3, eager="calls .numpy() of a tensor")
def of_a_library_and_by_numpy(trace):
    library, op = library_operator(by_numpy, "(Tensor x, float k=2.0) -> Tensor")
    fn = trace(lambda x: op(torch.relu(x), 3.0) + 1)
    return fn, [call(X()), call(X() - 2), call(X()), call(X() + 1), call(-X())], lambda: library.ns


@cases(hits=2, eager="of a list")
def of_a_library_with_state(trace):
    seen = []

    def noisy(x):
        seen.append(float(x.sum()))
        return x * 2

    library, op = library_operator(noisy, "(Tensor x) -> Tensor")
    fn = trace(lambda x: op.default(x) + 1)
    return fn, [call(X()), call(X() - 2), call(X()), call(X() + 1)], lambda: (list(seen), library.ns)


@cases(hits=3, eager="of a list")
def of_a_library_behind_a_branch(trace):
    seen = []

    def noisy(x):
        seen.append(float(x.sum()))
        return x * 2

    library, op = library_operator(noisy, "(Tensor x) -> Tensor")

    def fn(x):
        y = x * 2
        if y.sum() > 30:
            y = op(y)
        return y + 1

    steps = [call(X() + 9 * k) for k in (0, 0, 1, 0, 1, 1, 0, 1, 1)]
    return trace(fn), steps, lambda: (list(seen), library.ns)


@cases(hits=3, eager="sets .factor")
def of_a_library_before_a_branch(trace):
    made = types.SimpleNamespace()

    def doubled(x):
        if not hasattr(made, "factor"):
            made.factor = torch.full((), 2.0)
        return x * made.factor

    seen = []

    def noisy(x):
        seen.append(float(x.sum()))
        return x * 2

    first, one = library_operator(doubled, "(Tensor x) -> Tensor")
    second, other = library_operator(noisy, "(Tensor x) -> Tensor")

    def fn(x):
        y = one(x)
        if y.sum() > 2:
            y = other(y) * 3
        return y + 1

    steps = [call(X() + 9 * k) for k in (0, 0, 0, 1, 0, 1, 1, 0, 1, 1, 0)]
    return trace(fn), steps, lambda: (list(seen), first.ns, second.ns)


@cases(eager="calls .add() of a set")
def a_kernel_that_is_switched_off_for_a_while(trace):
    op = define(by_numpy)
    op.register_kernel("cpu", lambda x, k=2.0: x * 100)

    def fn(x):
        with op.set_kernel_enabled("cpu", enabled=False):
            y = op(x)
        return y + op(x)

    return trace(fn), [call(X()), call(X() + 1), call(X()), call(X() + 2)]


@cases(eager="reads a FunctionSchema")
def a_kernel_that_the_call_registers(trace):
    op = define(by_numpy)

    def fn(x):
        op.register_kernel("cpu", lambda x, k=2.0: x * 100)
        return op(x)

    def change():
        op.register_kernel("cpu", lambda x, k=2.0: x * 7)

    return trace(fn), around(change, X())


@cases(hits=4, eager="of unknown origin")
def of_a_library_and_of_a_closure(trace):
    o = {"k": 2.0}

    def scale(x):
        return x * o["k"]

    library, op = library_operator(scale, "(Tensor x) -> Tensor")
    steps = [call(X()), *around(lambda: o.update(k=3.0), X()), call(X() + 1)]
    return trace(lambda x: op(x) + 1), steps, lambda: library.ns


@cases(hits=4, eager="in Python after writing")
def of_a_library_and_behind_a_write(trace):
    o = types.SimpleNamespace(n=0)

    def scale(x):
        return x * o.n

    library, op = library_operator(scale, "(Tensor x) -> Tensor")

    def fn(x):
        o.n += 1
        return op(x) + o.n

    return trace(fn), [call(X() + k) for k in range(7)], lambda: (o.n, library.ns)


@cases(hits=3, eager="step-in-operator")
def of_a_library_with_a_function_of_autograd(trace):
    library, op = library_operator(by_numpy, "(Tensor x, float k=2.0) -> Tensor")

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch._C._AutoDispatchBelowAutograd():
                return op(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3

    name = op.default._schema.name.split("::")[1]
    library.impl(name, lambda x: Differentiable.apply(x), "Autograd")
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        w.grad = None
        (op(x * w) ** 2).sum().backward()
        return w.grad.clone()

    return trace(fn), [call(X() + k) for k in range(6)], lambda: (w, library.ns)


def kernel_with_a_step(trace, body, key):
    """A call of an operator with this kernel, behind a change and before a branch."""
    library, op = library_operator(body, "(Tensor x) -> Tensor", key)
    seen = torch.zeros(())

    def fn(x):
        seen.add_(1)
        y = op(x * 1)
        return y * 2 if y.sum() > 0 else y * 3

    steps = [call(X() - 9 * (k // 2 % 2)) for k in range(10)]
    return trace(fn), steps, lambda: (seen, library.ns)


@cases(hits=2, eager="step-in-operator")
def opaque_inside_a_kernel(trace):
    COUNTS.clear()

    def counted(x):
        count()
        return x * 2

    fn, steps, kept = kernel_with_a_step(trace, counted, "CPU")
    return fn, steps, lambda: (kept(), len(COUNTS))


@cases(hits=6, eager="step-in-operator")
def printed_inside_a_kernel(trace):
    def printed(x):
        print("kernel", file=FILES[-1])
        return x * 2

    FILES.append(io.StringIO())
    fn, steps, kept = kernel_with_a_step(trace, printed, "CompositeImplicitAutograd")
    return fn, steps, lambda: (kept(), FILES[-1].getvalue())


@cases(hits=2, eager="step-in-operator")
def function_of_autograd_inside_a_kernel(trace):
    counts = []

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            counts.append(1)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    def applied(x):
        return Counted.apply(x)

    fn, steps, kept = kernel_with_a_step(trace, applied, "Autograd")
    return fn, steps, lambda: (kept(), list(counts))


@cases(hits=6, eager="step-in-operator")
def operator_inside_a_kernel(trace):
    def handed_on(x):
        return tanh_by_numpy(x)

    return kernel_with_a_step(trace, handed_on, "CPU")


@cases(hits=4)
def data_inside_a_kernel_before_a_step(trace):
    def bump(x):
        x.data.add_(1)

    def copied(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    library, bumps = library_operator(bump, "(Tensor(a!) x) -> ()", "CompositeExplicitAutograd")
    copies, buffer = define(copied), torch.zeros(2, 3)

    def fn(x):
        bumps(buffer[1])
        y = copies(x)
        return y * 2 if y.sum() > 2 else y * 3

    return trace(fn), [call(X() + k % 2) for k in range(8)], lambda: (buffer, library.ns)


@cases(hits=5, eager="calls .numpy() of a tensor")
def data_of_an_array_before_a_branch(trace):
    def bump(x):
        x.numpy()[...] += 1

    library, bumps = library_operator(bump, "(Tensor(a!) x) -> ()")
    array = np.arange(3, dtype=np.float32)

    def fn(x):
        bumps(torch.from_numpy(array))
        return x * 2 if x.sum() > 2 else x * 3

    return trace(fn), [call(X() + k % 2) for k in range(8)], lambda: (array, library.ns)


@cases.parametrize
@pytest.mark.filterwarnings("ignore")
def test_custom_operators(make, expected):
    check(make, **expected)


def test_primitives_of_torch_are_looked_into():
    fn = lazytrace.traced(lambda x: torch.ops.prims.sin(x) * 2)
    for _ in range(3):
        assert torch.equal(fn(X()), X().sin() * 2)
    assert "prims" not in str(fn.stats().eager)
