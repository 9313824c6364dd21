"""Switches of the process, the thread and the task that keep calls from being recorded."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import torch

from lazytrace._native import available, core
from lazytrace.config import Environment
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

disabled_by_environment = Environment.read().disabled
# How many traces all functions and instances may hold together; 0: each cache has its own limit only.
total_limit = Environment.read().total_limit
_disabled: contextvars.ContextVar[bool] = contextvars.ContextVar("lazytrace_disabled", default=False)
if available():
    core.configure_disabled(_disabled)


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Run every traced function eagerly inside the block, in this thread or task.

    >>> import lazytrace, torch
    >>> @lazytrace.traced
    ... def double(x):
    ...     return x * 2
    >>> with lazytrace.disabled():
    ...     _ = double(torch.ones(1))
    >>> double.cache_info().currsize
    0
    """
    token = _disabled.set(True)
    try:
        yield
    finally:
        _disabled.reset(token)


def is_disabled() -> bool:
    """Whether every call runs eagerly: inside a `disabled` block, or under `LAZYTRACE_DISABLE`.

    >>> with disabled():
    ...     is_disabled()
    True
    """
    return disabled_by_environment or _disabled.get()


def is_tracing() -> bool:
    """Whether this thread is recording a traced function right now.

    >>> is_tracing()
    False
    """
    return available() and core.is_recording()


def inside_other_tracer() -> bool:
    """Whether another tracer or transform of torch is at work in this thread.

    >>> inside_other_tracer()
    False
    """
    return torch.compiler.is_compiling() or core.must_step_aside()
