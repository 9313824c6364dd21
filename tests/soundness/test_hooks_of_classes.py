"""What the interpreter calls by itself: constructors and hooks of classes, exceptions that are raised."""

from __future__ import annotations

import gc

import pytest

from lazytrace import traced
from tests.soundness.runner import X
from tests.soundness.small_programs import row

CLASS = "class K: pass\n"
# CPython leaves a slot as it is: a class that inherits the `__new__` of `object` takes no arguments any more.
DELETED_NEW = "K.__new__ = lambda c, *given: object.__new__(c)\ndel K.__new__"
INIT = "class K:\n    def __init__(self, n=1): self.n = n\nclass L(K): pass"
ERROR = "class E(Exception): pass\n"
LENGTH = "\nn, t = 0, s.__traceback__\nwhile t: n, t = n + 1, t.tb_next\ns.n = n"

HOOKS = [
    row(
        "__init__ of C",
        f"s = []\n{CLASS}K.__init__ = s.append",
        "K(3)\nreturn x * 2",
        "s.clear()",
        eager="special-in-c",
    ),
    row(
        "__new__ of C",
        f"s = []\n{CLASS}K.__new__ = functools.partial(s.append)",
        "K()\nreturn x * 2",
        "s.clear()",
        eager="special-in-c",
    ),
    row("a __new__ that comes and goes", INIT, "x * K(3).n", DELETED_NEW, hits=1, eager="raised TypeError"),
    row("a __new__ of a base, too", INIT, "x * L(3).n", DELETED_NEW, hits=1, eager="raised TypeError"),
    row("without arguments", INIT, "x * K().n", DELETED_NEW, hits=2),
    row("that went before", f"{INIT}\n{DELETED_NEW}", "x * K().n", "K.__new__ = lambda c: 3", hits=1),
    row(
        "where the exception is caught",
        INIT,
        "try:\n    return x * K(3).n\nexcept TypeError:\n    return x - 1",
        DELETED_NEW,
        "K.__new__ = lambda c, *given: object.__new__(c)",
        hits=3,
    ),
    row(
        "a __new__ of a dict",
        f"{CLASS}class D(dict): pass",
        "x * D(a=2)['a']",
        DELETED_NEW.replace("K", "D").replace("object", "dict"),
        hits=2,
    ),
    row(
        "__init_subclass__ of C",
        f"s = []\n{CLASS}K.__init_subclass__ = functools.partial(s.append, 3)",
        "class L(K): pass\nreturn x * 2",
        "s.clear()",
        eager="special-in-c",
    ),
    row(
        "__class_getitem__ of C",
        f"d = {{1: 2}}\n{CLASS}K.__class_getitem__ = d.get",
        "x * K[1]",
        "d[1] = 5",
        eager="special-in-c",
    ),
    row(
        "__class_getitem__ of Python",
        f"{CLASS}K.__class_getitem__ = classmethod(lambda c, i: i)",
        "x * K[2]",
        "K.__class_getitem__ = classmethod(lambda c, i: i * 2)",
        hits=2,
    ),
    row(
        "__set_name__ of C",
        "s = {}\nclass D: pass\nD.__set_name__ = s.setdefault",
        "class L: a = D()\nreturn x * len(s)",
        "s.clear()",
        eager="special-in-c",
    ),
    row(
        "a static method of C",
        f"l = [1]\n{CLASS}K.__len__ = staticmethod(l.__len__)",
        "x * len(K())",
        "l.append(2)",
        eager="special-in-c",
    ),
    row(
        "a static method of Python",
        f"{CLASS}K.__len__ = staticmethod(lambda: 2)\nk = K()",
        "x * len(k)",
        "K.__dict__['__len__'].__init__(lambda: 3)",
        hits=2,
    ),
    row(
        "a class that is raised",
        ERROR,
        "try: raise E\nexcept E as e: return x * len(e.args)",
        "E.__init__ = lambda s: setattr(s, 'args', (1, 2))",
        "del E.__init__",
        hits=3,
    ),
    row(
        "a class that is a cause",
        ERROR,
        "try: raise KeyError from E\nexcept KeyError as e: return x * len(e.__cause__.args)",
        "E.__init__ = lambda s: setattr(s, 'args', (1, 2))",
        hits=2,
    ),
    row(
        "a class that ends a loop",
        "s = []\nclass E(StopIteration): pass\nclass I:\n    def __iter__(self): return self\n"
        "    def __next__(self): raise E",
        "x * len([*I()])",
        "E.__init__ = lambda e: s.append(1)",
        hits=1,
    ),
    row(
        "an exception of state",
        "s = KeyError(1)",
        "try: raise s\nexcept KeyError: return x * 2",
        LENGTH,
        LENGTH,
        eager="raises-kept",
    ),
    row(
        "its context",
        "s = KeyError(1)",
        "try:\n    try: raise ValueError(3)\n    except ValueError: raise s\nexcept KeyError: return x * 2",
        "s.__context__ = None",
        "s.n = str(s.__context__)",
        eager="raises-kept",
    ),
    row(
        "exceptions in a list",
        "s = KeyError(1)\nl = [s]",
        "for e in l:\n    try: raise e\n    except KeyError: pass\nreturn x * 2",
        LENGTH,
        LENGTH,
        eager="raises-kept",
    ),
    row(
        "an exception of the call",
        "",
        "try:\n    try: raise KeyError(2)\n    except KeyError as e: raise e\n"
        "except KeyError as e: return x * e.args[0]",
        "pass",
        hits=3,
    ),
    row(
        "a cause of state",
        "s = KeyError(1)",
        "try: raise ValueError(2) from s\nexcept ValueError as e: return x * len(e.__cause__.args)",
        "s.args = (1, 2)",
        hits=2,
    ),
    row(
        "__getattr__ of a module",
        "m = types.ModuleType('m')",
        "x * getattr(m, 'v', 2)",
        "m.__getattr__ = lambda n: 5",
        "del m.__getattr__",
        hits=3,
    ),
]


@pytest.mark.parametrize("program", HOOKS)
def test_hooks(program):
    program.check()


@pytest.mark.parametrize("enabled", [True, False])
def test_collecting_garbage_is_as_the_function_finds_and_leaves_it(enabled):
    found = []

    @traced
    def fn(x):
        found.append(gc.isenabled())
        gc.disable() if enabled else gc.enable()
        return x * 2

    try:
        for _ in range(3):
            gc.enable() if enabled else gc.disable()
            fn(X())
            assert gc.isenabled() is not enabled
    finally:
        gc.enable()
    assert found == [enabled] * 3
