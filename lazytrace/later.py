"""Names of a package whose modules are imported when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def later(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: `where` says of each name from which module of `lazytrace` it comes.

    Nothing is kept in the package: a module that has the name of one of its functions would be found there.

    >>> later("example", {"Mapping": "later"})("Mapping") is Mapping
    True
    """

    def getter(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"lazytrace.{where[name]}"), name)

    return getter
