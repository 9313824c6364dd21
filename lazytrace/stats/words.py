"""Reasons and signatures as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lazytrace._native import available, core
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

_SAID_AT_ONCE = 8


def _usual() -> dict[str, str]:
    """What need not be said of a call: how torch starts, and of autocast how it was at the import."""
    if not available():
        return {}
    return {name: str(value) for name, value in (core.describe_ambient() | core.usual_ambient()).items()}


_USUAL: Final = _usual()


def texts(reasons: Sequence[object]) -> tuple[str, ...]:
    """The first eight reasons as texts, and how many more there are.

    >>> texts([f"k {n} -> 2" for n in range(12)])[-2:]
    ('k 7 -> 2', 'and 4 more')
    """
    shown = [str(reason) for reason in reasons[:_SAID_AT_ONCE]]
    more = len(reasons) - _SAID_AT_ONCE
    return (*shown, f"and {more} more") if more > 0 else tuple(shown)


def line_of(reasons: Sequence[object]) -> str:
    """The same as one line.

    >>> line_of(["x.shape[0] 64 -> 13", "k 1 -> 2"])
    'x.shape[0] 64 -> 13; k 1 -> 2'
    """
    return "; ".join(texts(reasons))


def signature_line(signature: Mapping[str, str]) -> str:
    """A signature in one line: tensors as dtype and shape, and the modes that are not as usual.

    >>> signature_line({"x.dtype": "float32", "x.shape[0]": "64", "k": "2", "grad_mode": "False"})
    'x: float32[64], k: 2, grad_mode: False'
    """
    parts: dict[str, list[str]] = {}
    for path, value in signature.items():
        # Checks that were switched on and off again stay set, to what they were.
        off = path == "sparse.check_invariants_set" or (path.startswith("autocast(") and value == "off")
        if _USUAL.get(path) == value or off:
            continue
        owner, dot, what = path.rpartition(".")
        if dot and what == "dtype":
            parts[owner] = [value]
        elif dot and what.startswith("shape[") and owner in parts:
            parts[owner].append(value)
        elif path[-1:] not in ")" and owner not in parts and not path.startswith("memory of "):
            parts[path] = ["", value]
    return ", ".join(f"{path}: {_brief(*found)}" for path, found in parts.items())


def _brief(dtype: str, *rest: str) -> str:
    return f"{dtype}[{', '.join(rest)}]" if dtype else "".join(rest)
