"""Functions of numpy that give views, take lists or names, write by `at`, and methods of its numbers."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from tests.soundness.runner import call, check


def arrays(count=8):
    draw = np.random.default_rng(0)
    return [call(draw.standard_normal((3, 4)).astype(np.float32)) for _ in range(count)]


def written(a, view):
    """Who shares memory with whom shows in what is written."""
    made = a * 1
    other = view(made)
    other[0] = 7
    made[1] = 5
    return made, other


VIEWS = {
    "reshape": lambda a: np.reshape(a, (4, 3)),
    "reshape to one": lambda a: np.reshape(a, -1),
    "ravel": np.ravel,
    "transpose": np.transpose,
    "transposed by axes": lambda a: np.transpose(a, (1, 0)),
    "transposed by name": lambda a: np.transpose(a, axes=(1, 0)),
    "method": lambda a: a.transpose(1, 0),
    "no axes": lambda a: a.transpose(None),
    "swapped": lambda a: np.swapaxes(a, 0, 1),
    "expanded": lambda a: np.expand_dims(a, 0),
    "expanded by name": lambda a: np.expand_dims(a, axis=-1),
    "squeezed": lambda a: np.squeeze(a[:, None]),
    "squeezed by axis": lambda a: a[:, None].squeeze(axis=1),
    "nothing to squeeze": lambda a: np.squeeze(a),
    "asarray": np.asarray,
    "asarray by name": lambda a: np.asarray(a, dtype=np.float32),
    "asanyarray": np.asanyarray,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    view = VIEWS[name]
    check(lambda trace: (trace(lambda a: (view(a), view(a).sum(), view(a * 2))), arrays()), hits=6)


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_written_through(name):
    check(lambda trace: (trace(lambda a: written(a, VIEWS[name])), arrays()), hits=6)


@pytest.mark.parametrize("name", ["asarray", "asanyarray", "nothing to squeeze"])
def test_the_array_itself(name):
    check(lambda trace: (trace(lambda a: (VIEWS[name](a) is a, VIEWS[name](a))), arrays()), hits=6)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: np.reshape(a, (5, 5)),
        lambda a: np.transpose(a, (0, 0)),
        lambda a: np.squeeze(a, 0),
        lambda a: np.expand_dims(a, 7),
        lambda a: np.swapaxes(a, 0, 4),
    ],
)
def test_views_that_there_are_none_of(view):
    def body(a):
        try:
            return view(a)
        except ValueError as error:
            return str(error), type(error).__name__

    check(lambda trace: (trace(body), arrays()), hits=6)


FUNCTIONS = {
    "by axis": lambda a: np.sum(a, axis=1),
    "kept": lambda a: np.mean(a, axis=0, keepdims=True),
    "of a dtype": lambda a: np.sum(a, dtype=np.float64),
    "method": lambda a: a.max(axis=1, keepdims=True),
    "norm": lambda a: (np.linalg.norm(a), np.linalg.norm(a, axis=1)),
    "differences": lambda a: np.diff(a, axis=0),
    "sums of products": lambda a: np.einsum("ij,ij->i", a, a),
    "places": lambda a: np.unravel_index(a.argmax(), a.shape),
    "triangle": lambda a: (np.triu(a), np.tril(a)),
    "range": lambda a: np.ptp(a),
    "counted": lambda a: np.histogram(a, bins=3),
    "bins": lambda a: np.digitize(a[0], [0.0, 1.0]),
    "cut by name": lambda a: np.clip(a.mean(), a_min=0, a_max=1),
    "without nans": lambda a: (np.nansum(a), np.nanmax(a), np.nanstd(a)),
    "of another dtype": lambda a: np.asarray(a, dtype=np.float64),
    "member": lambda a: (0.5 in a, a[0, 1] in a, 7 in np.arange(8), "x" in a),
    "mean of numbers": lambda a: np.mean([float(v) for v in a[0]], axis=0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    check(lambda trace: (trace(FUNCTIONS[name]), arrays()), hits=6)


NUMBERS = {
    "rounded": lambda k: (k.round(2), k.round()),
    "as another": lambda k: (k.astype(np.float64), k.astype(np.float32), k.astype(float)),
    "as an int": lambda k: ((k * 10).astype(int), (k * 10).astype(np.int64)),
    "by its text": lambda k: (k.astype("float64"), k.astype("f4")),
    "cut": lambda k: (k.clip(-0.1, 0.1), k.clip(min=0)),
}


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", NUMBERS)
def test_methods_of_numbers(name, kind):
    check(lambda trace: (trace(lambda a: NUMBERS[name](a.astype(kind).mean())), arrays()), hits=6)


def test_methods_of_whole_numbers():
    def body(a):
        k = a.argmax()
        return k.round(), k.round(-1), k.astype(np.float64), k.astype(np.int64), k.astype(float), k.clip(0, 3)

    check(lambda trace: (trace(body), arrays()), hits=6)


def test_added_at_places():
    def make(trace):
        counts = np.zeros(4)

        def body(a):
            places = a.argmax(axis=1)
            np.add.at(counts, places, 1)
            own = np.zeros(4)
            np.subtract.at(own, places, a[:, 0])
            np.maximum.at(own, [0, 0], 3.5)
            return own, counts.sum()

        return trace(body), arrays(), lambda: counts

    check(make, hits=6)


def test_added_at_places_that_there_are_none_of():
    def body(a):
        own = np.zeros(2)
        try:
            np.add.at(own, a.argmax(axis=1), 1)
        except IndexError:
            return "none"
        return own

    check(lambda trace: (trace(body), arrays()), eager="an opaque function raised")


def filled_outside(body, kind=float):
    """`body` of a list that is another one at each call."""

    def make(trace):
        state = types.SimpleNamespace(values=[kind(1.5), kind(2), kind(-3)], total=0.0)
        fn = trace(lambda: body(state.values))
        draw = np.random.default_rng(0)

        def fill():
            state.values[:] = [kind(value) for value in draw.standard_normal(3)]

        return fn, [step for _ in range(9) for step in (call(), fill)], lambda: vars(state)

    return make


LISTS = {
    "asarray": lambda values: np.asarray(values) * 2,
    "asanyarray": lambda values: np.asanyarray(values).sum(),
    "of a dtype": lambda values: (np.array(values, dtype=np.float32), np.asarray(values, np.float32)),
    "mean": lambda values: np.mean(values),
    "mean by axis": lambda values: np.mean(values, axis=0),
    "differences": lambda values: np.diff(values),
    "sum": lambda values: np.sum(values, keepdims=True),
    "range": lambda values: np.ptp(values),
    "pairs": lambda values: [x * y for x, y in zip(values, values, strict=True)],
    "counted": lambda values: [i * x for i, x in enumerate(values, 1)],
    "counted in a dict": lambda values: dict(enumerate(values)),
    "from the end": lambda values: [x * 2 for x in reversed(values)],
    "filtered": lambda values: len(list(filter(lambda x: x is not None, values))),
    "beside an array": lambda values: [x * y for x, y in zip(values, np.arange(3.0), strict=True)],
    "into a tensor": lambda values: torch.tensor([x for _, x in zip(range(2), values)]),  # noqa: B905
}


@pytest.mark.parametrize("kind", [float, np.float64])
@pytest.mark.parametrize("name", LISTS)
def test_lists_that_are_filled_outside(name, kind):
    check(filled_outside(LISTS[name], kind), hits=6)


@pytest.mark.parametrize("goes", [enumerate, lambda v: zip(range(9), v, strict=False)])
def test_a_loop_sees_what_is_written_to_the_list(goes):
    def body(values):
        found = []
        for i, x in goes(values):
            found.append(x)
            values[(i + 1) % 3] = x + 1
        return found

    check(filled_outside(body), hits=7, eager="sets [")


def test_a_loop_over_a_copy_does_not():
    def body(values):
        found = []
        for i, x in enumerate(values[::-1]):
            found.append(x)
            values[i] = x + 1
        return found

    check(filled_outside(body), hits=6)


def test_a_loop_from_the_end_sees_what_is_written_to_the_list():
    def body(values):
        found = []
        for x in reversed(values):
            found.append(x)
            values[0] = x + 0.5
        return found

    check(filled_outside(body), hits=6, eager="sets [")


@pytest.mark.parametrize("kind", [zip, enumerate, reversed, lambda v: map(abs, v)])
def test_what_goes_through_a_list_outlives_the_call(kind):
    def make(trace):
        state, kept = types.SimpleNamespace(values=[1.5, 2.0, -3.0]), {}
        fn = trace(lambda: kept.__setitem__("it", kind(state.values)))

        def use():
            fn()
            state.values[1] += 1
            return list(kept["it"]), type(kept["it"]).__name__

        return use, [call() for _ in range(8)]

    check(make, eager="cannot be rebuilt")


def item_set(a):
    made = a * 1
    made[0] = types.SimpleNamespace()
    return made


def added_at(a):
    made = a * 1
    np.add.at(made, 0, types.SimpleNamespace())
    return made


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: np.array(a, copy=False, ndmin=types.SimpleNamespace()),
        lambda a: np.add(a, types.SimpleNamespace()),
        lambda a: np.asarray([1.0, types.SimpleNamespace()], dtype=np.float32) + a,
        item_set,
        added_at,
        lambda a: np.reshape(a),
        lambda a: np.swapaxes(a, 0),
        lambda a: np.expand_dims(a),
    ],
)
def test_what_numpy_raises_has_no_error_of_ours_as_its_context(fn):
    check(lambda trace: (trace(fn), arrays(3)), eager="raised TypeError")


def named(value):
    """What the text of a dtype does not say: a `longlong` has that of an int64."""
    return value, value.dtype.char


# Ints that C has twice: torch makes an int64 of a `longlong`, and refuses an `ulonglong`.
@pytest.mark.parametrize("kind", ["q", "Q", np.longlong])
@pytest.mark.parametrize(
    "make",
    [
        lambda n, kind: np.array([n, 2], dtype=kind),
        lambda n, kind: np.array([1, 2], dtype=kind) * n,
        lambda n, kind: np.array([n, 2], kind).sum(),
        lambda n, kind: np.zeros(3, dtype=kind)[n % 3 :],
    ],
)
def test_ints_that_torch_does_not_tell_apart(make, kind):
    fn = lambda x, n: (x + n, *named(make(n, kind)))  # noqa: E731
    check(lambda trace: (trace(fn), [call(torch.ones(2), n) for n in (1, 2, 3, 4)]), eager="array")


def test_numbers_above_those_of_int64():
    fn = lambda x, n: (x + n, *named(np.array([2**63 + n])), *named(np.round(2**63 + n)))  # noqa: E731
    check(lambda trace: (trace(fn), [call(torch.ones(2), n) for n in (1, 2, 3, 4)]), eager="opaque-result")


def test_an_array_in_state_that_becomes_one_of_the_other_int():
    def make(trace):
        o = types.SimpleNamespace(a=np.arange(3))
        other = lambda: setattr(o, "a", np.arange(3).astype("q"))  # noqa: E731
        steps = [call(torch.ones(3)) for _ in range(3)]
        return trace(lambda x: (x + 1, *named(o.a * 2), o.a)), [*steps, other, *steps], lambda: o.a.dtype.char

    check(make, hits=2)


@pytest.mark.parametrize("kind", ["q", "Q"])
def test_an_argument_of_the_other_int(kind):
    calls = [call(np.arange(3).astype(k)) for k in ("l", "l", kind, kind, "l")]
    check(lambda trace: (trace(lambda a: (*named(a * 2), *named(a[1:]))), calls), hits=2, eager="takes-array")


# A list is filled into an array of the dtype number by number: what does not fit raises, and ints become
# floats of 64 bits before they become shorter ones.
@pytest.mark.parametrize(
    ("make", "values", "hits"),
    [
        (lambda n: np.array([n, 2], dtype=np.uint8), (1, 2, 3, 300, -1, 4), 1),
        (lambda n: np.asarray([[n, 2], [3, 4]], "int32"), (1, 2, 2**31, 3, 2**40), 1),
        (lambda n: torch.from_numpy(np.array((n, 2), np.uint64)), (1, 2, 3, -1, 4), 1),
        (lambda n: np.array([n, 2.5], dtype=int), (1.5, 2.5, 1e30, float("nan"), 3.0), 1),
        (lambda n: np.array([np.float32(n), np.float32(2)], np.int8), (1.0, 2.0, 300.0, float("nan")), 1),
        (lambda n: np.array([n, 2], dtype=np.float32), (1, 2, 2**60 + 2**36 + 1, 3), 2),
        (lambda n: np.array([n, 2], "half"), (1, 2, 2049, 2051, 5), 3),
        (lambda n: np.array([n, 2.5], dtype=np.float32), (1.5, 2.5, 1e30, float("nan"), 3.0), 3),
        (lambda n: np.array([n, 2], float), (1, 2, 2**60 + 2**36 + 1, 3), 2),
        (lambda n: np.array([n, 2], dtype="int64"), (1, 2, 3, -1), 2),
    ],
)
def test_dtypes_of_lists_of_numbers(make, values, hits):
    fn = lambda x, n: (x * 2, make(n))  # noqa: E731
    calls = [call(torch.ones(2), n) for n in values]
    check(lambda trace: (trace(fn), [*calls, *calls]), hits=hits)


def test_lists_of_more_dimensions_than_are_asked_for():
    fn = lambda x, n: np.array([[n], [2]], ndmax=1)  # noqa: E731
    check(lambda trace: (trace(fn), [call(torch.ones(2), n) for n in (1, 2, 3)]), eager="raised ValueError")


# ---------------------------------------------------------------- arrays as bounds
BOUNDS = {
    "from": lambda a, i: a[i:],
    "to": lambda a, i: a[:i],
    "both": lambda a, i: a[i : i + 2],
    "behind an ellipsis": lambda a, i: a[..., i:],
    "behind a new one": lambda a, i: a[None, i:],
    "of two": lambda a, i: (a[:, None] + a)[i:, :i],
    "of rows": lambda a, i: [row.sum() for row in (a[:, None] + a)[i:]],
}
ASKED = {
    "a list": lambda x, n: np.array(n),
    "a tensor": lambda x, n: (x[0] * n).long().numpy(),
    "an array": lambda x, n: np.asarray(n),
    "a sum": lambda x, n: np.array([n, 0]).sum(),
}


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_bounds_of_slices_that_are_arrays(bound, asked):
    """numpy asks an array for the int that it holds."""

    def make(trace):
        fn = lambda x, n: (x * 2, bound(np.arange(5), asked(x, n)))  # noqa: E731
        return trace(fn), [call(torch.ones(3), n) for n in (1, 1, 2, 3, 1, 2, 3, 2)]

    check(make, hits=3)
