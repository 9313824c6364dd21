"""Attributes of `threading.local`: each thread has its own."""

from __future__ import annotations

import threading

import torch

import lazytrace
from tests.soundness.runner import Cases, Holder, X, call, calls, check

cases = Cases()


class Marks(threading.local):
    """As libraries have it that note what a thread is about."""

    word = "of the class"

    def __init__(self, scale=1.0):
        self.marked = False
        self.scale = scale

    def scaled(self, x):
        return x * self.scale


def in_thread(work):
    """A step that does something in another thread."""

    def step():
        raised = []

        def run():
            try:
                work()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    return step


@cases(hits=4)
def read(trace):
    state = Marks(2.0)
    state.scale = 2.0

    def fn(x):
        return (x, state.word) if state.marked else (x * state.scale, state.word)

    def mark():
        state.marked = True

    return trace(fn), [*calls(4), mark, *calls(4)]


@cases(hits=4)
def of_the_plain_class(trace):
    state = threading.local()
    state.scale = 2.0

    def fn(x):
        return x * state.scale, hasattr(state, "other"), getattr(state, "third", 3)

    def change():
        state.third = 4

    return trace(fn), [*calls(4), change, *calls(4)]


@cases(hits=2)
def a_method(trace):
    state = Marks()

    def change():
        state.scaled = lambda x: x * 7

    return trace(lambda x: state.scaled(x)), [*calls(3), change, *calls(3)]


@cases(hits=2)
def the_class_changes(trace):
    class Own(threading.local):
        word = 2.0

    state = Own()

    def change():
        Own.word = 3.0

    return trace(lambda x: x * state.word), [*calls(3), change, *calls(3)]


@cases(hits=4)
def set_and_put_back(trace):
    """Which is how nested calls are told from the outermost."""
    state = Marks()

    def fn(x):
        if state.marked:
            raise RuntimeError("is marked")
        state.marked = True
        try:
            return x * 2
        finally:
            state.marked = False

    return trace(fn), calls(), lambda: vars(state)


@cases(hits=2)
def left_set(trace):
    state = Marks()

    def fn(x):
        state.last = x.sum()
        state.marked = not state.marked
        return x * 2

    return trace(fn), calls(8), lambda: dict(vars(state))


@cases(hits=3)
def counted(trace):
    state = threading.local()
    state.count = 0

    def fn(x):
        state.count += 1
        return x * state.count

    return trace(fn), calls(8), lambda: state.count


@cases(hits=4)
def set_and_taken_away(trace):
    state = Marks()

    def fn(x):
        state.kept = x * 2
        y = state.kept + 1
        del state.kept
        return y

    return trace(fn), calls(), lambda: list(vars(state))


@cases(hits=2)
def taken_away_that_was_there(trace):
    state = Marks()

    def fn(x):
        del state.kept
        return x * 2

    def leave():
        state.kept = 1

    return trace(fn), [one for _ in range(5) for one in (leave, call(X()))], lambda: list(vars(state))


@cases(hits=2)
def as_a_dict(trace):
    state = Marks()

    def fn(x):
        names = state.__dict__
        names["scale"] = 3.0
        y = x * state.scale
        state.scale = 1.0
        return y * names["scale"]

    return trace(fn), calls(), lambda: dict(vars(state))


@cases(hits=2)
def of_other_threads(trace):
    """What one thread sets is nothing to another, whichever has recorded."""
    state = threading.local()
    state.scale, seen = 2.0, []
    fn = trace(lambda x: x * state.scale)

    def other():
        state.scale = 3.0
        seen.extend(fn(k * X()) for k in (1, 2, 3))

    def change():
        state.scale = 5.0

    steps = [*calls(3), in_thread(other), *calls(2), in_thread(other), change, *calls(2), in_thread(other)]
    return fn, steps, lambda: (seen, state.scale)


@cases(hits=2)
def in_a_thread_that_has_none_yet(trace):
    """The class makes them in Python, which is not a matter of the first thread."""
    made, seen = [], []

    class Own(threading.local):
        def __init__(self):
            made.append(threading.current_thread() is threading.main_thread())
            self.scale = float(len(made))

    state = Own()
    fn = trace(lambda x: x * state.scale)
    steps = [*calls(3), *[in_thread(lambda: seen.append(fn(X())))] * 2, *calls(2)]
    return fn, steps, lambda: (seen, made, state.scale)


@cases(hits=2)
def written_in_other_threads(trace):
    state = threading.local()
    state.last, seen = torch.zeros(()), []

    def fn(x):
        state.last = x.sum()
        return x * 2

    traced = trace(fn)

    def other():
        state.last = torch.zeros(())
        traced(X())
        traced(2 * X())
        seen.append(state.last)

    return traced, [*calls(3), in_thread(other), *calls(2), in_thread(other)], lambda: (seen, state.last)


@cases(hits=2)
def an_object_behind_one(trace):
    """Behind words that stand for guards: the object is another one in each thread."""
    state, seen = threading.local(), []
    state.held = Holder(inner=Holder(scale=2.0))
    fn = trace(lambda x: x * state.held.inner.scale)

    def other():
        state.held = Holder(inner=Holder(scale=3.0))
        seen.extend(fn(k * X()) for k in range(1, 12))

    def change():
        state.held.inner.scale += 1.0

    return fn, [*calls(12), in_thread(other), *calls(2), change, *calls(2), in_thread(other)], lambda: seen


@cases(hits=4)
def seen_by_an_opaque_function(trace):
    state = Marks()

    @lazytrace.opaque
    def look(x):
        return x * state.scale

    def fn(x):
        state.scale = 3.0
        y = look(x)
        state.scale = 1.0
        return y, look(x)

    return trace(fn), calls(), lambda: dict(vars(state))


@cases(eager="reads-touched")
def changed_by_an_opaque_function(trace):
    state = Marks()

    @lazytrace.opaque
    def count(x):
        state.scale += 1.0
        return x * 2

    def fn(x):
        return count(x) * state.scale

    return trace(fn), calls(), lambda: dict(vars(state))


@cases(hits=2)
def made_by_the_call_of_another_one(trace):
    holder = Holder(state=Marks(2.0))

    def change():
        holder.state = Marks(3.0)
        holder.state.scale = 3.0

    fn = trace(lambda x: holder.state.scaled(x) + holder.state.scale)
    return fn, [*calls(4), change, *calls(3)]


@cases.parametrize
def test_thread_locals(make, expected):
    check(make, **expected)
