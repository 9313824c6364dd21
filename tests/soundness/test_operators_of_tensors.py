"""What Python's operators call on the class of a tensor, exchanged between calls."""

from __future__ import annotations

import operator

import pytest
import torch

from tests.soundness.runner import X, around, check

BINARY = {
    "add": operator.add,
    "and": operator.and_,
    "floordiv": operator.floordiv,
    "lshift": operator.lshift,
    "matmul": operator.matmul,
    "mul": operator.mul,
    "mod": operator.mod,
    "or": operator.or_,
    "pow": operator.pow,
    "rshift": operator.rshift,
    "sub": operator.sub,
    "truediv": operator.truediv,
    "xor": operator.xor,
}
SYMBOLS = {
    "add": "+",
    "and": "&",
    "floordiv": "//",
    "lshift": "<<",
    "matmul": "@",
    "mul": "*",
    "mod": "%",
    "or": "|",
    "pow": "**",
    "rshift": ">>",
    "sub": "-",
    "truediv": "/",
    "xor": "^",
}
COMPARISONS = {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">="}
UNARY = {"neg": "-", "pos": "+", "invert": "~"}
INTS = torch.tensor([4, 9, 2])


def function(text):
    """Of x and y, as if it had been written so: an instruction, not a call of the operator module."""
    names = {}
    body = text if text.startswith("x ") and "=" in text.split()[1] else f"z = {text}"
    exec(f"def f(x, y):\n    {body}\n    return {'x' if body == text else 'z'} + 1", names)
    return names["f"]


def exchanged(monkeypatch, cls, name, text, *args):
    """The method is set on the class after two calls; it answers something else than torch's does."""

    def make(trace):
        monkeypatch.undo()

        def change():
            monkeypatch.setattr(cls, name, lambda self, *others: torch.full((3,), 17), raising=False)

        return trace(function(text)), around(change, *args)

    check(make, hits=2)


@pytest.mark.parametrize("name", BINARY)
def test_forward(monkeypatch, name):
    exchanged(monkeypatch, torch.Tensor, f"__{name}__", f"x {SYMBOLS[name]} y", INTS, INTS + 1)


@pytest.mark.parametrize("name", BINARY)
def test_reflected(monkeypatch, name):
    number = torch.tensor([2, 3, 4]) if name == "matmul" else 3
    left = "y" if name == "matmul" else "3"
    exchanged(monkeypatch, torch.Tensor, f"__r{name}__", f"{left} {SYMBOLS[name]} x", INTS, number)


@pytest.mark.parametrize("name", [name for name in BINARY if name not in ("matmul", "truediv")])
def test_in_place(monkeypatch, name):
    def make(trace):
        monkeypatch.undo()

        def change():
            monkeypatch.setattr(
                torch.Tensor, f"__i{name}__", lambda x, y: torch.full((3,), 17), raising=False
            )

        f = function(f"x {SYMBOLS[name]}= y")
        return trace(lambda x, y: f(x.clone(), y)), around(change, INTS, INTS % 3 + 1)

    check(make, hits=2)


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("side", ["x {} y", "2 {} x"])
def test_comparison(monkeypatch, name, side):
    swapped = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}.get(name, name)
    called = name if side.startswith("x") else swapped
    exchanged(monkeypatch, torch.Tensor, f"__{called}__", side.format(COMPARISONS[name]), INTS, INTS.flip(0))


@pytest.mark.parametrize("name", UNARY)
def test_unary(monkeypatch, name):
    exchanged(monkeypatch, torch.Tensor, f"__{name}__", f"{UNARY[name]}x", INTS, INTS)


@pytest.mark.parametrize("name", ["__mul__", "__rmul__", "__lt__", "__neg__"])
def test_parameter(monkeypatch, name):
    text = {"__mul__": "x * y", "__rmul__": "2 * x", "__lt__": "x < y", "__neg__": "-x"}[name]
    exchanged(monkeypatch, torch.nn.Parameter, name, text, torch.nn.Parameter(X()), X())


def test_code_of_a_method_of_torch():
    # A function that stays the same object and does something else.
    method = torch.Tensor.__rsub__
    inner = method.__wrapped__ if hasattr(method, "__wrapped__") else method
    code = inner.__code__

    def other(self, other):
        return self * 100

    def make(trace):
        inner.__code__ = code

        def change():
            inner.__code__ = other.__code__

        return trace(function("1 - x")), around(change, X(), X())

    try:
        check(make, hits=2)
    finally:
        inner.__code__ = code


def test_a_method_that_the_operator_does_not_call_is_no_guard(monkeypatch):
    def make(trace):
        monkeypatch.undo()

        def change():
            monkeypatch.setattr(torch.Tensor, "__rsub__", lambda self, other: self, raising=False)

        return trace(function("x + y")), around(change, X(), X())

    check(make, hits=3)
