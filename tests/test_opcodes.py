"""The table of opcodes: each of the running CPython has one row, each row says what the core knows."""

from __future__ import annotations

import dis
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parent.parent / "lazytrace" / "csrc" / "cpython"
TABLE = CORE / f"opcodes_3{sys.version_info.minor}.def"
ROW = re.compile(
    r"^OPCODE\((\w+), (\w+), ([^,]+), (\w+), ([^,]+), ([^,]+), ([^,]+), ([^,]+)\)$", re.MULTILINE
)
ROWS = ROW.findall(TABLE.read_text())


def values_of(name: str) -> set[str]:
    """The values of an enum in operations.h."""
    body = re.search(
        rf"enum class {name} : uint8_t {{(.*?)}};", (CORE / "operations.h").read_text(), re.DOTALL
    )
    assert body is not None
    return set(re.findall(r"^\s+(\w+),", body[1], re.MULTILINE))


def test_each_opcode_has_one_row() -> None:
    assert Counter(row[0] for row in ROWS) == Counter(dict.fromkeys(dis.opmap, 1))


def test_no_row_is_overlooked() -> None:
    assert len(ROWS) == TABLE.read_text().count("\nOPCODE(")


def test_each_action_has_a_row_and_each_row_an_action() -> None:
    assert {row[1] for row in ROWS} == values_of("Action")
    assert {row[3] for row in ROWS} == values_of("Gives")


def depth_of(expression: str, oparg: int) -> int:
    """The value of a depth, written in C."""
    condition, _, rest = expression.partition(" ? ")
    if rest:
        yes, no = rest.split(" : ")
        return depth_of(yes if depth_of(condition, oparg) else no, oparg)
    value = eval(expression, {"oparg": oparg})
    assert isinstance(value, int)
    return value


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_operands_are_different_places(row: tuple[str, ...]) -> None:
    name, action, _, _, *operands, _ = row
    for oparg in (0, 1, 2, 5):
        depths = [depth_of(operand, oparg) for operand in operands]
        if action in ("UsesKeys", "JoinsTexts", "Calls"):  # the last of these is how many there are
            depths.pop()
        there = [depth for depth in depths if depth]
        assert all(depth > 0 for depth in there), name
        assert len(set(there)) == len(there), name
