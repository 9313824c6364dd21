"""Functions that were loaded from files, called in functions that are recorded."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, X, call, check

cases = Cases()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)

    def forward(self, x, scale=2.0):
        return {"y": self.drop(self.norm(self.linear(x))) * scale, "rest": (x.sum(), None, 3)}


def loaded(*examples: Any) -> Any:
    torch.manual_seed(0)
    path = tempfile.mkdtemp() + "/net.zip"
    lazytrace.save(lazytrace.traced(Net()), path, list(examples))
    return lazytrace.load(path)


def inputs(count: int = 5) -> list[torch.Tensor]:
    return [X(4, 3) for _ in range(count)]


@cases(hits=4)
def traced_itself(trace):
    net = loaded(X(4, 3))
    return trace(net), [call(x) for x in inputs()], lambda: net


@cases(hits=7)
def called_twice_with_other_arguments(trace):
    net = loaded(X(4, 3), (X(4, 3), 3.0))

    def step(x, scale=2.0):
        found = net(x * 2, scale)
        return found["y"] + 1, found["rest"], net(x)["y"]

    steps = [call(x) for x in inputs()] + [call(x, 3.0) for x in inputs()]
    return trace(step), steps, lambda: net


@cases(hits=2, eager="raised LookupError")
def a_call_that_no_program_fits(trace):
    net = loaded(X(4, 3))
    steps = [call(X(4, 3)), call(X(2, 3)), call(X(4, 3)), call(X(4, 3))]
    return trace(lambda x: net(x)), steps, lambda: net


@cases(hits=5)
def state_that_is_written_and_replaced(trace):
    nets = [loaded(X(4, 3)), loaded(X(4, 3))]
    chosen = {"net": nets[0]}

    def write():
        with torch.no_grad():
            nets[1].linear.weight.mul_(2)

    def replace():
        nets[1].linear.weight = nn.Parameter(torch.ones(3, 3))

    x, y = inputs(2)
    changes = [lambda: chosen.update(net=nets[1]), write, replace]
    steps = [call(x), call(y)] + [step for change in changes for step in (change, call(x), call(y))]
    return trace(lambda x: chosen["net"](x)), steps, lambda: nets


@cases(hits=8)
def a_training_step(trace):
    net = loaded(X(4, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x):
        loss = net(x)["y"].square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return trace(step), [call(x) for x in inputs(10)], lambda: net


@cases.parametrize
def test_a_loaded_function(make, expected):
    check(make, **expected)
