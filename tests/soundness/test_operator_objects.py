"""Getters and callers of the operator module, dispatch by class, heaps: what C code would do unseen."""

from __future__ import annotations

import bisect
import collections
import functools
import heapq
import itertools
import operator
import sys
import weakref

import pytest
import torch

from tests.soundness.runner import Cases, Holder, X, agree, around, call, calls, check

cases = Cases()


# ---------------------------------------------------------------- partials of functions of C
PARTIALS = {
    "named": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
    "first": functools.partial(torch.add, torch.ones(4)),
    "of_a_method": functools.partial(torch.Tensor.mul, other=2),
    "of_a_bound_method": functools.partial(torch.arange(4.0).add),
    "nothing": functools.partial(torch.tanh),
    "of_a_partial": functools.partial(functools.partial(torch.clamp, min=-1), max=1),
    "named_again": lambda x: functools.partial(torch.sum, dim=0)(x, dim=1),
    "with_sizes": lambda x: functools.partial(torch.reshape, shape=(x.shape[0] * 2, 2))(x),
}


@pytest.mark.parametrize("name", PARTIALS)
def test_partials_at_all_sizes(name):
    """What a partial calls follows sizes as it does where Python calls it."""

    def make(trace):
        function = PARTIALS[name]
        sizes = (3, 5, 7, 2, 9, 5)
        return trace(lambda x: function(x) * x.shape[0]), [call(torch.randn(n, 4)) for n in sizes]

    check(make, hits=4)


@cases(hits=5)
def partials_that_change(trace):
    held = Holder(act=functools.partial(torch.clamp, min=0))

    def change(act):
        return lambda: setattr(held, "act", act)

    steps = [
        *calls(2),
        change(functools.partial(torch.clamp, min=0.5)),
        *calls(2),
        change(functools.partial(torch.clamp, max=0.5)),
        *calls(2),
        change(functools.partial(torch.mul, torch.ones(3))),
        *calls(2),
        change(functools.partial(torch.relu)),
        *calls(2),
    ]
    return trace(lambda x: held.act(x)), steps, lambda: None


@cases(hits=1)
def a_partial_that_is_set_otherwise(trace):
    act = functools.partial(torch.clamp, min=0)

    def set_state():
        act.__setstate__((torch.clamp, (), {"max": 0.25}, {}))

    return trace(lambda x: act(x)), [*calls(2), set_state, *calls(1)], lambda: None


@cases(eager="raised")
def a_partial_that_takes_no_such_argument(trace):
    act = functools.partial(torch.clamp, nothing=0)

    return trace(lambda x: act(x)), calls(3), lambda: None


LOOKS = {
    "locals": (functools.partial(locals), sorted),
    "dir": (functools.partial(dir), list),
    "vars": (functools.partial(vars), sorted),
    "eval": (functools.partial(eval, "sorted(locals())"), list),
    "globals": (functools.partial(globals), lambda found: "LOOKS" in found),
    "of_a_partial": (functools.partial(functools.partial(locals)), sorted),
    "frame": (functools.partial(sys._getframe), lambda found: found.f_code.co_name),
}


@pytest.mark.parametrize("name", LOOKS)
def test_partials_of_what_looks_at_its_caller(name):
    """It finds the code that calls the partial, not what stands for that."""
    look, shown = LOOKS[name]
    firsts = []

    def make(trace):
        def fn(x):
            twice = x * 2
            found = look()
            return twice, shown(found)

        function = trace(fn)

        def call_it(x):
            firsts.append(function(x)[1])
            return firsts[-1]

        return call_it, calls(3)

    agree(make)
    assert all(first == firsts[0] for first in firsts)


@cases(eager="which lazytrace cannot see into")
def a_class_of_partials_that_shows_something_else(trace):
    class Shown(functools.partial):
        keywords = property(lambda self: {})

    act = Shown(torch.clamp, min=0)

    def change():
        functools.partial.keywords.__get__(act)["min"] = 0.25

    return trace(lambda x: act(x)), [*calls(2), change, *calls(2)], lambda: None


@cases(hits=5)
def a_partial_that_the_call_makes_and_that_shows_something_else(trace):
    class Bound(functools.partial):
        __slots__ = ("func",)

        def __init__(self, function):
            self.func = function

    state = Holder(k=2.0)

    def scale(a, b):
        return a * b * state.k

    def step(x):
        return Bound(functools.partial(scale, x))(x)

    def change():
        state.k = 3.0

    return trace(step), [*calls(3), change, *calls(4)], lambda: state


GIVEN_BACK = {
    "the largest": lambda get, other: max(get, other, key=lambda one: 1),
    "the default": lambda get, other: min([], default=get),
    "a default beside a key": lambda get, other: min([], key=other, default=get),
    "no iterable": lambda get, other: sorted(get),
    "nothing to go through": lambda get, other: list(map(get, other)),
}


@pytest.mark.parametrize("way", GIVEN_BACK)
def test_a_getter_that_c_code_does_not_call_is_itself(way):
    """What stands for one that is called was put in its place wherever it stood among the arguments."""

    def make(trace):
        get, other = operator.itemgetter(1), operator.attrgetter("real")

        def step(x):
            try:
                return x * 2, GIVEN_BACK[way](get, other) is get
            except TypeError as error:
                return x, str(error)

        return trace(step), calls(3)

    agree(make)


# ---------------------------------------------------------------- attributes
@cases(hits=3)
def a_dotted_name(trace):
    held = Holder(a=Holder(b=X()))
    get = operator.attrgetter("a.b")

    def step(x):
        return get(held) * x

    def change():
        held.a = Holder(b=X() * 5)

    def replace():
        held.a.b = 3.0

    return trace(step), [*calls(3), change, *calls(3), replace, *calls(3)], lambda: held.a.b


@cases(hits=3)
def names_of_a_module(trace):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    get = operator.attrgetter("0.weight", "training")

    def step(x):
        return get(model), x * 2

    def change():
        model[0].weight = torch.nn.Parameter(torch.ones(2, 3))

    return trace(step), [*calls(3), change, *calls(3), model.eval, *calls(3)], lambda: model.state_dict()


class Computed:
    def __init__(self):
        self.asked = 0

    @property
    def value(self):
        self.asked += 1
        return Holder(t=X() * 2)

    def __getattr__(self, name):
        if name == "missing":
            return Holder(t=self.asked)
        raise AttributeError(name)


@cases(hits=2)
def properties_and_fallbacks(trace):
    held = Computed()
    both = operator.attrgetter("value.t", "missing.t")

    def step(x):
        return both(held)[0] * x

    def change():
        Computed.value = property(lambda self: Holder(t=X() * 7))

    original = Computed.value

    def back():
        Computed.value = original

    return trace(step), [*calls(4), change, *calls(3), back, *calls(2)], lambda: held.asked


@cases(hits=2)
def a_getter_that_is_exchanged(trace):
    held = Holder(get=operator.attrgetter("a.b"), a=Holder(b=X(), c=X() * 9))

    def step(x):
        return held.get(held) * x

    def change():
        held.get = operator.attrgetter("a.c")

    return trace(step), [*calls(3), change, *calls(3)]


@cases(hits=2)
def names_that_are_missing(trace):
    held = Holder(a=Holder(b=2.0))
    get = operator.attrgetter("a.c")

    def step(x):
        try:
            return get(held) * x
        except AttributeError as error:
            return str(error), x

    def change():
        held.a.c = 4.0

    return trace(step), [*calls(3), change, *calls(3)]


@cases(hits=3)
def getattr_by_a_dotted_name(trace):
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 3)))

    def step(x, name="0.0.weight"):
        return functools.reduce(getattr, name.split("."), model) * x

    def change():
        model[0][0] = torch.nn.Linear(3, 3)

    return trace(step), [*calls(3), change, *calls(3), call(X(), "0.0.bias"), call(X(), "0.0.bias")]


# ---------------------------------------------------------------- methods
@cases(hits=3)
def a_method_by_name(trace):
    total, top = operator.methodcaller("sum", 0), operator.methodcaller("topk", k=2)

    def step(x):
        return total(x), top(x)

    return trace(step), calls(5)


class Scaled:
    scale = 2

    def by(self, x, *, more=1):
        return x * self.scale * more


@cases(hits=4)
def a_method_that_is_patched(trace):
    held, by = Scaled(), None

    def step(x):
        return by(held) * 2

    def patch():
        held.by = lambda x, more: x * 100

    def patch_class():
        del held.by
        Scaled.scale = 3

    def restore():
        Scaled.scale = 2

    by = operator.methodcaller("by", 1.5, more=3)
    return trace(lambda x: step(x) * x), [
        *calls(3),
        patch,
        *calls(3),
        patch_class,
        *calls(3),
        restore,
        *calls(2),
    ]


@cases(eager="reads-unknown")
def a_caller_with_a_list(trace):
    weights = [1.0, 2.0]
    by = operator.methodcaller("new_tensor", weights)

    def step(x):
        return by(x), x * 2

    return trace(step), [*around(lambda: weights.append(3.0), X()), *calls(2)], lambda: weights


# ---------------------------------------------------------------- as keys
@cases(hits=4)
def entries_that_are_sorted(trace):
    held = [("b", 2.0), ("a", 3.0), ("c", 1.0)]

    def step(x):
        first = sorted(held, key=operator.itemgetter(1))[0][0]
        last = max(held, key=operator.itemgetter(0))
        held_too = list(held)
        held_too.sort(key=operator.itemgetter(1, 0), reverse=True)
        return first, last, held_too, x * 2

    def change():
        held[0] = ("b", 0.0)

    return trace(step), [*calls(3), change, *calls(3), lambda: held.append(("d", -1.0)), *calls(3)]


@cases(hits=4)
def numbers_that_are_sorted(trace):
    def step(x):
        made = {"sum": x.sum().item(), "max": x.max().item(), "min": x.min().item()}
        return sorted(made.items(), key=operator.itemgetter(1))[0][0], x

    return trace(step), [call(k * X()) for k in (1, 2, 3, -1, -2, -3, 1)]


@cases(hits=4)
def objects_that_are_sorted_by_attributes(trace):
    held = [Holder(rank=3, of=Holder(t=X())), Holder(rank=1, of=Holder(t=X() * 2))]

    def step(x):
        first = min(held, key=operator.attrgetter("rank"))
        return first.of.t * x, list(map(operator.attrgetter("of.t"), held))

    def change():
        held[0].rank = 0

    return trace(step), [*calls(3), change, *calls(3), lambda: held.pop(), *calls(3)]


class Ordered:
    def __init__(self, value):
        self.value = value

    def __getitem__(self, key):
        return -self.value * key


@cases(hits=4)
def items_of_objects(trace):
    held = [Ordered(1), Ordered(3), Ordered(2)]

    def step(x):
        return [one.value for one in sorted(held, key=operator.itemgetter(2))], x * 2

    def patch():
        Ordered.__getitem__ = lambda self, key: self.value * key

    original = Ordered.__getitem__

    def restore():
        Ordered.__getitem__ = original

    return trace(step), [*calls(3), patch, *calls(3), restore, *calls(2)]


@cases(hits=3)
def methods_that_are_mapped(trace):
    held = [X(), X() * 2]

    def step(x):
        return [y * x for y in map(operator.methodcaller("exp"), held)]

    def change():
        held[1] = X() * 3

    return trace(step), [*calls(3), change, *calls(3)]


@cases(hits=3)
def groups_by_an_item(trace):
    held = [("a", 1), ("a", 2), ("b", 3)]

    def step(x):
        groups = itertools.groupby(held, operator.itemgetter(0))
        return {key: sum(v for _, v in group) for key, group in groups}, x * 2

    def change():
        held[1] = ("b", 2)

    return trace(step), [*calls(3), change, *calls(3)]


@cases(hits=2)
def keys_that_raise(trace):
    held = [(1, 2), (3,)]

    def step(x):
        try:
            return sorted(held, key=operator.itemgetter(1)), x
        except IndexError as error:
            return str(error), x * 2

    def change():
        held[1] = (3, 0)

    return trace(step), [*calls(4), change, *calls(4)]


# ---------------------------------------------------------------- what calls itself
class Endless:
    pass


Endless.__call__ = Endless()


@cases(hits=0, eager="which lazytrace cannot see into")
def an_object_that_its_own_class_calls(trace):
    def step(x):
        try:
            return Endless()(x)
        except RecursionError:
            return x * 2

    return trace(step), calls(3)


@cases(hits=0, eager="of unknown origin")
def a_class_whose_order_is_still_worked_out(trace):
    class Meta(type):
        def mro(cls):
            if cls.__mro__ is None and cls.__name__ != "Early":
                with pytest.raises(TypeError):
                    type("Early", (cls,), {})
                with pytest.raises(AttributeError):
                    _ = super(cls, cls).missing
            return type.mro(cls)

    def step(x):
        made = Meta("Made", (), {"by": 2.0})
        return x * made.by

    return trace(step), calls(3)


# ---------------------------------------------------------------- dispatch
class Base: ...


class Derived(Base): ...


def dispatching():
    @functools.singledispatch
    def scale(value, by):
        return value

    scale.register(torch.Tensor, lambda value, by: value * by)
    scale.register(list, lambda value, by: [scale(item, by) for item in value])
    scale.register(Base, lambda value, by: ("base", by))
    return scale


@cases(hits=1)
def dispatch_by_another_table(trace):
    """What stands under the name is a view of the table that is used, until somebody sets it."""
    scale = dispatching()

    def step(x):
        return scale(x, 2), scale(1, 2)

    def change():
        scale.registry = {object: lambda value, by: "set", torch.Tensor: lambda value, by: value - by}

    return trace(step), around(change, X())


@cases(hits=6)
def dispatch_by_class(trace):
    scale = dispatching()

    def step(x, other):
        return scale([x, other, 1, Derived()], 2)

    def register():
        scale.register(int, lambda value, by: value + 100)

    def register_derived():
        scale.register(Derived, lambda value, by: ("derived", by))

    steps = [call(X(), X()), call(X() * 2, X()), call(X() * 3, X())]
    return trace(step), [*steps, register, *steps, register_derived, *steps]


@cases(hits=0, eager="reads-odd-key")
def dispatch_by_abstract_class(trace):
    scale = dispatching()
    scale.register(collections.abc.Mapping, lambda value, by: "mapping")

    def step(x):
        return scale({"x": x}, 2), scale(x, 2)

    return trace(step), calls(3)


@cases(hits=2)
def dispatch_by_a_cache_of_the_users(trace):
    """It is asked, and written to, as any other object."""

    class Cache(collections.UserDict):
        pass

    cache = Cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weakref, "WeakKeyDictionary", lambda: cache)
        scale = dispatching()
    cache.data.clear()

    def step(x):
        return scale([x, x], 2), len(cache)

    return trace(step), calls(4), lambda: [kind.__name__ for kind in cache]


@cases(eager="reads-odd-key")
def dispatch_of_methods(trace):
    class Model:
        @functools.singledispatchmethod
        def take(self, value):
            return "other"

        @take.register
        def _(self, value: torch.Tensor):
            return value * self.by

        @take.register
        def _(self, value: dict):
            return {key: self.take(value[key]) for key in value}

    model = Model()
    model.by = 2.0

    def step(x):
        return model.take({"x": x, "n": 1})

    def change():
        model.by = 3.0

    return trace(step), [*calls(3), change, *calls(4)]


# ---------------------------------------------------------------- heaps and sorted lists
@cases(hits=2)
def heaps_that_are_made(trace):
    def step(x, values):
        heap = list(values)
        heapq.heapify(heap)
        a, b = heapq.heapreplace(heap, 2.5), heapq.heappushpop(heap, 0.5)
        return heap, a, b, heapq.nlargest(2, values), x * 2

    given = [3, 1, 2, 1, 5, 4, 0], [1, 1, 1], [5, 4, 3, 2, 1]
    return trace(step), [call(k * X(), list(values)) for values in given for k in (1, 2)]


def test_heaps_are_those_of_the_library():
    def make(trace):
        held = []

        def step(x, values):
            heap = list(values)
            heapq.heapify(heap)
            made = [list(heap)]
            for item in (3, 0, 9):
                made.append((heapq.heappushpop(heap, item), list(heap)))
                made.append((heapq.heapreplace(heap, -item), list(heap)))
            held[:] = heap
            return made, x * 2

        values = [list(p) for p in itertools.permutations([1, 2, 2, 3, 5])][::7]
        return trace(step), [call(X(), v) for v in values], lambda: list(held)

    agree(make)


@cases(eager="calls-unseen-function")
def heaps_that_raise(trace):
    def step(x, heap):
        try:
            return heapq.heapreplace(heap, 1), x
        except (IndexError, TypeError) as error:
            return type(error), str(error), heapq.heappushpop(heap, 3) if type(heap) is list else None

    return trace(step), [
        call(X(), []),
        call(X(), []),
        call(X(), ["a"]),
        call(X(), [2, "b"]),
        call(X(), (1,)),
        call(X(), []),
    ]


@cases(hits=4, eager="sets-item")
def the_best_scores(trace):
    held = Holder(best=[0.0, 0.0])

    def step(x):
        heapq.heappushpop(held.best, x.sum().item())
        return x * 2

    return trace(step), calls(7), lambda: held.best


@cases(hits=2)
def lists_that_stay_sorted(trace):
    def step(x, items):
        bisect.insort(items, 2)
        bisect.insort_left(items, 3)
        return items, x

    return trace(step), [call(X(), list(v)) for v in ([1, 3], [1, 3], [1, 3], [], [4], [1, 3])]


@cases.parametrize
def test_operator_objects(make, expected):
    check(make, **expected)
