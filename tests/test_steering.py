"""Freezing, warm-up, expectations and what they say; the helpers for tests."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

import lazytrace
from lazytrace import RetraceError, RetraceWarning, expect, traced, warmup
from lazytrace.errors import NotTraceableError, unexpected_calls
from lazytrace.testing import assert_traces, no_eager, no_retrace

X = torch.tensor([-1.0, 0.5, 2.0])


def refused(name: str, how: str, line: int, reasons: str) -> str:
    return (
        f"{name} {how}, and the call at test_steering.py:{line} would be recorded: {reasons}. "
        "Undo that change, or make such a call once with lazytrace.warmup() before, "
        "or let the function record: thaw() and on_retrace='record' do."
    )


def line_of(function, offset: int) -> int:
    return function.__code__.co_firstlineno + offset


# ---------------------------------------------------------------- freeze
def test_a_frozen_function_hits_and_does_not_record():
    calls = []
    scale = 2.0

    @traced(name="frozen")
    def step(x):
        calls.append(1) if x.numel() == 4 else None
        return x * scale

    step(X)
    step.freeze()
    assert torch.equal(step(X), X * 2)

    def other_shape():
        step(torch.ones(4))

    with pytest.raises(RetraceError) as caught:
        other_shape()
    line = line_of(other_shape, 1)
    assert str(caught.value) == refused("frozen", "is frozen", line, "x.shape[0] 3 -> 4")
    assert calls == []
    scale = 3.0
    with pytest.raises(RetraceError, match=r"scale 2\.0 -> 3\.0 \(closure of step"):
        step(X)
    step.thaw()
    assert torch.equal(step(X), X * 3)
    assert step.stats().recordings == 2


def test_a_frozen_function_does_not_record_first_calls_either():
    step = traced(lambda x: x * 2)
    step.freeze()
    with pytest.raises(RetraceError, match="first call"):
        step(X)
    assert step.stats().calls == 0


def test_a_frozen_function_goes_on_running_eagerly_what_did_before():
    step = traced(lambda x: x * len(x.repeat(99, 1).tolist()[0]))
    step(X)
    step.freeze()
    for _ in range(10):
        assert torch.equal(step(X), X * 3)
    assert step.stats().eager_calls == 11


@pytest.mark.parametrize("how", ["frozen", "on_retrace"])
def test_a_call_that_has_written_before_it_would_be_recorded_is_finished(how):
    @traced(name="step", on_retrace="raise" if how == "on_retrace" else "record")
    def step(x, total):
        total += 1
        return x * 2 if x.sum() > 0 else x * 3

    total = torch.zeros(3)
    step(X, total), step(X, total)
    if how == "frozen":
        step.freeze()
    assert torch.equal(step(-X, total), -X * 3)
    assert total.tolist() == [3.0] * 3
    line = line_of(step.original, 3)
    said = "is frozen" if how == "frozen" else "has on_retrace='raise'"
    assert step.stats().eager == {f"{said}: result of is_nonzero True -> False (test_steering.py:{line})": 1}
    assert step.stats().recordings == 1


def test_a_method_freezes():
    class Scaler:
        @traced
        def run(self, x):
            return x * 2

    one = Scaler()
    one.run(X)
    one.run.freeze()
    with pytest.raises(RetraceError):
        Scaler().run(X)
    one.run.thaw()
    Scaler().run(X)


# ---------------------------------------------------------------- on_retrace
def test_on_retrace_raise():
    step = traced(lambda x, k: x * k, on_retrace="raise", name="step")
    step(X, 1), step(X, 1)

    def other():
        step(X, 2)

    with pytest.raises(RetraceError) as caught:
        other()
    assert str(caught.value) == refused("step", "has on_retrace='raise'", line_of(other, 1), "k 1 -> 2")
    assert (step.stats().recordings, step.stats().hits) == (1, 1)
    assert torch.equal(step(X, 1), X)


def test_on_retrace_warn():
    step = traced(lambda x, k: x * k, on_retrace="warn", name="step")
    step(X, 1)

    def other():
        step(X, 2)

    with pytest.warns(RetraceWarning) as caught:
        other()
    (warning,) = caught
    assert str(warning.message) == "step was recorded again, with on_retrace='warn': k 1 -> 2."
    assert (warning.filename, warning.lineno) == (__file__, line_of(other, 1))
    assert step.stats().retraces == 1


# ---------------------------------------------------------------- warmup
@pytest.mark.filterwarnings("error")
def test_warmup():
    step = traced(lambda x, k=1: x * k, dynamic=False)
    assert warmup(step, [(X, 1), X, {"x": X, "k": 2}]) == 2
    assert warmup(step, [(X, k) for k in range(3, 40)]) == 37
    step(X, 99)
    assert step.stats().recordings == 40


def test_warmup_of_a_method():
    class Scaler:
        @traced
        def run(self, x):
            return x * 2

    assert warmup(Scaler().run, [X, torch.ones(4)]) == 2


@pytest.mark.parametrize("ask", [lambda f: warmup(f, []), lambda f: assert_traces(f, exactly=0)])
def test_what_is_not_traced(ask):
    with pytest.raises(NotTraceableError) as caught:
        ask(3)
    assert re.fullmatch(
        r"(warmup|assert_traces)\(3\): an object of type int is not traced\. "
        r"Decorate it with lazytrace\.traced first\.",
        str(caught.value),
    )


# ---------------------------------------------------------------- expect
def test_expect_nothing():
    step = traced(lambda x, k: x * k, name="step", dynamic=False)
    step(X, 1)
    with expect(traces=0, eager=0):
        step(X, 1)

    def block():
        with expect(traces=0):
            step(X, 2), step(X, 3)

    with pytest.raises(RetraceError) as caught:
        block()
    line = line_of(block, 2)
    assert str(caught.value) == (
        "expected 0 traces in this block, 2 were recorded:\n"
        f"  step: k 1 -> 2 (called at test_steering.py:{line})\n"
        f"  step: k 2 -> 3 (called at test_steering.py:{line})\n"
        "Make such calls before the block, or undo what changed."
    )


def test_expect_more_than_there_are():
    def block():
        with expect(traces=1):
            pass

    with pytest.raises(RetraceError) as caught:
        block()
    assert str(caught.value) == (
        "expected 1 trace in this block, none were recorded.\n"
        "Make such calls before the block, or undo what changed."
    )


def test_expect_eager_calls():
    step = traced(lambda x: x, backend="eager", name="step")

    def block():
        with expect(eager=0):
            step(X)

    with pytest.raises(RetraceError) as caught:
        block()
    assert str(caught.value) == unexpected_calls(
        "eager call", 0, 1, [f'step: backend="eager" (called at test_steering.py:{line_of(block, 2)})']
    )
    with expect(eager=1):
        step(X)


def test_an_exception_of_the_block_passes_through():
    def block():
        with expect(traces=5):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        block()


# ---------------------------------------------------------------- lazytrace.testing
def test_assert_traces():
    step = traced(lambda x, k: x * k, name="step")

    def calls():
        step(X, 1), step(X, 2)

    calls()
    assert_traces(step, exactly=2)
    assert_traces(step, at_most=2)
    line = line_of(calls, 1)
    for wanted, text in (({"exactly": 3}, "exactly 3"), ({"at_most": 1}, "at most 1")):
        with pytest.raises(AssertionError) as caught:
            assert_traces(step, **wanted)
        assert str(caught.value) == (
            f"step: expected {text} recordings, found 2\n"
            f"  step: first call (called at test_steering.py:{line})\n"
            f"  step: k 1 -> 2 (called at test_steering.py:{line})"
        )


@pytest.mark.parametrize("wanted", [{}, {"exactly": 1, "at_most": 1}])
def test_assert_traces_needs_one_of_both(wanted):
    with pytest.raises(TypeError, match="assert_traces takes exactly= or at_most=, one of them"):
        assert_traces(traced(lambda x: x), **wanted)


def test_no_retrace():
    step = traced(lambda x, k: x * k, name="step")
    with no_retrace():
        step(X, 1), step(X, 1)

    def block():
        with no_retrace():
            step(X, 2)

    with pytest.raises(AssertionError) as caught:
        block()
    assert str(caught.value) == unexpected_calls(
        "retrace", 0, 1, [f"step: k 1 -> 2 (called at test_steering.py:{line_of(block, 2)})"]
    )


def test_no_eager():
    step = traced(lambda x: x * len(x.repeat(99, 1).tolist()[0]), name="step")

    def block():
        with no_eager():
            step(X)

    with pytest.raises(AssertionError) as caught:
        block()
    place = f"test_steering.py:{line_of(step.original, 0)}"
    assert str(caught.value) == unexpected_calls(
        "eager call",
        0,
        1,
        [f"step: calls .tolist() of a tensor ({place}) (called at test_steering.py:{line_of(block, 2)})"],
    )
    with no_eager():
        traced(lambda x: x * 2)(X)


def test_warnings_of_waste_can_be_switched_off():
    step = traced(lambda x, k: x * k, dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", lazytrace.RetraceWarning)
        for k in range(16):
            step(X, k)
    assert step.stats().recordings == 16
