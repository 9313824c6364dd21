"""Places at the end of a list that a call makes and fills by a counter: `l.append(None); l[position] = x`."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, Holder, X, agree, call, check

cases = Cases()


def memory(count=6, capacity=100):
    return Holder(buffer=[n / 2 for n in range(count)], position=count, capacity=capacity, seen=[])


def push(s, x):
    if len(s.buffer) < s.capacity:
        s.buffer.append(None)
    s.buffer[s.position] = x
    s.position = (s.position + 1) % s.capacity


def steps(count, *changes):
    made = []
    for n in range(count):
        made.append(call(X() * n, n / 4))
    for change in changes:
        made.append(change)
        made += [call(X() * n, n / 4) for n in range(4)]
    return made


@cases(hits=6)
def numbers_are_pushed(trace):
    s = memory()

    def fn(x, n):
        push(s, n)
        return x * 2

    return trace(fn), steps(10), lambda: s


@cases(hits=6)
def tuples_are_pushed(trace):
    s = memory()

    def fn(x, n):
        push(s, (x, n))
        return x * 2, len(s.buffer)

    return trace(fn), steps(10), lambda: s


@cases(hits=6)
def the_last_one_is_filled(trace):
    s = memory()

    def fn(x, n):
        s.buffer.append(None)
        s.buffer[-1] = x * n
        return x.sum()

    return trace(fn), steps(10), lambda: s


@cases(hits=6)
def two_are_filled(trace):
    s = memory()

    def fn(x, n):
        s.buffer.append(None)
        s.buffer.append(None)
        s.buffer[-1] = n
        s.buffer[-2] = x
        return x * 2

    return trace(fn), steps(10), lambda: s


@cases(hits=4)
def memories_that_are_full(trace):
    s = memory(capacity=10)

    def fn(x, n):
        push(s, n)
        return x * 2

    return trace(fn), steps(30), lambda: s


@cases(hits=4)
def counters_that_are_set_back(trace):
    s = memory()

    def fn(x, n):
        push(s, n)
        return x * 2

    changes = [
        lambda: setattr(s, "position", 2),
        lambda: setattr(s, "position", len(s.buffer)),
        s.buffer.pop,
        lambda: s.buffer.extend([1.0, 2.0]),
        lambda: setattr(s, "position", -3),
        lambda: setattr(s, "position", len(s.buffer)),
        lambda: setattr(s, "buffer", [1.0] * s.position),
    ]
    return trace(fn), steps(8, *changes), lambda: s


@cases(hits=4)
def counters_that_leave_the_list(trace):
    s = memory()

    def fn(x, n):
        try:
            push(s, n)
        except IndexError as error:
            return x, str(error)
        return x * 2

    changes = [
        lambda: setattr(s, "position", 90),
        lambda: setattr(s, "position", len(s.buffer)),
    ]
    return trace(fn), steps(8, *changes), lambda: s


@cases(hits=4)
def what_is_filled_is_seen(trace):
    s = memory()

    def fn(x, n):
        s.buffer.append(None)
        before = s.buffer[-1]
        s.buffer[s.position] = n
        after = s.buffer[-1]
        s.position += 1
        return x * 2, before, after

    return trace(fn), steps(10), lambda: s


@cases(hits=4)
def another_thing_was_there(trace):
    s = memory()

    def fn(x, n):
        s.buffer.append(n)
        s.buffer[s.position] = n + 1
        s.position += 1
        return x * 2

    return trace(fn), steps(12), lambda: s


def a_step_sees_the_place(trace, kind):
    s = memory()
    look = (lambda: s.seen.append(s.buffer[-1])) if kind == "opaque" else (lambda: None)
    step = lazytrace.opaque(look) if trace.enabled and kind == "opaque" else look

    def fn(x, n):
        s.buffer.append(None)
        y = x * 2
        if kind == "opaque":
            step()
        elif kind == "print":
            print(s.buffer[-1])
        elif kind == "backward":
            w = x.clone().requires_grad_()
            w.register_hook(lambda g: s.seen.append(s.buffer[-1]))
            (w * n).sum().backward()
        s.buffer[s.position] = n
        s.position += 1
        return y, len(s.seen)

    return trace(fn), steps(10), lambda: s


@pytest.mark.parametrize("kind", ["operator", "opaque", "print", "backward"])
def test_a_step_between(kind):
    agree(lambda trace: a_step_sees_the_place(trace, kind))


class Memory:
    """As agents have it."""

    def __init__(self, capacity):
        self.capacity, self.buffer, self.position = capacity, [], 0

    def push(self, *transition):
        if len(self.buffer) < self.capacity:
            self.buffer.append(None)
        self.buffer[self.position] = transition
        self.position = (self.position + 1) % self.capacity

    def sample(self, size):
        return zip(*random.sample(self.buffer, size), strict=True)


def learner(trace, capacity):
    torch.manual_seed(0)
    random.seed(0)
    rng = np.random.RandomState(0)
    net, memory = nn.Linear(4, 1), Memory(capacity)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(1000):
        memory.push(rng.randn(4), rng.rand(), bool(rng.rand() < 0.2))

    def fn(state, reward, done):
        memory.push(state, reward, done)
        states, rewards, flags = memory.sample(4)
        wanted = torch.tensor(rewards, dtype=torch.float) * (1 - torch.tensor(flags, dtype=torch.float))
        loss = (net(torch.FloatTensor(np.array(states)))[:, 0] - wanted).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    made = [call(rng.randn(4), float(rng.rand()), False) for _ in range(24)]
    return trace(fn), made, lambda: [net, memory.position, len(memory.buffer), memory.buffer[-3:]]


def test_an_agent_that_pushes_and_learns():
    check(lambda trace: learner(trace, 5000), hits=12)


def test_an_agent_whose_memory_is_full():
    agree(lambda trace: learner(trace, 1010))


@cases.parametrize
def test_pushed(make, expected):
    check(make, **expected)
