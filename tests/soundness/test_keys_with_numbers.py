"""Entries that are looked up under a key which holds a number that is followed.

Where the look-up compared it unseen, a function that ran again asked for other numbers than its replay had.
"""

from __future__ import annotations

import operator

import torch

from tests.soundness.runner import Cases, Holder, call, check

cases = Cases()

KEYS = {
    "int": lambda n: n,
    "text": lambda n: f"{n}",
    "tuple": lambda n: (n, "a"),
    "nested": lambda n: ("a", (n, 1)),
}
# How the entry is asked for: of a dict, its key, and the entry that is there already.
READS = {
    "item": lambda held, key: held[key],
    "get": lambda held, key: held.get(key),
    "unpacked": lambda held, key: held.get(*(key, 7.0)),
    "bound": lambda held, key: bound_to(held.get, key),
    "of_the_class": lambda held, key: dict.get(held, key),
    "itemgetter": lambda held, key: operator.itemgetter(key)(held),
    "setdefault": lambda held, key: held.setdefault(key, 7.0),
    "pairs": lambda held, key: dict([(key, 7.0)]).get(key),  # noqa: C406
}
WRITTEN = {"one": lambda state: 0, "each": lambda state: state.n % 2}


def bound_to(get, key):
    return get(key)


def asked(key, read, written):
    """One entry is written, one is asked for, and a branch comes behind."""

    def make(trace):
        state = Holder(n=0, value=0, held={key(0): 1.0, key(1): 1.0})

        @trace
        def fn(x):
            state.held[key(written(state))] = x.sum().item()
            state.n += 1
            state.value = read(state.held, key(state.n % 2))
            return x if x.sum() > 5 else x + 1

        x = torch.arange(1.0, 4.0)
        steps = [call(x * (1 if i % 5 else -2)) for i in range(12)]
        return fn, steps, lambda: (state.n, state.value, list(state.held.items()))

    return make


# Either parity comes once with each way of the branch, and so does what is written there.
for name, key in KEYS.items():
    for way, read in READS.items():
        for what, written in WRITTEN.items():
            make = asked(key, read, written)
            make.__name__ = f"{name}_by_{way}_{what}"
            recordings = 4 if what == "one" else {"pairs": 4, "unpacked": 7}.get(way, 6)
            cases(hits=4, recordings=recordings, eager="" if what == "one" else "sets .n of a Holder")(make)


def lengths_behind_a_write(trace, calls, pops):
    """How long a dict is, in two of its entries; one is gone before some steps."""
    state = Holder(n=0, count=torch.zeros(()), held={0: 0, 1: 5})

    @trace
    def fn(x):
        state.n += 1
        state.held[int(x[0]) % 2] = len(state.held)
        state.count += 1
        state.held[(state.n + 1) % 2] = len(state.held)
        return x * 2

    steps = [call(torch.arange(1.0, 4.0)) for _ in range(calls)]
    for at in pops:
        steps.insert(at, lambda: state.held.pop(0))
    return fn, steps, lambda: (state.n, state.count, list(state.held.items()))


@cases(hits=5, recordings=1, eager="it reads fewer numbers than before")
def more_numbers_in_one_run(trace):
    """The second call finds under its key what it puts there: one number less than when it was recorded."""
    return lengths_behind_a_write(trace, 12, [])


@cases(hits=5, recordings=4, eager="it reads fewer numbers than before")
def a_number_that_one_run_does_not_read(trace):
    """Where a dict grows, all that it holds is read; the last call writes what lies there already."""
    return lengths_behind_a_write(trace, 11, [9, 2])


@cases.parametrize
def test_keys_with_numbers(make, expected):
    check(make, **expected)
