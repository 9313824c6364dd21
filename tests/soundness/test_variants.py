"""The cases of all files once more, with something done before or after what each of them does.

After a random number, a write and a read, all that a case does comes after effects; where the result is
stored, each case is one that writes to Python state.
"""

from __future__ import annotations

import functools
import importlib
import types
from pathlib import Path

import pytest
import torch

from tests.soundness import runner

FILES = sorted(
    path.stem
    for path in Path(__file__).parent.glob("test_*.py")
    if "\ncases = Cases()\n" in path.read_text()
    and (path.stem != "test_gpu" or torch.cuda.is_available())  # its cases make tensors there
)


class State:
    """What a variant writes to."""

    def __init__(self):
        self.total, self.last, self.calls = torch.zeros(()), None, 0


def after_effects(fn, state):
    """A random number, a write and a read come first."""

    def varied(*args, **kwargs):
        state.total.add_(1)
        if torch.rand(()) > 0.5:
            state.total.mul_(1.5)
        return fn(*args, **kwargs)

    return varied


def stored(fn, state):
    """What is returned is kept as well."""

    def varied(*args, **kwargs):
        state.last = fn(*args, **kwargs)
        return state.last

    return varied


def counted(fn, state):
    """A Python number changes around the call, whatever happens in it."""

    def varied(*args, **kwargs):
        state.calls += 1
        try:
            return fn(*args, **kwargs)
        finally:
            state.calls -= 1

    return varied


class Varied(runner.Tracer):
    """Decorates a variant of each function that a case has traced."""

    def __init__(self, enabled, variant):
        super().__init__(enabled)
        self.variant, self.state = variant, State()

    def __call__(self, fn=None, **options):
        if isinstance(fn, types.FunctionType):
            varied = self.variant(fn, self.state)
            varied.__name__, varied.__qualname__ = fn.__name__, fn.__qualname__
            fn = varied
        return super().__call__(fn, **options)


@pytest.mark.parametrize("variant", [after_effects, stored, counted], ids=lambda v: v.__name__)
@pytest.mark.parametrize("file", FILES)
def test_variants(file, variant, monkeypatch):
    monkeypatch.setattr(runner, "Tracer", functools.partial(Varied, variant=variant))
    for case in importlib.import_module(f"tests.soundness.{file}").cases.known:
        try:
            runner.agree(case.values[0])
        except AssertionError as error:
            raise AssertionError(f"{case.id}: {error}") from error


@pytest.mark.parametrize("file", FILES)
def test_each_case_is_a_test(file):
    """A case below the test of its file, or in a file that has none, would state its hits in vain."""
    cases = importlib.import_module(f"tests.soundness.{file}").cases
    assert cases.tested == len(cases.known)
