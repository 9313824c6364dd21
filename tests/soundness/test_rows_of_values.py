"""`tolist()` of long rows of whole numbers: one step gives them all, and each is followed."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, Holder, call, check, opaque

cases = Cases()

COUNT = 80


def rows(n, most=COUNT):
    torch.manual_seed(0)
    return [torch.randint(0, most, (COUNT,)) for _ in range(n)]


POOL = torch.arange(COUNT * 2.0).view(COUNT, 2)

FOLLOWED = {
    "returned": lambda row: row.tolist(),
    "stored": lambda row: {"first": row.tolist()[0], "last": row.tolist()[-1]},
    "as_indices": lambda row: torch.stack([POOL[at] for at in row.tolist()]),
    "into_a_tensor": lambda row: torch.tensor([value * 2 for value in row.tolist()]),
    "scaled": lambda row: [value / 3 for value in row.tolist()],
    "added_up": lambda row: sum(row.tolist()) / len(row.tolist()),
    "the_largest": lambda row: max(row.tolist()),
    "in_parts": lambda row: [row.tolist()[i : i + 20] for i in range(0, COUNT, 20)],
    "as_text": lambda row: f"{row.tolist()[0]:d} of {row.tolist()[1]}",
    "times_a_tensor": lambda row: POOL * row.tolist()[3],
}


@pytest.mark.parametrize("body", FOLLOWED.values(), ids=list(FOLLOWED))
def test_what_is_followed(body):
    def make(trace):
        return trace(body), [call(row) for row in rows(6)]

    check(make, hits=4)


SIZES = {
    "as_sizes": lambda row: [POOL[:at].sum() for at in row.tolist()[:3]],
    "split": lambda row: [
        part.sum()
        for part in torch.split(torch.arange(COUNT * COUNT), [*row.tolist(), int(COUNT**2 - row.sum())])
    ],
}


@pytest.mark.parametrize("body", SIZES.values(), ids=list(SIZES))
def test_what_is_read(body):
    """Each row is a recording of its own where its values are sizes."""

    def make(trace):
        some = rows(2)
        return trace(body), [call(row) for row in [*some, *some, *some]]

    check(make, hits=2)


@cases(hits=3)
def a_branch_on_one_of_them(trace):
    def step(row):
        values = row.tolist()
        if values[0] > 40:
            return POOL * values[1]
        return POOL + values[2] if values[3] % 2 else POOL - values[4]

    return trace(step), [call(row) for row in rows(12)]


@cases(hits=3)
def the_row_changes_behind(trace):
    """The list is what the row held when it was asked, which later writes change no more."""

    def step(row):
        work = row + 1
        before = work.tolist()
        work.mul_(2)
        after = work.tolist()
        row.add_(1)
        if after[0] > 80:
            work = work - 1
        return work, before[:2], after[:2], row.tolist()[:2]

    return trace(step), [call(row) for row in rows(10)]


@cases(hits=3)
def drawn_and_branched_on(trace):
    def step(x):
        order = torch.randperm(COUNT).tolist()
        picked = x[order[0]] + torch.rand(())
        if picked.sum() > COUNT:
            picked = picked * torch.rand(()) + x[order[1]]
        return picked, order[2], torch.randperm(COUNT).tolist()[0]

    return trace(step), [call(POOL) for _ in range(12)]


@cases(hits=0, recordings=6)
def keys_of_a_dict(trace):
    """Which keys there are, each call would have to say."""

    def step(row):
        counts = {}
        for value in row.tolist():
            counts[value] = counts.get(value, 0) + 1
        return max(counts.values())

    return trace(step), [call(row) for row in rows(6)]


@cases(hits=2)
def of_other_lengths(trace):
    def step(row):
        values = row.tolist()
        return [POOL[at] for at in values[:3]], len(values), values[-1]

    return trace(step), [call(rows(1)[0][: COUNT - k % 3]) for k in range(9)]


@cases(hits=4)
def a_step_of_training(trace):
    """With a flat form, a way out of it, and draws that go on."""
    torch.manual_seed(0)
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.001)
    held = Holder(seen=0)

    def step(limit):
        order = torch.randperm(COUNT).tolist()
        for start in range(0, 12, 6):
            x = torch.stack([POOL[at] for at in order[start : start + 6]])
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            if order[start] > limit:
                loss = loss * 2
            optimizer.step()
        held.seen += order[0]
        return loss.item()

    return trace(step), [call(70 if k % 4 else 20) for k in range(14)], lambda: (net.state_dict(), held.seen)


@cases(hits=2)
def given_by_a_step(trace):
    random.seed(0)
    draw = opaque(trace, lambda: torch.tensor([random.randrange(COUNT) for _ in range(COUNT)]))
    return trace(lambda x: [x[at] for at in draw().tolist()[:5]]), [call(POOL) for _ in range(5)]


@cases(hits=2)
def what_it_shows_is_read_once(trace):
    """A row in state that others write to between calls."""
    row = torch.arange(COUNT)

    def change():
        row.copy_(row.flip(0) * 2)

    return trace(lambda x: [x[row.tolist()[0]], row.tolist()[1]]), [
        step for _ in range(4) for step in (call(torch.arange(400.0)), change)
    ]


def test_a_listing_says_how_many_there_are():
    traced = lazytrace.traced(lambda row: row.tolist()[0])
    traced(rows(1)[0])
    assert f"{COUNT} numbers = opaque values_of_row(r0)" in str(traced.program(rows(1)[0]))


@cases.parametrize
def test_rows(make, expected):
    check(make, **expected)
