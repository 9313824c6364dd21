"""Arguments that are, share or overlap each other, state, and outputs."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tests.soundness.runner import Cases, Holder, X, around, call, check

cases = Cases()


@cases(hits=2)
def same_tensor_twice(trace):
    def fn(x, y):
        x.add_(1)
        return x * y

    a, b = X(), X()
    return trace(fn), [call(a, a), call(a, a), call(a, b), call(a, b), call(b, b)]


@cases(hits=1)
def overlapping_views(trace):
    def fn(x, y):
        x.mul_(2)
        return x + y

    base = torch.arange(4.0)
    return trace(fn), [
        call(base[:3], base[1:]),
        call(base[:3], base[1:]),
        call(base[:3], base[:3]),
        call(base[:3], torch.ones(3)),
        call(base[1:], base[:3]),
    ]


@cases(hits=2)
def argument_that_is_state(trace):
    w = torch.ones(3)

    def fn(x):
        x.add_(1)
        return x * w

    return trace(fn), [call(X()), call(X()), call(w), call(w), call(X())], lambda: w


@cases(hits=2)
def argument_that_views_state(trace):
    w = torch.ones(4)

    def fn(x):
        x.add_(1)
        return w * 2

    return trace(fn), [call(X(3)), call(X(3)), call(w[1:]), call(w[1:])], lambda: w


@cases(hits=3)
def identity_with_state(trace):
    w = torch.ones(3)
    fn = trace(lambda x: x * 2 if x is w else x * 3)
    return fn, [call(X()), call(X()), call(w), call(w), call(X())]


@cases(hits=3)
def identity_of_two_arguments(trace):
    fn = trace(lambda x, y: x * 2 if x is y else x * 3)
    a, b = X(), X()
    return fn, [call(a, a), call(a, a), call(a, b), call(a, b), call(b, b)]


@cases(eager="reads-of-tensor")
def view_relation_read(trace):
    fn = trace(lambda x: x._base is not None)
    return fn, [call(X(3)), call(X(3)), call(X(4)[:3]), call(X(4)[:3])]


@cases(eager="tensor-escapes")
def storage_offset_read(trace):
    base = torch.arange(6.0)
    fn = trace(lambda x: x * x.storage_offset())
    return fn, [call(base[0:2]), call(base[0:2]), call(base[2:4]), call(base[2:4])]


@cases(hits=3)
def as_strided(trace):
    base = torch.arange(6.0)
    fn = trace(lambda x: (x.as_strided((2,), (1,)), x.as_strided((2,), (1,), 0)))
    return fn, [call(base[0:2]), call(base[0:2]), call(base[2:4]), call(base[2:4])]


@cases(hits=2)
def tied_weights(trace):
    state = {"a": torch.ones(3), "b": torch.ones(3)}

    def fn(x):
        state["a"].add_(1)
        return x * state["b"]

    return trace(fn), around(lambda: state.update(b=state["a"]), X()), lambda: state


@cases(hits=2)
def untied_weights(trace):
    w = torch.ones(3)
    state = {"a": w, "b": w}

    def fn(x):
        state["a"].add_(1)
        return x * state["b"]

    return trace(fn), around(lambda: state.update(b=torch.zeros(3)), X()), lambda: state


@cases(hits=2)
def contiguity_branch(trace):
    fn = trace(lambda x: x * 2 if x.is_contiguous() else x * 3)
    return fn, [call(X(2, 2)), call(X(2, 2)), call(X(2, 2).t()), call(X(2, 2).t())]


@cases(hits=2)
def strides_of_outputs(trace):
    fn = trace(lambda x: (x + 1, x.contiguous(), x.t().contiguous(), x.reshape(-1), x.clone()))
    return fn, [call(X(2, 3)), call(X(2, 3)), call(X(3, 2).t()), call(X(3, 2).t())]


@cases(hits=2)
def channels_last(trace):
    x = X(1, 2, 3, 3)
    fn = trace(lambda x: torch.nn.functional.relu(x))
    return fn, [
        call(x),
        call(x),
        call(x.to(memory_format=torch.channels_last)),
        call(x.to(memory_format=torch.channels_last)),
    ]


@cases(hits=1)
def same_list_of_same_tensors(trace):
    def fn(items):
        items[0].add_(1)
        return sum(items)

    a = X()
    return trace(fn), [call([a, a]), call([a, a]), call([a, X()]), call([a, X()])]


@cases(hits=2)
def conjugate_and_negative(trace):
    z = torch.tensor([1 + 2j, 3 - 1j])
    fn = trace(lambda z: (z * 2, z.is_conj(), z.is_neg(), z.real))
    return fn, [call(z), call(z), call(z.conj()), call(z.conj()), call(z.conj().imag), call(z.conj().imag)]


@cases(hits=2)
def dtypes_and_zero_dim(trace):
    fn = trace(lambda x, y: x + y)
    f, d, i = torch.ones(2), torch.tensor(1.0, dtype=torch.float64), torch.tensor(1)
    return fn, [
        call(f, d),
        call(f, d),
        call(f, i),
        call(f, i),
        call(f, torch.ones(2).double()),
        call(i, f),
        call(f, 1),
        call(f, True),
        call(i, 1.5),
    ]


@cases(hits=1)
def wrapped_number(trace):
    fn = trace(lambda x, y: x * y)
    n = torch.tensor(2.0, dtype=torch.float64).sum()
    return fn, [
        call(torch.ones(2), n),
        call(torch.ones(2), n),
        call(torch.ones(2), 2.0),
        call(torch.ones(2), torch.ones(1).double()),
    ]


@cases(hits=2)
def requires_grad_and_leafness(trace):
    fn = trace(lambda x: (x * 2, x.requires_grad, x.is_leaf))
    return fn, [
        call(X()),
        call(X()),
        call(X(grad=True)),
        call(X(grad=True)),
        call(X(grad=True) * 1),
        call(X(grad=True) * 1),
    ]


@cases(hits=2)
def grad_of_an_argument_read(trace):
    def fn(x):
        return x * 2 if x.grad is None else x * x.grad

    x = X(grad=True)

    def change():
        x.grad = torch.full((3,), 4.0)

    return trace(fn), around(change, x)


@cases(eager="reads-of-tensor")
def grad_fn_of_an_argument_read(trace):
    fn = trace(lambda x: type(x.grad_fn).__name__)
    x = X(grad=True)
    return fn, [call(x * 2), call(x * 2), call(x + 1), call(x + 1)]


@cases(hits=2)
def hooks_on_an_argument(trace):
    seen = []

    def hooked():
        x = X(grad=True)
        y = x * 1
        y.register_hook(lambda g: seen.append(g.sum().item()))
        return y

    return trace(lambda x: x * 3), [call(hooked()), call(hooked()), call(hooked())], lambda: list(seen)


@cases(eager="uses a tensor of unknown origin")
def data_of_two_tensors_of_one_memory(trace):
    """Of which of the two it was read is no more than the memory tells, and at the next call that differs."""
    state = {"a": torch.tensor([0.1, 0.2, 0.3])}
    state["b"] = state["a"].detach()

    def fn(x):
        first, second = state["a"].data, state["b"].data
        return first.mul(x), second.sin()

    def apart():
        state["b"] = torch.tensor([0.4, 0.5, 0.6])

    return trace(fn), around(apart, X())


@cases(hits=3)
def data_of_a_tensor_that_is_read_twice(trace):
    state = {"a": torch.tensor([0.1, 0.2, 0.3])}

    def other():
        state["a"] = torch.tensor([0.4, 0.5, 0.6])

    return trace(lambda x: (state["a"].data * x, state["a"].data.sin())), around(other, X())


@cases(hits=3)
def data_of_data(trace):
    """`.cpu()` gives the tensor itself, and no step sees the `.data` between."""
    state = {"a": torch.tensor([0.1, 0.2, 0.3])}

    def other():
        state["a"] = torch.tensor([0.4, 0.5, 0.6])

    def fn(x):
        y = x * 2
        y.data.cpu().data.add_(1)
        return state["a"].data.data.cpu().data * x, y

    return trace(fn), around(other, X())


@cases(eager="uses a tensor of unknown origin")
def data_of_data_of_two_tensors_of_one_memory(trace):
    state = {"a": torch.tensor([0.1, 0.2, 0.3])}
    state["b"] = state["a"].detach()

    def fn(x):
        first, second = state["a"].data, state["b"].data.data
        return first.data.mul(x), second.sin()

    def apart():
        state["b"] = torch.tensor([0.4, 0.5, 0.6])

    return trace(fn), around(apart, X())


@cases(hits=1)
def data_of_a_computed_tensor_before_an_exit(trace):
    def fn(x):
        x.add_(1)
        y = x + 1
        y.data.mul_(2)
        return y * 2 if x.sum().item() > 3 else y

    return trace(fn), [call(torch.tensor([v])) for v in (0.0, 0.5, 4.0, 1.0, 5.0)]


def stepping_on_a_count(first, second):
    """A step that writes to the first tensor, adds the second one to a count, and looks at that."""
    torch.manual_seed(0)
    net, count = nn.Linear(3, 2), torch.zeros(1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x, *given):
        one, other = given or (first(), second())
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        one.add_(1)
        count.add_(other[0])
        if count.item() > 40:
            optimizer.step()
        return loss.detach()

    return step, lambda: (list(net.parameters()), count)


@cases(hits=14)
def arrays_that_are_one_at_some_calls(trace):
    step, watch = stepping_on_a_count(None, None)
    one = lambda: [torch.from_numpy(array) for array in [np.zeros(4, dtype=np.float32)] * 2]  # noqa: E731
    two = lambda: [torch.zeros(4), torch.zeros(4)]  # noqa: E731
    return trace(step), [call(X(2, 3), *(one() if i % 2 or i > 12 else two())) for i in range(18)], watch


@cases(hits=14)
def arrays_that_overlap_at_some_calls(trace):
    step, watch = stepping_on_a_count(None, None)

    def given(i):
        array, other = np.zeros(4, dtype=np.float32), np.zeros(3, dtype=np.float32)
        return [torch.from_numpy(a) for a in (array, array[1:] if i in (7, 8, 11, 12) else other)]

    return trace(step), [call(X(2, 3), *given(i)) for i in range(18)], watch


@cases(hits=14)
def state_that_comes_to_share_memory(trace):
    state = Holder(one=torch.zeros(4), other=torch.zeros(3))
    step, watch = stepping_on_a_count(lambda: state.one, lambda: state.other)

    def share():
        state.other = torch.from_dlpack(state.one)[1:]

    steps = [call(X(2, 3)) for _ in range(10)]
    return trace(step), [*steps, share, *[call(X(2, 3)) for _ in range(8)]], lambda: (watch(), vars(state))


@cases.parametrize
def test_aliasing(make, expected):
    check(make, **expected)
