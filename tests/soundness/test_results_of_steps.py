"""What a step gives at a later call: its argument or a new tensor, one tensor or two, more or fewer."""

from __future__ import annotations

import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, Holder, X, call, check, opaque

cases = Cases()


# ---------------------------------------------------------------- a leaf or not, with a gradient or without
def one_call_of_three(trace, one, others, use):
    """What an opaque function gives: another kind of tensor at each third call."""
    calls = []

    def give(x):
        calls.append(1)
        return one(x) if len(calls) % 3 == 0 else others(x)

    given = opaque(trace, give)
    return trace(lambda x: use(given(x))), [call(X() * k) for k in range(1, 9)]


@cases(hits=5, eager="resumes-after-opaque")
def leaf_or_not(trace):
    w = torch.ones(3, requires_grad=True)

    def use(y):
        return (y * 2 if y.grad_fn is None else y * 3), y.is_leaf

    return one_call_of_three(trace, lambda x: x * w, lambda x: x.clone().requires_grad_(), use)


@cases(hits=3, eager="resumes-after-opaque")
def with_a_gradient_or_without(trace):
    def made(x):
        y = x.clone().requires_grad_()
        y.grad = torch.ones(3)
        return y

    return one_call_of_three(trace, made, lambda x: x.clone().requires_grad_(), lambda y: y.grad is None)


# ---------------------------------------------------------------- its argument, or a new tensor
@cases(hits=2)
def contiguous_gives_either_at_other_strides(trace):
    def fn(x):
        y = x.contiguous()
        return y is x, y + 1

    inputs = [torch.ones(3, 2).t(), torch.ones(4, 2).t(), torch.ones(3, 2), torch.ones(2, 2)] * 2
    return trace(fn, dynamic=True), [call(x) for x in inputs]


@cases(hits=2)
def contiguous_gives_either_after_a_write(trace):
    count = torch.zeros(())

    def fn(x):
        count.add_(1)
        return x.contiguous() is x

    inputs = [torch.ones(3, 2).t(), torch.ones(4, 2).t(), torch.ones(3, 2), torch.ones(2, 2)] * 2
    return trace(fn, dynamic=True), [call(x) for x in inputs], lambda: count


def sparse(coalesced):
    made = torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.ones(2), (3,))
    return made.coalesce() if coalesced else made


@cases(hits=4)
def coalesce_gives_either(trace):
    state, count = Holder(s=sparse(False)), torch.zeros(())

    def fn(x):
        count.add_(1)
        c = state.s.coalesce()
        c.mul_(x)
        return c.to_dense(), c is state.s

    def put(coalesced):
        return lambda: setattr(state, "s", sparse(coalesced))

    two = [call(torch.tensor(2.0))] * 2
    steps = [*two, put(True), *two, put(False), *two, put(True), *two]
    return trace(fn), steps, lambda: (state.s, count)


@pytest.mark.parametrize("first", [0, 1])
def test_opaque_function_gives_either(first):
    def make(trace):
        state = Holder(k=first)

        def step(x):
            state.k += 1
            return x if state.k % 2 else x * 2

        step = opaque(trace, step)

        def fn(x):
            y = step(x)
            y.mul_(3)
            return x + 1, y, y is x

        return trace(fn), [call(X()) for _ in range(6)], lambda: state

    check(make, hits=2, eager="resumes-after-opaque")


@pytest.mark.parametrize("first", [0, 1])
def test_opaque_function_gives_one_tensor_or_two(first):
    def make(trace):
        state = Holder(k=first)

        def step(x):
            state.k += 1
            y = x * 2
            return (y, y) if state.k % 2 else (y, y.clone())

        step = opaque(trace, step)

        def fn(x):
            a, b = step(x)
            a.add_(1)
            return a, b, a is b

        return trace(fn), [call(X()) for _ in range(6)], lambda: state

    check(make, hits=2, eager="resumes-after-opaque")


def test_like_does_not_say_which_tensor_it_is():
    state = Holder(k=0)

    @lazytrace.opaque(like=(torch.empty(3), torch.empty(3)))
    def step(x):
        state.k += 1
        y = x * 2
        return (y, y) if state.k < 3 else (y, y.clone())

    fn = lazytrace.traced(lambda x: [t is step for t in step(x)])
    fn(X()), fn(X())
    with pytest.raises(lazytrace.ReplayError, match="one tensor in other places"):
        fn(X())


# ---------------------------------------------------------------- gradients
@cases(hits=4, eager="given-and-found")
def gradient_that_is_a_tensor_of_the_state_later(trace):
    w, g, state = torch.zeros(3, requires_grad=True), torch.ones(3), Holder(k=0)

    def hook(parameter):
        if state.k:
            parameter.grad = g

    w.register_post_accumulate_grad_hook(hook)

    def fn(x):
        (x * w).sum().backward()
        y = w.grad
        z = g + 1
        w.grad = None
        return y * 2, z, y is g

    def put(k):
        return lambda: setattr(state, "k", k)

    three = [call(X())] * 3
    return trace(fn), [*three, put(1), *three, put(0), *three], lambda: (w, g)


# What is found in the state is not one thing with what was given, at the next call.
@cases(eager="given-and-found")
def gradient_that_is_found_in_the_state(trace):
    w, state = torch.zeros(3, requires_grad=True), Holder(g=torch.ones(3))
    w.grad = state.g

    def fn(x):
        y = w.grad * x
        z = state.g + 1
        state.g.add_(1)
        return y, z, w.grad * 1

    def part():
        w.grad = torch.ones(3) * 5

    def join():
        w.grad = state.g

    three = [call(X())] * 3
    return trace(fn), [*three, part, *three, join, *three], lambda: (w, w.grad, state.g)


GIVEN = {
    "opaque": lambda trace, give: opaque(trace, give),
    "function": lambda _, give: function_of(give).apply,
}


def function_of(give):
    class Given(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return give(x)

        @staticmethod
        def backward(ctx, g):
            return g

    return Given


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize("first", [0, 1])
def test_given_and_found_in_the_state(kind, first):
    def make(trace):
        g, state = torch.ones(3), Holder(k=first)
        step = GIVEN[kind](trace, lambda x: g if state.k else x * 2)

        def fn(x):
            y = step(x)
            z = g + 1
            return y * 2, z, y is g

        def turn():
            state.k = 1 - state.k

        three = [call(X())] * 3
        return trace(fn), [*three, turn, *three, turn, *three], lambda: g

    check(make, hits=0 if first else 4, eager="given-and-found")


@cases(hits=3)
def gradient_of_another_size_is_refused(trace):
    w, count = torch.zeros(2, requires_grad=True), torch.zeros(())

    def fn(x):
        count.add_(1)
        y = x[x > 0]
        try:
            w.grad = y
        except RuntimeError:
            return x - 1
        return x + 1

    values = ([1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, -1.0], [1.0, -1.0], [1.0, 2.0], [3.0, 2.0])
    return trace(fn), [call(torch.tensor(v)) for v in values], lambda: (w, w.grad, count)


@cases(hits=3)
def gradient_of_another_size_is_refused_and_caught(trace):
    w, count = torch.zeros(3, requires_grad=True), torch.zeros(())

    def fn(x):
        count.add_(1)
        try:
            w.grad = x * 2
        except RuntimeError:
            return x - 1
        return x + 1

    return (
        trace(fn, dynamic=True),
        [call(torch.ones(n)) for n in (3, 3, 3, 4, 4, 3, 1)],
        lambda: (w.grad, count),
    )


@cases(hits=3)
def gradient_of_another_size_raises(trace):
    w = torch.zeros(3, requires_grad=True)

    def fn(x):
        w.grad = x * 2
        return x + 1

    return trace(fn, dynamic=True), [call(torch.ones(n)) for n in (3, 3, 3, 4, 4, 3, 1)], lambda: w.grad


# ---------------------------------------------------------------- entries of sparse tensors
SPARSE = {
    "values": lambda x: x.to_sparse().values(),
    "indices": lambda x: x.to_sparse().indices(),
    "col_indices": lambda x: x[None].to_sparse_csr().col_indices(),
    "row_indices": lambda x: x[None].to_sparse_csc().row_indices(),
    "block_values": lambda x: torch.diag(x).to_sparse_bsr((2, 2)).values(),
    "coalesced": lambda x: torch.cat([x.to_sparse()] * 2).coalesce().values(),
    "inferred_size": lambda x: torch.sparse_coo_tensor(x.long()[None], torch.ones(4)).to_dense()[:1],
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("dynamic", [None, False])
def test_entries_after_a_write(name, dynamic):
    def make(trace):
        count = torch.zeros(())

        def fn(x):
            count.add_(1)
            return SPARSE[name](x) * 2

        first = [[1, 0, 2, 0], [3, 0, 1, 0], [1, 1, 1, 1], [2, 1, 4, 1], [0, 0, 0, 5], [0, 0, 0, 0]]
        values = [*first, *first]
        run = trace(fn, dynamic=dynamic) if trace.enabled else fn
        return run, [call(torch.tensor(v).float()) for v in values], lambda: count

    check(make, hits=2)


@cases(hits=3)
def gradients_of_a_sparse_embedding(trace):
    table = torch.nn.Embedding(5, 3, sparse=True)

    def fn(i):
        table.weight.grad = None
        table(i).sum().backward()
        return table.weight.grad.coalesce().values()

    return trace(fn), [call(torch.tensor(v)) for v in ([0, 1], [0, 1], [2, 2], [1, 1], [0, 4], [3], [3])]


# ---------------------------------------------------------------- without sizes
@cases(eager="nested-tensor")
def nested_tensor_of_the_state(trace):
    state = Holder(t=torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)]))

    def fn(x):
        inside = state.t.data
        return x * 2, inside.is_nested, inside.unbind()[0] + 1

    return trace(fn, dynamic=True), [call(X()), call(X()), call(X())]


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)
