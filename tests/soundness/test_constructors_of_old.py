"""`x.new(2, 3)` and `torch.FloatTensor(2, 3)`: sizes of a tensor that nobody has filled yet."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, agree, call, check

cases = Cases()

SHAPES = [(2, 3), (4, 3), (5, 2), (1, 7), (0, 3), (1, 1), (3, 0), (2, 3)]
MADE = {
    "new": lambda x: x.new(x.shape[0], 2).fill_(1),
    "new_of_one": lambda x: x.new(x.shape[1]).zero_(),
    "new_of_a_shape": lambda x: x.new(x.shape).copy_(x),
    "new_of_size": lambda x: x.new(x.size()).uniform_(),
    "new_of_a_product": lambda x: x.new(2 * x.shape[0], x.numel()).zero_(),
    "new_of_another_kind": lambda x: x.long().new(len(x)).fill_(7),
    "new_of_a_transposed_one": lambda x: x.t().new(*x.shape).normal_(),
    "new_bound_before": lambda x: (lambda new: new(x.shape[0], x.shape[1]).zero_())(x.new),
    "new_of_a_list": lambda x: x.new(*[x.shape[0], 2]).zero_(),
    "FloatTensor_of_a_list": lambda x: torch.FloatTensor(*[x.shape[0], 2]).zero_(),
    "FloatTensor": lambda x: torch.FloatTensor(x.shape[0], x.shape[1]).uniform_(),
    "FloatTensor_of_a_shape": lambda x: torch.FloatTensor(x.shape).fill_(3),
    "LongTensor": lambda x: torch.LongTensor(x.shape[0]).random_(0, 9),
    "Tensor": lambda x: torch.Tensor(x.shape[0], 2).normal_(),
    "DoubleTensor": lambda x: torch.DoubleTensor(x.size(1), x.size(0)).copy_(x.t()),
}


@pytest.mark.parametrize("name", MADE)
def test_sizes_that_are_followed(name):
    def make(trace):
        made = MADE[name]
        return trace(lambda x: (made(x), x * 2)), [call(torch.ones(shape)) for shape in SHAPES]

    check(make, hits=6, recordings=2)


@pytest.mark.parametrize("name", MADE)
def test_sizes_of_one_recording(name):
    def make(trace):
        made = MADE[name]
        return trace(lambda x: made(x) * 2), [call(torch.ones(2, 3)) for _ in range(4)]

    check(make, hits=3)


@cases(hits=6, recordings=2)
def hidden_state_of_old(trace):
    """As language models of that time begin."""
    torch.manual_seed(0)
    lstm, out = nn.LSTM(4, 4), nn.Linear(4, 3)

    def forward(x):
        weight = next(lstm.parameters()).data
        state = tuple(weight.new(1, x.shape[1], 4).zero_() for _ in range(2))
        return out(lstm(x, state)[0])

    return trace(forward), [call(torch.randn(n, m, 4)) for n, m in SHAPES if n and m] + [
        call(torch.randn(3, 2, 4)),
        call(torch.randn(2, 5, 4)),
    ]


@cases(hits=3)
def new_of_nothing(trace):
    return trace(lambda x: torch.cat([x.new(), x])), [call(torch.ones(3)) for _ in range(4)]


@cases(hits=3)
def new_of_a_parameter(trace):
    layer = nn.Linear(2, 2)

    def fn(x):
        made = layer.weight.new(2, 2).copy_(x)
        return made, type(made).__name__, made.requires_grad

    return trace(fn), [call(torch.ones(2, 2)) for _ in range(4)]


@cases(hits=2, eager="aten::new_empty raised")
def sizes_below_zero(trace):
    """The error is torch's."""

    def fn(x):
        try:
            return x.new(x.shape[0] - 2).zero_()
        except RuntimeError as error:
            return str(error)

    return trace(fn), [call(torch.ones(n)) for n in (2, 3, 4, 5, 1, 7)]


SPECIAL = {
    "conjugate": lambda x: x.to(torch.complex64).conj(),
    "negative": lambda x: torch._neg_view(x),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_tensors(name):
    """Of these torch makes no new one, or in its own way."""

    def make(trace):
        special = SPECIAL[name]

        def fn(x):
            try:
                made = special(x).new(x.shape[0], 2)
            except RuntimeError as error:
                return type(error), str(error)
            return made.dtype, made.shape, made.is_neg(), made.is_conj()

        return trace(fn), [call(torch.ones(n, 3)) for n in (2, 3, 5, 2, 1, 7, 0)]

    assert agree(make).count("recordings")


@cases(hits=2)
def sizes_that_are_replaced(trace):
    state = {"n": 2}
    fn = trace(lambda x: x.new(state["n"]).fill_(1) + x.new(2).fill_(2))
    return fn, [
        call(torch.ones(2)),
        call(torch.ones(2)),
        lambda: state.update(n=1),
        *[call(torch.ones(2))] * 2,
    ]


@cases(eager="calls .new() of a tensor")
def new_of_a_sequence(trace):
    return trace(lambda x: x.new([1.0, 2.0]) + x.new((3, 4))), [call(torch.ones(2)) for _ in range(4)]


@cases(eager="calls .new() of a tensor")
def new_on_a_device(trace):
    return trace(lambda x: x.new(2, device="cpu").zero_()), [call(torch.ones(2)) for _ in range(4)]


@cases(eager="calls .new() of a tensor")
def new_of_another_tensor(trace):
    """It shows the memory of that one."""
    return trace(lambda x: x.new(x[1:]).mul_(2)), [call(torch.ones(2)) for _ in range(4)]


@cases.parametrize
def test_constructor(make, expected):
    check(make, **expected)
