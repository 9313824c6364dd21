"""A read that differs inside a replay: what was done is not done again, and the rest goes another way."""

from __future__ import annotations

import contextlib
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

import lazytrace
from tests.soundness.runner import Cases, X, call, check, opaque

cases = Cases()


def scripted(trace, fn):
    return lazytrace.script_if_tracing(fn) if trace.enabled else fn


def both_ways(times=2, size=None):
    """Positive and negative inputs, in turns."""
    x = X() if size is None else torch.linspace(-1, 2, size)
    return [call(sign * x) for sign in (1, -1, 1, -1, -1, 1) for _ in range(times)]


# ---------------------------------------------------------------- after writes
@cases(hits=2)
def written_then_read(trace):
    def fn(x, total):
        total.add_(x)
        return x * 2 if total.sum() > 2 else x - 1

    total = torch.zeros(3)
    steps = [call(X(), total), call(X(), total), lambda: total.neg_(), call(X(), total), call(X(), total)]
    return trace(fn), [*steps, lambda: total.neg_(), *steps]


@cases(hits=4)
def written_twice_around_a_read(trace):
    def fn(x, total):
        total.add_(1)
        if x.sum() > 0:
            total.mul_(2)
        total.sub_(3)
        return total.sum().item() > 0, total * x

    total = torch.zeros(3)
    return trace(fn), [call(k * X(), total) for k in (1, 1, -1, -1, 1, -1, 1, 1, -1)]


@cases(hits=2)
def read_between_many_writes(trace):
    w = torch.zeros(3)

    def fn(x):
        for k in range(4):
            w[k % 3] += k
            if x[k % 3] > 0:
                w.mul_(2)
        return w * x

    xs = [torch.tensor([(-1.0) ** (n >> k & 1) for k in range(3)]) for n in (0, 0, 1, 2, 3, 0, 7, 7, 5, 6, 1)]
    return trace(fn), [call(x) for x in xs], lambda: w


@cases(hits=2)
def view_written_through_then_read(trace):
    def fn(x):
        row = x[0]
        row.mul_(2)
        if row.sum() > 0:
            row.add_(1)
        else:
            x.t()[0].zero_()
        return row, x

    x = X(2, 2)
    return trace(fn), [call(x), call(x), lambda: x.neg_(), call(x), call(x), lambda: x.neg_(), call(x)]


@cases(eager="read-after-change")
def transposed_in_place_then_read(trace):
    def fn(x):
        x.t_()
        return (x[0] * 2 if x[0, 1] > 0 else x[:, 0]), x

    def make():
        return torch.tensor([[1.0, -2.0], [3.0, 4.0]])

    inputs = [make(), make(), -make(), -make(), make(), -make()]
    return trace(fn), [call(x) for x in [*inputs, *inputs]]


@cases(hits=8)
def turned_after_a_write_then_read(trace):
    """A function that runs again finds each tensor as it looked where it is."""
    w = torch.zeros(3)

    def fn(x):
        y = (x * 2).unsqueeze_(0)
        before = tuple(y.shape), y.stride()
        w.add_(1)
        y.transpose_(0, 2)
        seen = [before, tuple(y.shape), y.stride()]
        y.squeeze_()
        if y.sum() > 0:
            return y.add_(1), seen, y.t_()
        return y.unsqueeze_(-1) * w[0], seen

    inputs = [k * torch.arange(1.0, 7.0).view(2, 3) for k in (1, 1, -1, 1, -1, -1, 1, -1, 2, -2, 1, -1)]
    return trace(fn), [call(x) for x in inputs], lambda: w


@cases(hits=6)
def gradient_turned_after_a_write(trace):
    """Shampoo turns the gradient itself, which stays so."""
    w = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    count = torch.zeros(())

    def fn(x):
        w.grad = None
        (w * x).sum().backward()
        count.add_(1)
        with torch.no_grad():
            turned = w.grad.transpose_(0, 1).contiguous().view(3, -1)
            if turned.sum() > 0:
                return turned @ turned.t(), tuple(w.grad.shape)
            return turned.t() @ turned, w.grad.stride()

    inputs = [k * torch.arange(1.0, 7.0).view(2, 3) for k in (1, 1, -1, 1, -1, -1, 1, -1, 2, -2, 1, -1)]
    return trace(fn), [call(x) for x in inputs], lambda: (w, w.grad, count)


@cases(hits=6)
def view_turned_after_a_write(trace):
    """The norm of SAM is a view of a sum, and is turned and written to in place."""
    w = torch.zeros(3)

    def fn(x):
        whole = x.square().sum()
        norm = whole.reshape(1)
        w.add_(1)
        norm.sqrt_().squeeze_(0).add_(1e-3)
        if norm > 5:
            return w / norm, tuple(norm.shape), whole
        return norm.unsqueeze_(0), whole

    inputs = [k * torch.ones(3) for k in (1, 1, 9, 1, 9, 9, 1, 9, 1, 9, 1, 1)]
    return trace(fn), [call(x) for x in inputs], lambda: w


def with_adam(trace, turn, branch=False):
    """Adam reads its count of steps behind what the pass has written."""
    net = torch.nn.Conv2d(1, 3, 3)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        out = torch.relu(net(x))
        y = turn(out.mean((2, 3), keepdim=True))
        if branch:
            y = y * 2 if y.sum() > 1.5 else y - 1
        loss = (y * y).sum()
        loss.backward()
        optimizer.step()
        return loss.detach(), tuple(y.shape), y.stride()

    inputs = [
        k * torch.linspace(-1, 1, 50).view(2, 1, 5, 5) for k in (1, 2, -1, 1, -2, 1, -1, 3, -3, 1, 2, -1)
    ]
    return (
        trace(step),
        [call(x) for x in inputs],
        lambda: [*net.parameters(), *(p.grad for p in net.parameters())],
    )


def turned_twice(y):
    y.squeeze_(-1)
    y.squeeze_(-1)
    return y


def view_turned(y):
    return y.flatten(1).t_()


@cases(hits=8)
def turned_with_a_graph(trace):
    return with_adam(trace, turned_twice)


@cases(hits=8)
def view_turned_with_a_graph(trace):
    return with_adam(trace, view_turned)


@cases(hits=5)
def turned_with_a_graph_then_read(trace):
    return with_adam(trace, turned_twice, branch=True)


@cases(hits=5)
def view_turned_with_a_graph_then_read(trace):
    return with_adam(trace, view_turned, branch=True)


def set_behind_the_pass(y, weight, run):
    run()
    y.register_hook(torch.neg)


def set_on_a_parameter_behind_the_pass(y, weight, run):
    run()
    return weight.register_hook(torch.neg)


def set_between_passes(y, weight, run):
    run()
    y.register_hook(torch.neg)
    run()


def taken_off_behind_the_pass(y, weight, run):
    handle = y.register_hook(torch.neg)
    run()
    handle.remove()


# A replay has set the hooks on the graph of a pass that the function comes to once more.
@pytest.mark.parametrize(
    ("passes", "hits"),
    [
        (set_behind_the_pass, 8),
        (set_on_a_parameter_behind_the_pass, 8),
        (set_between_passes, 2),
        (taken_off_behind_the_pass, 2),
    ],
)
def test_hooks_that_are_not_those_of_the_pass(passes, hits):
    def case(trace):
        weight, kept = torch.nn.Parameter(torch.ones(3)), []

        def step(x):
            y = x * weight
            kept[:] = [y * 1]
            handle = passes(y, weight, lambda: (y * y).sum().backward(retain_graph=True))
            z = y * 2 if x.sum() > 0 else y - 1
            if handle:
                handle.remove()
            z.sum().backward()
            return z.detach()

        return trace(step), both_ways(), lambda: [weight, weight.grad]

    check(case, hits=hits)


@cases(hits=6)
def turned_after_a_write_where_it_may_raise(trace):
    w = torch.zeros(2)

    def fn(x, y):
        z = (x + 1).unsqueeze_(0)
        w.add_(1)
        z.squeeze_(0)
        try:
            return z @ y, tuple(z.shape)
        except RuntimeError:
            return z.t_() * 2, tuple(z.shape)

    good, bad = torch.ones(3, 2), torch.ones(4, 2)
    x = torch.arange(6.0).view(2, 3)
    factors = (good, good, good, bad, good, bad, bad, good, good, good)
    return trace(fn), [call(x, y) for y in factors], lambda: w


@cases(hits=2)
def temporary_transposed_then_read(trace):
    def fn(x):
        y = x * 1
        y.t_()
        y.unsqueeze_(0)
        return y * 2 if y[0, 0, 1] > 0 else y.squeeze_(0)

    x = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    return trace(fn), [call(k * x) for k in (1, 1, -1, -1, 1, -1)]


@cases(hits=2)
def resized_then_read(trace):
    def fn(x):
        y = x * 2
        y.resize_(2)
        return y + 1 if y.sum() > 0 else y

    return trace(fn), both_ways()


@cases(eager="read-after-change")
def argument_resized_then_read(trace):
    def fn(x):
        x.resize_(2)
        return (x + 1 if x.sum() > 0 else x), x

    return trace(fn), [call(k * X()) for k in (1, -1, 1, -1, -1, 1)]


@cases(hits=2)
def data_read_before(trace):
    def fn(x, w):
        w.data.add_(x)
        return x * w if w.data.sum() > 4 else x - w

    w = X(grad=True)
    return trace(fn), [call(k * X(), w) for k in (1, 1, 1, 1, -1, -1, -2, -2, 3, 3)]


@cases(hits=4)
def data_replaced_before(trace):
    def fn(x):
        y = x * 1
        y.data = x.data * 3
        return y * 2 if y.sum() > 0 else y

    return trace(fn), both_ways()


@cases(hits=2)
def index_put_then_read(trace):
    def fn(x, seen):
        seen[x > 0] = 1
        return x / seen.sum() if seen.sum() > 2 else seen * 1

    seen = torch.zeros(3)
    return trace(fn), [call(k * X(), seen) for k in (1, 1, 1, -1, -1, 1)] + [seen.zero_, call(X(), seen)]


@cases(hits=2)
def counter_that_wraps(trace):
    step = torch.zeros((), dtype=torch.long)

    def fn(x):
        step.add_(1)
        if step % 3 == 0:
            return x * 3
        return x + step

    return trace(fn), [call(X())] * 12, lambda: step


@cases(hits=2)
def out_argument_then_read(trace):
    def fn(x, out):
        torch.mul(x, 2, out=out)
        return out.sum() if out[0] > 0 else out

    out = torch.empty(3)
    return trace(fn), [call(k * X(), out) for k in (1, 1, -1, -1, 1)]


def written_behind_an_exit(name, write):
    """What a factory made before an exit is returned as itself by an operator behind it that writes there."""

    def make(trace):
        total = torch.zeros(1)

        def fn(x):
            total.add_(1)
            n = x.max().item()
            made = torch.empty(0) if name.startswith("empty") else torch.zeros(2)
            wide = torch.zeros(n)
            given = write(made, wide, x)
            return given is made, given.shape, made, given, wide

        steps = [call(torch.tensor([float(k), 1.0]).long()) for k in (3, 4, 9, 5, 3, 3)]
        return trace(fn), steps, lambda: total

    make.__name__ = f"written_behind_an_exit_{name}"
    cases(make, hits=1)


written_behind_an_exit("empty_as_out", lambda made, wide, x: torch.add(wide, 1, out=made))
written_behind_an_exit("empty_as_out_of_one_size", lambda made, wide, x: torch.add(x.float(), 1, out=made))
written_behind_an_exit("zeros_as_out", lambda made, wide, x: torch.add(x.float(), 1, out=made))
written_behind_an_exit("zeros_in_place", lambda made, wide, x: made.add_(x))


@cases(hits=4)
def an_opaque_function_shows_behind_an_exit_what_was_fed(trace):
    """What it gives shows memory of a tensor that was fed, and is another one: no gradient goes there."""
    weight, world = torch.ones(3, requires_grad=True), {"other": False}
    shown = opaque(trace, lambda h: h.detach() if world["other"] else h * 2)

    def fn(x, way):
        weight.grad = None
        h = x * weight.sum()
        h = h + shown(h) if way.item() > 0 else shown(h) + h
        h.square().mean().backward()
        return h.detach()

    steps = [call(X(), torch.tensor(1.0)) for _ in range(5)]
    steps += [lambda: world.update(other=True), *(call(X(), torch.tensor(k)) for k in (0.0, 1.0, 0.0, 1.0))]
    return trace(fn), steps, lambda: weight.grad


@cases(hits=2)
def write_to_an_alias_of_what_is_read(trace):
    def fn(x, y):
        y.add_(1)
        return x * 2 if x.sum() > 3 else x - 1

    x, z = X(), X()
    aliased = [call(x, x)] * 6 + [call(x, x[:])] * 3
    return trace(fn), [call(x, z), call(x, z), *aliased, call(z, z[:]), call(z, x)]


# ---------------------------------------------------------------- after random numbers
@cases(hits=2)
def dropout_then_branch(trace):
    def fn(x):
        y = F.dropout(x, 0.5)
        return F.dropout(y, 0.5) if y.sum() > 1 else y + torch.rand(3)

    return trace(fn), [call(X(grad=True))] * 14


@cases(hits=2)
def rejection_sampling(trace):
    def fn(n):
        kept = []
        while len(kept) < 2:
            u = torch.rand(2)
            if u.sum() < 1:
                kept.append(u)
        return torch.stack(kept) * n

    return trace(fn), [call(torch.ones(()))] * 12


@cases(hits=2)
def sampled_token_decides(trace):
    def fn(logits):
        tokens = []
        for _ in range(4):
            tokens.append(torch.multinomial(logits.softmax(0), 1))
            if tokens[-1].item() == 0:
                break
        return torch.cat(tokens)

    return trace(fn), [call(torch.zeros(3))] * 14


@cases(hits=2)
def random_write_then_read(trace):
    def fn(x):
        x.bernoulli_(0.5)
        return x * 2 if x.sum() > 1 else x - torch.rand(3)

    x = X()
    return trace(fn), [call(x)] * 12


@cases(hits=2)
def random_mask_then_more_random(trace):
    def fn(x):
        kept = x[torch.rand(3) > 0.5]
        return kept * torch.rand(kept.shape), torch.rand(2)

    return trace(fn), [call(X())] * 12


@cases(hits=2)
def stochastic_depth(trace):
    layers = [torch.nn.Linear(3, 3) for _ in range(3)]

    def fn(x):
        for layer in layers:
            if torch.rand(()) > 0.4:
                x = x + F.dropout(torch.tanh(layer(x)))
        return x

    return trace(fn), [call(X(grad=True))] * 16, lambda: [p for layer in layers for p in layer.parameters()]


@cases(hits=2)
def seed_between_calls(trace):
    def fn(x):
        return x * 2 if torch.rand(()) > 0.5 else x - torch.rand(3)

    steps = []
    for seed in (1, 2, 3, 1, 2, 3, 4, 5):
        steps += [lambda seed=seed: torch.manual_seed(seed), call(X()), call(X())]
    return trace(fn), steps


# ---------------------------------------------------------------- loops
@cases(hits=2)
def loop_with_a_write_until(trace):
    def fn(x, count):
        while x.norm() > 1:
            x = x * 0.5
            count.add_(1)
        return x

    count = torch.zeros(())
    return trace(fn), [call(X() * k, count) for k in (1, 1, 10, 10, 100, 1, 0.1, 1000, 10, 30, 1)]


@cases(hits=2)
def loop_in_place_until(trace):
    def fn(x):
        n = 0
        while x.abs().max() > 1:
            x.mul_(0.5)
            n += 1
        return n

    return trace(fn), [call(X() * k) for k in (1, 1, 10, 10, 100, 1, 0.1, 1000, 10, 30, 1)]


@cases(hits=2)
def loop_left_early(trace):
    def fn(x):
        out = []
        for row in x:
            if row.sum() < 0:
                continue
            if row.max() > 5:
                break
            out.append(row * 2)
        return out, len(out)

    rows = torch.tensor([[1.0, 2.0], [-1.0, 0.0], [6.0, 0.0], [1.0, 1.0]])
    orders = ([0, 1, 2, 3], [3, 2, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 3, 1, 2])
    return trace(fn), [call(rows[order]) for order in orders for _ in range(2)] * 2


@cases(hits=2)
def item_grows_a_list(trace):
    def fn(x):
        xs = [x[i].item() for i in range(3)]
        return torch.tensor(sorted(xs)) * x, max(xs)

    return trace(fn), both_ways(1) * 2


@cases(hits=2)
def shape_that_depends_on_values_in_a_loop(trace):
    def fn(x):
        for _ in range(3):
            x = x[x > x.mean()] if x.numel() > 1 else x + 1
        return x, x.shape[0]

    return trace(fn), [call(torch.linspace(a, 2, n)) for a in (-1, 1) for n in (9, 9, 3)] * 2


# ---------------------------------------------------------------- exceptions
@cases(hits=2)
def branch_that_raises(trace):
    def fn(x):
        x.add_(1)
        if x.sum() < 0:
            raise ValueError(f"sum {x.sum().item()}")
        return x * 2

    return trace(fn), [call(k * X()) for k in (1, 1, -5, -5, 1, -5, 1)]


@cases(hits=2)
def raises_after_random_numbers(trace):
    def fn(x):
        y = F.dropout(x)
        if y.sum() == 0:
            raise ValueError("nothing left")
        return y

    return trace(fn), [call(torch.tensor([1.0, 0.0]))] * 12


@cases(hits=2)
def caught_around_a_read(trace):
    def fn(x):
        try:
            if x.sum() < 0:
                raise ValueError
            y = x * 2
        except ValueError:
            y = x - 1
        finally:
            x.add_(1)
        return y

    return trace(fn), [call(k * X()) for k in (1, 1, -5, -5, 1, -5, 1)]


@cases(hits=1)
def item_of_several_elements(trace):
    def fn(x):
        x.add_(1)
        picked = x[x > 1]
        try:
            return picked.item()
        except RuntimeError:
            return picked.sum()

    return trace(fn), [call(torch.tensor(v)) for v in ([1.0, -1.0], [1.0, -1.0], [1.0, 2.0], [1.0, 2.0])] * 2


@cases(hits=2)
def index_out_of_range_is_caught(trace):
    def fn(x, i):
        x.mul_(2)
        try:
            return x[i] * 2
        except IndexError:
            return x

    return trace(fn), [call(X(), torch.tensor(i)) for i in (0, 0, 2, 5, 5, 0, -1, 5)]


@cases(hits=1)
def assertion_in_a_context_manager(trace):
    def fn(x):
        y = torch.rand(3)
        with torch.no_grad():
            if x.sum() <= 0:
                raise AssertionError("negative")
            y = y + x
        return y, torch.is_grad_enabled()

    return trace(fn), [call(k * X(grad=True)) for k in (1, 1, -1, -1, 1, -1)]


@cases(hits=2)
def raised_in_a_nested_function_and_caught(trace):
    @trace
    def inner(x):
        x.mul_(2)
        if x.sum() < 0:
            raise ValueError("inner")
        return x + 1

    def fn(x):
        try:
            return inner(x) * 2
        except ValueError as error:
            return x, str(error)

    return trace(fn), [call(k * X()) for k in (1, 1, -1, -1, 1, -1)]


# ---------------------------------------------------------------- literals, views, lifetimes
@cases(hits=2)
def literal_written_before_a_read(trace):
    def fn(x):
        y = torch.tensor([1.0, 2.0, 3.0])
        y.add_(x)
        y[0] = 5
        return y.mul_(2) if y.sum() > 10 else y

    return trace(fn), both_ways()


@cases(hits=2)
def literal_written_on_one_branch(trace):
    def fn(x):
        y = torch.tensor([1.0, 2.0, 3.0])
        if x.sum() > 0:
            y.add_(10)
        return y, torch.tensor([1.0, 2.0, 3.0]) + y

    return trace(fn), both_ways()


@cases(hits=2)
def literal_returned_and_written_by_the_caller(trace):
    inner = trace(lambda x: (torch.tensor([1.0, 2.0]), x * 2) if x.sum() > 0 else (torch.zeros(2), x))

    def use(x):
        literal, y = inner(x)
        literal.add_(100)
        return literal, y

    return use, both_ways()


@cases(hits=2)
def view_of_a_temporary_that_is_gone(trace):
    def fn(x):
        v = (x * 2)[1:]
        w = v.view(-1, 1)
        del v
        if x.sum() > 0:
            w.add_(1)
        return w * 3, w

    return trace(fn), both_ways()


@cases(hits=2)
def views_of_one_temporary_after_an_exit(trace):
    def fn(x):
        base = x * 2
        first, last = base[:2], base[1:]
        if x.sum() > 0:
            first.add_(1)
        last.mul_(3)
        return first, last, base

    return trace(fn), both_ways()


@cases(hits=2)
def detached_view_after_an_exit(trace):
    def fn(x):
        y = x * 2
        z = y.detach()
        if z.sum() > 0:
            z.add_(1)
        return y, z

    return trace(fn), [call((k * X()).requires_grad_()) for k in (1, 1, -1, -1, 1, -1)]


@cases(hits=2)
def input_returned_after_an_exit(trace):
    def fn(x, y):
        x.add_(1)
        return (x, y, x[:1]) if y.sum() > 0 else (y, x, y)

    y = X()
    return trace(fn), [call(X(), k * y) for k in (1, 1, -1, -1, 1, -1)]


@cases(hits=2)
def swapped_names_across_an_exit(trace):
    def fn(x, y):
        for _ in range(3):
            if x.sum() > y.sum():
                x, y = y, x
            x = x + 1
        return x, y

    return trace(fn), [call(a * X(), b * X()) for a in (1, -1, 2) for b in (1, 3) for _ in range(2)]


@cases(hits=2)
def generator_across_an_exit(trace):
    def fn(x):
        def rows():
            for i in range(3):
                x.add_(i)
                yield x[i] * 2

        total = x.sum() * 0
        for row in rows():
            total = total + row if row > 1 else total - row
        return total

    return trace(fn), [call(k * X()) for k in (1, 1, -1, -1, 1, -1)]


@cases(hits=2)
def scalar_from_before_the_exit(trace):
    def fn(x):
        x.add_(1)
        a = x[0].item()
        b = x[1].item()
        return (x * a, a) if b > 0 else (x * b, b)

    values = ([1.0, 2.0], [1.0, 2.0], [1.0, -3.0], [2.0, 2.0], [1.0, -3.0], [1.0, 2.0], [2.0, -3.0])
    return trace(fn), [call(torch.tensor(v)) for v in values]


# ---------------------------------------------------------------- nested functions and opaque steps
@cases(hits=2)
def nested_function_reads(trace):
    inner = trace(lambda x: x * 2 if x.sum() > 0 else x - 1)

    def fn(x):
        x.add_(1)
        return inner(inner(x) - 2)

    return trace(fn), [call(k * X()) for k in (1, 1, -1, -1, 5, 5, 1, -1)]


@cases(hits=2)
def nested_function_that_is_called_alone_too(trace):
    w = torch.zeros(3)

    @trace
    def inner(x):
        w.add_(x)
        return x * 2 if w.sum() > 2 else x - 1

    fn = trace(lambda x: inner(x) + inner(-x))
    steps = [call(X()), call(X()).of(inner), call(X()), call(-X()).of(inner), call(-X()), call(X())]
    return fn, steps * 2, lambda: w


@cases(hits=2)
def nested_only_on_one_branch(trace):
    inner = trace(lambda x: F.dropout(x) if x.sum() > 1 else x)

    def fn(x):
        return inner(x) * 2 if x.sum() > 0 else inner(-x) - 1

    return trace(fn), both_ways()


@cases(hits=2)
def opaque_before_and_after_a_read(trace):
    runs = []

    def noted(x):
        runs.append(len(runs))
        return x * 2

    step = opaque(trace, noted)

    def fn(x):
        y = step(x)
        z = step(y) if y.sum() > 0 else y - 1
        return step(z)

    return trace(fn), both_ways(), lambda: list(runs)


@cases(hits=2)
def opaque_writes_before_a_read(trace):
    w = torch.zeros(3)

    def write(x):
        w.add_(x)
        return w * 1

    step = opaque(trace, write)
    return (
        trace(lambda x: x * 2 if step(x).sum() > 2 else step(x) - 1),
        [call(k * X()) for k in (1, 1, 1, -1, -1, -3, 1)],
        lambda: w,
    )


@cases(hits=2)
def opaque_draws_before_a_read(trace):
    step = opaque(trace, lambda x: F.dropout(x, 0.5))
    fn = trace(lambda x: torch.rand(3) * x if step(x).sum() > 1 else step(x + 1))
    return fn, [call(X())] * 14


@cases(hits=2)
def scripted_between_reads(trace):
    def halve(x: torch.Tensor) -> torch.Tensor:
        x = x + 0
        while bool(x.norm() > 1):
            x = torch.tanh(x) * 0.5
        return x

    step = scripted(trace, halve)

    def fn(x):
        x.mul_(2)
        y = step(x) if x.sum() > 0 else x - 1
        return step(y * 3) if y.sum() < 1 else y

    return trace(fn), [call(k * X()) for k in (1, 1, -1, -1, 5, 5, 1, -1)]


@cases(hits=2)
def opaque_result_changes_shape_before_effects(trace):
    step = opaque(trace, lambda x: x[x > 0] * 2)

    def fn(x):
        y = step(x)
        x.add_(1)
        return y + 1 if y.numel() else x

    return trace(fn), [call(k * X()) for k in (1, 1, -1, -1, 1, -1)]


# ---------------------------------------------------------------- autograd
@cases(hits=2)
def gradients_through_branches(trace):
    w = X(grad=True)

    def fn(x):
        y = (x * w).sin()
        z = y * w if y.sum() > 0 else y.exp() - w
        return z.cumsum(0) if z[0] > 0 else z * y

    return trace(fn), [call(k * torch.linspace(0.5, 2, 3)) for k in (1, 1, -1, -1, 2, -2, 1)], lambda: w


@cases(hits=11)
def backward_inside_before_a_branch(trace):
    w = X(grad=True)

    def fn(x):
        (g,) = torch.autograd.grad((x * w).square().sum(), w)
        return g * 2 if g.sum() > 0 else x * w

    return trace(fn), both_ways(), lambda: w


@cases(hits=5)
def double_backward_through_a_branch(trace):
    def fn(x):
        y = x**3 if x.sum() > 0 else x**2 * 3
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return g * y if g.sum() > 5 else g

    return trace(fn), [call((k * X()).requires_grad_()) for k in (1, 1, -1, -1, 3, 3, 1)]


@cases(hits=2)
def hook_before_a_branch(trace):
    def fn(x):
        y = x * 2
        y.register_hook(lambda g: g * 10)
        return y if y.sum() > 0 else y * 3

    return trace(fn), [call((k * X()).requires_grad_()) for k in (1, 1, -1, -1)]


@cases(hits=2)
def saved_tensor_written_after_the_exit(trace):
    def fn(x):
        y = x.sin()
        z = y.exp()
        if x.sum() > 0:
            y.mul_(2)
        else:
            z.mul_(2)
        return y.sum() + z.sum()

    return trace(fn), [call((k * X()).requires_grad_()) for k in (1, 1, -1, -1, 1, -1)]


@cases(hits=2)
def grad_mode_switched_around_an_exit(trace):
    def fn(x):
        with torch.no_grad():
            y = x * 2
            if y.sum() > 0:
                y = y + x
        z = y * x
        with torch.set_grad_enabled(bool(z.sum() > 5)):
            return z * x, torch.is_grad_enabled()

    return trace(fn), [call((k * X()).requires_grad_()) for k in (1, 1, -1, -1, 3, 3, 1)]


@cases(hits=2)
def checkpoint_with_a_branch(trace):
    def block(x):
        y = F.dropout(x.sin(), 0.5)
        return y * 2 if y.sum() > 0.5 else y

    def fn(x):
        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) * x

    return trace(fn), [call(X(grad=True))] * 6


@cases(hits=2)
def trained_with_clipping(trace):
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)

    def loss(x):
        y = (x * w).square().sum()
        return y / y.detach() if y > 5 else y

    traced = trace(loss)

    def step(x):
        value = traced(x)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.detach()

    return step, [call(k * X()) for k in (1, 1, 3, 3, 1, 3, 1)], lambda: w


# ---------------------------------------------------------------- state on one branch
@cases(hits=2)
def state_read_on_one_branch(trace):
    o = {"k": 2.0}
    fn = trace(lambda x: x * o["k"] if x.sum() > 0 else x - 1)
    change = [call(k * X()) for k in (1, -1, 1, -1)]
    return fn, [*change, lambda: o.update(k=3.0), *change, lambda: o.update(k=torch.ones(3)), *change]


@cases(hits=2)
def state_read_before_on_the_other_branch(trace):
    o = {"k": 2.0, "m": 3.0}

    def fn(x):
        x.add_(1)
        return x * o["k"] if x.sum() > 0 else x * o["m"]

    steps = [call(k * X()) for k in (1, -3, 1, -3)]
    return trace(fn), [*steps, lambda: o.update(m=5.0), *steps, lambda: o.update(k=7.0), *steps]


@cases(hits=2)
def tensor_state_captured_on_one_branch(trace):
    weights = {"a": X(grad=True), "b": X() * 2}

    def fn(x):
        return x * weights["a"] if torch.rand(()) > 0.5 else x * weights["b"]

    def change():
        weights["a"], weights["b"] = weights["b"], weights["a"]

    return trace(fn), [*[call(X())] * 6, change, *[call(X())] * 6], lambda: weights


@cases(hits=2)
def shape_of_state_on_one_branch(trace):
    o = {"w": torch.ones(3)}
    fn = trace(lambda x: (x * 2 + o["w"], len(o["w"])) if x.sum() > 0 else (x, 0))
    steps = [call(k * X()) for k in (1, -1, 1, -1)]
    return fn, [
        *steps,
        lambda: o.update(w=torch.ones(1)),
        *steps,
        lambda: o.update(w=torch.ones(2, 3)),
        *steps,
    ]


@cases(hits=2)
def mode_changes_between_the_branches(trace):
    m = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
    torch.nn.init.ones_(m[0].weight)
    fn = trace(lambda x: m(x) if x.sum() > 0 else m(-x).detach())
    steps = [call(k * X()) for k in (1, -1, 1, -1)]
    return fn, [*steps, m.eval, *steps, m.train, *steps]


@cases(hits=2)
def same_read_other_guard(trace):
    flags = [True]

    def fn(x):
        return x * 2 if flags[0] and x.sum() > 0 else x - 1

    steps = [call(k * X()) for k in (1, -1, 1, -1)]
    return trace(fn), [
        *steps,
        lambda: flags.__setitem__(0, False),
        *steps,
        lambda: flags.__setitem__(0, True),
        *steps,
    ]


@cases(hits=2)
def module_swapped_on_one_branch(trace):
    m = torch.nn.ModuleDict({"a": torch.nn.ReLU(), "b": torch.nn.Tanh()})

    def swap():
        m["b"] = torch.nn.Sigmoid()

    fn = trace(lambda x: m["a"](x) if x.sum() > 0 else m["b"](x))
    steps = [call(k * X()) for k in (1, -1, 1, -1)]
    return fn, [*steps, swap, *steps]


# ---------------------------------------------------------------- metadata that Python reads
@cases(hits=2)
def python_numbers_from_reads(trace):
    def fn(x):
        k = int(x.sum())
        return x.repeat(k) if k > 0 else x[:k], f"{k:03d}", [k] * 2

    return trace(fn), [call(torch.tensor([v, 1.0])) for v in (1.0, 1.0, 2.0, 2.0, -2.0, 1.0, -2.0)]


@cases(hits=2)
def bool_of_nan(trace):
    def fn(x):
        return x * 2 if x.sum() == x.sum() else x.nan_to_num()

    bad = torch.tensor([1.0, float("nan")])
    return trace(fn), [call(x) for x in (torch.ones(2), torch.ones(2), bad, bad, torch.ones(2), bad)]


@cases(hits=2)
def negative_zero_read(trace):
    def fn(x):
        x.mul_(1)
        value = x.item()
        return x / 1, value, 1.0 if value == 0 else 2.0

    return trace(fn), [call(torch.tensor(v)) for v in (0.0, 0.0, -0.0, -0.0, 0.0, -0.0, 1.0)]


@cases(hits=2)
def big_integers_read(trace):
    fn = trace(lambda x: (x.item() + 1, x * 2))
    return fn, [call(torch.tensor(v)) for v in (2**62, 2**62, 2**62 + 1, 2**62 + 1, 0, 2**62)]


@cases(hits=2)
def complex_read(trace):
    fn = trace(lambda x: x * x.item() if x.item().real > 0 else x)
    return fn, [call(torch.tensor(v)) for v in (1 + 2j, 1 + 2j, -1j, -1j, 1 + 2j)]


@cases(hits=2)
def boolean_read_used_as_a_number(trace):
    fn = trace(lambda x: x * bool(x.sum() > 0) + (x.sum() > 0).item())
    return fn, both_ways()


@cases(hits=2)
def tree_of_four_branches(trace):
    def fn(x):
        x = x + 1
        x = x * 2 if x[0] > 0 else x * 3
        x = x - 5 if x[1] > 0 else x + 5
        return x.sin() if x[2] > 0 else x.cos()

    signs = [torch.tensor([a, b, c]) for a in (9.0, -9.0) for b in (9.0, -9.0) for c in (9.0, -9.0)]
    return trace(fn), [call(x) for x in [*signs, *signs[::-1]]]


@cases(hits=2)
def returns_of_different_kinds(trace):
    def fn(x):
        s = x.sum()
        if s > 5:
            return None
        if s > 1:
            return {"a": x, "b": [s]}
        return (x, x[:1], "neither") if s > -1 else s.item()

    return trace(fn), [call(k * X()) for k in (1, 5, 0.1, -5)] * 3


# ---------------------------------------------------------------- read, then changed, then an exit
@cases(eager="read-after-change")
def shape_read_before_a_transposition(trace):
    def fn(x):
        rows, step = x.shape[0], x.stride()
        x.t_()
        return (x * rows, step) if x.sum() > 0 else (x - rows, step)

    return trace(fn), [call(k * torch.arange(6.0).view(2, 3)) for k in (1, 1, -1, -1, 1, -1)]


@cases(eager="read-after-change")
def size_read_before_a_resize(trace):
    def fn(x):
        n = x.numel()
        x.resize_(2)
        return (x * n, len(x)) if x.sum() > 0 else (x - n, n)

    return trace(fn), [call(k * X()) for k in (1, -1, 1, -1, -1, 1)]


@cases(eager="read-after-change")
def requires_grad_read_before_a_write(trace):
    w = X(grad=True)

    def fn(x):
        before = x.requires_grad, x.is_leaf
        x.mul_(w)
        return (x * 2, before) if x.sum() > 0 else (x - 1, before)

    return trace(fn), [call(k * X()) for k in (1, 1, -1, -1, 1, -1)], lambda: w


@cases(eager="read-after-change")
def requires_grad_branch_before_a_write(trace):
    w = X(grad=True)

    def fn(x):
        y = x * 3 if x.requires_grad else x * 2
        x.mul_(w)
        return y * 2 if y.sum() > 0 else y - x

    return trace(fn), [call(k * X()) for k in (1, 1, -1, -1, 1, -1)], lambda: w


@cases(hits=4)
def gradient_read_before_backward(trace):
    w = X(grad=True)

    def fn(x):
        first = w.grad is None
        loss = (x * w).square().sum()
        loss.backward()
        return (loss * 2, first) if x.sum() > 0 else (loss - 1, first)

    def reset():
        w.grad = None

    steps = [call(k * X()) for k in (1, 1, -1)]
    return trace(fn), [*steps, reset, *steps, reset, call(-X()), reset, call(X())], lambda: [w, w.grad]


@cases(hits=3)
def gradient_added_to_before_an_exit(trace):
    w = X(grad=True)

    def fn(x):
        (x * w).sum().backward()
        return w.grad * 2 if x.sum() > 0 else w.grad - 1

    return trace(fn), [call(k * X()) for k in (1, 1, -1, -1, 1, -1)], lambda: [w, w.grad]


@cases(eager="sets-attribute")
def data_swapped_after_its_shape_was_read(trace):
    def fn(x, y):
        shape, dtype = x.shape, x.dtype
        x.data = y
        return (x * 2, shape, dtype) if y.sum() > 0 else (x - 1, shape, dtype)

    return trace(fn), [call(X(), torch.arange(3.0)[None] * k - 1) for k in (1, 1, -1, -1, 1, -1)]


@cases(eager="read-after-change")
def opaque_appends_to_what_was_read_before(trace):
    log = [1.0]

    def note(x):
        log.append(2.0)
        return x.sum()

    step = opaque(trace, note)

    def fn(x):
        n = len(log)
        return x * n if step(x) > 0 else x - n

    return trace(fn), [call(k * X()) for k in (1, -1, 1, -1, 1)], lambda: list(log)


@cases(eager="read-after-change")
def opaque_transposes_its_argument(trace):
    def turn(x):
        x.t_()
        return x.sum()

    step = opaque(trace, turn)

    def fn(x):
        rows = x.shape[0]
        return x * rows if step(x) > 0 else x - rows

    return trace(fn), [call(k * torch.arange(6.0).view(2, 3)) for k in (1, 1, -1, -1, 1, -1)]


@cases(eager="reads a tensor's value (aten::is_nonzero) after an in-place write to an argument or to state")
def hook_changes_what_was_read_before(trace):
    o, w = {"k": 2.0}, X(grad=True)
    w.register_hook(lambda g: o.update(k=o["k"] + 1))

    def fn(x):
        k = o["k"]
        (x * w).sum().backward()
        return x * k if x.sum() > 0 else x - k

    return trace(fn), [call(k * X()) for k in (1, -1, 1, -1, 1)], lambda: [o, w.grad]


@cases(hits=6)
def optimizer_step_before_a_read(trace):
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)

    def fn(x):
        optimizer.zero_grad()
        loss = (w * x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach() if w.sum() > 1 else loss.item()

    return trace(fn), [call(X())] * 8, lambda: [w, w.grad, optimizer.state[w]]


# The average hangs on the number of batches, which Python reads: each call is a way of its own.
@cases(hits=3)
def batch_norm_with_a_cumulative_average(trace):
    m = torch.nn.BatchNorm1d(3, momentum=None)

    def fn(x):
        y = m(x)
        return y * 2 if y[0, 0] > 0 else y - 1

    return trace(fn), [call(k * torch.arange(6.0).view(2, 3)) for k in (1, -1, 1, -1, 1)], lambda: m


@cases(hits=2)
def version_that_a_library_checks(trace):
    def fn(x):
        y = x.exp()
        before = y._version
        y.mul_(2)
        if x.sum() > 0:
            y.add_(1)
        return y, before, y._version

    return trace(fn), [call((k * X()).requires_grad_()) for k in (1, 1, -1, -1, 1)]


@cases(hits=2)
def identity_of_what_an_operator_returns(trace):
    def fn(x):
        y = x.contiguous()
        z = x.to(torch.float32)
        y.add_(1)
        same = y is x, z is y
        return (y, same) if z.sum() > 0 else (z * 2, same)

    square = torch.arange(4.0).view(2, 2) - 1
    return trace(fn), [call(k * t) for t in (square, square.t()) for k in (1, 1, -1, -1, 1, -1)]


@cases(hits=2)
def autocast_around_an_exit(trace):
    w = X(3, 3, grad=True)

    def fn(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w
            z = y * 2 if y.sum() > 0 else (y - 1) @ w
            return z, torch.is_autocast_enabled("cpu")

    return trace(fn), [call(k * torch.ones(2, 3)) for k in (1, 1, -1, -1, 1, -1)], lambda: w


@cases(hits=2)
def inference_mode_around_an_exit(trace):
    def fn(x):
        with torch.inference_mode():
            y = x * 2
            y = y + 1 if y.sum() > 0 else y - 1
        return y

    return trace(fn), both_ways()


# The first use of vmap in a process loads decompositions: that call is eager.
@cases(hits=3)
def vmap_before_and_after_an_exit(trace):
    def fn(x):
        y = torch.vmap(lambda row: row * 2 + row.sum())(x[None])
        x.add_(1)
        return torch.vmap(torch.sin)(y) if x.sum() > 0 else torch.func.grad(lambda t: t.sin().sum())(x)

    return trace(fn), [call(k * X()) for k in (1, 1, -5, -5, 1, -5)]


@cases(hits=2)
def nested_function_with_other_state_after_the_exit(trace):
    o = {"k": 1.0}
    inner = trace(lambda x: x * o["k"])

    def fn(x):
        x.add_(1)
        return inner(x) if x.sum() > 0 else inner(inner(x))

    steps = [call(k * X()) for k in (1, -5, 1, -5)]
    return trace(fn), [*steps, lambda: o.update(k=2.0), *steps, call(X()).of(inner), *steps]


@cases(hits=2)
def recursion_with_reads(trace):
    def fn(x, total):
        total.add_(1)
        return fn(x * 0.5, total) + 1 if x.norm() > 1 else x

    total = torch.zeros(())
    return trace(fn), [call(k * X(), total) for k in (0.1, 0.1, 1, 1, 4, 4, 0.1, 1, 16)]


@cases(hits=3)
def exit_inside_a_backward_hook(trace):
    w, o = X(grad=True), {"n": 0}

    def clip(g):
        if g.norm() > 1:
            o["n"] += 1
            return g / g.norm()
        return g

    w.register_hook(clip)

    def fn(x):
        (g,) = torch.autograd.grad((x * w).sum(), w)
        return g * 2

    return trace(fn), [call(k * X()) for k in (1, 0.1, 1, 0.1)], lambda: o


@cases(hits=2)
def exits_at_many_places_in_any_order(trace):
    def fn(x, total):
        for i in range(3):
            total.add_(x[i])
            x = x * 2 + torch.rand(()) if total > 0 else x.flip(0) - 1
        return x

    total = torch.zeros(())
    rows = [torch.tensor(v) for v in ([1.0, -2.0, 3.0], [-1.0, 2.0, -3.0], [0.0, 0.0, 5.0], [-5.0, 0.0, 1.0])]
    return trace(fn), [call(x, total) for x in [*rows, *rows[::-1], *rows]]


# ---------------------------------------------------------------- leaves that the call makes
def leaf_then_branch(trace, make):
    """Writes to state, makes a leaf by `make(seen, x)`, goes backwards, and branches."""
    count = torch.zeros(())

    def fn(x):
        seen = []
        count.add_(1)
        leaf = make(seen, x)
        (leaf * x).sum().backward()
        return (leaf.grad, seen, 1) if x.sum() > 0 else (leaf, seen, 2)

    steps = [call(torch.full((3,), float(v))) for v in (1, 1, -1, -1, 1, -1, 1, 1)]
    return trace(fn), steps, lambda: [count]


@cases(hits=4)
def a_factory_makes_a_leaf(trace):
    return leaf_then_branch(trace, lambda seen, x: torch.ones(3, requires_grad=True))


@cases(hits=4)
def a_tensor_is_used_before_it_is_a_leaf(trace):
    def make(seen, x):
        leaf = torch.zeros(3)
        seen.append(leaf * 2)
        return leaf.fill_(1).requires_grad_()

    return leaf_then_branch(trace, make)


@cases(eager="a tensor comes to require gradients in place")
def a_tensor_is_asked_before_it_is_a_leaf(trace):
    def make(seen, x):
        leaf = x * 1
        seen.append(leaf.requires_grad)
        leaf.requires_grad = True
        return leaf

    return leaf_then_branch(trace, make)


def index_by_a_size(trace, take):
    """By a number that follows from a size. At size 0 C code raises before it asks for the operator."""
    log, steps = {"ends": 0}, torch.zeros(())

    def fn(x):
        found = take(x, log)
        steps.add_(1)
        return found

    sizes = (5, 7, 5, 0, 3, 0, 4, 0)
    return trace(fn), [call(torch.ones(n)) for n in sizes], lambda: [log, steps]


@cases(hits=3)
def index_by_a_size_raises_through_finally(trace):
    def take(x, log):
        try:
            return x * 2 + x[x.numel() // 2]
        finally:
            log["ends"] += 1

    return index_by_a_size(trace, take)


@cases(hits=3)
def index_by_a_size_is_caught_before_finally(trace):
    def take(x, log):
        try:
            return x * 2 + x[x.numel() // 2]
        except IndexError:
            return x + 1
        finally:
            log["ends"] += 1

    return index_by_a_size(trace, take)


@cases(hits=3)
def index_by_a_size_raises_through_a_context_manager(trace):
    @contextlib.contextmanager
    def counted(log):
        try:
            yield
        finally:
            log["ends"] += 1

    def take(x, log):
        with contextlib.suppress(IndexError), counted(log):
            return x * 2 + x[x.numel() // 2]
        return x + 1

    return index_by_a_size(trace, take)


@cases.parametrize
def test_side_exits(make, expected):
    check(make, **expected)


# ---------------------------------------------------------------- threads
def branching(x, total):
    total.add_(1)
    y = x * 2 if x.sum() > 0 else x - 1
    return y + 1 if y[0] > 0 else y * 3


@pytest.mark.parametrize("warm", [False, True])
def test_threads_take_different_branches_at_once(warm):
    fn = lazytrace.traced(branching)
    inputs = [torch.tensor(v) for v in ([1.0, 1.0], [-1.0, 5.0], [-3.0, -3.0], [4.0, -9.0])]
    expected = [branching(x, torch.zeros(())) for x in inputs]
    if warm:
        [fn(x, torch.zeros(())) for x in inputs for _ in range(2)]
    gate = threading.Barrier(4)

    def work(number):
        gate.wait()
        total, wrong = torch.zeros(()), 0
        for turn in range(40):
            which = (number + turn) % 4
            wrong += not torch.equal(fn(inputs[which], total), expected[which])
        return wrong, total.item()

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    assert results == [(0, 40.0)] * 4
    assert fn.stats().calls == 160 + 8 * warm


def test_branches_are_counted_once_each():
    fn = lazytrace.traced(branching)
    total = torch.zeros(())
    for sign in (1, 1, -1, -1, 1, -1):
        fn(sign * torch.ones(2), total)
    assert total.item() == 6
    assert fn.stats().calls == 6


def test_no_warning_and_no_exception_of_its_own():
    fn = lazytrace.traced(lambda x: F.dropout(x) if torch.rand(()) > 0.5 else x.normal_())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(12):
            fn(torch.ones(3))
    assert fn.stats().proof_failures == 0
