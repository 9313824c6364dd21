"""A case as the text of a program: a source, a way to it, a consumer, a change; drawn by a seed."""

from __future__ import annotations

import importlib
import random
import re
import signal
import sys
import textwrap
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch

from tests.soundness.attacks.changes import REBIND, Change
from tests.soundness.attacks.consumers import CONSUMERS
from tests.soundness.attacks.reaching import WAYS, Way
from tests.soundness.attacks.sources import (
    CALLABLES,
    COMMON,
    CONTAINERS,
    ELEMENTS,
    ENDLESS,
    SHORT,
    SINGLES,
    SPECIALS,
    Source,
    all_changes,
    combined,
)
from tests.soundness.runner import Call, call, restore

HEADER = """\
import abc, array, bisect, cmath, collections, contextlib, contextvars, copy, csv, ctypes, dataclasses, datetime
import decimal, enum, fractions, functools, heapq, inspect, io, ipaddress, itertools, json, math, numbers, operator
import os, pathlib, pickle, pprint, queue, random, re, reprlib, sqlite3, statistics, string, struct, textwrap
import threading, time, types, typing, uuid, weakref
from types import SimpleNamespace as NS
import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch.utils import _pytree as pytree
"""
PRELUDE = f"{COMMON}s = t = w = b = e0 = e1 = e2 = e3 = None\nw1 = torch.ones(3, requires_grad=True)\n"


class Attack(NamedTuple):
    """One case; `text` is the module, whose `make(trace)` is a case as in the other files."""

    source: str
    way: str
    consumer: str
    change: str
    text: str


class Made(NamedTuple):
    """A source that was set up, to try consumers on."""

    names: dict[str, Any]
    setup: Any


_HEADER_NAMES: dict[str, Any] = {}

# What programs of several kinds call.
IN_THREAD = """\
def in_thread(f, args):
    found = []
    def run():
        try: found.append(f(*args))
        except Exception as error: found.append(error)
    t = threading.Thread(target=run)
    t.start(); t.join()
    if isinstance(found[0], Exception): raise found[0]
    return found[0]
"""
exec(HEADER, _HEADER_NAMES)


@cache
def compiled(text: str) -> Any:
    return compile(text, "<trial>", "exec", dont_inherit=True)


def fresh(text: str) -> dict[str, Any]:
    """The names that a text binds, in a module of its own."""
    names = dict(_HEADER_NAMES, __name__="attack")
    exec(compiled(text), names)
    return names


# ---------------------------------------------------------------- what the function does with a value
_CONSTANT = (bool, int, float, str, bytes, type(None), tuple, frozenset)


def endings(value: Any) -> list[str]:
    """Ways for the result to depend on `v`."""
    ways = ["x * 2, v"]
    if isinstance(value, bool | type(None)):
        return ["x + 1 if v else x - 1", "x + 1 if v else x - 1", *ways]
    if isinstance(value, int | float) and abs(value) < 1e6:
        return ["x * v", "x * v", "x + 1 if v else x - 1", f"x + 1 if v == {plain(value)} else x - 1", *ways]
    if isinstance(value, torch.Tensor):
        return ["x.sum() + v", *ways]
    ways += ["x + 1 if v else x - 1"]
    if " at 0x" not in (text := repr(value)):
        ways += ["x * sum(map(ord, repr(v)))", "x * len(repr(v))"]
    if isinstance(value, str):
        ways += ["x * sum(map(ord, v))", "x * len(v)", f"x + 1 if v == {text} else x - 1"]
    if isinstance(value, list | tuple | dict | set | frozenset):
        ways += ["x * len(v)", "(x, *v)"]
        if literal(value):
            ways += [f"x + 1 if v == {text} else x - 1"] * 2
    return ways


def plain(value: Any) -> str:
    return repr(value) if value == value and abs(value) != float("inf") else "0"


def literal(value: Any) -> bool:
    """Is the repr of a value an expression that makes it?"""
    if type(value) in (list, tuple):
        return all(map(literal, value))
    if type(value) is dict:
        return all(map(literal, value)) and all(map(literal, value.values()))
    return type(value) in (bool, int, str, bytes, type(None))


# ---------------------------------------------------------------- choices
def any_source(rng: random.Random) -> Source:
    """A container of elements, or a single object."""
    kind = rng.random()
    if kind < 0.6:
        return combined(rng.choice(CONTAINERS), rng.choice(ELEMENTS))
    return rng.choice(SINGLES if kind < 0.8 else SPECIALS if kind < 0.9 else CALLABLES)


def consumed(consumer: str, read: str) -> str:
    """The statements that bind v: `S` in a consumer stands for the way to the source."""
    text = re.sub(r"(?<![\w.])S(?!\w)", lambda _: read, consumer)
    return text if "v = " in consumer or " as v" in consumer else f"v = {text}"


def trial(source: Source, consumer: str) -> Any:
    """What the consumer makes of the source, in plain Python; raises what it raises."""
    names = fresh(f"{PRELUDE}{source.setup}\nx = torch.arange(1.0, 4.0)\n{HELPERS}")
    exec(compiled(consumed(consumer, "s")), names)
    return names["v"]


def telling(source: Source, consumer: str, rng: random.Random) -> Change:
    """A change after which the consumer gives something else, if a few draws find one."""
    rows = rng.sample(all_changes(source), min(6, len(all_changes(source))))
    return next((row for row in rows if shows(source, consumer, row)), rows[0])


def shows(source: Source, consumer: str, change: Change) -> bool:
    names = fresh(
        f"{PRELUDE}{source.setup}\nx = torch.arange(1.0, 4.0)\n{HELPERS}\ndef other(): return {source.other}"
    )
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in ("pass", change.do.replace(REBIND, "s = t")):
            try:
                exec(compiled(f"{step}\n{consumed(consumer, 's')}"), names)
                seen.append((type(names["v"]), repr(names["v"])))
            except Exception as error:
                seen.append((type(error), str(error)))
    try:
        exec(compiled(change.undo), names)  # it may be one of a class of torch
    except Exception:
        names.clear()
    restore()
    return seen[0] != seen[-1]


HELPERS = "def print_to(q):\n    o = io.StringIO()\n    print(q, file=o)\n    return o.getvalue()\ndef yielded(q):\n    yield q\n"


def fitting(source: Source, rng: random.Random) -> tuple[str, Any] | None:
    """A consumer that the source allows, and its value; now and then one that raises."""
    for _ in range(60):
        consumer = rng.choice(SHORT if source.name.startswith(ENDLESS) else CONSUMERS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return consumer, trial(source, consumer)
        except Exception:
            if rng.random() < 0.003:
                return consumer, None
        finally:
            restore()
    return None


class Slow(BaseException):
    """Plain Python takes too long for a case: some objects are endless to copy or to show."""


def attack(seed: int, number: int) -> Attack | None:
    """Case `number` of a seed, or None where nothing fits the source that was drawn."""
    with limited(3.0):
        return drawn(random.Random(f"{seed}:{number}"))


def import_slow_modules() -> None:
    """Imports what cases make torch import, which takes seconds on a busy machine.

    A case that was given up for being slow would leave it half imported, and all others without it.
    """
    for module in ("torch._dynamo", "torch.distributed.tensor"):
        importlib.import_module(module)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises `Slow` after some seconds."""
    import_slow_modules()

    def raise_slow(*_: object) -> None:
        raise Slow

    before = signal.signal(signal.SIGALRM, raise_slow)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def drawn(rng: random.Random) -> Attack | None:
    source, way = any_source(rng), rng.choice(WAYS)
    found = for_a_change(source, rng) if rng.random() < 0.6 else for_a_consumer(source, rng)
    if found is None:
        return None
    consumer, value, change = found
    inline = rng.random() < 0.5 and "f'" not in consumer
    text = program(source, way, consumer, change, rng.choice(endings(value)), inline)
    return Attack(source.name, way.name, consumer, change.name, text)


def for_a_consumer(source: Source, rng: random.Random) -> tuple[str, Any, Change] | None:
    """A consumer first, and a change that it shows."""
    found = fitting(source, rng)
    return found and (*found, telling(source, found[0], rng))


def for_a_change(source: Source, rng: random.Random) -> tuple[str, Any, Change] | None:
    """A change first, and a consumer that shows it."""
    change, found = rng.choice(all_changes(source)), None
    for _ in range(25):
        found = fitting(source, rng)
        if found is None or shows(source, found[0], change):
            break
    return found and (*found, change)


# ---------------------------------------------------------------- the text
def changing(name: str, text: str, way: Way) -> str:
    """A function that makes a change: all names are those of the module."""
    body = text.replace(REBIND, way.rebind) or "pass"
    names = "global s, t, w, b, e0, e1, e2, e3, h, arg, w0, GLOBAL, b_"
    return f"def {name}():\n" + textwrap.indent(f"{names}\n{body}", "    ")


def function(way: Way, consumer: str, ending: str, inline: bool) -> str:
    """The function under test, in a function of its own if it has a closure."""
    lines = [way.lines] if way.lines else []
    lines += [] if inline else [f"q_ = {way.read}"]
    lines += [consumed(consumer, way.read if inline else "q_"), f"return {ending}"]
    text = f"def f(x{way.takes}):\n" + textwrap.indent("\n".join(lines), "    ")
    if not way.outer:
        return text
    setter = "def set_s(q):\n    nonlocal s\n    s = q"
    inner = textwrap.indent(f"{text}\n{setter}\nreturn f, set_s", "    ")
    return f"def outer_(s):\n{inner}\nf, set_s = outer_(s)"


def program(source: Source, way: Way, consumer: str, change: Change, ending: str, inline: bool) -> str:
    before, _, after = way.prepare.partition("<after>")
    parts = [
        PRELUDE + HELPERS, source.setup, f"def other(): return {source.other}", before, function(way, consumer, ending, inline),
        "plain = f", after, changing("change", change.do, way), changing("undo", change.undo, way),
        f"def make(trace):\n    global f\n    f = trace(f)\n    one = lambda: f(torch.arange(1.0, 4.0){way.given})\n"
        "    return one, [1, 1, change, 1, 1, undo, 1, 1], lambda: [s, w1]",
    ]  # fmt: skip
    return "\n".join(part for part in parts if part) + "\n"


class Program:
    """An attack as the runner takes it: its module is made anew for each run."""

    def __init__(self, text: str) -> None:
        self.code = compile(text, "<attack>", "exec", dont_inherit=True)

    def __call__(self, trace: Any) -> Any:
        # Replays make functions (hooks, closures) again in their module, which they find by its name.
        sys.modules["attack"] = module = types.ModuleType("attack")
        vars(module).update({k: v for k, v in _HEADER_NAMES.items() if not k.startswith("__")})
        exec(self.code, vars(module))
        function, steps, watch = module.make(trace)
        # A change counts as a call, too: what it raises is compared, and what is there right after it.
        return function, [as_call(step) for step in steps], watch


def as_call(step: Any) -> Call:
    return step if isinstance(step, Call) else call() if step == 1 else call().of(step)
