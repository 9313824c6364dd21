"""Attributes and entries that a call sets and takes away again, and what takes them away."""

from __future__ import annotations

import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, Holder, X, call, calls, check

cases = Cases()


# ---------------------------------------------------------------- set and taken away in one call
@cases(hits=4)
def an_attribute(trace):
    state = Holder(k=2.0)

    def fn(x):
        state.kept = x * state.k
        y = state.kept + 1
        del state.kept
        return y, hasattr(state, "kept")

    return trace(fn), calls(), lambda: list(vars(state))


@cases(hits=4)
def by_delattr(trace):
    state = Holder(k=2.0)

    def fn(x, name="kept"):
        setattr(state, name, x * state.k)
        y = state.kept + 1
        delattr(state, name)
        return y

    return trace(fn), calls(), lambda: list(vars(state))


@cases(hits=4)
def of_a_module(trace):
    """`__setattr__` and `__delattr__` of a module are Python code that comes to those of objects."""
    net = nn.Linear(3, 3)

    def fn(x):
        net.kept = x * 2
        y = net(x) + net.kept
        del net.kept
        return y

    return trace(fn), calls(), lambda: list(vars(net))


@cases(hits=4)
def an_entry_of_a_dict(trace):
    state = {"k": 2.0}

    def fn(x):
        state["kept"] = x * state["k"]
        y = state["kept"] + 1
        del state["kept"]
        return y, "kept" in state, len(state)

    return trace(fn), calls(), lambda: list(state)


@cases(hits=4)
def in_the_namespace_of_a_module(trace):
    """A parameter is swapped for a plain tensor, and back."""
    net, other = nn.Linear(3, 3), torch.randn(3, 3)

    def fn(x):
        names, parameters = net.__dict__, net.__dict__["_parameters"]
        weight = parameters["weight"]
        del parameters["weight"]
        names["weight"] = other
        y = net(x)
        del names["weight"]
        parameters["weight"] = weight
        return y + net(x)

    return trace(fn), calls(), lambda: (list(vars(net)), sorted(net._parameters), net.weight)


@cases(hits=2)
def set_by_one_way_and_taken_by_another(trace):
    state = Holder(k=2.0)

    def fn(x):
        vars(state)["kept"] = x * state.k
        y = state.kept + 1
        del state.kept
        state.kept = y
        z = state.kept * 2
        del vars(state)["kept"]
        return z

    return trace(fn), [*calls(4), lambda: setattr(state, "k", 3.0), *calls(3)], lambda: list(vars(state))


@cases(hits=1)
def of_one_that_shares_its_namespace(trace):
    """With another one only as long as both have one namespace."""
    first, second = Holder(k=2.0), Holder(k=2.0)
    second.__dict__ = first.__dict__

    def fn(x):
        first.kept = x * first.k
        y = second.kept
        del second.kept
        return y

    def part():
        second.__dict__ = {"k": 3.0, "kept": torch.ones(3)}

    def watch():
        return list(vars(first)), list(vars(second))

    return trace(fn), [*calls(3), part, *calls(2)], watch


@cases(hits=3)
def where_there_is_one_at_a_later_call(trace):
    """It is taken away then, too."""
    state = Holder(k=2.0)

    def fn(x):
        state.kept = x * state.k
        y = state.kept + 1
        del state.kept
        return y

    def leave():
        state.kept = torch.ones(3)

    steps = [*calls(3), leave, call(X()), *calls(3), leave, call(X())]
    return trace(fn), steps, lambda: list(vars(state))


@cases(eager="deletes-attribute")
def one_that_was_there(trace):
    state = Holder(k=2.0)

    def fn(x):
        y = x * state.k
        if hasattr(state, "old"):
            del state.old
        return y

    def leave():
        state.old = 1.0

    return trace(fn), [one for _ in range(4) for one in (leave, call(X()))], lambda: list(vars(state))


@cases(hits=4)
def set_again_in_the_end(trace):
    state = Holder(k=2.0)

    def fn(x):
        state.kept = x * 2
        del state.kept
        state.kept = x * 3
        return x + 1

    def clear():
        del state.kept

    steps = [one for k in range(1, 7) for one in (call(k * X()), clear)]
    return trace(fn), steps, lambda: (list(vars(state)), getattr(state, "kept", None))


@cases(hits=3)
def set_again_behind_others(trace):
    """The order of keys is that of the last time that each was added."""
    state, table = Holder(k=2.0), {"k": 2.0}

    def fn(x):
        state.first = table["first"] = x * 2
        state.second = table["second"] = x * 3
        del state.first, table["first"]
        state.first = table["first"] = x * 4
        return x + 1

    def clear():
        for name in ("first", "second"):
            delattr(state, name)
            del table[name]

    steps = [one for k in range(1, 7) for one in (call(k * X()), clear)]
    return trace(fn), steps, lambda: (list(vars(state)), list(table), dict(table))


@cases(hits=3)
def over_what_the_class_has(trace):
    class Own(Holder):
        kept = 5.0

        def __getattr__(self, name):
            return len(name)

    state = Own(k=2.0)

    def fn(x):
        state.kept = state.other = x * 2
        y = state.kept + state.other
        del state.kept, state.other
        return y * state.kept * state.other

    def change():
        Own.kept = 6.0

    return trace(fn), [*calls(4), change, *calls(3)], lambda: list(vars(state))


@cases(hits=3)
def an_object_that_tells_of_its_end(trace):
    told = []

    class Told:
        def __del__(self):
            told.append(len(told))

    state = Holder(k=2.0)

    def fn(x):
        state.kept = Told()
        y = x * 2
        del state.kept
        return y

    def ask():
        told.append("asked")

    return trace(fn), [one for k in range(1, 7) for one in (call(k * X()), ask)], lambda: list(told)


@cases(hits=3)
def sizes_and_numbers(trace):
    state = Holder(k=2.0, steps=0)

    def fn(x, n):
        state.steps += 1
        state.size, state.n, state.at = x.shape[0], n, state.steps
        y = x.view(state.size, 1) * state.n + state.at
        del state.size, state.n, state.at
        return y

    steps = [call(torch.arange(float(k)), k / 2) for k in range(2, 10)]
    return trace(fn), steps, lambda: (list(vars(state)), state.steps)


@cases(hits=4)
def all_of_a_dict_is_read_behind_it(trace):
    state = {"a": 1.0, "b": 2.0}

    def fn(x):
        state["kept"] = 3.0
        y = x * sum(state.values())
        del state["kept"]
        for name in state:
            y = y * state[name]
        state["c"] = 4.0
        return y

    return trace(fn), calls(), lambda: state


@cases(hits=3)
def left_by_an_exception(trace):
    """Which comes from an operator, at one call only: what was set stays."""
    state = Holder(k=2.0)

    def fn(x, y):
        state.kept = x * state.k
        z = x @ y
        del state.kept
        return z

    steps = [*[call(X(), X()) for _ in range(4)], call(X(3), X(4)), call(X(), X())]
    return trace(fn), steps, lambda: list(vars(state))


@cases(hits=2)
def on_one_way_of_a_branch(trace):
    state = Holder(k=2.0)

    def fn(x):
        state.kept = x * state.k
        if x.sum() > 0:
            del state.kept
            return x * 2
        y = state.kept * 3
        del state.kept
        return y

    return trace(fn), [call(k * X().abs()) for k in (1, 2, -1, -2, 3, -3)], lambda: list(vars(state))


# ---------------------------------------------------------------- with Python code in between
@cases(eager="deletes-attribute")
def an_opaque_function_has_seen_it(trace):
    state = Holder(k=2.0)

    @lazytrace.opaque
    def look(x):
        return x * getattr(state, "kept", 5.0)

    def fn(x):
        state.kept = 3.0
        y = look(x)
        del state.kept
        return look(y)

    return trace(fn), calls(), lambda: list(vars(state))


@cases(hits=4)
def an_opaque_function_comes_behind_it(trace):
    state = Holder(k=2.0)

    @lazytrace.opaque
    def look(x):
        return x * getattr(state, "kept", 5.0)

    def fn(x):
        state.kept = x * 3
        y = state.kept
        del state.kept
        return look(y)

    return trace(fn), calls(), lambda: list(vars(state))


@cases(eager="opaque-rewrites")
def an_opaque_function_puts_it_back(trace):
    state = Holder(k=2.0)

    @lazytrace.opaque
    def put(x):
        state.kept = 7.0
        return x * 2

    def fn(x):
        state.kept = x * 3
        y = state.kept
        del state.kept
        return put(y)

    return trace(fn), calls(), lambda: list(vars(state))


# ---------------------------------------------------------------- what takes away is not what sets
class SetsInPython:
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)


class TakesInPython:
    def __delattr__(self, name):
        object.__delattr__(self, name)


class DictThatSets(dict):
    def __setitem__(self, key, value):
        dict.__setitem__(self, key, value)


class ListThatSets(list):
    def __setitem__(self, key, value):
        list.__setitem__(self, key, value)


def takes_away(kind):
    def make(trace):
        state = kind()
        state.k = 2.0

        def fn(x):
            y = x * state.k
            del state.old
            return y

        def leave():
            state.old = 1.0

        steps = [one for _ in range(4) for one in (leave, call(X()))]
        return trace(fn), steps, lambda: list(vars(state))

    make.__name__ = kind.__name__
    cases(make, eager="deletes-attribute")


takes_away(SetsInPython)
takes_away(TakesInPython)


def takes_item_away(kind, key, leave):
    def make(trace):
        state = kind()

        def fn(x):
            y = x * 2
            del state[key]
            return y

        steps = [one for _ in range(4) for one in (lambda: leave(state), call(X()))]
        return trace(fn), steps, lambda: list(state)

    make.__name__ = kind.__name__
    cases(make, eager="deletes-item")


takes_item_away(DictThatSets, "old", lambda state: state.update(old=1.0))
takes_item_away(ListThatSets, 0, lambda state: state.append(1.0))


@cases(hits=2)
def a_property_that_is_deleted(trace):
    """Its deleter may be another one at a later call."""

    class Owner:
        k = 2.0

        def _set(self, value):
            self.k = value

        def _clear(self):
            self.k = 0.5

        value = property(lambda self: self.k, _set, _clear)

    owner = Owner()

    def fn(x):
        owner.value = 3.0
        y = x * owner.value
        del owner.value
        return y * owner.value

    def change():
        Owner.value = Owner.value.deleter(lambda self: setattr(self, "k", 0.25))

    return trace(fn), [*calls(4), change, *calls(3)], lambda: owner.k


@cases.parametrize
def test_taken_back(make, expected):
    check(make, **expected)
