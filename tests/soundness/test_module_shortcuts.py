"""What torch.nn.Module does around forward() is read at once: all that may make it do something else."""

from __future__ import annotations

import collections
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()
ROOT = Path(__file__).parents[2]


def make_model():
    """A fresh class each time, as some cases change the class."""

    class Inner(nn.Module):
        factor = 1.5

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.full((3,), 2.0))
            self.register_buffer("shift", torch.zeros(3))
            self.act = nn.Tanh()

        def forward(self, x):
            return self.act(x * self.scale + self.shift) * self.factor

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x) + self.inner.scale

    return Outer()


def changed(name, change, hits=2):
    """A case: the model is called, changed, and called again."""

    def make(trace):
        model = make_model()
        fn = trace(lambda x: model(x))
        return fn, around(lambda: change(model.inner), X()), lambda: model.inner._parameters

    make.__name__ = name
    cases(make, hits=hits)


def three():
    return nn.Parameter(torch.full((3,), 3.0))


def entry(kind, name, value):
    return lambda inner: inner.__dict__[kind].__setitem__(name, value())


def class_attribute(name, value):
    return lambda inner: setattr(type(inner), name, value)


def instance_attribute(name, value):
    return lambda inner: inner.__dict__.__setitem__(name, value())


def getter(self, name):
    return self._modules[name] if name in self._modules else torch.full((3,), 5.0)


def doubled(self, *args, **kwargs):
    return self.forward(*args, **kwargs) * 2


def moved_to_parameters(inner):
    del inner.shift
    inner.shift = three()


def other_table(inner):
    inner.__dict__["_parameters"] = {"scale": three()}


def ordered_table(inner):
    inner.__dict__["_parameters"] = collections.OrderedDict(scale=three())


def without_buffers(inner):
    inner._parameters["shift"] = three()
    del inner.__dict__["_buffers"]


def hooks_replaced(inner):
    inner._forward_hooks = {0: lambda module, args, result: result * 2}


changed("parameter_found_first", entry("_parameters", "shift", three))
changed("buffer_behind_parameter", entry("_buffers", "scale", three), hits=3)
changed("child_replaced_in_the_table", entry("_modules", "act", nn.Sigmoid))
changed("none_in_the_table", entry("_modules", "act", lambda: nn.Identity()))
changed("buffer_becomes_parameter", moved_to_parameters)
changed("shadowed_on_the_instance", instance_attribute("scale", lambda: torch.full((3,), 3.0)))
changed("child_shadowed_on_the_instance", instance_attribute("act", lambda: torch.relu))
changed("shadowed_on_the_class", class_attribute("scale", 4.0))
changed("property_on_the_class", class_attribute("scale", property(lambda self: 4.0)))
changed("child_method_on_the_class", class_attribute("act", lambda self, x: x * 7))
changed("getter_on_the_class", class_attribute("__getattr__", getter))
changed("other_table", other_table)
changed("ordered_table", ordered_table)
changed("table_gone", without_buffers)
changed("call_impl_on_the_class", class_attribute("_call_impl", doubled))
changed("call_impl_on_the_instance", instance_attribute("_call_impl", lambda: lambda x: x * 9))
changed("call_on_the_class", class_attribute("__call__", doubled))
changed("compiled_on_the_instance", instance_attribute("_compiled_call_impl", lambda: lambda x: x * 9))
changed("compiled_on_the_class", class_attribute("_compiled_call_impl", doubled))
changed("forward_on_the_class", class_attribute("forward", lambda self, x: x * 6))
changed("forward_on_the_instance", instance_attribute("forward", lambda: lambda x: x * 6))
changed("forward_in_c", instance_attribute("forward", lambda: torch.relu))
changed("hooks_replaced", hooks_replaced)
changed(
    "hooks_of_the_class", class_attribute("_forward_hooks", property(lambda self: {0: lambda *a: a[-1] * 2}))
)
changed("slow_forward", class_attribute("_slow_forward", doubled), hits=3)


@cases(hits=2)
def number_in_a_table(trace):
    model = make_model()
    model.inner._buffers["k"] = 3
    fn = trace(lambda x: model(x) * model.inner.k)
    return fn, around(lambda: model.inner._buffers.__setitem__("k", 4), X())


@cases(hits=2)
def attribute_that_is_not_there(trace):
    model = make_model()
    fn = trace(lambda x: model(x) * 2 if hasattr(model.inner, "extra") else model(x))
    return fn, around(lambda: setattr(model.inner, "extra", nn.Identity()), X())


@cases(hits=2)
def attribute_error_caught(trace):
    model = make_model()

    def fn(x):
        try:
            return x * model.inner.extra
        except AttributeError as error:
            return x * len(str(error))

    return trace(fn), around(lambda: setattr(model.inner, "extra", three()), X())


@cases(hits=2)
def by_a_computed_name(trace):
    model, names = make_model(), ["scale"]
    fn = trace(lambda x: x * getattr(model.inner, names[0]))
    return fn, around(lambda: names.__setitem__(0, "shift"), X())


@cases(hits=2)
def getter_that_asks_the_one_of_torch(trace):
    class Through(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("inner"), name)

        def forward(self, x):
            return self.inner(x) * self.weight

    model = Through()
    return trace(lambda x: model(x)), around(
        lambda: setattr(model.inner, "weight", nn.Parameter(torch.eye(3))), X()
    )


@cases(hits=2)
def made_by_the_call(trace):
    class Scaled(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.register_buffer("factor", factor)

        def forward(self, x):
            return x * self.factor

    return trace(lambda x: Scaled(x + 1)(x) + Scaled(x).factor), [
        call(X()),
        call(X()),
        call(X(2)),
        call(X(2)),
    ]


@cases(hits=2)
def written_by_the_call(trace):
    model = make_model()
    model.inner.register_buffer("count", torch.zeros(()))

    def fn(x):
        model.inner.count = model.inner.count + 1
        return model(x) * model.inner.count

    return trace(fn), [call(X())] * 3, lambda: model


@cases(hits=2)
def forward_that_raises(trace):
    class Raises(nn.Module):
        def forward(self, x):
            if self.training:
                raise ValueError("in training")
            return x

    model = Raises()

    def fn(x):
        try:
            return model(x)
        except ValueError:
            return x * 2

    return trace(fn), around(lambda: model.eval(), X())


@cases(hits=2)
def with_keywords(trace):
    class Keywords(nn.Module):
        def forward(self, x, *more, factor=1, **others):
            return x * factor + sum(more) + sum(others.values())

    model = Keywords()
    steps = [call(X(), 2, factor=3, a=4), call(X(), 2, factor=3, a=4), call(X(), b=5), call(X(), b=5)]
    return trace(lambda x, *args, **kwargs: model(x, *args, **kwargs)), steps


@cases(hits=2)
def called_by_itself(trace):
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x, times=3):
            return self(self.layer(x), times - 1) if times else x

    model = Deep()
    return trace(lambda x: model(x)), around(lambda: setattr(model, "layer", nn.Linear(3, 3)), X())


@cases.parametrize
def test_module_shortcuts(make, expected):
    check(make, **expected)


CHANGED_MEANWHILE = """
import sys
import torch
import lazytrace
from tests.soundness.test_module_shortcuts import make_model

def run(fn, model):
    def watch(frame, event, argument):
        if frame.f_code.co_name == "_call_impl" and frame.f_locals["self"] is model.inner:
            model.inner.forward = lambda x: x * 5
        return None

    sys.settrace(watch)
    try:
        return fn(torch.ones(3))
    finally:
        sys.settrace(None)

model, twin = make_model(), make_model()
fn = lazytrace.traced(lambda x: model(x))
assert torch.equal(run(fn, model), run(lambda x: twin(x), twin))
assert [lazytrace.reason_code(text) for text in fn.stats().eager] == ["module-changed"], fn.stats().eager
assert torch.equal(fn(torch.ones(3)), twin(torch.ones(3)))
"""


def test_a_module_that_changes_between_its_call_and_its_forward():
    """As another thread might: here it is a debugger that waits for the frame.

    In a process of its own: where torch.compile has run, all frames are watched, and none is read at once.
    """
    command = [sys.executable, "-c", CHANGED_MEANWHILE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert not done.returncode, done.stderr
