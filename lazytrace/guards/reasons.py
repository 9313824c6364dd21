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


def other_guards(
    old: list[tuple[str, str, int]], new: list[tuple[str, str, int]], told: Reason | None
) -> tuple[Reason, ...]:
    """What else two programs expect differently, from their guard rows (path, expected value, register).

    `told` is the guard that failed first, which is not said again. Paths that only one program reads are not
    compared: they follow from what differs.

    >>> rows = [("self.training", "True", -1), ("self.p", "0.1", -1)], [("self.p", "0.2", -1)]
    >>> [str(reason) for reason in other_guards(*rows, None)]
    ['self.p 0.1 -> 0.2']
    """
    before: dict[str, str] = {}
    for path, value, _ in old:
        before.setdefault(path, value)
    found = dict.fromkeys(
        (path, before[path], value) for path, value, _ in new if before.get(path, value) != value
    )
    said = told.path if told is not None else ""
    # An empty text says nothing of the value, and the path that was told may go on from one of these.
    return tuple(Reason(*one, "state") for one in found if one[1] and one[2] and not said.startswith(one[0]))
