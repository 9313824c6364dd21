"""Writes to Python state where two paths lead to one place, at each call or at a later one only."""

from __future__ import annotations

import contextlib
import enum
import functools
import sys
import threading
import types
from collections import ChainMap, OrderedDict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F

import lazytrace
from tests.soundness.runner import Cases, X, agree, call, check, opaque

cases = Cases()
WRITTEN = None


class Thing:
    """State with what the cases need."""

    def __init__(self, **values):
        self.__dict__.update(values)


def then(*changes, times=3):
    """A few calls, and a few more after each change."""
    steps = [call(k * X()) for k in range(1, times + 1)]
    return steps + [step for change in changes for step in (change, *steps)]


# ---------------------------------------------------------------- two paths that meet at a later call
@cases(hits=2)
def dictionary_that_is_the_namespace_later(trace):
    o, w = Thing(h=X()), Thing(d={"h": X() * 5})

    def fn(x):
        o.h = x * 2
        return w.d["h"] + 1

    def join():
        w.d = vars(o)

    return trace(fn), then(join), lambda: o


@cases(hits=2)
def argument_that_is_the_namespace_later(trace):
    o = Thing(h=X())

    def fn(x, d):
        o.h = x * 2
        return d["h"] + 1

    other = {"h": X()}
    steps = [call(X(), other), call(X() * 2, other), call(X() * 3, other)]
    return trace(fn), [*steps, call(X(), vars(o)), call(X() * 2, vars(o))], lambda: o


# ---------------------------------------------------------------- what is a namespace no more
class Holder:
    """Holds a dict, which may be the namespace of something else."""


def of_one_namespace(body):
    """A case: `body(o, d, x)` is called with the namespace of `o` as `d`, with another dict, and again."""

    def make(trace):
        o = Thing(h=X())
        fn = trace(lambda x, d: body(o, d, x))
        own, other = vars(o), {"h": X()}
        steps = [call(X() * (i + 1), d) for i, d in enumerate([own, own, own, other, other, own, other])]
        return fn, steps, lambda: (o, other)

    return make


def of_a_kept_namespace(body):
    """The same with a dict that is kept in state."""

    def make(trace):
        o, keeper = Thing(h=X()), Holder()
        keeper.d = vars(o)
        other = {"h": X()}
        fn = trace(lambda x: body(o, keeper.d, x))

        def swap():
            keeper.d = other if keeper.d is not other else vars(o)

        twice = [call(X()), call(X() * 2), call(X() * 3)]
        return fn, [*twice, swap, *twice, swap, *twice, swap, *twice], lambda: (o, other)

    return make


def writes_the_object(o, d, x):
    o.h = x * 2
    return d["h"] + 1


def writes_the_dict(o, d, x):
    d["h"] = x * 2
    return o.h + 1


def writes_the_object_and_asks_the_dict(o, d, x):
    o.h = x * 2
    return x * (2 if "h" in d else 1) + d.get("h", x)


def writes_both(o, d, x):
    o.h = x * 2
    d["h"] = x * 3
    return o.h - d["h"]


def writes_through_another_object(o, d, x):
    twin = object.__new__(Thing)
    twin.__dict__ = d
    o.h = x * 2
    return twin.h + 1


@pytest.mark.parametrize("way", [of_one_namespace, of_a_kept_namespace], ids=["argument", "kept"])
@pytest.mark.parametrize(
    "body",
    [writes_the_object, writes_the_dict, writes_the_object_and_asks_the_dict, writes_both],
    ids=lambda body: body.__name__,
)
def test_a_namespace_by_two_ways(body, way):
    agree(way(body))


def test_a_namespace_that_is_given_away():
    agree(of_one_namespace(writes_through_another_object))


def test_a_dict_that_was_the_namespace():
    check(of_one_namespace(writes_the_object), hits=2)


def test_objects_of_one_namespace():
    def make(trace):
        a, b = Thing(h=X()), Thing(h=X() * 3)
        own = vars(b)
        b.__dict__ = vars(a)

        def fn(x):
            a.h = x * 2
            return b.h + 1

        def part():
            b.__dict__ = own

        def join():
            b.__dict__ = vars(a)

        twice = [call(X()), call(X() * 2), call(X() * 3)]
        return trace(fn), [*twice, part, *twice, join, *twice], lambda: [a.h, b.h]

    check(make, hits=2)


@cases(hits=2)
def namespaces_that_become_one(trace):
    a, b = Thing(h=X()), Thing(h=X() * 3)

    def fn(x):
        a.h = x * 2
        return b.h + 1

    def join():
        b.__dict__ = a.__dict__

    return trace(fn), then(join), lambda: [a.h, b.h]


@cases(hits=4)
def one_namespace_for_all_instances(trace):
    state = {"h": X(), "k": 1.0}

    class Shared:
        def __init__(self):
            self.__dict__ = state

    a, b = Shared(), Shared()

    def fn(x):
        a.k = 2.0
        b.h = x * b.k
        a.k = 1.0
        return a.h * b.k

    return trace(fn), then(lambda: state.update(h=X() * 7)), lambda: [a.h, b.k]


@cases(hits=4)
def dictionary_of_buffers_by_two_paths(trace):
    m, w = torch.nn.Module(), Thing(d={"h": X()})
    m.register_buffer("h", X())

    def fn(x):
        m._buffers["h"] = x * 2
        return w.d["h"] + m.h

    def join():
        w.d = m._buffers

    return trace(fn), then(join), lambda: m.h


@cases(hits=2)
def closures_that_share_a_variable_later(trace):
    def pair():
        h = torch.zeros(3)

        def write(value):
            nonlocal h
            h = value

        return write, lambda: h

    (write, read), (_, other) = pair(), pair()
    o = Thing(read=other)

    def fn(x):
        write(x * 2)
        return o.read() + 1

    def join():
        o.read = read

    return trace(fn), then(join), lambda: [read(), other()]


@cases(hits=2)
def variable_read_through_its_cell(trace):
    h = torch.zeros(3)

    def write(x):
        nonlocal h
        h = x * 2

    def elsewhere():
        h = torch.ones(3)
        return lambda: h

    o = Thing(f=elsewhere())

    def fn(x):
        write(x)
        return o.f.__closure__[0].cell_contents + 1

    def join():
        o.f = write

    return trace(fn), then(join), lambda: h


@cases(hits=4)
def one_function_by_two_paths_later(trace):
    def counter():
        h = torch.zeros(3)

        def add(x):
            nonlocal h
            h = h + x
            return h

        return add

    a, b = counter(), counter()
    o = Thing(a=a, b=b)

    def fn(x):
        return o.a(x) * 2 + o.b(x * 2)

    def join():
        o.b = o.a

    return trace(fn), then(join), lambda: [f.__closure__[0].cell_contents for f in (a, b)]


@cases(hits=2)
def writes_to_objects_that_become_one(trace):
    w = Thing(a=Thing(h=None, items=[None, None]), b=Thing(h=None, items=[None, None]), log=[[], []])

    def fn(x):
        w.a.h = w.a.items[0] = x * 2
        w.b.h = w.b.items[-2] = x * 3
        w.log[0].append(x)
        w.log[1].append(x * 2)
        return w.a.h + w.a.items[-2]

    def join():
        w.b = w.a

    def join_logs():
        w.log[1] = w.log[0]

    return trace(fn), then(join, join_logs), lambda: w


@cases(hits=2)
def object_of_the_state_as_an_argument(trace):
    o, other = Thing(part=Thing(h=X())), Thing(h=X() * 4)

    def fn(x, p):
        o.part.h = x * 2
        return p.h + 1

    return (
        trace(fn),
        [call(k * X(), p) for k, p in enumerate((other, other, other, o.part, o.part, other))],
        lambda: [o, other],
    )


@cases(hits=2)
def list_inside_an_argument_that_is_written_later(trace):
    o = Thing(items=[X()])

    def fn(x, arg):
        o.items[0] = x * 2
        return arg["a"][0] + 1

    other, mine = {"a": [X()]}, {"a": o.items}
    return (
        trace(fn),
        [call(k * X(), arg) for k, arg in enumerate((other, other, other, mine, mine, other))],
        lambda: o,
    )


# ---------------------------------------------------------------- written and put back, read by another path
@cases(hits=2)
def put_back_and_read_by_another_path(trace):
    w = Thing(a=Thing(k=1.0), b=Thing(k=1.0))

    def fn(x):
        old = w.a.k
        w.a.k = 2.0
        y = x * w.b.k
        w.a.k = old
        return y

    def join():
        w.b = w.a

    return trace(fn), then(join), lambda: w


@cases(hits=2)
def put_back_in_a_dictionary(trace):
    w = Thing(a={"k": 1.0}, b={"k": 1.0})

    def fn(x):
        old = w.a["k"]
        w.a["k"] = 2.0
        y = x * w.b["k"]
        w.a["k"] = old
        return y

    def join():
        w.b = w.a

    return trace(fn), then(join), lambda: w


@cases(hits=2)
def put_back_a_tensor(trace):
    w = Thing(a=Thing(h=X()), b=Thing(h=X() * 2))

    def fn(x):
        old = w.a.h
        w.a.h = x * 2
        y = w.b.h + 1
        w.a.h = old
        return y

    def join():
        w.b = w.a

    return trace(fn), then(join), lambda: w


@cases(hits=2)
def put_back_a_submodule(trace):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.act, self.other = torch.nn.ReLU(), torch.nn.Tanh()

        def forward(self, x):
            return self.act(x)

    w = Thing(a=Net(), b=Net())

    def fn(x):
        old = w.a.act
        w.a.act = w.a.other
        y = w.b(x)
        w.a.act = old
        return y

    def join():
        w.b = w.a

    return trace(fn), then(join), lambda: [repr(w.a), repr(w.b)]


@cases(hits=2)
def evaluation_mode_around_another_module(trace):
    w = Thing(a=torch.nn.Dropout(0.5), b=torch.nn.Dropout(0.5))

    def fn(x):
        was = w.a.training
        w.a.eval()
        y = w.b(x)
        w.a.train(was)
        return y

    def join():
        w.b = w.a

    return trace(fn), then(join), lambda: [w.a.training, w.b.training]


@cases(hits=2)
def evaluation_mode_around_a_forward(trace):
    m = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))

    def fn(x):
        was = m.training
        m.eval()
        y = m(x)
        m.train(was)
        return y + m(x)

    return trace(fn), then(m.eval, m.train, m[0].eval), lambda: [m, *(part.training for part in m.modules())]


@cases(hits=2)
def evaluation_mode_that_was_not_asked_for(trace):
    m = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(3, 3))

    def fn(x):
        m.eval()
        y = m(x)
        m.train()
        return y

    return trace(fn), then(m.eval, m[0].eval), lambda: [part.training for part in m.modules()]


@cases(hits=3)
def mode_flipped_at_each_call(trace):
    m = torch.nn.Dropout(0.5)

    def fn(x):
        m.train(not m.training)
        return m(x)

    return trace(fn), then(m.eval), lambda: m.training


@cases(hits=8)
def settings_for_the_time_of_a_block(trace):
    settings = Thing(scale=1.0, mode="a")

    @contextlib.contextmanager
    def using(**values):
        old = {name: getattr(settings, name) for name in values}
        for name, value in values.items():
            setattr(settings, name, value)
        try:
            yield
        finally:
            for name, value in old.items():
                setattr(settings, name, value)

    def fn(x):
        with using(scale=3.0, mode="b"):
            y = x * settings.scale
            if x.sum() > 0:
                y = y + 1
            if x.sum() > 5:
                raise ValueError(settings.mode)
        return y * settings.scale

    steps = [call(k * X()) for k in (1, 1, -1, -1, 9, 9, 1, -1)]
    return trace(fn), [*steps, lambda: setattr(settings, "scale", 2.0), *steps], lambda: settings


@cases(hits=2)
def flag_that_is_set_over_a_side_exit(trace):
    o = Thing(flag=False)

    def inner(x):
        return x * 2 if o.flag else x

    def fn(x):
        o.flag = True
        try:
            if x.sum() > 0:
                return inner(x)
            return inner(x) + 1
        finally:
            o.flag = False

    steps = [call(k * X()) for k in (1, 1, -1, -1, 1, -1)]
    return trace(fn), [*steps, lambda: setattr(o, "flag", True), *steps], lambda: o


@cases(hits=2)
def set_for_an_opaque_function(trace):
    o = Thing(k=1.0)
    step = opaque(trace, lambda x: x * o.k)

    def fn(x):
        old = o.k
        o.k = 2.0
        y = step(x)
        o.k = old
        return y * o.k

    return trace(fn), then(), lambda: o


@cases(hits=3)
def set_for_an_autograd_function(trace):
    o = Thing(k=1.0)

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * o.k

        @staticmethod
        def backward(ctx, g):
            return g * o.k

    def fn(x):
        old = o.k
        o.k = 2.0
        y = Scale.apply(x)
        o.k = old
        return y

    return trace(fn), [call(X(grad=True))] * 4, lambda: o


@cases(hits=2)
def written_before_a_hook_reads_it(trace):
    o, w = Thing(k=torch.ones(3), seen=None, n=0), X(grad=True)

    def hook(g):
        o.seen, o.n = g, o.n + 1
        return g * o.k

    w.register_hook(hook)

    def fn(x):
        o.k = x * 2
        return torch.autograd.grad((w * x).sum(), w)[0]

    return trace(fn), then(), lambda: o


# ---------------------------------------------------------------- one key, one index, one attribute
@cases(hits=1)
def keys_that_are_equal(trace):
    class Number(enum.IntEnum):
        ONE = 1

    d = {1: None}

    def fn(x, key):
        d[1] = x
        d[key] = x * 2
        d[1] = x * 3
        return d[key] + 1

    return (
        trace(fn),
        [call(X(), key) for key in (True, True, 1.0, 1.0, 1, 1, Number.ONE, Number.ONE)],
        lambda: d,
    )


@cases(hits=4)
def key_read_as_another_number(trace):
    d = {1: 1.0}

    def fn(x):
        k = d[1.0]
        d[1] = k + 1
        y = x * d[True]
        d[1] = k
        return y

    return trace(fn), then(lambda: d.update({1: 5.0})), lambda: d


@cases(recordings=4)
def key_that_equals_nothing(trace):
    d = {}

    def fn(x):
        d[x.sum().item()] = x * 2
        return x + 1

    return trace(fn), [call(X() * float("nan"))] * 4, lambda: list(d.values())


@cases(eager="sets [-1] of a list")
def appended_and_then_assigned(trace):
    log = [X()]

    def fn(x):
        log.append(x * 2)
        log[-1] = x * 3
        log[0] = x
        return x + 1

    def cut():
        del log[1:]

    return trace(fn), then(cut), lambda: log


@cases(hits=1, eager="calls-method")
def index_out_of_range(trace):
    ring, o = [], Thing(failed=None)

    def fn(x):
        try:
            ring[1] = x * 2
        except IndexError:
            ring.append(x * 3)
            o.failed = x
        return x + 1

    return trace(fn), then(ring.clear), lambda: [ring, o]


@cases(hits=3)
def index_in_range_later(trace):
    o = Thing(items=[], failed=None)

    def fn(x):
        try:
            o.items[-1] = x * 2
        except IndexError:
            o.failed = x * 3
        return x + 1

    return trace(fn), then(lambda: o.items.append(None)), lambda: o


@cases(hits=2)
def order_of_new_entries(trace):
    d, o = {}, Thing()

    def fn(x):
        d["b"] = o.b = x
        d["a"] = o.a = x * 2
        d["b"] = o.b = x * 3
        return x + 1

    def clear():
        d.clear(), vars(o).clear()

    def drop():
        del d["b"], o.b

    return trace(fn), then(clear, drop), lambda: [list(d.items()), list(vars(o).items())]


@cases(hits=2)
def setter_that_comes_later(trace):
    class Model:
        pass

    o = Model()
    o.a = 1

    def fn(x):
        y = x * 2
        o.h = y
        y.add_(1)
        return y

    def change():
        Model.h = property(lambda self: self.kept, lambda self, value: vars(self).update(kept=value.clone()))

    return trace(fn), then(change), lambda: vars(o)


@cases(hits=3)
def descriptor_with_state_of_its_own(trace):
    class Scaled:
        k = 2.0

        def __get__(self, owner, kind=None):
            return owner.__dict__["_h"] * self.k

        def __set__(self, owner, value):
            owner.__dict__["_h"] = self.last = value

    class Model:
        h = Scaled()

    o = Model()
    o.h = X()

    def fn(x):
        o.h = x + o.h
        return o.h

    return trace(fn), then(lambda: setattr(Model.__dict__["h"], "k", 3.0)), lambda: vars(o)


@cases(hits=2)
def attributes_kept_in_a_dictionary(trace):
    class Proxy:
        def __init__(self):
            self.__dict__["store"] = {"h": X()}

        def __getattr__(self, name):
            try:
                return self.store[name]
            except KeyError:
                raise AttributeError(name) from None

        def __setattr__(self, name, value):
            self.store[name] = value

    o = Proxy()

    def fn(x):
        o.h = x * 2
        return o.h + getattr(o, "g", 1)

    return trace(fn), then(lambda: o.store.update(g=5), lambda: vars(o).update(h=X())), lambda: vars(o)


@cases(hits=2)
def instance_written_class_read(trace):
    class Model:
        h = None

    a, b = Model(), Model()

    def fn(x):
        a.h = x * 2
        return x * (1 if b.h is None else 2) * (1 if Model.h is None else 3)

    return trace(fn), then(lambda: setattr(Model, "h", 1)), lambda: [a.h, b.h]


@cases(hits=2)
def dictionaries_behind_one_another(trace):
    chain = ChainMap({}, {"a": X()})

    def fn(x):
        chain["b"] = x * 2
        return chain["a"] + chain["b"]

    return trace(fn), then(lambda: chain.maps[0].update(a=X() * 7)), lambda: list(chain.items())


@cases(hits=5)
def module_attribute_and_global(trace):
    me = sys.modules[__name__]

    def fn(x):
        me.WRITTEN = x * 2
        return WRITTEN + 1

    return trace(fn), then(lambda: setattr(me, "WRITTEN", None)), lambda: WRITTEN


@cases(hits=4)
def global_and_a_dictionary(trace):
    w = Thing(d={"WRITTEN": X()})

    def fn(x):
        global WRITTEN
        WRITTEN = x * 2
        return w.d["WRITTEN"] + 1

    def join():
        w.d = globals()

    return trace(fn), then(join), lambda: WRITTEN


@cases(hits=2)
def owner_replaced_by_the_write_before(trace):
    o, d = Thing(part=Thing(h=X())), {1: Thing(h=X())}

    def fn(x):
        first, second = vars(o)["part"], d[1.0]
        o.part = Thing(h=x * 3)
        d[1] = Thing(h=x * 4)
        first.h = x * 2
        second.h = x * 5
        return x + 1

    return trace(fn), then(), lambda: [o, d]


# ---------------------------------------------------------------- closures that write
WRAPPED = {
    "partial": lambda f: functools.partial(f),
    "method": lambda f: types.MethodType(lambda self, x: f(x), 1),
    "wrapper": lambda f: functools.wraps(f)(lambda x: f(x)),
    "default": lambda f: lambda x, f=f: f(x),
    "instance": lambda f: type("Called", (), {"__call__": lambda self, x: f(x)})(),
    "static": lambda f: type("Holder", (), {"f": staticmethod(f)}).f,
}


def counter():
    """A function that adds up, and how to look at its sum."""
    h = torch.zeros(3)

    def add(x):
        nonlocal h
        h = h + x
        return h

    return add, lambda: h


for name, wrap in WRAPPED.items():

    def closure_by(trace, wrap=wrap):
        (a, a_sum), (b, b_sum) = counter(), counter()
        o = Thing(f=wrap(a))

        def fn(x):
            return o.f(x) * 2

        def change():
            o.f = wrap(b)

        return trace(fn), then(change), lambda: [a_sum(), b_sum()]

    closure_by.__name__ += "_" + name
    cases(hits=2)(closure_by)


@cases(hits=2)
def inner_function_writes_an_outer_variable(trace):
    h = torch.zeros(3)

    def fn(x):
        def bump(value):
            nonlocal h
            h = h + value
            return h

        return bump(x) + [bump(x) for _ in range(2)][1]

    return trace(fn), then(), lambda: h


# ---------------------------------------------------------------- what is stored
@cases(hits=2)
def all_kinds_of_values(trace):
    @dataclass
    class Record:
        h: torch.Tensor
        n: int = 0
        items: list = field(default_factory=list)

    class Color(enum.Enum):
        RED = 1

    Pair = namedtuple("Pair", "a b")
    o = Thing(me=None)
    act = torch.nn.ReLU()

    def helper(x):
        return x

    def fn(x):
        y = x * 2
        o.pair, o.items, o.named = (y, x), [y, [x, y]], {"a": y, 1: (y,)}
        o.record, o.color, o.fields = Record(y), Color.RED, Pair(x, y)
        o.helper, o.module, o.relu, o.act = helper, torch, F.relu, act
        o.nothing, o.shape, o.dtype, o.part = None, x.shape, x.dtype, slice(1, 2)
        o.numbers, o.kind, o.ordered = {1, 2}, Thing, OrderedDict(b=y, a=x)
        o.again = o.items
        o.nested = Record(o.items, 3, o.named)
        o.me = o
        return y, o.items, o.again

    return trace(fn), then(), lambda: vars(o)


@cases(eager="returns-odd")
def method_of_a_result(trace):
    o = Thing(add=None, copy=None)

    def fn(x):
        y = x * 2
        items = [y]
        o.add, o.copy = y.add, items.copy
        return y

    return trace(fn), then(), lambda: o.add and [o.add(1), o.copy()]


@cases(eager="returns-odd")
def method_of_state(trace):
    o = Thing(add=None, w=X())

    def fn(x):
        o.add = o.w.add
        return x + 1

    return trace(fn), then(lambda: setattr(o, "w", X() * 9)), lambda: o.add and o.add(1)


@cases(eager="returns-odd")
def methods_returned_and_kept(trace):
    o, kept = Thing(items=[X()]), []

    def fn(x):
        y = x * 2
        return y.add, o.items.copy

    traced = trace(fn)

    def use(x):
        kept.append(traced(x))
        add, copy = kept[-1]
        return add(1), copy()

    return use, then(lambda: setattr(o, "items", [X() * 9])), lambda: o


@cases(hits=2)
def object_that_knows_its_owner(trace):
    o = Thing(child=None)

    def fn(x):
        o.child = child = Thing(parent=o, h=x * 2)
        return child.h

    return trace(fn), then(), lambda: o.child and [o.child.parent is o, o.child.h]


@cases(hits=2)
def one_list_in_many_places(trace):
    o = Thing(a=None, b=None, log=[])

    def fn(x):
        items = [x * 2]
        o.a, o.b = items, {"items": items}
        o.log.append(items)
        items.append(x * 3)
        return items

    return trace(fn), then(lambda: o.a.append(None)), lambda: o


# ---------------------------------------------------------------- the looks of a tensor, by two paths
@cases(hits=2)
def shape_of_a_tensor_that_changes_by_another_path(trace):
    w = Thing(b=X(1, 3))

    def fn(x):
        x.t_()
        return x * w.b.shape[0]

    return trace(fn), [*(call(X(1, 3)) for _ in range(3)), call(w.b), call(X(1, 3))], lambda: w


@cases(hits=1)
def shapes_of_two_tensors_of_the_state(trace):
    w = Thing(a=None, b=None)

    def fn(x):
        w.a.t_()
        return x * w.b.shape[0]

    def apart():
        w.a, w.b = X(1, 3), X(1, 3)

    def together():
        w.a = w.b = X(1, 3)

    steps = [apart, call(X())] * 3 + [together, call(X())] + [apart, call(X())]
    return trace(fn), steps, lambda: w


@cases(hits=2)
def size_of_a_tensor_that_grows_by_another_path(trace):
    w = Thing(b=X(3))

    def fn(x):
        x.resize_(6).zero_()
        return w.b.numel()

    return trace(fn), [*(call(X(3)) for _ in range(3)), call(w.b)], lambda: w


@cases(hits=2)
def gradient_cut_by_another_path(trace):
    p = X(3, grad=True)
    w = Thing(b=p * 3)

    def fn(x):
        x.detach_()
        return w.b.requires_grad, w.b * 2

    return trace(fn), [*(call(p * k) for k in range(3)), call(w.b)], lambda: w


@cases(hits=2)
def memory_written_by_another_path(trace):
    w = Thing(b=X(3), h=None)

    def fn(x):
        w.h = w.b[:2]
        x.add_(1)
        return w.b * 2, w.h

    return trace(fn), [*(call(X(3)) for _ in range(3)), call(w.b), call(w.b), call(X(3))], lambda: w


# ---------------------------------------------------------------- side exits
@cases(hits=5)
def writes_between_side_exits(trace):
    o = Thing(a=None, b=None, c=None, items=[None, None])

    def fn(x):
        y = x * 2
        o.a = y
        if x.sum() > 0:
            y = y + 1
            o.b = y
        else:
            o.items[0] = y
        y = y * 2
        o.c = y
        if y.max() > 5:
            o.items[1] = o.a = y
        y = y - 1
        if y.min() < -3:
            return o.a, o.c
        return o.items[0], o.items[1], y

    return (
        trace(fn),
        [call(k * X()) for k in (1, -1, 2, -2, 3, -3, 1, -1, 2, -2, 0.1, -0.1, 3, -3)],
        lambda: o,
    )


@cases(hits=5)
def random_numbers_and_writes_between_side_exits(trace):
    o = Thing(a=None, n=None, t=torch.zeros(3))

    def fn(x):
        o.a = x + torch.rand(3)
        o.t.add_(o.a)
        if o.a.sum() > 2:
            o.a, o.t = o.a * torch.rand(3), o.t * 0.5
        if o.a.max() > 1:
            o.n = o.a = F.dropout(o.a)
        if o.t.sum() > 3:
            o.t = torch.zeros(3)
        return o.a

    return trace(fn), [call(X())] * 20, lambda: o


@cases(hits=2)
def views_stored_before_a_side_exit(trace):
    o = Thing(a=None, b=None)

    def fn(x):
        y = x * 2
        o.a = y[1:]
        if x.sum() > 0:
            y.add_(1)
            o.b = y[:2]
        o.a.mul_(3)
        return y, o.a

    def scribble():
        o.a.add_(100)

    steps = [call(X()), call(-X()), scribble]
    return trace(fn), steps * 3, lambda: o


@cases(hits=2)
def gradients_through_side_exits(trace):
    o, p = Thing(h=torch.zeros(3)), X(grad=True)

    def fn(x):
        o.h = torch.tanh(o.h.detach() + x * p)
        if o.h.sum() > 0:
            o.h = o.h * p
        loss = (o.h * p).sum()
        if loss > 0.5:
            return loss, o.h
        return loss * 2, o.h

    return trace(fn), [call(k * X()) for k in (1, 1, -1, -1, 2, -2, 1, -1)], lambda: [o, p]


@cases(hits=2)
def best_so_far(trace):
    o = Thing(best=None, value=None)

    def fn(x):
        total = x.sum()
        if o.best is None or total > o.best:
            o.best, o.value = total, x.clone()
        return x + 1

    return trace(fn), [call(k * X()) for k in (1, 1, 2, 2, 1, 3, 3, 1)], lambda: o


@cases(hits=3)
def opaque_function_keeps_what_is_written_after(trace):
    o, seen = Thing(h=None, k=0), []

    def look(x):
        seen.append(x)
        return x + 1

    step = opaque(trace, look)

    def fn(x):
        y = step(x * 2)
        o.h = y
        if y.sum() > 3:
            o.k = 1
            return y * 2
        o.k = 2
        return y

    return trace(fn), [call(k * X()) for k in (1, 1, -1, -1, 1, -1, 1)], lambda: [o, seen]


@cases(hits=5)
def exception_of_an_inner_function_caught(trace):
    o = Thing(h=None, n=0, error=None)

    @trace
    def inner(x):
        o.h, o.n = x * 2, o.n + 1
        if x.sum() < 0:
            raise ValueError("negative")
        o.h = o.h + 1
        return o.h

    def fn(x):
        try:
            return inner(x)
        except ValueError as error:
            o.error = str(error)
            return inner(-x)

    steps = [call(k * X()) for k in (1, 1, -1, -1, 1, -1)]
    return trace(fn), steps + [call(k * X()).of(inner) for k in (1, 1, -1, -1, 1)], lambda: o


@cases(hits=3)
def random_write_then_a_read_of_the_argument_by_another_path(trace):
    o = Thing(w=torch.tensor([0.5, -1.5, 1.0]))

    def fn(x):
        x.normal_()
        return x * 2 if o.w.sum() > 0 else x

    return trace(fn), [call(X()), call(X()), call(o.w), call(o.w), call(X()), call(o.w)], lambda: o


# ---------------------------------------------------------------- constants that change after a look-up
@cases(hits=8)
def constants_behind_many_objects(trace):
    part = Thing(k=1.0, f=lambda x: x)
    o = Thing(a=Thing(b=part), pair=(1, [2.0]), items=[1.0], d={"x": 1.0})

    def fn(x):
        return o.a.b.f(x) * o.a.b.k * o.items[0] * o.pair[1][0] * o.d["x"]

    changes = [
        lambda: setattr(o.a.b, "k", 2.0),
        lambda: o.items.__setitem__(0, 3.0),
        lambda: o.pair[1].__setitem__(0, 5.0),
        lambda: o.d.update(x=7.0),
        lambda: setattr(o.a.b, "f", lambda x: x + 1),
        lambda: setattr(o, "a", Thing(b=Thing(k=11.0, f=lambda x: x))),
        lambda: vars(o.a.b).update(k=13.0),
        lambda: setattr(o, "d", {**o.d, "x": 17.0}),
        lambda: setattr(o.a.b, "__dict__", {"k": 19.0, "f": abs}),
    ]
    return trace(fn), then(*changes, times=2)


@cases(hits=8)
def constants_of_classes(trace):
    class Base:
        k = 1.0

    class Other:
        k = 50.0

    class Middle(Base):
        pass

    class Model(Middle):
        def f(self):
            return super().k

    o = Model()

    def fn(x):
        return x * o.k * o.f() * Model.k

    changes = [
        lambda: setattr(Base, "k", 2.0),
        lambda: setattr(Middle, "k", 3.0),
        lambda: setattr(Model, "k", 5.0),
        lambda: setattr(o, "k", 7.0),
        lambda: delattr(o, "k"),
        lambda: delattr(Model, "k"),
        lambda: delattr(Middle, "k"),
        lambda: setattr(Middle, "__bases__", (Other,)),
        lambda: setattr(Model, "f", lambda self: 9.0),
    ]
    return trace(fn), then(*changes, times=2)


@cases(hits=4)
def constants_beside_what_is_written(trace):
    o = Thing(h=X(), k=1.0, n=None)

    def fn(x):
        o.h = o.h * 0.5 + x * o.k
        o.n = o.h * 2
        return o.h

    def restart():
        o.h, o.k = X() * 4, 1.0

    changes = [
        lambda: setattr(o, "k", 2.0),
        lambda: setattr(o, "h", X(2, 3)),
        restart,
        lambda: setattr(o, "k", 2.0),
    ]
    return trace(fn), then(*changes), lambda: o


@cases.parametrize
def test_effects_attacked(make, expected):
    check(make, **expected)


def test_threads_that_replace_what_is_written_to():
    """The object that was there when the function read it is the one written to."""
    o, stop, wrong = Thing(part=Thing(h=None)), threading.Event(), []

    @lazytrace.traced
    def fn(x):
        part, y = o.part, x
        for _ in range(10):
            y = y @ x
        part.h = y
        return y

    def replace():
        while not stop.is_set():
            o.part = Thing(h=None)
            others = [Thing() for _ in range(50)]
            for _ in range(300):
                pass
            wrong.extend(other for other in others if vars(other))

    x = torch.eye(200)
    fn(x)
    thread, interval = threading.Thread(target=replace), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        thread.start()
        for _ in range(30):
            fn(x)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not wrong
    assert fn.stats().hits > 15
