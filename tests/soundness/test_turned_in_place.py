"""Training steps whose operators turn a tensor in place on their way: the flat form has a view there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Holder, agree, call, check
from tests.soundness.test_flat_steps import ENOUGH, forms

LAYERS = {
    "gru": lambda: nn.GRU(6, 4, batch_first=True),
    "tanh": lambda: nn.RNN(6, 4, batch_first=True),
    "relu": lambda: nn.RNN(6, 4, batch_first=True, nonlinearity="relu"),
    "two layers": lambda: nn.GRU(6, 4, 2, batch_first=True, dropout=0.3, bidirectional=True),
    "lstm": lambda: nn.LSTM(6, 4, batch_first=True, proj_size=3),
}


def out_alone(layer, x, kept):
    return layer(x)[0].pow(2).sum()


def both(layer, x, kept):
    out, last = layer(x)
    last = last[0] if isinstance(last, tuple) else last
    return out[:, -1].sum() * last.sum() + out.transpose(0, 1).relu().sum()


def written_to(layer, x, kept):
    out = layer(x)[0]
    held = out * 1
    held.add_(out[:, :1])
    return (held * out).sum()


def of_itself(layer, x, kept):
    y = x * layer.weight_ih_l0.sum()
    y.transpose_(0, 1)
    z = (y * 2).unsqueeze_(0).squeeze_(0)
    return (y * z).t_().sum() if y.dim() == 2 else (y * z).sum()


def leaves(layer, x, kept):
    out = layer(x)[0]
    kept.out = out.detach()
    return out.sum()


def leaves_as_it_is(layer, x, kept):
    kept.out = layer(x)[0]
    return kept.out.sum()


def without_gradients(layer, x, kept):
    with torch.no_grad():
        start = layer(x)[0].mean()
    return (layer(x)[0] - start).pow(2).sum()


BODIES = [out_alone, both, written_to, of_itself, leaves, leaves_as_it_is, without_gradients]


def training(body, build):
    def make(trace):
        torch.manual_seed(2)
        layer, kept = build(), Holder(out=None)
        optimizer = torch.optim.SGD(layer.parameters(), 0.01, momentum=0.9)

        @trace
        def step(x):
            optimizer.zero_grad()
            loss = body(layer, x, kept)
            loss.backward()
            optimizer.step()
            return loss.detach()

        xs = [torch.randn(3, 5, 6) for _ in range(ENOUGH + 3)]
        gradients = lambda: [p.grad for p in layer.parameters()]  # noqa: E731
        return step, [call(x) for x in xs], lambda: (layer, gradients(), kept)

    return make


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("body", BODIES, ids=[body.__name__ for body in BODIES])
def test_training(body, layer):
    check(training(body, LAYERS[layer]), hits=ENOUGH)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("body", [out_alone, both, written_to])
def test_it_becomes_flat(body, layer):
    assert "flat" in forms(agree(training(body, LAYERS[layer])))


@pytest.mark.parametrize("body", [leaves, leaves_as_it_is])
def test_versions_of_what_leaves(body):
    layer, kept = LAYERS["gru"](), Holder(out=None)
    optimizer = torch.optim.SGD(layer.parameters(), 0.01)

    def step(x):
        optimizer.zero_grad()
        body(layer, x, kept).backward()
        optimizer.step()

    fn, x = lazytrace.traced(step), torch.randn(3, 5, 6)
    step(x)
    seen = kept.out._version, kept.out._is_view(), kept.out.stride()
    for _ in range(ENOUGH):
        fn(x)
        assert (kept.out._version, kept.out._is_view(), kept.out.stride()) == seen
    assert fn.stats().hits


@pytest.mark.parametrize("layer", LAYERS)
def test_the_forward_alone(layer):
    """One node stands for the graph that is left to the caller."""

    def make(trace):
        torch.manual_seed(2)
        model = LAYERS[layer]()
        fn = trace(lambda x: model(x)[0].pow(2).mean())

        def backward(x):
            model.zero_grad()
            fn(x).backward()

        gradients = lambda: [p.grad for p in model.parameters()]  # noqa: E731
        steps = [call(torch.randn(3, 5, 6)).of(backward) for _ in range(ENOUGH + 3)]
        return fn, steps, gradients

    check(make, hits=ENOUGH)
