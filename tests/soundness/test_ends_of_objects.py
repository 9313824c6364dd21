"""Python code that runs where an object goes: in the middle of a call, when it is due."""

from __future__ import annotations

import weakref

from tests.soundness.runner import Cases, X, call, check

cases = Cases()


class Ending:
    """Writes down that it has gone, as a program can see."""

    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append(len(self.log))


def fill(holder, fresh):
    if isinstance(holder, list):
        holder[:] = fresh
    elif isinstance(holder, dict):
        holder.update(fresh)
    else:
        vars(holder).update(vars(fresh))


def written_over(name, place, put, **expected):
    """A case: the function drops what is in a place, and looks at what was written."""

    def make(trace):
        log = []
        holder = place(log)

        def function(x):
            put(holder, x)
            return x * (len(log) + 2)

        def again():
            fill(holder, place(log))

        return trace(function), [call(X()), again, call(X()), again, call(X())], lambda: log

    make.__name__ = name
    cases(make, **expected)


class Box:
    held = None


def boxed(log):
    box = Box()
    box.held = Ending(log)
    return box


def listed(log):
    return [Ending(log)]


def nested(log):
    return [[Ending(log)]]


def put_entry(holder, value):
    holder[0] = value


def put_key(holder, value):
    holder["k"] = value


def put_attribute(holder, value):
    holder.held = value


def read_first(holder, value):
    assert holder[0].log is not None
    holder[0] = value


def read_inside_first(holder, value):
    assert holder[0][0] is not None
    holder[0] = value


def delete(holder, value):
    del holder[0]


def put_all(holder, value):
    holder[:] = [value]


def of_key(log):
    return {"k": Ending(log)}


def inside(log):
    box = Box()
    box.held = boxed(log)
    return box


written_over("an_entry", listed, put_entry, eager="reads-touched")
written_over("a_key", of_key, put_key, eager="reads-touched")
written_over("an_attribute", boxed, put_attribute, eager="reads-touched")
written_over("an_attribute_of_an_attribute", inside, put_attribute, eager="sets .held of a Box")
written_over("a_list_with_one", nested, put_entry, eager="sets [0] of a list")
written_over("after_it_was_read", listed, read_first, eager="sets [0] of a list")
written_over("after_what_it_holds_was_read", nested, read_inside_first, eager="sets [0] of a list")
written_over("popped", listed, lambda held, _: held.pop() and None, eager="calls .pop() of a list")
written_over("popped_by_key", of_key, lambda held, _: held.pop("k") and None, eager="calls .pop() of a dict")
written_over("cleared", listed, lambda held, _: held.clear(), eager="calls .clear() of a list")
written_over("deleted", listed, delete, eager="deletes [0] of a list")
written_over("all_of_a_list", listed, put_all, eager="sets [slice(None, None, None)] of a list")


@cases(eager="sets [0] of a list")
def a_finalizer_of_what_is_written_over(trace):
    log, holder = [], []

    def watched():
        box = Box()
        weakref.finalize(box, log.append, 1)
        holder[:] = [box]

    def function(x):
        holder[0] = x
        return x * (len(log) + 2)

    watched()
    return trace(function), [call(X()), watched, call(X())], lambda: log


@cases(eager="makes")
def a_callback_of_what_the_call_makes(trace):
    state = {"n": 1}

    def function(x):
        box = Box()
        reference = weakref.ref(box, lambda _: state.__setitem__("n", state["n"] + 1))
        del box
        return x * 2 if reference() is None else x

    return trace(function), [call(X())] * 4, lambda: state


@cases(hits=2)
def a_weak_reference_without_a_callback(trace):
    def function(x):
        box = Box()
        reference = weakref.ref(box)
        return x * 2 if reference() is box else x

    return trace(function), [call(X())] * 4


@cases.parametrize
def test_ends_of_objects(make, expected):
    check(make, **expected)
