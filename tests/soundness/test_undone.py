"""Training steps that have become flat and stop behind what they have changed: all of it is put back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.soundness.runner import agree, call, check
from tests.soundness.test_flat_steps import ENOUGH, forms


def toggles(model, other, loss_of, optimizer):
    """As adversarial training does, of two models by turns."""
    other.requires_grad_(False)
    model.requires_grad_(True)
    optimizer.zero_grad()
    loss_of().backward()
    optimizer.step()
    other.requires_grad_(True)


def sets_data(model, other, loss_of, optimizer):
    """As tutorials write a step by hand."""
    model.zero_grad()
    loss_of().backward()
    for p in model.parameters():
        p.data -= 0.05 * p.grad


def adds_to_data(model, other, loss_of, optimizer):
    model.zero_grad()
    loss_of().backward()
    for p in model.parameters():
        p.data.add_(p.grad.data, alpha=-0.05)
        p.data = p.data.clamp_(-1, 1)


def averages(model, other, loss_of, optimizer):
    optimizer.zero_grad()
    loss_of().backward()
    optimizer.step()
    with torch.no_grad():
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            q.data = q.data * 0.9 + p.data * 0.1


def data_of_then(model, other, loss_of, optimizer):
    """What is set is what `.data` was before it was another one's."""
    model.zero_grad()
    loss_of().backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        mine = p.data
        p.data = q.data
        mine -= 0.05 * p.grad
        p.data = mine


def turned_data(model, other, loss_of, optimizer):
    model.zero_grad()
    loss_of().backward()
    square = model[0].weight
    mine = square.data
    mine.t_()
    square.data = mine


WAYS = [toggles, sets_data, adds_to_data, averages, data_of_then]


def training(change, count):
    def make(trace):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        other = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

        @trace
        def step(x, limit):
            change(model, other, lambda: (model(x) - other(x).detach()).pow(2).mean(), optimizer)
            loss = model(x).pow(2).mean().item()
            if loss > limit:
                change(model, other, lambda: model(x).abs().mean(), optimizer)
                return loss * 2
            return loss

        xs = [torch.randn(5, 4) * (1 + 2 * (k % 4 == 3)) for k in range(count)]
        state = lambda: (model, other, [p.grad for m in (model, other) for p in m.parameters()])  # noqa: E731
        return step, [call(x, 0.4) for x in xs], state

    return make


@pytest.mark.parametrize("change", WAYS, ids=[change.__name__ for change in WAYS])
def test_what_was_changed_is_put_back(change):
    check(training(change, ENOUGH * 4), hits=ENOUGH)


def test_data_that_was_turned_is_set():
    check(training(turned_data, ENOUGH), eager="sets .data of a Parameter")


@pytest.mark.parametrize("change", [toggles, sets_data])
def test_it_becomes_flat(change):
    assert "flat" in forms(agree(training(change, ENOUGH * 2)))
