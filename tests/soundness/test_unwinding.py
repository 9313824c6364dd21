"""Operators that raise in a replay inside of handlers: those that do nothing need no exit, all others run."""

from __future__ import annotations

import contextvars
from contextlib import contextmanager

import torch

from tests.soundness.runner import Cases, agree, call

cases = Cases()
VAR = contextvars.ContextVar("VAR", default=None)


def guarded(trace, guard, between=None):
    """A step that looks something up, which may raise, behind a write and inside of what `guard` does."""
    table = torch.nn.Embedding(5, 3)
    VAR.set(None)  # as the other way may have left it
    count, log = torch.zeros(3), {"left": 0}

    def step(i):
        count.add_(1)
        with torch.no_grad():
            return guard(lambda: table(i).sum() + count, log)

    good, bad = call(torch.tensor([0, 1, 4])), call(torch.tensor([0, 1, 7]))
    steps = [good, good, bad, good]
    if between is not None:
        steps += [between, bad, good, bad]
    return trace(step), steps, lambda: [count, dict(log), VAR.get()]


@contextmanager
def setting(value):
    token = VAR.set(value)
    try:
        yield
    finally:
        VAR.reset(token)


class Collector:
    """As libraries keep a context variable."""

    def __init__(self):
        self.plain = False
        self.value = None

    def set(self, value):
        return VAR.set(value)

    def reset(self, token):
        if self.plain or token is None:
            self.value = "ended"
        else:
            VAR.reset(token)


class Keeper(Collector):
    def __init__(self):
        super().__init__()
        self.variable = VAR

    def reset(self, token):
        if self.plain or token is None:
            self.value = "ended"
        else:
            self.variable.reset(token)


def kept_by(keeper, look):
    token = keeper.set("inside")
    try:
        return look()
    finally:
        keeper.reset(token)


# ---------------------------------------------------------------- handlers that do nothing
@cases(exits=False)
def nothing_is_to_be_put_back(trace):
    def guard(look, log, previous=None):
        try:
            return look()
        finally:
            if previous is not None:
                log["left"] += 1

    return guarded(trace, guard)


@cases(exits=False)
def a_context_variable_is_put_back(trace):
    def guard(look, log):
        token = VAR.set(1)
        try:
            return look()
        finally:
            VAR.reset(token)

    return guarded(trace, guard)


@cases(exits=False)
def an_object_puts_a_context_variable_back(trace):
    keeper = Keeper()
    return guarded(trace, lambda look, log: kept_by(keeper, look), lambda: setattr(keeper, "plain", True))


@cases(exits=False)
def what_no_operator_raises_is_handled(trace):
    def guard(look, log):
        try:
            return look()
        except NotImplementedError:
            log["left"] += 1
            return look()

    return guarded(trace, guard)


@cases(exits=False)
def the_method_of_an_object_is_replaced(trace):
    class Other(Keeper):
        pass

    keeper = Other()

    def replace():
        Other.reset = lambda self, token: setattr(self, "value", VAR.reset(token))

    step, steps, state = guarded(trace, lambda look, log: kept_by(keeper, look), replace)
    return step, steps, lambda: [state(), keeper.value]


@cases(exits=False)
def an_exception_gets_another_name(trace):
    names = {}
    source = """
def guard(look, log):
    try:
        return look()
    except NotImplementedError:
        log["left"] += 1
        return None
"""
    exec(source, names)
    return guarded(trace, names["guard"], lambda: names.update(NotImplementedError=IndexError))


# ---------------------------------------------------------------- handlers that do something
@cases(exits=True)
def something_is_put_back(trace):
    def guard(look, log):
        previous = log
        try:
            return look()
        finally:
            if previous is not None:
                previous["left"] += 1

    return guarded(trace, guard)


@cases(exits=True)
def a_context_variable_stays_set(trace):
    def guard(look, log):
        outer = VAR.set(1)
        token = VAR.set(2)
        try:
            found = look()
        finally:
            VAR.reset(token)
        VAR.reset(outer)
        return found

    def restore():
        VAR.set(None)

    return guarded(trace, guard, restore)


@cases(exits=True)
def a_generator_puts_a_context_variable_back(trace):
    def guard(look, log):
        with setting(1), setting(2):
            return look()

    return guarded(trace, guard)


@cases(exits=True)
def an_object_that_keeps_a_value(trace):
    keeper = Keeper()

    def guard(look, log):
        try:
            return look()
        finally:
            keeper.reset(None)

    step, steps, state = guarded(trace, guard)
    return step, steps, lambda: [state(), keeper.value]


@cases(exits=True)
def a_global_of_a_method(trace):
    collector = Collector()
    return guarded(trace, lambda look, log: kept_by(collector, look))


@cases(exits=True)
def what_an_operator_raises_is_handled(trace):
    def guard(look, log):
        try:
            return look()
        except IndexError:
            log["left"] += 1
            return None

    return guarded(trace, guard)


@cases(exits=True)
def one_of_several_exceptions_is_handled(trace):
    def guard(look, log):
        try:
            return look()
        except (NotImplementedError, IndexError):
            log["left"] += 1
            return None

    return guarded(trace, guard)


@cases(exits=True)
def a_handler_around_one_that_does_nothing(trace):
    def guard(look, log):
        try:
            try:
                return look()
            except NotImplementedError:
                return None
        finally:
            log["left"] += 1

    return guarded(trace, guard)


@cases(exits=True)
def a_class_that_has_a_check_of_its_own(trace):
    class Every(type):
        def __subclasscheck__(cls, other):
            return True

    class Any_(Exception, metaclass=Every):
        pass

    def guard(look, log):
        try:
            return look()
        except Any_:
            log["left"] += 1
            return None
        except IndexError:
            log["left"] += 2
            return None

    return guarded(trace, guard)


def has_exits(tracer):
    """Whether a step of the first program leads away where it raises."""
    *_, trace = tracer.made[0]._self_handle()._cache.traces.all()
    return any(step["exit"] for step in trace.native.data(trace.names)["steps"])


@cases.parametrize
def test_unwinding(make, expected):
    token = VAR.set(None)
    tracer = agree(make)
    VAR.reset(token)
    assert tracer.count("hits") >= 2, tracer.account()
    assert has_exits(tracer) is expected["exits"]
