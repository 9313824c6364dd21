"""In-place writes to arguments, to views of them, to state, and through out=."""

from __future__ import annotations

import torch

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


def on(x, times=3):
    return [call(x)] * times


@cases(hits=2)
def add_to_an_argument(trace):
    def fn(x):
        x.add_(1)
        return x

    return trace(fn), on(X())


@cases(hits=2)
def index_assignment(trace):
    def fn(x):
        x[0] = x[1] + 1
        x[1:] *= 2
        x[[0, 2]] += 1
        x[x > 3] = 0
        return x.sum()

    return trace(fn), [call(X(3)), call(X(3)), call(X(3))]


@cases(hits=2)
def write_through_a_view(trace):
    def fn(x):
        v = x.view(-1)[1:]
        v.mul_(2)
        return v

    return trace(fn), on(X())


@cases(hits=2)
def write_through_a_transpose(trace):
    def fn(x):
        x.t()[0].zero_()
        x.diagonal().add_(5)
        return x * 1

    return trace(fn), on(X(3, 3))


# The plain call raises, so there is nothing to replay.
@cases(eager="raised")
def write_to_an_expanded_input(trace):
    def fn(x):
        x.add_(1)
        return x * 2

    return trace(fn), [call(torch.zeros(1).expand(3))] * 3


@cases(hits=2)
def read_of_an_expanded_input(trace):
    return trace(lambda x: x * 2), [
        call(torch.ones(1).expand(3)),
        call(torch.ones(1).expand(3)),
        call(torch.ones(3)),
        call(torch.ones(3)),
    ]


@cases(hits=2)
def data_of_an_argument(trace):
    def fn(x):
        x.data.add_(1)
        return x * 2

    x = X(grad=True)
    return trace(fn), on(x)


@cases(hits=2)
def data_assigned(trace):
    def fn(x):
        x.data = x.data * 2
        return x * 1

    return trace(fn), on(X())


@cases(hits=2)
def data_assigned_outside(trace):
    w = torch.ones(3)

    def change():
        w.data = torch.full((3,), 7.0)

    return trace(lambda x: x * w), around(change, X())


@cases(hits=2)
def data_of_another_shape_outside(trace):
    w = torch.ones(3)

    def change():
        w.data = torch.ones(1, 3)

    return trace(lambda x: x * w), around(change, X())


@cases(hits=2)
def detached_and_written(trace):
    def fn(x):
        x.detach().mul_(2)
        return x * 1

    return trace(fn), on(X(grad=True))


@cases(hits=2)
def state_buffer(trace):
    total = torch.zeros(3)

    def fn(x):
        total.add_(x)
        return total * 2

    return trace(fn), on(X()), lambda: total


@cases(hits=2)
def state_tensor_rebound_then_written(trace):
    state = {"t": torch.zeros(3)}

    def fn(x):
        state["t"].add_(x)
        return state["t"] * 2

    return trace(fn), around(lambda: state.update(t=torch.ones(3)), X()), lambda: state["t"]


@cases(hits=2)
def parameter_under_no_grad(trace):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        with torch.no_grad():
            w.sub_(0.1 * x)
        return x * w

    return trace(fn), on(X()), lambda: w


@cases(eager="raised")
def leaf_that_requires_grad(trace):
    def fn(x):
        x.add_(1)
        return x

    return trace(fn), on(X(grad=True))


@cases(hits=2)
def non_leaf_that_requires_grad(trace):
    def fn(x):
        y = x * 2
        y.mul_(x)
        y[0] = 0
        return y

    return trace(fn), on(X(grad=True))


@cases(hits=2)
def saved_tensor_overwritten(trace):
    def fn(x):
        y = x.exp()
        y.add_(1)
        return y

    return trace(fn), on(X(grad=True))


@cases(hits=2)
def out_argument(trace):
    out = torch.empty(3)
    return trace(lambda x, out: torch.add(x, 1, out=out)), [call(X(), out)] * 3


@cases(hits=1)
def out_of_another_size(trace):
    fn = trace(lambda x, out: torch.add(x, 1, out=out))
    return fn, [call(X(), torch.empty(0)), call(X(), torch.empty(0)), call(X(), torch.empty(3))]


@cases(hits=2)
def out_of_state(trace):
    out = torch.zeros(3)

    def fn(x):
        torch.mul(x, 2, out=out)
        return out + 1

    return trace(fn), on(X()), lambda: out


@cases(hits=2)
def out_is_the_input(trace):
    return trace(lambda x: torch.neg(x, out=x)), on(X())


@cases(hits=2)
def resize_in_place(trace):
    def fn(x):
        x.resize_(5)
        x.zero_()
        return x.shape

    return trace(fn), [call(X()), call(X()), call(X())]


@cases(hits=2)
def metadata_in_place(trace):
    def fn(x):
        x.t_()
        x.unsqueeze_(0)
        return x * 2

    return trace(fn), [call(X(2, 3)), call(X(2, 3)), call(X(2, 3))]


@cases(hits=2)
def metadata_of_state_in_place(trace):
    w = torch.ones(2, 3)

    def fn(x):
        w.t_()
        return w * x

    return trace(fn), [call(torch.ones(1))] * 4, lambda: w


@cases(hits=2)
def copy_and_fill(trace):
    def fn(x, y):
        x.copy_(y)
        y.fill_(3)
        return x + y

    return trace(fn), [call(X(), X() + 1), call(X(), X() + 1), call(X(), X() + 1)]


@cases(hits=1)
def copy_of_another_dtype(trace):
    def fn(x, y):
        x.copy_(y)
        return x

    return trace(fn), [call(X(), X().double())] * 2


@cases(hits=2)
def scatter_and_index_add(trace):
    i = torch.tensor([0, 2])

    def fn(x):
        x.scatter_(0, i, 9.0)
        x.index_add_(0, i, torch.ones(2))
        return x.clone()

    return trace(fn), on(X())


@cases(hits=2)
def foreach_on_a_list_of_state(trace):
    ws = [torch.ones(3), torch.ones(2)]

    def fn(k):
        torch._foreach_add_(ws, 1.0)
        torch._foreach_mul_(ws, k)
        return [w.sum() for w in ws]

    return trace(fn), [call(2.0)] * 3, lambda: ws


@cases(hits=3)
def swap_tensors(trace):
    a, b = torch.ones(3), torch.zeros(3)
    return trace(lambda x: x * a), around(lambda: torch.utils.swap_tensors(a, b), X())


@cases(eager="tensor-escapes")
def set_to_other_memory(trace):
    a = torch.ones(3)

    def fn(x):
        a.set_(x)
        return a * 2

    return trace(fn), [call(X()), call(X()), call(X() + 1)], lambda: a


@cases(hits=1)
def requires_grad_of_an_argument(trace):
    def fn(x):
        x.requires_grad_(True)
        return x * 2

    return trace(fn), [call(X()), call(X()), call(X())]


@cases(hits=2)
def requires_grad_assigned_to_state(trace):
    w = torch.ones(3)

    def fn(x):
        w.requires_grad = not w.requires_grad
        return x * w

    return trace(fn), [call(X())] * 4, lambda: w


@cases(hits=2)
def requires_grad_of_state_outside(trace):
    w = torch.ones(3)
    return trace(lambda x: x * w), around(lambda: w.requires_grad_(), X()), lambda: w


@cases(hits=3)
def grad_cleared(trace):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        w.grad = None
        return x * w

    def change():
        w.grad = torch.ones(3)

    return trace(fn), around(change, X()), lambda: (w, w.grad)


@cases(hits=2)
def grad_written(trace):
    w = torch.ones(3, requires_grad=True)
    w.grad = torch.ones(3)

    def fn(x):
        w.grad.add_(x)
        return x * 2

    return trace(fn), on(X()), lambda: (w, w.grad)


@cases(hits=2)
def detach_in_place(trace):
    def fn(x):
        y = x * 2
        y.detach_()
        return y + x

    return trace(fn), on(X(grad=True))


@cases(eager="reads-of-tensor")
def version_counter(trace):
    def fn(x):
        x.add_(1)
        return x._version

    return trace(fn), on(X())


@cases(hits=1)
def zero_sized(trace):
    def fn(x):
        x.add_(1)
        return x.sum(), x

    return trace(fn), [
        call(torch.empty(0)),
        call(torch.empty(0)),
        call(torch.empty(0, 3)),
        call(torch.empty(0, 3)),
    ]


@cases(hits=1)
def pad_in_place_of_a_slice_of_state(trace):
    cache = torch.zeros(4, 3)

    def fn(x, i):
        cache[i] = x
        return cache[: i + 1].sum(0)

    return (
        trace(fn),
        [call(X(), 0), call(X(), 0), call(X(), 1), call(X(), 1), call(X() + 1, 2)],
        lambda: cache,
    )


# Each call writes at another position.
@cases(hits=2, recordings=1)
def position_in_a_tensor_of_state(trace):
    cache, at = torch.zeros(4, 3), torch.zeros((), dtype=torch.long)

    def fn(x):
        cache[at] = x
        at.add_(1)
        return cache.sum(0)

    return trace(fn), on(X()), lambda: (cache, at)


# Each call reads another position.
@cases(recordings=3)
def position_read_from_a_tensor_of_state(trace):
    cache, at = torch.zeros(4, 3), torch.zeros((), dtype=torch.long)

    def fn(x):
        i = int(at)
        cache[i] = x
        at.add_(1)
        return cache[: i + 1].sum(0)

    return trace(fn), on(X()), lambda: (cache, at)


@cases(hits=4)
def running_statistics_that_an_operator_updates_by_itself(trace):
    mean, variance = torch.zeros(3), torch.ones(3)

    def fn(x):
        return torch.batch_norm_update_stats(x, mean, variance, 0.1)[0] + mean

    return trace(fn), [call(X(4, 3)) for _ in range(6)], lambda: (mean, variance)


@cases(hits=6)
def running_statistics_that_are_looked_at_behind_it(trace):
    mean, variance = torch.zeros(3), torch.ones(3)

    def fn(x):
        torch.batch_norm_update_stats(x, mean, variance, 0.5)
        return x - mean if mean.sum() > 0 else x / variance

    return trace(fn), [call(X(4, 3) + k) for k in (-1, -1, 1, 1, -2, 1, 2, -1, 3)], lambda: (mean, variance)


@cases.parametrize
def test_mutation(make, expected):
    check(make, **expected)
