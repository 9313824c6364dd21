"""The way of a call to its trace: keywords, defaults, stars, bindings, wrappers, instances in turn."""

from __future__ import annotations

import abc
import copy
import functools
import gc
import inspect
import itertools
import pickle
import pydoc
import types
import weakref

import pytest
import torch
from torch import nn

import lazytrace
from lazytrace.function import BoundTracedFunction, TracedFunction, TracedModule
from tests.soundness.runner import Cases, X, call, check

cases = Cases()


# ---------------------------------------------------------------- arguments
@cases(hits=6)
def keywords_in_every_order(trace):
    fn = trace(lambda x, y, *, k=1.0, s=2.0: x * k - y * s)
    named = {"x": X(), "y": X() + 1, "k": 3.0, "s": 5.0}
    steps = [call(**dict(order)) for order in itertools.islice(itertools.permutations(named.items()), 8)]
    return fn, [*steps, call(X(), s=5.0, y=X() + 1, k=3.0), call(X(), X() + 1, s=5.0, k=3.0)]


@cases(hits=11)
def names_swapped(trace):
    fn = trace(lambda x, y: x - 2 * y)
    a, b = X(), X() + 1
    return fn, [call(x=a, y=b), call(y=b, x=a), call(x=b, y=a), call(y=a, x=b), call(a, b), call(b, y=a)] * 2


@cases(hits=9)
def positional_only_beside_stars(trace):
    def fn(x, k=2.0, /, *args, y=1.0, **kwargs):
        return x * k + sum(args) + y, sorted(kwargs), kwargs.get("x"), kwargs.get("k")

    steps = [
        call(X()),
        call(X(), 3.0),
        call(X(), x=4.0),
        call(X(), k=4.0),
        call(X(), 2.0, 5.0),
        call(X(), 2.0, 5.0, x=1.0, k=2.0),
        call(X(), 2.0, 5.0, k=2.0, x=1.0),
        call(X(), y=X()),
        call(X(), 2.0, X(), z=X(), a=1),
    ]
    return trace(fn), steps * 2


@cases(hits=4)
def order_of_more_keywords_is_seen(trace):
    fn = trace(lambda x, **kw: (x * kw["a"] - kw["b"], list(kw)))
    return fn, [call(X(), a=2.0, b=X()), call(X(), b=X(), a=2.0)] * 3


@cases(hits=6)
def keywords_made_at_run_time(trace):
    fn = trace(lambda x, scale=1.0, **kw: x * scale + len(kw))
    return fn, [call(X(), **{"".join(["sca", "le"]): float(n % 2)}, **{f"z{n % 2}": 1}) for n in range(8)]


@cases(hits=2)
def wrong_arguments(trace):
    fn = trace(lambda x, y=1.0, *, k: x * y * k)
    steps = [call(X(), k=1.0), call(X()), call(X(), 1.0, 2.0, k=1.0), call(X(), y=2.0, k=1.0), call(k=1.0)]
    return fn, [*steps, call(X(), x=X(), k=1.0), call(X(), k=1.0, q=1)] * 2


@cases(hits=9)
def defaults_assigned(trace):
    def fn(x, k=2.0, *, s=1.0):
        return x * k + s

    made = trace(fn)

    def assign(name, value):
        return lambda: setattr(fn, name, value)

    twice = [call(X()), call(X())]
    return made, [
        *twice, assign("__defaults__", (3.0,)), *twice, assign("__kwdefaults__", {"s": 5.0}), *twice,
        lambda: fn.__kwdefaults__.update(s=6.0), *twice, assign("__defaults__", (X(), 4.0)), *twice, call(),
        assign("__defaults__", None), *twice, call(X(), 2.0), assign("__kwdefaults__", None), *twice,
        call(X(), 2.0, s=1.0), assign("__defaults__", (2.0,)), assign("__kwdefaults__", {"s": 1.0}), *twice,
    ]  # fmt: skip


@cases(hits=4)
def defaults_assigned_through_the_wrapper(trace):
    made = trace(lambda x, k=2.0, *, s=1.0: x * k + s)

    def assign(name, value):
        return lambda: setattr(made, name, value)

    twice = [call(X()), call(X())]
    return made, [
        *(*twice, assign("__defaults__", (3.0,)), *twice, assign("__kwdefaults__", {"s": 5.0}), *twice),
        *(assign("__defaults__", ()), *twice, call(X(), 3.0)),
    ]


@cases(hits=3)
def default_that_is_changed_in_place(trace):
    default = [1.0]
    fn = trace(lambda x, k=default: x * k[0] + len(k))
    twice = [call(X()), call(X())]
    return fn, [*twice, lambda: default.append(2.0), *twice, lambda: default.__setitem__(0, 7.0), *twice]


@cases(hits=4)
def default_tensor_that_is_changed_in_place(trace):
    w = torch.ones(3)
    fn = trace(lambda x, k=w: x * k)
    twice = [call(X()), call(X())]
    return fn, [*twice, lambda: w.add_(1), *twice, lambda: w.resize_(1), *twice], lambda: w


@cases(hits=4)
def code_exchanged(trace):
    def fn(x, k=2.0):
        return x * k

    made, twice = trace(fn), [call(X()), call(X(), k=3.0)] * 2
    return made, [*twice, lambda: setattr(fn, "__code__", (lambda x, k: x + k).__code__), *twice]


@cases(hits=5)
def arguments_that_change_between_calls(trace):
    fn = trace(lambda x, items, table: (x * len(items) + table["k"], items[-1] * table.get("z", 1.0)))
    items, table = [X(), 2.0], {"k": 1.0}
    step = call(X(), items, table)
    return fn, [
        *(step, step, lambda: items.append(3.0), step, step, lambda: table.update(k=X()), step, step),
        *(lambda: table.update(z=2.0), step, step, items.pop, step, lambda: table.pop("z"), step, step),
    ]


@cases(hits=3)
def containers_that_the_function_writes_to(trace):
    def fn(x, items, table):
        items.append(x * 2)
        table["y"] = x + 1
        table["n"] = 1.0
        return x - 1

    made = trace(fn)

    def use(x):
        items, table = [1.0], {"n": 0.0}
        return made(x, items, table), items, table

    return use, [call(X())] * 4


@cases(hits=4)
def class_lies_about_itself(trace):
    """`isinstance` asks `__class__`, which may run Python in the middle of matching."""
    log = []

    class Liar:
        @property
        def __class__(self):
            log.append(1)
            return float

        def __repr__(self):
            return "Liar"

    fn = trace(lambda x, items: x * len(items))
    return fn, [call(X(), [Liar(), 1.0]), call(X(), [Liar(), 1.0]), call(X(), [1.0])] * 2


@cases(hits=3)
def class_that_empties_the_container_around_it(trace):
    class Bomb:
        def __init__(self, items):
            self.items = items

        @property
        def __class__(self):
            self.items.clear()
            return Bomb

    def use(x):
        items: list[object] = []
        items += [Bomb(items), *(torch.ones(1) for _ in range(50))]
        return fn(x, items)

    fn = trace(lambda x, items: x * 2)
    return use, [call(X())] * 4


# ---------------------------------------------------------------- calls inside calls
@cases(hits=2)
def exceptions_through_opaque_calls(trace):
    limit = [3]

    @lazytrace.opaque
    def helper(x, n):
        limit[0] -= 1
        if limit[0] < 0:
            raise KeyError(n)
        return x * n

    fn = trace(lambda x: helper(x, 2) + 1)
    return fn, [call(X())] * 6, lambda: limit[0]


@cases(hits=15)
def traced_inside_opaque_inside_traced(trace):
    inner = trace(lambda x, k: x * k)
    helper = lazytrace.opaque(lambda x: inner(x, 2.0) + inner(x, 3.0))
    outer = trace(lambda x: helper(x) - helper(x + 1))
    return outer, [call(X())] * 4 + [call(X()).of(lambda x: inner(x, 2.0))] * 2


@cases(hits=6)
def recursion_through_opaque(trace):
    @lazytrace.opaque
    def helper(x, n):
        return fn(x, n - 1)

    fn = trace(lambda x, n: x * n + (helper(x, n) if n else 0))
    return fn, [call(X(), n) for n in (0, 1, 2, 3, 40, 3, 40, 0)]


@cases(hits=6)
def recursion_that_raises_at_its_end(trace):
    @lazytrace.opaque
    def helper(x, n, i):
        return fn(x, n - 1, i)

    fn = trace(lambda x, n, i: helper(x, n, i) + 1 if n else x.index_select(0, i))
    good, bad = torch.tensor([0]), torch.tensor([9])
    return fn, [call(X(), 5, i) for i in (good, good, bad, good, bad, bad, good)]


# The frames of lazytrace between one call and the next count for no limit of recursion.
@cases(hits=3)
def recursion_of_a_traced_function(trace):
    fn = trace(lambda x, n: fn(x + n, n - 1) if n else x)
    return fn, [call(X(), n) for n in (250, 250, 250, 3, 3)]


@cases(hits=6)
def hit_inside_a_destructor(trace):
    inner = trace(lambda x: x * 2)
    seen = []

    class Last:
        def __del__(self):
            seen.append(inner(X()))

    fn = trace(lambda x, o: x + 1)

    def use(x):
        return fn(x, [Last()])

    return use, [call(X())] * 4, lambda: seen


@cases(hits=12)
def generators_that_are_open_at_once(trace):
    fn = trace(lambda x, k: x * k if x.sum() > 0 else x - k)

    def steps(x):
        for k in (1.0, 2.0, 3.0):
            yield fn(x, k)

    def use(x):
        return list(zip(steps(x), steps(-x), strict=True))

    return use, [call(X())] * 3


@cases(eager="advances-iterator")
def argument_is_a_generator(trace):
    fn = trace(lambda x, items: x * sum(items))
    return fn, [call(X(), (k for k in (1.0, 2.0))) for _ in range(4)]


@cases(hits=2)
def cleared_while_it_runs(trace):
    @lazytrace.opaque
    def clear(x):
        getattr(fn, "cache_clear", int)()
        return x.sum() * 1

    fn = trace(lambda x: x * 2 + clear(x))
    return fn, [call(X())] * 5


@cases(hits=3)
def dropped_while_it_runs(trace):
    holder = {}

    @lazytrace.opaque
    def drop(x):
        holder.pop("fn", None)
        gc.collect()
        return x

    def use(x):
        fn = trace(lambda x: drop(x) * 2 + 1)
        first = fn(x)
        holder["fn"] = fn
        del fn
        return first, holder["fn"](x)

    return use, [call(X())] * 3


@cases(hits=3)
def instance_dropped_while_its_method_runs(trace):
    held = []

    @lazytrace.opaque
    def drop(x):
        held.clear()
        return x

    class A:
        def __init__(self):
            self.k = torch.full((3,), 2.0)

        @trace
        def step(self, x):
            return drop(x) * self.k

    def use(x):
        a = A()
        first = a.step(x)
        held.append(a)
        del a
        return first, held[0].step(x)

    return use, [call(X())] * 3


# ---------------------------------------------------------------- bindings
@cases(hits=60)
def instances_at_the_same_address(trace):
    class A:
        def __init__(self, k):
            self.k = k

        @trace
        def step(self, x):
            return x * self.k

    places = set()

    def use(x):
        out = []
        for n in range(30):
            a = A(float(n % 3))
            places.add(id(a))
            out.append(a.step(x) + a.step(x))
            del a
        assert len(places) < 30
        return out

    return use, [call(X())] * 2


@cases(hits=33)
def slots_at_the_same_address(trace):
    class A:
        __slots__ = ("k",)

        def __init__(self, k):
            self.k = k

        @trace
        def step(self, x):
            return x * self.k

    def use(x):
        return [A(float(n % 3)).step(x) for n in range(12)]

    return use, [call(X())] * 3


@cases(hits=18)
def modules_at_the_same_address(trace):
    @trace
    class Net(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k, self.w = k, nn.Parameter(torch.full((3,), float(k)))

        def forward(self, x):
            return x * self.w + self.k

    def use(x):
        out = []
        for n in range(9):
            net = Net(n % 3)
            out += [net(x).detach(), net(x).detach()]
            del net
        return out

    return use, [call(X())] * 2


@cases(hits=6)
def instance_that_comes_back(trace):
    saved = []

    class A:
        k = 2.0

        @trace
        def step(self, x):
            return x * self.k

        def __del__(self):
            saved.append(self)

    def use(x):
        a = A()
        out = [a.step(x), a.step(x)]
        del a
        a = saved.pop()
        a.k = 3.0
        return [*out, a.step(x), a.step(x)]

    return use, [call(X())] * 3


@cases(hits=3)
def class_of_the_instance_exchanged(trace):
    class A:
        @trace
        def step(self, x):
            return x * self.k

        k = 2.0

    class B(A):
        k = 3.0

    a = A()
    twice = [call(X()).of(lambda x: a.step(x))] * 2
    return a.step, [*twice, lambda: setattr(a, "__class__", B), *twice, lambda: setattr(a, "k", 5.0), *twice]


@cases(hits=56)
def static_and_class_methods(trace):
    class A:
        k = 2.0

        @staticmethod
        @trace
        def inner_static(x, k=1.0):
            return x * k

        @trace
        @staticmethod
        def outer_static(x, k=1.0):
            return x - k

        @classmethod
        @trace
        def inner_class(cls, x):
            return x * cls.k

        @trace
        @classmethod
        def outer_class(cls, x):
            return x + cls.k

    class B(A):
        k = 5.0

    def use(x):
        found = []
        for owner in (A, A(), B, B()):
            found += [owner.inner_static(x, k=3.0), owner.outer_static(x), owner.inner_class(x)]
            found.append(owner.outer_class(x))
        return found

    return use, [call(X()), call(X()), lambda: setattr(A, "k", 7.0), call(X()), call(X())]


@cases(hits=9)
def property_over_a_traced_function(trace):
    class A:
        def __init__(self):
            self.w = X()

        @property
        @trace
        def doubled(self):
            return self.w * 2

        @functools.cached_property
        def kept(self):
            return trace(lambda x: x * self.w)

        tripled = property(trace(lambda self: self.w * 3))

    a = A()

    def use(x):
        return a.doubled + a.tripled + a.kept(x)

    return use, [
        call(X()),
        call(X()),
        lambda: a.w.add_(1),
        call(X()),
        lambda: setattr(a, "w", X()),
        call(X()),
    ]


@cases(hits=27)
def class_attributes(trace):
    class A:
        step = trace(lambda self, x: x * self.k)
        apart = staticmethod(trace(lambda x: x - 1))
        borrowed = None
        k = 2.0

    class Other:
        k = 7.0
        step = A.__dict__["step"]

    a, other = A(), Other()
    a.own = trace(lambda x: x * 11)

    def use(x):
        return [a.step(x), A.step(a, x), other.step(x), A.step(other, x), a.apart(x), A.apart(x), a.own(x)]

    return use, [call(X())] * 3 + [lambda: setattr(A, "k", 3.0), call(X()), call(X())]


@cases(hits=17)
def bound_method_that_is_kept(trace):
    class A:
        k = 2.0

        @trace
        def step(self, x):
            return x * self.k

    a, b = A(), A()
    kept = a.step

    def use(x):
        others = [types.MethodType(A.step, b), A.step.__get__(b, A), functools.partial(A.step, a)]
        return [kept(x), *(one(x) for one in others)]

    twice = [call(X()), call(X())]
    return use, [*twice, lambda: setattr(a, "k", 3.0), *twice, lambda: setattr(b, "k", 5.0), *twice]


@cases(hits=12)
def method_of_none_and_of_a_class(trace):
    """The instance that a call is bound to may be anything."""
    fn = trace(lambda self, x: x if self is None else x * 2)

    class Meta(type):
        step = fn

    class A(metaclass=Meta):
        pass

    def use(x):
        return fn(None, x), A.step(x), fn.__get__(3, int)(x), fn.__get__("s", str)(x)

    return use, [call(X())] * 4


# Each instance has traces of its own.
@cases(recordings=3)
def abstract_methods(trace):
    class Base(abc.ABC):
        @trace
        @abc.abstractmethod
        def step(self, x):
            return x * 2

    class Made(Base):
        @trace
        def step(self, x):
            return super().step(x) + 1

    def use(x):
        try:
            Base()
        except TypeError as error:
            return str(error), Made().step(x)
        return "made", Made().step(x)

    return use, [call(X())] * 3


@cases(hits=12)
def operators_of_a_class(trace):
    class A:
        def __init__(self, w):
            self.w = w

        __call__ = trace(lambda self, x: x * self.w)
        __add__ = trace(lambda self, x: x + self.w)
        __getitem__ = trace(lambda self, i: self.w[i])
        __len__ = trace(lambda self: self.w.shape[0])

    a = A(X())

    def use(x):
        return a(x), a + x, a[1], len(a)

    return use, [call(X()), call(X()), lambda: setattr(a, "w", X() + 2), call(X()), call(X())]


# ---------------------------------------------------------------- wrappers
@cases(hits=9)
def wrapped_by_functools(trace):
    def plain(x, k=2.0):
        """Says something."""
        return x * k

    inner = trace(plain)

    @functools.wraps(inner)
    def outer(*args, **kwargs):
        return inner(*args, **kwargs) + 1

    @functools.wraps(plain)
    @trace
    def other(x, k=2.0):
        return plain(x, k) - 1

    def use(x):
        return outer(x, k=3.0), other(x), other(x, k=3.0), outer.__name__, other.__name__, outer.__doc__

    return use, [call(X())] * 4


@cases(hits=4)
def traced_again_and_again(trace):
    plain = lambda x, k=2.0: x * k  # noqa: E731
    fn = trace(trace(trace(plain)))
    return fn, [call(X()), call(X(), k=3.0)] * 3


@cases(hits=7)
def partials(trace):
    fn = trace(lambda x, y, k=1.0, s=0.0: x * k - y + s)
    half = functools.partial(fn, k=2.0)
    whole = trace(functools.partial(half, X(), s=1.0))
    method = functools.partialmethod(fn, X(), k=3.0)

    class A:
        step = trace(lambda self, x, k: x * k)
        double = functools.partialmethod(step, k=2.0)

    def use(x):
        return half(x, x + 1), whole(x), half(y=x, x=x + 1), A().double(x), method.args[0]

    return use, [call(X())] * 3


@cases(eager="reads-attribute")
def attributes_of_the_function(trace):
    fn = trace(lambda x: x * getattr(fn, "k", 1.0))
    return fn, [
        *(call(X()), call(X()), lambda: setattr(fn, "k", 2.0), call(X()), call(X())),
        *(lambda: setattr(fn, "k", 3.0), call(X()), lambda: delattr(fn, "k"), call(X()), call(X())),
    ]


# ---------------------------------------------------------------- results
@cases(hits=4)
def results_of_every_kind(trace):
    def fn(x, items, table):
        return x, items, table, (x, [items[0]], {"t": table["k"]}), None, 1, "s", items[0] is x

    x = X()
    return trace(fn), [call(x, [x, X()], {"k": x}), call(x, [X(), x], {"k": X()})] * 3


@cases.parametrize
def test_call_path(make, expected):
    check(make, **expected)


# ---------------------------------------------------------------- known faults
def keywords_that_only_compare_equal(trace):
    class Name(str):
        __slots__ = ()

    fn = trace(lambda x, k=1.0, **kw: (x * k, [type(name).__name__ for name in kw]))
    return fn, [call(X(), k=2.0, z=1), call(X(), **{Name("k"): 2.0, Name("z"): 1})] * 3


def test_subclass_of_str_as_a_keyword():
    check(keywords_that_only_compare_equal, hits=2, eager="takes a keyword that is a")


def code_exchanged_for_other_names(trace):
    def fn(x, y):
        return x - 2 * y

    made, a, b = trace(fn), X(), X() + 1
    twice = [call(a, b), call(y=b, x=a), call(b, a), call(x=b, y=a)] * 2
    return made, [*twice, lambda: setattr(fn, "__code__", (lambda y, x: x - 3 * y).__code__), *twice]


def test_code_of_other_names():
    check(code_exchanged_for_other_names, hits=7, eager="its code was replaced by one with other parameters")


# ---------------------------------------------------------------- looked at from outside
def doubled(x, k: float = 2.0, *, s=0.0):
    """Doubles, mostly."""
    return x * k + s


traced_doubled = lazytrace.traced(doubled)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    @lazytrace.traced
    def forward(self, x):
        """Says what it does."""
        return self.fc(x)


def test_it_looks_like_the_function():
    for fn in (traced_doubled, Model.forward, Model().forward):
        plain = fn.original
        assert inspect.signature(fn) == inspect.signature(plain)
        assert inspect.getsource(fn) == inspect.getsource(plain)
        assert inspect.getdoc(fn) == inspect.getdoc(plain)
        assert (fn.__name__, fn.__module__, fn.__qualname__) == (
            *(plain.__name__, plain.__module__, plain.__qualname__),
        )
    assert inspect.get_annotations(traced_doubled) == inspect.get_annotations(doubled)
    assert "k: 'float' = 2.0" in pydoc.render_doc(traced_doubled)
    assert "Says what it does." in pydoc.render_doc(Model)
    assert inspect.isroutine(Model().forward)
    assert callable(traced_doubled)
    assert isinstance(traced_doubled, types.FunctionType)
    assert inspect.signature(Model().forward).parameters.keys() == {"x"}


def test_asking_does_not_call():
    before = traced_doubled.stats().calls
    repr(traced_doubled), str(traced_doubled), hash(traced_doubled), dir(traced_doubled)
    inspect.signature(traced_doubled), pydoc.render_doc(traced_doubled), traced_doubled == doubled
    copy.copy(traced_doubled), copy.deepcopy(traced_doubled)
    assert traced_doubled.stats().calls == before


def test_equal_and_hashed_like_the_function():
    assert traced_doubled == doubled
    assert hash(traced_doubled) == hash(doubled)
    model = Model()
    assert model.forward == model.forward


def test_subclasses_of_the_wrapper_answer_calls_themselves():
    class Counting(TracedFunction):
        def __call__(self, *args, **kwargs):
            called.append(args)
            return super().__call__(*args, **kwargs)

    called: list[object] = []
    fn = Counting(doubled, traced_doubled._self_engine.options)
    for _ in range(3):
        assert torch.equal(fn(X()), X() * 2)
    assert len(called) == 3
    assert fn.stats().calls == 3
    assert fn.stats().hits == 2


def test_subclasses_without_a_call_of_their_own():
    class Named(TracedFunction):
        def whose(self):
            return "mine"

    fn = Named(doubled, traced_doubled._self_engine.options)
    for _ in range(3):
        assert torch.equal(fn(X()), X() * 2)
    assert fn.whose() == "mine"
    assert fn.stats().hits == 2


def test_a_class_of_wrappers_that_is_dropped_is_freed():
    def make():
        class Named(TracedFunction):
            pass

        fn = Named(doubled, traced_doubled._self_engine.options)
        fn(X()), fn(X())
        return weakref.ref(Named), weakref.ref(fn)

    references = make()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_bound_wrappers_leave_no_references_to_their_class():
    import sys

    model = Model()
    model.forward(torch.ones(3))
    before = sys.getrefcount(BoundTracedFunction)
    for _ in range(100):
        model.forward(torch.ones(3))
    assert sys.getrefcount(BoundTracedFunction) - before < 10


def test_wrappers_that_were_made_without_init():
    empty = TracedFunction.__new__(TracedFunction)
    with pytest.raises((ValueError, AttributeError, TypeError)):
        empty(X())
    bound = BoundTracedFunction.__new__(BoundTracedFunction)
    with pytest.raises((ValueError, AttributeError, TypeError)):
        bound(X())


def test_init_again():
    fn = lazytrace.traced(lambda x: x * 2)
    options = fn._self_engine.options
    assert torch.equal(fn(X()), X() * 2)
    assert torch.equal(fn(X()), X() * 2)
    fn.__init__(lambda x: x * 3, options)
    for _ in range(3):
        assert torch.equal(fn(X()), X() * 3)


def test_copies_of_modules_are_apart():
    net = lazytrace.traced(nn.Linear(3, 2))
    x = torch.ones(3)
    net(x), net(x)
    for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), copy.copy(net)):
        assert isinstance(again, TracedModule)
        for _ in range(3):
            assert torch.equal(again(x), net(x))
        with torch.no_grad():
            again.weight.add_(1) if again.weight is not net.weight else None
        assert torch.equal(again(x), again.__wrapped__(x))
        assert torch.equal(net(x), net.__wrapped__(x))


def test_disabled_and_frozen_and_timed_between_hits():
    fn = lazytrace.traced(lambda x: x * 2)
    fn(X()), fn(X())
    with lazytrace.disabled():
        assert torch.equal(fn(X()), X() * 2)
    fn.freeze()
    assert torch.equal(fn(X()), X() * 2)
    lazytrace.time_hits()
    assert torch.equal(fn(X()), X() * 2)
    lazytrace.time_hits(False)
    assert torch.equal(fn(X()), X() * 2)
    stats = fn.stats()
    assert (stats.hits, stats.recordings, stats.eager_calls, stats.hits_timed) == (4, 1, 1, 1)
