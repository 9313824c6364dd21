"""What a replay may print: only classes whose code is known to change nothing that a function reads."""

from __future__ import annotations

import collections
import sys
from typing import Any, Final

import torch

_KNOWN: Final = {"torch", "numpy", "ipykernel", "_pytest", *sys.stdlib_module_names}
_DEEPEST: Final = 16


def is_printable(value: object, depth: int = 0) -> bool:
    """Whether neither `str(value)` nor what it writes to, for a file, runs code of the user's.

    >>> is_printable(({"loss": 0.5}, torch.ones(2), sys.stdout.__class__))
    True
    >>> is_printable([type("Mine", (), {"__module__": "mine"})()])
    False
    """
    if depth > _DEEPEST or str(type(value).__module__).partition(".")[0] not in _KNOWN:
        return False
    items: list[Any] = []
    if isinstance(value, dict):
        items = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset | collections.deque):
        items = [*value]
    elif isinstance(value, torch.nn.Module):
        items = [*value.children()]
    return all(is_printable(item, depth + 1) for item in items)
