"""How two calls differ, said with old and new value; pure functions of their descriptions."""

from __future__ import annotations

from collections.abc import Iterable

from lazytrace.signature.describe import Description

_SAID_ONCE = 8
_IMPLIED = (".is_contiguous()", ".stride()", ".ndim")


def differences(old: Description, new: Description) -> tuple[str, ...]:
    """Each property in which `new` differs from `old`, as `x.shape[0] 64 -> 13`.

    >>> differences({"x.dtype": "float32", "n": "3"}, {"x.dtype": "float64", "n": "3"})
    ('x.dtype float32 -> float64',)
    """
    changed = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    # A tensor of another rank differs in everything; the rank says it.
    ranks = {path.removesuffix(".ndim") for path in changed if path.endswith(".ndim")}
    shown = [p for p in changed if not _follows_from_rank(p, ranks)]
    texts = [f"{path} {old.get(path, 'nothing')} -> {new.get(path, 'nothing')}" for path in shown]
    if len(texts) > _SAID_ONCE:
        texts = [*texts[:_SAID_ONCE], f"and {len(texts) - _SAID_ONCE} more"]
    return tuple(texts)


def _follows_from_rank(path: str, ranks: set[str]) -> bool:
    return any(path.startswith((f"{owner}.shape[", f"{owner}.stride(")) for owner in ranks)


def nearest(new: Description, known: Iterable[Description]) -> Description | None:
    """The description that differs from `new` in the fewest properties; the newest of equals, None of none.

    `known` comes newest first. The idea is jax's: explain a miss against the closest known key.

    >>> nearest({"a": "1", "b": "2"}, [{"a": "3", "b": "3"}, {"a": "1", "b": "3"}])
    {'a': '1', 'b': '3'}
    """
    items = new.items()
    return min(known, key=lambda old: len(items ^ old.items()), default=None)
