"""Special methods of a class of Python's that are code of C, which nobody sees running."""

from __future__ import annotations

import collections
import functools
import gc
import operator
import os
import sys

import pytest

from tests.soundness.runner import X, around, call, check

listed = [1, 2]


class Shown(property):
    """A class of property's."""


class Fixed(functools.partial):
    """A class of partial's."""


class Static(staticmethod):
    """A class of staticmethod's."""


class Gives:
    """A descriptor of Python's, which gives a method of C."""

    def __init__(self, name):
        self.name = name

    def __get__(self, instance, owner):
        return getattr(listed, self.name)


class Slotted:
    """Special methods that an instance has."""

    __slots__ = ("__contains__", "__getitem__", "__iter__", "__len__")

    def __init__(self):
        for name in self.__slots__:
            setattr(self, name, getattr(list(listed), name))


class ByName:
    """Properties that C code asks."""

    __len__ = property(operator.attrgetter("held.__len__"))
    __iter__ = Shown(operator.attrgetter("held.__iter__"))
    __contains__ = property(lambda self: self.held.__contains__)
    __getitem__ = Gives("__getitem__")

    @property
    def held(self):
        return listed


class ByPartial:
    """Partials, by a class that Python made."""

    __len__ = Fixed(len, listed)
    __iter__ = Fixed(iter, listed)
    __contains__ = Fixed(operator.contains, listed)
    __getitem__ = Fixed(listed.__getitem__)


class OfClasses(type):
    """A metaclass."""

    __len__ = Fixed(len, listed)
    __iter__ = Fixed(iter, listed)
    __contains__ = Fixed(operator.contains, listed)
    __getitem__ = Fixed(listed.__getitem__)
    __instancecheck__ = Fixed(listed.__contains__)
    __call__ = Fixed(list, listed)


class Made(metaclass=OfClasses):
    """One of these."""


class Asks:
    """Functions of C that take nothing, and ask the process."""

    __len__ = staticmethod(sys.getrecursionlimit)
    __index__ = Static(sys.getrecursionlimit)
    __bool__ = staticmethod(gc.isenabled)
    __str__ = staticmethod(os.getcwd)


def change_list():
    listed[:] = [2, 1, 3] if len(listed) == 2 else [1, 2]


def of_another_list(text, held):
    """The function, and what changes the list that is asked."""

    def make(trace):
        listed[:] = [1, 2]
        c = held()

        def change():
            change_list()
            if isinstance(c, Slotted):
                c.__init__()

        fn = eval(f"lambda x: (x * 2, {text})", {**globals(), "c": c})
        return trace(fn), [*around(change, X()), change, call(X()), call(X())]

    return make


@pytest.mark.parametrize(
    "text", ["len(c)", "list(c)", "3 in c", "c[0]", "x * sum(c)", "[v for v in c]", "dict.fromkeys(c)"]
)
@pytest.mark.parametrize(
    "held", [Slotted, ByName, ByPartial, lambda: Made], ids=["slots", "properties", "partials", "metaclass"]
)
def test_a_list_that_special_methods_ask(held, text):
    check(of_another_list(text, held), eager="special-in-c")


class ByClass(type):
    """A metaclass that has what classes are subscripted by."""

    __class_getitem__ = Fixed(listed.__getitem__)


class ByLack(type):
    """One that gives attributes which a class lacks."""

    def __getattr__(cls, name):
        return listed.__getitem__


class Lacking(metaclass=ByLack):
    """One of these."""


class Subscripted(metaclass=ByClass):
    """One of the former."""


@pytest.mark.parametrize("text", ["Made()", "isinstance(3, Made)", "Subscripted[0]", "Lacking[0]"])
def test_a_class_that_is_called_or_asked_for(text):
    check(of_another_list(text, lambda: None), eager="special-in-c")


@pytest.mark.parametrize(
    "text", ["len(c)", "operator.index(c)", "bool(c)", "1 if c else 2", "str(c)", "f'{c}'"]
)
def test_functions_that_ask_the_process(text):
    def make(trace):
        listed[:] = [1, 2]
        folder, limit = os.getcwd(), sys.getrecursionlimit()
        gc.enable()
        c = Asks()

        def change():
            sys.setrecursionlimit(limit + 10), gc.disable(), os.chdir("/")

        def back():
            sys.setrecursionlimit(limit), gc.enable(), os.chdir(folder)

        fn = eval(f"lambda x: (x * 2, {text})", {**globals(), "c": c})
        return trace(fn), [*around(change, X()), back, call(X()), call(X())]

    check(make, eager="special-in-c")


class Listed(list):
    """Methods of a list under other names."""

    __lshift__ = list.append
    __sub__ = list.remove
    __neg__ = list.pop
    __call__ = list.__getitem__


class Named(dict):
    """The same of a dict."""

    __sub__ = dict.pop
    __lshift__ = dict.setdefault
    __rshift__ = dict.__ior__
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
    __call__ = dict.get


class Counted(collections.defaultdict):
    """One of C that is called."""

    __call__ = collections.defaultdict.__getitem__


OTHER_NAMES = {
    "x * (items << 5 or len(items))": "special-in-c",
    "(x, items << 5, list(items))": "special-in-c",
    "(x * -items, len(items))": "special-in-c",
    "(x, items - 4, len(items)) if 4 in list(items) else x": "special-in-c",
    "(x, d - min(d), len(d))": "special-in-c",
    "(x, d << 70, len(d))": "special-in-c",
    "(x, len(d >> {40: 3}), d[40])": "special-in-c",
}


@pytest.mark.parametrize("text", OTHER_NAMES)
def test_methods_of_containers_under_other_names(text):
    def make(trace):
        items, d = Listed(range(30)), Named({n: n for n in range(30, 60)})
        fn = eval(f"lambda x: {text}", {**globals(), "items": items, "d": d})
        change = functools.partial(d.__setitem__, 41, 3)
        return trace(fn), [*around(change, X()), call(X())], lambda: [list(items), dict(d)]

    check(make, eager=OTHER_NAMES[text])


CALLED = {
    "items(0)": lambda items, d, c: items.__setitem__(0, 7),
    "d('a')": lambda items, d, c: d.__setitem__("a", 7),
    "d('b')": lambda items, d, c: d.__setitem__("b", 7),
    "c('a')": lambda items, d, c: c.__setitem__("a", 7),
    "d.a": lambda items, d, c: d.__setitem__("a", 7),
}


@pytest.mark.parametrize("text", CALLED)
def test_an_instance_that_is_called_as_its_class_of_c_says(text):
    def make(trace):
        items, d, c = Listed([1, 2]), Named(a=1), Counted(int, a=1)
        fn = eval(f"lambda x: (x * 2, {text})", {**globals(), "items": items, "d": d, "c": c})
        return trace(fn), around(lambda: CALLED[text](items, d, c), X())

    check(make, hits=2)


def test_what_python_code_gives_is_replayed():
    class Callable:
        def __call__(self, *args):
            return 2

    def make(trace):
        class Plain:
            __len__ = Callable()
            __float__ = staticmethod(lambda: 1.5)
            __bool__ = classmethod(lambda cls: cls.true)
            true = True

        c = Plain()
        return trace(lambda x: (x * len(c), float(c), 1 if c else 2)), around(
            lambda: setattr(Plain, "true", not Plain.true), X()
        )

    check(make, hits=2)


class Kept(dict):
    """A descriptor that looks its object up in itself, in C."""

    __get__ = dict.get


class Described:
    """Attributes that C code gets."""

    kept = Kept()
    shown = Shown(operator.attrgetter("scale"))
    of_class = classmethod(property(operator.attrgetter("scale")))
    kept_of_class = classmethod(Kept())
    scale = 1


@pytest.mark.parametrize(
    "text",
    [
        "c.kept",
        "c.shown",
        "c.of_class",
        "Described.of_class",
        "c.kept_of_class",
        "getattr(c, 'kept')",
        "sum([o.kept for o in [c]])",
    ],
)
def test_attributes_that_c_code_gets(text):
    def make(trace):
        c, kept = Described(), [Described.__dict__["kept"], Described.__dict__["kept_of_class"].__func__]

        def put(scale):
            Described.scale = scale
            kept[0][c], kept[1][Described] = scale, scale

        put(1)
        fn = eval(
            f"lambda x: x * {text}",
            {**globals(), "c": c},
        )
        return trace(fn), around(lambda: put(2), X())

    check(make, eager="a property made in C" if "shown" in text else "special-in-c")


def test_attributes_that_python_code_gets_are_replayed():
    class Own(property):
        pass

    def make(trace):
        class Plain:
            shown = Own(lambda self: self.scale)
            scale = 1

        c = Plain()
        return trace(lambda x: x * c.shown), around(lambda: setattr(Plain, "scale", 2), X())

    check(make, hits=2)


class Looking(dict):
    """What it lacks is looked up elsewhere, in C."""

    __missing__ = Fixed(listed.__getitem__)


@pytest.mark.parametrize(
    "text", ["Looking()[0]", "operator.getitem(Looking(), 0)", "dict.__getitem__(Looking(), 0)"]
)
def test_a_missing_key_of_a_new_dict(text):
    check(of_another_list(text, lambda: None), eager="special-in-c")


class Other:
    """Says in C which class it is of."""

    __class__ = property(operator.attrgetter("kind"))

    def __init__(self):
        self.kind = int


@pytest.mark.parametrize(
    "text",
    ["isinstance(c, int)", "isinstance(c, collections.abc.Sized)", "sum([isinstance(v, int) for v in [c]])"],
)
def test_a_class_that_c_code_gives(text):
    def make(trace):
        c = Other()
        fn = eval(
            f"lambda x: (x * 2, {text})",
            {**globals(), "c": c},
        )
        return trace(fn), around(lambda: setattr(c, "kind", list), X())

    check(make, eager="special-in-c")
