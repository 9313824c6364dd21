"""What a replay may print: only classes whose code is known to change nothing that a function reads."""

from __future__ import annotations

import collections
import os
import sys
from typing import Any, Final

import torch

from lazytrace._native import available, core

_PACKAGES: Final = ("torch", "numpy", "ipykernel", "_pytest")
_KNOWN: Final = {*_PACKAGES, *sys.stdlib_module_names}
_STANDARD: Final = os.path.dirname(os.__file__) + os.sep
_SITE: Final = os.path.dirname(os.path.dirname(torch.__file__)) + os.sep
_DEEPEST: Final = 16
_HEAP_TYPE: Final = 1 << 9  # of CPython's flags of types: others are there for as long as the process
_OF_TEXT: Final = ("__repr__", "__str__", "__format__")


def is_itself(cls: type) -> bool:
    """Whether a class is what its module has under its name: both names can be written over.

    >>> is_itself(collections.OrderedDict), is_itself(type("OrderedDict", (), {"__module__": "collections"}))
    (True, False)
    """
    if not cls.__flags__ & _HEAP_TYPE:
        return True
    found: Any = sys.modules.get(str(cls.__module__))
    for name in str(cls.__qualname__).split("."):
        found = getattr(found, name, None)
    return found is cls


def _writes_as_made(cls: type) -> bool:
    """Whether its texts come from C code, or from that of a library: nobody has replaced the methods."""
    for name in _OF_TEXT:
        code = getattr(getattr(cls, name), "__code__", None)
        if code is not None and not _is_of_library(code.co_filename):
            return False
    return True


def _is_of_library(file: str) -> bool:
    known = file.startswith(_STANDARD) and "site-packages" not in file
    return known or any(file.startswith(f"{_SITE}{name}{os.sep}") for name in _PACKAGES)


def is_printable(value: object, depth: int = 0) -> bool:
    """Whether neither `str(value)` nor what it writes to, for a file, runs code of the user's.

    >>> is_printable(({"loss": 0.5}, torch.ones(2), sys.stdout.__class__))
    True
    >>> is_printable([type("Mine", (), {"__module__": "mine"})()])
    False
    """
    if available() and core.is_followed(value):
        return True  # it stands for a number or a text
    cls = type(value)
    if depth > _DEEPEST or str(cls.__module__).partition(".")[0] not in _KNOWN:
        return False
    if not (is_itself(cls) and _writes_as_made(cls)):
        return False
    items: list[Any] = []
    if isinstance(value, dict):
        items = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset | collections.deque):
        items = [*value]
    elif isinstance(value, torch.nn.Module):
        items = [*value.children()]
    return all(is_printable(item, depth + 1) for item in items)
