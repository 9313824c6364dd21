"""Cases as rows of text: what a module holds, what its function gives for `x`, what changes between calls."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import itertools
import math
import operator
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.soundness.runner import call, check

_NAMES = {
    "collections": collections, "contextlib": contextlib, "functools": functools, "gc": gc, "np": np,
    "itertools": itertools, "math": math, "operator": operator, "types": types, "torch": torch,
}  # fmt: skip


class Program(NamedTuple):
    """`setup` and `changes` are statements; `body` is an expression, or statements with a return.

    What stands under `s` is compared after each call.
    """

    setup: str
    body: str
    changes: tuple[str, ...]
    expected: dict[str, Any]

    def make(self, trace: Callable[..., Any]) -> Any:
        names: dict[str, Any] = dict(_NAMES, __name__="program", s=None)
        body = self.body if "return " in self.body else f"return {self.body}"
        np.seterr(all="warn")
        np.set_printoptions(legacy=False)
        exec(self.setup, names)
        exec("def f(x):\n" + "".join(f"    {line}\n" for line in body.split("\n")), names)
        step = trace(names["f"])

        def changing(text: str) -> Callable[[], None]:
            return lambda: exec(text, names)

        steps: list[Any] = [1, 1]
        for text in self.changes:
            steps += [changing(text), 1, 1]
        one = lambda: step(torch.arange(1.0, 4.0))  # noqa: E731
        return one, [call() if step == 1 else step for step in steps], lambda: names["s"]

    def check(self) -> None:
        check(self.make, **self.expected)


def row(name: str, setup: str, body: str, *changes: str, **expected: Any) -> Any:
    """A parameter of a test."""
    return pytest.param(Program(setup, body, changes, expected), id=name)
