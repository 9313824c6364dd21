"""Python that training programs run around their tensors: patterns, texts, imports, scalers, transforms."""

from __future__ import annotations

import abc
import importlib
import importlib.util
import json
import pickle
import sys
import types
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

from tests.soundness.runner import Cases, X, call, check

cases = Cases()


class Thing:
    """State with what the cases need."""

    def __init__(self, **values):
        self.__dict__.update(values)


@dataclass
class Point:
    a: float
    b: float


def calls(*changes, times=3):
    """A few calls, and a few more after each change."""
    steps = [call(k * X()) for k in range(1, times + 1)]
    return steps + [step for change in changes for step in (change, *steps)]


# ---------------------------------------------------------------- match
@cases(hits=4)
def matched_by_place(trace):
    s = Thing(value=Point(2.0, 3.0))

    def fn(x):
        match s.value:
            case Point(a, b):
                return x * a + b
            case _:
                return x

    def change():
        s.value = Point(5.0, 7.0)

    return trace(fn), calls(change, change, times=4), lambda: [s.value.a, s.value.b]


@cases(hits=4)
def matched_by_name(trace):
    s = Thing(value=Point(2.0, 3.0))

    def fn(x):
        match s.value:
            case Point(b=3.0):
                return x * 2
            case Point(a=a):
                return x * a
        return x

    def change():
        s.value.b = 4.0

    return trace(fn), calls(change), lambda: s.value.b


@cases(hits=6)
def matched_by_class(trace):
    s = Thing(value=1)

    def fn(x):
        match s.value:
            case int(n):
                return x * n
            case str(text):
                return x + len(text)
            case [first, *_]:
                return x - first
        return x

    def text():
        s.value = "four"

    def items():
        s.value = [2, 3]

    return trace(fn), calls(text, items), lambda: s.value


@cases(hits=4)
def places_that_change(trace):
    class Pair:
        __match_args__ = ("a", "b")

        def __init__(self):
            self.a, self.b = 2.0, 3.0

    pair = Pair()

    def fn(x):
        match pair:
            case Pair(first):
                return x * first
        return x

    def change():
        Pair.__match_args__ = ("b", "a")

    return trace(fn), calls(change)


@cases(hits=4)
def matched_with_a_class_that_asks(trace):
    class Shape(abc.ABC):  # noqa: B024 - its metaclass answers isinstance()
        sides = 3

    s = Thing(value=Point(1.0, 2.0))

    def fn(x):
        match s.value:
            case Shape():
                return x * 2
            case _:
                return x * 3

    def change():
        Shape.register(Point)

    return trace(fn), [*calls(times=5), change, *calls(times=1)]


# ---------------------------------------------------------------- texts
@cases(hits=4)
def text_of_json(trace):
    s = Thing(text='{"scale": 2.0, "parts": [1, 2]}')

    def fn(x):
        options = json.loads(s.text)
        return x * options["scale"] + len(options["parts"])

    def change():
        s.text = '{"scale": 4.0, "parts": []}'

    return trace(fn), calls(change), lambda: s.text


@cases(eager="makes a _json.Scanner, which lazytrace cannot see into")
def hook_of_json(trace):
    s = Thing(plus=1)

    def fn(x):
        return x * json.loads('{"a": 2}', object_hook=lambda d: d["a"] + s.plus)

    def change():
        s.plus = 5

    return trace(fn), calls(change), lambda: s.plus


@cases(hits=4)
def pickle_of_flat_values(trace):
    s = Thing(options={"a": 1, "b": "two"})

    def fn(x):
        return x * len(pickle.dumps(s.options))

    def change():
        s.options["b"] = "a longer text"

    return trace(fn), calls(change), lambda: s.options


@cases(eager="calls dumps(), which lazytrace cannot see into")
def pickle_that_tells_one_object_from_two(trace):
    text = "".join(["a", " text"])
    s = Thing(options=[text, text])

    def fn(x):
        return x * len(pickle.dumps(s.options))

    def change():
        s.options[1] = "".join(["a", " text"])

    return trace(fn), calls(change), lambda: s.options


@cases(hits=4)
def variables_by_name(trace):
    def fn(x, name):
        scale, shift = 2.0, 3.0
        return x * locals()[name] + scale + shift

    return trace(fn), [call(X() * k, name) for name in ("scale", "shift") for k in (1, 2, 3)]


variables = locals


@cases(eager="calls locals() by another name")
def variables_by_another_name(trace):
    def fn(x, scale):
        return x * variables()["scale"]

    return trace(fn), [call(X() * k, scale) for scale in (1.5, 2.5) for k in (1, 2, 3)]


@cases(eager="calls locals() where it shares variables")
def shared_variables_by_name(trace):
    scale = 2.0

    def fn(x):
        return x * locals()["scale"] + scale

    def change():
        nonlocal scale
        scale = 5.0

    return trace(fn), calls(change)


# ---------------------------------------------------------------- imports
@pytest.fixture
def usual_imports(monkeypatch):
    """Without the finders of whoever runs the tests."""
    finders = [BuiltinImporter, FrozenImporter, PathFinder]
    monkeypatch.setattr(sys, "meta_path", finders)


def finds(name, appear, disappear):
    """As accelerate asks for optional packages."""

    def make(trace):
        def fn(x):
            return x * 2 if importlib.util.find_spec(name) is None else x * 3

        return trace(fn), calls(appear, disappear)

    return make


@pytest.mark.usefixtures("usual_imports")
def test_module_that_is_put_there():
    name = "lazytrace_has_no_such_module"

    def appear():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = importlib.util.spec_from_loader(name, None)

    check(finds(name, appear, lambda: sys.modules.pop(name)), hits=4)


@pytest.mark.usefixtures("usual_imports")
def test_file_that_appears(tmp_path, monkeypatch):
    """It is noticed once importing is told of it, as importlib says."""
    monkeypatch.syspath_prepend(tmp_path)
    name = "lazytrace_has_no_such_file"
    file = tmp_path / f"{name}.py"

    def appear():
        file.write_text("")
        importlib.invalidate_caches()

    def disappear():
        file.unlink()
        importlib.invalidate_caches()

    check(finds(name, appear, disappear), hits=2)


# ---------------------------------------------------------------- steps
@cases(hits=6)
def step_with_a_scaler(trace):
    """A gradient that overflows lowers the scale and skips the step."""
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)

    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    y = torch.tensor([0, 1, 1, 0])
    good, bad = call(X(4, 3), y), call(torch.full((4, 3), float("inf")), y)
    steps = [*[good] * 6, bad, good, good, bad, *[good] * 4]
    return trace(step), steps, lambda: [*net.parameters(), scaler.state_dict()]


@cases(hits=4)
def step_with_gradients_of_samples(trace):
    """Differentially private descent: the gradient of each sample is clipped.

    A transform changes the shape of a tensor in place, while functional_call has the module hold others.
    """
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def loss(weights, x, y):
        return F.mse_loss(functional_call(net, weights, (x,)), y)

    def step(x, y):
        weights = {name: one.detach() for name, one in net.named_parameters()}
        each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
        for name, one in net.named_parameters():
            norms = each[name].flatten(1).norm(dim=1).clamp(min=1.0)
            one.grad = (each[name] / norms.view(-1, *[1] * (each[name].dim() - 1))).mean(0)
        optimizer.step()
        return each["weight"].abs().sum()

    steps = [call(X(4, 3) * k, torch.ones(4, 1)) for k in range(1, 8)]
    return trace(step), steps, lambda: list(net.parameters())


@cases.parametrize
def test_python_around_steps(make, expected):
    check(make, **expected)
