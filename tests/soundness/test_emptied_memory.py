"""A replay lets go of memory that a function which runs again would not come to."""

from __future__ import annotations

import torch
from torch import nn

from tests.soundness.runner import Cases, Holder, call, check

bodies = Cases()

WIDTH = 256
"""A tensor takes 256 KiB, and the results of `long` more than the 16 MiB behind which a recording looks."""


def long(x, count=40):
    """Leaves many tensors behind that nobody holds."""
    for _ in range(count):
        x = torch.tanh(x) * 1.01
    return x


def inputs(*values):
    return [call(torch.full((1,), float(value))) for value in values]


def two_ways(body, values=(1, 1, -1, -1, 1, -1, 1)):
    """`body(x, w, state)` decides by `x`, behind a write. It gives what is large: little is compared."""

    def make(trace):
        torch.manual_seed(2)
        base = torch.randn(WIDTH, WIDTH)
        w = torch.randn(WIDTH, WIDTH).div_(WIDTH).requires_grad_()
        state = Holder(seen=torch.zeros(()), kept=None)

        @trace
        def step(sign):
            state.seen.add_(1)
            return body(base * sign, w, state)[:2, :2].sum(0)

        steps = [step for one in inputs(*values) for step in (one, lambda: setattr(w, "grad", None))]
        return step, steps, lambda: [state.seen, *(t[0, :2] for t in (state.kept, w.grad) if t is not None)]

    return make


@bodies(hits=4)
def held_and_gone(x, w, state):
    first = long(x @ w)
    last = long(first)
    return first + last if x[0, 0] > 0 else first - last.relu()


@bodies(hits=4)
def a_view_is_held(x, w, state):
    corner = (x @ w).tanh()[:2, :2]
    last = long(x @ w)
    return corner * 2 if x[0, 0] > 0 else corner + last[:2, :2]


@bodies(hits=4)
def a_view_is_gone(x, w, state):
    whole = (x @ w).tanh()
    size = whole[:2].t().numel()
    last = long(whole.clone())
    return whole * size if x[0, 0] > 0 else whole + last


@bodies(hits=4)
def held_by_state(x, w, state):
    state.kept = (x @ w).tanh().detach()
    last = long(x)
    return state.kept + last if x[0, 0] > 0 else state.kept * 2


@bodies(hits=4)
def held_by_a_list(x, w, state):
    held = [torch.tanh(x @ w) for _ in range(3)]
    held.pop(1)
    last = long(held[1])
    return held[0] + last if x[0, 0] > 0 else held[1] - last


@bodies(hits=4)
def written_in_place(x, w, state):
    h = (x @ w).detach()
    for _ in range(80):
        h = h.clone().add_(1)
    return h * 2 if x[0, 0] > 0 else h - 1


@bodies(hits=4)
def behind_a_pass(x, w, state):
    h = torch.tanh(x @ w)
    loss = long(h).mean()
    loss.backward()
    return h.detach() + loss.detach() if x[0, 0] > 0 else w.grad * 2 + h.detach()


@bodies(hits=4)
def a_pass_behind(x, w, state):
    h = long(torch.tanh(x @ w))
    loss = h.mean() if x[0, 0] > 0 else h.square().mean()
    loss.backward()
    return w.grad * 1


@bodies(hits=4)
def a_graph_is_held(x, w, state):
    h = long(torch.tanh(x @ w))
    return h * 2 if x[0, 0] > 0 else h.sin()


@bodies(hits=4)
def raises_behind(x, w, state):
    h = torch.tanh(x @ w)
    last = long(h.detach())
    try:
        row = last[int(x[0, 0] > 0) * 1000]
    except IndexError:
        row = h[0].detach() * 3
    return row + last[:2]


@bodies.parametrize
def test_a_function_that_runs_again_behind_it(make, expected):
    check(two_ways(make), **expected)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        for part in self.parts:
            x = long(part(x), 15)
        return x


def test_a_training_step_that_decides_behind_its_pass():
    """Whether the optimizer steps hangs on the loss."""

    def make(trace):
        torch.manual_seed(3)
        net, base = Net(), torch.randn(WIDTH, WIDTH)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        @trace
        def step(scale):
            optimizer.zero_grad()
            loss = net(base * scale).square().mean()
            loss.backward()
            if loss > 0.05:
                optimizer.step()
            return loss.detach()

        steps = inputs(1, 1, 1, 0.01, 0.01, 1, 0.01, 1, 0.01, 1)
        return step, steps, lambda: [p.sum() for p in net.parameters()]

    check(make, hits=6)
