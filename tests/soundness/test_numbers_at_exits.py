"""Numbers of a function that runs again after a side exit, when it has changed something by then."""

from __future__ import annotations

import math
import sys
import types
from types import SimpleNamespace

import pytest
import torch

from tests.soundness.runner import Cases, call, check

cases = Cases()

# Another value of `n` at each call, then one piece in place of three: an exit after the change of `w`.
PLACES = {
    "an attribute": "w.add_(o.n)\no.n = k\nreturn x.unbind(0)",
    "an entry of a dict": "w.add_(d['n'])\nd['n'] = k\nreturn x.unbind(0)",
    "a global": "global g\nw.add_(g)\ng = k\nreturn x.unbind(0)",
    "a cell": "nonlocal c\nw.add_(c)\nc = k\nreturn x.unbind(0)",
}
PROGRAM = """
g = 2
def make(traced, torch, w, o, d):
    c = 2
    def fn(x, k=3):
        {body}
    return traced(fn), lambda: c
"""


def place(name):
    def make(trace):
        module = types.ModuleType(f"numbers_at_exits_{trace.enabled}")
        sys.modules[module.__name__] = module
        exec(PROGRAM.format(body=PLACES[name].replace("\n", "\n        ")), module.__dict__)
        w, o, d = torch.zeros(3), SimpleNamespace(n=2), {"n": 2}
        fn, cell = module.make(trace, torch, w, o, d)
        x, one = torch.ones(3, 2), torch.ones(1, 2)
        steps = [call(x), call(x * 2), call(one), call(x, k=True), call(x), call(one, 4), call(x), call(x, 5)]
        return fn, steps, lambda: (w, o, d, module.g, cell())

    return make


@pytest.mark.parametrize("name", PLACES)
def test_a_place_is_set_to_the_number_that_it_holds(name):
    check(place(name), hits=1)


@cases(hits=3)
def an_index_beyond_the_end(trace):
    h = torch.zeros(())

    def fn(x):
        h.add_(1)
        rows, columns = x.shape
        return x.reshape(rows * columns)[rows]

    sizes = [(6, 2), (2, 2), (6, 3), (0, 3), (1, 1), (2, 3), (1, 1), (4, 3)]
    return trace(fn, dynamic=True), [call(torch.ones(size)) for size in sizes], lambda: h


@cases(hits=1, eager="it reads fewer numbers than before")
def an_index_that_is_beyond_the_end_at_first(trace):
    w, o = torch.zeros(()), SimpleNamespace(n=5)

    def fn(x):
        w.add_(1)
        try:
            y = x[x.dim()] * 2
        except IndexError:
            o.n = 0
            y = x.sum()
        w.add_(3)
        return y

    sizes = [(1, 2), (0, 2), (5, 1), (1, 2), (4, 2), (2, 2), (3, 1)]
    return trace(fn), [call(torch.ones(size)) for size in sizes], lambda: (w, vars(o))


@cases(hits=3)
def a_power_that_is_worked_out_before_and_after_a_write(trace):
    w, groups, o = torch.zeros(()), [{"lr": 0.2}, {"lr": 0.1}], SimpleNamespace(n=0)

    def fn(x):
        w.add_(1)
        for group in groups:
            group["lr"] = 0.05 * 0.9**o.n
        w.add_(1 if o.n % 3 else 2)
        o.n += 1
        return x * 2

    return trace(fn), [call(torch.ones(2)) for _ in range(9)], lambda: (w, groups, o)


# What has more than 64 bits at some sizes is no number of the program there, and is asked for after a change.
TOO_LARGE = [
    "(x.shape[0] * 2**62) % 5",
    "((x.shape[0] - 1) * 2**62) % 5",
    "x.shape[0] ** 20 % 7",
    "2 ** (x.shape[0] * 8) // 3",
    "x.shape[0] ** 7 * x.shape[0] ** 7 * x.shape[0] ** 6",
    "-x.shape[0] * 2**62 - x.shape[0] * 2**61",
]


def too_large(text, way):
    def make(trace):
        w, o = torch.zeros(()), SimpleNamespace(n=0)
        lines = {
            "read": f"w.add_(1)\nreturn {text}",
            "set": f"w.add_(1)\no.n = {text}\nreturn x + 1",
            "read in a branch": f"w.add_(1)\nif ({text}) % 5 == 3:\n    return x\nreturn x + 1",
            "worked out before": f"n = {text}\nw.add_(1)\no.n = n\nreturn x + 1",
        }[way]
        names = {"w": w, "o": o}
        exec("def fn(x):\n    " + lines.replace("\n", "\n    "), names)
        sizes = (4, 6, 4, 0, 9, 1, 4, 9, 2, 0, 3, 11, 4)
        return trace(names["fn"]), [call(torch.ones(n, 2)) for n in sizes], lambda: (w, o)

    return make


@pytest.mark.parametrize("way", ["read", "set", "read in a branch", "worked out before"])
@pytest.mark.parametrize("text", TOO_LARGE)
def test_a_number_that_has_more_than_64_bits_at_some_sizes(text, way):
    check(too_large(text, way), hits=1)


@cases(hits=4)
def a_remainder_of_the_smallest_int(trace):
    w, o = torch.zeros(()), SimpleNamespace(n=-(2**63))

    def fn(x):
        w.add_(1)
        rest = o.n % (x.shape[0] - 4)
        o.n += 1
        return x * rest, rest

    return trace(fn), [call(torch.ones(n, 2)) for n in (6, 7, 3, 8, 3, 9, 5, 2)], lambda: (w, o)


# What no int64 holds, and of what int() makes no number at all: the second one asks what the first one asked.
@pytest.mark.parametrize("other", [float("inf"), float("nan"), 1e40, -1e19])
@pytest.mark.parametrize("text", ["int(n)", "math.floor(n)", "round(n.item())"])
def test_a_tensor_of_which_no_int_can_be_made(text, other):
    def make(trace):
        names = {"w": torch.zeros(()), "math": math}
        exec(f"def fn(x, n):\n    w.add_(1)\n    return x * 2, {text}", names)
        values = (1.5, 2.0, 3.0, 1e30, 4.0, other, 5.0, other, 1e30)
        return trace(names["fn"]), [call(torch.ones(2), torch.tensor(v)) for v in values], lambda: names["w"]

    check(make, hits=3)


@cases.parametrize
def test_numbers_at_exits(make, expected):
    check(make, **expected)
