"""Shorter ways in programs that fit all sizes: without gradients, where they are taken."""

from __future__ import annotations

import types

import pytest
import torch
import torch.nn.functional as F

import lazytrace
from tests.soundness.runner import Cases, agree, call, check
from tests.soundness.test_sizes import FOLLOWED, of_text

cases = Cases()
SIZES = (3, 5, 1, 0, 2, 11, 3, 1, 7, 0, 4)


def off():
    torch.set_grad_enabled(False)


def without_gradients(function, *inputs, **options):
    """Calls at several sizes; the runner puts the mode back."""
    inputs = inputs or [torch.randn(n, 4) for n in SIZES]
    return lambda trace: (trace(function, dynamic=True, **options), [off, *map(call, inputs)])


@pytest.mark.parametrize("text", FOLLOWED)
def test_followed_without_gradients(text):
    inner = of_text(text)
    check(without_gradients(lambda x: inner(x)), hits=7)
    # Inside a program, and used up by it.
    check(without_gradients(lambda x: inner(torch.relu(x))), hits=7)


@cases(hits=7)
def a_copy_at_one_size_that_is_a_view_at_another(trace):
    def fn(x):
        y = torch.relu(x).t()
        z = y.reshape(-1)
        return z, x.t().reshape(-1)

    return without_gradients(fn)(trace)


@cases(hits=7)
def its_memory_is_written_to(trace):
    def fn(x):
        y = torch.relu(x)
        z = y.t().reshape(-1)
        z.add_(1)
        return y, z

    return without_gradients(fn)(trace)


@cases(hits=7)
def versions_of_what_leaves(trace):
    def fn(x):
        y = torch.relu(x).t()
        z = y.contiguous()
        w = y.reshape(y.shape[0], -1, 1)
        return y, z, w

    def watched(trace):
        made = trace(fn, dynamic=True)

        def run(x):
            y, z, w = made(x)
            y.add_(1)
            return y, z, w, [t._version for t in (y, z, w)], [t._base is None for t in (y, z, w)]

        return run, [off, *[call(torch.randn(n, 4)) for n in SIZES]]

    return watched(trace)


@cases(hits=7)
def what_gives_its_argument_back(trace):
    def fn(x):
        y = torch.relu(x)
        z = F.dropout(y.to(torch.float32), 0.5, False).type_as(x)
        return z, z is y, y.to("cpu") is z

    return without_gradients(fn)(trace)


@cases(hits=5)
def dropout_that_has_nothing_to_do_at_one_size(trace):
    def fn(x):
        y = torch.relu(x)
        z = F.dropout(y, 0.5, True)
        return z + 1, z is y

    return without_gradients(fn)(trace)


@cases(hits=5)
def dropout_that_has_nothing_to_do_after_it_was_asked_for(trace):
    def fn(x):
        y = x * 2
        z = F.dropout(y, 0.5, True)
        return [z + 1] if z is y else z

    return trace(fn, dynamic=True), [call(torch.randn(n, 4)) for n in SIZES]


@cases(hits=5)
def an_opaque_function_that_gives_back_its_argument_at_one_size(trace):
    @lazytrace.opaque
    def shorten(y):
        return y if y.shape[0] < 4 else y[:3].clone()

    def fn(x):
        y = x * 2
        z = shorten(y)
        return [z + 1] if z is y else z

    return trace(fn, dynamic=True), [call(torch.randn(n, 4)) for n in (5, 6, 2, 7, 3, 5, 2, 1, 8, 9)]


@cases(hits=5)
def a_memory_format_that_one_size_has_already(trace):
    def fn(x):
        y = torch.relu(x)
        z = y.to(memory_format=torch.channels_last)
        return z * 2, z is y

    return without_gradients(fn, *[torch.randn(2, n, 1 + n % 2, 3) for n in (3, 1, 4, 1, 3, 2, 1, 5)])(trace)


def values_set(trace, key, columns=4, grad=False, **options):
    """A loose value is put where a mask or an index says."""
    w = torch.ones(columns, requires_grad=grad)

    def fn(x, count):
        y = torch.zeros(count.numel() + 3, x.shape[0] + 1, columns)
        y[key(y, x)] = x * w
        return y.sum(-1), y * x.shape[0]

    rows = (3, 5, 1, 2, 7, 1, 3, 4, 2, 6)
    return trace(fn, **options), [call(torch.randn(n, columns), torch.ones(3)) for n in rows]


@cases(hits=7)
def values_set_by_a_mask(trace):
    def key(y, x):
        mask = torch.zeros(y.shape[:2], dtype=torch.bool)
        mask[0, : x.shape[0]] = True
        return mask

    return values_set(trace, key, dynamic=True)


@cases(hits=7)
def values_set_by_an_index(trace):
    return values_set(trace, lambda y, x: (slice(0, 2), torch.arange(x.shape[0])), grad=True)


@cases(hits=5)
def values_set_with_leading_ones(trace):
    def fn(x, index):
        y = torch.zeros(12, 4)
        y[index] = x
        return y

    steps = [call(torch.randn(n, 1, 4), torch.arange(m)) for n, m in ((1, 3), (3, 1), (1, 5), (1, 1), (1, 2))]
    return trace(fn, dynamic=True), [*steps, *steps]


@cases(hits=5)
def values_set_that_do_not_fit(trace):
    def fn(x, index):
        y = torch.zeros(12, 4)
        try:
            y[index] = x
        except (RuntimeError, IndexError) as error:
            return type(error).__name__, str(error)
        return y

    pairs = ((3, 3), (2, 2), (3, 4), (1, 4), (5, 5), (0, 0), (4, 4), (2, 5), (6, 6), (7, 7))
    steps = [call(torch.randn(n, 4), torch.arange(m)) for n, m in pairs]
    return trace(fn, dynamic=True), [*steps, *steps]


@cases(hits=5)
def a_slice_that_ends_at_a_size_before_an_exit(trace):
    """What torch compares a slice with is the size of this call: no number of the program."""
    total = torch.zeros(())

    def fn(x):
        total.add_(1)
        y = torch.ones(x.shape[0] + 1) * (x.shape[0] + 3)
        y[: x.shape[0]] = 0.5
        return y * 2 if x.shape[0] == 2 else y

    return trace(fn, dynamic=True), [call(torch.randn(n)) for n in (5, 4, 2, 3, 2, 6, 1)], lambda: total


@cases(hits=5)
def dimensions_that_come_and_go(trace):
    def fn(x):
        y = torch.relu(x).squeeze()
        return y * 2, (y + x.squeeze()).sum()

    return without_gradients(fn)(trace)


@cases(hits=5)
def dimensions_that_come_and_go_after_a_write(trace):
    state = types.SimpleNamespace(total=torch.zeros(()))

    def fn(x):
        state.total.add_(x.sum())
        y = torch.relu(x).squeeze()
        return y * state.total

    return *without_gradients(fn)(trace), lambda: state.total


@cases(hits=4)
def an_operator_that_raises_at_one_size(trace):
    def fn(x):
        y = torch.relu(x)
        return y.view(-1, 2).softmax(-1) @ torch.ones(2, 1)

    return without_gradients(fn, *[torch.randn(n, 3) for n in (2, 4, 3, 6, 5, 8, 2)])(trace)


@cases(hits=4)
def an_operator_that_is_caught_at_one_size(trace):
    def fn(x):
        y = torch.relu(x)
        try:
            return y.view(-1, 2) * 3
        except RuntimeError as error:
            return str(error)

    return without_gradients(fn, *[torch.randn(n, 3) for n in (2, 4, 3, 6, 5, 8, 2, 3)])(trace)


@cases(hits=4)
def a_cache_of_an_object_that_is_passed(trace):
    class Layer:
        def __init__(self):
            self.keys, self.is_initialized = None, False

        def update(self, keys):
            if not self.is_initialized:
                self.keys, self.is_initialized = torch.tensor([]), True
            self.keys = torch.cat([self.keys, keys], dim=-2)
            return self.keys

    def fn(cache, x):
        keys = cache.update(x)
        return torch.softmax(x @ keys.mT, -1) @ keys

    made = trace(fn)
    caches = [Layer(), Layer(), Layer()]
    steps = [call(cache, torch.randn(1, n, 4)) for cache, n in zip(caches, (8, 5, 11), strict=True)]
    later = [call(cache, torch.randn(1, 1, 4)) for cache in caches for _ in range(3)]
    return made, [off, *steps, *later], lambda: [cache.keys for cache in caches]


# ---------------------------------------------------------------- the sizes of the recording, met again
AGAIN = (3, 5, 3, 3, 1, 3, 0, 3, 5, 3)


@pytest.mark.parametrize("text", FOLLOWED)
def test_the_sizes_of_the_recording_come_back(text):
    inner = of_text(text)
    inputs = [torch.randn(n, 4) for n in AGAIN]
    check(without_gradients(lambda x: inner(torch.relu(x)), *inputs), hits=5)


def with_numbers(function, *numbers):
    """Tensors of the sizes of the recording, and numbers that are others at each call."""
    x = torch.randn(6, 4)
    calls = [call(x if i % 3 else torch.randn(6, 4), *one) for i, one in enumerate(numbers)]
    return lambda trace: (trace(function, dynamic=True), [off, *calls])


PARTS = {
    "slice": lambda y, n: y[:n] * 2,
    "slice from": lambda y, n: y[n:] * 2,
    "both ends": lambda y, n: y[1:n].t() + 1,
    "narrow": lambda y, n: y.narrow(0, n, 2) + 1,
    "select": lambda y, n: y[n] + y.select(0, n),
    "unflatten": lambda y, n: y.reshape(-1).unflatten(0, (2, 12)).t()[:, :1].expand(12, n) * 2,
    "split": lambda y, n: [part * 2 for part in y.split([n, 6 - n])],
    "factor": lambda y, n: (y * n, n - y, y / n, y.pow(n)),
    "sizes": lambda y, n: torch.zeros(n, 4) + y[0],
    "as_strided": lambda y, n: y.as_strided((2, 2), (1, 1), n) + 1,
    "roll": lambda y, n: y.roll(n, 0).flip(1) * 2,
    "diagonal": lambda y, n: y.diagonal(n - 2) * 2,
}


@pytest.mark.parametrize("name", PARTS)
def test_numbers_say_what_is_shown(name):
    part = PARTS[name]
    numbers = [(n,) for n in (2, 3, 2, 1, 4, 2, 3, 2)]
    check(with_numbers(lambda x, n: part(torch.relu(x), n), *numbers), hits=2)


@cases(hits=6)
def other_strides_of_the_same_sizes(trace):
    def fn(x):
        y = x * 2
        return y.t().reshape(-1) + 1, y.sum(0), (y.t() @ y).tanh()

    same = torch.randn(4, 4)
    inputs = [same, same.t(), same, torch.randn(4, 8)[:, ::2], same.t(), same, torch.randn(4, 4)]
    return without_gradients(fn, *inputs, same)(trace)


@cases(hits=6)
def state_that_has_other_sizes_for_a_while(trace):
    state = types.SimpleNamespace(w=torch.randn(4, 4), cache=torch.zeros(0, 4))

    def fn(x):
        y = torch.relu(x @ state.w)
        state.cache = torch.cat([state.cache, y])
        return (y @ state.cache.t()).softmax(-1) @ state.cache, state.cache.mean(0) * 2

    def forget():
        state.cache = torch.zeros(0, 4)

    x = torch.randn(1, 4)
    calls = [call(x), call(x), call(x), forget, call(x), call(x), call(torch.randn(2, 4)), call(x), call(x)]
    return trace(fn, dynamic=True), [off, *calls]


@cases(hits=5)
def a_weight_that_comes_to_require_gradients(trace):
    """linear and matmul take other kernels for what requires them."""
    w = torch.randn(5, 4)

    def fn(x):
        return F.linear(x.transpose(0, 1), w).relu(), torch.matmul(x.transpose(0, 1), w.t())

    def require():
        w.requires_grad_(not w.requires_grad)

    x, other = torch.randn(3, 2, 4), torch.randn(2, 2, 4)
    calls = [call(x), call(other), call(x), require, call(x), call(x), require, call(x), call(other), call(x)]
    return trace(fn, dynamic=True), [off, *calls]


@cases(hits=6)
def views_of_what_leaves_at_the_sizes_of_the_recording(trace):
    def fn(x):
        y = x * 2
        z = y.reshape(-1)
        return y, z, z[1:].view(1, -1), y.t().contiguous()

    def watched(trace):
        made = trace(fn, dynamic=True)

        def run(x):
            y, z, w, v = made(x)
            y.add_(1)
            return y, z, w, v, [t._version for t in (y, z, w, v)], [t._base is y for t in (y, z, w, v)]

        return run, [off, *[call(torch.randn(n, 4)) for n in AGAIN]]

    return watched(trace)


@cases(hits=6)
def results_are_not_written_again(trace):
    """What lies in memory that is used again leaves the program sometimes."""
    kept = []

    def fn(x):
        y = torch.relu(x).tanh() * 2
        z = y.exp() + 1
        return z.t() if x.shape[0] > 3 else (y, z.sum(0), z[0] * 2)

    def watched(trace):
        made = trace(fn, dynamic=True)

        def run(x):
            kept.append(made(x))
            return list(kept)

        return run, [off, *[call(torch.randn(n, 4)) for n in (3, 5, 3, 3, 2, 3, 5, 3, 3)]]

    return watched(trace)


@cases(hits=5)
def an_opaque_function_that_changes_the_look_of_what_it_is_given(trace):
    """Which a recording for all sizes has no step for: each size is recorded by itself."""

    @lazytrace.opaque
    def turn(y):
        y.t_()

    def fn(x):
        y = torch.relu(x) * 1
        turn(y)
        return y * 2, y.sum(0)

    return without_gradients(fn, *[torch.randn(n, 3) for n in (2, 4, 2, 2, 4, 3, 3, 2, 2)])(trace)


def branches(function, *columns):
    """A way behind a side exit is recorded at other sizes than what leads there."""
    told = [(5, 50.0), (3, 50.0), (2, 0.1), (5, 0.1), (2, 0.1), (3, 0.1), (5, 50.0), (2, 0.1), (4, 0.1)]
    inputs = [torch.linspace(0.0, top, rows * 4).reshape(rows, 4) for rows, top in told]
    columns = columns or (None,) * len(inputs)
    given = [(x,) if n is None else (x, n) for x, n in zip(inputs, columns, strict=True)]
    return lambda trace: (trace(function, dynamic=True), [off, *[call(*args) for args in given]])


@cases(hits=7)
def a_way_behind_an_exit_at_another_size(trace):
    def fn(x):
        y = torch.relu(x)
        z = y.t()
        if y.sum() > 100:
            return z + 1
        z = y.sigmoid().tanh()
        w = z[1:].t()
        return w * 2, w.t() + 1

    return branches(fn)(trace)


@cases(hits=7)
def views_behind_an_exit_at_another_size(trace):
    def fn(x):
        y = torch.relu(x)
        if y.max() > 1:
            return y + 1
        z = y[:, 1:]
        return z * 2, y.t() @ z

    return branches(fn)(trace)


@cases(hits=7)
def a_part_before_an_exit_that_begins_elsewhere(trace):
    def fn(x, n):
        y = torch.relu(x)
        z = y[:, n : n + 2]
        if y.max() > 1:
            return y + 1
        return z * 2, z.t() @ y

    return branches(fn, 0, 1, 2, 0, 1, 2, 0, 1, 2)(trace)


@cases(hits=7)
def a_copy_before_an_exit_at_another_size(trace):
    def fn(x):
        y = x.clone(memory_format=torch.contiguous_format)
        if x.max() > 1:
            return y + 1
        return y

    return branches(fn)(trace)


@cases(hits=9)
def lists_of_tensors_that_are_written_to(trace):
    def fn(x):
        both = [torch.relu(x), x * 2]
        torch._foreach_mul_(both, 0.5)
        torch._foreach_add_(both, x.shape[0])
        torch._foreach_add_(both, 1.0)
        return both

    return without_gradients(fn)(trace)


@cases(hits=5)
def an_empty_tensor_that_is_written_to_as_out(trace):
    """It gets whatever size it takes, without a warning."""
    w = torch.ones(4, 4)

    def fn(x):
        y = torch.relu(x)
        z = y.t()
        u = z * 2
        torch.add(w, w, out=y)
        return u, y.t() * 3

    return without_gradients(fn, *[torch.randn(n, 4) for n in (0, 4, 4, 0, 4, 0, 4)])(trace)


@cases(hits=6)
def an_empty_tensor_that_gets_another_size_at_each_call(trace):
    def fn(x, other):
        y = torch.relu(x)
        z = y.t() * 2
        torch.add(other, other, out=y)
        return z, y.t() * 3

    sizes = ((0, 0), (0, 3), (0, 0), (0, 5), (4, 4), (0, 4), (3, 3), (0, 0))
    return trace(fn, dynamic=True), [off, *[call(torch.randn(n, 4), torch.randn(k, 4)) for n, k in sizes]]


@cases.parametrize
def test_shorter_ways_at_all_sizes(make, expected):
    check(make, **expected)


def test_prompts_and_steps_of_a_cache_take_three_recordings():
    tracer = agree(a_cache_of_an_object_that_is_passed)
    assert tracer.count("recordings") <= 4, tracer.account()
    assert not tracer.count("eager_calls"), tracer.account()
