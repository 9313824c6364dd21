"""What a failed guard says: which state changed, from what to what, and where it lives."""

from __future__ import annotations


def failed_guard(explained: tuple[str, str, str, str]) -> str:
    """The reason behind a failed guard, from its (path, old value, new value, remark).

    >>> failed_guard(("scale", "2.0", "3.0", "closure of step, model.py:12"))
    'scale 2.0 -> 3.0 (closure of step, model.py:12)'
    >>> failed_guard(("self.training", "True", "False", ""))
    'self.training True -> False'
    """
    path, old, new, remark = explained
    return f"{path} {old} -> {new}" + (f" ({remark})" if remark else "")
