"""Iterators that are arguments: a replay advances those that its call is given."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.soundness.runner import Cases, X, call, check

cases = Cases()


def batches(count=40):
    return [X(3) * k for k in range(1, count)]


def cycle(loader):
    while True:
        yield from loader


def stepping(trace, made, body, count=8):
    """Calls that get one iterator."""
    it = made()
    fn = trace(lambda it, x: body(it, x))
    return fn, [call(it, X(3) * k) for k in range(count)]


@cases(hits=6)
def of_a_list(trace):
    return stepping(trace, lambda: iter(batches()), lambda it, x: x + next(it))


@cases(hits=6)
def a_generator(trace):
    return stepping(trace, lambda: (b * 2 for b in batches()), lambda it, x: x + next(it))


@cases(hits=6)
def of_a_cycle(trace):
    return stepping(trace, lambda: itertools.cycle(batches(4)), lambda it, x: x + next(it) * next(it))


@cases(hits=6)
def of_pairs(trace):
    def body(it, x):
        a, b = next(it)
        return x + a * b

    return stepping(trace, lambda: zip(batches(), batches(30), strict=False), body)


@cases(hits=6)
def a_training_step_on_a_loader_that_goes_round(trace):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    data = cycle(DataLoader(TensorDataset(X(12, 3), X(12, 2)), batch_size=4))

    def step(data):
        x, y = next(data)
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return trace(step), [call(data) for _ in range(10)], lambda: list(model.parameters())


@cases(hits=4)
def one_that_comes_to_its_end(trace):
    def step(it, x):
        try:
            return x + next(it)
        except StopIteration:
            return x * 7

    return stepping(trace, lambda: iter(batches(7)), step, count=10)


@cases(hits=4)
def another_one_at_each_call(trace):
    all_of_them = batches()
    fn = trace(lambda it, x: x + next(it))
    return fn, [call(iter(all_of_them[k:]), X(3)) for k in range(8)]


@cases(hits=3)
def of_several_kinds(trace):
    made = [
        lambda: iter(batches()),
        lambda: (b for b in batches()),
        lambda: map(torch.sin, batches()),
        lambda: itertools.count(3),
    ]
    fn = trace(lambda it, x: x * next(it))
    return fn, [call(made[k % 4](), X(3)) for k in range(16)]


@cases(hits=4)
def one_iterator_for_two(trace):
    """At some calls."""
    one, two = iter(batches()), iter(batches())
    fn = trace(lambda a, b, x: x + next(a) * 3 + next(b))
    return fn, [call(one, (one, two)[k % 3 == 0], X(3)) for k in range(12)]


@cases(hits=3)
def what_it_goes_through_is_an_argument_and_changes(trace):
    def step(rows, it, x):
        rows.append(x * 2)
        return x + next(it)

    rows = batches(3)
    it = iter(rows)
    return trace(step), [call(rows, it, X(3) * k) for k in range(9)], lambda: rows


@cases(hits=3)
def what_it_gives_is_an_argument(trace):
    """The tensor itself, which the function changes before it comes out."""
    x = X(3)

    def step(it, x):
        x.mul_(2)
        return next(it) + x

    given = itertools.cycle([X(3), x, X(3) * 4])
    return trace(step), [call(given, x) for _ in range(9)], lambda: x


@cases(eager="reads")
def all_of_it(trace):
    return stepping(trace, lambda: iter(batches(4)), lambda it, x: x + sum(it), count=3)


@cases(hits=3)
def raises_behind_it(trace):
    def step(it, x, bad):
        y = x + next(it)
        if bad:
            raise ValueError("bad")
        return y

    it = iter(batches())
    return trace(step), [call(it, X(3) * k, k in (4, 7)) for k in range(10)]


@cases.parametrize
def test_iterators_as_arguments(make, expected):
    check(make, **expected)
