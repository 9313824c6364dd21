"""Flat steps that print or log: whatever is undone, proved or run again, each thing is told once."""

from __future__ import annotations

import contextlib
import io
import os

import pytest
import torch

from tests.soundness.runner import agree, call
from tests.soundness.test_flat_exits import Linear, mostly, noisy
from tests.soundness.test_flat_steps import ENOUGH, forms
from tests.soundness.test_logging import Keeping, fresh, written
from tests.soundness.test_steps import parts, sgd


def training(trace, tell, between=None, many=lambda: torch.randn(4, 4), few=lambda: torch.full((4, 4), 1e9)):
    """A step that tells of its loss before `between` goes on, and of its number at the end."""
    model = Linear()
    opt = sgd(model, momentum=0.9)
    kept = {"n": 0}

    def then(loss):
        tell("loss", loss, kept)
        if between is None or between(model, loss):
            opt.step()
        kept["n"] += 1
        tell("after", loss, kept)
        return loss.detach()

    step = trace(lambda x: noisy(model, opt, x, then))
    return step, mostly(many, few), lambda: [parts(model), kept]


def told(make, handler=None):
    """A case with what a logger has been told."""

    def case(trace):
        if handler is None:
            logger, out = written()
            seen = out.getvalue
        else:
            kept = handler()
            logger, seen = fresh(kept), lambda: kept.seen
        step, steps, state = make(trace, logger)
        return step, steps, lambda: [state(), seen()]

    return case


# ---------------------------------------------------------------- ways of telling
def numbers(logger):
    return lambda what, loss, kept: logger.info("%s %.6f at %d", what, loss.item(), kept["n"])


def texts(logger):
    return lambda what, loss, kept: logger.info(f"{what} {loss.item():.6f} at {kept['n']}")


def catches(logger):
    def tell(what, loss, kept):
        try:
            logger.info("%s %.6f at %d", what, loss.item(), kept["n"])
        except OSError:
            kept["failed"] = True

    return tell


def is_small(model, loss):
    return bool(loss < 1e6)


def has_a_small_norm(model, loss):
    return bool(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) < 1e6)


@pytest.mark.parametrize("between", [None, is_small, has_a_small_norm])
@pytest.mark.parametrize("tell", [numbers, texts])
def test_each_thing_is_told_once(tell, between):
    tracer = agree(told(lambda trace, logger: training(trace, tell(logger), between)))
    assert "flat" in forms(tracer), forms(tracer)
    assert tracer.count("hits") >= ENOUGH - 3, tracer.account()


def test_what_is_printed():
    def make(trace):
        out = io.StringIO()

        def tell(what, loss, kept):
            print(what, loss.item(), kept["n"])

        step, steps, state = training(trace, tell, is_small)

        def run(x):
            with contextlib.redirect_stdout(out):
                return step(x)

        return run, steps, lambda: [state(), out.getvalue()]

    tracer = agree(make)
    assert "flat" in forms(tracer), forms(tracer)


def test_what_is_written_to_a_file():
    def make(trace):
        out = io.StringIO()

        def tell(what, loss, kept):
            print(what, loss.item(), file=out, flush=True)
            out.write(f"{kept['n']}\n")

        step, steps, state = training(trace, tell, is_small)
        return step, steps, lambda: [state(), out.getvalue()]

    tracer = agree(make)
    assert "flat" in forms(tracer), forms(tracer)


def test_what_is_printed_between_two_passes():
    """What is printed sets no hook on the graph of the next pass."""

    def make(trace):
        out = io.StringIO()
        model = Linear()
        opt = sgd(model)

        def step(x):
            for part in x.chunk(2):
                opt.zero_grad()
                loss = model(part).pow(2).mean()
                loss.backward()
                opt.step()
                print(f"{loss.item():.6f}", file=out)
            return loss.detach()

        steps = [call(torch.randn(4, 4)) for _ in range(ENOUGH)]
        return trace(step), steps, lambda: [parts(model), out.getvalue()]

    tracer = agree(make)
    assert "flat" in forms(tracer), forms(tracer)


def test_an_exception_of_a_handler():
    """It comes where the step is: what comes before is done, what comes behind is not."""

    class Full(io.StringIO):
        full = False

        def write(self, text):
            if self.full:
                raise RecursionError("full")  # other ones are told of by the handler itself
            return super().write(text)

    def make(trace):
        logger, _ = written()
        out = logger.handlers[0].stream = Full()
        step, steps, state = training(trace, numbers(logger))

        def fills():
            out.full = True

        def empties():
            out.full = False

        steps[ENOUGH + 2 : ENOUGH + 2] = [fills, call(torch.randn(4, 4)), empties]
        return step, steps, lambda: [state(), out.getvalue()]

    agree(make)


@pytest.mark.parametrize("between", [None, is_small, has_a_small_norm])
def test_a_pipe_that_breaks(between):
    """It is raised where a value decides what follows, too: all is put back, and the program runs again."""

    def make(trace):
        reads, writes = os.pipe()
        out = os.fdopen(writes, "w", buffering=1)

        def tell(what, loss, kept):
            print(what, loss.item(), kept["n"])

        step, steps, state = training(trace, tell, between)

        def run(x):
            with contextlib.redirect_stdout(out):
                return step(x)

        last = [lambda: os.close(reads), call(torch.randn(4, 4)), lambda: os.close(out.fileno())]
        return run, [*steps, *last], state

    tracer = agree(make)
    assert "flat" in forms(tracer), forms(tracer)


def test_one_that_is_caught():
    """The function is to go on behind the step that raises."""
    tracer = agree(told(lambda trace, logger: training(trace, catches(logger))))
    assert tracer.count("hits") >= ENOUGH - 3, tracer.account()


# ---------------------------------------------------------------- what is no flat step
def test_code_of_the_users_is_not_run_in_a_proof():
    tracer = agree(told(lambda trace, logger: training(trace, numbers(logger)), handler=Keeping))
    assert "logging runs Python code" in forms(tracer), forms(tracer)


def test_a_tensor_is_shown_with_its_graph():
    def tell(logger):
        return lambda what, loss, kept: logger.info("%s %s", what, loss)

    tracer = agree(told(lambda trace, logger: training(trace, tell(logger))))
    assert not any(form == "flat" for form in forms(tracer)), forms(tracer)
