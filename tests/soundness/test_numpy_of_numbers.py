"""Functions of numpy that are given one number, as models write them: `np.sqrt(d)`, `np.log(10000)`."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from tests.soundness.runner import call, check

NAMES = ["abs", "arctan", "ceil", "cos", "exp", "floor", "log", "log10", "log2", "sin", "sqrt", "tanh"]
CANNOT = "which lazytrace cannot see into"


def ones(count=4):
    return [call(torch.ones(3)) for _ in range(count)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [2, 2.5, np.float64(3.5)], ids=["int", "float", "numpy"])
def test_a_constant(name, value):
    fn = getattr(np, name)
    check(lambda trace: (trace(lambda x: (x * fn(value), fn(value), type(fn(value)))), ones()), hits=3)


@pytest.mark.parametrize("name", NAMES)
def test_a_number_in_state_is_compared(name):
    def make(trace):
        state = {"n": 1.5}
        fn = trace(lambda x: x * getattr(np, name)(state["n"]))

        def change():
            state["n"] += 0.25

        return fn, [*ones(2), change, *ones(2), change, *ones(2)]

    check(make, hits=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log", 0.0),
        ("log", -1.0),
        ("sqrt", -1.0),
        ("exp", 1000.0),
        ("exp", -1000.0),
        ("sin", float("inf")),
        ("tanh", float("nan")),
        ("sin", 1e-308),
        ("log", True),
        ("sqrt", 10**400),
        ("floor", "2"),
    ],
)
def test_what_numpy_may_warn_of_is_eager(name, value):
    """Whether it warns, raises or says nothing hangs on `np.errstate` and the filters of warnings."""

    def make(trace):
        def plain(x):
            with np.errstate(all="ignore"):
                return traced(x)

        traced = trace(lambda x: x * float(getattr(np, name)(value)))
        return plain, ones()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raises = isinstance(value, str) or value == 10**400
        check(make, eager="raised" if raises else CANNOT)


def test_the_value_of_a_tensor_is_compared():
    def make(trace):
        fn = trace(lambda x: x * np.sqrt(x[0].item()))
        return fn, [call(torch.full((3,), float(i))) for i in (4, 4, 9, 9, 4, 0, 4)]

    check(make, hits=2)


@pytest.mark.parametrize("other", ["cbrt", "exp2", "log"])
def test_another_function_under_the_name(monkeypatch, other):
    def make(trace):
        fn = trace(lambda x: x * np.sqrt(16.0))
        return fn, [
            *ones(2),
            lambda: monkeypatch.setattr(np, "sqrt", getattr(np, other)),
            *ones(2),
            monkeypatch.undo,
            *ones(2),
        ]

    check(make, hits=3)


@pytest.mark.parametrize(("name", "other"), [("sqrt", "cbrt"), ("sum", "prod"), ("add", "subtract")])
def test_another_function_of_arrays_under_the_name(monkeypatch, name, other):
    uses = {
        "sqrt": lambda x: np.sqrt(x),
        "sum": lambda x: np.sum(x),
        "add": lambda x: np.add(x, 2.0),
    }

    def make(trace):
        fn = trace(uses[name])
        arrays = [call(np.full(3, 16.0)) for _ in range(2)]
        return fn, [
            *arrays,
            lambda: monkeypatch.setattr(np, name, getattr(np, other)),
            *arrays,
            monkeypatch.undo,
            *arrays,
        ]

    check(make, hits=3)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: np.add(1.0, 2.0),
        lambda x: np.interp(3, [0, 10], [0.0, 1.0]),
        lambda x: (np.square(x[0].item()), np.round(x[0].item(), 2), np.arctan2(x[0].item(), 1.0)),
        lambda x: (np.sum([x[0].item(), 2.0]), np.std([x[0].item(), x[1].item()]), np.max([x[0].item()])),
        lambda x: np.array([x[0].item(), 2.0, float(x[1])]),
        lambda x: np.array([[x[0].item()], [float(x[1])]]),
        lambda x: int(np.argmax(x.numpy())),
    ],
)
def test_a_function_of_plain_or_followed_numbers(body):
    def make(trace):
        return trace(body), [call(torch.tensor([0.25 + i, 7.0 - i])) for i in range(8)]

    check(make, hits=7, recordings=1)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x * np.log(2.0, where=True),
        lambda x: x * np.log(2.0, dtype=np.float32),
        lambda x: x * float(np.frompyfunc(lambda v: v + 1, 1, 1)(2.0)),
        lambda x: x * float(np.log([2.0])[0]),
        lambda x: x * np.sqrt(np.float32(2.0)),
    ],
)
def test_anything_else_is_eager(body):
    check(lambda trace: (trace(body), ones()), eager=CANNOT)


def test_a_function_that_is_passed_or_kept():
    class Config:
        scale = staticmethod(np.sqrt)

    def make(trace):
        held = {"f": np.sqrt, "l": [np.log]}
        config = Config()
        fn = trace(lambda x, f: x * f(4.0) * held["f"](9.0) * held["l"][0](2.0) * config.scale(4.0))

        def change():
            held["f"] = np.log

        def change_more():
            held["l"][0] = np.exp
            config.scale = np.cos

        steps = [call(torch.ones(2), f) for f in (np.sqrt, np.sqrt, np.exp, np.exp, np.sqrt)]
        return fn, [*steps, change, *steps, change_more, *steps]

    check(make, hits=3)
