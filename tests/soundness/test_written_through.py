"""Opaque functions that write to state through something that is gone when they end, before a branch.

The function runs again behind the branch, and reads there what has been written: another value at each call.
"""

from __future__ import annotations

import csv
import ctypes
import io
import sys
import types
import weakref

import numpy as np

from lazytrace import opaque
from tests.soundness.runner import Cases, X, call, check

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


@cases.parametrize
def test_written_through(make, expected):
    check(make, **expected)
