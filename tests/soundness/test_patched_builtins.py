"""What a person has put in the place of Python's own functions is not called by the tracer itself."""

from __future__ import annotations

import builtins
import functools
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch

import lazytrace
from tests.soundness.runner import Holder

PACKAGE = str(Path(lazytrace.__file__).parent)
PATCHED = [
    *[
        (builtins, name)
        for name in ("all", "any", "format", "max", "min", "sorted", "sum", "zip", "map", "enumerate")
    ],
    *[(builtins, name) for name in ("isinstance", "len", "hasattr", "getattr", "repr", "tuple", "list")],
    (functools, "partial"),
    (functools, "reduce"),
    (threading, "RLock"),
    (threading, "current_thread"),
    (time, "perf_counter"),
    (weakref, "ref"),
]


def step(state, x):
    state.mean = state.mean * 0.9 + x.mean().item()
    state.steps += 1
    state.log.append(state.mean)
    y = torch.relu(x) * state.steps
    state.text = f"{state.mean:.3f} of {x.numpy().sum():.2f}"
    return y + 1 if state.steps % 3 == 0 else y, y[0].tolist()


@pytest.mark.parametrize(("owner", "name"), PATCHED, ids=lambda part: getattr(part, "__name__", part))
def test_the_tracer_does_not_call_it(owner, name, monkeypatch):
    original, callers = getattr(owner, name), []
    file_of, starts = type(sys._getframe()).f_code, str.startswith

    def patched(*args, **kwargs):
        file = file_of.__get__(sys._getframe(1)).co_filename
        if starts(file, PACKAGE):
            callers.append(file)
        return original(*args, **kwargs)

    state = Holder(mean=0.0, steps=0, log=[], text="")
    traced = lazytrace.traced(step)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, patched)
        for rows in (2, 2, 3, 3, 4, 2):
            traced(state, torch.ones(rows, 2))
    assert not callers
    assert traced.stats().calls == 6
