"""How two calls differ, said with old and new value; pure functions of their descriptions."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Final

from lazytrace.originals import BUILTINS
from lazytrace.signature import Description
from lazytrace.stats import Reason, texts

__builtins__ = BUILTINS

_ONE_CHANGE = 2
_SIZE: Final = r"\.shape\[\d+\]$"
_KINDS: Final = (
    (r"\.shape\[\d+\]$|\.ndim$", "shape"),
    (r"\.dtype$", "dtype"),
    (r"\.device$", "device"),
    (r"\.is_contiguous\(\)$|\.stride\(\)$|\.layout$", "layout"),
    (r"\.requires_grad$|\.is_leaf$|\.is_inference\(\)$", "grad"),
)


def changes(old: Description, new: Description, modes: Container[str] = ()) -> tuple[Reason, ...]:
    """Each property in which `new` differs from `old`; `modes` are the paths that are no arguments.

    >>> changes({"x.dtype": "float32", "n": "3"}, {"x.dtype": "float64", "n": "3"})
    (Reason(path='x.dtype', old='float32', new='float64', kind='dtype', where=''),)
    """
    changed = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    # A tensor of another rank differs in everything; the rank says it.
    ranks = {path.removesuffix(".ndim") for path in changed if path.endswith(".ndim")}
    return tuple(
        Reason(path, old.get(path, "nothing"), new.get(path, "nothing"), _kind(path, modes))
        for path in changed
        if not _follows_from_rank(path, ranks)
    )


def failed_guard(explained: tuple[str, str, str, str]) -> Reason:
    """What a failed guard says: which state changed, from what to what, and where it lives.

    `explained` is its (path, old value, new value, remark).

    >>> str(failed_guard(("scale", "2.0", "3.0", "closure of step, model.py:12")))
    'scale 2.0 -> 3.0 (closure of step, model.py:12)'
    >>> str(failed_guard(("self.training", "True", "False", "")))
    'self.training True -> False'
    """
    path, old, new, remark = explained
    return Reason(path, old, new, "state", remark)


def differences(old: Description, new: Description) -> tuple[str, ...]:
    """The same as texts, as in `x.shape[0] 64 -> 13`: the first eight, and how many more there are.

    >>> differences({"x.dtype": "float32", "n": "3"}, {"x.dtype": "float64", "n": "3"})
    ('x.dtype float32 -> float64',)
    """
    return texts(changes(old, new))


def is_size(path: str) -> bool:
    """Whether a path is the size of one dimension.

    >>> is_size("x.shape[0]"), is_size("x.ndim")
    (True, False)
    """
    return re.search(_SIZE, path) is not None


def is_loose_value(reason: Reason) -> bool:
    """Whether an int or a float is another one of its type, or a text in a container another text.

    >>> is_loose_value(Reason("lr", "0.1", "0.01", "value"))
    True
    >>> is_loose_value(Reason("lr", "1", "0.01", "value"))
    False
    >>> is_loose_value(Reason("batch['name']", "'a'", "'b'", "value"))
    True
    >>> is_loose_value(Reason("mode", "'a'", "'b'", "value"))
    False
    """
    texts = all(text[:1] in "'\"" for text in (reason.old, reason.new))
    if texts:
        return reason.path.endswith("]")
    whole = [re.fullmatch(r"-?\d+", text) is not None for text in (reason.old, reason.new)]
    return whole[0] == whole[1] and all(map(_is_number_text, (reason.old, reason.new)))


def _is_number_text(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _kind(path: str, modes: Container[str]) -> str:
    if path in modes:
        return "mode"
    if path.startswith("memory of "):
        return "memory"
    if path.startswith(("type(", "len(")):
        return "structure"
    return next((kind for ending, kind in _KINDS if re.search(ending, path)), "value")


def _follows_from_rank(path: str, ranks: set[str]) -> bool:
    return any(path.startswith((f"{owner}.shape[", f"{owner}.stride(")) for owner in ranks)


def nearest(new: Description, known: Iterable[Description]) -> Description | None:
    """The description that differs from `new` in the fewest properties; the newest of equals, None of none.

    `known` comes newest first. The idea is jax's: explain a miss against the closest known key.

    >>> nearest({"a": "1", "b": "2"}, [{"a": "3", "b": "3"}, {"a": "1", "b": "3"}])
    {'a': '1', 'b': '3'}
    """
    items = new.items()
    closest: Description | None = None
    fewest = 0
    for old in known:
        # An old and a new item for each property, so one change counts twice.
        found = len(items ^ old.items())
        if closest is None or found < fewest:
            closest, fewest = old, found
        if fewest <= _ONE_CHANGE:
            break  # none can be nearer, and there may be many
    return closest
