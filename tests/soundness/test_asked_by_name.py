"""What C code asks an object for by its name: attributes of functions, methods of mappings, what `*` passes.

No instruction shows these reads. Each row is state, an expression that reads it, and a change that shows in
what the expression gives; `EAGER` has those whose calls cannot be judged.
"""

from __future__ import annotations

import collections
import copy
import functools
import inspect
import itertools
import json
import math
import operator
import types

import pytest

from tests.soundness.runner import X, around, check

NAMES = {
    module.__name__: module
    for module in (collections, copy, functools, inspect, itertools, json, math, operator, types)
}


def evaluated(setup, text, change):
    def make(trace):
        names = dict(NAMES, __name__="asked")
        exec(setup, names)
        fn = eval(f"lambda x: (x * 2, {text})", names)
        return trace(fn), around(lambda: exec(change, names), X())

    return make


FUNCTION = "def s(y): return y"
TWIN = FUNCTION + "\nother = types.FunctionType(s.__code__, s.__globals__, 'other')\nother.__doc__ = 'text'"
METHOD = """
class C:
    def m(self): return 1
    @classmethod
    def c(cls): return 2
class D(C):
    def up(self): return super().m
c, d = C(), D()
other = types.FunctionType(C.m.__code__, C.m.__globals__, 'other')
other.v = 3
"""
DISPATCHED = "class C: m = functools.singledispatch(lambda y: y)\nc = C()"
MAPPING = "class Sub(dict): pass\ns = Sub(a=1)\nitems = lambda *s: [('b', 5)]"
COUNTER = "class Sub(collections.Counter): pass\nget = lambda s, k, d=None: 5"
MATCHED = "\ndef read(s):\n    match s:\n        case {'a': value}: return value"
ITERABLE = """
class Sub:
    def __iter__(self): return iter([('a', 1)])
    def __getitem__(self, k): return 7
s = Sub()
keys = lambda *s: ['b']
def entered(d, s):
    d.update(s)
    return d
def merged(d, s):
    d |= s
    return d
"""
LISTS = "a, b = [1, 2], [3, 4]\nd = {'a': a, 'b': b}"
POINT = "class P: v = 1\np = P()\np.w = 5\nd = {0: p, 1: 'w'}"

REPLAYED = [
    # of bound methods, which ask their functions
    (DISPATCHED, "hasattr(c.m, 'v')", "C.__dict__['m'].v = 3"),
    (METHOD, "hasattr(c.m, 'v')", "C.m.v = 3"),
    (METHOD, "hasattr(c.m, 'v')", "C.m = other"),
    (METHOD, "getattr(c.m, 'v', 0)", "C.m = other"),
    (METHOD, "c.m.__name__", "C.m = other"),
    (METHOD, "c.m.__name__", "C.m.__name__ = 'n'"),
    (METHOD, "c.m.__doc__", "C.m.__doc__ = 'text'"),
    (METHOD, "c.m.__dict__", "C.m.v = 3"),
    (METHOD, "vars(c.m)", "C.m = other"),
    (METHOD, "c.m.__annotations__", "C.m.__annotations__ = {'a': 1}"),
    (METHOD, "operator.attrgetter('__name__')(c.m)", "C.m = other"),
    (METHOD, "functools.wraps(c.m)(lambda: 0).__name__", "C.m = other"),
    (METHOD, "inspect.getdoc(c.m)", "C.m.__doc__ = 'text'"),
    (METHOD, "getattr(C.c, 'v', 0)", "C.c.__func__.v = 3"),
    (METHOD, "d.up().__name__", "C.m = other"),
    (TWIN, "types.MethodType(s, 3).__name__", "s = other"),
    # what decorators of C copy
    (TWIN, "staticmethod(s).__name__", "s = other"),
    (TWIN, "classmethod(s).__name__", "s = other"),
    (TWIN, "staticmethod(s).__doc__", "s = other"),
    (TWIN, "property(s).__doc__", "s = other"),
    (TWIN, "property(lambda q: 0).getter(s).__doc__", "s = other"),
    (FUNCTION, "property(lambda q: 0, s).__isabstractmethod__", "s.__isabstractmethod__ = True"),
    (FUNCTION + "\nfrom abc import ABCMeta", "ABCMeta('Q', (), {'m': s}).__abstractmethods__",
     "s.__isabstractmethod__ = True"),
    # of functions
    *((TWIN, f"s.{name}", f"other.{name} = {value}\ns = other") for name, value in (
        ("__name__", "'n'"), ("__qualname__", "'n'"), ("__doc__", "'n'"), ("__module__", "'n'"),
        ("__annotations__", "{'y': 1}"), ("__kwdefaults__", "{'y': 1}"), ("__dict__", "{'y': 1}"))),
    (FUNCTION, "hasattr(s, 'v')", "s.v = 3"),
    (FUNCTION, "vars(s)", "s.v = 3"),
    # methods of mappings
    (MAPPING, "json.dumps([s])", "Sub.items = items"),
    (MAPPING, "json.dumps(s)", "s.items = items"),
    ("s = collections.OrderedDict(a=1)", "json.dumps(s)", "s.items = lambda: [('b', 5)]"),
    (MAPPING + MATCHED, "read(s)", "Sub.get = lambda s, k, d=None: 5"),
    (MAPPING + MATCHED, "read(s)", "s.get = lambda k, d=None: 5"),
    ("s = collections.UserDict(a=1)" + MATCHED, "read(s)", "s.get = lambda k, d=None: 5"),
    (COUNTER, "Sub('abab')", "Sub.get = get"),
    (ITERABLE, "dict(s)", "Sub.keys = keys"),
    (ITERABLE, "dict(s)", "s.keys = keys"),
    (ITERABLE, "collections.OrderedDict(s)", "s.keys = keys"),
    (ITERABLE, "collections.OrderedDict(s)", "Sub.items = lambda s: [('q', 8)]"),
    (ITERABLE, "collections.defaultdict(int, s)", "s.keys = keys"),
    (ITERABLE, "entered({}, s)", "s.keys = keys"),
    (ITERABLE, "entered(collections.OrderedDict(), s)", "Sub.items = lambda s: [('q', 8)]"),
    (ITERABLE, "merged({}, s)", "s.keys = keys"),
    # what stands behind `*`
    *((LISTS, text, "a[0] = 9") for text in (
        "max(*d.values())", "operator.add(*d.values())", "list(itertools.product(*d.values()))[0]",
        "'{} {}'.format(*d.values())", "math.dist(*d.values())", "operator.lt(*iter(d.values()))",
        "max(*collections.OrderedDict(d).values())", "max(*(q for q in [a, b]))", "max(*map(list, [a, b]))")),
    *((LISTS, text, "a[0] = True") for text in (
        "set().union(*d.values())", "set().union(*iter(d.values()))", "operator.concat(*d.values())",
        "functools.partial(operator.add, *d.values())()")),
    *(("a = [1, 2]\nd = {'a': a}", text, "a[:] = [0]") for text in (
        "len(*d.values())", "any(*d.values())", "str(*d.values())", "sorted(*iter(d.values()))",
        "set(*d.values())", "hash(tuple(*d.values()))", "operator.length_hint(*d.values())")),
    ("a = [1, 2]\nd = {'a': a}", "bool(*d.values())", "a.clear()"),
    ("a = [1, 2]", "operator.getitem(*{0: a, 1: 0}.values())", "a[0] = 9"),
    (POINT, "getattr(*d.values())", "p.w = 6"),
    (POINT, "hasattr(*d.values())", "del p.w"),
    (POINT, "object.__getattribute__(*d.values())", "p.w = 6"),
    ("d = {'a': 1}", "d.get(*{'a'})", "d['a'] = 5"),
    ("d = {'a': 1}", "d.get(*'a')", "d['a'] = 5"),
    ("d = {'a': 1}", "d.get(*map(str, ['a']))", "d['a'] = 5"),
    ("class P: pass\nclass Q(P): pass\nclass R: pass", "issubclass(*iter([Q, P]))", "Q.__bases__ = (R,)"),
    ("a = [1]", "(a.append(*iter([3])), len(a))[1]", "pass"),
    (POINT, "(setattr(*iter([p, 'w', p.w * 2])), p.w)[1]", "pass"),
]  # fmt: skip

COPIED = [
    (MAPPING, "copy.copy(s)", "Sub.items = items"),
    (MAPPING, "copy.deepcopy([s])", "Sub.items = items"),
    (MAPPING, "list(s.__reduce_ex__(4)[4])", "Sub.items = lambda s: iter([('b', 5)])"),
]

EAGER = [
    # a function of C that is handed what nobody sees
    (POINT, "getattr(*map(lambda q: q, d.values()))", "p.w = 6", "hands getattr() to C code"),
    (POINT, "getattr(*(q for q in d.values()))", "p.w = 6", "hands getattr() to C code"),
    (POINT, "list(map(functools.partial(getattr, p), ['w']))", "p.w = 6", "hands getattr() to C code"),
    (POINT, "functools.partial(getattr, p)(*map(str, ['w']))", "p.w = 6", "hands getattr() to C code"),
    (POINT, "sorted('vw', key=functools.partial(getattr, p))", "p.w = 0", "hands getattr() to C code"),
    ("a = [1]", "(operator.iadd(*iter([a, [1]])), len(a))[1]", "pass", "calls iadd() on a list"),
    # a method of C that C code calls
    (MAPPING, "(setattr(s, 'items', [('b', 5)].copy), json.dumps(s))[1]", "pass",
     "looks up items of a Sub, which is a builtin_function_or_method"),
]  # fmt: skip


@pytest.mark.parametrize("row", REPLAYED, ids=lambda row: f"{row[1]} after {row[2]}")
def test_what_is_asked_for_by_name_is_guarded(row):
    check(evaluated(*row), hits=2)


@pytest.mark.parametrize("row", COPIED, ids=lambda row: f"{row[1]} after {row[2]}")
def test_what_a_copy_asks_for_is_guarded(row):
    check(evaluated(*row), hits=1, eager="calls .__reduce_ex__()")  # behind the change


@pytest.mark.parametrize("row", EAGER, ids=lambda row: f"{row[1]} after {row[2]}")
def test_what_nobody_sees_is_not_replayed(row):
    *row, reason = row
    check(evaluated(*row), eager=reason)
