"""Iterators that are arguments: a replay advances those that its call is given."""

from __future__ import annotations

import csv
import io
import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lazytrace
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


# ---------------------------------------------------------------- generators, a new one at each call
@cases(hits=8)
def another_generator_at_each_call(trace):
    all_of_them = batches()
    fn = trace(lambda it, x: x + next(it))
    return fn, [call((b * k for b in all_of_them), X(3)) for k in range(10)]


@cases(hits=5)
def generators_of_other_code(trace):
    """Its name is read at each call."""

    def first():
        yield from batches(4)

    def second():
        yield from batches(9)

    fn = trace(lambda it, x: next(it) * (2 if it.__name__ == "first" else 3) + x)
    return fn, [call((first, second)[k % 3 == 1](), X(3) * k) for k in range(9)]


@cases(hits=5)
def whether_it_is_the_generator_that_the_function_knows(trace):
    def numbers():
        yield from batches()

    own = numbers()
    fn = trace(lambda it, x: x + next(it) if it is own else x * 3)
    return fn, [call(own if k % 3 == 1 else numbers(), X(3) * k) for k in range(9)]


@cases(hits=4)
def generators_that_write_to_what_is_read_behind_them(trace):
    """At some calls."""
    log = []

    def quiet():
        yield from batches()

    def loud():
        for batch in batches():
            log.append(batch)
            yield batch

    def step(it, x):
        y = x + next(it)
        return y * len(log)

    fn = trace(step)
    return fn, [call((quiet, loud)[k % 3 == 1](), X(3) * k) for k in range(12)], lambda: log


# ---------------------------------------------------------------- what they say of themselves
def three():
    while True:
        yield X(3)
        yield X(3) * 2
        yield X(3) * 3


def lines():
    return io.StringIO("\n".join(f"{k % 2},2" for k in range(40)))


@cases(eager="reads-touched")
def the_line_at_which_a_generator_waits(trace):
    return stepping(trace, three, lambda it, x: next(it) + x * it.gi_frame.f_lineno, count=12)


@cases(hits=6)
def the_line_of_its_frame(trace):
    def step(it, x):
        frame = it.gi_frame
        return next(it) + x * frame.f_lineno

    return stepping(trace, three, step, count=12)


@cases(eager="reads-touched")
def the_line_of_one_that_an_opaque_function_has_advanced(trace):
    it = three()

    def advance(x):
        for y in it:
            return x + y

    opaque = lazytrace.opaque(advance)
    fn = trace(lambda x: opaque(x) * it.gi_frame.f_lineno)
    return fn, [call(X(3) * k) for k in range(12)]


@cases(hits=6)
def how_many_lines_a_reader_has_read(trace):
    return stepping(trace, lambda: csv.reader(lines()), lambda it, x: x * float(next(it)[1]) * it.line_num)


@cases(hits=4)
def rows_of_a_reader_with_names(trace):
    it = csv.DictReader(lines(), ("a", "b"))
    fn = trace(lambda it, x: x * len(next(it)))
    return fn, [call(it, X(3) * k) for k in range(12)], lambda: (it.line_num, it.reader.line_num)


@cases.parametrize
def test_iterators_as_arguments(make, expected):
    check(make, **expected)
