"""Guards that are asked as words of memory, once a few calls have passed without a change."""

from __future__ import annotations

import collections
import gc
import types

import pytest
import torch

from tests.soundness.runner import Cases, X, call, check
from tests.soundness.test_changing_namespaces import CHANGES, Scaled, thrice, twice

cases = Cases()

# As many hits as it takes until the words are there and have been asked.
QUIET = 8
DOUBLE = twice.__code__


@pytest.fixture(autouse=True)
def _functions():
    code, scale = twice.__code__, Scaled.scale
    defaults, keywords = scale.__defaults__, scale.__kwdefaults__
    yield
    twice.__code__, scale.__defaults__, scale.__kwdefaults__ = code, defaults, keywords


class Still(Scaled):
    """What nothing writes to."""

    def __call__(self, x):
        x = self.helper(self.scale(x)) * self.step * self.inner.k * self.inner.deep.k
        return x * self.parts[1] * self.weight


def calls(count=QUIET):
    return [call(X()) for _ in range(count)]


@pytest.mark.parametrize("owner", [Still, Scaled])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_many_calls(owner, change):
    def make(trace):
        one = owner()
        twice.__code__ = DOUBLE
        Scaled.scale.__defaults__, Scaled.scale.__kwdefaults__ = (1.0,), {"plus": 0.0}
        before = dict(vars(one))

        def back():
            one.__class__ = owner
            vars(one).clear()
            vars(one).update(before)

        fn = trace(lambda x: one(x))
        steps = [*calls(), lambda: CHANGES[change](one), *calls(2), back, *calls()]
        return fn, [*steps, lambda: CHANGES[change](one), *calls(3)]

    check(make, hits=6)


def changed_once(build, change):
    """A case: `build` gives an object and a function of it; `change` changes the object."""

    def make(trace):
        state, fn = build()
        return trace(fn), [*calls(), lambda: change(state), *calls(3)]

    return make


def cell():
    factor = 2.0

    def put(value):
        nonlocal factor
        factor = value

    return put, lambda x: x * factor


def cell_of_a_function():
    helper = twice

    def put(value):
        nonlocal helper
        helper = value

    return put, lambda x: helper(x)


def test_a_cell():
    check(changed_once(cell, lambda put: put(3.0)), hits=6)


def test_a_cell_with_another_function():
    check(changed_once(cell_of_a_function, lambda put: put(thrice)), hits=6)


def test_a_cell_with_what_is_no_function():
    check(changed_once(cell_of_a_function, lambda put: put(torch.neg)), hits=6)


def test_an_empty_cell():
    def build():
        factor = 2.0

        def drop():
            nonlocal factor
            del factor

        return drop, lambda x: x * factor

    check(changed_once(build, lambda drop: drop()), hits=6)


class Part:
    """One object of many that come and go."""

    def __init__(self, k, helper=twice):
        self.k, self.helper = k, helper

    def __call__(self, x):
        return self.helper(x) * self.k


class Slim:
    """Smaller than the other, with its values elsewhere."""

    __slots__ = ("k",)

    def __init__(self, k, helper=None):
        self.k = k

    def __call__(self, x):
        return x + self.k


# Where one is freed and another made at once, the other often has its address.
@pytest.mark.parametrize("other", [Part, Slim, lambda k: lambda x: x - k, lambda k: thrice])
@pytest.mark.parametrize("place", ["cell", "entry", "element", "attribute", "argument"])
def test_another_object_at_the_same_address(place, other):
    def make(trace):
        holder = types.SimpleNamespace(part=Part(2.0), parts=[Part(2.0)], named={"part": Part(2.0)})
        part = Part(2.0)

        def put(maker, k):
            nonlocal part
            gc.collect()
            part = holder.part = holder.parts[0] = holder.named["part"] = None
            part = maker(k)
            holder.part = maker(k)
            holder.parts[0] = maker(k)
            holder.named["part"] = maker(k)

        reads = {
            "cell": lambda x: part(x),
            "entry": lambda x: holder.named["part"](x),
            "element": lambda x: holder.parts[0](x),
            "attribute": lambda x: holder.part(x),
            "argument": lambda x, one: one(x),
        }
        fn = trace(reads[place])

        def ask():
            return call(X(), part) if place == "argument" else call(X())

        steps = [ask() for _ in range(QUIET)]
        for k in range(3):
            steps += [
                lambda k=k: put(other, float(k + 3)),
                call(X(), part) if place == "argument" else call(X()),
            ]
            steps += [lambda k=k: put(Part, float(k + 2)), *[ask() for _ in range(3)]]
        return fn, steps

    check(make, hits=6)


def in_a_list():
    parts = [Part(1.0), Part(2.0)]
    return parts, lambda x: parts[1](parts[0](x))


def in_a_dict():
    parts = {"a": Part(1.0), "b": Part(2.0)}

    def fn(x):
        for part in parts.values():
            x = part(x)
        return x

    return parts, fn


def in_an_ordered_dict():
    parts = collections.OrderedDict(a=Part(2.0), b=Part(3.0))

    def fn(x):
        for name, part in parts.items():
            x = part(x) + len(name) * x.sum()
        return x

    return parts, fn


LISTS = {
    "an element": lambda parts: parts.__setitem__(0, Part(5.0)),
    "longer": lambda parts: parts.append(Part(1.0)),
    "shorter": lambda parts: parts.pop(),
    "turned": lambda parts: parts.reverse(),
    "emptied and filled": lambda parts: parts.__setitem__(slice(None), [Part(4.0), Part(7.0)]),
    "much longer": lambda parts: parts.extend([Part(1.0)] * 1000),
    "cleared": lambda parts: parts.clear(),
}
DICTS = {
    "an entry": lambda parts: parts.__setitem__("a", Part(5.0)),
    "longer": lambda parts: parts.__setitem__("c", Part(5.0)),
    "shorter": lambda parts: parts.pop("a"),
    "another order": lambda parts: parts.__setitem__("a", parts.pop("a")),
    "inside": lambda parts: setattr(parts["a"], "k", 9.0),
    "a function inside": lambda parts: setattr(parts["a"], "helper", thrice),
}


@pytest.mark.parametrize("change", LISTS)
def test_a_list(change):
    check(changed_once(in_a_list, LISTS[change]), hits=6)


@pytest.mark.parametrize("change", DICTS)
@pytest.mark.parametrize("build", [in_a_dict, in_an_ordered_dict])
def test_a_dict(build, change):
    check(changed_once(build, DICTS[change]), hits=6)


def test_the_order_of_an_ordered_dict():
    check(changed_once(in_an_ordered_dict, lambda parts: parts.move_to_end("a")), hits=6)


# A namespace that changes at each call, with what is read through it: the rest is still asked as words.
@cases(hits=11)
def counts_and_reads(trace):
    holder = types.SimpleNamespace(n=0, part=Part(2.0))

    def fn(x):
        holder.n += 1
        return holder.part(x)

    def change():
        holder.part.helper = thrice

    return trace(fn), [*calls(9), change, *calls(5)], lambda: holder.n


# What a namespace that changes at each call leads to is another object at each call.
@cases(hits=6)
def leads_elsewhere(trace):
    holder = types.SimpleNamespace(part=Part(2.0))

    def fn(x):
        return holder.part(x)

    def renew():
        holder.part = Part(2.0)

    def change():
        holder.part = Part(3.0)

    steps = calls()
    for _ in range(6):
        steps += [renew, *calls(1)]
    return trace(fn), [*steps, change, *calls(2), renew, *calls(2)]


# The class of a class, and what it inherits.
@cases(hits=6)
def inherits(trace):
    class Base:
        k = 2.0

        def scale(self, x):
            return x * self.k

    class Low(Base):
        pass

    one = Low()

    def change():
        Base.scale = lambda self, x: x + self.k

    def change_more():
        Low.k = 5.0

    def change_bases():
        Low.__bases__ = (types.new_class("New", (Base,), exec_body=lambda n: n.update(k=7.0)),)

    def drop():
        del Low.k

    fn = trace(lambda x: one.scale(x))
    return fn, [*calls(), change, *calls(), change_more, *calls(), drop, change_bases, *calls(3)]


# The function itself is made anew at each call.
@cases(hits=6)
def made_anew(trace):
    def outer():
        return lambda x, part: part(x)

    part = Part(2.0)
    fn = trace(lambda x: outer()(x, part))
    return fn, [*calls(), lambda: setattr(part, "k", 3.0), *calls(3)]


@cases.parametrize
def test_quick_guards(make, expected):
    check(make, **expected)
