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


@cases(hits=2)
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


@cases(hits=2)
def computed_name(trace):
    o = Box(a=2.0, b=3.0, which="a")
    return trace(lambda x: x * getattr(o, o.which)), around(lambda: setattr(o, "which", "b"), X())


@cases(hits=2)
def vars_of_state(trace):
    o = Box(a=2.0)
    return trace(lambda x: x * sum(vars(o).values())), around(lambda: setattr(o, "b", 3.0), X())


@cases(hits=2)
def dict_of_state(trace):
    o = Box(a=2.0)
    return trace(lambda x: x * o.__dict__["a"]), around(lambda: setattr(o, "a", 3.0), X())


@cases(hits=2)
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


@cases(hits=3)
def attribute_counter(trace):
    o = Box(n=0)

    @trace
    def fn(x):
        o.n += 1
        return x * o.n

    return fn, [call(X())] * 4, lambda: o.n


@cases(hits=2)
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


@cases(hits=2)
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


@cases(hits=1)
def deletes_an_attribute(trace):
    o = Box(k=1.0)

    @trace
    def fn(x):
        if hasattr(o, "k"):
            del o.k
            return x
        return x * 2

    return fn, [call(X())] * 3, lambda: vars(o).copy()


@cases(hits=1, eager="sets-attribute")
def setattr_by_c(trace):
    o = Box(n=0)

    @trace
    def fn(x):
        object.__setattr__(o, "n", o.n + 1)
        return x * o.n

    return fn, [call(X())] * 3, lambda: o.n


@cases(hits=2)
def writes_through_vars(trace):
    o = Box(n=0)

    @trace
    def fn(x):
        vars(o)["n"] += 1
        return x * o.n

    return fn, [call(X())] * 3, lambda: o.n


@cases(hits=2)
def writes_a_class_attribute(trace):
    class A:
        n = 0

    @trace
    def fn(x):
        A.n += 1
        return x * A.n

    return fn, [call(X())] * 3, lambda: A.n


@cases(hits=2)
def attribute_on_a_tensor_of_state(trace):
    w = torch.ones(3)
    w.k = 2.0
    return trace(lambda x: x * w * w.k), around(lambda: setattr(w, "k", 3.0), X())


@cases(hits=2)
def attribute_on_an_argument(trace):
    x = X()
    x.k = 2.0
    return trace(lambda x: x * x.k), around(lambda: setattr(x, "k", 3.0), x)


@cases(hits=3)
def objects_as_arguments(trace):
    a, b, c = Box(k=2.0), Box(k=3.0), Box(k=2.0)
    x = X()
    return trace(lambda o, x: x * o.k), [call(a, x), call(a, x), call(b, x), call(b, x), call(c, x)]


@cases(hits=2)
def identity_of_state(trace):
    a, b = Box(), Box()
    o = Box(now=a)
    return trace(lambda x: x * 2 if o.now is a else x * 3), around(lambda: setattr(o, "now", b), X())


@cases(hits=2)
def id_of_state(trace):
    o = Box()
    return trace(lambda x: (x, id(o) == id(o))), [call(X())] * 3


@cases(hits=2)
def hash_of_state(trace):
    class A:
        h = 1

        def __hash__(self):
            return self.h

    o = A()
    return trace(lambda x: x * hash(o)), around(lambda: setattr(o, "h", 3), X())


@cases(hits=2)
def weak_reference_to_state(trace):
    import weakref

    o = Box(k=2.0)
    ref = weakref.ref(o)
    return trace(lambda x: x * ref().k), around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=2)
def context_variable(trace):
    import contextvars

    var = contextvars.ContextVar("var", default=2.0)
    return trace(lambda x: x * var.get()), around(lambda: var.set(3.0), X())


@cases(hits=2)
def context_variable_of_before_in_a_token(trace):
    import contextvars

    var = contextvars.ContextVar("var", default=1.0)
    var.set(2.0)

    def fn(x):
        token = var.set(3.0)
        y = x * token.old_value
        var.reset(token)
        return y

    return trace(fn), around(lambda: var.set(7.0), X())


@cases(hits=2)
def thread_local(trace):
    import threading

    local = threading.local()
    local.k = 2.0
    return trace(lambda x: x * local.k), around(lambda: setattr(local, "k", 3.0), X())


@cases(hits=2)
def representation_with_a_side_effect(trace):
    class Noisy:
        shown = 0

        def __repr__(self):
            Noisy.shown += 1
            return "noisy"

    a, b = Noisy(), Noisy()
    o = Box(now=a, all={"a": a}, pair=(a, 1))

    def fn(x):
        kind = o.pair[0]
        return x * 2 if o.now is a and o.all["a"] is not b and kind is a else x * 3

    return trace(fn), around(lambda: setattr(o, "now", b), X()), lambda: Noisy.shown


@cases(hits=2)
def representation_that_raises(trace):
    class Bad:
        def __init__(self):
            self.k = 2.0

        def __repr__(self):
            raise RuntimeError("no")

        __hash__ = None

        def __eq__(self, other):
            raise RuntimeError("no")

    a, b = Bad(), Bad()
    o = Box(now=a)
    fn = trace(lambda v, x: x * v.k if o.now is a else x * 3)
    return fn, around(lambda: setattr(o, "now", b), a, X())


@cases(eager="calls-method")
def mock_object(trace):
    import unittest.mock

    m = unittest.mock.MagicMock(return_value=2.0)
    m.k = 3.0
    return trace(lambda x: x * m(1) * m.k), [call(X())] * 4, lambda: m.call_count


@cases(eager="calls-method")
def lock_of_state(trace):
    import threading

    lock = threading.RLock()
    o = Box(k=2.0)

    def fn(x):
        with lock:
            return x * o.k

    return trace(fn), around(lambda: setattr(o, "k", 3.0), X()), lambda: lock._is_owned()


@cases(eager="calls-method")
def lock_that_is_left_locked(trace):
    import threading

    lock = threading.Lock()

    def fn(x):
        lock.acquire(blocking=False)
        return x * (2 if lock.locked() else 3)

    return (
        trace(fn),
        [call(X()), lambda: lock.release(), call(X()), lambda: lock.release(), call(X())],
        lock.locked,
    )


@cases(eager="calls-method")
def event_and_semaphore(trace):
    import threading

    event, slots = threading.Event(), threading.Semaphore(5)

    def fn(x):
        event.set()
        slots.acquire()
        return x * slots._value

    return (
        trace(fn),
        [call(X()), event.clear, call(X()), event.clear, call(X())],
        lambda: (event.is_set(), slots._value),
    )


@cases(hits=2)
def with_on_state_that_counts(trace):
    class Scope:
        depth = 0

        def __enter__(self):
            self.depth += 1
            return self

        def __exit__(self, *exc):
            self.depth -= 1

    s = Scope()

    def fn(x):
        with s:
            return x * s.depth

    return trace(fn), [*[call(X())] * 3, lambda: setattr(s, "depth", 4), *[call(X())] * 2], lambda: s.depth


@cases(eager="sets-context-variable")
def context_variable_set_inside(trace):
    import contextvars

    var = contextvars.ContextVar("var", default=1.0)

    def fn(x):
        var.set(var.get() + 1)
        return x * var.get()

    return trace(fn), [call(X())] * 4, var.get


@cases(eager="calls-unseen-function")
def system_state(trace):
    import sys

    def fn(x):
        return x * len(sys.argv) * sys.float_info.max_exp * sys.getrefcount(None).bit_length()

    sys.argv.append("one")
    return trace(fn), [*[call(X())] * 2, lambda: sys.argv.pop(), *[call(X())] * 2]


@cases(eager="calls-unseen-function")
def working_directory(trace, tmp="/tmp"):
    import os

    start = os.getcwd()
    steps = [call(X()), call(X()), lambda: os.chdir(tmp), call(X()), call(X()), lambda: os.chdir(start)]
    return trace(lambda x: (x, os.getcwd(), os.path.abspath("a"))), steps


@cases(eager="calls-unseen-function")
def file_that_changes(trace):
    import os
    import tempfile

    path = os.path.join(tempfile.mkdtemp(), "k")

    def put(text):
        with open(path, "w") as file:
            file.write(text)

    put("2")

    def fn(x):
        with open(path) as file:
            return x * float(file.read())

    return trace(fn), around(lambda: put("3"), X())


@cases(eager="calls-unseen-function")
def file_that_appears(trace):
    import os
    import tempfile

    path = os.path.join(tempfile.mkdtemp(), "k")
    steps = around(lambda: os.mkdir(path), X())
    return trace(lambda x: x * 2 if os.path.exists(path) else x * 3), steps


@cases(hits=2)
def class_and_then_instance(trace):
    class A:
        k = 2.0

    o = A()
    return trace(lambda x: x * A.k * o.k), around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=2)
def instance_and_then_class(trace):
    class A:
        k = 2.0

    o = A()
    o.k = 1.0
    return trace(lambda x: x * o.k * A.k), around(lambda: setattr(A, "k", 3.0), X())


@cases(hits=2)
def one_name_of_many_instances(trace):
    class A:
        k = 2.0

    several = [A() for _ in range(4)]

    def fn(x):
        for o in several:
            x = x * o.k
        return x

    return trace(fn), around(lambda: setattr(several[3], "k", 3.0), X())


@cases(hits=2)
def one_name_of_several_classes(trace):
    class A:
        k = 2.0

    class B(A):
        def __getattribute__(self, name):
            return object.__getattribute__(self, name)

    class C(A):
        @property
        def k(self):
            return self.__dict__["hidden"]

    c = C()
    c.hidden = 5.0
    several = [A(), B(), c, A, types.SimpleNamespace(k=7.0), A()]

    def fn(x):
        for o in several:
            x = x * o.k
        return x

    return trace(fn), around(lambda: setattr(c, "hidden", 3.0), X())


@cases(hits=2)
def a_class_that_changes_in_the_call(trace):
    class A:
        k = 2.0

    o = A()
    other = A()

    def fn(x):
        made = type("Made", (A,), {"k": 4.0})()
        for one in (o, made, other):
            x = x * one.k
        return x

    return trace(fn), around(lambda: setattr(other, "k", 3.0), X())


@cases(hits=8)
def identity_reused_address(trace):
    o = Box(now=Box(k=2.0))

    def change():
        o.now = None
        o.now = Box(k=3.0)

    return trace(lambda x: x * o.now.k), [s for _ in range(5) for s in (call(X()), call(X()), change)]


@cases.parametrize
def test_attributes(make, expected):
    check(make, **expected)
