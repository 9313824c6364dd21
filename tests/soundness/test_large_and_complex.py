"""Ints beyond 64 bits, and complex numbers that meet numbers which are followed."""

from __future__ import annotations

import pytest

from tests.soundness.small_programs import row

LARGE = "large = 2**70\ns = "
METHODS = [
    row("dict", LARGE + "{large: 1}", "x * s.get(large)", "s[large] = 2", hits=2),
    row("dict without it", LARGE + "{}", "x, s.get(large)", "s[large] = 2", hits=2),
    row("entry by its name", LARGE + "{}", "s.update(p=large)\nreturn x * 2", hits=1),
    row("set", LARGE + "set()", "s.add(large)\nreturn x * 2", eager="calls .add() of a set"),
    row("list", LARGE + "[1, large]", "x * s.index(large)", "s.insert(0, 3)", hits=2),
    row("list that grows", LARGE + "[]", "s.append(large)\nreturn x * 2", hits=1),
    row("deque", LARGE + "collections.deque(maxlen=2)", "s.append(large)\nreturn x * 2", hits=1),
    row("no list is as long", LARGE + "[1, 2]",
        "try:\n    return x, s.pop(large)\nexcept OverflowError as error:\n    return x, str(error)",
        hits=1),
    row("frame", LARGE + "[1]\nimport sys",
        "try:\n    return x, sys._getframe(large)\nexcept OverflowError as error:\n    return x, str(error)",
        eager="calls sys._getframe() for a frame around the call"),
]  # fmt: skip

NAMES = "writes the address of a function as text"  # what raised may be written with it
RAISES = """
def tried(f, *values):
    try:
        return f(*values)
    except TypeError as error:
        return str(error)
"""
NUMBERS = "n, k = x.sum().item(), x.shape[0]\n"
COMPLEX = [
    row("divided", RAISES, NUMBERS + "return x, tried(divmod, 1j, n), tried(divmod, k, 1j)", eager=NAMES),
    row("ordered", RAISES + "less = lambda a, b: a < b",
        NUMBERS + "return x, tried(less, 1j, n), tried(less, n, 1j), tried(less, 1j, k)", hits=1),
    row("largest", RAISES, NUMBERS + "return x, tried(max, n, 1j), tried(min, 1j, k)", eager=NAMES),
    row("equal", RAISES, NUMBERS + "return x, n == 6 + 0j, 1j == n, n != 1j", hits=1),
]  # fmt: skip


@pytest.mark.parametrize("program", METHODS)
def test_ints_beyond_64_bits_as_arguments(program):
    program.check()


@pytest.mark.parametrize("program", COMPLEX)
def test_complex_numbers_that_meet_followed_ones(program):
    program.check()
