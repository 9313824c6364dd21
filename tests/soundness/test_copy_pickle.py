"""copy, deepcopy, pickle, state_dict, and being an ordinary function, method or module."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import unittest.mock

import pytest
import torch
from torch import nn

import lazytrace
from tests.soundness.runner import X

KINDS = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda o: pickle.loads(pickle.dumps(o))}


@lazytrace.traced
def module_level(x):
    """Doubles."""
    return x * 2


@lazytrace.traced
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen.add_(1)
        return self.fc(x)


class Model:
    def __init__(self):
        self.k = 2.0

    @lazytrace.traced
    def step(self, x):
        return x * self.k

    @lazytrace.traced
    @classmethod
    def of_class(cls, x):
        return x * len(cls.__name__)

    @lazytrace.traced
    @staticmethod
    def static(x):
        return x * 4

    @lazytrace.traced(buckets={"x": (0, (8,)), "return": 0})
    def padded(self, x):
        return x * self.k


class SubModel(Model):
    pass


@lazytrace.traced(buckets={"x": (0, (8,)), "return": 0})
def padded_function(x):
    return x * 2


@pytest.mark.parametrize("kind", KINDS)
def test_function(kind):
    module_level(X())
    again = KINDS[kind](module_level)
    assert torch.equal(again(X()), X() * 2)
    assert torch.equal(again(X() + 1), (X() + 1) * 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "method",
    [
        Model().step,
        Model().of_class,
        Model().static,
        Model().padded,
        SubModel.of_class,
        SubModel.static,
        functools.partial(SubModel.step, Model()),
        functools.partial(Model().step),
        padded_function,
    ],
)
def test_methods_themselves(method, kind):
    """Code that keeps a bound method, as `self.loss = self.l1_loss`, is copied with it."""
    wanted = method(X())
    again = KINDS[kind](method)
    assert type(again) is type(method)
    for _ in range(3):
        assert torch.equal(again(X()), wanted)


def test_an_object_that_keeps_its_own_method():
    a = Model()
    a.chosen = a.step
    a.chosen(X()), a.chosen(X())
    b = copy.deepcopy(a)
    b.k = 3.0
    assert torch.equal(b.chosen(X()), X() * 3)
    assert torch.equal(b.chosen(X()), X() * 3)
    assert torch.equal(a.chosen(X()), X() * 2)
    assert b.chosen.__self__ is b


def test_the_namespace_is_that_of_what_is_wrapped():
    """`model.__dict__.update(...)`, `vars(model)`."""
    net = nn.Linear(3, 2)
    model = lazytrace.traced(net)
    assert vars(model) is net.__dict__
    assert model.__dict__ is net.__dict__

    def plain(x):
        return x

    plain.tag = 1
    wrapper = functools.wraps(lazytrace.traced(plain))(lambda x: x)
    assert {*vars(wrapper)} == {"tag", "__wrapped__"}


@pytest.mark.parametrize("kind", KINDS)
def test_object_with_a_traced_method(kind):
    a = Model()
    a.step(X()), a.step(X())
    b = KINDS[kind](a)
    b.k = 3.0
    assert torch.equal(b.step(X()), X() * 3)
    assert torch.equal(b.step(X()), X() * 3)
    assert torch.equal(a.step(X()), X() * 2)


@pytest.mark.parametrize("kind", KINDS)
def test_module_class(kind):
    a = Net()
    a(X()), a(X())
    b = KINDS[kind](a)
    if kind != "copy":
        with torch.no_grad():
            b.fc.weight.zero_()
            b.fc.bias.zero_()
        assert b(X()).abs().sum() == 0 == b(X()).abs().sum()
        assert a(X()).abs().sum() != 0
        assert (a.seen.item(), b.seen.item()) == (3, 4)
    else:
        assert torch.equal(b(X()), a(X()))


@pytest.mark.parametrize("kind", ["copy", "deepcopy"])
def test_traced_module_instance(kind):
    a = lazytrace.traced(nn.Linear(3, 2))
    a(X()), a(X())
    b = KINDS[kind](a)
    assert torch.equal(b(X()), a(X()))
    if kind == "deepcopy":
        with torch.no_grad():
            b.weight.zero_()
        assert not torch.equal(b(X()), a(X()))
        assert torch.equal(b(X()), b.bias)


def test_traced_module_instance_is_a_module():
    model = lazytrace.traced(nn.Sequential(nn.Linear(3, 2), nn.Dropout()))
    plain = copy.deepcopy(model)
    assert isinstance(model, nn.Module)
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
    assert len(list(model.parameters())) == 2
    assert model.eval() is not None
    assert not model.training
    assert not model[1].training
    model.double()
    assert model[0].weight.dtype is torch.float64
    assert nn.Sequential(model, nn.ReLU())(X().double()).dtype is torch.float64
    assert plain[0].weight.dtype is torch.float32


def test_traced_module_inside_another_module_saves_and_loads():
    outer = nn.Sequential(lazytrace.traced(nn.Linear(3, 2)), nn.ReLU())
    twin = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    twin.load_state_dict(outer.state_dict())
    assert torch.equal(twin(X()), outer(X()))
    assert torch.equal(twin(X()), outer(X()))
    memory = io.BytesIO()
    torch.save(outer.state_dict(), memory)
    memory.seek(0)
    twin.load_state_dict(torch.load(memory))


def test_functions_keep_their_names():
    assert module_level.__name__ == "module_level"
    assert module_level.__doc__ == "Doubles."
    assert str(inspect.signature(module_level)) == "(x)"
    assert inspect.unwrap(module_level) is module_level.original or callable(module_level.original)
    assert str(inspect.signature(Model.step)) == "(self, x)"
    assert str(inspect.signature(Model().step)) == "(x)"


def test_functools_wraps_and_partial():
    @functools.wraps(module_level)
    def wrapped(*args):
        return module_level(*args)

    assert wrapped.__name__ == "module_level"
    assert torch.equal(functools.partial(module_level, X())(), X() * 2)


def test_mock_patches_a_traced_method():
    model = Model()
    model.step(X()), model.step(X())
    with unittest.mock.patch.object(Model, "step", lambda self, x: x - 1):
        assert torch.equal(model.step(X()), X() - 1)
    assert torch.equal(model.step(X()), X() * 2)


def test_data_parallel_style_replica():
    model = Net()
    model(X()), model(X())
    replica = model._replicate_for_data_parallel()
    replica._parameters = dict(model._parameters)
    replica._modules = {"fc": nn.Linear(3, 2)}
    replica._buffers = {"seen": torch.zeros(())}
    assert torch.equal(replica(X()), replica.fc(X()))
    assert torch.equal(replica(X()), replica.fc(X()))
