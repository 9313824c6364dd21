"""Attributes of objects and classes, through any chain."""

from __future__ import annotations

import argparse
import types

import torch

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


class Box:
    def __init__(self, **values):
        vars(self).update(values)


@cases(hits=2, recordings=2)
def number(trace):
    o = Box(k=2.0)
    return trace(lambda x: x * o.k), around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=2)
def chain(trace):
    o = Box(a=Box(b=Box(k=2.0)))
    return trace(lambda x: x * o.a.b.k), around(lambda: setattr(o.a.b, "k", 3.0), X())


@cases(hits=2)
def middle_of_a_chain(trace):
    o = Box(a=Box(b=Box(k=2.0)))
    return trace(lambda x: x * o.a.b.k), around(lambda: setattr(o.a, "b", Box(k=3.0)), X())


@cases(hits=3)
def not_read(trace):
    o = Box(k=2.0, step=0)
    return trace(lambda x: x * o.k), around(lambda: setattr(o, "step", 1), X())


@cases(hits=2)
def class_attribute(trace):
    class A:
        k = 2.0

    o = A()
    return trace(lambda x: x * o.k), around(lambda: setattr(A, "k", 3.0), X())


@cases(hits=2)
def class_attribute_shadowed(trace):
    class A:
        k = 2.0

    o = A()
    return trace(lambda x: x * o.k), around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=2)
def base_attribute_shadowed(trace):
    class A:
        k = 2.0

    class B(A):
        pass

    o = B()
    return trace(lambda x: x * o.k), around(lambda: setattr(B, "k", 3.0), X())


@cases(hits=2)
def instance_attribute_deleted(trace):
    class A:
        k = 2.0

    o = A()
    o.k = 5.0
    return trace(lambda x: x * o.k), around(lambda: delattr(o, "k"), X())


@cases(hits=2)
def class_of_an_instance(trace):
    class A:
        k = 2.0

    class B:
        k = 3.0

    o = A()
    return trace(lambda x: x * o.k), around(lambda: setattr(o, "__class__", B), X())


@cases(hits=2)
def class_read_by_hand(trace):
    class A:
        k = 2.0

    class B:
        k = 3.0

    o = A()
    return trace(lambda x: x * o.__class__.k), around(lambda: setattr(o, "__class__", B), X())


@cases(hits=2)
def type_of_an_instance(trace):
    class A:
        k = 2.0

    class B:
        k = 3.0

    o = A()
    return trace(lambda x: x * type(o).k), around(lambda: setattr(o, "__class__", B), X())


@cases
def class_after_an_identity_test(trace):
    class A:
        k = 2.0

    class B:
        k = 3.0

    o, p = A(), A()

    @trace
    def fn(x):
        return x * o.k if o is not p else x

    return fn, around(lambda: setattr(o, "__class__", B), X())


@cases(hits=2)
def method_replaced_on_the_class(trace):
    class A:
        def f(self, x):
            return x * 2

    o = A()
    return trace(lambda x: o.f(x)), around(lambda: setattr(A, "f", lambda self, x: x - 1), X())


@cases(hits=2)
def method_replaced_on_the_instance(trace):
    class A:
        def f(self, x):
            return x * 2

    o = A()
    return trace(lambda x: o.f(x)), around(lambda: setattr(o, "f", lambda x: x - 1), X())


@cases(hits=2)
def bases_changed(trace):
    class A:
        k = 2.0

    class B:
        k = 3.0

    class C(A):
        pass

    class D(B):
        pass

    o = C()
    return trace(lambda x: x * o.k), around(lambda: setattr(C, "__bases__", (D,)), X())


@cases(hits=2)
def getattr_with_default(trace):
    o = Box()
    return trace(lambda x: x * getattr(o, "k", 2.0)), around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=2)
def hasattr_of_state(trace):
    o = Box()
    return trace(lambda x: x * 2 if hasattr(o, "k") else x * 5), around(lambda: setattr(o, "k", 3.0), X())


@cases
def computed_name(trace):
    o = Box(a=2.0, b=3.0, which="a")
    return trace(lambda x: x * getattr(o, o.which)), around(lambda: setattr(o, "which", "b"), X())


@cases
def vars_of_state(trace):
    o = Box(a=2.0)
    return trace(lambda x: x * sum(vars(o).values())), around(lambda: setattr(o, "b", 3.0), X())


@cases
def dict_of_state(trace):
    o = Box(a=2.0)
    return trace(lambda x: x * o.__dict__["a"]), around(lambda: setattr(o, "a", 3.0), X())


@cases
def dict_replaced(trace):
    o = Box(a=2.0)
    return trace(lambda x: x * o.a), around(lambda: setattr(o, "__dict__", {"a": 3.0}), X())


@cases(hits=2)
def simple_namespace(trace):
    o = types.SimpleNamespace(k=2.0)
    return trace(lambda x: x * o.k), around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=2)
def simple_namespace_rebound(trace):
    o = Box(ns=types.SimpleNamespace(k=2.0))
    return trace(lambda x: x * o.ns.k), around(lambda: setattr(o, "ns", types.SimpleNamespace(k=3.0)), X())


@cases(hits=2)
def parsed_arguments(trace):
    args = argparse.Namespace(k=2.0, names=["a"])
    return trace(lambda x: x * args.k * len(args.names)), around(lambda: args.names.append("b"), X())


@cases(eager=True)
def attribute_counter(trace):
    o = Box(n=0)

    @trace
    def fn(x):
        o.n += 1
        return x * o.n

    return fn, [call(X())] * 4, lambda: o.n


@cases
def stores_a_result(trace):
    o = Box(last=None)

    @trace
    def fn(x):
        o.last = x * 2
        return o.last + 1

    a, b = X(), X() + 1
    return fn, [call(a), call(b), call(a)], lambda: o.last


@cases(hits=2)
def stores_what_is_there(trace):
    o = Box(mode="a")

    @trace
    def fn(x):
        o.mode = "a"
        return x * 2

    return fn, around(lambda: setattr(o, "mode", "b"), X()), lambda: o.mode


@cases
def stores_and_restores(trace):
    o = Box(k=1.0)

    @trace
    def fn(x):
        old = o.k
        o.k = 5.0
        try:
            return x * o.k
        finally:
            o.k = old

    return fn, around(lambda: setattr(o, "k", 2.0), X()), lambda: o.k


@cases
def deletes_an_attribute(trace):
    o = Box(k=1.0)

    @trace
    def fn(x):
        if hasattr(o, "k"):
            del o.k
            return x
        return x * 2

    return fn, [call(X())] * 3, lambda: vars(o).copy()


@cases(eager=True)
def setattr_by_c(trace):
    o = Box(n=0)

    @trace
    def fn(x):
        object.__setattr__(o, "n", o.n + 1)
        return x * o.n

    return fn, [call(X())] * 3, lambda: o.n


@cases(eager=True)
def writes_through_vars(trace):
    o = Box(n=0)

    @trace
    def fn(x):
        vars(o)["n"] += 1
        return x * o.n

    return fn, [call(X())] * 3, lambda: o.n


@cases(eager=True)
def writes_a_class_attribute(trace):
    class A:
        n = 0

    @trace
    def fn(x):
        A.n += 1
        return x * A.n

    return fn, [call(X())] * 3, lambda: A.n


@cases
def attribute_on_a_tensor_of_state(trace):
    w = torch.ones(3)
    w.k = 2.0
    return trace(lambda x: x * w * w.k), around(lambda: setattr(w, "k", 3.0), X())


@cases
def attribute_on_an_argument(trace):
    x = X()
    x.k = 2.0
    return trace(lambda x: x * x.k), around(lambda: setattr(x, "k", 3.0), x)


@cases(hits=3)
def objects_as_arguments(trace):
    a, b, c = Box(k=2.0), Box(k=3.0), Box(k=2.0)
    x = X()
    return trace(lambda o, x: x * o.k), [call(a, x), call(a, x), call(b, x), call(b, x), call(c, x)]


@cases
def identity_of_state(trace):
    a, b = Box(), Box()
    o = Box(now=a)
    return trace(lambda x: x * 2 if o.now is a else x * 3), around(lambda: setattr(o, "now", b), X())


@cases
def id_of_state(trace):
    o = Box()
    return trace(lambda x: (x, id(o) == id(o))), [call(X())] * 3


@cases
def hash_of_state(trace):
    class A:
        h = 1

        def __hash__(self):
            return self.h

    o = A()
    return trace(lambda x: x * hash(o)), around(lambda: setattr(o, "h", 3), X())


@cases
def weak_reference_to_state(trace):
    import weakref

    o = Box(k=2.0)
    ref = weakref.ref(o)
    return trace(lambda x: x * ref().k), around(lambda: setattr(o, "k", 3.0), X())


@cases
def context_variable(trace):
    import contextvars

    var = contextvars.ContextVar("var", default=2.0)
    return trace(lambda x: x * var.get()), around(lambda: var.set(3.0), X())


@cases
def thread_local(trace):
    import threading

    local = threading.local()
    local.k = 2.0
    return trace(lambda x: x * local.k), around(lambda: setattr(local, "k", 3.0), X())


@cases.parametrize
def test_attributes(make, expected):
    check(make, **expected)
