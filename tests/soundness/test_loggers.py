"""Loggers that a traced function calls: which levels they log, which loggers they are."""

import functools
import io
import logging
import types

import torch

from tests.soundness.runner import Cases, call, check
from tests.soundness.test_logging import SOME, Keeping, changing, fresh, values, written

cases = Cases()


# ---------------------------------------------------------------- levels
@cases(hits=7)
def a_level_that_is_off(trace):
    logger, out = written()

    def run(t):
        logger.debug("value %s", t)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("value %s", t.item())
        return t * 2

    return trace(run), values(*SOME), out.getvalue


@cases(hits=8)
def levels_that_change(trace):
    logger, out = written()

    def run(t):
        logger.debug("debug %s", t.item())
        logger.info("info %s", t.item())
        logger.warning("warning %s", t.item())
        return t * 2

    steps = changing(
        lambda: logger.setLevel(logging.DEBUG),
        lambda: logger.setLevel(logging.WARNING),
        lambda: setattr(logger, "disabled", True),
        lambda: setattr(logger, "disabled", False),
        lambda: logger.setLevel(logging.INFO),
        # The logger does not see it: it has noted what it logs.
        lambda: setattr(logger, "level", logging.DEBUG),
    )
    return trace(run), steps, out.getvalue


@cases(hits=6)
def all_is_disabled(trace):
    handler = Keeping()
    logger = logging.getLogger(f"{__name__}.all_is_disabled")
    logger.handlers[:], logger.propagate = [handler], False
    logger.setLevel(logging.INFO)

    def run(t):
        logger.info("info %s", t.item())
        return t * 2

    steps = changing(
        lambda: logging.disable(logging.INFO),
        lambda: logging.disable(logging.DEBUG),
        lambda: logging.disable(logging.NOTSET),
    )
    return trace(run), steps, lambda: handler.seen


@cases(hits=6)
def the_level_of_a_parent(trace):
    handler = Keeping()
    parent = logging.getLogger(f"{__name__}.a_parent")
    logger = logging.getLogger(f"{__name__}.a_parent.child")
    parent.handlers[:], parent.propagate = [handler], False
    logger.handlers[:], logger.propagate = [], True
    parent.setLevel(logging.INFO)

    def run(t):
        logger.info("info %s", t.item())
        return t * 2

    steps = changing(
        lambda: parent.setLevel(logging.WARNING),
        lambda: parent.setLevel(logging.INFO),
        lambda: setattr(logger, "propagate", False),
        lambda: logger.addHandler(handler),
    )
    return trace(run), steps, lambda: handler.seen


@cases(hits=10)
def levels_that_change_without_notice(trace):
    logger, out = written()

    def run(t):
        logger.level = logging.DEBUG
        logger.debug("debug %s", t.item())
        logger.level = logging.INFO
        logger.debug("not this")
        logger.info("info")
        return t * 2

    return trace(run), [*values(*SOME), logger._cache.clear, *values(*SOME)], out.getvalue


@cases(eager="reads a RLock")
def a_level_that_the_function_sets(trace):
    logger, out = written()

    def run(t):
        logger.setLevel(logging.DEBUG)
        logger.debug("debug %s", t.item())
        logger.setLevel(logging.INFO)
        logger.debug("not this")
        return t * 2

    return trace(run), values(*SOME), out.getvalue


@cases(hits=7)
def a_logger_that_the_function_disables(trace):
    logger, out = written()

    def run(t):
        logger.disabled = True
        logger.info("not this %s", t.item())
        logger.disabled = False
        logger.info("this %s", t.item())
        return t * 2

    return trace(run), values(*SOME), out.getvalue


# ---------------------------------------------------------------- loggers
@cases(hits=8)
def a_logger_that_is_another(trace):
    first, out = written()
    second, other = written()
    handler = Keeping()
    third = fresh(handler)
    place = types.SimpleNamespace(logger=first)

    def run(t):
        place.logger.info("value %s", t.item())
        return t * 2

    steps = changing(
        lambda: setattr(place, "logger", second),
        lambda: setattr(place, "logger", third),
        lambda: setattr(place, "logger", first),
    )
    return trace(run), steps, lambda: (out.getvalue(), other.getvalue(), handler.seen)


@cases(hits=12)
def a_logger_that_is_passed(trace):
    first, out = written()
    second, other = written()

    def run(t, logger):
        logger.info("value %s", t.item())
        return t * 2

    steps = [call(torch.tensor(v), logger) for v in SOME for logger in (first, second)]
    return trace(run), steps, lambda: (out.getvalue(), other.getvalue())


@cases(hits=7)
def methods_as_values(trace):
    logger, out = written()
    info = logger.info
    partial = functools.partial(logger.info, "partial %s")

    def run(t):
        info("value %s", t.item())
        partial(t.item())
        list(map(logger.info, ["a", "b"]))
        for i in range(2):
            logger.info("number %d", i)
        logger._log(logging.INFO, "by itself %s", (t.item(),))
        return t * 2

    return trace(run), values(*SOME), out.getvalue


@cases(hits=4)
def a_child(trace):
    out = io.StringIO()
    base = logging.getLogger(f"{__name__}.with_child")
    base.handlers[:], base.propagate = [logging.StreamHandler(out)], False
    base.setLevel(logging.INFO)

    def run(t):
        base.getChild("child").info("value %s", t.item())
        return t * 2

    return trace(run), values(*SOME), out.getvalue


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)
