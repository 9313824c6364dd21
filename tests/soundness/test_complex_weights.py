"""Training steps with complex weights, whose gradients show their memory conjugated, or negated."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.soundness.runner import agree, call, check
from tests.soundness.test_flat_steps import ENOUGH, forms


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4, dtype=torch.cfloat))
        self.v = nn.Parameter(torch.randn(4, 4, dtype=torch.cfloat))
        self.b = nn.Parameter(torch.randn(4))
        self.register_buffer("seen", torch.zeros(4, 4, dtype=torch.cfloat))


def makes(body, change=None, optimizer=lambda p: torch.optim.SGD(p, 0.01, momentum=0.9), count=ENOUGH + 6):
    def make(trace):
        torch.manual_seed(3)
        net = Net()
        opt = optimizer(net.parameters())

        @trace
        def step(x):
            opt.zero_grad()
            loss = body(net, x)
            loss.backward()
            opt.step()
            return loss.detach()

        steps = [call(torch.randn(4, 4)) for _ in range(count)]
        if change is not None:
            steps[ENOUGH + 1 : ENOUGH + 1] = [lambda: change(net)]
        gradients = lambda: [p.grad for p in net.parameters()]  # noqa: E731
        bits = lambda: [(g.is_conj(), g.is_neg()) for g in gradients() if g is not None]  # noqa: E731
        return step, steps, lambda: [*net.parameters(), *net.buffers(), gradients(), bits()]

    return make


def multiplies(net, x):
    return ((x.cfloat() @ net.w) @ net.v).abs().square().mean() + net.b.sum()


def conjugates(net, x):
    return ((x.cfloat() @ net.w.conj()) @ net.v.mH + net.b).real.square().mean()


def imaginary(net, x):
    return (x * net.w).imag.square().mean() + (x * net.v.conj()).imag.square().mean() + net.b.sum()


def transforms(net, x):
    return torch.fft.ifft2(torch.fft.fft2(x) * net.w * net.v).real.square().mean() + net.b.sum()


def as_real(net, x):
    return torch.view_as_real(x * net.w * net.v).square().mean() + net.b.sum()


def negated_views(net, x):
    z = (x * net.w).conj()
    return (z.imag.sin() + net.b).sum() + (z @ net.v.conj()).imag.square().sum()


def keeps_conjugated(net, x):
    z = (x * net.w).conj()
    return (z * z.real.exp()).abs().sum() + (z.mT @ net.v).abs().sum() + net.b.sum()


def writes_to_conjugated(net, x):
    with torch.no_grad():
        net.seen.conj().add_(net.w.conj() * 1j)
    return multiplies(net, x) + (net.seen * x).real.sum()


BODIES = [multiplies, conjugates, imaginary, transforms, as_real, negated_views, keeps_conjugated]


@pytest.mark.parametrize("body", BODIES, ids=[body.__name__ for body in BODIES])
def test_it_becomes_flat(body):
    made = makes(body)
    assert "flat" in forms(agree(made))
    check(made, hits=ENOUGH)


def test_a_write_to_what_is_shown_conjugated():
    check(makes(writes_to_conjugated), hits=ENOUGH)


def gives_gradients(net):
    for p in net.parameters():
        p.grad = torch.ones_like(p)


def gives_conjugated_gradients(net):
    net.w.grad = torch.ones_like(net.w).mul(1j).conj()
    net.v.grad = torch.full_like(net.v, 2j).conj()


def takes_gradients(net):
    for p in net.parameters():
        p.grad = None


def swaps(net):
    net.w.data = net.v.detach().clone().mul_(1j)


def shows_conjugated(net):
    net.w.data = torch.randn(4, 4, dtype=torch.cfloat).conj()


def hooks(net):
    net.w.register_hook(lambda g: g.conj() * 2)


CHANGES = [gives_gradients, gives_conjugated_gradients, takes_gradients, swaps, shows_conjugated, hooks]


@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
@pytest.mark.parametrize("body", [multiplies, conjugates, imaginary], ids=lambda body: body.__name__)
def test_a_change(body, change):
    check(makes(body, change), hits=ENOUGH - 1)


def test_gradients_that_are_added_up():
    def make(trace):
        torch.manual_seed(3)
        net = Net()

        @trace
        def step(x):
            loss = conjugates(net, x)
            loss.backward()
            return loss.detach()

        def clears():
            net.w.grad = None

        xs = [torch.randn(4, 4) for _ in range(ENOUGH + 8)]
        steps = [call(x) for x in xs]
        steps[ENOUGH + 2 : ENOUGH + 2] = [clears]
        return step, steps, lambda: [p.grad for p in net.parameters()]

    check(make, hits=ENOUGH - 2)
