"""Callables that are state: what they are bound to, what they hold, what was cached of them."""

from __future__ import annotations

import functools
import gc
import importlib
import signal
import types
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import lazytrace
from tests.soundness.runner import Cases, X, agree, around, call, check

cases = Cases()
NS = types.SimpleNamespace


class S:
    """Methods of instances and of the class."""

    K = 2.0

    def __init__(self, k):
        self.k = k

    def go(self, x):
        return x * self.k

    @classmethod
    def of_class(cls, a, b):
        return a * b * cls.K


class T(S):
    K = 3.0


def made(offset):
    def adder(x, _offset=offset, *, more=offset):
        return x + _offset + more

    return adder


def other_globals(function, **names):
    return types.FunctionType(function.__code__, names)


def uses_a_global(x):
    return x * K


K = 2.0
a, b = S(2.0), S(-3.0)
VALUES = {
    "method": (a.go, b.go),
    "class method": (functools.partial(S.of_class, 2.0), functools.partial(T.of_class, 2.0)),
    "default": (made(1), made(5)),
    "globals": (uses_a_global, other_globals(uses_a_global, K=3.0)),
    "no_grad": (torch.no_grad()(lambda x: x + 1), torch.no_grad()(lambda x: x - 1)),
    "vmap": (torch.vmap(torch.sin), torch.vmap(torch.cos)),
    "dispatch": (lambda x: F.relu(x), lambda x: F.silu(x)),
    "operator": (torch.ops.aten.sin, torch.ops.aten.cos),
    "overload": (torch.ops.aten.sin.default, torch.ops.aten.cos.default),
    "partial": (functools.partial(torch.add, other=1), functools.partial(torch.add, other=2)),
}
WAYS = {
    "called": lambda g, x: g(x),
    "mapped": lambda g, x: sum(map(g, [x, x])),
    "in a tree": lambda g, x: pytree.tree_map(g, [x])[0],
    "through a partial": lambda g, x: functools.partial(g, x)(),
    "in a list": lambda g, x: sum(h(x) for h in [g]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", VALUES)
def test_a_callable_that_is_exchanged(name, way):
    before, after = VALUES[name]

    def make(trace):
        st = NS(g=before)
        use = WAYS[way]

        def change():
            st.g = after

        def fn(x):
            return use(st.g, x)

        return trace(fn), around(change, X())

    agree(make)  # which of these are replayed hangs on torch's own code


@pytest.mark.parametrize("name", VALUES)
def test_a_callable_as_an_argument(name):
    def make(trace):
        return trace(lambda x, g: g(x)), [call(X(), VALUES[name][i]) for i in (0, 0, 1, 0)]

    agree(make)


@cases(hits=2)
def a_strategy_of_an_object(trace):
    class Model:
        def first(self, x):
            return x.abs().sum()

        def second(self, x):
            return (x * x).sum()

    m = Model()
    m.loss = m.first

    def change():
        m.loss = m.second

    return trace(lambda x: m.loss(x)), around(change, X())


@cases(hits=2)
def callbacks_in_another_order(trace):
    one, two = S(1.0), S(5.0)
    callbacks = [one.go, two.go]

    def fn(x):
        for callback in callbacks:
            x = callback(x) + 1
        return x

    return trace(fn), around(callbacks.reverse, X())


@cases(hits=2)
def a_cache_with_an_entry(trace):
    CONFIG["k"] = 2.0

    @functools.lru_cache(4)
    def scale(name, *, more=1):
        return CONFIG[name] * more

    scale("k", more=2)

    def change():
        CONFIG["k"] = 5.0

    def clear():
        scale.cache_clear()
        scale("k", more=2)

    steps = [*around(change, X()), clear, call(X()), call(X())]
    return trace(lambda x: x * scale("k", more=2)), steps


CONFIG = {"k": 2.0}


@cases(hits=2)
def a_cache_that_is_filled(trace):
    @functools.lru_cache(None)
    def axes(text):
        return tuple(text.split())

    return trace(lambda x: x * len(axes("a b"))), [call(X())] * 4


@cases(eager="sets .o of a SimpleNamespace")
def a_destructor_of_what_a_write_drops(trace):
    """That of another object of its class may change what the function reads behind it."""
    log = []

    class Noisy:
        def __init__(self, i):
            self.i = i

        def __del__(self):
            log.append(self.i)

    st = NS(o=None)

    def fn(x):
        st.o = None
        return x + 1

    def put(i):
        st.o = Noisy(i)

    steps = [step for i in range(4) for step in (functools.partial(put, i), call(X()))]
    return trace(fn), steps, lambda: list(log)


@cases(hits=2)
def a_method_in_a_cycle(trace):
    """A transform and its inverse know each other; the partial of a method goes with them."""

    class Transform:
        def __init__(self, function):
            self.function, self.other = function, None

        @property
        def inverse(self):
            if self.other is None:
                self.other = Transform(self.back)
                self.other.other = self
            return self.other

        def back(self, x):
            return self.function(x)

    layer = S(2.0)

    def fn(x):
        return Transform(functools.partial(layer.go)).inverse.function(x)

    def change():
        layer.k = 3.0

    return trace(fn), around(change, X())


@cases(eager="whose destructor runs after the call")
def a_destructor_in_a_cycle(trace):
    log = []

    class Noisy:
        def __del__(self):
            log.append(1)

    def fn(x):
        thing = Noisy()
        thing.me = thing
        return x + 1

    steps = [step for _ in range(3) for step in (call(X()), gc.collect)]
    return trace(fn), steps, lambda: len(log)


@cases(eager="whose class it made")
def an_instance_of_a_class_made_inside(trace):
    def fn(x):
        class K:
            def get(self):
                return x

        return K()

    return trace(fn), [call(X()), call(10 * X())]


@cases(hits=2)
def a_class_made_inside_by_a_metaclass_of_torch(trace):
    def fn(x):
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g: torch.Tensor):
                return g * 2

        return x * len(Double.__name__)

    return trace(fn), [call(X())] * 3


@cases(eager="returns a ")
def a_class_made_inside(trace):
    def fn(x):
        class K:
            k = x * 2

        return K

    return trace(fn), [call(X()), call(10 * X())]


@cases(eager="reads the weak references of a ")
def weak_references_that_show(trace):
    def fn(x):
        item = S(1.0)
        return torch.cos(x) if item.__weakref__ else torch.sin(x)

    return trace(fn), [call(X())] * 3


@cases(eager="getweakrefcount")
def weak_references_that_are_counted(trace):
    return trace(lambda x: x + weakref.getweakrefcount(a)), [call(X())] * 3


@cases(eager="returns a set whose order")
def order_of_a_returned_set(trace):
    return trace(lambda x: {33, 65, 1, 97} | {2}), [call(X())] * 2


@cases(hits=2)
def what_a_full_cache_drops(trace):
    """Which entry that is follows from the order of the last uses, those at replays among them."""
    scale = [1.0]

    @functools.lru_cache(2)
    def scaled(n):
        return scale[0] * n

    def crowd():
        scale[0] = 10.0
        scaled(3)

    fn = trace(lambda x: x * scaled(1) * scaled(2) * scaled(1))
    scaled(1), scaled(2)
    steps = [
        call(X()),
        call(X()),
        lambda: scaled(2),
        call(X()),
        crowd,
        lambda: scaled(1),
        call(X()),
        call(X()),
    ]
    return fn, steps, lambda: scaled.cache_info()


@cases.parametrize
def test_callables_as_values(make, expected):
    check(make, **expected)


def test_a_signal_that_is_handled_is_no_part_of_the_recording():
    from lazytrace import traced

    log = []
    before = signal.signal(signal.SIGVTALRM, lambda *args: log.append(1))
    try:

        @traced
        def fn(x):
            for _ in range(6000):
                x = x + 0
            return x

        signal.setitimer(signal.ITIMER_VIRTUAL, 0.004)
        fn(X())
        while not log:
            sum(range(1000))
        for _ in range(3):
            fn(X())
    finally:
        signal.signal(signal.SIGVTALRM, before)
    assert log == [1]


def wrapped(function):
    def call_it(*args, **kwargs):
        return function(*args, **kwargs)

    return call_it


def doubled(function):
    def call_it(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return call_it


def test_a_function_that_another_library_has_put_among_the_globals_of_torch(monkeypatch):
    """tensordict does so with those of torch's vmap()."""
    module = importlib.import_module("torch._functorch.vmap")
    original = module._unwrap_batched
    monkeypatch.setattr(module, "_unwrap_batched", wrapped(original))
    fn = lazytrace.traced(lambda x: torch.vmap(torch.sin)(x) * 2)
    x = torch.ones(2, 3)
    assert [fn(x).tolist() for _ in range(4)] == [(x.sin() * 2).tolist()] * 4
    assert fn.stats().hits >= 2
    monkeypatch.setattr(module, "_unwrap_batched", doubled(original))
    assert [fn(x).tolist() for _ in range(2)] == [(x.sin() * 4).tolist()] * 2
