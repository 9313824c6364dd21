"""Python that libraries run around their models: copies, frames, weak references, properties, generators."""

from __future__ import annotations

import copy
import sys
import weakref
from contextlib import contextmanager
from typing import ClassVar

import pytest
import torch

from tests.soundness.runner import Cases, X, call, check
from tests.soundness.test_python_around_steps import Thing, calls

cases = Cases()


# ---------------------------------------------------------------- copies
class Settings:
    """As configurations of transformers: every attribute goes through code of its own."""

    names: ClassVar[dict[str, str]] = {"width": "size"}

    def __init__(self, **values):
        self.__dict__.update(values)

    def __getattribute__(self, name):
        names = super().__getattribute__("names")
        return super().__getattribute__(names.get(name, name))


def copied(trace, change=None, cls=Settings):
    settings = cls(size=2.0, parts=[1, 2], inner={"a": (1, 2)})

    def fn(x):
        made = copy.deepcopy(settings)
        made.parts.append(3)
        return x * made.width + len(made.parts), made.inner

    step = trace(fn)
    if change is None:
        return step, calls(), lambda: settings.__dict__
    return step, calls(lambda: change(settings)), lambda: settings.__dict__


@cases(hits=2)
def a_copy(trace):
    return copied(trace)


@cases(hits=2)
def a_copy_once_a_number_is_another(trace):
    return copied(trace, lambda settings: settings.__dict__.update(size=3.0))


@cases(hits=2)
def a_copy_once_a_list_is_longer(trace):
    return copied(trace, lambda settings: settings.parts.append(5))


@cases(hits=2)
def a_copy_once_there_is_another_attribute(trace):
    return copied(trace, lambda settings: settings.__dict__.update(parts=[1], more=1))


@cases(hits=2)
def a_copy_once_names_are_others(trace):
    class Own(Settings):
        pass

    def change(settings):
        Own.names = {"width": "narrow"}
        settings.__dict__["narrow"] = 0.5

    return copied(trace, change, Own)


@cases(hits=2)
def a_copy_once_the_class_says_what_it_consists_of(trace):
    class Own(Settings):
        pass

    def change(settings):
        Own.__getstate__ = lambda self: {"size": 9.0, "parts": [], "inner": {}}

    return copied(trace, change, Own)


@cases(hits=2)
def a_copy_once_the_class_takes_itself_apart(trace):
    class Own(Settings):
        pass

    def change(settings):
        Own.__reduce__ = lambda self: (Own, (), {"size": 7.0, "parts": [], "inner": {}})

    return copied(trace, change, Own)


@cases(hits=2)
def a_copy_once_one_instance_takes_itself_apart(trace):
    """What the class does not have, `__getattribute__` may give."""

    class Own(Settings):
        other = False

        def __getattribute__(self, name):
            if name == "__reduce_ex__" and Own.other:
                return lambda protocol: (Own, (), {"size": 5.0, "parts": [], "inner": {}})
            return super().__getattribute__(name)

    def change(settings):
        Own.other = True

    return copied(trace, change, Own)


# ---------------------------------------------------------------- frames
def line_of_caller(depth=1):
    frame = sys._getframe(depth)
    return frame.f_lineno - frame.f_code.co_firstlineno, frame.f_code.co_name


@cases(hits=2)
def the_line_of_the_caller(trace):
    def fn(x):
        first = line_of_caller()
        return x * line_of_caller()[0], first

    return trace(fn), calls()


@cases(eager="calls sys._getframe() for a frame around the call")
def the_line_of_the_caller_of_the_traced_function(trace):
    """Which is code of lazytrace, where it calls the plain function."""

    def fn(x):
        line_of_caller(2)
        return x

    return trace(fn), [call(X())] * 2


@cases(eager="reads .f_locals of a frame")
def the_variables_of_the_caller(trace):
    def fn(x):
        scale = 2.0
        return x * sys._getframe(0).f_locals["scale"] + scale

    return trace(fn), calls()


# ---------------------------------------------------------------- weak references
@cases(hits=2)
def a_weak_reference_on_what_is_made(trace):
    w = X(grad=True)

    def fn(x):
        made = torch.exp(w)
        made.source = weakref.ref(w)
        loss = (made * x).sum()
        loss.backward()
        parameter = made.source()
        with torch.no_grad():
            parameter -= 0.1 * parameter.grad
        parameter.grad = None
        return loss.detach()

    return trace(fn), calls(), lambda: w


@cases(hits=2)
def a_weak_reference_on_another_object_later(trace):
    o = Thing(w=torch.ones(3))

    def fn(x):
        return x * weakref.ref(o.w)()

    def change():
        o.w = torch.full((3,), 2.0)

    return trace(fn), calls(change), lambda: o


@cases(hits=2)
def a_weak_reference_on_what_is_gone(trace):
    def fn(x):
        gone = weakref.ref(Thing(k=1))
        return x if gone() is None else x * 2

    return trace(fn), calls()


# ---------------------------------------------------------------- properties that are set
class Bounded:
    def __init__(self, value):
        self.value = value

    @property
    def value(self):
        return self._value

    @value.setter
    def value(self, value):
        self._value = value * 2


@cases(hits=2)
def a_property_that_is_set_on_what_is_made(trace):
    return trace(lambda x: Bounded(x).value), calls()


@cases(hits=2)
def a_property_whose_setter_has_other_code(trace):
    class Own:
        @property
        def value(self):
            return self._value

        @value.setter
        def value(self, value):
            self._value = value * 2

    def fn(x):
        made = Own()
        made.value = x
        return made.value

    def other(self, value):
        self._value = value * 3

    def change():
        Own.value.fset.__code__ = other.__code__

    return trace(fn), calls(change)


@cases(hits=2)
def a_property_with_another_setter(trace):
    class Own(Bounded):
        pass

    def fn(x):
        return Own(x).value

    def change():
        Own.value = Bounded.value.setter(lambda self, value: setattr(self, "_value", value * 5))

    return trace(fn), calls(change)


# ---------------------------------------------------------------- what C code passes on
@cases(hits=2)
def a_manager_that_gives_what_counts(trace):
    log = {"n": 0, "rows": []}

    @contextmanager
    def opened(log):
        yield log

    def fn(x):
        with opened(log) as found:
            found["n"] += 1
        return x + 1

    return trace(fn), calls(times=4), lambda: log


@cases(hits=2)
def a_manager_of_state_that_counts(trace):
    class Manager:
        entered = 0.0

        def __enter__(self):
            self.entered += 1
            return self

        def __exit__(self, *error):
            self.left = self.entered

    manager = Manager()
    manager.entered = manager.left = 0.0

    def fn(x):
        with manager:
            return x + 1

    return trace(fn), calls(times=4), lambda: manager.__dict__


@cases(hits=2)
def a_manager_of_state_whose_attribute_is_read(trace):
    class Manager:
        def __init__(self):
            self.k = 2.0

        def __enter__(self):
            return self.k

        def __exit__(self, *error):
            pass

    manager = Manager()

    def fn(x):
        with manager as k:
            return x * k

    def change():
        manager.k = 3.0

    return trace(fn), calls(change)


@cases(hits=2)
def a_generator_that_is_sent_to(trace):
    o = Thing(k={"scale": 2.0})

    def running():
        scale = yield o.k
        yield scale

    def fn(x):
        made = running()
        found = next(made)
        return x * made.send(found)["scale"]

    def change():
        o.k["scale"] = 3.0

    return trace(fn), calls(change)


@cases(hits=2)
def an_attribute_that_getattr_finds(trace):
    settings = Settings(size=2.0, table={"a": 1.0})

    def fn(x):
        return x * getattr(settings, "width") + getattr(settings, "table", None)["a"]  # noqa: B009

    def change():
        settings.__dict__["table"]["a"] = 4.0

    return trace(fn), calls(change)


@cases(hits=2)
def shapes_that_are_broadcast(trace):
    return trace(lambda x: x.expand(torch.broadcast_shapes(x.shape, (2, 3)))), calls(times=4)


@cases.parametrize
def test_python_of_libraries(make, expected):
    check(make, **expected)


@pytest.mark.parametrize("content", ["list", "dict"])
def test_a_container_that_is_taken_over_before_python_code_looks(content):
    import lazytrace

    def make(trace):
        held = [1.0, 2.0] if content == "list" else {"a": 1.0, "b": 2.0}
        look = lambda x: x * sum(held if content == "list" else held.values())  # noqa: E731
        step = lazytrace.opaque(look) if trace.enabled else look

        def fn(x):
            held.clear()
            if content == "list":
                held.extend((3.0, 4.0))
            else:
                held.update(c=3.0, d=4.0)
            y = step(x)
            held.pop() if content == "list" else held.pop("c")
            return y

        return trace(fn), [call(X())] * 6, lambda: held

    check(make, hits=3)


# ---------------------------------------------------------------- modules with properties
def set_flag(name, value):
    return lambda: setattr(torch.backends.opt_einsum, name, value)


@pytest.mark.parametrize("change", ["enabled", "strategy"])
def test_flags_behind_a_module_with_properties(change):
    """`torch.backends` asks another module, by its `__getattribute__`, for what is no property."""
    flags = torch.backends.opt_einsum
    before = getattr(flags, change)

    def make(trace):
        set_flag(change, before)()

        def fn(x):
            return torch.einsum("i,j,k->ij", x, x, x), flags.is_available(), getattr(flags, change)

        twice = [call(X()), call(X())]
        other = set_flag(change, False if change == "enabled" else before)
        return trace(fn), [*twice, other, *twice, set_flag(change, before), *twice]

    try:
        check(make, hits=3)
    finally:
        set_flag(change, before)()


def test_function_that_another_module_gives(monkeypatch):
    other = torch.backends.opt_einsum.m

    def make(trace):
        monkeypatch.undo()

        def fn(x):
            return (
                x * 2,
                torch.backends.opt_einsum.get_opt_einsum() is None,
                torch.backends.opt_einsum.is_available(),
            )

        twice = [call(X()), call(X())]
        change = lambda: monkeypatch.setattr(other, "is_available", lambda: "changed")  # noqa: E731
        return trace(fn), [*twice, change, *twice]

    check(make, hits=2)
