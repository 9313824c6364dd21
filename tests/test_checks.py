"""Comparisons of what two runs gave, and helpers that let both start alike."""

from __future__ import annotations

import collections
import dataclasses
import random

import numpy as np
import pytest
import torch

from lazytrace import checkpoint_params, clone_inputs, preserve_rng_state, same, trace, traced, verify

X = torch.tensor([1.0, 2.0, 3.0])


@dataclasses.dataclass(eq=False)
class Output:
    logits: torch.Tensor
    loss: float = 1.0


@pytest.mark.parametrize(
    ("a", "b", "difference"),
    [
        (X, X.clone(), ""),
        (X, X * 2, "3 of 3 elements differ, by at most 3 (relative 0.5) at [2]: 3 and 6"),
        (X, X.double(), "dtype float32 and float64"),
        (X, X[:2], "shape [3] and [2]"),
        (X, 3, "Tensor and int"),
        (X, X.clone().requires_grad_(), "requires_grad False and True"),
        ([X, 1], [X, 1], ""),
        ([X, 1], (X, 1), "list and tuple"),
        ([X], [X, X], "1 and 2 elements"),
        ([1, [2, 3]], [1, [2, 4]], "[1][1]: 3 and 4"),
        ({"a": 1}, {"b": 1}, "the keys ['a'] and ['b']"),
        (
            {"a": (X, None)},
            {"a": (X + 1, None)},
            "['a'][0]: 3 of 3 elements differ, by at most 1 (relative 0.5) at [0]: 1 and 2",
        ),
        (Output(X), Output(X), ""),
        (Output(X), Output(X, 2.0), ".loss: 1.0 and 2.0"),
        (1, 1.0, "int and float"),
        (True, 1, "bool and int"),
        (float("nan"), float("nan"), ""),
        (X * float("nan"), X * float("nan"), ""),
        (
            torch.tensor([1, float("nan")]),
            torch.tensor([1.0, 2.0]),
            "1 of 2 elements differ, by at most inf (relative inf) at [1]: nan and 2",
        ),
        (
            torch.tensor([1, 2]),
            torch.tensor([1, 3]),
            "1 of 2 elements differ, by at most 1 (relative 0.333) at [1]: 2 and 3",
        ),
        (
            torch.tensor([True]),
            torch.tensor([False]),
            "1 of 1 elements differ, by at most 1 (relative inf) at [0]: 1 and 0",
        ),
        (X.to_sparse(), X.to_sparse(), ""),
        (
            X.to_sparse(),
            (X * 2).to_sparse(),
            "3 of 3 elements differ, by at most 3 (relative 0.5) at [2]: 3 and 6",
        ),
        (collections.OrderedDict(a=1), {"a": 1}, "OrderedDict and dict"),
    ],
)
def test_the_first_difference(a, b, difference):
    found = same(a, b)
    assert found.difference == difference
    assert bool(found) is (not difference)
    assert str(found) == (difference or "the same")


def test_tolerances():
    assert same(X, X + 1e-7)
    assert not same(X, X + 1e-7, rtol=0, atol=0)
    assert not same(X, X + 1e-3)
    assert same(X, X + 1e-3, atol=1e-2)
    assert same(X.bfloat16(), X.bfloat16() * 1.01)
    assert same(X, X.double(), exact_dtype=False)
    assert not same(X * float("nan"), X * float("nan"), equal_nan=False)
    assert not same(float("nan"), float("nan"), equal_nan=False)


def test_a_reference_in_float64_decides():
    exact = torch.linspace(0, 1, 9, dtype=torch.float64)
    near, other = exact.float() + 1e-3, exact.float() - 1e-3
    assert not same(near, other)
    assert same([near], [other], fp64_reference=[exact])
    assert not same([near + 1], [other], fp64_reference=[exact])


def test_the_cosine_decides():
    assert same(X, X * 3, cosine=True)
    assert same(X, -X, cosine=True).difference == "the cosine between both is -1.0000"


def test_copies_of_inputs():
    base = torch.arange(12.0)
    view, leaf = base[2:8:2], torch.ones(2, requires_grad=True)
    leaf.grad = torch.full((2,), 5.0)
    inner = leaf * 2
    a, b, c, d, e, again, number = clone_inputs([base, view, leaf, inner, torch.nn.Parameter(X), base, 3])
    b.zero_()
    assert a[2] == a[4] == 0
    assert base[2] == 2
    assert b.stride() == (2,)
    assert again is a
    assert (c.is_leaf, c.requires_grad, c is leaf) == (True, True, False)
    assert torch.equal(c.grad, leaf.grad)
    assert c.grad is not leaf.grad
    assert (d.is_leaf, d.requires_grad) == (False, True)
    assert isinstance(e, torch.nn.Parameter)
    assert number == 3


def test_copies_keep_the_containers():
    found = clone_inputs({"x": (X, [X])})
    assert same(found, {"x": (X, [X])})
    assert found["x"][0] is found["x"][1][0]
    assert found["x"][0] is not X


def test_random_numbers_start_again():
    with preserve_rng_state():
        first = torch.rand(3)
    assert torch.equal(torch.rand(3), first)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), preserve_rng_state():
        torch.rand(3).view(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_parameters_buffers_and_gradients_are_put_back():
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    net(torch.randn(4, 3)).sum().backward()
    gradient = net[1].weight.grad
    before = {name: value.clone() for name, value in net.state_dict().items()}
    of_gradient, version = gradient.clone(), net[1].bias._version
    restore = checkpoint_params(net)
    net(torch.randn(4, 3)).sum().backward()
    with torch.no_grad():
        net[1].weight.add_(1)
    net[1].bias.grad = None
    drawn = torch.rand(1)
    restore()
    assert same(dict(net.state_dict()), before, rtol=0, atol=0)
    assert net[1].weight.grad is gradient
    assert torch.equal(gradient, of_gradient)
    assert net[1].bias.grad is not None
    assert net[1].bias._version == version  # what was not written is not written again
    assert drawn.shape == (1,)


def test_verify_puts_flags_back():
    net = torch.nn.Linear(3, 2)

    @traced
    def step(x):
        net.requires_grad_(False)
        return net(x)

    x = torch.ones(4, 3)
    verify(step, (x,))
    assert all(p.requires_grad for p in net.parameters())


def test_copies_of_conjugates_and_opposites():
    x = torch.tensor([1 + 2j, 3 - 1j])
    for value in (x.conj(), x.conj().imag, x.conj()[1:]):
        copied = clone_inputs(value)
        assert torch.equal(copied, value)
        assert (copied.is_conj(), copied.is_neg()) == (value.is_conj(), value.is_neg())
    one, other = clone_inputs((base := x.clone(), base.conj()))
    one[0] = 5j
    assert other[0] == -5j


def test_large_ints_that_no_float_tells_apart():
    a, b = torch.tensor([2**53]), torch.tensor([2**53 + 1])
    assert not same(a, b, rtol=0, atol=0)
    assert not same(a, b)
    assert same(a, b, rtol=1e-3)


@dataclasses.dataclass
class Compared:
    loss: object


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    loss: object


class Slots:
    __slots__ = ("loss", "unset")

    def __init__(self, loss):
        self.loss = loss


@pytest.mark.parametrize("make", [Compared, Slotted, Slots, lambda x: Compared([Slots(x)])])
def test_objects_are_compared_by_their_attributes(make):
    """`==` of a dataclass asks tensors for one bool."""
    assert same(make(X), make(X.clone()))
    assert same(make(X), make(X + 1e-7), fp64_reference=make(X.double()))
    assert ".loss: 3 of 3 elements differ" in str(same(make(X), make(X + 1)))


def test_deques_are_compared():
    assert same(collections.deque([X]), collections.deque([X.clone()]))
    assert str(same(collections.deque([X]), collections.deque([X + 1]))).startswith("[0]: 3 of 3")


def test_results_that_are_dataclasses_are_checked():
    step = trace(lambda x: Compared(x * 2), X)
    assert torch.equal(step(X).loss, X * 2)


def test_verify_puts_the_streams_of_python_and_numpy_back():
    def step(x):
        return x * random.random() * np.random.rand()

    random.seed(0), np.random.seed(0)
    wanted = random.random(), np.random.rand()
    random.seed(0), np.random.seed(0)
    assert verify(traced(step), X).outputs == 1
    assert (random.random(), np.random.rand()) == wanted


def test_arrays_are_compared():
    a = torch.tensor([1.0, float("nan")]).numpy()
    assert same(a, a.copy())
    assert not same(a, a + 1)
    assert not same(a, a[:1])
