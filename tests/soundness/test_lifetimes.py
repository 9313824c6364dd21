"""Nothing outlives its owner: functions, instances, classes, models, arguments, outputs, captures."""

from __future__ import annotations

import contextlib
import gc
import types
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lazytrace
from tests.soundness.runner import X


class Box:
    def __init__(self, **values):
        vars(self).update(values)


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def freed(reference, collect=True):
    if collect:
        gc.collect()
    return reference() is None


def warm(fn, *args):
    for _ in range(3):
        fn(*args)


def hot(fn):
    return fn.stats().hits > 0


def test_function():
    fn = lazytrace.traced(lambda x: x * 2)
    warm(fn, X())
    assert hot(fn)
    inner, outer = weakref.ref(fn.original), weakref.ref(fn)
    del fn
    assert freed(outer)
    assert freed(inner)


@pytest.mark.usefixtures("no_collector")
def test_function_without_the_collector():
    fn = lazytrace.traced(lambda x: x * 2)
    warm(fn, X())
    inner = weakref.ref(fn.original)
    del fn
    assert freed(inner, collect=False)


def closes_over(w, o):
    return lazytrace.traced(lambda x: x * w * o.k)


def test_captured_tensor_and_object():
    w, o = torch.ones(3), Box(k=2.0)
    fn = closes_over(w, o)
    warm(fn, X())
    assert hot(fn)
    references = [weakref.ref(w), weakref.ref(o)]
    del w, o, fn
    assert all(freed(r) for r in references)


def test_captured_tensor_when_state_moves_on():
    state = {"w": torch.ones(3)}
    fn = lazytrace.traced(lambda x: x * state["w"])
    warm(fn, X())
    old = weakref.ref(state["w"])
    state["w"] = torch.zeros(3)
    assert freed(old)
    assert hot(fn)


def test_object_when_state_moves_on():
    state = Box(o=Box(k=2.0, big=torch.ones(3)))
    fn = lazytrace.traced(lambda x: x * state.o.k * state.o.big)
    warm(fn, X())
    old = weakref.ref(state.o)
    state.o = Box(k=3.0, big=torch.ones(3))
    assert freed(old)
    assert hot(fn)


def test_arguments_and_outputs():
    fn = lazytrace.traced(lambda x, o: (x * o.k, x, o))
    x, o = X(), Box(k=2.0)
    warm(fn, x, o)
    out = fn(x, o)
    assert hot(fn)
    references = [weakref.ref(t) for t in (x, o, out[0])]
    del x, o, out
    assert all(freed(r) for r in references)


@pytest.mark.usefixtures("no_collector")
def test_arguments_and_outputs_without_the_collector():
    fn = lazytrace.traced(lambda x, o: (x * o.k, x, o))
    x, o = X(), Box(k=2.0)
    warm(fn, x, o)
    out = fn(x, o)
    references = [weakref.ref(t) for t in (x, o, out[0])]
    del x, o, out
    assert all(freed(r, collect=False) for r in references)


def test_gradients_graph():
    fn = lazytrace.traced(lambda x: (x * 2).sin())
    x = X(grad=True)
    warm(fn, x)
    y = fn(x)
    y.sum().backward()
    reference = weakref.ref(x)
    del x, y
    assert freed(reference)


class Model:
    def __init__(self):
        self.k = 2.0
        self.me = None

    @lazytrace.traced
    def step(self, x):
        return x * self.k


@pytest.mark.usefixtures("no_collector")
def test_instance_without_the_collector():
    model = Model()
    warm(model.step, X())
    assert model.step.cache_info().currsize == 1
    reference = weakref.ref(model)
    del model
    assert freed(reference, collect=False)


def test_instance_in_a_cycle():
    model = Model()
    model.me = model
    warm(model.step, X())
    reference = weakref.ref(model)
    del model
    assert freed(reference)


def test_instance_that_reads_itself_through_state():
    class Node:
        def __init__(self):
            self.k, self.parts = 2.0, [self]

        @lazytrace.traced
        def step(self, x):
            return x * self.parts[0].k, self

    node = Node()
    warm(node.step, X())
    reference = weakref.ref(node)
    del node
    assert freed(reference)


def namespaced():
    class Node:
        def __init__(self):
            self.ns = types.SimpleNamespace(k=2.0, owner=self)

        @lazytrace.traced
        def step(self, x):
            return x * self.ns.k

    return Node()


def bound():
    class Node:
        def __init__(self):
            self.k, self.fn = 2.0, self.scale

        def scale(self, x):
            return x * self.k

        @lazytrace.traced
        def step(self, x):
            return self.fn(x)

    return Node()


def partial():
    import functools

    class Node:
        def __init__(self):
            self.k = 2.0
            self.fn = functools.partial(Node.scale, self)

        def scale(self, x):
            return x * self.k

        @lazytrace.traced
        def step(self, x):
            return self.fn(x)

    return Node()


def with_closure():
    class Node:
        def __init__(self):
            self.k = 2.0
            self.fn = lambda x: x * self.k

        @lazytrace.traced
        def step(self, x):
            return self.fn(x)

    return Node()


def with_slice():
    class Node:
        def __init__(self):
            self.items = (self, 2.0)

        @lazytrace.traced
        def step(self, x):
            return x * self.items[1]

    return Node()


def with_property():
    class Base:
        @property
        def k(self):
            return 2.0

    class Node(Base):
        @property
        def k(self):
            return super().k

        @lazytrace.traced
        def step(self, x):
            return x * self.k

    return Node()


def returns_own_type():
    class Node:
        def __init__(self, y=None):
            self.y = y

        @lazytrace.traced
        def step(self, x):
            return Node(x * 2)

    return Node()


def with_class_attribute():
    class Node:
        scale = 2.0

        @lazytrace.traced
        def step(self, x):
            return x * Node.scale * type(self).scale

    Node.default = Node()
    return Node()


def with_cached_bound_builtin():
    class Node:
        def __init__(self):
            self.table = {"k": 2.0, "me": self}
            self.look = self.table.get

        @lazytrace.traced
        def step(self, x):
            return x * self.look("k")

    return Node()


MAKERS = [
    namespaced, bound, partial, with_closure, with_slice, with_property, returns_own_type,
    with_class_attribute, with_cached_bound_builtin,
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
def test_instances_and_classes_of_many_kinds(make):
    node = make()
    warm(node.step, X())
    references = [weakref.ref(node), weakref.ref(type(node))]
    del node
    assert [freed(r) for r in references] == [True, True]


def test_enum_class_in_a_trace():
    import enum

    def make():
        class Kind(enum.Enum):
            A = 1

            def scale(self, x):
                return step(x, self)

        @lazytrace.traced
        def step(x, kind):
            return x * (2 if kind is Kind.A else 3), kind

        warm(step, X(), Kind.A)
        return weakref.ref(step), weakref.ref(Kind)

    assert [freed(r) for r in make()] == [True, True]


def test_model_instance():
    model = lazytrace.traced(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)))
    warm(model, X())
    references = [weakref.ref(model[0]), weakref.ref(model[0].weight)]
    del model
    assert all(freed(r) for r in references)


def test_model_of_a_traced_class():
    @lazytrace.traced
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(x)

    model = Net()
    warm(model, X())
    assert model.forward.stats().hits
    references = [weakref.ref(model), weakref.ref(model.fc.weight), weakref.ref(Net)]
    del model, Net
    assert [freed(r) for r in references] == [True] * 3


@pytest.mark.usefixtures("no_collector")
def test_failed_recordings_keep_nothing():
    seen = []

    def body(x):
        seen.append(1)
        return x * 2

    fn = lazytrace.traced(body)
    x = X()
    warm(fn, x)
    reference = weakref.ref(x)
    del x
    assert freed(reference, collect=False)


@pytest.mark.usefixtures("no_collector")
def test_exceptions_keep_nothing():
    fn = lazytrace.traced(lambda x: x.view(7))
    x = X()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            fn(x)
    reference = weakref.ref(x)
    del x
    gc.collect()
    assert freed(reference, collect=False)


def test_memory_does_not_grow_with_calls():
    fn = lazytrace.traced(lambda x, k: {"y": [x * k]}, cache_limit=4)
    x = X()
    for i in range(20):
        fn(x, float(i % 6))
    gc.collect()
    before = len(gc.get_objects())
    for i in range(200):
        fn(x, float(i % 6))
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_graph_depth_of_a_loop_is_freed():
    fn = lazytrace.traced(lambda x: x + 1)
    x = first = X(grad=True)
    for _ in range(2000):
        x = fn(x)
    x.sum().backward()
    assert torch.equal(first.grad, torch.ones(3))


class Kept(Exception):
    """An exception whose traceback keeps the frames of the recording."""


@pytest.mark.parametrize("ends", ["is given up", "raises"])
def test_an_exception_keeps_no_recording(ends):
    """What the recording had seen, the model among it, was never freed."""

    def step(model):
        @lazytrace.traced
        def run(x):
            checkpoint(model, x, use_reentrant=False).sum().backward()
            if ends == "raises":
                raise Kept
            return x.numpy()

        return run

    model = nn.Linear(3, 3)
    function = step(model)
    for _ in range(3):
        with contextlib.suppress(Kept):
            function(torch.ones(2, 3))
    gone = weakref.ref(model)
    del model, function
    gc.collect()
    assert gone() is None
