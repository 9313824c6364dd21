"""`logits[range(n), targets]`: a range in the key of a tensor, whose end is a size that is followed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, call, check

cases = Cases()

COLUMN = torch.tensor([0, 1, 2, 1, 0, 2, 1, 1, 0, 0])
LENGTHS = (3, 4, 5, 2, 7, 1, 0, 6, 3)


def written(x, value):
    made = torch.zeros_like(x)
    made[range(len(x)), COLUMN[: len(x)]] = value
    return made


def added(x):
    made = torch.zeros_like(x)
    made[range(len(x)), 0] += 1
    return made


KEYS = {
    "beside_a_tensor": lambda x: x[range(len(x)), COLUMN[: len(x)]],
    "alone": lambda x: x[range(len(x))],
    "second": lambda x: x.t()[COLUMN[: len(x)], range(len(x))],
    "beside_a_number": lambda x: x[range(x.shape[0]), 1],
    "beside_a_slice": lambda x: x[range(x.shape[0]), 1:],
    "behind_a_new_dimension": lambda x: x[None, range(x.shape[0]), 0],
    "of_a_difference": lambda x: x[range(x.shape[0] - 3), 0],
    "of_what_a_call_gives": lambda x: x[range(min(len(x), 4)), torch.zeros(min(len(x), 4), dtype=torch.long)],
    "of_a_view": lambda x: x.t().contiguous().t()[range(len(x)), COLUMN[: len(x)]],
    "written": lambda x: written(x, 1.0),
    "written_from_a_tensor": lambda x: written(x, x.sum()),
    "added": added,
    "in_a_key_in_a_key": lambda x: x[COLUMN[range(len(x))] * 0],
    "of_integers": lambda x: x.long()[range(len(x)), 0],
}


@pytest.mark.parametrize("name", [name for name in KEYS if name != "added"])
def test_a_range_in_a_key(name):
    def make(trace):
        taken = KEYS[name]
        return trace(lambda x: taken(x) * 2), [call(torch.randn(n, 3)) for n in LENGTHS]

    check(make, hits=5)


@cases(hits=6)
def likelihoods_of_a_batch(trace):
    """As lessons write a loss."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    opt = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step(x, y):
        opt.zero_grad()
        loss = -layer(x).log_softmax(1)[range(x.shape[0]), y].mean()
        loss.backward()
        opt.step()
        return loss.item()

    batches = [call(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (3, 4, 5, 2, 7, 1, 6, 3)]
    return trace(step), batches, lambda: [*layer.parameters()]


@cases(hits=1)
def added_in_place(trace):
    """The key is taken twice, and kept in between."""
    return trace(added), [call(torch.randn(n, 3)) for n in (3, 3, 4, 4, 5)]


def other(name, taken, **expected):
    def make(trace):
        return trace(taken), [call(torch.randn(n, 3)) for n in (3, 3, 4, 5, 2, 4)]

    make.__name__ = name
    cases(make, **expected)


other("of_a_list", lambda x: [x * 2, x, x, x, x, x][range(len(x))[-1]], hits=1)
other("of_a_dict", lambda x: x * {range(3): 2, range(4): 3}.get(range(len(x)), 5), hits=1)
other("that_is_kept", lambda x: (lambda numbers: (x[numbers], len(numbers)))(range(len(x))), hits=1)
other("of_an_array", lambda x: x * float(np.arange(9.0)[range(len(x))].sum()), hits=1)
other("behind_a_condition", lambda x: x[range(len(x)) if len(x) > 3 else 0], hits=1)
other("from_two", lambda x: x[range(1, len(x)), 0], hits=1)


class Own(torch.Tensor):
    """Asks what kind of key it is given."""

    def __getitem__(self, key):
        return super().__getitem__(0) if isinstance(key, range) else super().__getitem__(1)


@cases(eager="a subclass of Tensor")
def of_a_class_of_its_own(trace):
    return trace(lambda x: x[range(len(x))] * 2), [call(torch.ones(n, 2).as_subclass(Own)) for n in (3, 4, 5)]


@cases(eager="writes the address of a function as text")
def of_a_float(trace):
    """Python has no range of that."""

    def fn(x):
        try:
            return x[range(x.sum().item()), 0]
        except TypeError as error:
            return str(error)

    return trace(fn), [call(torch.ones(n, 2)) for n in (2, 2, 3, 3, 4)]


@cases(hits=2)
def of_a_number_of_numpy(trace):
    return trace(lambda x: x[range(np.prod(x.shape) // 2), 0] * 2), [
        call(torch.ones(n, 2)) for n in (2, 2, 3, 3, 2, 4)
    ]


@cases(hits=3)
def beyond_the_end(trace):
    def fn(x):
        try:
            return x[range(x.shape[0] + x.shape[1] - 2), 0]
        except IndexError as error:
            return str(error)

    shapes = [(3, 2), (4, 2), (5, 1), (4, 3), (6, 2), (2, 2), (3, 1), (2, 4)]
    return trace(fn), [call(torch.ones(shape)) for shape in shapes]


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)
