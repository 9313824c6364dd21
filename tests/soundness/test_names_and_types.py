"""What code asks of names and types: `dir()`, hashes of tuples, what unions are made of, plain views."""

from __future__ import annotations

import abc
import random

import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, Holder, X, around, calls, check

cases = Cases()


def changed(name, make_state, body, *changes, hits=2, eager=""):
    """Record and replay, change the state, record and replay again."""

    def make(trace):
        state = make_state()
        steps = around(lambda: changes[0](state) if changes else None, X())
        return trace(lambda x: body(x, state)), steps

    make.__name__ = name
    cases(make, hits=0 if eager else hits, eager=eager)


def new_class():
    class Base(metaclass=abc.ABCMeta):
        a = 1

        @abc.abstractmethod
        def method(self): ...

    class Made(Base):
        b = 2

        def method(self):
            return self.b

    return Made


def listed(x, of):
    return x * 2, [name for name in dir(of) if not name.startswith("__")]


changed("names_of_a_class", new_class, listed, lambda cls: setattr(cls, "more", 1))
changed("names_of_a_base", new_class, listed, lambda cls: setattr(cls.__mro__[1], "more", 1))
changed("names_of_an_object", lambda: new_class()(), listed, lambda o: setattr(o, "own", 1))
changed("names_of_the_class_of_one", lambda: new_class()(), listed, lambda o: setattr(type(o), "own", 1))
changed("names_that_hide_others", lambda: new_class()(), listed, lambda o: setattr(o, "b", 1))
changed("names_of_a_module", lambda: nn.Linear(3, 2), listed, lambda m: m.register_buffer("more", X()))


class Listing:
    names = ("b", "a")

    def __dir__(self):
        return self.names


changed("names_that_a_method_gives", Listing, listed, lambda o: setattr(o, "names", ("c",)))


class Pretending(Holder):
    __class__ = property(lambda self: int)


changed("names_of_another_class", Pretending, listed, eager="calls-unseen-function")
changed("names_of_a_file", lambda: torch.backends, listed, eager="calls-unseen-function")


def hashed(x, state):
    return x * len({hash(state["key"]): 1, hash((1, "a")): 2})


changed("a_tuple_of_a_class", lambda: {"key": (1, "a", nn.Linear)}, hashed, lambda d: d.update(key=(1, "a")))
changed("a_tuple_in_a_tuple", lambda: {"key": (1, (nn.Linear,))}, hashed, lambda d: d.update(key=(1, ())))


def looked_up(x, table):
    return x * table[hash((type(table), "a"))]


changed(
    "a_table_by_hash", lambda: {hash((dict, "a")): 2.0}, looked_up, lambda d: d.update(dict.fromkeys(d, 3.0))
)


class Counting:
    hashes = 0

    def __hash__(self):
        self.hashes += 1
        return 3


def of_objects(x, state):
    return x * hash((state["one"], 1)), state["one"].hashes


changed("a_tuple_with_an_object_that_counts", lambda: {"one": Counting()}, of_objects)


def united(x, state):
    kinds = state["kind"].__args__
    return x * len(kinds), torch.Tensor in kinds, kinds[0]


changed("parts_of_a_union", lambda: {"kind": int | torch.Tensor}, united, lambda d: d.update(kind=str | int))
changed("parts_of_an_alias", lambda: {"kind": dict[str, int]}, united, lambda d: d.update(kind=list[float]))


def united_inside(x, state):
    return x * len((int | state["kind"]).__args__), (int | state["kind"]).__args__[1].__name__


changed("parts_of_one_that_is_made", lambda: {"kind": str}, united_inside, lambda d: d.update(kind=float))


def origin(x, state):
    return x * 2, state["kind"].__origin__


changed("origin_of_an_alias", lambda: {"kind": list[int]}, origin, lambda d: d.update(kind=tuple[int]))


def plain(x, state):
    view = state["p"].as_subclass(torch.Tensor)
    return view * x, type(view) is torch.Tensor, view.requires_grad, view is state["p"]


changed("a_plain_view_of_a_parameter", lambda: {"p": nn.Parameter(X())}, plain, lambda d: d.update(p=X()))


def written_through(x, state):
    view = x.clone()
    view.as_subclass(torch.Tensor).add_(1)
    return view, view.as_subclass(torch.Tensor)


changed("a_plain_view_that_is_written_to", dict, written_through, hits=3)


class Own(torch.Tensor):
    pass


changed("a_view_of_another_class", dict, lambda x, _: x.as_subclass(Own) * 2, eager="tensor-escapes")


def with_default(default, use):
    def make(trace):
        random.seed(3)

        def inner(x, *, asked=default):
            return use(x, asked)

        return trace(lambda x: inner(x)), calls(), random.getstate

    return make


@pytest.mark.parametrize(
    ("default", "use", "expected"),
    [
        # As code that is made for annotations has it, which looks at an entry of a list by chance.
        (random.getrandbits, lambda x, ask: x * (1.0 + ask(32) % 7), {"hits": 4}),
        (random.getrandbits, lambda x, ask: x * 2, {"hits": 5}),
        (random.getrandbits, lambda x, ask: x * max(map(ask, (3, 4))), {"eager": "hands-method-to-c"}),
        ([3.0].pop, lambda x, ask: x * 2, {"hits": 5}),
    ],
)
def test_callables_of_c_among_defaults(default, use, expected):
    check(with_default(default, use), **expected)


@cases.parametrize
def test_names_and_types(make, expected):
    check(make, **expected)
