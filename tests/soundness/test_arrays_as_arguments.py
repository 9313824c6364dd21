"""What functions of numpy are given beside values: places for results, dtypes. And who has the arrays."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from tests.soundness.runner import X, agree, call, check


def calls():
    return [call(k * X()) for k in range(1, 6)]


def exp(x):
    return np.exp(x.numpy())


PLACES = {
    "method": lambda a, out: a.sum(0, None, out),
    "function": lambda a, out: np.sum(a, 0, None, out),
    "mean": lambda a, out: a.mean(0, None, out),
    "largest": lambda a, out: np.max(a, 0, out),
    "clipped": lambda a, out: np.clip(a[0], 0, 2, out),
    "clipped by a method": lambda a, out: a[0].clip(0, 2, out),
    "rounded": lambda a, out: a[0].round(1, out),
    "taken": lambda a, out: np.take(a[0], [0, 1, 2], None, out),
    "of which kind": lambda a, out: np.add(a[0], a[1], out),
    "by its name": lambda a, out: np.cumsum(a[0], out=out),
    "summed up": lambda a, out: np.cumsum(a[0], 0, None, out),
    "product": lambda a, out: np.dot(a[0], np.eye(3, dtype=np.float32), out),
    "row by row": lambda a, out: np.concatenate([a[0, :1], a[0, 1:]], 0, out),
    "in the place of nan": lambda a, out: np.nan_to_num(a[0], False),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_for_the_result(name):
    """It gives that very array back."""

    def body(x):
        a, out = np.stack([exp(x), exp(x)]), np.zeros(3, dtype=np.float32)
        found = PLACES[name](a, out)
        return x, found is out, out, found, a

    check(lambda trace: (trace(body), calls()), eager="hands-array-to-c")


WITHOUT_NAMES = {
    "one": lambda a: (a.sum(0), np.sum(a, 0), np.round(a, 1), np.clip(a, 0, 1)),
    "two": lambda a: (a.sum(0, np.float64), np.mean(a, 0, np.float64), a.clip(0, 1), np.take(a, [0], 1)),
}


@pytest.mark.parametrize("name", WITHOUT_NAMES)
def test_arguments_without_names(name):
    def body(x):
        return x, WITHOUT_NAMES[name](np.outer(exp(x), exp(x)))

    check(lambda trace: (trace(body), calls()), hits=4)


def test_where_numpy_works():
    """The median of an array that it may change."""
    agree(lambda trace: (trace(lambda x: (np.median(a := exp(x), None, None, True), a)), calls()))


FIELDS = np.dtype([("a", "f4"), ("b", "i4")])
DTYPES = {
    "fields": FIELDS,
    "big": np.dtype(">f4"),
    "with something beside": np.dtype("f4", metadata={"a": 1}),
    "times": np.dtype("M8[D]"),
    "texts": np.dtype("U3"),
    "objects": np.dtype(object),
    "arrays": np.dtype(("f4", (2,))),
    "half": np.float16,
}


@pytest.mark.parametrize("name", DTYPES)
def test_kinds_of_dtypes(name):
    def body(x):
        found = np.zeros(3, dtype=DTYPES[name])
        return x * 2, found.dtype.descr, str(found.dtype), found.dtype.metadata is None, str(found)

    agree(lambda trace: (trace(body), calls()))


def gone(x):
    found = exp(x)
    reference = weakref.ref(found)
    alive = reference() is not None
    del found
    return x, alive, reference() is None


def gone_beside_its_tensor(x):
    y = x * 2
    shown = y.numpy()
    reference = weakref.ref(y)
    del y, shown
    return x, reference() is None


def gone_from_a_table(x):
    table = weakref.WeakValueDictionary()
    table["k"] = found = exp(x)
    del found
    return x, "k" in table


def told_of_its_end(x):
    ended = []
    found = exp(x)
    reference = weakref.ref(found, lambda _: ended.append(1))
    del found
    return x, ended, reference() is None


HELD = [gone, gone_beside_its_tensor, gone_from_a_table, told_of_its_end]


@pytest.mark.parametrize("body", HELD, ids=lambda body: body.__name__)
def test_nobody_holds_an_array_in_secret(body):
    agree(lambda trace: (trace(body), calls()))


def made_before(x):
    found = np.zeros(3)
    with torch.inference_mode():
        return x + 1, torch.from_numpy(found)


def made_inside(x):
    with torch.inference_mode():
        found = np.zeros(3)
        found[0] = 2
    return x + 1, torch.from_numpy(found)


def made_and_taken_inside(x):
    with torch.inference_mode():
        found = np.zeros(3)
        found += 1
        return x + 1, torch.as_tensor(found)


@pytest.mark.parametrize("body", [made_before, made_inside, made_and_taken_inside], ids=lambda b: b.__name__)
def test_tensors_of_inference(body):
    agree(lambda trace: (trace(body), calls()))


# What numpy raises has the size in it.
TELLS_SIZES = {
    "reshape": lambda a: a.reshape(1, 2),
    "item": lambda a: a[99],
    "items": lambda a: a[0, 0],
    "set": lambda a: a.__setitem__(99, 1),
    "together": lambda a: a + np.ones(2),
}


@pytest.mark.parametrize("name", TELLS_SIZES)
def test_errors_that_tell_sizes(name):
    def body(x):
        try:
            return x, TELLS_SIZES[name]((x * 2).numpy())
        except (ValueError, IndexError) as error:
            return x, str(error)

    agree(lambda trace: (trace(body), [call(X(n)) for n in (3, 4, 5, 6, 7, 3)]))


TENSORS = {
    "sizes": lambda x: torch.LongTensor(np.array(3)).shape,
    "negative sizes": lambda x: torch.Tensor(np.array(-3)),
    "a value": lambda x: torch.Tensor(np.array(3.0)),
    "by its name": lambda x: (torch.as_tensor(data=exp(x)), torch.tensor(data=exp(x))),
    "a name that there is not": lambda x: torch.from_numpy(array=exp(x)),
    "nor here": lambda x: len(obj=exp(x)),
    "of numpy's kind": lambda x: torch.as_tensor(exp(x), dtype=np.float32),
    "a copy of numpy's kind": lambda x: torch.tensor(exp(x), dtype=float),
    "on no device": lambda x: torch.tensor(exp(x), device=1.5),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_of_arrays(name):
    def body(x):
        try:
            return x, TENSORS[name](x)
        except (TypeError, RuntimeError) as error:
            return x, str(error)

    agree(lambda trace: (trace(body), calls()))


@pytest.mark.parametrize(
    "gone_through", [list, tuple, max, sum, set, reversed, lambda v: [*v], lambda v: 2 in v]
)
def test_a_number_is_no_sequence(gone_through):
    """A class of Python that has items, as numpy's float64 has, would be one."""

    def body(x):
        try:
            return x, gone_through(exp(x.double()).sum())
        except TypeError as error:
            return x, str(error)

    agree(lambda trace: (trace(body), calls()))


EITHER = {
    "or": lambda a: a or 2,
    "and": lambda a: a and 2,
    "the other one": lambda a: (a - a) or a,
    "of several": lambda a: [a or 1, 0 or a, a and a],
    "not": lambda a: (not a, 1 if a else 2),
}


@pytest.mark.parametrize("name", EITHER)
def test_either_of_two(name):
    """`a or b` is one of the two, and not only its truth."""

    def body(x):
        found = np.abs(x.sum().numpy()) + np.zeros((1, 1))
        return x, EITHER[name](found)

    agree(lambda trace: (trace(body), calls()))
