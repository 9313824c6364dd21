"""Numbers that are followed beside tensors among the indices, as the last step of each sequence."""

from __future__ import annotations

import pytest
import torch

from tests.soundness.runner import X, agree, call, check

SIZES = [(4, 6, 3), (5, 8, 4), (3, 7, 5), (6, 6, 2), (8, 5, 3), (2, 9, 4)]


def two(dtype=torch.int64):
    return torch.arange(2, dtype=dtype)


def written(x, value):
    y = x * 1
    y[two(), x.size(1) - 1] = value
    y[..., two(), x.size(2) - 1] += 1
    return y


FOLLOWED = {
    "the last of each": lambda x: x[torch.arange(x.size(0)), x.size(1) - 1],
    "a number before": lambda x: x[x.size(0) - 1, torch.arange(x.size(1))],
    "between tensors": lambda x: x[two(), x.size(1) - 2, torch.tensor([1, 0])],
    "from the end": lambda x: x[two(), -x.size(1)],
    "dots before": lambda x: x[..., two(), x.size(2) - 1],
    "dots between": lambda x: x[two(), ..., x.size(2) - 1],
    "whole dimensions": lambda x: x[:, two(), x.size(2) - 1],
    "two numbers": lambda x: x[two(), x.size(1) - 1, x.size(2) - 1],
    "one that is no size": lambda x: x[two(), x.size(1) - 1, 0],
    "ints": lambda x: x[two(torch.int32), x.size(1) - 1],
    "rows of indices": lambda x: x[torch.zeros(2, 2, dtype=torch.int64), x.size(1) - 1],
    "a list": lambda x: x[[0, 1], x.size(1) - 1],
    "lengths": lambda x: x[two(), torch.tensor([x.size(1)]) - 1],
    "written": lambda x: written(x, 7.0),
    "a mask": lambda x: x[x[:, 0, 0] > -100, x.size(1) - 1],
}
APART = {
    "slices, which are taken in turn": lambda x: x[1:, two(), x.size(2) - 1],
    "a mask of two dimensions": lambda x: x[x[:, :, 0] > -100, x.size(2) - 1],
    "a new dimension": lambda x: x[None, two(), x.size(1) - 1],
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", FOLLOWED.values(), ids=FOLLOWED)
def test_the_number_is_followed(function, grad):
    check(lambda trace: (trace(function), [call(X(*size, grad=grad)) for size in SIZES]), hits=4)


@pytest.mark.parametrize("function", APART.values(), ids=APART)
def test_each_number_is_a_recording(function):
    check(lambda trace: (trace(function), [call(X(*size)) for size in [*SIZES, SIZES[-1]]]), hits=1)


WRONG = {
    "out of range": (lambda x: x[two(), x.size(0)], {"hits": 1, "eager": "raised IndexError"}),
    "too many": (lambda x: x[two(), x.size(1) - 1, 0, 0], {"eager": "raised IndexError"}),
    "dots twice": (lambda x: x[two(), ..., ..., 1], {"eager": "raised IndexError"}),
}


@pytest.mark.parametrize(("wrong", "expected"), WRONG.values(), ids=WRONG)
def test_it_raises_as_it_does(wrong, expected):
    steps = [call(X(2, size, 3)) for size in (3, 4, 5)] + [call(X(6, 6, 3)), call(X(7, 3, 3))]
    check(lambda trace: (trace(wrong), steps), **expected)


# ---------------------------------------------------------------- tensors that torch asks for a number
def at(x):
    """Another place for each input."""
    return x.sum().long().abs() % 4


def put(x, *parts):
    y = x * 1
    y[tuple(part(x) if callable(part) else part for part in parts)] = 2.0
    return y


def above(x):
    return x[0, :, 0] > 0


ASKED = {
    "before a mask": lambda x: x[at(x), above(x)],
    "behind a mask": lambda x: x[:, above(x), at(x)],
    "twice": lambda x: x[at(x), above(x), at(x)],
    "beside rows": lambda x: x[at(x), two(), at(x) - 1],
    "set": lambda x: put(x, at, above, at),
    "set beside rows": lambda x: put(x, at, two(), at),
    "added": lambda x: put(x, at, above) + put(x, above(x.transpose(0, 1)), at),
    "a flag": lambda x: x[at(x) > 1, above(x)],
    "of one byte": lambda x: x[at(x).to(torch.uint8), 0] if int(at(x)) == 1 else x[0, at(x).to(torch.int8)],
    "a slice that it bounds": lambda x: x[: at(x) + 1, :, two()],
    "too large": lambda x: x[at(x) * 10, above(x)],
    "a mask that does not fit": lambda x: x[at(x), above(x)[:2]],
    "a mask of two dimensions": lambda x: x[at(x), x[0] > 0],
}
NOT_FOLLOWED = ("of one byte", "too large", "a mask that does not fit", "a mask of two dimensions", "a flag")


@pytest.mark.filterwarnings("ignore:indexing with dtype")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ASKED)
def test_tensors_of_one_number(name, grad):
    def make(trace):
        def fn(x):
            try:
                y = ASKED[name](x)
            except IndexError as error:
                return str(error)
            return y * 2, y.shape, y._version

        torch.manual_seed(1)
        return trace(fn), [call((torch.randn(4, 4, 4) * k).requires_grad_(grad)) for k in range(1, 16)]

    tracer = agree(make)
    assert name in NOT_FOLLOWED or tracer.count("hits") >= 8, tracer.account()
