"""Numbers of numpy's int64, as places, counts and sums of arrays give them."""

from __future__ import annotations

import copy
import math
import types
import warnings
from collections import deque

import numpy as np
import pytest
import torch

from tests.soundness.runner import call, check


def told(value):
    """A number and its class, which an equal one of another kind has not."""
    return value, type(value).__name__


def arrays(count=8, least=1):
    draw = np.random.default_rng(0)
    return [call(draw.integers(least, 9, 4)) for _ in range(count)]


USES = {
    "returned": lambda n: (told(n), [n + 1], {"n": n - 1}, (n + 2, (-n,))),
    "sums": lambda n: (told(n + 1), told(1 - n), told(n * n), told(n + True), told(n + np.int64(2))),
    "quotients": lambda n: (told(n / 2), told(2 / n), told(n // 2), told(n % 3), told(-n // 2), told(7 % n)),
    "floats": lambda n: (told(n + 0.5), told(0.5 * n), told(n / 0.5), told(n // 1.5), told(n**0.5)),
    "of numpy": lambda n: (told(n * np.float64(0.5)), told(np.float32(2) + n), told(n / np.float32(3))),
    "alone": lambda n: (told(-n), told(abs(n)), told(~n), told(+n), told(round(n))),
    "of python": lambda n: (told(int(n)), told(float(n)), told(n.item()), told(int(n) + n)),
    "class": lambda n: (isinstance(n, np.integer), isinstance(n, int), type(n) is np.int64, n.dtype),
    "compared": lambda n: (n > -100, told(n != 1.5 * 100), told(np.float64(-99.5) < n), n == n),
    "texts": lambda n: (f"{n}", f"{n:4d}|{n:.2f}", "%d of %s" % (n, n), f"{n!s}"),  # noqa: UP031
    "math": lambda n: (math.sqrt(n), math.log(n), math.floor(n), math.ceil(n), math.isnan(n)),
    "functions": lambda n: (told(np.sqrt(n)), told(np.maximum(n, 3)), told(np.square(n)), told(np.abs(n))),
    "cut": lambda n: (told(np.clip(n, 3, 5)), told(np.clip(int(n), 3, 5)), told(np.clip(4, int(n), 9))),
    "least": lambda n: (told(np.minimum(int(n), 20)), told(np.minimum(n, 9))),
    "largest": lambda n: (told(np.maximum(20, int(n))), told(np.maximum(n, 9))),
    "cut crosswise": lambda n: (told(np.clip(int(n), 30, 10)), told(np.clip(int(n), -3, -5))),
    "kinds": lambda n: (told(np.int64(n)), told(np.float32(n)), told(np.float64(n)), told(np.int64(int(n)))),
    "arrays": lambda n: (np.array([n, n]), np.full(2, n), np.array([1, n]), np.sum([n, 1])),
    "tensors": lambda n: (torch.ones(2) * n, n - torch.ones(2), torch.tensor(n), torch.as_tensor(n)),
    "in tensors": lambda n: (torch.tensor([n, 1]), torch.tensor([n, 0.5]), torch.full((2,), n)),
    "of whole tensors": lambda n: (torch.arange(3, dtype=torch.int32) + n, torch.arange(3) // n),
    "stored": lambda n: stored(n),
}


def stored(n):
    whole, single, tensor = np.zeros(3, int), np.zeros(2, np.float32), torch.zeros(3)
    whole[0], whole[1:], single[1], tensor[0] = n, n + 1, n, n
    return whole, single, tensor


@pytest.mark.parametrize("use", USES)
def test_a_number_is_followed(use):
    check(lambda trace: (trace(lambda a: USES[use](a.sum())), arrays()), hits=6)


SOURCES = {
    "largest": lambda a: a.max(),
    "place": lambda a: a.argmax(),
    "place by a function": lambda a: np.argmax(a),
    "item": lambda a: a[1] - a[-1],
    "by a number": lambda a: a[a.argmin()],
    "count": lambda a: np.count_nonzero(a > 3),
    "true ones": lambda a: (a > 3).sum(),
    "product": lambda a: a.prod(),
    "in a loop": lambda a: [n * 2 for n in a],
    "largest of several": lambda a: max(a[0] % 2, a[1] % 2),
    "sum of python": lambda a: sum(a),
}


@pytest.mark.parametrize("source", SOURCES)
def test_where_numbers_come_from(source):
    check(lambda trace: (trace(lambda a: SOURCES[source](a)), arrays(12)), hits=8)


LOOKS = {
    "key": lambda n: ({n: 1}, {n}),
    "hash": hash,
    "times": lambda n: [10] * n,
    "range": range,
    "bits": lambda n: (n & 3, n | 4, 6 ^ n, n << 1),
    "divmod": lambda n: (divmod(n, 3), divmod(20, n)),
    "looked up": lambda n: list(range(9))[n],
}


@pytest.mark.parametrize("look", LOOKS)
def test_what_looks_at_the_value_compares_it(look):
    check(lambda trace: (trace(lambda a: LOOKS[look](a.max())), [*arrays(2), *arrays(2)]), hits=2)


@pytest.mark.parametrize(
    "work",
    [
        lambda n, m: n + m,
        lambda n, m: n - m,
        lambda n, m: n * m,
        lambda n, m: -n,
        lambda n, m: abs(n),
        lambda n, m: n // m,
        lambda n, m: n % m,
        lambda n, m: n / m,
        lambda n, m: (n**3, n ** np.int64(2)),
        lambda n, m: n < 2**63,
        lambda n, m: ~n,
        lambda n, m: (n + 0.0, n / 3, n == n * 1.0, n < float(n) + 0.5),
        lambda n, m: (float(n), np.float64(n), np.float32(n), math.floor(n)),
    ],
)
def test_numbers_that_are_not_ordinary(work):
    """What has more than 64 bits goes round, of which numpy warns, as it does of a division by zero."""
    least, most = -(2**63), 2**63 - 1
    pairs = [(1, 2), (7, 3), (5, 4), (most, 1), (least, -1), (most, most), (3, 0), (2**53 + 1, 3), (9, 2)]

    def make(trace):
        fn = trace(lambda a: work(a[0], a[1]))

        def use(a):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                return fn(a), {str(one.message) for one in caught}

        return use, [call(np.array(pair)) for pair in pairs]

    check(make, hits=1)


def test_what_fits_no_int64_is_refused():
    check(lambda trace: (trace(lambda a: a[0] + 2**63), arrays(4)), eager="raised OverflowError")


def test_what_overflows_behind_a_write():
    def make(trace):
        state = types.SimpleNamespace(n=np.int64(1), log=torch.zeros(1))

        def step(a):
            state.log += 1
            state.n = state.n * a[0]
            return state.n + 1

        fn = trace(step)

        def use(a):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                return fn(a), [str(one.message) for one in caught]

        return (
            use,
            [call(np.array([value])) for value in (2, 3, 5, 2**40, 2**40, 3, 5, 7)],
            lambda: vars(state),
        )

    check(make, hits=3)


def test_counters():
    def make(trace):
        state = types.SimpleNamespace(pos=np.int64(0), full=False, size=np.int64(5), best=np.int64(-1))
        buffer = np.zeros((5, 2), np.float32)

        def add(row):
            buffer[state.pos] = row
            state.pos = (state.pos + 1) % state.size
            state.best = max(state.best, row.argmax())
            if state.pos == 0:
                state.full = True
            return state.pos, buffer[state.pos].sum()

        fn = trace(add)
        rows = np.random.default_rng(0).standard_normal((14, 2)).astype(np.float32)
        return fn, [call(row) for row in rows], lambda: (copy.copy(vars(state)), buffer)

    check(make, hits=7)


@pytest.mark.parametrize("kind", ["list", "array", "tensor"])
def test_priorities_by_their_places(kind):
    def make(trace):
        made = {"list": lambda: [0.0] * 6, "array": lambda: np.zeros(6), "tensor": lambda: torch.zeros(6)}
        tree, state = made[kind](), types.SimpleNamespace(largest=1.0)

        def update(places, priorities):
            for i, p in zip(places, priorities, strict=True):
                tree[i] = float(p)
                state.largest = max(state.largest, float(p))
            return len(places)

        fn, draw = trace(update), np.random.default_rng(0)
        steps = [call(draw.permutation(6)[:3], draw.random(3)) for _ in range(12)]
        return fn, steps, lambda: (tree, vars(state))

    check(make, hits=3)


@pytest.mark.parametrize("kind", [list, lambda: deque(maxlen=3)])
def test_kept_in_containers(kind):
    def make(trace):
        log, best = kind(), {"n": np.int64(0)}

        def step(a):
            log.append(a.max())
            best["n"] = best["n"] + a.min()
            return len(log), log[-1], best["n"]

        return trace(step), arrays(10), lambda: (list(log), best)

    check(make, hits=6)


def test_state_of_another_kind():
    def make(trace):
        state = {"n": np.int64(1)}
        fn = trace(lambda a: (told(state["n"] * a[0]), told(state["n"] / 2)))

        def put(value):
            return lambda: state.__setitem__("n", value)

        steps = []
        for value in (
            2,
            np.int64(3),
            np.int32(3),
            np.int64(4),
            True,
            np.float64(2),
            np.uint8(200),
            np.int64(9),
        ):
            steps += [put(value), *arrays(2)]
        return fn, steps

    check(make, hits=2)


def test_which_object_it_is():
    def make(trace):
        state = types.SimpleNamespace(n=np.int64(1), m=None)
        state.m = state.n

        def body(a):
            n = state.n
            return n + a[0], n is state.m, n is None

        def change():
            state.n = np.int64(state.n + 1)

        return trace(body), [step for one in arrays(8) for step in (change, one)]

    check(make, eager="compares-identity")


def test_it_indexes():
    def body(x, a):
        n = a.argmax()
        names = ["a", "b", "c", "d"]
        return x[n], x[:n], x[n, 0], a[n], a[: n + 1], names[n], (n in (0, 1)), torch.arange(5)[n:]

    def inputs():
        return [call(torch.arange(8.0).reshape(4, 2) + k, np.roll([5, 1, 2, 3], k)) for k in range(10)]

    check(lambda trace: (trace(body), inputs()), hits=4)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("operate", ["/", "//", "%", "*", "**"])
def test_what_numpy_says_of_numbers_behind_a_write(kind, operate):
    """Where Python would raise, or there is no number to follow, numpy gives infinity."""
    functions = {
        "/": lambda x, y: x / y,
        "//": lambda x, y: x // y,
        "%": lambda x, y: x % y,
        "*": lambda x, y: x * y,
        "**": lambda x, y: x**y,
    }

    def make(trace):
        counts = np.zeros(2)

        def body(a):
            counts[0] += 1
            return functions[operate](kind(-3), a.max()), functions[operate](a.max(), 2)

        values = [1, 2, 3, 5, 0, 4, 2**62, 6, 0]
        return trace(body), [call(np.full(2, value, kind)) for value in values], lambda: counts

    check(make, hits=1)


def test_a_number_indexes_what_is_written():
    def body(x, a):
        try:
            x[a.mean()] = 1
        except IndexError as error:
            return str(error)[:20]
        return x

    steps = [call(torch.zeros(3), np.full(2, k, np.float32)) for k in range(4)]
    check(lambda trace: (trace(body), steps), recordings=4)


def test_slices_of_nothing():
    check(
        lambda trace: (
            trace(lambda a: (a[: a[0]], a[: a[0] + 1])),
            [call(np.arange(k, 4)) for k in (2, 1, 0, 1, 0)],
        ),
        hits=1,
    )
