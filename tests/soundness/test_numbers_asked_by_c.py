"""Numbers that are followed, where a special method gives one to C code that takes it as it is."""

from __future__ import annotations

import functools

import pytest

from tests.soundness.runner import X, call, check


def handed_on(method):
    """A decorator that shows neither the name of what it decorates nor its parameters."""

    def wrapper(*args):
        return method(*args)

    return wrapper


class Numbers:
    """Where the number lies."""

    n = 0


class Named:
    """A callable object in the place of a method."""

    def __call__(self):
        return Numbers.at.n % 4


class Indexed:
    """An index, in several ways."""

    def __init__(self, at):
        Numbers.at = self.at = at

    @handed_on
    def __hash__(self):
        return self.at.n

    def __eq__(self, other):
        return self is other

    @handed_on
    def __getitem__(self, key):
        return self.at.n + key

    scaled = property(lambda self: self.at.n * 2)


class Decorated(Indexed):
    __index__ = handed_on(lambda self: self.at.n % 4)


class Static(Indexed):
    __index__ = staticmethod(lambda *nothing: Numbers.at.n % 4)


class Object(Indexed):
    __index__ = Named()


ASKED = {
    "(x, [5, 6, 7, 8][o])": {"hits": 1},
    "(x, (5, 6, 7, 8)[:o])": {"hits": 1},
    "x.repeat(4)[:o]": {"hits": 1},
    "(x, 'ab' * o)": {"hits": 1},
    "(x, {o: 1}[o])": {"recordings": 10},
    "(x, o in {o})": {"recordings": 10},
    "x * o.scaled": {"hits": 6},
    "x * o[1]": {"hits": 6},
}


@pytest.mark.parametrize("text", ASKED)
@pytest.mark.parametrize("kind", [Decorated, Static, Object])
def test_a_number_that_c_code_takes(kind, text):
    def make(trace):
        at = Numbers()
        o = kind(at)
        steps = []
        for n in range(10):
            steps += [functools.partial(setattr, at, "n", n), call(X())]
        return trace(eval(f"lambda x: {text}", {"o": o})), steps

    check(make, **ASKED[text])
