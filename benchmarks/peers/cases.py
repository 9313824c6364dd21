"""What is called: sources and arguments that torch's side and jax's side share. Free of both."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

IDENTITY = "identity"
ADD_2 = "add two tensors"
ADD_32 = "add two of 32 tensors"
ONE_OF_500 = "module of 500 parameters, one used"
ALL_OF_500 = "module of 500 parameters, all used"
AUTOGRAD = ", with autograd"

LENGTHS = random.Random(0).sample(range(2, 513), 49)
"""The sequence lengths that S4 calls a model with."""

LENGTHS.insert(25, 1)  # special to compilers that think in symbolic sizes


@dataclass(frozen=True)
class Case:
    """Something to call: the source of a function `f`, or of a module `M` with `parameters` of them.

    In a source `STACK` and `CAT` are the functions of torch or jax, `BASE` is the module to derive from.
    """

    source: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    parameters: int = 0
    all_used: bool = False
    autograd: bool = False


def function(parameters: str, result: str) -> str:
    """The source of a function."""
    return f"def f({parameters}):\n    return {result}\n"


def module(result: str) -> str:
    """The source of a module."""
    return f"class M(BASE):\n    def forward(self, x):\n        return {result}\n"


def of_tensors(tensor: Callable[[], Any], count: int) -> dict[str, Case]:
    """Functions of `count` tensors that use none, two or all of them."""
    args = tuple(tensor() for _ in range(count))
    names = ", ".join(f"x{i}" for i in range(count))
    plural = f" of {count} tensors" if count > 1 else ""
    add = {1: "add a tensor to itself", 2: ADD_2}.get(count, f"add two of {count} tensors")
    cases = {
        IDENTITY + plural: Case(function(names, "x0"), args),
        add: Case(function(names, f"x0 + x{min(1, count - 1)}"), args),
    }
    if count > 2:
        cases[f"stack {count} tensors"] = Case(function(names, f"STACK([{names}])"), args)
    return cases


def of_parameters(tensor: Callable[[], Any], count: int) -> dict[str, Case]:
    """Modules with `count` parameters that use one or all of them."""
    x, every = (tensor(),), ", ".join(f"self.p{i}" for i in range(count))
    if count == 1:
        return {"module of 1 parameter": Case(module("x + self.p0"), x, parameters=1)}
    name = f"module of {count} parameters"
    return {
        f"{name}, one used": Case(module("x + self.p0"), x, parameters=count),
        f"{name}, all used": Case(module(f"CAT([x, {every}])"), x, parameters=count, all_used=True),
    }


def dispatch_cases(tensor: Callable[[], Any]) -> dict[str, Case]:
    """The cases of S1; `tensor` makes one of four numbers."""
    cases: dict[str, Case] = {}
    for count in (1, 2, 8, 32):
        cases |= of_tensors(tensor, count)
    nested = {"a": tensor(), "b": [tensor(), tensor()], "c": {"d": tensor(), "e": [tensor(), tensor()]}}
    cases["nested dict and list"] = Case(function("t", "t['a'] + t['c']['e'][1]"), (nested,))
    cases["Python scalars"] = Case(function("x, s, n", "x * s + n"), (tensor(), 2.5, 3))
    cases["keywords"] = Case(function("x, *, y, alpha=1.0", "x + y * alpha"), (tensor(),), {"y": tensor()})
    for count in (1, 50, 500):
        cases |= of_parameters(tensor, count)
    add = function("x, y", "x + y")
    cases[ADD_2 + AUTOGRAD] = Case(add, (tensor(), tensor()), autograd=True)
    return cases


def dispatch_names() -> list[str]:
    """The names of the cases of S1."""
    return list(dispatch_cases(lambda: None))


def operators_source(count: int) -> str:
    """A function of one tensor that runs `count` operators."""
    lines = ["    x = x.sin()" if i % 2 == 0 else "    x = x + 1" for i in range(count)]
    return "\n".join(["def f(x):", *lines, "    return x", ""])


def last_differs_source(count: int) -> str:
    """A function of `count` tensors, of which S5 changes the last one's size."""
    names = [f"x{i}" for i in range(count)]
    if count == 1:
        return function("x0", "x0 * 2")
    return function(", ".join(names), f"STACK([{', '.join(names[:-1])}]).sum() * {names[-1]}")


def hit_orders(signatures: Sequence[T]) -> dict[str, list[T]]:
    """Orders to hit cached signatures in; `cycle` is the worst case of a list of the most recently used."""
    draw = random.Random(0)
    return {
        "newest": list(signatures[-1:]),
        "oldest": list(signatures[:1]),
        "cycle": list(signatures),
        "random": [draw.choice(signatures) for _ in range(4096)],
    }
