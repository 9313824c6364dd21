"""What is asked of Python's library aside, while `stand_ins_of_library.py` stands for code of it."""

from __future__ import annotations

import collections
from typing import Any, Final

# That of all named tuples has the same code.
_RECORD: Final[Any] = collections.namedtuple("_RECORD", "field")
REPLACE: Final[Any] = _RECORD._replace
_FIELDS: Final = REPLACE.__code__.co_freevars.index("field_names")


def fields_of(function: Any) -> tuple[str, ...]:
    """The names that the `_replace` of a named tuple takes.

    >>> fields_of(collections.namedtuple("Point", "x y")._replace)
    ('x', 'y')
    """
    fields: tuple[str, ...] = function.__closure__[_FIELDS].cell_contents
    return fields
