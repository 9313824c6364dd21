"""Numbers to cells, cells to tables, and notes below them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from peers.measuring import quartiles


class Notes:
    """Why cells have no number: each reason once, numbered.

    >>> notes = Notes()
    >>> notes.refer("no dicts"), notes.refer("no scalars"), notes.refer("no dicts")
    ('none [1]', 'none [2]', 'none [1]')
    >>> notes.lines()
    ['', '[1] no dicts  ', '[2] no scalars  ']
    """

    def __init__(self) -> None:
        self._texts: list[str] = []

    def refer(self, text: str) -> str:
        """A cell that refers to a reason."""
        if text not in self._texts:
            self._texts.append(text)
        return f"none [{self._texts.index(text) + 1}]"

    def lines(self) -> list[str]:
        """The reasons, to be put below the table."""
        if not self._texts:
            return []
        escaped = [text.replace("|", "\\|").replace("<", "&lt;") for text in self._texts]
        return ["", *(f"[{number}] {text}  " for number, text in enumerate(escaped, 1))]


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The lines of a table; the first column is to the left, the others are to the right.

    >>> table(["case", "us"], [["add", 0.25]])
    ['', '| case | us |', '|---|---:|', '| add | 0.25 |']
    """
    lines = ["", "| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def number(value: float, digits: int = 2) -> str:
    """A number with a fixed number of digits, thousands set apart, and no negative zero.

    >>> number(1234.5, 0), number(-0.001)
    ('1,234', '0.00')
    """
    text = f"{value:,.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text


def ranged(values: Sequence[float], digits: int = 2) -> str:
    """The median, and the smallest and largest value where there are several.

    >>> ranged([3.0, 1.0, 2.0]), ranged([1.0])
    ('2.00 [1.00, 3.00]', '1.00')
    """
    middle = number(statistics.median(values), digits)
    if len(values) == 1:
        return middle
    return f"{middle} [{number(min(values), digits)}, {number(max(values), digits)}]"


def quartered(values: Sequence[float], digits: int = 2) -> str:
    """The median and the quartiles.

    >>> quartered([1.0, 2.0, 3.0, 4.0, 50.0])
    '3.00 [2.00, 4.00]'
    """
    low, high = quartiles(values)
    return f"{number(statistics.median(values), digits)} [{number(low, digits)}, {number(high, digits)}]"
