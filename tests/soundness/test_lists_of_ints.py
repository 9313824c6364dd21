"""Lists of whole numbers that differ from call to call, gone through one by one: tokens, places, counts."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from tests.soundness.runner import Holder, X, call, check

TABLE = torch.arange(200.0).reshape(50, 4)
EMBED = nn.Embedding(50, 4)


def lists(count=8, length=5):
    draw = random.Random(0)
    return [[draw.randrange(50) for _ in range(length)] for _ in range(count)]


def unpacked(ids):
    a, b, *rest = ids
    return TABLE[a] * b, len(rest)


def compared(ids):
    return TABLE[0] * sum(1 for i in ids if i > 24)


def looked_up(ids):
    names = {i: str(i) for i in range(50)}
    return TABLE[0], [names[i] for i in ids]


def kept(ids):
    seen = []
    for i in ids:
        if i >= 0:
            seen.append(i)
    return TABLE[0] * seen[-1], seen, [type(i).__name__ for i in seen]


FOLLOWED = {
    "rows": lambda ids: sum(TABLE[i] for i in ids),
    "rows of a weight": lambda ids: torch.stack([EMBED.weight[i] * k for k, i in enumerate(ids)]),
    "factors": lambda ids: [TABLE[0] * i for i in ids],
    "sums": lambda ids: TABLE[0] * sum(i + 1 for i in ids),
    "products": lambda ids: [TABLE[1] + i * i // 3 for i in ids if True],
    "unpacked": unpacked,
    "kept": kept,
    "reversed": lambda ids: [TABLE[i] for i in reversed(ids)],
    "a slice": lambda ids: [TABLE[i] for i in ids[1:4]],
    "pairs": lambda ids: [TABLE[i] - TABLE[j] for i, j in zip(ids, ids[1:], strict=False)],  # noqa: RUF007
}
APART = {
    "compared": compared,
    "names": looked_up,
    "counts": lambda ids: [TABLE[: i % 5 + 1] for i in ids],
    "a set": lambda ids: (TABLE[0], len({i % 7 for i in ids})),
    "texts": lambda ids: (TABLE[0], ",".join(str(i) for i in ids)),
    "ranges": lambda ids: [TABLE[k] for i in ids for k in range(i % 3)],
}


@pytest.mark.parametrize("function", FOLLOWED.values(), ids=FOLLOWED)
def test_of_an_argument(function):
    check(lambda trace: (trace(function), [call(ids) for ids in lists()]), hits=4)


@pytest.mark.parametrize("function", FOLLOWED.values(), ids=FOLLOWED)
@pytest.mark.parametrize("in_place", [False, True])
def test_of_state(function, in_place):
    def make(trace):
        state = Holder(ids=[0] * 5)

        def change(ids):
            if in_place:
                state.ids[:] = ids
            else:
                state.ids = ids

        steps = [step for ids in lists() for step in (lambda ids=ids: change(ids), call(X(2)))]
        return trace(lambda x: (x, function(state.ids))), steps

    check(make, hits=4)


@pytest.mark.parametrize("function", APART.values(), ids=APART)
def test_what_depends_on_them(function):
    steps = [call(ids) for ids in lists()]
    check(lambda trace: (trace(function), [*steps, *steps[-2:]]), hits=1)


def test_which_object_one_is():
    function = lambda ids: (TABLE[0], [i is ids[0] for i in ids])  # noqa: E731
    steps = [call(ids) for ids in lists()]
    check(lambda trace: (trace(function), steps), eager="compares the identity of two values of type int")


@pytest.mark.parametrize(
    "last", [[1, 2, True, 4, 5], [1, 2, 3.0, 4, 5], [1, 2], [1, 2, 3, 4, 1 << 70], []], ids=repr
)
def test_then_another_kind(last):
    def function(ids):
        return [TABLE[0] * i for i in ids], [type(i).__name__ for i in ids]

    check(lambda trace: (trace(function), [call(ids) for ids in [*lists(), last, lists()[0], last]]), hits=4)


def test_an_entry_out_of_range_raises_as_it_does():
    outside = [[1, 2, 50, 3, 4], [1, -50, 2, 3, 4], [-51, 1, 2, 3, 4]]
    steps = [call(ids) for ids in [*lists(), *outside, *lists(1)]]
    check(lambda trace: (trace(FOLLOWED["rows"]), steps), hits=4)
