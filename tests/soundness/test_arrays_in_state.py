"""Arrays of numpy in state: each counts as a tensor of the same memory, whichever array it is by then."""

from __future__ import annotations

import math
import random
import types
from collections import deque

import numpy as np
import pytest
import torch

from lazytrace import opaque
from tests.soundness.runner import X, agree, call, check

COUNT = 12


def holder(**more):
    state = types.SimpleNamespace(a=np.arange(12.0).reshape(3, 4), v=np.arange(4.0), n=0, x=None)
    state.__dict__.update(more)
    return state


def seen(value):
    """All that can be told of an array, or of what holds some."""
    if isinstance(value, np.ndarray):
        look = value.dtype.str, value.shape, value.strides, value.flags.writeable, value.flags.owndata
        return type(value).__name__, look, repr(value.tolist())
    if isinstance(value, torch.Tensor):
        return value._version, value.stride(), repr(value.tolist()), value.requires_grad
    if isinstance(value, list | tuple | deque):
        return [seen(one) for one in value]
    if isinstance(value, dict):
        return {k: seen(v) for k, v in value.items()}
    return type(value).__name__ if callable(value) else repr(value)


def case(body, change=lambda state, k: None, count=COUNT, **more):
    """`change` is made before each call but the first; what there is `more` in state is made anew."""

    def make(trace):
        np.random.seed(0)
        state = holder(**{name: make() for name, make in more.items()})
        function = trace(lambda x: body(state, x))
        steps = []
        for k in range(count):
            steps += [lambda k=k: change(state, k)] if k else []
            steps += [call(k * X())]
        return function, steps, lambda: (torch.tensor([0.0]), {"all": seen(vars(state))})

    return make


def written(state, k):
    state.a[k % 3] += k
    state.v[k % 4] = k


def replaced(state, k):
    state.v = np.full(4, float(k))
    state.a = state.a + 1


def summed(state, x):
    return x * float(state.a.sum()), torch.tensor(state.v)


def run_mean(state, x):
    state.v = state.v * 0.9 + 0.1 * x.double().numpy().sum()
    return (x - torch.as_tensor(state.v.mean(), dtype=torch.float32)) / float(np.sqrt(state.v.var() + 1e-8))


def add_to_buffer(state, x):
    state.a[state.n, 1:] = x.numpy()
    state.n = (state.n + 1) % 3
    return torch.as_tensor(state.a, dtype=torch.float32).sum() * x


def sample(state, x):
    picked = np.random.randint(0, 3, size=5)
    return torch.as_tensor(state.a[picked], dtype=torch.float32), x


def newest(state, x):
    state.n = state.n % 3 + 1
    return torch.tensor(state.a[: state.n]).sum() * x, state.a[state.n - 1], state.a[:, state.n]


def shaped(state, x):
    rows, columns = state.a.shape
    return x * rows + columns, len(state.v), state.a.ndim, state.a.size, state.a.dtype == np.float64


def viewed(state, x):
    view = state.a[1]
    view += 1
    state.a[1, 0] = 9.0
    return torch.tensor(view), view, state.a.T, state.a.swapaxes(0, 1).reshape(12), x


def taken(state, x):
    one, other = torch.from_numpy(state.v), torch.from_numpy(state.v)
    one.add_(1)
    state.v[0] = 7.0
    return one, other, one is other, x


def taken_with_gradients(state, x):
    weights = torch.from_numpy(state.v).requires_grad_()
    (weights * 2).sum().backward()
    return weights.grad, weights, x


def branches(state, x):
    state.v[0] += 1
    if state.v[0] > 4:
        state.v[0] = 0.0
        return x * 3
    return x * 2


def filled_and_sorted(state, x):
    state.v.fill(float(state.n))
    state.v[1] = -1.0
    state.v.sort()
    return torch.tensor(state.v), x


def kept(state, x):
    state.x = state.v[1:3]
    return state.v, state.x, state.v is state.a, x


def scaled(state, x):
    return state.v.mean() * x, np.mean(state.a) ** x, state.v[1] - x, 1.0 / (state.v.max() + 1) * x


def window(state, x):
    """That lies elsewhere at each call, and shows and changes what lies there."""
    state.n = (state.n + 1) % 3
    part = state.v[state.n : state.n + 2]
    part += 1
    both = state.a[state.n : state.n + 1, state.n : state.n + 2]
    return torch.from_numpy(part) * 2, both, state.v[state.n :].copy(), np.stack([part, part]), x


def windows_where_tensors_say(state, x):
    starts = torch.randint(len(state.v) - 2, (3,))
    return torch.stack([torch.from_numpy(state.v[i : i + 2].astype(np.float32)) for i in starts]), x


def window_of_all(state, x):
    """It may be all of the array, or end behind it, or begin before it."""
    state.n = (state.n + 1) % 3
    part = state.v[state.n : state.n + 4]
    return part, part is state.v, torch.tensor(state.v[state.n - 1 :]), x


def bounds_of_all_kinds(state, x):
    place = x.abs().sum().long()
    one, other = (place % 2).to(torch.int32), (place % 3).view(1, 1)
    return state.v[one:], state.v[: other + 1], state.a[1:, one:4], state.v[one : one + 3 : 2], x


def diagonals(state, x):
    """Views that nobody may write to, and new arrays."""
    square = state.a[:, 1:]
    right = np.diag(state.a) / (state.a.sum(1) + 1)
    return (
        right,
        np.diag(square, -1) + x.numpy()[:2],
        np.diag(state.v),
        state.a.diagonal()[1:].copy(),
        np.trace(state.a),
    )


def writes_to_a_diagonal(state, x):
    part = np.diag(state.a)[1:]
    try:
        part[0] = 3.0
    except ValueError as error:
        return repr(error), x
    return part, x


def counted_by_tensors(state, x):
    for row, column in zip(x.long() % 3, x.long() % 4, strict=True):
        state.a[row, column] += 1
    return float(state.a[x.long()[0] % 3, -1]), state.a[np.int64(1), row], x


HITS = {
    "diagonals": (diagonals, written, 11),
    "counted by tensors": (counted_by_tensors, written, 9),
    "a window": (window, written, 9),
    "windows where tensors say": (windows_where_tensors_say, written, 9),
    "a window of all": (window_of_all, written, 4),
    "bounds of all kinds": (bounds_of_all_kinds, written, 6),
    "read": (summed, written, 11),
    "read, replaced": (summed, replaced, 11),
    "a running mean": (run_mean, lambda state, k: None, 10),
    "a buffer that is filled": (add_to_buffer, lambda state, k: None, 10),
    "sampled": (sample, written, 11),
    "a part that grows": (newest, written, 6),
    "shapes": (shaped, replaced, 11),
    "views": (viewed, written, 11),
    "tensors of its memory": (taken, replaced, 11),
    "a tensor that gets gradients": (taken_with_gradients, replaced, 11),
    "branches behind a write": (branches, lambda state, k: None, 10),
    "methods that write": (filled_and_sorted, lambda state, k: setattr(state, "n", -k), 9),
    "returned and stored": (kept, replaced, 11),
    "a float64 before a tensor": (scaled, written, 11),
}


@pytest.mark.parametrize("name", HITS)
def test_followed(name):
    body, change, hits = HITS[name]
    check(case(body, change), hits=hits)


# What takes its place between two calls, of which one is enough.
OTHERS = {
    "a float32": lambda v: v.astype(np.float32),
    "longer": lambda v: np.append(v, 1.0),
    "strided": lambda v: np.repeat(v, 2)[::2],
    "backwards": lambda v: v[::-1],
    "in the other order of bytes": lambda v: v.astype(">f8"),
    "objects": lambda v: v.astype(object),
    "of another class": lambda v: np.ma.array(v),
    "a matrix": lambda v: np.asmatrix(v),
    "read-only": lambda v: np.broadcast_to(v[:1], (4,)),
    "a list": lambda v: v.tolist(),
    "a tensor": lambda v: torch.from_numpy(v.copy()),
    "without dimensions": lambda v: np.array(v[0]),
    "empty": lambda v: v[:0],
    "in two dimensions": lambda v: v.reshape(2, 2),
}


@pytest.mark.parametrize("name", OTHERS)
def test_something_else_takes_its_place(name):
    def change(state, k):
        state.v = OTHERS[name](state.v) if k == 4 else np.arange(4.0) + k

    check(case(lambda state, x: (np.sum(state.v), torch.as_tensor(state.v), x), change), hits=5)


def test_a_flag_of_the_array_itself():
    def change(state, k):
        state.v.flags.writeable = k != 4

    check(case(lambda state, x: torch.tensor(state.v + 1), change), hits=8)


def refused_bounds(state, x):
    found = []
    for bound in (torch.tensor([0, 1]), torch.tensor(1.0), torch.tensor([True]), np.float64(1.0), 2**70):
        try:
            found.append(state.v[bound:].copy())
        except Exception as error:
            found.append(repr(error))
    return found, x


@opaque
def may_be_written_to(array):
    return array.flags.writeable


@pytest.mark.parametrize("name", ["returned", "stored", "taken", "written to", "handed on"])
def test_a_diagonal_that_leaves(name):
    """A replay would make one that may be written to."""
    body, eager = {
        "returned": (lambda state, x: np.diag(state.a), "returns a numpy.ndarray"),
        "stored": (lambda state, x: setattr(state, "x", [state.a.diagonal()[:2]]), "returns a numpy.ndarray"),
        "taken": (lambda state, x: torch.as_tensor(np.diag(state.a)).clone(), "hands-array-to-c"),
        "written to": (writes_to_a_diagonal, "hands-array-to-c"),
        "handed on": (
            lambda state, x: may_be_written_to(np.diag(state.a)),
            "an argument that cannot be made again",
        ),
    }[name]
    check(case(body, written, 4), eager=eager)


def test_bounds_that_numpy_refuses():
    agree(case(refused_bounds, written, 4))


def test_its_shape_is_set():
    def change(state, k):
        state.a.shape = (4, 3) if k % 2 else (3, 4)

    check(case(lambda state, x: (torch.tensor(state.a[0]), x), change), hits=8)


PLACES = {
    "list": (lambda: [np.ones(2), np.zeros(2)], lambda held: held[1]),
    "dict": (lambda: {"k": np.ones(2)}, lambda held: held["k"]),
    "tuple": (lambda: (np.ones(2), 1), lambda held: held[0]),
    "deque": (lambda: deque([np.ones(2)]), lambda held: held[-1]),
    "object": (lambda: types.SimpleNamespace(w=np.ones(2)), lambda held: held.w),
    "cell": (lambda: (lambda array: lambda: array)(np.ones(2)), lambda held: held()),
}


@pytest.mark.parametrize("name", PLACES)
def test_wherever_it_is_held(name):
    make, get = PLACES[name]

    def change(state, k):
        get(state.x)[0] = k

    check(case(lambda state, x: x * float(get(state.x)[0]), change, x=make), hits=9)


def test_what_a_function_has_as_a_default():
    def make(trace):
        def scale(x, by=np.ones(2)):  # noqa: B008
            return x * float(by[0])

        def change(k):
            scale.__defaults__[0][0] = k

        steps = [step for k in range(4) for step in (lambda k=k: change(k), call(X()))]
        return trace(lambda x: scale(x)), steps

    check(make, eager="hands-array-to-c")


@pytest.mark.parametrize(
    "kind", [np.float16, np.float32, np.int64, np.int8, np.uint8, np.bool_, np.complex128]
)
def test_kinds_of_numbers(kind):
    def change(state, k):
        state.v[k % 4] = kind(k)

    def body(state, x):
        return torch.tensor(state.v), state.v.copy(), state.v[state.v != 0], x

    check(case(body, change, v=lambda: np.arange(4).astype(kind)), hits=10)


def test_two_that_share_memory():
    def body(state, x):
        state.a[0, 1] += 1
        state.x[0] *= 2
        return torch.tensor(state.v), x * float(state.x.sum())

    def change(state, k):
        if k == 5:
            state.x = state.a[0]

    check(case(body, change, x=lambda: np.ones(4)), hits=10)


def test_a_parameter_that_shows_its_memory():
    def make(trace):
        memory = np.ones(3, dtype=np.float32)
        weights = torch.nn.Parameter(torch.from_numpy(memory))
        optimizer = torch.optim.SGD([weights], lr=0.1)

        def step(x):
            before = torch.tensor(memory)
            optimizer.zero_grad()
            loss = (weights * x * torch.tensor(memory)[0]).sum()
            loss.backward()
            optimizer.step()
            memory[1] = 0.5
            return before, torch.tensor(memory), loss.detach()

        steps = [call(torch.arange(3.0) + k) for k in range(COUNT)]
        return trace(step), steps, lambda: [weights, torch.from_numpy(memory)]

    check(make, hits=8)


@opaque
def changes_what_it_is_given(state):
    if random.random() < 0.5:
        state.v[0] += 1
    else:
        state.v = state.v + 1
    return torch.tensor(float(state.v.sum()))


def test_an_opaque_function_changes_it():
    def body(state, x):
        before = torch.tensor(state.a).sum()
        return before, changes_what_it_is_given(state), x

    check(case(body, written), hits=11)


def test_an_index_that_does_not_fit():
    def body(state, x):
        return state.a[state.n], x

    check(case(body, lambda state, k: setattr(state, "n", k % 5 - 1)), hits=3)


def test_in_inference_mode_and_out_of_it():
    def body(state, x):
        with torch.inference_mode():
            inside = torch.tensor(state.v) * 2
        return inside.sum().item(), torch.tensor(state.v)

    check(case(body, replaced), hits=11)


def test_a_tensor_of_its_memory_in_inference_mode():
    def body(state, x):
        with torch.inference_mode():
            return torch.from_numpy(state.v)

    check(case(body, replaced), eager="takes-array-in-mode")


def test_inside_a_transform():
    def body(state, x):
        return torch.func.grad(lambda y: (y * torch.as_tensor(state.v, dtype=torch.float32)[0]).sum())(x)

    check(case(body, replaced), hits=8)


def test_no_array_is_kept():
    import gc
    import weakref

    from lazytrace import traced

    state = holder()
    function = traced(lambda x: summed(state, x))
    gone = []
    for _ in range(6):
        state.v = np.ones(4)
        gone.append(weakref.ref(state.v))
        function(X())
    assert function.stats().hits == 5
    state.v = None
    gc.collect()
    assert not any(one() is not None for one in gone)


def test_a_name_that_is_asked_for_says_no_value():
    """`hasattr` of a number that differs asks whether it is there."""

    def body(state, x):
        if not hasattr(state, "count"):
            state.count = 0
        state.count += 1
        return x * state.count

    check(case(body), hits=8)


def test_versions_behind_a_side_exit():
    """A function that runs again counts what steps have written to `.data`."""

    def make(trace):
        def body(x):
            data = x.data
            data.add_(1)
            if data.sum() > 9:
                return data, data + 1
            return data * 2, data

        return trace(body), [call(k * X()) for k in range(8)]

    check(make, hits=4)


def test_tensors_of_numbers_of_numpy():
    """A float64 says the dtype of a tensor by itself, and of a list that it is in."""

    def body(state, x):
        mean = state.v.mean()
        return (
            torch.tensor(mean),
            torch.as_tensor(mean, dtype=torch.float32),
            torch.tensor([mean, 1.0]),
            torch.tensor([[mean, 2], [3, mean]], dtype=torch.float16),
            x.new_tensor(mean),
        )

    check(case(body, written), hits=11)


def test_a_tensor_of_ints_of_a_float64_reads_it():
    def body(state, x):
        return torch.tensor(state.v.mean(), dtype=torch.int64), x

    check(case(body, replaced, count=4), recordings=4)


def test_one_array_in_two_places():
    """Behind a branch that is not known the function goes on with the tensor of each array."""

    def body(state, x):
        state.x[0] += x[0].item()
        state.v[1] = 1.0
        if float(state.v[0]) > 3:
            state.v[0] = 0.5
        return torch.tensor(state.v), torch.tensor(state.x)

    def change(state, k):
        state.x = state.v if k in (4, 7) else np.arange(4.0) + k
        state.v[0] = k

    check(case(body, change, x=lambda: np.ones(4)), hits=3)


def test_an_argument_that_is_in_state():
    def make(trace):
        state = holder()

        def body(a):
            state.v[0] += 1
            a[1] += 1
            if float(state.v[0] + a[0]) > 4:
                a[0] = 0.0
            return torch.tensor(a), torch.tensor(state.v)

        steps = [call(state.v if k in (3, 6) else np.arange(4.0) + k) for k in range(10)]
        return trace(body), steps, lambda: torch.from_numpy(state.v)

    check(make, hits=3)


def test_a_scalar_of_numpy_before_an_opaque_function():
    """Guards run no Python code: numpy's own writes the name of a dtype, which a recording watched."""

    def body(state, x):
        first = state.x * 2
        return first, changes_what_it_is_given(state), x

    check(case(body, written, x=lambda: np.float32(3)), hits=8)


def compares(values, x):
    values.done |= values.array > 2
    return x + 1 if values.array.sum() > 10 else x


def compares_from_below(values, x):
    values.done |= values.array > 2
    return x + 1 if values.array.sum() <= 10 else x


def compares_for_equality(values, x):
    values.done |= values.array > 2
    return x + 1 if values.array.sum() == 10 else x


def adds(values, x):
    values.done |= values.array > 2
    values.array[0] += 1
    return x


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("fn", [compares, compares_from_below, compares_for_equality])
def test_a_number_out_of_the_ordinary_is_compared(fn, number):
    check(out_of_the_ordinary(fn, number), hits=4)


def test_a_nan_is_added_to():
    check(out_of_the_ordinary(adds, math.nan), hits=4)


def out_of_the_ordinary(fn, number):
    def make(trace):
        values = types.SimpleNamespace(array=np.arange(4.0), done=np.zeros(4, bool))

        def change():
            values.array[0] = number

        steps = [*[call(torch.ones(2)) for _ in range(5)], change, *[call(torch.ones(2)) for _ in range(3)]]
        return trace(lambda x: fn(values, x)), steps, lambda: (values.array, values.done)

    return make


# ---------------------------------------------------------------- lists of arrays: states of an episode
def filled(state, k):
    """In place, as other arrays, as one array twice, as a view of another, of other looks and lengths."""
    held = state.held
    if k in (1, 2, 8):
        state.held = type(held)(one + k for one in held)
    elif k == 3:
        held[0][0] = 9.0
    elif k == 4:
        state.held = type(held)([held[1], held[1], held[0][::-1]])
    elif k == 5:
        state.held = type(held)(one.astype(np.float32) for one in held)
    elif k == 6:
        state.held = type(held)([*held, held[0] * 2])
    elif k == 7:
        state.held = type(held)([state.v[:3], state.v[1:4], np.ones(3)])
    elif k == 9:
        state.held = type(held)([np.ones(3), np.ones(2)])  # ragged
    elif k == 10:
        state.held = type(held)([1.0, np.float32(2.0), 3])
    elif k == 11:
        state.held = type(held)()


def told(found):
    return torch.from_numpy(np.asarray(found, dtype=np.float64)) * 2


def written_to(state, x):
    made = np.array(state.held)
    made += 1
    state.held[0][1] = 7.0
    return told(made), told(state.held[0])


def appended(state, x):
    before = np.stack(state.held)
    if isinstance(state.held, list):
        state.held.append(state.held[0] + 1)
        state.held[1] = state.held[0]
        after = np.stack(state.held).sum()
        state.held.pop()
        return told(before), after
    return told(before)


ROWS = {
    "array": lambda state, x: told(np.array(state.held)),
    "stack": lambda state, x: told(np.stack(state.held, axis=1)),
    "vstack": lambda state, x: (told(np.vstack(state.held)), len(state.held)),
    "concatenate": lambda state, x: told(np.concatenate(state.held)),
    "tensor": lambda state, x: torch.FloatTensor(np.array(state.held)) + torch.tensor(np.asarray(state.held)),
    "mean": lambda state, x: told(np.mean(state.held, axis=0)),
    "a range": lambda state, x: told(np.tile(np.array(range(len(state.held))), [2, 1])),
    "written to": written_to,
    "appended": appended,
}


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("body", ROWS)
def test_lists_of_arrays(body, kind):
    def tried(state, x):
        try:
            return ROWS[body](state, x)
        except (ValueError, TypeError, IndexError) as error:
            return str(error)

    rows = lambda: kind([np.arange(3.0), np.ones(3), np.arange(3.0) * 2])  # noqa: E731
    tracer = agree(case(tried, filled, held=rows))
    assert tracer.count("hits") >= (0 if body in ("appended", "mean") else 2), tracer.account()


def test_a_list_of_arrays_is_passed():
    def fn(rows, x):
        return torch.as_tensor(np.stack(rows)) * x[0], rows[0]

    def make(trace):
        steps = [call([np.arange(3.0) + k, np.ones(3) * k], X()) for k in range(4)]
        one = np.arange(3.0)
        steps += [
            call([one, one], X()),
            call([one, one[::-1]], X()),
            call((one, one + 1), X()),
            call([one], X()),
        ]
        return trace(fn), steps

    assert agree(make).count("hits") >= 3
