"""Attributes that objects keep in slots are state like any other, read and written."""

from __future__ import annotations

import dataclasses

import torch

import lazytrace
from tests.soundness.runner import Cases, X, around, call, check, opaque

cases = Cases()


class Holder:
    __slots__ = ("h", "n")

    def __init__(self, h, n=0):
        self.h, self.n = h, n


class WithDict(Holder):
    """Has a namespace beside its slots."""


class Checked:
    __slots__ = ("n",)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, min(value, 3))


class Numbers(list):
    __slots__ = ("last",)


@dataclasses.dataclass(slots=True)
class Running:
    total: float = 0.0
    count: int = 0


def calls(count=6):
    return [call(k * X()) for k in range(1, count + 1)]


def seen(*objects):
    """What the slots hold, or that they are empty."""
    return lambda: [[getattr(o, name, "empty") for name in ("h", "n")] for o in objects]


@cases(hits=5, recordings=1)
def carried_from_call_to_call(trace):
    s = Holder(torch.zeros(3))

    def step(x):
        s.h = 0.9 * s.h + x
        s.n += 1
        return s.h.sum() * s.n

    return trace(step), calls(), seen(s)


@cases(hits=5, recordings=1)
def beside_a_namespace(trace):
    s = WithDict(torch.zeros(3))
    s.other = 1

    def step(x):
        s.h, s.other, s.n = s.h + x, s.other + 1, s.n + 2
        return s.h

    return trace(step), calls(), lambda: (s.h, s.n, s.other)


@cases(hits=5)
def of_a_data_class(trace):
    s = Running()

    def step(x):
        s.total += x.sum().item()
        s.count += 1
        return s.total / s.count

    return trace(step), calls(), lambda: (s.total, s.count)


@cases(hits=2)
def replaced_between_calls(trace):
    s = Holder(torch.ones(3), 2)
    return trace(lambda x: x * s.n), around(lambda: setattr(s, "n", 3), X()), seen(s)


@cases(hits=2)
def of_another_type_between_calls(trace):
    s = Holder(torch.ones(3), 2)

    def step(x):
        s.h = x * s.n
        return s.h + 1

    return trace(step), around(lambda: setattr(s, "n", 2.5), X()), seen(s)


@cases(hits=1)
def emptied_between_calls(trace):
    s = Holder(torch.ones(3), 2)

    def step(x):
        s.n += 1
        return x * s.n

    return trace(step), around(lambda: delattr(s, "n"), X()), seen(s)


@cases(hits=2)
def empty_before_it_is_written(trace):
    s = Holder(torch.ones(3))
    del s.n

    def step(x):
        s.n = 4
        return x * s.n

    return trace(step), around(lambda: delattr(s, "n"), X()), seen(s)


@cases(hits=2)
def two_objects_become_one(trace):
    class Both:
        a, b = Holder(torch.ones(3), 1), Holder(torch.ones(3), 5)

    both = Both()

    def step(x):
        both.a.n = 7
        return x * both.b.n

    return trace(step), around(lambda: setattr(both, "b", both.a), X()), lambda: (both.a.n, both.b.n)


@cases(hits=2)
def written_and_read_again(trace):
    s = Holder(torch.ones(3), 1)

    def step(x):
        s.n = 5
        y = x * s.n
        s.n = 1
        return y

    return trace(step), around(lambda: setattr(s, "n", 2), X()), seen(s)


@cases(hits=2)
def written_before_an_exception(trace):
    s = Holder(torch.ones(3), 1)

    def step(x):
        s.n = 5
        if x.sum() < 0:
            raise ValueError("negative")
        s.n = 6
        return x * 2

    return trace(step), [call(k * X()) for k in (1, 1, -1, -1, 1, 1)], seen(s)


@cases(hits=2)
def seen_by_an_opaque_function(trace):
    s = Holder(torch.ones(3), 1)
    look = (lazytrace.opaque if trace.enabled else lambda f: f)(lambda x: x * s.n)

    def step(x):
        s.n = 5
        y = look(x)
        s.n = 2
        return y

    return trace(step), around(lambda: setattr(s, "n", 9), X()), seen(s)


@cases(hits=1)
def written_by_an_opaque_function(trace):
    s = Holder(torch.ones(3), 1)

    def count(x):
        s.n += 1
        return x + 1

    change = (lazytrace.opaque if trace.enabled else lambda f: f)(count)

    def step(x):
        return change(x)

    return trace(step), calls(), seen(s)


@cases(eager="reads-touched")
def read_behind_an_opaque_function_that_wrote(trace):
    s = Holder(torch.ones(3), 1)

    def count(x):
        s.n += 1
        return x + 1

    change = (lazytrace.opaque if trace.enabled else lambda f: f)(count)
    return trace(lambda x: change(x) * s.n), calls(), seen(s)


@cases(hits=2)
def set_by_a_method_of_the_class(trace):
    s = Checked()
    s.n = 0

    def step(x):
        s.n = s.n + 1
        return x * s.n

    return trace(step), calls(8), lambda: s.n


@cases(eager="sets-attribute")
def of_a_list_with_slots(trace):
    s = Numbers()
    s.last = 0

    def step(x):
        s.last = 3
        return x * s.last

    return trace(step), calls(), lambda: s.last


@cases(eager="deletes-attribute")
def deleted_by_the_call(trace):
    s = Holder(torch.ones(3), 1)

    def step(x):
        s.n = 3
        del s.n
        return x

    return trace(step), calls(), seen(s)


@cases(eager="returns-odd")
def returned_with_another_of_its_name(trace):
    """What lies under the name of a slot in the namespace is a value of its own."""

    def step(x):
        made = WithDict(x + 1, 2)
        made.__dict__["n"] = 3
        return made, made.n, made.__dict__["n"]

    return trace(step), calls(), lambda: None


@cases(hits=2)
def read_beside_another_of_its_name(trace):
    s = WithDict(torch.ones(3), 2)
    s.__dict__["n"] = 3

    def step(x):
        return x * s.n + s.__dict__["n"]

    def change(n, other):
        def make():
            s.n = n
            s.__dict__["n"] = other

        return make

    return trace(step), [*calls(3), change(5, 3), *calls(3), change(5, 7), *calls(3), change(7, 5), *calls(3)]


class Falling:
    """Looks elsewhere for what its slots do not hold."""

    __slots__ = ("asked", "n", "t")

    def __getattr__(self, name):
        if name == "asked":
            raise AttributeError(name)
        self.asked = getattr(self, "asked", 0) + 1
        return 3.0


def changed_by_a_step(trace, name, value, other):
    """A step that sets the slot at some calls only, and a function that has read it before."""
    o = Falling()
    setattr(o, name, value)

    def sometimes(x):
        if x.sum() > 8:
            setattr(o, name, other)
        return x * 2

    sometimes = opaque(trace, sometimes)

    def step(x):
        x = sometimes(x * getattr(o, name))
        return x * getattr(o, name)

    def back(k):
        return lambda: setattr(o, name, value + k)

    rounds = [[back(k), call(X()), call(X()), call(X() + 9)] for k in (0, 1, 2, 3)]
    return trace(step), [one for all in rounds for one in all], lambda: getattr(o, name)


@cases(hits=2)
def number_that_a_step_sets_in_a_class_with_getattr(trace):
    return changed_by_a_step(trace, "n", 2, 5)


@cases(hits=4)
def tensor_that_a_step_sets_in_a_class_with_getattr(trace):
    return changed_by_a_step(trace, "t", torch.ones(3), torch.full((3,), 4.0))


@cases(hits=1)
def empty_slot_in_a_class_with_getattr(trace):
    """No guard calls the method."""
    o = Falling()
    o.n = 2.0

    def step(x):
        return x * o.n

    return trace(step), around(lambda: delattr(o, "n"), X()), lambda: getattr(o, "asked", 0)


@cases.parametrize
def test_slots(make, expected):
    check(make, **expected)
