"""Sequences that are padded to the length of the longest: each length was a recording."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence, unpad_sequence

from tests.soundness.runner import call, check

LENGTHS = [(2, 5, 3), (4, 4, 7), (6, 2, 2), (3, 3, 3), (2, 8, 5), (9, 2, 4), (5, 6, 7)]
# The last is the first again, of another shape than the recording for all sizes was made of.
STEPS = [*LENGTHS, LENGTHS[0]]

WAYS = {
    "time first": {},
    "batch first": {"batch_first": True},
    "at the left": {"padding_side": "left"},
    "at the left, batch first": {"padding_side": "left", "batch_first": True},
    "with a value": {"padding_value": -1.5},
    "with an int": {"padding_value": 2, "batch_first": True},
}


def sequences(lengths, *rest, dtype=torch.float32, grad=False):
    made = [torch.arange(1.0, 1 + n * max(1, *rest, 1)).reshape(n, *rest) / 8 for n in lengths]
    return [one.to(dtype).requires_grad_(grad) for one in made]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("rest", [(), (3,)])
def test_the_longest_may_be_any(way, rest):
    def make(trace):
        return trace(lambda s: pad_sequence(s, **way)), [call(sequences(one, *rest)) for one in STEPS]

    check(make, hits=5)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_with_gradients(way):
    def make(trace):
        return (
            trace(lambda s: pad_sequence(s, **way) * 2),
            [call(sequences(one, 3, grad=True)) for one in STEPS],
        )

    check(make, hits=5)


def test_masks_and_lengths_follow():
    def step(s):
        lengths = torch.tensor([len(one) for one in s])
        padded = pad_sequence(s, batch_first=True)
        mask = torch.arange(padded.shape[1])[None] < lengths[:, None]
        return padded.masked_fill(~mask, -1), mask, padded.shape[1], mask.sum()

    check(lambda trace: (trace(step), [call(sequences(one)) for one in STEPS]), hits=5)


def test_and_back():
    def step(s):
        padded = pad_sequence(s)
        return unpad_sequence(padded, torch.tensor([len(one) for one in s]))

    check(lambda trace: (trace(step), [call(sequences(one)) for one in STEPS]), hits=1)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: [s[0], s[1].long(), s[2]],
        lambda s: [s[0].long(), s[1], s[2]],
        lambda s: [s[0] + 0j, s[1], s[2]],
        lambda s: (s[0], s[1], s[2]),
        lambda s: [s[0], s[0], s[2]],
        lambda s: [s[0][:0], s[1], s[2]],
    ],
    ids=["one of ints", "the first of ints", "complex", "a tuple", "one twice", "an empty one"],
)
def test_what_is_out_of_the_ordinary(change):
    def make(trace):
        return trace(pad_sequence), [call(change(sequences(one, 3))) for one in STEPS]

    check(make, hits=1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ([],),
        lambda: ([torch.ones(())],),
        lambda: ([torch.ones(2, 3), torch.ones(2, 4)],),
        lambda: (sequences((2, 3)), 1),
        lambda: (sequences((2, 3)), True, 0.0, "middle"),
        lambda: (sequences((2, 3)), True, "0"),
        lambda: ([1, 2],),
    ],
    ids=["none", "a scalar", "other sizes", "1", "no side", "a text", "ints"],
)
def test_it_raises_as_it_does(wrong):
    def make(trace):
        steps = [call(sequences(one)) for one in LENGTHS[:3]]
        return trace(pad_sequence), [*steps, call(*wrong()), call(*wrong()), call(sequences(LENGTHS[3]))]

    check(make, hits=2)
