"""State that C code takes out of iterators, views and objects, without a Python frame that reads it."""

from __future__ import annotations

import array
import collections
import csv
import ctypes
import functools
import io
import itertools
import math
import operator
import struct
import types

import pytest
import torch

from tests.soundness.runner import X, agree, around, call, check

NS = types.SimpleNamespace


class Item:
    """Compares by a method of Python, which can be exchanged."""

    def __init__(self, v):
        self.v = v

    def __lt__(self, other):
        return self.v < other.v

    def __len__(self):
        return 2


def state():
    """Something of everything."""
    return NS(
        d={"a": [1, 2], "b": [3, 4]},
        o=[NS(l=[1, 2], s={1}), NS(l=[3, 4], s={2})],
        a=[1, 2],
        t=([1], [2]),
        dd=collections.defaultdict(list, {"a": [1]}),
        ud=collections.UserDict(a=[1, 2]),
        items=[Item(1), Item(2)],
    )


def evaluated(text, change):
    def make(trace):
        st = state()
        fn = eval(f"lambda x: {text}", {**globals(), "st": st})
        return trace(fn), around(lambda: change(st), X())

    return make


CONSUMED = {
    "x + 1 if any(st.d.values()) else x - 1": lambda st: (st.d["a"].clear(), st.d["b"].clear()),
    "x * sum(map(len, st.d.values()))": lambda st: st.d["a"].append(7),
    "x * max(st.d.values())[0]": lambda st: st.d["a"].__setitem__(0, 9),
    "x * sum(sum((o.l for o in st.o), []))": lambda st: st.o[0].l.__setitem__(0, 9),
    "x * sum(p * q for p, q in zip(*(o.l for o in st.o)))": lambda st: st.o[0].l.__setitem__(0, 9),
    "x + 1 if 9 in set().union(*(o.s for o in st.o)) else x - 1": lambda st: st.o[0].s.add(9),
    "x * sum(itertools.chain(*(o.l for o in st.o)))": lambda st: st.o[0].l.__setitem__(0, 9),
    "x * sum(itertools.chain.from_iterable(st.d.values()))": lambda st: st.d["a"].__setitem__(0, 9),
    "x * ord(sorted(st.d.items(), key=lambda kv: kv[1])[0][0])": lambda st: st.d["a"].__setitem__(0, 9),
    "x * sum(t[0] for t in map(tuple, st.d.values()))": lambda st: st.d["a"].__setitem__(0, 9),
    "x + 1 if st.a in ([1, 2], [5, 6]) else x - 1": lambda st: st.a.__setitem__(0, 9),
    "x * len(str(st.d.values()))": lambda st: st.d["a"].append(7),
    "x * len('%(a)s' % st.ud)": lambda st: st.ud.data.__setitem__("a", [1.0, 2]),
    "x * functools.reduce(lambda p, q: p + q, [o.l for o in st.o])[0]": lambda st: st.o[0].l.__setitem__(
        0, 9
    ),
    "x * max(st.t, key=lambda t: t)[0]": lambda st: st.t[1].__setitem__(0, 9),
    "x * list(filter(lambda v: v, st.d.values()))[0][0]": lambda st: st.d["a"].__setitem__(0, 9),
    "x * len(list(itertools.groupby(st.o, key=lambda o: o.l)))": lambda st: setattr(st.o[1], "l", [1, 2]),
    "x * min(st.items).v": lambda st: setattr(Item, "__lt__", lambda s, o: s.v > o.v),
    "x * sum(map(len, st.items))": lambda st: setattr(Item, "__len__", lambda s: 7),
    "x * operator.length_hint(st.items[0])": lambda st: setattr(Item, "__len__", lambda s: 7),
}


@pytest.mark.parametrize("text", CONSUMED)
def test_what_c_code_takes_is_guarded(text, monkeypatch):
    for name in ("__lt__", "__len__"):
        monkeypatch.setattr(Item, name, Item.__dict__[name])  # put back afterwards

    def fresh(st):
        CONSUMED[text](st)

    def make(trace):
        Item.__lt__, Item.__len__ = (lambda s, o: s.v < o.v), (lambda s: 2)
        return evaluated(text, fresh)(trace)

    check(make, hits=2)


class Counts(itertools.count):
    """An iterator of C with a class of Python."""


ITERATORS = {
    "csv reader": (lambda: csv.reader(io.StringIO("1\n2\n3\n4\n")), "float(next(it)[0])"),
    "struct": (lambda: struct.iter_unpack("f", struct.pack("4f", 1, 2, 3, 4)), "next(it)[0]"),
    "array": (lambda: iter(array.array("d", [1, 2, 3, 4])), "next(it)"),
    "subclass of count": (lambda: Counts(1), "next(it)"),
    "kept chain": (lambda: itertools.chain([1, 2], [3, 4, 5]), "next(it)"),
    "kept zip": (lambda: zip([1, 2, 3, 4], [5, 6, 7, 8], strict=True), "next(it)[0]"),
}


@pytest.mark.parametrize("name", ITERATORS)
def test_iterators_of_c_advance_at_each_call(name):
    build, text = ITERATORS[name]

    def make(trace):
        fn = eval(f"lambda x: x * {text}", {"it": build()})
        return trace(fn), [call(X())] * 3

    tracer = agree(make)  # what is next is compared
    assert not tracer.count("hits")


def reads_through(text):
    """A dict that changes, read through a proxy or a view that was there before."""

    def make(trace):
        d = {"a": 2.0}
        fn = eval(f"lambda x: x * {text}", {"p": types.MappingProxyType(d), "v": d.keys()})
        return trace(fn), around(lambda: d.update(a=5.0, b=1.0), X())

    return make


@pytest.mark.parametrize("text", ["p.get('a')", "sum(p.values())", "p.copy()['a']", "len(p)", "len(v)"])
def test_kept_proxies_show_their_dict(text):
    check(reads_through(text), hits=2)


def test_kept_views_that_c_code_has_are_not_replayed():
    check(reads_through("(1 + v.isdisjoint({'b'}))"), eager="reads a ")


def test_the_factory_of_a_defaultdict_shows_in_its_text():
    def make(trace):
        st = state()
        fn = trace(lambda x: x * len(repr(st.dd)))
        return fn, around(lambda: setattr(st.dd, "default_factory", None), X())

    check(make, hits=2)


def test_what_a_format_asks_for_is_not_replayed():
    def make(trace):
        o = NS(k=2.0)
        fn = trace(lambda x: x * float("{0.k}".format(o)))  # noqa: UP030, UP032
        return fn, around(lambda: setattr(o, "k", 3.0), X())

    check(make, eager="asks an object for its attributes")


def test_memory_behind_a_pointer_is_not_replayed():
    def make(trace):
        p = ctypes.pointer(ctypes.c_float(2.0))
        return trace(lambda x: x * p.contents.value), around(lambda: setattr(p.contents, "value", 3.0), X())

    check(make, eager="reads .contents of a ")


class Plain:
    """No special method of its own, at first."""

    def __init__(self, v):
        self.v = v


SPECIALS = {
    "__eq__": ("(1 + (k != l[1]))", lambda s, o: True, lambda s, o: False),
    "__str__": ("float('%s' % k)", lambda s: "2", lambda s: "3"),
    "__floor__": ("math.floor(k)", lambda s: 2, lambda s: 3),
    "__add__": ("operator.add(k, 1)", lambda s, o: 2, lambda s, o: 3),
    "__radd__": ("(1 + k)", lambda s, o: 2, lambda s, o: 3),
    "__index__": ("[1.0, 2.0, 3.0][k]", lambda s: 1, lambda s: 2),
    "__contains__": ("(1 + (3 in k))", lambda s, o: True, lambda s, o: False),
    "__bool__": ("(1 if not k else 2)", lambda s: True, lambda s: False),
    "__getitem__": ("sum(k)", lambda s, i: [1, 2][i], lambda s, i: [1, 2, 3][i]),
}


@pytest.mark.parametrize("name", SPECIALS)
def test_special_methods_are_guarded_on_the_class(name):
    text, before, after = SPECIALS[name]

    def make(trace):
        cls = type("Special", (Plain,), {name: before})
        things = [cls(1), cls(2)]
        scope = {"k": things[0], "l": things, "math": math, "operator": operator}
        return trace(eval(f"lambda x: x * {text}", scope)), around(lambda: setattr(cls, name, after), X())

    check(make, hits=2)


@pytest.mark.parametrize(
    ("name", "text", "method"),
    [
        ("__call__", "callable(k)", lambda s: 1),
        ("__bool__", "bool(k)", lambda s: False),
        ("__len__", "bool(k)", lambda s: 0),
        ("__eq__", "k == 3", lambda s, o: True),
        ("__eq__", "k in [3]", lambda s, o: True),
    ],
)
def test_special_methods_that_were_not_there_are_guarded(name, text, method):
    def make(trace):
        cls = type("Special", (Plain,), {})
        fn = eval(f"lambda x: x + 1 if {text} else x - 1", {"k": cls(1)})
        return trace(fn), around(lambda: setattr(cls, name, method), X())

    check(make, hits=2)


def test_a_check_for_instances_that_is_added_later():
    def make(trace):
        meta = type("Meta", (type,), {})
        base = meta("Base", (), {})
        fn = trace(lambda x: x + 1 if isinstance(x, base) else x - 1)
        return fn, around(lambda: setattr(meta, "__instancecheck__", lambda c, o: True), X())

    check(make, hits=2)


def test_a_method_of_tensor_that_is_replaced(monkeypatch):
    def make(trace):
        monkeypatch.undo()
        return trace(lambda x: x * len(x)), around(
            lambda: monkeypatch.setattr(torch.Tensor, "__len__", lambda s: 7), X()
        )

    check(make, hits=2)


def test_a_builtin_as_a_special_method_is_not_replayed():
    def make(trace):
        ok = {"a"}
        c = type("Special", (), {"__contains__": ok.__contains__})()
        return trace(lambda x: x + 1 if "b" in c else x - 1), around(lambda: ok.add("b"), X())

    check(make, eager="looks up __contains__")


class Loud(tuple):
    """Counts what is asked of it."""

    asked = 0

    def __len__(self):
        raise NotImplementedError

    def __iter__(self):
        type(self).asked += 1
        return tuple.__iter__(self)


def test_nothing_is_asked_of_an_object_that_the_function_does_not_ask():
    def make(trace):
        Loud.asked = 0
        pair = Loud((1, 2))

        def fn(x):
            a, b = pair
            return x * a + b

        return trace(fn), [call(X())] * 3, lambda: Loud.asked

    check(make, hits=2)


# ---------------------------------------------------------------- texts of callables
HELD = {
    "partial": lambda cls: functools.partial(len, cls),
    "partial by keyword": lambda cls: functools.partial(sorted, key=cls),
    "partial of a class": lambda cls: functools.partial(cls),
    "partial of a partial's list": lambda cls: functools.partial(len, [functools.partial(len, cls)]),
    "getter": lambda cls: operator.itemgetter(cls, 0),
    "caller": lambda cls: operator.methodcaller("run", cls),
    "method of a slot": lambda cls: cls().__init__,
    "method of C": lambda cls: type("Under", (cls, list), {})().append,
    "in a list": lambda cls: [functools.partial(len, cls)],
    "in a dict": lambda cls: {"a": cls().__repr__},
}


@pytest.mark.parametrize("written", [ascii, repr, str, "{}".format], ids=["ascii", "repr", "str", "format"])
@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("passed", [True, False], ids=["passed", "in state"])
def test_names_of_classes_in_the_texts_of_callables(held, written, passed):
    def make(trace):
        class Short:
            pass

        kept = HELD[held](Short)
        named = type(kept.__self__) if held == "method of C" else Short

        def fn(x, given):
            return x + len(written(given if passed else kept))

        def rename():
            named.__name__ = named.__qualname__ = named.__name__ + "er"

        x = [call(X(), kept if passed else None)] * 3
        return trace(fn), [*x, rename, *x, rename, *x], lambda: None

    if held in ("getter", "caller", "method of C"):
        check(make, eager="to C code")
    elif passed and (held.startswith("partial") or held == "in a list"):
        check(make, eager="reads a dict of unknown origin")  # of its keywords
    else:
        check(make, hits=6)


class Table(dict):
    """Made by C code, as a dict is."""


class Words(str):
    """The same of a text."""


class Kept(filter):
    """What comes next is worked out by C code."""


class While(itertools.takewhile):
    """The same."""


class Listed:
    """Says which keys it has by a list that somebody else holds, and what it is by a number."""

    def __init__(self, keys):
        self._keys, self.scale = keys, 1.5

    def keys(self):
        return self._keys

    def __getitem__(self, key):
        return 2

    def __str__(self):
        return f"<{self.scale}>"


# What a class of Python's hands to its base in C is looked at there, as if the base itself were called.
BY_THE_BASE = {
    "x * sum(Table(listed).values())": lambda listed, flags: listed._keys.append("b"),
    "x * sum([v for v in Kept(lambda v: flags, [1.0, 2.0])])": lambda listed, flags: flags.clear(),
    "x * sum([v for v in While(lambda v: flags, [1.0, 2.0])])": lambda listed, flags: flags.clear(),
    "x * len(Words(listed))": lambda listed, flags: setattr(listed, "scale", listed.scale + 10),
}


@pytest.mark.parametrize("text", BY_THE_BASE)
def test_a_class_leaves_it_to_its_base_in_c(text):
    def make(trace):
        listed, flags = Listed(["a"]), [1]
        fn = eval(f"lambda x: {text}", {**globals(), "listed": listed, "flags": flags})
        change = functools.partial(BY_THE_BASE[text], listed, flags)
        return trace(fn), [*around(change, X()), change, call(X()), call(X())]

    check(make, hits=2)
