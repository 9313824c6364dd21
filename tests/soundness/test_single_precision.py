"""Numbers of numpy's float32, as means and largest values of arrays give them."""

from __future__ import annotations

import copy
import warnings
from collections import deque

import numpy as np
import pytest
import torch

from tests.soundness.runner import call, check


def arrays(count=8, size=4, scale=1.0):
    draw = np.random.default_rng(0)
    return [call((scale * draw.standard_normal(size)).astype(np.float32)) for _ in range(count)]


def told(value):
    """A number and its class, which an equal one of another kind has not."""
    return value, type(value).__name__


def in_a_loop(a):
    total = np.float32(0)
    for value in a:
        total += value
    return told(total)


USES = {
    "returned": lambda k: (told(k), [k + 1], {"k": k - 1}),
    "told": lambda k: (k.dtype, told(k.item()), told(float(k)), f"{k:.4f}", "%.2f" % k),  # noqa: UP031
    "class": lambda k: (isinstance(k, np.float32), isinstance(k, float), type(k) is np.float32),
    "sums": lambda k: (told(k + 1), told(1 - k), told(k + 0.1), told(k - k), told(k + k)),
    "products": lambda k: (told(k * 0.1), told(3 * k), told(k / 3), told(k * k), told(-k), told(abs(k))),
    "odd": lambda k: (told(k // 0.5), told(k % 0.5), told(k**2), told(2.0**k), told(k * True), told(k * 0)),
    "large": lambda k: (told(k + (1 << 30)), told(k * 1e30), told(k * 1e-35), told(k * np.float32(3))),
    "double": lambda k: (told(k + np.float64(0.1)), told(np.float64(2) * k), np.float64(0.1) < k),
    "followed": lambda k: (told(k * float(k)), told(float(k) + k), told(k + np.mean([float(k), 1.0]))),
    "functions": lambda k: (
        told(np.sqrt(abs(k))),
        told(np.exp(k)),
        told(np.square(k)),
        told(np.clip(k, 0, 1)),
    ),
    "asked": lambda k: (np.isnan(k), np.isfinite(k), told(np.maximum(k, 0.5)), told(np.round(k, 2))),
    "lists": lambda k: (
        told(np.mean([k, k * 2])),
        told(np.sum([k, k])),
        np.array([k, k]),
        np.array([k, 1.0]),
    ),
    "kinds": lambda k: (told(np.float32(k)), told(np.float64(k)), told(np.float32(float(k) * 0.1))),
    "tensors": lambda k: (torch.ones(2) * k, k * torch.ones(2), torch.tensor(k), torch.as_tensor(k)),
    "in_tensors": lambda k: (torch.tensor([k, k]), torch.tensor([k, 1.0], dtype=torch.float64)),
    "arguments": lambda k: (torch.full((2,), k), torch.ones(2).add(torch.ones(2), alpha=k)),
    "stored": lambda k: stored(k),
}


def stored(k):
    single, double = np.zeros(3, np.float32), np.zeros(2)
    single[0], single[1:], double[1] = k, k, k
    return single, double


@pytest.mark.parametrize("use", USES)
def test_a_number_is_followed(use):
    check(lambda trace: (trace(lambda a: USES[use](a.mean())), arrays()), hits=5)


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e19, 1e38])
def test_numbers_that_are_not_ordinary(scale):
    def body(a):
        k, j = a.mean(), a.max()
        return told(k + j), told(k * j), told(k / 3), told(k - 1), k < j, told(np.mean([k, j]))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(lambda trace: (trace(body), arrays(12, scale=scale)), hits=2)


def test_infinities_and_nans():
    def body(a):
        m = a.max()
        return m, m > float("inf"), m < float("inf"), m != m, m + 1

    values = [1.0, np.inf, 2.0, np.nan, -np.inf, 3.0, np.nan, 4.0, np.inf, 5.0]
    check(
        lambda trace: (trace(body), [call(np.full(2, value, np.float32)) for value in values]),
        hits=3,
    )


def test_what_numpy_warns_of_is_told():
    def make(trace):
        fn = trace(lambda a: told(a.max() ** 30))

        def use(a):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                return fn(a), [str(one.message) for one in caught]

        return use, [call(np.full(2, value, np.float32)) for value in (1.5, 1e9, 2.5, 1e8, 1.25, 1e7)]

    check(make, hits=4)


@pytest.mark.parametrize("kind", [list, lambda: deque(maxlen=3)])
def test_kept_in_state(kind):
    class State:
        def __init__(self):
            self.largest, self.average, self.log, self.last = np.float32(0), np.float32(0), kind(), None

    def make(trace):
        state = State()

        def step(a):
            state.average = state.average * 0.9 + 0.1 * a.max()
            state.largest = max(state.largest, a.max() * 2)
            state.log.append(a.mean())
            state.last = a.min()
            return len(state.log)

        fn = trace(step)
        return lambda a: (fn(a), copy.copy(vars(state))), arrays(12)

    check(make, hits=6)


def test_state_of_another_kind():
    def make(trace):
        state = {"m": np.float32(1)}
        fn = trace(lambda a: told(state["m"] * a.mean()))

        def put(value):
            return lambda: state.__setitem__("m", value)

        steps = []
        for value in (1.5, np.float32(2.5), np.float64(2.5), np.float32(0.5), 2, np.float32("nan")):
            steps += [put(value), *arrays(2)]
        return fn, steps

    check(make, hits=4)


def test_a_comparison_leads_on():
    def body(a):
        if a.mean() > 1.5 * 0.1:
            return told(a.max())
        return told(-a.max())

    check(lambda trace: (trace(body), arrays(12)), hits=8)


def test_what_looks_at_the_value_compares_it():
    def body(a):
        return {a.max(): 1}, hash(a.max()), str(float(a.max()))

    check(lambda trace: (trace(body), [*arrays(2), *arrays(2)]), hits=2)


LOOPS = {
    "sum": in_a_loop,
    "rows": lambda a: [row.sum() for row in np.stack([a, a])],
    "array of rows": lambda a: np.array([row * 2 for row in np.stack([a, a])]),
    "pairs": lambda a: [x * y for x, y in zip(a, a[::1] * 2, strict=True)],
    "counted": lambda a: {i: float(v) for i, v in enumerate(a)},
    "unpacked": lambda a: (lambda x, y, *rest: (x, rest, y))(*a),
    "taken apart": lambda a: two_and_rest(a),
    "list": lambda a: (list(a), tuple(a), [*a]),
    "extended": lambda a: extended(a),
    "builtins": lambda a: (told(sum(a)), len(list(zip(a, a, strict=True)))),
    "written": lambda a: written_in_the_loop(a),
    "nested": lambda a: [[float(v) for v in row] for row in a.reshape(2, 2)],
    "ended early": lambda a: next(v for v in a if v == v),
}


def two_and_rest(a):
    first, second, *rest = a
    return told(first), told(second), rest


def extended(a):
    found = [0]
    found.extend(a)
    return found


def written_in_the_loop(a):
    """A loop sees what is written to the array meanwhile."""
    b, found = a.copy(), []
    for i, value in enumerate(b):
        found.append(value)
        if i + 1 < len(b):
            b[i + 1] = value * 2
    return found, b


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name):
    check(lambda trace: (trace(LOOPS[name]), arrays()), hits=6)


def test_what_cannot_be_gone_through():
    def body(a):
        try:
            return list(a.sum(keepdims=True).reshape(()))
        except TypeError as error:
            return str(error)

    check(lambda trace: (trace(body), arrays(3)), eager="hands-array-to-c")


@pytest.mark.parametrize("count", [2, 5])
def test_unpacked_into_another_number(count):
    def body(a):
        try:
            if count == 2:
                x, y = a
            else:
                x, y, _, _, _ = a
        except ValueError as error:
            return str(error)
        return x, y

    check(lambda trace: (trace(body), arrays()), hits=6)


@pytest.mark.parametrize(
    "make_iterator", [zip, enumerate, lambda a: map(abs, a), lambda a: (v * 2 for v in a), iter, reversed]
)
def test_what_goes_through_an_array_outlives_the_call(make_iterator):
    """Whoever asks it for items later is given those of the array."""

    def make(trace):
        kept = {}
        fn = trace(lambda a: kept.__setitem__("it", make_iterator(a)))

        def use(a):
            fn(a)
            a += 1
            return list(kept["it"])

        return use, arrays()

    check(make, eager="hands-array-to-c" if make_iterator in (iter, reversed) else "of unknown origin")


@pytest.mark.parametrize("set_it", [lambda t, k: t.__setitem__(0, k), lambda t, k: t[0:2].__setitem__(0, k)])
def test_torch_refuses_it_as_an_item(set_it):
    check(
        lambda trace: (trace(lambda a: set_it(torch.ones(3), a.mean())), arrays()), eager="raised TypeError"
    )


def test_torch_refuses_it_as_an_item_by_a_statement():
    def body(a):
        x = torch.ones(3)
        x[0] = a.mean()
        return x

    check(lambda trace: (trace(body), arrays()), eager="raised TypeError")


def test_values_of_tensors_in_a_list():
    """As the actor-critic example has it: `torch.tensor([R])` of a tensor of one value."""

    def body(x, n):
        made = [torch.tensor([value]) for value in x]
        return (
            made,
            torch.tensor([n, n]),
            torch.tensor([x[0], 2.0]),
            torch.tensor([x[0], x[1]], dtype=torch.float64),
        )

    def inputs():
        return [call(torch.randn(3), torch.tensor(i)) for i in range(6)]

    check(lambda trace: (trace(body), inputs()), hits=5, recordings=1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bool, torch.int32, torch.float16])
def test_values_of_tensors_of_another_dtype_in_a_list(dtype):
    def inputs():
        return [call(torch.tensor([i % 2, 1]).to(dtype)) for i in range(6)]

    check(lambda trace: (trace(lambda x: torch.tensor([x[0], x[1]])), inputs()), hits=3)
