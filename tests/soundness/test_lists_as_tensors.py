"""Tensors of lists of numbers that are passed or kept: ids of tokens, lengths, rewards."""

from __future__ import annotations

import pytest
import torch

from tests.soundness.runner import Cases, Holder, X, call, check

cases = Cases()


def lists(*values):
    return [call(value) for value in values]


@cases(hits=4)
def ids(trace):
    weight = torch.randn(20, 4)
    return trace(lambda ids: weight[torch.tensor(ids)]), lists(
        [1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 1, 1], [0, 19, 3], [5, 5, 6]
    )


@cases(hits=3)
def a_batch_of_ids(trace):
    weight = torch.randn(20, 4)
    return trace(lambda ids: weight[torch.tensor(ids)]), lists(
        [[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 1], [2, 3]], [[0, 0], [1, 1]], [[2, 2], [3, 3]]
    )


@cases(hits=3)
def floats_with_a_dtype(trace):
    return trace(lambda r: torch.tensor(r, dtype=torch.float64) * 2), lists(
        [0.5, 1.5], [2.5, 3.5], [0.25, 1e300], [float("inf"), -0.0], [1.0, 2.0]
    )


# ---------------------------------------------------------------- dtypes that a number may not fit
MAKERS = {
    "tensor": lambda values, dtype: torch.tensor(values, dtype=dtype),
    "as_tensor": lambda values, dtype: torch.as_tensor((*values,), dtype=dtype),
    "scalar": lambda values, dtype: torch.tensor(values[0], dtype=dtype),
    "new_tensor": lambda values, dtype: torch.zeros(1, dtype=dtype).new_tensor([values, values]),
    "class": lambda values, dtype: getattr(torch, CLASSES[dtype])(values),
}
CLASSES = {
    torch.int32: "IntTensor",
    torch.int16: "ShortTensor",
    torch.int8: "CharTensor",
    torch.uint8: "ByteTensor",
}
CLASSES[torch.bool] = "BoolTensor"


@pytest.mark.parametrize("dtype", CLASSES, ids=str)
@pytest.mark.parametrize("made", MAKERS)
def test_a_dtype_with_a_range(made, dtype):
    low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)

    def make(trace):
        def run(t):
            try:
                return MAKERS[made]([t.item(), 1], dtype)
            except RuntimeError as error:
                return str(error)

        values = [2, 1, low, high, high + 1, low - 1, 0, 2**63 - 1, 2**40, -(2**63), 1, high]
        return trace(run), lists(*map(torch.tensor, values))

    check(make, hits=4)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int16], ids=str)
def test_floats_of_a_dtype_of_ints(dtype):
    def make(trace):
        def run(t):
            try:
                return torch.tensor([t.item(), -0.0], dtype=dtype)
            except RuntimeError as error:
                return str(error)

        values = [0.5, -0.5, 0.0, -0.0, float("nan"), float("inf"), 1e300, 4e4, 0.5]
        return trace(run), lists(*map(torch.tensor, values))

    check(make, hits=8) if dtype is torch.bool else check(make, hits=2, recordings=7)


@cases(hits=2)
def ints_become_floats(trace):
    return trace(lambda r: torch.tensor(r)), lists([1, 2], [3, 4], [5, 6], [0.5, 2], [1, 2.5], [7, 8])


@cases(hits=2)
def ints_and_floats_in_rows(trace):
    return trace(lambda r: torch.tensor(r)), lists([[1], [2.0]], [[3], [4.5]], [[5], [6.5]], [[7], [8.5]])


@cases(hits=2)
def by_as_tensor(trace):
    return trace(lambda r: torch.as_tensor(r)), lists([1, 2], [3, 4], [5, 6], [7, 8])


@cases(hits=1)
def of_another_length(trace):
    return trace(lambda r: torch.tensor(r)), lists([1, 2], [3, 4], [5, 6], [1, 2, 3], [4, 5, 6], [7, 8])


@cases(eager="raised ValueError")
def of_several_lengths(trace):
    return trace(lambda r: torch.tensor(r)), lists([[1, 2], [3]], [[4, 5], [6]], [[7, 8], [9]])


@cases(hits=1)
def with_an_entry_that_is_none(trace):
    def step(r):
        try:
            return torch.tensor(r)
        except (TypeError, RuntimeError) as error:
            return type(error).__name__

    return trace(step), lists([1, 2], [3, 4], [5, 6], [1, None], [7, 8])


@cases(hits=1)
def with_a_bool(trace):
    return trace(lambda r: torch.tensor(r)), lists([1, 2], [3, 4], [5, 6], [True, 1], [True, False], [7, 8])


NAN = float("nan")


@cases(hits=1)  # each list with a nan is recorded by itself
def with_a_nan(trace):
    return trace(lambda r: torch.tensor(r)), lists(
        [1.0, 2.0], [NAN, 3.0], [4.0, 3.0], [NAN, 1.0], [5.0, 6.0], [NAN, NAN]
    )


@cases(hits=1)
def with_a_nan_after_a_write(trace):
    kept = torch.zeros(2)

    def step(r):
        kept.add_(1)
        kept.add_(torch.tensor(r))

    return (
        trace(step),
        lists([NAN, 2.0], [NAN, 3.0], [4.0, 3.0], [NAN, 1.0], [5.0, 6.0], [7.0, 8.0]),
        lambda: kept,
    )


@cases(hits=2)
def of_large_ints(trace):
    def step(r):
        try:
            return torch.tensor(r)
        except (OverflowError, RuntimeError) as error:
            return str(error)

    return trace(step), lists([1, 2], [3, 4], [5, 2**62], [2**63 - 1, -(2**63)], [2**63, 1], [7, 8])


@cases(hits=3)
def kept_from_call_to_call(trace):
    rewards = [0.5, 1.5]

    def change():
        rewards[0] += 1.0

    steps = [call(X()), change] * 6
    return trace(lambda x: x * torch.tensor(rewards).sum()), steps, lambda: rewards


@cases(hits=2)
def changed_by_the_call(trace):
    rewards = [0.5, 1.5]

    def step(x):
        rewards[1] = 2.5
        made = torch.tensor(rewards)
        rewards[1] = 1.5
        return made

    def change():
        rewards[0] = 3.0

    return trace(step), [call(X())] * 3 + [change] + [call(X())] * 3, lambda: rewards


@cases(hits=2)
def the_list_is_handed_on_too(trace):
    def step(r):
        return torch.tensor(r), r, len(r)

    return trace(step), lists([1, 2], [3, 4], [5, 6], [7, 8])


@cases(hits=1)
def one_list_twice(trace):
    row = [1, 2]
    other = [3, 4]
    return trace(lambda r: torch.tensor(r)), lists(
        [row, row], [row, other], [other, other], [other, row], [row, row]
    )


@cases(hits=2)
def a_number_decides_as_well(trace):
    def step(r):
        made = torch.tensor(r)
        return made + 1 if r[0] > 2 else made

    return trace(step), lists([1, 2], [3, 4], [0, 4], [2, 9], [5, 6], [7, 8])


@cases(hits=4)
def padded(trace):
    weight = torch.randn(20, 4)

    def step(batch):
        longest = max(len(row) for row in batch)
        return weight[torch.tensor([row + [0] * (longest - len(row)) for row in batch])]

    made = [[[n, n + 1, 2 * n], [n, 3], [7]] for n in range(7)]
    return trace(step), lists(*made)


@cases(hits=4)
def sums_of_lists(trace):
    s = Holder(ids=[1, 2], seen=[])

    def step(ids):
        both = s.ids + ids
        more = [0, *ids]
        more += ids
        s.seen.append(both)
        return torch.tensor(both), torch.tensor(more), both, more, len(both)

    def change():
        s.ids[0] += 1

    made = []
    for n in range(8):
        made += [call([n, n + 1, n * n]), change]
    return trace(step), made, lambda: [s.ids, s.seen]


@cases(hits=4)
def sums_that_are_written_to(trace):
    def step(ids):
        both = ids + [1]  # noqa: RUF005
        both[0] = 5
        ids.append(both[1])
        return torch.tensor(both), ids

    return trace(step), lists(*[[n, n + 1] for n in range(9)])


@cases(hits=4)
def sums_of_lists_of_other_things(trace):
    def step(ids, other):
        return torch.tensor(ids) * 2, other + ["a"], [None] + other  # noqa: RUF005

    return trace(step), [call([n, n + 1], ["b", 0.5]) for n in range(9)]


@cases(hits=4)
def of_a_hundred(trace):
    weight = torch.randn(50, 4)

    def step(ids, scores):
        return weight[torch.tensor(ids)] * torch.tensor(scores)[:, None], sum(scores)

    def made(n):
        return call([(7 * n + k) % 50 for k in range(100)], [(n + 1) / (k + 1) for k in range(100)])

    return trace(step), [made(n) for n in range(8)]


@cases(hits=3)
def under_inference_mode(trace):
    def step(ids):
        with torch.inference_mode():
            made = torch.tensor(ids)
        return made, made.is_inference(), torch.tensor(ids, dtype=torch.float32).requires_grad

    return trace(step), lists(*[[n, n + 1] for n in range(7)])


@cases.parametrize
def test_lists(make, expected):
    check(make, **expected)
