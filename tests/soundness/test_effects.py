"""Writes to Python state: attributes, dictionaries, lists, cells, globals, buffers, once for each call."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F

import lazytrace
from tests.soundness.runner import Cases, X, call, check, opaque

cases = Cases()
WRITTEN = None
COUNT = 0


class Thing:
    """State with what the cases need."""

    def __init__(self, **values):
        self.__dict__.update(values)


def changing(times=2):
    """Inputs with changing values, then another shape, then the first again."""
    return [call(k * X()) for k in (1, 2, -1) for _ in range(times)] + [
        call(X(2, 3)),
        call(X(2, 3)),
        call(X()),
    ]


# ---------------------------------------------------------------- attributes
@cases(hits=7)
def attribute_set(trace):
    o = Thing(cache=None)

    def fn(x):
        o.cache = x * 2
        return x + 1

    return trace(fn), changing(), lambda: o


@cases(hits=7)
def attribute_set_and_returned(trace):
    o = Thing(cache=None)

    def fn(x):
        o.cache = x * 2
        return o.cache

    return trace(fn), changing(), lambda: o


@cases(hits=7)
def attribute_set_and_a_view_returned(trace):
    o = Thing(cache=None)

    def fn(x):
        o.cache = y = x * 2
        return y[:1], y

    return trace(fn), changing(), lambda: o


@cases(hits=3)
def attribute_holds_a_view_of_the_result(trace):
    o = Thing(cache=None)

    def fn(x):
        y = x * 2
        o.cache = y[1:]
        return y

    def write():
        o.cache.add_(100)

    return trace(fn), [call(X()), call(X()), write, call(X()), write, call(X())], lambda: o


@cases(hits=4)
def attribute_holds_the_input(trace):
    o = Thing(last=None)

    def fn(x):
        o.last = x
        return x * 2

    x = X()
    return trace(fn), [call(x), call(x), call(X()), call(X()), call(x[:2]), call(x)], lambda: o


@cases(hits=3)
def attribute_holds_a_view_of_the_input(trace):
    o = Thing(last=None)

    def fn(x):
        o.last = x[1:]
        return x * 2

    x = X()
    return (
        trace(fn),
        [call(x), call(x), lambda: o.last.zero_(), call(x), lambda: o.last.zero_(), call(x)],
        lambda: o,
    )


@cases(hits=6)
def attribute_holds_what_was_there(trace):
    o = Thing(a=X(), b=X() * 2)

    def fn(x):
        o.a, o.b = o.b, o.a
        return x * o.a

    return trace(fn), [call(X())] * 7, lambda: o


@cases(hits=5)
def attribute_read_before_it_is_written(trace):
    o = Thing(cache=torch.zeros(3))

    def fn(x):
        y = o.cache + x
        o.cache = y * 0.5
        return y

    return trace(fn), [call(X())] * 6, lambda: o


@cases(hits=7)
def attribute_written_then_read_back(trace):
    o = Thing(cache=torch.zeros(3))

    def fn(x):
        o.cache = x * 2
        y = o.cache + 1
        o.cache = o.cache * y
        return o.cache - y, o.cache is y

    return trace(fn), changing(), lambda: o


@cases(hits=7)
def attribute_written_twice(trace):
    o = Thing(cache=None)

    def fn(x):
        o.cache = x * 2
        o.cache = x * 3
        return x

    return trace(fn), changing(), lambda: o


@cases(hits=7)
def attribute_written_and_put_back(trace):
    o = Thing(cache=X())

    def fn(x):
        old = o.cache
        o.cache = x * 2
        y = o.cache * old
        o.cache = old
        return y

    return trace(fn), changing(), lambda: o


@cases(hits=3)
def attribute_grows_with_gradient(trace):
    o = Thing(total=torch.zeros(3))

    def fn(x):
        o.total = o.total + x.sin()
        return o.total.sum()

    return trace(fn), [call(X(grad=True))] * 5, lambda: o


@cases(hits=4)
def attribute_detached(trace):
    o = Thing(h=torch.zeros(3))

    def fn(x):
        h = torch.tanh(x + o.h)
        o.h = h.detach()
        return h

    return trace(fn), [call(X(grad=True))] * 5, lambda: o


@cases(hits=2)
def attribute_requires_grad_changes(trace):
    o = Thing(h=torch.zeros(3))

    def fn(x):
        o.h = o.h * 0.5 + x
        return o.h * 2

    w = X(grad=True)
    return trace(fn), [call(X()), call(X()), call(w), call(X()), call(w), call(X())], lambda: o


@cases(hits=3)
def attribute_of_an_attribute(trace):
    o = Thing(part=Thing(h=X()))
    other = Thing(h=X() * 5)

    def fn(x):
        o.part.h = o.part.h + x
        return o.part.h * 2

    swap = [call(X()), call(X()), lambda: setattr(o, "part", other), call(X()), call(X())]
    return trace(fn), swap, lambda: [o, other]


@cases(hits=3)
def one_object_by_two_paths(trace):
    shared = Thing(h=X())
    a, b = Thing(part=shared), Thing(part=shared)

    def fn(x):
        a.part.h = x * 2
        return b.part.h + 1

    def split():
        b.part = Thing(h=X() * 9)

    return trace(fn), [call(X()), call(X() + 1), call(X()), split, call(X()), call(X() + 1)], lambda: [a, b]


@cases(hits=3)
def one_object_by_two_paths_later(trace):
    a, b = Thing(part=Thing(h=X())), Thing(part=Thing(h=X() * 5))

    def fn(x):
        a.part.h = x * 2
        return b.part.h + 1

    def join():
        b.part = a.part

    return trace(fn), [call(X()), call(X() + 1), call(X()), join, call(X()), call(X() + 1)], lambda: [a, b]


@cases(hits=4)
def argument_object_written(trace):
    def fn(o, x):
        o.h = o.h + x
        return o.h * 2

    a, b = Thing(h=X()), Thing(h=X() * 3)
    return trace(fn), [call(o, X()) for o in (a, a, b, b, a)], lambda: [a, b]


@cases(hits=4)
def method_keeps_its_last_result(trace):
    class Model:
        def __init__(self):
            self.last = None

        @trace
        def step(self, x):
            y = x * 2 if self.last is None else x + self.last
            self.last = y
            return y

    a, b = Model(), Model()
    return a.step, [call(X())] * 4 + [call(X()).of(b.step)] * 3 + [call(X())], lambda: [a, b]


@cases(hits=4)
def slots_and_properties(trace):
    class Slotted:
        __slots__ = ("h", "n")

        def __init__(self):
            self.h, self.n = X(), 0

        @property
        def double(self):
            return self.h * 2

        @double.setter
        def double(self, value):
            self.n += 1
            self.h = value / 2

    o = Slotted()

    def fn(x):
        o.double = x + o.double
        return o.h

    return trace(fn), [call(X())] * 5, lambda: [o.h, o.n]


@cases(hits=3)
def setattr_hook_runs(trace):
    log = []

    class Watched:
        def __setattr__(self, name, value):
            log.append(name)
            object.__setattr__(self, name, value)

    o = Watched()

    def fn(x):
        o.h = x * 2
        return o.h

    return trace(fn), [call(X())] * 4, lambda: [o, list(log)]


@cases(eager="sets-attribute")
def attribute_deleted(trace):
    o = Thing(h=X())

    def fn(x):
        if hasattr(o, "h"):
            y = o.h * x
            del o.h
            return y
        o.h = x * 2
        return x

    return trace(fn), [call(X())] * 7, lambda: o


@cases(hits=3)
def class_attribute_written(trace):
    class Registry:
        last = None
        count = 0

    def fn(x):
        Registry.last = x * 2
        Registry.count += 1
        return Registry.last + 1

    return trace(fn), [call(X())] * 5, lambda: [Registry.last, Registry.count]


@cases(hits=3)
def class_attribute_shadowed(trace):
    class Model:
        h = torch.ones(3)

    o = Model()

    def fn(x):
        y = o.h * x
        o.h = y
        return y

    return trace(fn), [call(X())] * 4 + [lambda: vars(o).clear(), call(X()), call(X())], lambda: [o, Model.h]


@cases(hits=5)
def dataclass_field_replaced(trace):
    @dataclass
    class State:
        h: torch.Tensor = field(default_factory=X)
        n: int = 0

    s = State()

    def fn(x):
        s.h, s.n = s.h * 0.5 + x, s.n + 1
        return s.h

    return trace(fn), [call(X())] * 6, lambda: s


# ---------------------------------------------------------------- one branch only, exceptions
@cases(hits=2)
def written_on_one_branch(trace):
    o = Thing(cache=None, n=0)

    def fn(x):
        if x.sum() > 0:
            o.cache = x * 2
        return x + 1

    return trace(fn), [call(k * X()) for k in (1, -1, 1, -1, -2, 2, 3, -1)], lambda: o


@cases(hits=6)
def written_before_and_after_a_read(trace):
    o = Thing(a=None, b=None)

    def fn(x):
        o.a = x * 2
        if o.a.sum() > 0:
            o.b = o.a + 1
        else:
            o.a = o.a - 1
        return o.a

    return trace(fn), [call(k * X()) for k in (1, -1, 1, -1, -2, 2, 3, -1)], lambda: o


@cases(hits=12)
def written_before_random_and_a_read(trace):
    o = Thing(a=None, n=0)

    def fn(x):
        o.n += 1
        o.a = F.dropout(x)
        if o.a.sum() > 1:
            o.a = o.a * torch.rand(3)
        return o.a

    return trace(fn), [call(X())] * 14, lambda: o


@cases(hits=3)
def exception_after_a_write(trace):
    o = Thing(cache=None, n=0)

    def fn(x):
        o.cache = x * 2
        o.n += 1
        if x.sum() < 0:
            raise ValueError("negative")
        o.cache = o.cache + 1
        return x

    return trace(fn), [call(k * X()) for k in (1, 1, -1, -1, 2, -2, 1)], lambda: o


@cases(hits=2)
def operator_raises_after_a_write(trace):
    o = Thing(cache=None, log=[])

    def fn(x, w):
        o.cache = x * 2
        o.log.append(o.cache)
        y = torch.linalg.cholesky(w)
        o.cache = y
        return y

    good, bad = torch.eye(2), -torch.eye(2)
    return trace(fn), [call(X(), w) for w in (good, good, bad, bad, good, bad)], lambda: o


@cases(hits=3)
def exception_caught_after_a_write(trace):
    o = Thing(cache=None, failed=0)

    def fn(x):
        try:
            o.cache = x * 2
            if x.sum() < 0:
                raise ValueError
        except ValueError:
            o.failed = o.failed + 1
            o.cache = None
        return x + 1

    return trace(fn), [call(k * X()) for k in (1, 1, -1, -1, 2, -2, 1)], lambda: o


@cases(hits=5)
def written_in_finally(trace):
    o = Thing(depth=0, last=None)

    def fn(x):
        o.depth += 1
        try:
            if x.sum() < 0:
                return x * o.depth
            o.last = x * 2
        finally:
            o.depth -= 1
        return o.last

    return trace(fn), [call(k * X()) for k in (1, 1, -1, -1, 2, -2, 1)], lambda: o


@cases(hits=7)
def context_manager_that_writes(trace):
    o = Thing(depth=0, seen=None)

    class Scope:
        def __enter__(self):
            o.depth += 1
            return self

        def __exit__(self, *about):
            o.depth -= 1

    def fn(x):
        with Scope():
            o.seen = x * o.depth
        return o.seen

    return trace(fn), changing(), lambda: o


# ---------------------------------------------------------------- lists and other sequences
@cases(hits=5)
def list_appended(trace):
    log = []

    def fn(x):
        log.append(x * 2)
        return x + 1

    return trace(fn), [call(X())] * 6, lambda: log


@cases(eager="calls-method")
def list_appended_and_read(trace):
    log = [X()]

    def fn(x):
        y = log[-1] + x
        log.append(y)
        return torch.stack(log).sum(0), len(log)

    return trace(fn), [call(X())] * 6, lambda: log


@cases(hits=6)
def list_read_before_and_appended(trace):
    log = []

    def fn(x):
        n = len(log)
        log.append(x)
        return x * n

    return trace(fn), [call(X())] * 5 + [log.clear] + [call(X())] * 3, lambda: log


@cases(hits=6)
def list_element_assigned(trace):
    ring, o = [torch.zeros(3) for _ in range(3)], Thing(n=0)

    def fn(x):
        ring[o.n % 3] = x * 2
        o.n += 1
        return sum(ring)

    return trace(fn), [call(k * X()) for k in range(10)], lambda: [ring, o]


@cases(hits=6)
def list_popped_and_inserted(trace):
    window = [X(), X() * 2, X() * 3]

    def fn(x):
        oldest = window.pop(0)
        window.append(x + oldest)
        return sum(window)

    return trace(fn), [call(X())] * 7, lambda: window


@cases(hits=3)
def list_that_is_also_returned(trace):
    log = [X()]

    def fn(x):
        log[0] = x * 2
        return log

    return trace(fn), [call(X())] * 4, lambda: log


@cases(hits=3)
def list_replaced(trace):
    o = Thing(items=[X()])

    def fn(x):
        o.items = [*o.items[-1:], x * 2]
        return o.items

    return trace(fn), [call(X())] * 5, lambda: o


@cases(hits=3)
def list_of_an_argument(trace):
    def fn(x, out):
        out.append(x * 2)
        return len(out)

    return trace(fn), [call(X(), out) for out in ([], [], [X()], [X()], [], [X()], [X(), X()], [])]


@cases(hits=2)
def list_iterated_while_it_grows(trace):
    log = [X()]

    def fn(x):
        for i, item in enumerate(log):
            if i == 2:
                break
            if len(log) < 3:
                log.append(item + x)
        return log[-1] * 2

    return (
        trace(fn),
        [call(X())] * 4 + [lambda: log.__delitem__(slice(1, None))] + [call(X())] * 2,
        lambda: log,
    )


@cases(hits=4)
def slice_assigned_and_sorted(trace):
    items = [X(), X() * 2, X() * 3]

    def fn(x):
        items[1:] = [x, x * 2]
        items.reverse()
        return items[0]

    return trace(fn), [call(X())] * 5, lambda: items


@cases(hits=3)
def deque_of_results(trace):
    window = deque([X()], maxlen=3)

    def fn(x):
        window.append(x * 2)
        return sum(window)

    return trace(fn), [call(X())] * 6, lambda: list(window)


@cases(eager="calls-method")
def list_subclass_that_counts(trace):
    class Log(list):
        added = 0

        def append(self, item):
            self.added += 1
            super().append(item)

    log = Log()

    def fn(x):
        log.append(x * 2)
        return log[-1]

    return trace(fn), [call(X())] * 4, lambda: [list(log), log.added]


# ---------------------------------------------------------------- dictionaries
@cases(hits=7)
def dictionary_value_set(trace):
    d = {"y": None, "w": X()}

    def fn(x):
        d["y"] = x * d["w"]
        return d["y"] + 1

    return trace(fn), changing(), lambda: d


@cases(hits=2)
def dictionary_key_added(trace):
    d = {}

    def fn(x):
        if "y" not in d:
            d["y"] = x * 2
        return d["y"] + x

    return trace(fn), [call(X())] * 3 + [d.clear] + [call(X() * 3)] * 3, lambda: d


@cases(hits=2)
def dictionary_keyed_by_shape(trace):
    made = {}

    def fn(x):
        if x.shape not in made:
            made[x.shape] = torch.ones(x.shape).cumsum(-1)
        return x * made[x.shape]

    return trace(fn), changing() * 2, lambda: list(made.values())


@cases(hits=4)
def dictionary_order(trace):
    d = OrderedDict(a=X(), b=X())

    def fn(x):
        d["c"] = x * 2
        d.move_to_end("a")
        return next(iter(d.values())) + x

    return trace(fn), [call(X())] * 6, lambda: d


@cases(hits=3)
def dictionary_updated_and_popped(trace):
    d = {"n": 0}

    def fn(x):
        d.update(y=x * 2, n=d["n"] + 1)
        old = d.pop("z", None)
        d["z"] = d["y"]
        return d["z"] if old is None else old + d["z"]

    return trace(fn), [call(X())] * 6, lambda: d


@cases(eager="raised")
def setdefault_and_get(trace):
    d = {}

    def fn(x):
        mask = d.setdefault("mask", torch.ones(3).tril())
        return x * mask, d.get("other", 1)

    return trace(fn), [call(X())] * 3 + [lambda: d.update(other=2)] + [call(X())] * 2, lambda: d


@cases(hits=2)
def defaultdict_counts(trace):
    d = defaultdict(int)

    def fn(x):
        d["calls"] += 1
        return x * d["calls"] + d["never"]

    return trace(fn), [call(X())] * 5, lambda: dict(d)


@cases(hits=7)
def a_counter_counts(trace):
    seen = Counter(calls=0, loss=0.0)

    def fn(x):
        seen["calls"] += 1
        seen["loss"] += x.sum().item()
        return x * seen["calls"]

    steps = [*changing(), lambda: seen.update(calls=5), *changing(1)]
    return trace(fn), steps, lambda: list(seen.items())


class Sums(dict):
    """Sets its items as a dict does, and knows what is missing."""

    def __missing__(self, key):
        return 0.0

    def __delitem__(self, key):
        raise KeyError(key)


@cases(hits=5)
def a_class_of_dicts(trace):
    sums = Sums(n=1)

    def fn(x):
        sums["n"] += 1
        sums["x"] = x.sum()
        return x * sums["n"], sums["x"]

    def change():
        Sums.__setitem__ = lambda self, key, value: dict.__setitem__(self, key, 0)

    def back():
        del Sums.__setitem__

    steps = [call(X()) for _ in range(8)]
    return trace(fn), [*steps, change, *steps[:3], back, *steps[:3]], lambda: dict(sums)


class Doubled(dict):
    """Its items are set by a C callable of its own."""

    __setitem__ = dict.setdefault


@cases(eager="looks up __setitem__ of a Doubled")
def items_that_c_code_of_another_kind_sets(trace):
    kept = Doubled()

    def fn(x):
        kept["n"] = x.sum().item()
        return x + kept["n"]

    return trace(fn), changing(), lambda: dict(kept)


@cases(hits=7)
def an_ordered_dict_keeps_the_order(trace):
    order = OrderedDict(a=1, b=2)

    def fn(x):
        order["a"] += 1
        return x * order["a"]

    return trace(fn), changing(), lambda: list(order.items())


@cases(hits=3)
def dictionary_deleted_from(trace):
    d = {"a": X(), "b": X() * 2}

    def fn(x):
        if "a" in d:
            del d["a"]
        else:
            d["a"] = x
        return sum(d.values())

    return trace(fn), [call(X())] * 6, lambda: d


@cases(hits=3)
def result_in_two_places(trace):
    d, log, o = {}, [], Thing(h=None)

    def fn(x):
        o.h = d["h"] = y = x * 2
        log.append(y)
        return y

    def write():
        o.h.add_(100)

    return trace(fn), [call(X()), call(X()), write, call(X()), write, call(X())], lambda: [o, d, log]


@cases(hits=7)
def written_after_it_was_stored(trace):
    o = Thing(h=None)

    def fn(x):
        y = x * 2
        o.h = y
        y.add_(1)
        o.h.mul_(3)
        return y - 1

    return trace(fn), changing(), lambda: o


@cases(hits=7)
def container_stored_and_then_filled(trace):
    o = Thing(parts=None)

    def fn(x):
        parts = []
        o.parts = parts
        parts.append(x * 2)
        o.parts.append(x * 3)
        return parts

    return trace(fn), changing(), lambda: o


@cases(hits=3)
def object_made_and_stored(trace):
    o = Thing(state=None)

    def fn(x):
        o.state = Thing(h=x * 2, before=o.state.h if o.state is not None else None)
        return o.state.h

    return trace(fn), [call(X())] * 5, lambda: o


@cases(hits=3)
def object_made_stored_and_returned(trace):
    o = Thing(state=None)

    def fn(x):
        o.state = s = Thing(h=x * 2, items=[x, x + 1])
        s.me = s.items
        return s, s.items

    return trace(fn), [call(X())] * 4, lambda: o


@cases(eager="returns-odd")
def closure_stored(trace):
    o = Thing(f=None)

    def fn(x):
        y = x * 2
        o.f = lambda t: t + y
        return o.f(x)

    return trace(fn), [call(X()), call(X() * 2), call(X())], lambda: o.f and o.f(torch.ones(3))


# ---------------------------------------------------------------- cells and globals
@cases(hits=5)
def nonlocal_tensor(trace):
    h = torch.zeros(3)

    def fn(x):
        nonlocal h
        h = torch.tanh(h + x)
        return h * 2

    return trace(fn), [call(X())] * 6, lambda: h


@cases(hits=2)
def nonlocal_shared_by_two_functions(trace):
    h = torch.zeros(3)

    @trace
    def write(x):
        nonlocal h
        h = h + x
        return h

    read = trace(lambda x: h * x)
    both = [call(X()), call(X()).of(read), call(X()).of(read), call(X())]
    return write, both * 3, lambda: h


@cases(hits=5)
def nonlocal_counter(trace):
    n = 0

    def fn(x):
        nonlocal n
        n += 1
        return x * n

    return trace(fn), [call(X())] * 6, lambda: n


@cases(hits=2)
def global_tensor(trace):
    def fn(x):
        global WRITTEN
        WRITTEN = x * 2 if WRITTEN is None else WRITTEN + x
        return WRITTEN

    def reset():
        global WRITTEN
        WRITTEN = None

    return trace(fn), [reset, call(X()), call(X()), call(X()), reset, call(X()), call(X())], lambda: WRITTEN


@cases(hits=6)
def global_counter(trace):
    def fn(x):
        global COUNT
        COUNT = COUNT + 1
        return x * COUNT

    def reset():
        global COUNT
        COUNT = 0

    return trace(fn), [reset, *[call(X())] * 4, reset, *[call(X())] * 3], lambda: COUNT


@cases(eager="deletes-variable")
def cell_deleted_and_made_again(trace):
    h = X()

    def fn(x):
        nonlocal h
        y = h * x
        del h
        h = y + 1  # noqa: F841
        return y

    return trace(fn), [call(X())] * 5, lambda: h


@cases(hits=4)
def function_attribute(trace):
    def fn(x):
        helper.calls += 1
        helper.last = x * 2
        return helper.last

    def helper():
        pass

    helper.calls, helper.last = 0, None
    return trace(fn), [call(X())] * 5, lambda: [helper.calls, helper.last]


# Each call changes what the next one reads: there is a recording for each length.
@cases(recordings=6)
def mutable_default(trace):
    def fn(x, memory=[]):  # noqa: B006
        memory.append(x * 2)
        return torch.stack(memory).sum(0)

    return trace(fn), [call(X())] * 7


# ---------------------------------------------------------------- modules
class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 3))
        self.register_buffer("h", torch.zeros(3))
        self.steps = 0


# Could be a hit: nn.Module takes the name out of its set of buffers that are not saved.
@cases(hits=3)
def buffer_assigned(trace):
    class Cell(Recurrent):
        def forward(self, x):
            self.h = torch.tanh(x * self.weight + self.h)
            return self.h

    m = Cell()
    return trace(m.forward), [call(X())] * 5, lambda: [m, m.h]


# Could be a hit, as buffer_assigned.
@cases(hits=5)
def buffer_assigned_in_a_traced_module(trace):
    class Cell(Recurrent):
        def forward(self, x):
            self.h = torch.tanh(x * self.weight + self.h.detach())
            self.steps += 1
            return self.h

    m = Cell()
    fn = trace(m)
    other = [m.eval, call(X()), call(X()), m.train, lambda: m.h.zero_(), call(X())]
    return fn, [call(X())] * 4 + other, lambda: [m.h, m.steps, m.weight]


@cases(hits=3)
def buffer_assigned_none_and_back(trace):
    class Cell(Recurrent):
        def forward(self, x):
            h = x * 2 if self.h is None else self.h + x
            self.h = None if h.shape[0] == 2 else h
            return h

    m = Cell()
    reset = [lambda: setattr(m, "h", None), call(X()), call(X())]
    return trace(m.forward), [call(X()), call(X()), *reset, call(X())], lambda: [m.h]


@cases(hits=4)
def buffer_updated_in_place(trace):
    class Cell(Recurrent):
        def forward(self, x):
            self.h.mul_(0.9).add_(x.detach(), alpha=0.1)
            self.h += 1
            return x * self.h

    m = Cell()
    return trace(m.forward), [call(X())] * 5, lambda: [m.h, m._buffers["h"]]


@cases(hits=2)
def moving_average_of_parameters(trace):
    model, shadow = Recurrent(), Recurrent()

    def update(rate):
        with torch.no_grad():
            for mine, theirs in zip(shadow.parameters(), model.parameters(), strict=True):
                mine.mul_(1 - rate).add_(theirs, alpha=rate)
            shadow.h = shadow.h * (1 - rate) + model.h * rate
        shadow.steps += 1
        return shadow.h

    def train():
        model.weight.detach().add_(1)
        model.h = model.h + 1

    return (
        trace(update),
        [call(0.1), train, call(0.1), train, call(0.1), call(0.5)],
        lambda: [
            shadow.h,
            shadow.weight,
            shadow.steps,
        ],
    )


@cases(hits=1)
def batch_norm_statistics(trace):
    m = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3, momentum=None))
    steps = [
        call(X(4, 3)),
        call(X(4, 3)),
        call(X(4, 3)),
        m.eval,
        call(X(4, 3)),
        call(X(4, 3)),
        m.train,
        call(X(4, 3)),
    ]
    return trace(lambda x: m(x)), steps, lambda: m


@cases(hits=3)
def spectral_and_weight_norm(trace):
    a = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 3))
    b = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3))
    return (
        trace(lambda x: b(a(x))),
        [call(X(2, 3))] * 3 + [a.eval, call(X(2, 3)), call(X(2, 3))],
        lambda: [
            list(a.buffers()),
            list(b.parameters()),
        ],
    )


@cases(hits=3)
def parameter_replaced(trace):
    m = Recurrent()

    def fn(x):
        y = x * m.weight
        m.weight = torch.nn.Parameter(y.detach() * 0.5)
        return y

    return trace(fn), [call(X())] * 5, lambda: [m, m.weight]


@cases(eager="sets-item")
def submodule_replaced(trace):
    m = torch.nn.Module()
    m.act = torch.nn.ReLU()

    def fn(x):
        y = m.act(x)
        m.act = torch.nn.Tanh() if isinstance(m.act, torch.nn.ReLU) else torch.nn.ReLU()
        return y

    return trace(fn), [call(X())] * 5, lambda: repr(m)


@cases(hits=2)
def buffer_registered_lazily(trace):
    class Mask(torch.nn.Module):
        def forward(self, x):
            if not hasattr(self, "mask") or self.mask.shape != x.shape:
                self.register_buffer("mask", torch.ones(x.shape).tril(), persistent=False)
            return x * self.mask

    m = Mask()
    return (
        trace(m.forward),
        [call(X(3, 3)), call(X(3, 3)), call(X(2, 2)), call(X(2, 2)), call(X(3, 3))] * 2,
        lambda: m,
    )


@cases(hits=1)
def positions_cached_and_grown(trace):
    class Rotary(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.longest, self.table = 0, None

        def forward(self, x):
            n = x.shape[0]
            if n > self.longest:
                self.longest, self.table = n, torch.arange(n).float().cos()
            return x * self.table[:n]

    m = Rotary()
    return (
        trace(m.forward),
        [call(X(n)) for n in (2, 2, 2, 4, 4, 3, 3, 2, 5, 5, 4)],
        lambda: [m.longest, m.table],
    )


@cases(hits=3)
def module_hook_that_stores(trace):
    m, o = torch.nn.Linear(3, 3), Thing(seen=None)
    m.register_forward_hook(lambda module, args, out: setattr(o, "seen", out))
    return trace(lambda x: m(x) * 2), [call(X(2, 3))] * 4, lambda: o


# ---------------------------------------------------------------- caches of keys and values
@cases(hits=6)
def cache_concatenated(trace):
    o = Thing(k=torch.zeros(1, 3), v=torch.zeros(1, 3))

    def fn(q):
        o.k, o.v = torch.cat([o.k, q[None]]), torch.cat([o.v, q[None] * 2])
        return (o.k @ q).softmax(0) @ o.v

    def reset():
        o.k = o.v = torch.zeros(1, 3)

    steps = [call(k * X()) for k in (1, 2, 3)]
    return trace(fn), [*steps, reset, *steps, reset, *steps], lambda: o


@cases(hits=7)
def cache_as_a_list_of_pairs(trace):
    cache = [(torch.zeros(0, 3), torch.zeros(0, 3)) for _ in range(2)]

    def fn(q):
        for i, (k, v) in enumerate(cache):
            cache[i] = torch.cat([k, q[None]]), torch.cat([v, q[None]])
            q = (cache[i][0] @ q).softmax(0) @ cache[i][1]
        return q

    def reset():
        cache[:] = [(torch.zeros(0, 3), torch.zeros(0, 3)) for _ in range(2)]

    steps = [call(k * X()) for k in (1, 2, 3)]
    return trace(fn), [*steps, reset, *steps, reset, *steps], lambda: cache


@cases(hits=5, eager="outgrown")
def cache_written_in_place_at_a_position(trace):
    o = Thing(k=torch.zeros(8, 3), n=0)

    def fn(q):
        o.k[o.n] = q
        o.n += 1
        return (o.k[: o.n] @ q).softmax(0) @ o.k[: o.n]

    reset = [lambda: setattr(o, "n", 0)]
    return trace(fn), ([call(k * X()) for k in (1, 2, 3)] + reset) * 3, lambda: o


@cases(hits=2)
def cache_position_in_a_tensor(trace):
    keys, position = torch.zeros(4, 3), torch.zeros(1, dtype=torch.long)

    def fn(q):
        keys.index_copy_(0, position % 4, q[None])
        position.add_(1)
        return keys @ q

    return trace(fn), [call(k * X()) for k in range(8)], lambda: [keys, position]


@cases(hits=6)
def ring_buffer_of_views(trace):
    memory, o = torch.zeros(3, 3), Thing(rows=[], n=0)

    def fn(x):
        row = memory[o.n % 3]
        row.copy_(x)
        o.rows.append(row)
        o.n += 1
        return memory.sum(0), row

    return trace(fn), [call(k * X()) for k in range(8)], lambda: [o, memory]


@cases(hits=5)
def accumulated_outside_and_inside(trace):
    o = Thing(total=torch.zeros(3))

    def fn(x):
        o.total += x
        o.total = o.total * 1
        o.total[0] = 5
        return o.total

    return trace(fn), [call(X())] * 4 + [lambda: o.total.zero_(), call(X()), call(X())], lambda: o


# ---------------------------------------------------------------- nesting, threads, lifetimes
@cases(hits=2)
def nested_function_writes(trace):
    o = Thing(h=torch.zeros(3), n=0)

    @trace
    def inner(x):
        o.h = o.h + x
        o.n += 1
        return o.h * 2

    fn = trace(lambda x: inner(x) + inner(x * 2))
    return fn, [call(X()), call(X()).of(inner), call(X()), call(X()).of(inner), call(X())], lambda: o


@cases(hits=2)
def write_seen_by_a_guard_of_another_function(trace):
    o = Thing(k=2.0)
    read = trace(lambda x: x * o.k)

    @trace
    def write(x):
        o.k = 3.0 if o.k == 2.0 else 2.0
        return x + o.k

    return (
        write,
        [call(X()).of(read), call(X()).of(read), call(X()), call(X()).of(read), call(X())] * 2,
        lambda: o,
    )


@cases(hits=4)
def write_between_two_opaque_steps(trace):
    o = Thing(h=torch.zeros(3))
    step = opaque(trace, lambda x: x + o.h)

    def fn(x):
        y = step(x)
        o.h = y * 0.5
        return step(x) + y

    return trace(fn), [call(X())] * 5, lambda: o


@cases(hits=3)
def opaque_writes_what_is_read_after(trace):
    o = Thing(h=torch.zeros(3))

    def write(x):
        o.h = x * 2
        return x + 1

    step = opaque(trace, write)

    def fn(x):
        y = step(x)
        return y + o.h

    return trace(fn), [call(k * X()) for k in (1, 2, 3, 1)], lambda: o


@cases(hits=2)
def grad_attribute_written(trace):
    w = X(grad=True)

    def fn(x):
        w.grad = x * 2 if w.grad is None else w.grad + x
        return w * x

    return trace(fn), [call(X())] * 4, lambda: [w.grad]


@cases(hits=3)
def grad_zeroed_and_accumulated(trace):
    w = X(grad=True)

    def fn(x):
        w.grad = None
        loss = (w * x).square().sum()
        loss.backward()
        return loss.detach(), w.grad * 2

    return trace(fn), [call(k * X()) for k in (1, 2, 3, 1)], lambda: [w.grad]


@cases(hits=3)
def optimizer_step_inside(trace):
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([w], lr=0.1)

    def fn(x):
        optimizer.zero_grad()
        loss = (w * x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return trace(fn), [call(X())] * 5, lambda: [w, optimizer.state[w]]


@cases(hits=1)
def python_numbers_stored(trace):
    o = Thing(loss=0.0, best=9.0)

    def fn(x):
        o.loss = x.sum().item()
        o.best = min(o.best, o.loss)
        return x * o.best

    return trace(fn), [call(torch.tensor([v, 1.0])) for v in (5.0, 5.0, 3.0, 4.0, 4.0, 2.0, 5.0)], lambda: o


@cases(hits=4)
def shapes_stored(trace):
    o = Thing(shape=None, shapes=set())

    def fn(x):
        o.shape = x.shape
        o.shapes.add(tuple(x.shape))
        return x * 2

    return trace(fn), changing(), lambda: [o.shape, sorted(o.shapes)]


@cases(hits=3)
def mode_stored(trace):
    o = Thing(grad=None, dtype=None)

    def fn(x):
        o.grad, o.dtype = torch.is_grad_enabled(), torch.get_default_dtype()
        return x * 2

    def without(x):
        with torch.no_grad():
            return traced(x)

    traced = trace(fn)
    return traced, [call(X()), call(X()), call(X()).of(without), call(X()).of(without), call(X())], lambda: o


@cases(hits=3)
def write_under_no_grad_and_inference(trace):
    o = Thing(h=None)

    def fn(x):
        with torch.no_grad():
            o.h = x * 2
        return o.h * x

    def inference(x):
        with torch.inference_mode():
            return traced(x)

    traced = trace(fn)
    x = X(grad=True)
    return traced, [call(x), call(x), call(x).of(inference), call(x).of(inference), call(x)], lambda: o


@cases(hits=1)
def frozen_after_the_first_call(trace):
    o = Thing(scale=None, ready=False)

    def fn(x):
        if not o.ready:
            o.scale, o.ready = x.abs().max() + 1, True
        return x / o.scale

    restart = [lambda: setattr(o, "ready", False)]
    return trace(fn), [call(X()), call(X() * 2), *restart, call(X() * 3), call(X()), call(X())], lambda: o


@cases(eager="returns-odd")
def weak_references_to_results(trace):
    o = Thing(ref=None, h=None)

    def fn(x):
        o.h = x * 2
        o.ref = weakref.ref(o.h)
        return x + 1

    return trace(fn), [call(X())] * 4, lambda: [o.h, o.ref and o.ref() is o.h]


@cases(eager="tensor-escapes")
def old_value_dies_at_the_write(trace):
    died = []

    class Held(torch.Tensor):
        def __del__(self):
            died.append(1)

    o = Thing(h=None)

    def fn(x):
        o.h = (x * 2).as_subclass(Held)
        return x + 1

    return trace(fn), [call(X())] * 4, lambda: [len(died)]


# ---------------------------------------------------------------- where and how it is written
@cases(hits=2)
def class_gets_a_setattr_later(trace):
    o, log = Thing(h=None), []

    def fn(x):
        o.h = x * 2
        return x + 1

    class Watched(Thing):
        def __setattr__(self, name, value):
            log.append(name)
            object.__setattr__(self, name, value)

    def change():
        o.__class__ = Watched

    return trace(fn), [call(X()), call(X()), change, call(X()), call(X())], lambda: [vars(o), list(log)]


@cases(hits=1)
def class_gets_a_property_later(trace):
    class Model:
        pass

    o = Model()

    def fn(x):
        o.h = x * 2
        return x + 1

    def change():
        Model.h = property(lambda self: None, lambda self, value: vars(self).update(other=value))

    return trace(fn), [call(X()), call(X()), change, call(X()), call(X())], lambda: vars(o)


@cases(hits=2)
def buffer_becomes_a_plain_attribute(trace):
    m = Recurrent()

    def fn(x):
        m.h = m.h + x
        return m.h * 2

    def change():
        h = m.h
        del m.h
        m.h = h

    return trace(fn), [call(X()), call(X()), change, call(X()), call(X())], lambda: [m, m.h, list(m._buffers)]


@cases(hits=1)
def plain_attribute_becomes_a_buffer(trace):
    m = Recurrent()
    m.cache = None

    def fn(x):
        m.cache = x * 2
        return m.cache + 1

    def change():
        del m.cache
        m.register_buffer("cache", torch.zeros(3))

    return (
        trace(fn),
        [call(X()), call(X()), change, call(X()), call(X())],
        lambda: [m, m.cache, list(m._buffers)],
    )


@cases(hits=1)
def plain_attribute_becomes_a_parameter(trace):
    m = Recurrent()
    m.cache = None

    def fn(x):
        m.cache = x * 2
        return x + 1

    def change():
        m.cache = torch.nn.Parameter(X())

    return trace(fn), [call(X()), call(X()), change, call(X()), call(X())], lambda: [m, list(m._parameters)]


@cases(hits=7)
def written_by_attribute_read_by_dictionary(trace):
    o = Thing(h=X())

    def fn(x):
        o.h = x * 2
        y = vars(o)["h"] + 1
        o.__dict__["h"] = y
        return getattr(o, "h") * 2  # noqa: B009

    return trace(fn), changing(), lambda: o


@cases(hits=4)
def names_computed(trace):
    o = Thing(h0=X(), h1=X(), turn=0)

    def fn(x):
        name = f"h{o.turn % 2}"
        setattr(o, name, getattr(o, name) + x)
        o.turn += 1
        return o.h0 - o.h1

    return trace(fn), [call(X())] * 6, lambda: o


@cases(hits=4)
def nested_containers_written(trace):
    d = {"a": {"b": [X(), {"c": X()}]}}

    def fn(x):
        d["a"]["b"][1]["c"] = d["a"]["b"][0] * x
        d["a"]["b"][0] = x
        return d["a"]["b"][1]["c"]

    def change():
        d["a"]["b"] = [X() * 3, {"c": None}]

    return trace(fn), [call(X()), call(X() * 2), call(X()), change, call(X()), call(X())], lambda: d


# Each call changes what the next one reads, and which two are one.
@cases(hits=1)
def two_arguments_that_are_one_list(trace):
    def fn(x, a, b):
        a.append(x * 2)
        return len(b), b[-1] if b else x

    both, other = [], []
    return trace(fn), [
        call(X(), both, both),
        call(X(), both, both),
        call(X(), both, other),
        call(X(), other, both),
    ] * 4


@cases(recordings=6)
def key_from_a_value(trace):
    d = {}

    def fn(x):
        key = int(x.sum())
        d[key] = x * 2
        return d[key] + len(d)

    return trace(fn), [call(torch.tensor([v, 1.0])) for v in (1.0, 1.0, 2.0, 2.0, 1.0, 3.0)], lambda: d


@cases(hits=1)
def tensor_as_a_key(trace):
    d, w = {}, X()

    def fn(x):
        d[w] = x * 2
        return d[w] + len(d)

    return trace(fn), changing(), lambda: list(d.items())


@cases(eager="reads a container with a Key as a key")
def key_with_its_own_equality(trace):
    log = []

    class Key:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            log.append(1)
            return True

    d = {Key(): X()}

    def fn(x):
        d[Key()] = x * 2
        return len(d)

    return trace(fn), [call(X())] * 4, lambda: [list(d.values()), len(log)]


@cases(hits=2)
def set_of_names(trace):
    seen = set()

    def fn(x, name):
        new = name not in seen
        seen.add(name)
        return x * 2 if new else x

    return trace(fn), [call(X(), name) for name in ("a", "a", "a", "b", "b", "a")], lambda: sorted(seen)


@cases(hits=1)
def attribute_of_a_parameter(trace):
    w = X(grad=True)
    w.cached = None

    def fn(x):
        if w.cached is None:
            w.cached = (w * 2).detach()
        return x * w.cached

    return (
        trace(fn),
        [call(X())] * 3 + [lambda: setattr(w, "cached", None)] + [call(X())] * 2,
        lambda: [w.cached],
    )


@cases(eager="sets-attribute")
def attribute_of_an_argument_tensor(trace):
    def fn(x):
        x.seen = getattr(x, "seen", 0) + 1
        return x * x.seen

    x, y = X(), X()
    return trace(fn), [call(t) for t in (x, x, y, x, y)], lambda: [getattr(t, "seen", None) for t in (x, y)]


@cases(eager="returns a tensor that has attributes of its own")
def attribute_of_a_result(trace):
    o = Thing(h=None)

    def fn(x):
        y = x * 2
        y.note = "made here"
        y.source = x
        o.h = y
        return y

    return trace(fn), [call(X())] * 4, lambda: [o, o.h is not None and (o.h.note, o.h.source)]


@cases(hits=3)
def state_of_a_list_read_whole(trace):
    log, o = [1, 2], Thing(n=0)

    def fn(x):
        o.n = sum(log)
        log.append(o.n)
        return x * len(log)

    return trace(fn), [call(X())] * 5, lambda: [log, o]


@cases(hits=4)
def written_list_is_iterated_after(trace):
    parts = [X(), X() * 2]

    def fn(x):
        parts[0] = x
        total = sum(p * i for i, p in enumerate(parts, 1))
        parts[1] = total
        return [p + 1 for p in parts]

    return trace(fn), [call(X())] * 5, lambda: parts


@cases(hits=2)
def existing_object_moved(trace):
    a, b = Thing(items=[X()]), Thing(items=[X() * 2])

    def fn(x):
        a.items = b.items
        a.items.append(x)
        return len(b.items)

    def change():
        b.items = []

    return trace(fn), [call(X()), call(X()), change, call(X()), call(X())], lambda: [a, b]


@cases(hits=4)
def state_that_is_the_argument(trace):
    o = Thing(h=X())

    def fn(x):
        o.h = x + o.h
        return o.h * x

    def on_itself(k):
        return traced(o.h)

    traced = trace(fn)
    return (
        traced,
        [call(X()), call(0).of(on_itself), call(0).of(on_itself), call(X()), call(0).of(on_itself)],
        lambda: o,
    )


@cases(hits=9)
def result_fed_back(trace):
    o = Thing(h=None)

    def fn(x):
        o.h = y = x * 0.5
        return y

    def loop(x):
        for _ in range(4):
            x = traced(x)
        return x, x is o.h

    traced = trace(fn)
    return loop, [call(X()), call(X()), call(X(grad=True))], lambda: o


@cases(hits=5)
def tensor_written_and_stored_in_turns(trace):
    o = Thing(front=torch.zeros(3), back=torch.ones(3))

    def fn(x):
        o.back.copy_(o.front + x)
        o.front, o.back = o.back, o.front
        return o.front

    return trace(fn), [call(X())] * 6, lambda: o


@cases(hits=1)
def write_of_equal_but_other_numbers(trace):
    o = Thing(k=1)

    def fn(x, k):
        o.k = k
        return x * o.k

    return trace(fn), [call(X(), k) for k in (1, 1.0, True, 1, 1.0, -0.0, 0.0, 0)], lambda: o


@cases(hits=3)
def written_back_what_is_equal(trace):
    o = Thing(k=1.0, name="a")

    def fn(x):
        o.k = 1
        o.name = "".join(["a"])
        return x * o.k

    def change():
        o.k, o.name = 2.5, "b"

    return trace(fn), [call(X()), call(X()), change, call(X()), call(X()), change, call(X())], lambda: o


@cases(hits=2)
def lazily_initialized_by_a_property(trace):
    class Model:
        _table = None
        made = 0

        @property
        def table(self):
            if self._table is None:
                self.made += 1
                self._table = torch.arange(3.0)
            return self._table

    m = Model()
    return (
        trace(lambda x: x * m.table),
        [call(X())] * 3 + [lambda: setattr(m, "_table", None)] + [call(X())] * 3,
        lambda: m,
    )


@cases(hits=3)
def write_in_a_recursion(trace):
    o = Thing(depth=0, seen=[])

    def fn(x):
        o.depth += 1
        o.seen.append(x * o.depth)
        y = fn(x - 1) if o.depth < 3 else x
        o.depth -= 1
        return y + o.depth

    return trace(fn), [call(X())] * 4, lambda: o


@cases(hits=3)
def write_in_a_comprehension_and_a_generator(trace):
    o = Thing(n=0, h=X())

    def bump(x):
        o.n += 1
        o.h = o.h + x
        return o.h

    return (
        trace(lambda x: sum(bump(x) for _ in range(3)) + sum([bump(x) for _ in range(2)])),
        [call(X())] * 4,
        lambda: o,
    )


@cases(recordings=6)
def limit_of_one_trace(trace):
    o = Thing(h=torch.zeros(3), n=0)

    def fn(x):
        o.h = o.h[:1] + x
        o.n += 1
        return o.h * 2

    return trace(fn, cache_limit=1), [call(t) for t in (X(), X(2, 3), X(), X(), X(2, 3), X(2, 3))], lambda: o


@cases(hits=5)
def unchecked_effects(trace):
    o = Thing(h=torch.zeros(3), log=[])

    def fn(x):
        o.h = torch.tanh(o.h + x)
        o.log.append(o.h)
        return o.h

    return trace(fn, check=False), [call(X())] * 6, lambda: o


@cases.parametrize
def test_effects(make, expected):
    check(make, **expected)


@pytest.mark.parametrize("grad", [False, True])
def test_replaced_state_is_freed(grad):
    o = Thing(h=None)

    @lazytrace.traced
    def fn(x):
        o.h = x * 2
        return x + 1

    alive = []
    for _ in range(6):
        fn(torch.ones(3, requires_grad=grad))
        alive.append(weakref.ref(o.h))
    assert [ref() is not None for ref in alive] == [False] * 5 + [True]
    o.h = None
    assert alive[-1]() is None


def test_threads_append_each_once():
    log = []

    @lazytrace.traced
    def fn(x):
        log.append(x * 2)
        return x + 1

    fn(torch.ones(()))
    gate = threading.Barrier(4)

    def work():
        gate.wait()
        for _ in range(25):
            fn(torch.ones(()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(log) == 101
    assert len({id(t) for t in log}) == 101
    assert fn.stats().calls == 101


def test_effects_reach_the_instance_that_was_called():
    class Model:
        def __init__(self, k):
            self.k, self.h = k, None

        @lazytrace.traced
        def step(self, x):
            self.h = x * self.k
            return self.h

    models = [Model(k) for k in (1.0, 2.0, 3.0)]
    for _ in range(3):
        for m in models:
            assert m.step(torch.ones(())) is m.h
    assert [m.h.item() for m in models] == [1.0, 2.0, 3.0]
