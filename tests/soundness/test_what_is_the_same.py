"""Which objects are one and which are not, and which values are interchangeable."""

from __future__ import annotations

import contextvars
import operator
import re
import types
import weakref

import numpy as np
import pytest
import torch
import torch.nn as nn

from lazytrace import traced
from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()
NS = types.SimpleNamespace


class P:
    """Equal to nothing but itself."""


def compared(text, change):
    def make(trace):
        a, b, c = P(), P(), P()
        st = NS(o=b, d=a, l=[c, b])
        fn = eval(f"lambda x: {text}", {"st": st, "a": a, "c": c})
        return trace(fn), around(lambda: change(st, a), X())

    return make


def become(st, a):
    st.o = a


def enter(st, a):
    st.l[0] = a


COMPARED = [
    ("x + 1 if st.o == st.d else x - 1", become),
    ("x + 1 if st.o != st.d else x - 1", become),
    ("x + 1 if st.o is st.d else x - 1", become),
    ("x + 1 if st.d in st.l else x - 1", enter),
    ("x + 1 if st.o in (a, c) else x - 1", become),
    ("x * len({*st.l, st.d})", enter),
    ("x * len({st.o: 1, st.d: 2})", become),
    ("x * st.l.count(st.d)", enter),
    ("x + 1 if [st.o] == [st.d] else x - 1", become),
    ("x * {st.o: 5}.get(st.d, 1)", become),
]


@pytest.mark.parametrize(("text", "change"), COMPARED, ids=[text for text, _ in COMPARED])
def test_objects_that_were_different_must_be_so_again(text, change):
    check(compared(text, change), hits=2)


@cases(hits=1)
def a_layer_that_is_skipped(trace):
    class N(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Tanh(), nn.Tanh()])
            self.skip = [nn.Tanh()]

        def forward(self, x):
            for layer in self.layers:
                if layer not in self.skip:
                    x = layer(x) + 1
            return x

    n = N()
    return trace(n), around(lambda: n.skip.__setitem__(0, n.layers[0]), X())


@cases(hits=1)
def an_argument_that_is_in_state(trace):
    a, b = P(), P()
    st = NS(d=a)
    return trace(lambda x, o: x + 1 if o == st.d else x - 1), [call(X(), b), call(X(), b), call(X(), a)]


@cases(hits=2)
def exceptions_that_are_caught(trace):
    st = NS(e=(KeyError,))

    def fn(x):
        try:
            raise KeyError
        except st.e:
            return x + 1
        except Exception:
            return x - 1

    def change():
        st.e = (ValueError,)

    return trace(fn), around(change, X())


@cases(eager="compares the identity of two values of type int")
def identity_of_numbers(trace):
    n, m = int("1000"), int("1000")
    fn = trace(lambda x, a, b: x + 1 if a is b else x - 1)
    return fn, [call(X(), n, n), call(X(), n, m), call(X(), n, n)]


@cases(hits=2)
def parameters_as_keys(trace):
    net = nn.Linear(3, 3)
    seen = NS(p=net.bias)

    def fn(x):
        return net(x) * len({*net.parameters(), seen.p})

    def change():
        seen.p = nn.Parameter(torch.ones(3))

    return trace(fn), around(change, X())


EQUAL = {
    "frozenset of another type": (lambda x, v: (x * next(iter(v))).dtype, frozenset({1}), frozenset({1.0})),
    "order of a frozenset": (lambda x, v: x * next(iter(v)), frozenset([8, 0]), frozenset([0, 8])),
    "range": (lambda x, v: x * v.stop, range(0, 3, 2), range(0, 4, 2)),
    "unit of a date": (lambda x, v: x * len(str(v)), np.datetime64(5, "D"), np.datetime64(5, "s")),
    "sign of nan": (lambda x, v: x * len(str(np.signbit(v))), float("nan"), -float("nan")),
    "tuple of another type": (lambda x, v: (x * v[0]).dtype, (1,), (1.0,)),
}


@pytest.mark.parametrize("name", EQUAL)
def test_values_that_are_equal_are_not_the_same(name):
    use, *values = EQUAL[name]

    def make(trace):
        st = NS(v=values[0])

        def change():
            st.v = values[1]

        def fn(x):
            return use(x, st.v)

        return trace(fn), [call(torch.arange(3)), change, call(torch.arange(3))]

    if name == "unit of a date":  # numpy may warn where it computes
        return check(make, eager="computes with a datetime64")
    check(make, recordings=0) if name == "sign of nan" else check(make, recordings=2)


@pytest.mark.parametrize("name", ["order of a frozenset", "range", "tuple of another type"])
def test_arguments_that_are_equal_are_not_the_same(name):
    use, *values = EQUAL[name]

    def make(trace):
        return trace(use), [call(torch.arange(3), v) for v in values]

    check(make, recordings=2)


@cases.parametrize
def test_what_is_the_same(make, expected):
    check(make, **expected)


class Q:
    """Another class."""


# Objects of C that cannot be referenced weakly: one, another, and what is read of them.
EXCHANGED = {
    "groups of a match": (re.match("(a)(b)?", "ab"), re.match("(a)(b)?", "ac"), lambda s: s.groups()),
    "span of a match": (re.match("a.", "ab"), re.match("a.?", "a"), lambda s: s.span()),
    "a union": (int | str, int | float, lambda s: isinstance(1.5, s)),
    "a union of classes": (P | int, P | Q, lambda s: isinstance(Q(), s)),
}


@pytest.mark.parametrize("name", EXCHANGED)
def test_an_object_that_is_exchanged_for_another(name):
    one, other, read = EXCHANGED[name]
    st = NS(s=one)
    fn = traced(lambda x: (x * 2, read(st.s)))
    assert read(one) != read(other)
    for value in (one, one, other, other, one):
        st.s = value
        assert fn(X())[1] == read(value)
    assert fn.stats().hits >= 2
    assert not fn.stats().eager


def test_a_context_variable_that_is_set_after_its_default_was_asked_for():
    variable = contextvars.ContextVar("variable", default=(1, 2))
    fn = traced(lambda x: (x * 2, variable.get(5)))
    assert [fn(X())[1] for _ in range(3)] == [5, 5, 5]
    token = variable.set([7])
    assert fn(X())[1] == [7]
    variable.reset(token)
    assert fn(X())[1] == 5
    assert fn.stats().hits >= 2


def test_references_to_other_objects():
    a, b = P(), P()
    st = NS(s=weakref.ref(a))
    fn = traced(lambda x: x + 1 if st.s == weakref.ref(a) else x - 1)
    assert [torch.equal(fn(X()), X() + 1) for _ in range(3)] == [True] * 3
    st.s = weakref.ref(b)
    assert torch.equal(fn(X()), X() - 1)
    assert fn.stats().hits >= 2


def test_a_super_that_is_exchanged_for_another():
    class Made:
        def base(self):
            return super()

    one, other = Made(), Made()
    st = NS(s=one.base())
    fn = traced(lambda x: x + 1 if st.s.__self__ is one else x - 1)
    assert [torch.equal(fn(X()), X() + 1) for _ in range(2)] == [True] * 2
    st.s = other.base()
    assert torch.equal(fn(X()), X() - 1)


def test_the_id_of_a_tensor_that_was_hashed_before():
    # A key is compared with others: which tensor it is does not matter. Of an id that is read it does.
    def fn(x):
        return x * len({x: 1}) + id(x) % 9973

    traces = [traced(fn), traced(fn)]
    kept = [X() for _ in range(4)]
    assert all(torch.equal(traces[0](x), fn(x)) for x in kept)
    assert all(torch.equal(traces[1](kept[0]), fn(kept[0])) for _ in range(3))
    assert traces[1].stats().hits == 2


# Small ints are one object each, whatever they were counted from.
NUMBERS_AS_OBJECTS = [
    "operator.is_(len(x), len(y))",
    "operator.is_(*[len(x), len(y)])",
    "operator.is_(len(x), 3)",
    "operator.is_(x.shape[0], x.size(0))",
    "operator.is_not(len(x), y.shape[0])",
    "len(x) is y.shape[0]",
]


@pytest.mark.parametrize("text", NUMBERS_AS_OBJECTS)
def test_which_object_a_size_is(text):
    def make(trace):
        fn = eval(f"lambda x, y: (x.sum() + y.sum(), {text})", {"operator": operator})
        sizes = [(3, 3), (2, 3), (4, 4), (4, 4), (300, 300), (4, 5), (3, 3), (3, 4)]
        return trace(fn), [call(torch.ones(n), torch.ones(m)) for n, m in sizes]

    check(make, hits=1)


def test_the_id_of_a_size():
    def make(trace):
        def fn(x, y):
            return x.sum(), id(len(x)) == id(len(y)), id(*[len(x)]) == id(len(y))

        return trace(fn), [call(torch.ones(n), torch.ones(n)) for n in (3, 4, 5, 6)]

    check(make, eager="calls id()")


@pytest.mark.parametrize("name", ["node", "__sym_max__", "__sym_float__", "real", "__index__", "is_integer"])
def test_which_attributes_a_number_has(name):
    def make(trace):
        values = [(3, 1.5), (2, 2.5), (4, 2.5), (5, 0.0), (2, 2.5)]
        steps = [call(torch.ones(n), torch.tensor(v, dtype=torch.float64)) for n, v in values]
        return trace(lambda x, t: (x * 2, hasattr(len(x), name), hasattr(t.item(), name))), steps

    check(make, hits=2)


@pytest.mark.parametrize("name", ["sym_float", "sym_int", "sym_max", "sym_min"])
def test_functions_of_torch_for_symbolic_numbers(name):
    def make(trace):
        function = getattr(torch, name)
        more = (3,) if name in ("sym_max", "sym_min") else ()
        values = [(3, 1.5), (2, 2.5), (4, 2.5), (5, 0.0), (2, 2.5)]
        steps = [call(torch.ones(n), torch.tensor(v, dtype=torch.float64)) for n, v in values]
        return trace(lambda x, t: (x * 2, function(len(x), *more), function(t.item(), *more))), steps

    check(make, hits=1)
