"""Opaque functions that write to state through something that is gone when they end, before a branch.

The function runs again behind the branch, and reads there what has been written: another value at each call.
"""

from __future__ import annotations

import copy
import csv
import ctypes
import functools
import io
import operator
import pickle
import sys
import types
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from lazytrace import opaque
from tests.soundness.runner import Cases, X, agree, call, check

cases = Cases()


class Box:
    """Holds what the opaque function changes."""

    def __init__(self):
        self.count = 0
        self.bytes = bytearray(1)
        self.array = np.zeros(3)
        self.stream = io.StringIO()
        self.items = []


def branching(trace, write, read):
    """`write(box)` as an opaque function; behind it the function branches, and reads what was written."""
    box = Box()

    @opaque
    def note(x):
        write(box)
        return float(x.sum())

    def fn(x):
        size = note(x)
        if size > 10:
            return x * 2 + read(box)
        return x - 1

    steps = [call(X() + 9 * k) for k in (0, 1, 0, 1, 1, 0, 1, 1, 0)]
    return trace(fn), steps, lambda: read(box)


@cases(hits=2, eager="changed Python state")
def memory_view(trace):
    def write(box):
        memoryview(box.bytes)[0] = box.bytes[0] + 1

    return branching(trace, write, lambda box: box.bytes[0])


@cases(hits=2, eager="changed Python state")
def view_of_an_array(trace):
    def write(box):
        box.array[1:][0] += 1

    return branching(trace, write, lambda box: float(box.array[1]))


@cases(hits=2, eager="changed Python state")
def writer_of_rows(trace):
    def write(box):
        csv.writer(box.stream).writerow([1])

    return branching(trace, write, lambda box: len(box.stream.getvalue()))


@cases(hits=2, eager="changed Python state")
def proxy(trace):
    def write(box):
        weakref.proxy(box).count += 1

    return branching(trace, write, lambda box: box.count)


@cases(hits=2, eager="changed Python state")
def list_itself(trace):
    return branching(trace, lambda box: box.items.append(1), lambda box: len(box.items))


@cases(hits=5)
def what_it_makes_and_drops(trace):
    def write(box):
        made = types.SimpleNamespace(count=0)
        made.count += 1
        items = [1, 2]
        items.append(3)
        table = {}
        table["k"] = items
        array = np.zeros(2)
        array[0] = 3

    return branching(trace, write, lambda box: box.count)


COUNT = 0  # what code that is made of a text sets


def setting(trace, code):
    """`code` as an opaque step in the namespace of this file, whose COUNT is read before and behind."""
    globals()["COUNT"] = 0

    @opaque
    def note(x):
        exec(code, globals())
        return float(x.sum())

    def fn(x):
        before, size = COUNT, note(x)
        if size > 10:
            return x * 2 - COUNT
        return x - before * COUNT

    return trace(fn), [call(X() + 9 * k) for k in (0, 1, 0, 1, 1, 0)], lambda: COUNT


@cases(eager="cannot be resumed")
def name_of_a_module(trace):
    return setting(trace, "COUNT += 1")


@cases(eager="cannot be resumed")
def name_of_a_module_in_a_loop(trace):
    return setting(trace, "for COUNT in range(COUNT + 2): pass")


@cases(eager="cannot be resumed")
def names_of_another_module(trace):
    sys.modules["lt_written"] = module = types.ModuleType("lt_written")
    module.COUNT = 7
    return setting(trace, "from lt_written import *")


@cases(eager="cannot be resumed")
def attribute_set_by_c_code(trace):
    box = Box()
    put = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.py_object)(
        ("PyObject_SetAttrString", ctypes.pythonapi)
    )
    address = id(box)

    @opaque
    def note(x):
        put(address, b"count", box.count + 1)
        return float(x.sum())

    def fn(x):
        before, size = box.count, note(x)
        if size > 10:
            return x * 2 - box.count
        return x - before * box.count

    return trace(fn), [call(X() + 9 * k) for k in (0, 1, 0, 1, 1, 0)], lambda: box.count


def computing(trace, compute):
    """`compute` as an opaque step, which changes nothing, and a branch behind it."""
    compute = opaque(compute)

    def fn(x):
        y = compute(x)
        if y.sum() > 3:
            return y * 2
        return y - 1

    return trace(fn), [call(X() + 3 * k) for k in (0, 1, 0, 1, 1, 0, 1, 0, 1)]


@cases(hits=7)
def array_that_becomes_the_result(trace):
    return computing(trace, lambda x: torch.from_numpy(np.tanh(x.numpy()) * 2.0))


@cases(hits=7)
def array_that_is_filled_and_becomes_the_result(trace):
    def doubled(x):
        given = x.numpy()
        made = np.zeros_like(given)
        for i in range(len(given)):
            made[i] = given[i] * 2
        return torch.as_tensor(made)

    return computing(trace, doubled)


@cases(hits=7)
def array_that_is_summed(trace):
    return computing(trace, lambda x: x * float(x.numpy().sum()))


@cases(hits=7)
def views_of_an_array_that_goes(trace):
    def scaled(x):
        made = x.numpy().astype(np.float64)
        made.reshape(3, 1).T[0] *= 2
        return x * float(made[1:].max())

    return computing(trace, scaled)


@cases(hits=2, eager="changed Python state")
def array_in_state_that_becomes_the_result(trace):
    box = Box()

    @opaque
    def shown(x):
        box.array = np.tanh(x.numpy())
        return torch.from_numpy(box.array)

    def fn(x):
        y = shown(x) * 1
        if y.sum() > 2:
            return y * 2, float(box.array[0])
        return y - 1

    steps = [call(X() + 3 * k) for k in (0, 1, 0, 1, 1, 0, 1, 0, 1)]
    return trace(fn), steps, lambda: box.array.tolist()


@cases(hits=2, eager="changed Python state")
def array_that_numpy_adds_to(trace):
    return branching(trace, lambda box: np.add.at(box.array, [1, 1], 1), lambda box: float(box.array[1]))


class Seen(nn.Module):
    """Which output its hook has seen last is set by a function that is a step."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        nn.init.eye_(self.inner.weight)
        nn.init.zeros_(self.inner.bias)
        self.inner.register_forward_hook(self.look)
        self.kept, self.scale = 1.0, 2.0

    def look(self, module, args, output):
        return output * self.scale


@cases(hits=6)
def attribute_of_whose_method_is_a_hook(trace):
    net = Seen()

    @opaque
    def reset(net):
        net.kept = None

    def fn(x):
        reset(net)
        return net.inner(x), net.kept

    def changed():
        net.scale, net.kept = 3.0, 7

    return trace(fn), [*[call(X())] * 5, changed, *[call(X())] * 4], lambda: net.kept


def asked_behind(trace, ask):
    box = Box()
    box.number = 3.0
    box.other = 2.0

    @opaque
    def double(box):
        box.number = box.number * 2

    def fn(x):
        double(box)
        return x * 1, ask(box)

    return trace(fn), [call(X())] * 8, lambda: box.number


ASKED = {
    "copied": lambda box: copy.copy(box).number,
    "all": lambda box: sorted(vars(box).items(), key=str)[0],
    "text": lambda box: "{number}".format(**vars(box)),
    "looked up": lambda box: operator.attrgetter("number")(box),
    "handed on": lambda box: list(map(operator.attrgetter("number"), [box])),
    "sorted": lambda box: sorted([box, box], key=lambda one: -one.number)[0].number,
    "reduced": lambda box: functools.reduce(lambda total, one: total + one.number, [box, box], 0),
    "pickled": lambda box: pickle.loads(pickle.dumps(vars(box)))["number"],
    "compared": lambda box: box in [1, box],
    "another": lambda box: max([box], key=operator.attrgetter("other")).other,
}


@pytest.mark.parametrize("name", ASKED)
def test_what_c_code_asks_of_an_object_that_a_step_has_changed(name):
    agree(lambda trace: asked_behind(trace, ASKED[name]))


@cases.parametrize
def test_written_through(make, expected):
    check(make, **expected)
