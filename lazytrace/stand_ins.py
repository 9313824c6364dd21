"""Python code that stands for code in C while a recording is made, and is watched as the user's is."""

from __future__ import annotations

import collections
from typing import Any


class Filling:
    """A defaultdict that is asked for an entry which it does not have.

    >>> d = collections.defaultdict(list)
    >>> Filling(d)["k"].append(1)
    >>> d
    defaultdict(<class 'list'>, {'k': [1]})
    """

    __slots__ = ("_held",)

    def __init__(self, held: collections.defaultdict[Any, Any]) -> None:
        self._held = held

    def __getitem__(self, key: Any) -> Any:
        """What `defaultdict.__missing__` does (CPython, Modules/_collectionsmodule.c)."""
        factory = self._held.default_factory
        if factory is None:
            raise KeyError(key)
        made = factory()
        self._held[key] = made
        return made
