"""The report, word for word: it is a pure function of snapshots."""

from __future__ import annotations

import pytest

from lazytrace.stats import Retrace, Snapshot, render

STEP = Snapshot(
    "step",
    hits=100,
    recordings=9,
    retraces=8,
    evictions=5,
    inlined=3,
    eager={"disabled": 1, "calls .tolist() of a tensor (train.py:41)": 3},
    seconds_recording=0.0123,
    seconds_eager=0.0045,
    operators=(7, 35, 7),
    retrace_reasons=(
        Retrace("x.dtype float32 -> float64", 1, 0.0009),
        Retrace("x.shape[0] 64 -> 13", 3, 0.0012, ("x.shape[0]",), "train.py:30"),
    ),
    retrace_reasons_dropped=4,
    cache_size=2,
    cache_limit=2,
    limit_enough=7,
    proof_failures=1,
    parameters="(x, w)",
)
FORWARD = Snapshot(
    "Net.forward",
    hits=40,
    recordings=2,
    retraces=1,
    seconds_recording=0.02,
    operators=(35, 35),
    retrace_reasons=(Retrace("self.training True -> False", 1, 0.0101),),
    cache_size=2,
    cache_limit=64,
    parameters="(x)",
)
IDLE = Snapshot("idle", cache_limit=64)

FULL = """\
lazytrace: 2 functions, 158 calls: 140 hits (88.6 %), 11 recordings (9 retraces, 32.3 ms), 4 eager, 3 inlined

function     calls  hits  recorded  retraces  evicted  eager  inlined  rec.ms  eager.ms  ops/program  cache
Net.forward     42    40         2         1        0      0        0    20.0       0.0           35   2/64
step           116   100         9         8        5      4        3    12.3       4.5         7-35    2/2

Retraces
  Net.forward(x): self.training True -> False   x1, 10.1 ms
  step(x, w): x.dtype float32 -> float64   x1, 0.9 ms
  step(x, w): x.shape[0] 64 -> 13   x3, 1.2 ms, called at train.py:30
  step: 4 older retraces for reasons not listed here

Eager calls
  step: calls .tolist() of a tensor (train.py:41)   x3
  step: disabled   x1

Limits
  step: cache_limit=2 was reached (5 evictions); cache_limit=7 would have been enough

Proof failures
  step: 1 recording differed from the eager call when replayed; the eager results were returned. \
This is a bug of lazytrace: please report it together with the function

Suggestions
  step: its signatures alternate beyond cache_limit=2, so recordings are dropped and made again: \
cache_limit=7 would have been enough.
  step: ran eagerly 3 times, calls .tolist() of a tensor (train.py:41): move it behind the traced \
function, or wrap the helper that does it in lazytrace.opaque.
"""

SMALL = """\
lazytrace: 1 function, 1 call: 0 hits (0.0 %), 1 recording (0 retraces, 2.0 ms), 0 eager, 0 inlined

function  calls  hits  recorded  retraces  evicted  eager  inlined  rec.ms  eager.ms  ops/program  cache
step          1     0         1         0        0      0        0     2.0       0.0           35   1/64
"""


def test_everything():
    assert render([STEP, IDLE, FORWARD]) == FULL


def test_empty_sections_are_left_out():
    once = Snapshot(
        "step", recordings=1, seconds_recording=0.002, operators=(35,), cache_size=1, cache_limit=64
    )
    assert render([once]) == SMALL


@pytest.mark.parametrize("snapshots", [[], [IDLE]])
def test_nothing_was_called(snapshots):
    assert render(snapshots) == "lazytrace: no traced function was called\n"


def test_the_terminal_and_the_environment_do_not_get_in(monkeypatch):
    for variable, value in {"COLUMNS": "20", "FORCE_COLOR": "1", "TERM": "dumb", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(variable, value)
    assert render([STEP, FORWARD]) == FULL


def test_functions_come_by_seconds_then_calls_then_as_given():
    snapshots = [
        Snapshot("few", hits=1),
        Snapshot("many", hits=9),
        Snapshot("slow", hits=1, seconds_recording=1.0),
        Snapshot("few too", hits=1),
    ]
    rows = render(snapshots).splitlines()[3:7]
    assert [row.split("  ")[0] for row in rows] == ["slow", "many", "few", "few too"]


def test_a_limit_that_was_reached_without_evictions():
    text = render([Snapshot("step", hits=1, cache_limit=2, limit_enough=3)])
    assert "  step: cache_limit=2 was reached; cache_limit=3 would have been enough\n" in text


def test_one_eviction():
    text = render([Snapshot("step", hits=1, evictions=1, cache_limit=2, limit_enough=3)])
    assert "cache_limit=2 was reached (1 eviction); cache_limit=3" in text


def test_a_reason_stays_on_one_line():
    reason = "name " + "'" + "long " * 100 + "'" + " -> 'a\nb\r' [bold]:smile:[/bold]"
    snapshot = Snapshot(
        "step", hits=1, retraces=1, retrace_reasons=(Retrace(reason, 1, 0.0),), eager={reason: 1}
    )
    shown = reason.replace("\n", "\\n").replace("\r", "\\r")
    for width in (20, None, 200):
        lines = render([snapshot], width).split("\n")
        assert f"  step: {shown}   x1, 0.0 ms" in lines
        assert f"  step: {shown}   x1" in lines


@pytest.mark.parametrize("width", [1, 60, 100])
def test_figures_are_never_cut(width):
    name = "build.<locals>.a_function_with_a_long_name"
    text = render([Snapshot(name, hits=123_456_789, cache_size=64, cache_limit=64)], width)
    assert text.count("123456789") == 4
    assert "64/64" in text
    rows = text.split("\n\n")[1].splitlines()[1:]
    assert "".join(row[:24].split("  ")[0] for row in rows) == name


def test_names_are_not_markup():
    assert "[red]step[/red]  " in render([Snapshot("[red]step[/red]", hits=1)])


def test_all_hits_is_said_only_of_all():
    assert "(99.9 %)" in render([Snapshot("step", hits=999_999, inlined=1)])
    assert "(100.0 %)" in render([Snapshot("step", hits=999_999)])


def test_many_values_of_one_argument_are_one_line():
    found = tuple(Retrace(f"k {n} -> {n + 1}", 2, 0.001, ("k",), f"a.py:{n}") for n in range(4))
    other = (Retrace("x.dtype float32 -> float64", 1, 0.001),)
    text = render([Snapshot("step", hits=1, retraces=9, retrace_reasons=found + other)])
    assert text.split("Retraces\n")[1] == (
        "  step: k changed in 4 ways: 0 -> 1, ..., 3 -> 4   x8, 4.0 ms, called at a.py:3\n"
        "  step: x.dtype float32 -> float64   x1, 1.0 ms\n"
    )


def test_titles_are_bold_on_a_terminal():
    plain, bold = render([STEP]), render([STEP], color=True)
    assert [line for line in bold.splitlines() if line.startswith("\x1b[1m")] == [
        f"\x1b[1m{line}\x1b[0m"
        for line in plain.splitlines()
        if line.startswith("lazytrace: ")
        or line in ("Retraces", "Eager calls", "Limits", "Proof failures", "Suggestions")
    ]
    assert bold.replace("\x1b[1m", "").replace("\x1b[0m", "") == plain
