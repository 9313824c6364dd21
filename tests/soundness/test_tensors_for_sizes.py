"""Tensors that torch's functions are given where they want a whole number: their values are followed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.soundness.runner import Cases, agree, call, check

cases = Cases()

TAKES = {
    "one_hot": lambda x, n: F.one_hot(x, n),
    "one_hot_by_name": lambda x, n: F.one_hot(x, num_classes=n),
    "one_hot_of_a_larger": lambda x, n: F.one_hot(x, max(n, 5))[..., :5],
    "bincount": lambda x, n: torch.bincount(x, minlength=n),
    "bincount_with_weights": lambda x, n: x.bincount(torch.ones(4), n),
    "eye": lambda x, n: torch.eye(n),
    "eye_of_two": lambda x, n: torch.eye(n, m=n + 1),
    "new_empty": lambda x, n: x.new_empty(n).fill_(1),
    "empty": lambda x, n: torch.empty(n, 2).zero_(),
    "randperm": lambda x, n: torch.randperm(n),
    "randint": lambda x, n: torch.randint(n, (2,)),
    "randint_between": lambda x, n: torch.randint(0, high=n, size=(2,)),
    "randint_of_a_size": lambda x, n: torch.randint(0, 5, (n,)),
    "linspace": lambda x, n: torch.linspace(0, 1, n),
    "linspace_by_name": lambda x, n: torch.linspace(0, 1, steps=n),
    "linspace_to_a_tensor": lambda x, n: torch.linspace(torch.tensor(0.0), n, 4),
    "topk": lambda x, n: torch.arange(20).topk(n),
    "topk_by_name": lambda x, n: torch.topk(torch.arange(20), k=n).values,
    "narrow": lambda x, n: torch.arange(20).narrow(0, 0, n),
    "narrow_from_a_tensor": lambda x, n: torch.arange(20).narrow(0, n, 2),
    "roll": lambda x, n: torch.roll(x, n),
    "roll_by_name": lambda x, n: x.roll(shifts=n, dims=0),
    "tile": lambda x, n: x.tile(n),
    "broadcast_to": lambda x, n: torch.broadcast_to(x[:1], (n,)),
    "multinomial": lambda x, n: torch.multinomial(torch.ones(20), n),
}


@pytest.mark.parametrize("kept", [False, True], ids=["alone", "behind_a_write"])
@pytest.mark.parametrize("name", TAKES)
def test_a_tensor_is_a_size(name, kept):
    def make(trace):
        total = torch.zeros(1)

        def fn(x):
            if kept:
                total.add_(1)
            return TAKES[name](x, x.max() + 1)

        def batch(k):
            return torch.tensor([3 + 7 * k % 13, 1, 0, 2])

        return trace(fn), [call(batch(k)) for k in range(30)], lambda: (total, torch.get_rng_state()[:16])

    # Of thirteen values some are recorded alone, until it is clear that they say how large things are.
    check(make, hits=20)


def refused(name, take):
    """In torch's own words, wherever the value comes from."""

    def make(trace):
        def fn(x):
            return take(x, x.max())

        values = [4, 5, -1, 6, 7, -2, 5, 6, 7, 8]
        return trace(fn), [call(torch.tensor([v, v - 1])) for v in values]

    make.__name__ = f"refused_{name}"
    cases(make, hits=3)


refused("eye", lambda x, n: torch.eye(n))
refused("one_hot", lambda x, n: F.one_hot(x.abs() % 2, n))
refused("randperm", lambda x, n: torch.randperm(n))
refused("topk", lambda x, n: torch.arange(9).topk(n))


def refused_and_caught(name, take):
    def make(trace):
        total = torch.zeros(1)

        def fn(x):
            total.add_(1)
            try:
                found = take(torch.arange(20), x.max())
            except IndexError as error:
                found = str(error)
            return found, total.clone()

        return trace(fn), [call(torch.tensor([v, v - 1])) for v in (3, 4, 5, 6, 30, 7, 8, 40, 3)]

    make.__name__ = f"caught_{name}"
    cases(make, hits=4)


refused_and_caught("narrow", lambda t, n: torch.narrow(t, 0, n, 3))
refused_and_caught("narrow_of_a_tensor", lambda t, n: t.narrow(0, n, 3))
refused_and_caught("narrow_from_the_end", lambda t, n: t.narrow(0, -n, 1))


def in_its_own_words(name, take):
    """Of what it was given, not of the numbers that are in there."""

    def make(trace):
        def fn(x):
            try:
                return take(x.max())
            except TypeError as error:
                return str(error), x + 1

        return trace(fn), [call(torch.tensor([k, 1])) for k in range(2, 7)]

    make.__name__ = f"words_{name}"
    cases(make, hits=3)


in_its_own_words("eye", lambda n: torch.eye(n=n, m=n, k=n))
in_its_own_words("randperm", lambda n: torch.randperm(n, size=n))


@cases(hits=4)
def a_float_is_no_size(trace):
    def fn(x):
        try:
            return torch.eye(x.max())
        except TypeError as error:
            return str(error)

    return trace(fn), [call(torch.tensor([float(k), 1.0])) for k in range(2, 9)]


class Chooses(nn.Module):
    """Which rows an expert takes, as in `mixture_of_experts`: one hot vectors of a safe width."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        best, index = scores.max(-1)
        mask = F.one_hot(index, 3).float()
        position = (mask.cumsum(0) * mask).sum(-1).long()
        width = max(position.max() + 1, x.shape[0] // 2)
        places = F.one_hot(position, width)[..., : x.shape[0] // 2].float()
        return torch.einsum("nc,nd->cd", places * best[:, None], x)


@cases(hits=12)
def experts_of_a_capacity(trace):
    torch.manual_seed(0)
    net = Chooses()
    optimizer = torch.optim.Adam(net.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return (
        trace(step),
        [call(torch.randn(6 + 2 * (k % 4), 4)) for k in range(24)],
        lambda: list(net.parameters()),
    )


# ---------------------------------------------------------------- bounds
BOUNDS = {
    "clamp": lambda x, n: x.clamp(0, n),
    "clamp_": lambda x, n: x.clone().clamp_(0, n - 1),
    "clip": lambda x, n: torch.clip(x, n, 9),
    "by_name": lambda x, n: torch.clamp(x, min=-1.5, max=n),
    "one_by_name": lambda x, n: x.clip(0, max=n),
    "of_floats": lambda x, n: x.float().clamp_(n / 3, 7.5),
    "a_flag": lambda x, n: x.clamp(False, n),
    "both_tensors": lambda x, n: x.clamp(n - 2, n),
    "one_tensor": lambda x, n: x.clamp(max=n),
    "a_wide_tensor": lambda x, n: x.clamp(torch.zeros_like(x), n.expand(len(x))),
}


@pytest.mark.parametrize("kept", [False, True], ids=["alone", "behind_a_write"])
@pytest.mark.parametrize("name", BOUNDS)
def test_a_tensor_is_a_bound(name, kept):
    """Beside a number torch asks it for its value; the sizes vary as well."""

    def make(trace):
        total = torch.zeros(1)

        def fn(x, n):
            if kept:
                total.add_(1)
            return BOUNDS[name](x, n), total.clone()

        def batch(k):
            return torch.arange(1 + k % 5), torch.tensor(3 + 7 * k % 13)

        return trace(fn), [call(*batch(k)) for k in range(20)]

    check(make, hits=17)


def odd_bound(name, bound):
    def make(trace):
        def fn(x, n):
            try:
                return x.clamp(0, bound(n))
            except (TypeError, RuntimeError) as error:
                return type(error).__name__, str(error).split("Declaration")[0]

        return trace(fn), [call(torch.arange(5.0), torch.tensor(float(n))) for n in (1, 2, 2, 3, 3)]

    make.__name__ = f"odd_bound_{name}"
    return make


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("wide", lambda n: n.expand(5)),
        ("one_row", lambda n: n.reshape(1)),
        ("with_a_gradient", lambda n: n.clone().requires_grad_()),
        ("nan", lambda n: n * float("nan")),
        ("of_flags", lambda n: n > 1),
        ("complex", lambda n: n + 1j),
        ("text", lambda n: "a"),
    ],
)
def test_an_odd_bound(name, bound):
    agree(odd_bound(name, bound))


@cases.parametrize
def test_tensors_for_sizes(make, expected):
    check(make, **expected)
