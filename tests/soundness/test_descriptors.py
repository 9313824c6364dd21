"""Properties, slots, dunder methods, cached properties, dataclasses, enums, super, metaclasses."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import types

import pytest
import torch

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


@cases(hits=2)
def property_of_state(trace):
    class A:
        base = 2.0

        @property
        def k(self):
            return self.base * 2

    o = A()
    return trace(lambda x: x * o.k), around(lambda: setattr(o, "base", 3.0), X())


@cases(hits=2)
def property_replaced(trace):
    class A:
        k = property(lambda self: 2.0)

    o = A()
    return trace(lambda x: x * o.k), around(lambda: setattr(A, "k", property(lambda self: 3.0)), X())


@cases(hits=1, eager="sets-attribute")
def property_that_counts(trace):
    class A:
        n = 0

        @property
        def k(self):
            self.n += 1
            return self.n

    o = A()
    return trace(lambda x: x * o.k), [call(X())] * 4, lambda: o.n


@cases(eager="sets-attribute")
def property_setter(trace):
    class A:
        _k = 0

        @property
        def k(self):
            return self._k

        @k.setter
        def k(self, value):
            self._k = value + 1

    o = A()

    def fn(x):
        o.k = o.k + 1
        return x * o.k

    return trace(fn), [call(X())] * 3, lambda: o._k


class Doubles:
    """A property that is set by way of `object.__setattr__`, and a descriptor of Python."""

    class Tripled:
        def __set__(self, owner, value):
            vars(owner)["third"] = value * 3

    factor = 2.0
    tripled = Tripled()

    @property
    def doubled(self):
        return self.kept

    @doubled.setter
    def doubled(self, value):
        self.kept = value * self.factor

    def __setattr__(self, name, value):
        super().__setattr__(name, value)


@cases(hits=2)
def property_set_through_object(trace):
    class Own(Doubles):
        pass

    def step(x):
        made = Own()
        made.doubled = x
        object.__setattr__(made, "tripled", x)
        return made.kept + made.third

    return trace(step), around(lambda: setattr(Own, "factor", 5.0), X())


@cases(hits=2)
def setter_replaced_behind_object(trace):
    class Own(Doubles):
        pass

    def step(x):
        made = Own()
        made.doubled = x
        return vars(made)

    def other(self, value):
        vars(self)["other"] = value * 7

    return trace(step), around(lambda: setattr(Own, "doubled", property(None, other)), X())


@cases(hits=2)
def property_of_state_set_through_object(trace):
    class Own(Doubles):
        pass

    held = Own()

    def step(x):
        held.doubled = x * 2
        return held.kept

    return trace(step), around(lambda: setattr(Own, "factor", 5.0), X()), lambda: vars(held)


@cases(hits=2)
def slots(trace):
    class A:
        __slots__ = ("k",)

    o = A()
    o.k = 2.0
    return trace(lambda x: x * o.k), around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=2)
def slots_written(trace):
    class A:
        __slots__ = ("k",)

    o = A()
    o.k = 2.0

    def fn(x):
        o.k += 1
        return x * o.k

    return trace(fn), [call(X())] * 3, lambda: o.k


@cases(hits=2)
def slot_with_a_tensor(trace):
    class A:
        __slots__ = ("w",)

    o = A()
    o.w = torch.ones(3)
    return trace(lambda x: x * o.w), around(lambda: setattr(o, "w", torch.zeros(3)), X())


@cases(hits=2)
def slot_unset(trace):
    class A:
        __slots__ = ("k",)

    o = A()
    return trace(lambda x: x * getattr(o, "k", 1.0)), around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=2)
def getattr_method(trace):
    class A:
        def __init__(self):
            self.values = {"k": 2.0}

        def __getattr__(self, name):
            return self.values[name]

    o = A()
    return trace(lambda x: x * o.k), around(lambda: o.values.update(k=3.0), X())


@cases(hits=2)
def getattribute_method(trace):
    class A:
        k = 2.0

        def __getattribute__(self, name):
            return object.__getattribute__(self, name)

    o = A()
    return trace(lambda x: x * o.k), around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=2)
def getattribute_added(trace):
    class A:
        k = 2.0

    o = A()
    return trace(lambda x: x * o.k), around(
        lambda: setattr(A, "__getattribute__", lambda self, name: 3.0), X()
    )


@cases(hits=2)
def getattr_added(trace):
    class A:
        pass

    o = A()
    return trace(lambda x: x * getattr(o, "k", 2.0)), around(
        lambda: setattr(A, "__getattr__", lambda self, name: 3.0), X()
    )


@cases(hits=1)
def cached_property(trace):
    class A:
        base = 2.0

        @functools.cached_property
        def k(self):
            return self.base * 2

    o = A()

    def forget():
        del o.k

    return (
        trace(lambda x: x * o.k),
        [call(X()), call(X()), call(X()), lambda: setattr(o, "k", 9.0), call(X()), forget, call(X())],
        lambda: dict(vars(o)),
    )


@cases(hits=2)
def python_descriptor(trace):
    class D:
        def __get__(self, instance, owner):
            return instance.raw * 2

        def __set__(self, instance, value):
            instance.raw = value

    class A:
        k = D()

    o = A()
    o.k = 2.0
    return trace(lambda x: x * o.k), around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=1)
def descriptor_get_replaced(trace):
    class D:
        def __get__(self, instance, owner):
            return 2.0

    class A:
        k = D()

    o = A()
    return trace(lambda x: x * o.k), around(lambda: setattr(D, "__get__", lambda *a: 3.0), X())


@cases(hits=2)
def data_descriptor_added(trace):
    class A:
        pass

    o = A()
    o.k = 2.0
    return trace(lambda x: x * o.k), around(lambda: setattr(A, "k", property(lambda self: 3.0)), X())


@cases(hits=2)
def class_and_static_methods(trace):
    class A:
        k = 2.0

        @classmethod
        def c(cls, x):
            return x * cls.k

        @staticmethod
        def s(x):
            return x + 1

    return trace(lambda x: A.s(A.c(x))), around(lambda: setattr(A, "k", 3.0), X())


@cases(hits=2)
def static_method_replaced(trace):
    class A:
        @staticmethod
        def s(x):
            return x + 1

    o = A()
    return trace(lambda x: o.s(x)), around(lambda: setattr(A, "s", staticmethod(lambda x: x - 1)), X())


@cases(hits=2)
def super_method_replaced(trace):
    class A:
        def f(self, x):
            return x * 2

    class B(A):
        def f(self, x):
            return super().f(x) + 1

    o = B()
    return trace(lambda x: o.f(x)), around(lambda: setattr(A, "f", lambda self, x: x * 9), X())


@cases(hits=2)
def super_method_in_between(trace):
    class A:
        def f(self, x):
            return x * 2

    class M(A):
        pass

    class B(M):
        def f(self, x):
            return super().f(x) + 1

    o = B()
    return trace(lambda x: o.f(x)), around(lambda: setattr(M, "f", lambda self, x: x * 9), X())


@cases(hits=2)
def metaclass_attribute(trace):
    class Meta(type):
        k = 2.0

    class A(metaclass=Meta):
        pass

    return trace(lambda x: x * A.k), around(lambda: setattr(Meta, "k", 3.0), X())


@cases(hits=2)
def metaclass_attribute_shadowed(trace):
    class Meta(type):
        k = 2.0

    class A(metaclass=Meta):
        pass

    return trace(lambda x: x * A.k), around(lambda: setattr(A, "k", 3.0), X())


@cases(hits=2)
def metaclass_property(trace):
    values = {"k": 2.0}

    class Meta(type):
        @property
        def k(cls):
            return values["k"]

    class A(metaclass=Meta):
        pass

    return trace(lambda x: x * A.k), around(lambda: values.update(k=3.0), X())


@cases(hits=2)
def metaclass_getattr(trace):
    values = {"k": 2.0}

    class Meta(type):
        def __getattr__(cls, name):
            return values[name]

    class A(metaclass=Meta):
        pass

    return trace(lambda x: x * A.k), around(lambda: values.update(k=3.0), X())


@cases(hits=2)
def abstract_base_registered(trace):
    class Base(abc.ABC):  # noqa: B024
        pass

    class A:
        pass

    o = A()
    return trace(lambda x: x * 2 if isinstance(o, Base) else x * 3), around(lambda: Base.register(A), X())


@cases(hits=2)
def instancecheck_replaced(trace):
    class Meta(type):
        def __instancecheck__(cls, value):
            return False

    class Base(metaclass=Meta):
        pass

    o = object()
    change = lambda: setattr(Meta, "__instancecheck__", lambda cls, value: True)  # noqa: E731
    return trace(lambda x: x * 2 if isinstance(o, Base) else x * 3), around(change, X())


@cases(hits=2)
def isinstance_of_changed_bases(trace):
    class P:
        pass

    class Q:
        pass

    class A(P):
        pass

    o = A()
    return trace(lambda x: x * 2 if isinstance(o, P) else x * 3), around(
        lambda: setattr(A, "__bases__", (Q,)), X()
    )


@cases(hits=2)
def issubclass_of_changed_bases(trace):
    class P:
        pass

    class Q:
        pass

    class A(P):
        pass

    return trace(lambda x: x * 2 if issubclass(A, P) else x * 3), around(
        lambda: setattr(A, "__bases__", (Q,)), X()
    )


@cases(hits=2)
def dataclass_field(trace):
    @dataclasses.dataclass
    class A:
        k: float = 2.0
        names: list = dataclasses.field(default_factory=list)

    o = A()
    return trace(lambda x: x * o.k * (1 + len(o.names))), around(lambda: o.names.append("a"), X())


# The repr of a dataclass asks for its identity, against recursion.
@cases(hits=2)
def dataclass_compared_replaced_and_listed(trace):
    @dataclasses.dataclass
    class A:
        k: float = 2.0

    o, p = A(), A()

    @trace
    def fn(x):
        more = dataclasses.replace(o, k=o.k + 1)
        return x * more.k, o == p, dataclasses.asdict(o), [f.name for f in dataclasses.fields(o)]

    return fn, around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=1)
def dataclass_returned(trace):
    @dataclasses.dataclass
    class Out:
        y: torch.Tensor
        extra: list = dataclasses.field(default_factory=list)

    return trace(lambda x: Out(x * 2, [x, 1])), [call(X(grad=True))] * 3


@cases(hits=1)
def frozen_slots_dataclass_returned(trace):
    @dataclasses.dataclass(frozen=True, slots=True)
    class Out:
        y: torch.Tensor
        n: int

    return trace(lambda x: (Out(x * 2, 3), Out(x, 4))), [call(X())] * 3


@cases(hits=2)
def enum_compared(trace):
    class Kind(enum.Enum):
        A = "a"
        B = "b"

    o = {"kind": Kind.A}
    fn = trace(lambda x: x * 2 if o["kind"] is Kind.A else x * len(o["kind"].name))
    return fn, around(lambda: o.update(kind=Kind.B), X())


def dunder(name, first, second, use):
    """A case where the special method `name` of a class of state is replaced."""

    def make(trace):
        cls = type("A", (), {name: first} if first else {})
        o = cls()
        return trace(lambda x: use(o, x)), around(lambda: setattr(cls, name, second), X())

    return make


DUNDERS = {
    "add": ("__add__", lambda s, v: v * 2, lambda s, v: v * 3, lambda o, x: o + x),
    "radd": ("__radd__", lambda s, v: v * 2, lambda s, v: v * 3, lambda o, x: [2.0][0] + o + x),
    "matmul": ("__matmul__", lambda s, v: v * 2, lambda s, v: v * 3, lambda o, x: o @ x),
    "iadd": ("__iadd__", lambda s, v: v * 2, lambda s, v: v * 3, lambda o, x: exec_iadd(o, x)),
    "neg": ("__neg__", lambda s: 2.0, lambda s: 3.0, lambda o, x: x * -o),
    "eq": ("__eq__", lambda s, v: True, lambda s, v: False, lambda o, x: x * 2 if o == 1 else x * 3),
    "eq_absent": ("__eq__", None, lambda s, v: True, lambda o, x: x * 2 if o == 1 else x * 3),
    "lt": ("__lt__", lambda s, v: True, lambda s, v: False, lambda o, x: x * 2 if o < 1 else x * 3),
    "bool": ("__bool__", lambda s: True, lambda s: False, lambda o, x: x * 2 if o else x * 3),
    "bool_absent": ("__bool__", None, lambda s: False, lambda o, x: x * 2 if o else x * 3),
    "len_absent": ("__len__", None, lambda s: 0, lambda o, x: x * 2 if o else x * 3),
    "len": ("__len__", lambda s: 2, lambda s: 3, lambda o, x: x * len(o)),
    "float": ("__float__", lambda s: 2.0, lambda s: 3.0, lambda o, x: x * float(o)),
    "int": ("__int__", lambda s: 2, lambda s: 3, lambda o, x: x * int(o)),
    "index": ("__index__", lambda s: 0, lambda s: 1, lambda o, x: x[o]),
    "index_of_list": ("__index__", lambda s: 0, lambda s: 1, lambda o, x: x * [2.0, 3.0][o]),
    "getitem": ("__getitem__", lambda s, i: 2.0, lambda s, i: 3.0, lambda o, x: x * o[0]),
    "call": ("__call__", lambda s, v: v * 2, lambda s, v: v * 3, lambda o, x: o(x)),
    "contains": ("__contains__", lambda s, v: True, lambda s, v: False, lambda o, x: x * 2 if 1 in o else x),
    "iter": ("__iter__", lambda s: iter([2.0]), lambda s: iter([3.0]), lambda o, x: x * sum(o)),
    "iter_for": ("__iter__", lambda s: iter([2.0]), lambda s: iter([3.0]), lambda o, x: [x * k for k in o]),
    "str": ("__str__", lambda s: "a", lambda s: "b", lambda o, x: (x, str(o))),
    "repr": ("__repr__", lambda s: "a", lambda s: "b", lambda o, x: (x, f"{o!r}")),
    "format": ("__format__", lambda s, f: "a", lambda s, f: "b", lambda o, x: (x, f"{o}")),
    "hash": ("__hash__", lambda s: 2, lambda s: 3, lambda o, x: x * hash(o)),
    "abs": ("__abs__", lambda s: 2.0, lambda s: 3.0, lambda o, x: x * abs(o)),
    "round": ("__round__", lambda s: 2, lambda s: 3, lambda o, x: x * round(o)),
    "enter": ("__enter__", lambda s: 2.0, lambda s: 3.0, lambda o, x: with_it(o, x)),
    "mul_by_tensor": ("__rmul__", lambda s, v: v * 2, lambda s, v: v * 3, lambda o, x: 2 * o * x),
    "torch_function": ("__torch_function__", None, lambda *a, **k: 3.0, lambda o, x: x * (1 if o else 2)),
    "setattr": (
        "__setattr__",
        lambda s, n, v: None,
        lambda s, n, v: object.__setattr__(s, n, v),
        lambda o, x: (setattr(o, "k", 1), x)[1],
    ),
}


def exec_iadd(o, x):
    o += x
    return o


def with_it(o, x):
    type(o).__exit__ = lambda *a: None
    with o as k:
        return x * k


@pytest.mark.parametrize("name", DUNDERS)
def test_special_methods_replaced(name):
    # `with_it` sets the method that ends the block at each call
    check(
        dunder(*DUNDERS[name]), **({"eager": "sets .__exit__ of a type"} if name == "enter" else {"hits": 1})
    )


class Constant:
    """A descriptor that gives way to what the instance has, as long as it has no `__set__`."""

    def __get__(self, owner, of=None):
        return 3.0


@cases(hits=2)
def descriptor_that_comes_to_have_a_set(trace):
    class Descriptor(Constant):
        pass

    class Holder:
        k = Descriptor()

    holder = Holder()
    holder.__dict__["k"] = 5.0

    def change():
        Descriptor.__set__ = lambda self, owner, value: None

    return trace(lambda x: x * holder.k), around(change, X())


@cases(hits=2)
def class_attribute_that_becomes_a_descriptor(trace):
    class Value:
        k = 2.0

    class Holder:
        value = Value()

    def change():
        Value.__get__ = lambda self, owner, of=None: types.SimpleNamespace(k=7.0)

    return trace(lambda x: x * Holder().value.k), around(change, X())


@cases(hits=2)
def descriptor_behind_super_that_comes_to_be_one(trace):
    class Value:
        k = 2.0

    class Base:
        value = Value()

    class Holder(Base):
        def read(self):
            return super().value.k

    holder = Holder()

    def change():
        Value.__get__ = lambda self, owner, of=None: types.SimpleNamespace(k=7.0)

    return trace(lambda x: x * holder.read()), around(change, X())


@cases(hits=2)
def super_of_other_bases(trace):
    class One:
        def k(self):
            return 2.0

    class Other:
        def k(self):
            return 3.0

    class Holder(One):
        def k(self):
            return super().k()

    holder = Holder()

    def change():
        Holder.__bases__ = (Other,)

    return trace(lambda x: x * holder.k()), around(change, X())


class Described(property):
    """A property that says more of itself."""

    def __init__(self, fget, text=""):
        super().__init__(fget)
        self.text = text


def described(change):
    """A case of a class with such a property, which `change(property, class)` changes."""

    def make(trace):
        class Kind(Described):
            pass

        class A:
            base = 2.0
            k = Kind(lambda self: self.base * 2, "doubled")

        o = A()
        return trace(lambda x: x * o.k), around(lambda: change(A.k, A), X())

    return make


DESCRIBED = {
    "what_it_reads": lambda made, owner: setattr(owner, "base", 3.0),
    "its_function": lambda made, owner: made.__init__(lambda self: 7.0),
    "how_its_class_gets": lambda made, owner: setattr(type(made), "__get__", lambda self, o, of=None: 7.0),
    "another_one": lambda made, owner: setattr(owner, "k", Described(lambda self: 7.0)),
}


@pytest.mark.parametrize("change", DESCRIBED.values(), ids=DESCRIBED)
def test_a_kind_of_property(change):
    check(described(change), hits=2)


@cases(eager="reads a function of unknown origin")
def property_whose_class_hides_its_function(trace):
    class Kind(property):
        fget = 7

    class A:
        k = Kind(lambda self: 2.0)

    o = A()
    return trace(lambda x: x * o.k), around(lambda: property.__init__(A.k, lambda self: 3.0), X())


@cases(hits=2)
def code_of_a_function_that_the_call_makes(trace):
    k = [2.0]

    def fn(x):
        def inner(y):
            return y * k[0]

        return inner(x) + inner.__code__.co_argcount + (inner.__code__ is fn.__code__)

    return trace(fn), around(lambda: k.__setitem__(0, 3.0), X())


@cases(hits=2)
def code_of_a_function_in_state(trace):
    def one(y):
        return y * 2

    def other(y, z=1.0):
        return y * 3

    def fn(x):
        return one(x) * one.__code__.co_argcount

    return trace(fn), around(
        lambda: setattr(one, "__code__", other.__code__) or setattr(one, "__defaults__", (1.0,)), X()
    )


class Kept:
    """A descriptor that is written in Python, with what it was set to last."""

    times = 2.0

    def __get__(self, owner, kind=None):
        return vars(owner)["kept"] * self.times

    def __set__(self, owner, value):
        vars(owner)["kept"] = self.last = value

    def __delete__(self, owner):
        vars(owner)["kept"] = -1.0


def set_inside(change, value=lambda x, o: x + o.k):
    """Sets what the descriptor stands for, and deletes it."""

    def make(trace):
        Described = type("Described", (Kept,), {"__set__": Kept.__set__, "__delete__": Kept.__delete__})
        k = Described()
        Owner = type("Owner", (), {"k": k})
        o = Owner()
        o.k = 1.0

        def fn(x):
            o.k = value(x, o).sum().detach()
            y = x * o.k
            del o.k
            return y + o.k

        world = Described, Owner, o
        return (
            trace(fn),
            [*[call(X())] * 4, lambda: change(*world), *[call(X())] * 4],
            lambda: (
                vars(o),
                vars(k),
            ),
        )

    return make


def hides(described, owner, o):
    owner.k = 3.0


SET_BY_PYTHON = {
    "nothing": lambda described, owner, o: None,
    "what it is set to": lambda described, owner, o: setattr(o, "k", 7.0),
    "how it sets": lambda described, owner, o: setattr(described, "__set__", lambda s, o, v: None),
    "how it deletes": lambda described, owner, o: setattr(described, "__delete__", lambda s, o: None),
    "how its base sets": lambda described, owner, o: delattr(described, "__set__"),
    "what it holds": lambda described, owner, o: setattr(vars(owner)["k"], "times", 5.0),
    "another one": lambda described, owner, o: setattr(owner, "k", described()),
    "its class": lambda described, owner, o: setattr(o, "__class__", type("Other", (owner,), {})),
    "no descriptor": hides,
}


@pytest.mark.parametrize("change", SET_BY_PYTHON.values(), ids=SET_BY_PYTHON)
def test_one_that_is_set_inside(change):
    check(set_inside(change), hits=2 if change is hides else 4)


@cases.parametrize
def test_descriptors(make, expected):
    check(make, **expected)
