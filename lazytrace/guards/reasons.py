"""What a failed guard says: which state changed, from what to what, and where it lives."""

from __future__ import annotations

from lazytrace.stats import Reason


def failed_guard(explained: tuple[str, str, str, str]) -> Reason:
    """The reason behind a failed guard, from its (path, old value, new value, remark).

    >>> str(failed_guard(("scale", "2.0", "3.0", "closure of step, model.py:12")))
    'scale 2.0 -> 3.0 (closure of step, model.py:12)'
    >>> str(failed_guard(("self.training", "True", "False", "")))
    'self.training True -> False'
    """
    path, old, new, remark = explained
    return Reason(path, old, new, "state", remark)
