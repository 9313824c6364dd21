"""Cases of the other files in other orders, with changes between their steps that their source allows.

The steps of a case are permuted, left out, repeated; calls get other arguments, run in a thread or in another
mode; what the case's functions read (variables of closures, globals, attributes, entries) is bound to a copy, to
another value or to one of another type, and back; a result is changed by whoever got it; and a second copy of
the case runs between the steps of the first. What plain Python then does, the traced function does, too.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import copy
import functools
import gc
import importlib
import json
import logging
import math
import operator
import os
import pickle
import random
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import lazytrace
from tests.soundness.attacks.programs import Attack
from tests.soundness.runner import Call, Cases, Holder, Tracer, restore

FOLDER = Path(__file__).parents[1]
# Without cases that only some machines have, that take long, or that may wait for another thread for ever.
LEFT_OUT = ("test_gpu", "test_attacks", "test_threads", "test_state_across_threads", "test_locks")
WAITING = ("thread", "lock", "semaphore", "event", "queue", "barrier", "condition", "sleep", "signal", "fork")
LENGTH = 16  # steps of a case
NOTHING = object()


# ---------------------------------------------------------------- the cases, and what they leave behind
@cache
def files() -> list[tuple[str, int]]:
    """The test files that have cases, with their sizes."""
    found = [path for path in sorted(FOLDER.glob("test_*.py")) if path.stem not in LEFT_OUT]
    return [(path.stem, len(text)) for path in found if "\n@cases" in (text := path.read_text())]


@cache
def cases_of(name: str) -> dict[str, Callable[..., Any]]:
    """The cases of a file, by the names of their functions."""
    module = importlib.import_module(f"tests.soundness.{name}")
    known = [row for value in vars(module).values() if isinstance(value, Cases) for row in value.known]
    found = {row.id: row.values[0] for row in known if not any(word in row.id for word in WAITING)}
    usual(f"tests.soundness.{name}")
    return found


@cache
def usual(name: str) -> list[tuple[Any, dict[str, Any]]]:
    """What a module and its classes hold, before any case has patched them."""
    module = sys.modules[name]
    own = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == name]
    return [(one, dict(vars(one))) for one in (module, *own)]


PATCHED = [
    *(builtins, collections, copy, functools, json, logging, math, operator, random, time, warnings),
    *(torch, torch.nn, torch.nn.functional, lazytrace, Holder, collections.OrderedDict, collections.Counter),
    *(
        torch.Tensor,
        torch.nn.Module,
        torch.nn.Linear,
        torch.nn.Dropout,
        torch.optim.Optimizer,
        logging.Logger,
    ),
]
USUAL = [(one, dict(vars(one))) for one in PATCHED]


def put_back(name: str) -> None:
    """Undoes what a case has patched: another order may leave out the step that does."""
    for one, before in (*USUAL, *usual(f"tests.soundness.{name}")):
        # A submodule that was imported since is no patch.
        added = [k for k, v in vars(one).items() if k not in before and not isinstance(v, types.ModuleType)]
        for key in added if isinstance(one, type) else [key for key in added if not key.startswith("__")]:
            with contextlib.suppress(Exception):
                delattr(one, key)
        for key, value in before.items():
            if vars(one).get(key, NOTHING) is not value:
                with contextlib.suppress(Exception):
                    setattr(one, key, value)
    sys.settrace(None)
    sys.setprofile(None)
    gc.enable()
    os.environ["LAZYTRACE_REPORT"] = "0"
    restore()


# ---------------------------------------------------------------- what the functions of a case read
class Place(NamedTuple):
    """Where a value lies: what holds it, and how it is put there."""

    get: Callable[[], Any]
    put: Callable[[Any], object]


class Places(dict[str, Place]):
    """All places of a case, by the way to them; the same for the plain and the traced case."""

    def __init__(self, module: str, trace: Keeping) -> None:
        self.module, self.seen = module, dict[int, Any]()
        self.traced = [*trace.given, *trace.made, *trace.opaque]
        for i, fn in enumerate(trace.given):
            self.inside(f"f{i}", fn, 0)

    def inside(self, way: str, value: Any, depth: int) -> None:
        if depth > 5 or id(value) in self.seen or len(self) > 60:
            return
        self.seen[id(value)] = value
        if isinstance(value, types.MethodType):
            self.inside(f"{way}.__func__", value.__func__, depth)
            self.inside(f"{way}.__self__", value.__self__, depth)
        elif isinstance(value, types.FunctionType):
            self.of_function(way, value, depth)
        elif isinstance(value, type):
            if value.__module__ == self.module:
                self.of_class(way, value, depth)
        elif isinstance(value, (dict, list)):
            keys = list(value) if isinstance(value, dict) else range(len(value))
            for key in keys[:4]:
                if isinstance(key, str) or (isinstance(key, int) and abs(key) < 1 << 20):  # no address
                    entry = functools.partial(operator.getitem, value, key)
                    self.add(f"{way}[{key!r}]", entry, functools.partial(operator.setitem, value, key), depth)
        elif self.has_attributes(value):
            self.of_object(way, value, depth)

    def has_attributes(self, value: Any) -> bool:
        known = isinstance(value, (Holder, types.SimpleNamespace, torch.nn.Module))
        return hasattr(value, "__dict__") and (known or type(value).__module__ == self.module)

    def of_function(self, way: str, fn: types.FunctionType, depth: int) -> None:
        if fn.__code__.co_filename != sys.modules[self.module].__file__:
            return
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            put = functools.partial(setattr, cell, "cell_contents")
            self.add(f"{way}:{name}", functools.partial(getattr, cell, "cell_contents"), put, depth)
        for name in fn.__code__.co_names:
            value = fn.__globals__.get(name, NOTHING)
            if value is not NOTHING and not isinstance(value, (types.ModuleType, Cases)):
                get = functools.partial(operator.getitem, fn.__globals__, name)
                self.add(
                    f"global {name}", get, functools.partial(operator.setitem, fn.__globals__, name), depth
                )
        if fn.__defaults__:
            self.add(
                f"{way}.__defaults__",
                lambda: fn.__defaults__,
                functools.partial(setattr, fn, "__defaults__"),
                depth,
            )

    def of_class(self, way: str, cls: type, depth: int) -> None:
        for name, value in list(vars(cls).items()):
            if isinstance(value, types.FunctionType):
                self.inside(f"{way}.{name}", value, depth + 1)
            elif not name.startswith("__") and not hasattr(type(value), "__get__"):
                get, put = functools.partial(getattr, cls, name), functools.partial(setattr, cls, name)
                self.add(f"{way}.{name}", get, put, depth)

    def of_object(self, way: str, value: Any, depth: int) -> None:
        own = dict(vars(value))
        if isinstance(value, torch.nn.Module):
            own = {k: v for k, v in own.items() if not k.startswith("_") or k in ("_parameters", "_buffers")}
            own |= own.pop("_parameters") | own.pop("_buffers") | vars(value)["_modules"]
        for name in list(own)[:6]:
            get, put = functools.partial(getattr, value, name), functools.partial(setattr, value, name)
            self.add(f"{way}.{name}", get, put, depth)
        self.inside(f"{way}.__class__", type(value), depth + 1)

    def add(self, way: str, get: Callable[[], Any], put: Callable[[Any], object], depth: int) -> None:
        try:
            value = get()
        except Exception:  # an empty cell
            return
        if any(value is one for one in self.traced):  # what is traced here is none there
            return
        self[way] = Place(get, put)
        self.inside(way, value, depth + 1)


# ---------------------------------------------------------------- what is put there
def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def copied(value: Any) -> Any:
    """An equal one that is another object, where there is one."""
    if isinstance(value, types.FunctionType):
        defaults, closure = value.__defaults__, value.__closure__
        made = types.FunctionType(value.__code__, value.__globals__, value.__name__, defaults, closure)
        vars(made).update(vars(value))
        return made
    if isinstance(value, float):
        return float(repr(value)) if type(value) is float else copy.deepcopy(value)
    return "".join([*value, ""]) if type(value) is str else copy.deepcopy(value)


def another(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(-value.detach(), value.requires_grad)
    if isinstance(value, torch.Tensor):
        return (value.detach() * 2).requires_grad_(value.requires_grad)
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float, complex)):
        return type(value)(value + 1)
    if isinstance(value, str):
        return type(value)(value + "a")
    if isinstance(value, list):
        return type(value)([*value, *value[:1]])
    if isinstance(value, tuple) and type(value) is tuple:
        return value[::-1] if value[::-1] != value else (*value, *value[:1])
    if isinstance(value, dict):
        return type(value)([*value.items()][1:])
    if isinstance(value, np.ndarray):
        return value + 1
    if isinstance(value, (set, frozenset)):
        return type(value)([*value, 77])
    raise TypeError


def of_another_type(value: Any) -> Any:
    """What is equal, or nearly so, and of another type."""
    kinds: list[tuple[type, Callable[[Any], Any]]] = [
        (torch.nn.Parameter, lambda p: p.detach().clone()),
        (torch.Tensor, lambda t: t.detach().double() if t.is_floating_point() else t.float()),
        (bool, int),
        (int, float),
        (float, np.float64),
        (str, type("Text", (str,), {})),
        (list, type("Row", (list,), {})),
        (tuple, list),
        (collections.OrderedDict, dict),
        (dict, collections.OrderedDict),
        (set, frozenset),
        (np.ndarray, lambda a: a.tolist()),
    ]
    return next(make(value) for kind, make in kinds if isinstance(value, kind))


def grown(value: Any) -> Any:
    """The same object, with something more or something else in it."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            return value.add_(1)
    if isinstance(value, np.ndarray):
        value += 1
    elif isinstance(value, list):
        value.append(value[0] if value else 1)
    elif isinstance(value, collections.deque):
        value.rotate(1)
        value.append(value[0])
    elif isinstance(value, dict):
        value["grown"] = len(value)
    elif isinstance(value, set):
        value.add(77)
    elif isinstance(value, torch.nn.Module):
        value.train(not value.training)
    elif hasattr(value, "__dict__"):
        vars(value)["grown"] = 1
    return value


def shrunk(value: Any) -> Any:
    """The same object with less in it."""
    if isinstance(value, (list, collections.deque)):
        value.pop()
    elif isinstance(value, dict):
        value.popitem()
    elif isinstance(value, set):
        value.clear()
    elif isinstance(value, torch.Tensor):
        with torch.no_grad():
            return value.zero_()
    return value


def turned(value: Any) -> Any:
    """The same object in another order, or seen as of another class."""
    if isinstance(value, (list, collections.deque)):
        value.reverse()
    elif isinstance(value, dict):
        items = [*value.items()][::-1]
        value.clear()
        value.update(items)
    elif isinstance(value, torch.Tensor) and value.is_leaf:
        return value.requires_grad_(not value.requires_grad)
    elif type(value).__module__.startswith("tests."):
        value.__class__ = type("Sub", (type(value),), {})
    return value


REPLACED: dict[str, Callable[[Any], Any]] = {
    "copied": copied,
    "pickled": pickled,
    "another": another,
    "of another type": of_another_type,
    "grown": grown,
    "shrunk": shrunk,
    "turned": turned,
    "None": lambda value: None,
}


def varied(value: Any) -> Any:
    """An argument with other values."""
    if (
        type(value) is torch.Tensor
        and value.is_floating_point()
        and value.layout is torch.strided
        and value.is_leaf
    ):
        return value.detach().neg().clone().requires_grad_(value.requires_grad)
    plain = type(value) in (bool, int, float)
    return another(value) if plain else value


# ---------------------------------------------------------------- ways to call
@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def in_thread(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    found: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            found.append((fn(*args, **kwargs), None))
        except Exception as error:
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = found[0]
    if error is not None:
        raise error
    return result


MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default dtype": default_dtype,
}


def within(mode: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called in a thread or in a mode."""
    if mode == "thread":
        return functools.partial(in_thread, fn)

    def called(*args: Any, **kwargs: Any) -> Any:
        with MODES[mode]():
            return fn(*args, **kwargs)

    return called


# ---------------------------------------------------------------- the plan of a case
class Keeping(Tracer):
    """A decorator that passes on to another, and keeps what it was given."""

    def __init__(self, trace: Tracer) -> None:
        self.trace, self.given = trace, list[Any]()
        self.enabled, self.made, self.opaque = trace.enabled, trace.made, trace.opaque

    def __call__(self, fn: Any = None, **options: Any) -> Any:
        if fn is not None:
            self.given.append(fn)
        return self.trace(fn, **options) if fn is not None else lambda inner: self(inner, **options)


class Reordered:
    """A case whose steps are those of a plan: `reordered("test_file", "case", [...])`.

    A plan is a list of ("step", copy of the case, number), ("varied", copy, number), ("in", mode, copy, number), ("put", how, place),
    ("back", place) and ("result", how).
    """

    def __init__(self, file: str, name: str, plan: list[tuple[Any, ...]]) -> None:
        self.file, self.name, self.plan = file, name, plan

    def __call__(self, trace: Any) -> Any:
        make = cases_of(self.file)[self.name]
        put_back(self.file)
        self.trace, self.errors, self.last = Keeping(trace), list[str](), list[Any]()
        self.before: dict[str, Any] = {}
        copies = 1 + any(row[0] in ("step", "varied", "in") and row[-2] for row in self.plan)
        self.cases = [(*make(self.trace), lambda: None)[:3] for _ in range(copies)]
        steps = [self.step(*row) for row in self.plan]
        return self.cases[0][0], [*steps, lambda: put_back(self.file)], self.watch

    def watch(self) -> Any:
        return [case[2]() for case in self.cases], self.errors

    def places(self) -> Places:
        return Places(f"tests.soundness.{self.file}", self.trace)

    def step(self, kind: str, *row: Any) -> Any:
        if kind == "put":
            return functools.partial(self.tried, self.put, *row)
        if kind == "back":
            return functools.partial(self.tried, self.back, *row)
        if kind == "result":
            return functools.partial(self.tried, self.result, *row)
        function, steps, _ = self.cases[row[-2]]
        step = list(steps)[row[-1]]
        if not isinstance(step, Call):
            return functools.partial(self.tried, step)
        args, kwargs = step.args, step.kwargs
        if kind == "varied":
            args, kwargs = tuple(map(varied, args)), {key: varied(value) for key, value in kwargs.items()}
        called = within(row[0], step.on or function) if kind == "in" else step.on or function
        return Call(*args, **kwargs).of(functools.partial(self.keeping, called))

    def keeping(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function, and keeps the result for those who change it."""
        self.last[:] = [NOTHING]
        self.last[0] = out = fn(*args, **kwargs)
        return out

    def tried(self, change: Callable[..., object], *args: Any) -> None:
        """Changes something, which may not be possible in this order."""
        try:
            change(*args)
        except Exception as error:
            self.errors.append(type(error).__name__)

    def put(self, how: str, way: str) -> None:
        place = self.places()[way]
        self.before.setdefault(way, value := place.get())
        place.put(REPLACED[how](value))

    def back(self, way: str) -> None:
        self.places()[way].put(self.before.pop(way))

    def result(self, how: str) -> None:
        out = self.last[0] if self.last else NOTHING
        for value in (out, *(out if isinstance(out, (list, tuple)) else ())):
            if value is not NOTHING:
                REPLACED[how](value)


def reordered(file: str, name: str, plan: list[tuple[Any, ...]]) -> Reordered:
    return Reordered(file, name, plan)


TEXT = """\
from tests.soundness.attacks.orders import reordered
make = reordered({file!r}, {name!r}, [
{plan}])
"""


def orders(seed: int, number: int) -> Attack | None:
    """Case `number` of a seed, or None where the file that was drawn has no cases."""
    rng = random.Random(f"orders:{seed}:{number}")
    names, sizes = zip(*files(), strict=True)
    file = rng.choices(names, sizes)[0]
    if not (known := cases_of(file)):
        return None
    name = rng.choice(list(known))
    plan = planned(file, name, rng)
    text = TEXT.format(file=file, name=name, plan="".join(f"    {row!r},\n" for row in plan))
    changes = sorted({f"{row[0]} {row[1]}" for row in plan if row[0] in ("put", "in", "result")})
    return Attack(file, name, changes[0] if changes else "order", "", text)


def planned(file: str, name: str, rng: random.Random) -> list[tuple[Any, ...]]:
    """A plan for a case, which is made once to see what there is."""
    make, trace = cases_of(file)[name], Keeping(Tracer(False))
    put_back(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, steps, *_ = make(trace)
        calls = [isinstance(step, Call) for step in steps]
        ways = list(Places(f"tests.soundness.{file}", trace))
    put_back(file)
    plan = [(0, i) for i in in_another_order(len(calls), rng)]
    if rng.random() < 0.15:
        plan = [(rng.randint(0, 1), i) for _, i in plan]
    rows = [drawn_step(of, i, calls[i], rng) for of, i in plan]
    return with_changes(rows, ways, rng) if rng.random() < 0.8 else rows


def in_another_order(count: int, rng: random.Random) -> list[int]:
    kind, steps = rng.random(), list(range(count))
    if kind < 0.3:
        order = [*steps, *rng.sample(steps, count)]
    elif kind < 0.5:
        order = [rng.choice(steps) for _ in range(12)]
    elif kind < 0.75:
        order = [i for i in steps for _ in range(rng.choice((1, 2, 3)))]
        order = [*order[:10], *order[:4]]
    else:
        order = steps * 3
    return order[:LENGTH]


def drawn_step(of: int, number: int, is_call: bool, rng: random.Random) -> tuple[Any, ...]:
    kind = rng.random()
    if is_call and kind < 0.1:
        return ("varied", of, number)
    if is_call and kind < 0.18:
        return ("in", rng.choice((*MODES, "thread")), of, number)
    return ("step", of, number)


def with_changes(rows: list[tuple[Any, ...]], ways: list[str], rng: random.Random) -> list[tuple[Any, ...]]:
    """The plan with changes of one to three places between its steps, most of which are undone later."""
    changes: list[tuple[int, tuple[Any, ...]]] = []
    for way in rng.sample(ways, min(len(ways), rng.randint(1, 3))):
        at = rng.randint(1, len(rows))
        changes.append((at, ("put", rng.choice(list(REPLACED)), way)))
        if rng.random() < 0.7:
            changes.append((rng.randint(at, len(rows)), ("back", way)))
    if rng.random() < 0.3:
        changes.append((rng.randint(1, len(rows)), ("result", rng.choice(("grown", "shrunk", "turned")))))
    for at, row in sorted(changes, key=lambda change: change[0], reverse=True):
        rows = [*rows[:at], row, *rows[at:]]
    return rows
