"""Globals, modules, builtins, the environment, and what is monkeypatched in them."""

from __future__ import annotations

import builtins
import importlib
import inspect
import json
import math
import os
import sys
import types
import warnings

import pytest
import torch
import torch.nn.functional as F

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()

SCALE = 2.0
CONFIG = {"lr": 2.0, "deep": {"k": [1.0, 2.0]}}
COUNT = 0
WEIGHT = torch.ones(3)
GONE = 1.0


@pytest.fixture(autouse=True)
def _globals():
    saved = dict(globals())
    yield
    globals().update(saved)
    CONFIG.clear()
    CONFIG.update(lr=2.0, deep={"k": [1.0, 2.0]})


def reset():
    g = globals()
    g.update(SCALE=2.0, COUNT=0, WEIGHT=torch.ones(3), GONE=1.0, helper=_helper)
    CONFIG.update(lr=2.0, deep={"k": [1.0, 2.0]})


def _helper(x):
    return x * SCALE


helper = _helper


def put(**values):
    return lambda: globals().update(values)


@cases(hits=2, recordings=2)
def number(trace):
    reset()
    return trace(lambda x: x * SCALE), around(put(SCALE=3.0), X())


@cases(hits=3)
def tensor(trace):
    reset()
    return trace(lambda x: x * WEIGHT), around(put(WEIGHT=torch.full((3,), 4.0)), X())


@cases(hits=2)
def tensor_of_other_dtype(trace):
    reset()
    return trace(lambda x: x * WEIGHT), around(put(WEIGHT=torch.ones(3, dtype=torch.float64)), X())


@cases(hits=2)
def through_a_helper(trace):
    reset()
    return trace(lambda x: helper(x)), around(put(SCALE=3.0), X())


@cases(hits=2)
def helper_replaced(trace):
    reset()
    return trace(lambda x: helper(x)), around(put(helper=lambda x: x - 1), X())


@cases(hits=3)
def counter(trace):
    reset()

    @trace
    def fn(x):
        global COUNT
        COUNT += 1
        return x + COUNT

    return fn, [call(X())] * 4, lambda: COUNT


@cases(hits=1)
def deleted(trace):
    reset()
    return trace(lambda x: x * GONE), around(lambda: globals().pop("GONE"), X())


@cases(hits=2)
def shadows_a_builtin(trace):
    globals().pop("max", None)
    return trace(lambda x: x * max(1, 3)), around(lambda: globals().update(max=min), X())


@cases(hits=2)
def builtin_replaced(trace):
    globals().pop("max", None)
    real = builtins.abs
    builtins.abs = real
    steps = around(lambda: setattr(builtins, "abs", lambda v: 10), X())
    return trace(lambda x: x * abs(-2)), [*steps, lambda: setattr(builtins, "abs", real)]


@cases(hits=2)
def nested_config(trace):
    reset()
    return trace(lambda x: x * CONFIG["deep"]["k"][1]), around(
        lambda: CONFIG["deep"]["k"].__setitem__(1, 9.0), X()
    )


@cases(hits=3)
def config_entry_that_is_not_read(trace):
    reset()
    return trace(lambda x: x * CONFIG["lr"]), around(lambda: CONFIG.update(deep=None), X())


@cases(hits=2)
def environment(trace):
    os.environ["LT_SCALE"] = "2"
    change = lambda: os.environ.__setitem__("LT_SCALE", "5")  # noqa: E731
    return trace(lambda x: x * float(os.environ["LT_SCALE"])), around(change, X())


@cases(hits=2)
def environment_get(trace):
    os.environ.pop("LT_OTHER", None)
    change = lambda: os.environ.__setitem__("LT_OTHER", "5")  # noqa: E731
    return trace(lambda x: x * float(os.getenv("LT_OTHER", "2"))), around(change, X())


def patch(owner, name, value):
    """Steps: two calls, patch, two calls, and back."""
    real = getattr(owner, name)
    steps = around(lambda: setattr(owner, name, value), X())
    return [*steps, lambda: setattr(owner, name, real), call(X())]


@cases(hits=2)
def functional_relu_patched(trace):
    return trace(lambda x: F.relu(x)), patch(F, "relu", lambda x, inplace=False: x * 10)


@cases(hits=2)
def functional_relu_patched_under_a_module(trace):
    relu = torch.nn.ReLU()
    return trace(lambda x: relu(x)), patch(F, "relu", lambda x, inplace=False: x * 10)


@cases(hits=2)
def math_sqrt_patched(trace):
    return trace(lambda x: x * math.sqrt(4.0)), patch(math, "sqrt", lambda v: 100.0)


@cases(hits=2)
def torch_sin_patched(trace):
    return trace(lambda x: torch.sin(x)), patch(torch, "sin", torch.cos)


@cases(hits=3)
def torch_relu_patched_below_functional(trace):
    return trace(lambda x: F.relu(x)), patch(torch, "relu", lambda x: x * 10)


@cases(hits=3)
def tensor_method_patched(trace):
    return trace(lambda x: x.relu()), patch(torch.Tensor, "relu", lambda self: self * 10)


@cases(hits=3)
def tensor_operator_patched(trace):
    return trace(lambda x: x + 1), patch(torch.Tensor, "__add__", lambda self, other: self * 10)


def module(name, **values):
    made = types.ModuleType(name)
    vars(made).update(values)
    sys.modules[name] = made
    return made


@cases(hits=2)
def attribute_of_a_module(trace):
    mod = module("lt_mod", k=2.0)
    return trace(lambda x: x * mod.k), around(lambda: setattr(mod, "k", 3.0), X())


@cases(hits=2)
def imported_inside(trace):
    mod = module("lt_mod", k=2.0)

    @trace
    def fn(x):
        import lt_mod

        return x * lt_mod.k

    return fn, around(lambda: setattr(mod, "k", 3.0), X())


@cases(hits=1)
def imported_inside_and_replaced(trace):
    first = module("lt_mod", k=2.0)

    @trace
    def fn(x):
        import lt_mod

        return x * lt_mod.k

    steps = around(lambda: module("lt_mod", k=3.0), X())
    return fn, steps, lambda: first.k


@cases(hits=1)
def imported_by_a_function_of_c_and_replaced(trace):
    first = module("lt_mod", k=2.0)
    steps = around(lambda: module("lt_mod", k=3.0), X())
    return trace(lambda x: x * __import__("lt_mod").k), steps, lambda: first.k


@cases(hits=1)
def imported_from_inside(trace):
    first = module("lt_mod", k=2.0)

    @trace
    def fn(x):
        from lt_mod import k

        return x * k

    return fn, around(lambda: module("lt_mod", k=3.0), X()), lambda: first.k


@cases(hits=2)
def module_getattr(trace):
    values = {"k": 2.0}
    mod = module("lt_mod", __getattr__=lambda name: values[name])
    return trace(lambda x: x * mod.k), around(lambda: values.update(k=3.0), X())


def reloadable(tmp, k):
    tmp.write_text(f"K = {k}\ndef f(x):\n    return x * K\n")
    importlib.invalidate_caches()


def test_reload(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def reload(trace):
        source = tmp_path / "lt_reloaded.py"
        reloadable(source, 2.0)
        sys.modules.pop("lt_reloaded", None)
        mod = importlib.import_module("lt_reloaded")

        def change():
            reloadable(source, 3.0)
            importlib.reload(mod)

        return trace(lambda x: mod.f(x)), around(change, X())

    check(reload, hits=2)


@cases(hits=1)
def sys_modules_entry(trace):
    module("lt_mod", k=2.0)
    steps = around(lambda: module("lt_mod", k=3.0), X())
    return trace(lambda x: x * sys.modules["lt_mod"].k), steps


@cases(eager="calls-unseen-function")
def globals_called(trace):
    reset()
    return trace(lambda x: x * globals()["SCALE"]), around(put(SCALE=3.0), X())


@cases(eager="tensor-escapes")
def print_options(trace):
    torch.set_printoptions(precision=4)
    change = lambda: torch.set_printoptions(precision=1)  # noqa: E731
    return trace(lambda x: f"{x}"), [
        *around(change, torch.tensor([1.23456])),
        lambda: torch.set_printoptions(profile="default"),
    ]


@cases(hits=2)
def warning_filters(trace):
    warnings.resetwarnings()
    warnings.simplefilter("ignore")

    @trace
    def fn(x):
        try:
            warnings.warn("careful", UserWarning, stacklevel=1)
        except UserWarning:
            return x * 10
        return x

    steps = around(lambda: warnings.simplefilter("error", UserWarning), X())
    return fn, steps


@cases(hits=2)
def recursion_limit(trace):
    start = sys.getrecursionlimit()
    steps = around(lambda: sys.setrecursionlimit(start + 1), X())
    return trace(lambda x: x * sys.getrecursionlimit()), [*steps, lambda: sys.setrecursionlimit(start)]


def deep(n):
    return n if n == 0 else deep(n - 1) + 1


# Some callers leave fewer frames than the recording had.
@cases(hits=2)
def limit_of_recursion_lowered(trace):
    start = sys.getrecursionlimit()

    def below(frames, x):
        return fn(x) if frames == 0 else below(frames - 1, x)

    def function(x):
        try:
            return x * deep(200)
        except RecursionError:
            return x - 1

    fn = trace(function)
    lower = start - 150

    def run(x, frames):
        sys.setrecursionlimit(start)
        used = len(inspect.stack(0))
        try:
            return below(lower - used - frames, x)
        finally:
            sys.setrecursionlimit(start)

    return run, [call(X(), frames) for frames in (600, 600, 100, 600, 100)]


@cases(eager="meets the limit of recursion")
def limit_of_recursion_met(trace):
    def fn(x):
        try:
            return x * deep(100_000)
        except RecursionError:
            return x - 1

    return trace(fn), [call(X()) for _ in range(4)]


def module_of(name, **values):
    module = types.ModuleType(name)
    module.__dict__.update(values)
    sys.modules[name] = module
    return module


# While it is replaced the call is eager, and counted.
@cases(hits=2, eager="replaced-import")
def importer_that_is_replaced(trace):
    module_of("lazytrace_imported", scale=2.0)
    other = types.SimpleNamespace(scale=9.0)
    own = builtins.__import__

    def fn(x):
        from lazytrace_imported import scale

        return x * scale

    def replace():
        builtins.__import__ = lambda name, *rest: other if name == "lazytrace_imported" else own(name, *rest)

    def restore():
        builtins.__import__ = own

    twice = [call(X()), call(X())]
    return trace(fn), [*twice, replace, *twice, restore, *twice]


@cases(hits=3)
def package_of_a_relative_import(trace):
    for name, scale in (("lazytrace_one", 2.0), ("lazytrace_two", 3.0)):
        module_of(name, __path__=[], inner=module_of(name + ".inner", scale=scale))
    space = {"__name__": "lazytrace_one.code", "__package__": "lazytrace_one", "__builtins__": builtins}
    exec(
        "def fn(x):\n from .inner import scale\n from . import inner\n return x * inner.scale + scale",
        space,
    )

    def move(package):
        return lambda: space.update(__package__=package)

    twice = [call(X()), call(X())]
    return trace(space["fn"]), [*twice, move("lazytrace_two"), *twice, move("lazytrace_one"), *twice]


@cases(eager="odd-package")
def package_that_is_not_named(trace):
    module_of("lazytrace_one", __path__=[], inner=module_of("lazytrace_one.inner", scale=2.0))
    space = {"__name__": "lazytrace_one.code", "__builtins__": builtins}
    exec("def fn(x):\n    from .inner import scale\n    return x * scale", space)
    return trace(space["fn"]), [call(X()), call(X())]


@cases(hits=2, eager="many-digits")
def longest_text_of_an_int(trace):
    most = sys.get_int_max_str_digits()
    number = types.SimpleNamespace(n=10**500)

    def fn(x):
        try:
            return x, len(str(number.n))
        except ValueError:
            return x + 1, 0

    def longer():
        number.n = 10**5000

    twice = [call(X()), call(X())]
    unlimited, limited = (lambda: sys.set_int_max_str_digits(0)), (lambda: sys.set_int_max_str_digits(most))
    return trace(fn), [*twice, unlimited, *twice, longer, *twice, limited, *twice]


@cases(eager="many-digits")
def longest_int_of_a_text(trace):
    most = sys.get_int_max_str_digits()

    def fn(x):
        try:
            return x, int("1" * 5000) % 7
        except ValueError:
            return x + 1, 0

    twice = [call(X()), call(X())]
    unlimited, limited = (lambda: sys.set_int_max_str_digits(0)), (lambda: sys.set_int_max_str_digits(most))
    return trace(fn), [*twice, unlimited, *twice, limited, *twice]


# Functions of C that make the text of an int, or the other way round, and are no str() or int().
LOOKS = {
    "json_writes": lambda number, text: len(json.dumps([number])),
    "json_reads": lambda number, text: json.loads(text) % 7,
    "map_of_int": lambda number, text: next(iter(map(int, [text]))) % 7,
    "new_of_int": lambda number, text: int.__new__(int, text) % 7,
    "repr_of_int": lambda number, text: len(number.__repr__()),
    "text_of_a_range": lambda number, text: len(str(range(number))),
    "text_of_a_slice": lambda number, text: len(repr(slice(number))),
}


def digits_limited(name):
    def make(trace):
        most, look = sys.get_int_max_str_digits(), LOOKS[name]
        number, text = 10**700, "1" * 700

        def fn(x):
            try:
                return x, look(number, text)
            except ValueError:
                return x + 1, 0

        twice = [call(X()), call(X())]
        tight, loose = (lambda: sys.set_int_max_str_digits(640)), (lambda: sys.set_int_max_str_digits(most))
        return trace(fn), [*twice, tight, *twice, loose, *twice]

    make.__name__ = name
    return make


for name in LOOKS:
    cases(digits_limited(name), eager="many-digits")


@cases.parametrize
def test_globals(make, expected):
    check(make, **expected)
