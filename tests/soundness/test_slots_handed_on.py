"""Slots of C types, bound to an object of state, that C code calls: what is in the object is read."""

from __future__ import annotations

import functools

import pytest

from tests.soundness.runner import Holder, X, around, check


class Numbers(tuple):
    __slots__ = ()


class Rows(list):
    pass


CALLS = {
    "items": lambda held: list(map(held.__getitem__, [0, 1])),
    "items, taken before": lambda held: [get := held.__getitem__, *map(get, [0, 1])][1:],
    "items by a partial": lambda held: list(map(functools.partial(held.__getitem__), [0, 1])),
    "the item that is largest": lambda held: max([0, 1], key=held.__getitem__),
    "what it contains": lambda held: list(map(held.__contains__, [1, 22])),
    "how long it is": lambda held: held.__len__(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "kind",
    [Numbers, tuple, Rows, list, lambda values: dict(enumerate(values))],
    ids=["sub", "tuple", "rows", "list", "dict"],
)
def test_what_is_in_it_is_read(call, kind):
    def make(trace):
        holder = Holder(held=kind([1, 22, 1]))

        def function(x):
            return x * len(repr(call(holder.held)))

        def change():
            holder.held = kind([333, 1, 1, 1])

        return trace(function), around(change, X(2))

    check(make, hits=1)
