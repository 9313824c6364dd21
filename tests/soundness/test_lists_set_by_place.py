"""Entries of a list that a function sets, and then the whole list, which it reads."""

from __future__ import annotations

import statistics

import torch

from tests.soundness.runner import Cases, Holder, X, call, check

cases = Cases()


def set_and_read(body, calls=9, **state):
    """`body` gets the state and the argument; each call brings another argument."""

    def make(trace):
        held = Holder(n=0, values=[0.5, 1.5, 2.5], **state)
        fn = trace(lambda x: body(held, x))
        steps = [call(X() * (i + 1)) for i in range(calls)]
        return fn, steps, lambda: (held.n, held.values, held.__dict__)

    make.__name__ = body.__name__
    return make


@cases(hits=8, recordings=1)
def the_sum_behind(trace):
    def body(held, x):
        held.values[0] = x.sum().item()
        return x * sum(held.values)

    return set_and_read(body)(trace)


@cases(hits=8, recordings=1)
def the_largest_behind(trace):
    def body(held, x):
        held.values[-1] = x.sum().item()
        return x + torch.tensor(held.values)

    return set_and_read(body)(trace)


@cases(hits=3, recordings=6)
def a_ring(trace):
    def body(held, x):
        held.values[held.n % 3] = x.sum().item()
        held.n += 1
        return x * sum(held.values) / len(held.values)

    return set_and_read(body)(trace)


@cases(hits=5, recordings=4)
def by_branches(trace):
    def body(held, x):
        held.n += 1
        if held.n % 2:
            held.values[0] = x.sum().item()
        else:
            held.values[1] = held.n * 0.5
        return x * max(0.0, sum(held.values))

    return set_and_read(body)(trace)


@cases(hits=8, recordings=1)
def a_text_behind(trace):
    def body(held, x):
        held.values[0] = held.n
        held.n += 1
        held.text = str(held.values)
        return x * 2

    return set_and_read(body)(trace)


@cases(hits=8, recordings=1)
def code_of_python_behind(trace):
    def body(held, x):
        held.values[1] += 1
        return x * statistics.median(held.values)

    return set_and_read(body)(trace)


@cases(hits=6, recordings=3)
def an_entry_that_changes_beside(trace):
    """The others are guarded as they are, until one differs."""
    held = Holder(values=[0.5, 1.5, 2.5])

    @trace
    def fn(x):
        held.values[0] = x.sum().item()
        return x * sum(held.values)

    def change(place, value):
        return lambda: held.values.__setitem__(place, value)

    calls = [call(X() * i) for i in (1, 2, 3)]
    steps = [*calls, change(1, 4.5), *calls, change(2, 5.5), *calls]
    return fn, steps, lambda: held.values


@cases(hits=7, recordings=2)
def one_list_by_two_names(trace):
    held = Holder(values=[0.5, 1.5, 2.5])
    held.other = held.values

    @trace
    def fn(x):
        held.values[0] = x.sum().item()
        return x * sum(held.other)

    calls = [call(X() * i) for i in (1, 2, 3)]
    steps = [*calls, lambda: setattr(held, "other", [1.0, 2.0, 3.0]), *calls]
    return (
        fn,
        [*steps, lambda: setattr(held, "other", held.values), *calls],
        lambda: (held.values, held.other),
    )


@cases(hits=5, recordings=3, eager="sets [0] of a list")
def a_list_that_is_shorter_by_then(trace):
    held = Holder(values=[0.5, 1.5, 2.5])

    @trace
    def fn(x):
        held.values[0] = x.sum().item()
        return x * sum(held.values)

    calls = [call(X() * i) for i in (1, 2, 3)]
    steps = [*calls, lambda: held.values.pop(), *calls, lambda: held.values.append(7), *calls]
    return fn, steps, lambda: held.values


@cases(hits=8, recordings=1)
def tensors_that_are_stacked(trace):
    def body(held, x):
        held.seen[0], held.seen[1] = held.seen[1], x
        return torch.stack(held.seen).mean(0)

    return set_and_read(body, seen=[torch.zeros(3), torch.ones(3)])(trace)


@cases.parametrize
def test_lists_set_by_place(make, expected):
    check(make, **expected)
