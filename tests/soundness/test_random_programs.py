"""Random programs and random calls of them: plain and traced agree, and every call is counted once.

A failure prints the program, which is a case as in the other files. `LAZYTRACE_FUZZ_EXAMPLES=20000` runs that
many, other ones each time, in place of the few and always same ones.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.soundness.programs import Program, Writer, source
from tests.soundness.runner import difference, drive

NAME = "<random program>"
WANTED = int(os.environ.get("LAZYTRACE_FUZZ_EXAMPLES", "0"))


@st.composite
def programs(draw):
    return Writer(lambda size: draw(st.integers(0, size - 1))).text()


def compare(text: str) -> None:
    """Plain and traced agree on the program, and lazytrace counts as many calls as there were."""
    with source(NAME, text):
        program = Program(NAME, text)
        plain, _ = drive(program, False)
        traced, tracer = drive(program, True)
    for (name, a), (_, b) in zip(plain, traced, strict=True):
        found = difference(name, a, b)
        assert not found, f"{found}\n    eager calls: {tracer.reasons()}"
    assert tracer.made[-1].stats().calls == program.calls


@given(programs())
@settings(
    max_examples=WANTED or 150,
    derandomize=not WANTED,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_random_programs(text):
    note(text)
    compare(text)


@pytest.mark.parametrize("seed", range(3))
def test_a_program_is_what_its_choices_make_it(seed):
    once, again = (Writer(random.Random(seed).randrange).text() for _ in range(2))
    assert once == again
    compare(once)


def test_a_wrong_result_is_found():
    text = Writer(random.Random(0).randrange).text()
    with pytest.raises(AssertionError, match="step 0"):
        compare(text.replace("\n    steps = [", "\n    if trace.enabled:\n        o.k = 7.5\n    steps = ["))
