"""Sizes that are strides of slices, indices in lists, members of shapes, floats and values of operators."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.soundness.runner import Cases, Holder, call, check

cases = Cases()
SIZES = (3, 5, 7, 1, 0, 2, 11, 3, 4, 8, 9, 6)


def sparsely(n, grad):
    """As a view: no two elements lie side by side."""
    return torch.randn(2, 4, n).permute(2, 1, 0)[..., 0].requires_grad_(grad)


def at_all_sizes(function, grad=False):
    return lambda trace: (trace(function), [call(sparsely(n, grad)) for n in SIZES])


def with_gradients(function):
    def run(x):
        y = function(x)
        return (y, *torch.autograd.grad(y.sum(), x))

    return run


# Two recordings, and one more for sizes at which something is raised, or a branch goes elsewhere.
FOLLOWED = [
    lambda x: x[:: x.shape[0] // 2 + 1],
    lambda x: x[:: max(1, x.shape[0] // 3)].mul(2),
    lambda x: x[1 : x.shape[0] - 1 : x.shape[0] // 4 + 2],
    lambda x: x[:, :: x.shape[0] // 8 + 1] * 2,
    lambda x: x[None, ..., 1 :: x.shape[0] + 1],
    lambda x: x[:: x.shape[0]] * 2,
    lambda x: x[[0, x.shape[0] // 2]] * 2,
    lambda x: x[:, [x.shape[0] % 4, 1]],
    lambda x: x[[x.shape[0] - 1, -x.shape[0]]],
    lambda x: x * (2 if -1 in x.shape else 3),
    lambda x: x * (2 if 5 in [x.shape[0], 4] else 3),
    lambda x: x * (2 if x.shape[0] not in x.shape[1:] else 3),
    lambda x: x * (2 if isinstance(x[1:], nn.Parameter) else 3),
    lambda x: x * x.new_full((x.shape[0], 1), torch.tensor(2.5)),
    lambda x: x * torch.full((x.shape[0], 1), torch.tensor(3)),
    lambda x: x * torch.full_like(x, fill_value=x.detach().abs().sum()),
    lambda x: x.sum() + torch.arange(torch.ones(x.shape[0]).sum().long()),
    lambda x: x * (getattr(x, "shape")[0] if hasattr(x, "shape") else 3),  # noqa: B009
    lambda x: x.view(torch.tensor(x.shape[0]), 4) * 2,
    lambda x: x.reshape([torch.div(x.numel(), 4, rounding_mode="trunc"), 4]),
    lambda x: x[None].expand(torch.tensor(2), -1, -1).repeat(1, torch.tensor(len(x) + 1), 1),
    lambda x: x + torch.zeros(torch.ones(len(x)).sum().long(), 4),
    lambda x: F.pad(x, (0, 0, 0, torch.tensor(len(x)))),
    lambda x: F.scaled_dot_product_attention(*[x[None]] * 3, scale=(x.shape[0] + 1) ** -0.5),
    lambda x: F.smooth_l1_loss(x, -x, beta=1 / (x.shape[0] + 1), reduction="sum"),
    lambda x: F.huber_loss(x, -x, delta=1 / (x.shape[0] + 1), reduction="sum"),
    lambda x: F.cross_entropy(x, torch.arange(len(x)) % 4, label_smoothing=1 / (len(x) + 1)),
    lambda x: torch.quantile(x, 1 / (x.shape[0] + 1)) + x.quantile(1 / (len(x) + 2)),
    lambda x: x * torch.ones(x.shape[0], 4).bernoulli_(1 / (x.shape[0] + 1)),
    lambda x: x + torch.normal(0.5, 1 / (x.shape[0] + 1), x.shape),
    lambda x: x * torch.ones(torch.broadcast_shapes(x.shape, (1, 4))),
    lambda x: F.interpolate(x[None, None], scale_factor=(4 / (x.shape[0] + 1), 1.5), mode="bilinear"),
    lambda x: F.interpolate(x[None], scale_factor=[x.shape[0]]),
    lambda x: F.interpolate(x[None, None], None, (6.5 / max(1, len(x)), 2), "bicubic", antialias=True),
]


@pytest.mark.parametrize("number", range(len(FOLLOWED)))
def test_followed(number):
    check(at_all_sizes(FOLLOWED[number]), hits=8)
    check(at_all_sizes(with_gradients(FOLLOWED[number]), grad=True), hits=6)


@cases(hits=8)
def writes_to_every_so_many(trace):
    """What is written shows in the argument, and in what was taken of it before."""

    def run(x):
        before = x[1:]
        x[:: x.shape[0] // 3 + 1] = x.shape[0]
        x[:: x.shape[0] + 1].add_(before.sum())
        return before, x[0] if x.shape[0] > 4 else x * 2

    return at_all_sizes(run)(trace)


@cases(hits=2)
def what_is_set_does_not_fit(trace):
    return at_all_sizes(setting(lambda x: slice(0, 3), lambda x: x[:2]))(trace)


@cases(hits=8)
def writes_to_a_list_of_places(trace):
    def run(x):
        x = x.clone()
        x[[x.shape[0] - 1, 0]] = 2.0
        x[[0, x.shape[0] // 2]] = x[[x.shape[0] // 2, 0]]
        return x

    return at_all_sizes(run)(trace)


@cases(hits=8)
def a_stride_that_shows_everything(trace):
    """At a stride of one the slice is the tensor: whether it is written to shows in the graph alone."""

    def run(x):
        y = x[:: max(1, x.shape[0] // 4)]
        return y, y.add_(1), x

    return at_all_sizes(run)(trace)


@cases(hits=3)
def negative_strides(trace):
    return at_all_sizes(lambda x: x[:: 4 - x.shape[0]])(trace)


@cases(hits=6)
def bounds_beside_a_stride_that_torch_refuses(trace):
    return at_all_sizes(lambda x: x[: x.shape[0] // 2 : x.shape[0] - 2].sum())(trace)


def setting(place, value):
    def run(x):
        y = x * 2
        y[place(x)] = value(x)
        return y

    return run


SET = [
    (lambda x: slice(0, x.shape[0] // 2), lambda x: x.sum()),
    (lambda x: slice(x.shape[0] // 2, None), lambda x: x[0] if len(x) else 1.0),
    (lambda x: (slice(None), slice(x.shape[0] % 3, None)), lambda x: x[:, :1]),
    (lambda x: (slice(1, None), 2), lambda x: x[None, None, 1:, 1]),
    (lambda x: slice(None, None, len(x) // 2 + 1), lambda x: x[None, :: len(x) // 2 + 1]),
    (lambda x: (..., slice(0, len(x))), lambda x: torch.tensor(float(x.shape[0]))),
    (lambda x: slice(0, 3), lambda x: x[-1:]),
]


@pytest.mark.parametrize("number", range(len(SET)))
def test_what_is_set(number):
    check(at_all_sizes(setting(*SET[number])), hits=5)
    check(at_all_sizes(with_gradients(setting(*SET[number])), grad=True), hits=5)


@cases(hits=4)
def a_value_that_is_given_as_a_tensor(trace):
    """By other calls as a number, one of another type, or one that torch refuses."""
    fn = trace(lambda x, v: (x.new_full((x.shape[0],), v), torch.full_like(x, v)))
    values = [torch.tensor(2.5), torch.tensor(7.5), torch.tensor(float("nan")), torch.tensor(2), 3, 4.5]
    values += [torch.tensor([2.0]), torch.tensor(1.0, requires_grad=True), torch.tensor(True)]
    return fn, [call(sparsely(n, False), v) for v in values for n in (3, 4)]


@cases(hits=4)
def a_size_that_is_given_as_a_tensor(trace):
    """By other calls as a number, or as a tensor of a kind that torch refuses."""
    fn = trace(lambda x, n: (x.new_zeros(n, 2), x.reshape((n, -1)), torch.ones(2, n)))
    sizes = [torch.tensor(4), torch.tensor(2), torch.tensor(1), 2, torch.tensor(4, dtype=torch.int32)]
    sizes += [torch.tensor(2.0), torch.tensor([2]), torch.tensor(True), torch.tensor(3)]
    return fn, [call(sparsely(n, False), size) for size in sizes for n in (4, 8)]


@cases(hits=3)
def sizes_of_a_fixed_input(trace):
    """The value of a tensor says how large a result is: a few have recordings of their own, then none."""

    def fn(x, lengths):
        mask = torch.arange(lengths.max())[None] < lengths[:, None]
        return mask, torch.zeros(2, lengths.max()) + x.sum()

    lengths = ((3, 1), (5, 2), (7, 7), (0, 0), (1, 0), (9, 4), (2, 2), (5, 1))
    return trace(fn), [call(torch.ones(2), torch.tensor(each)) for each in lengths]


@cases(hits=5)
def padded_to_a_length(trace):
    def run(x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])

    lengths = ((5, 2, 3), (6, 2, 6), (7, 1, 2), (4, 4, 4), (9, 1, 3), (1, 1, 1), (8, 9, 1), (8, 2, 8))
    return trace(run), [call(torch.randn(2, n, 3), torch.tensor([a, b])) for n, a, b in lengths]


@cases(hits=8)
def tensors_of_modules(trace):
    """`Module.__setattr__` asks what is set whether it is a parameter."""

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rates", torch.ones(4))
            self.rows = None

        def forward(self, x):
            if self.rows is None or self.rows.shape[0] < x.shape[0]:
                self.rows = torch.arange(x.shape[0])[:, None] * self.rates
            return x + self.rows[: x.shape[0]]

    module = Table()
    return trace(module), [call(sparsely(n, False)) for n in (*SIZES, 12, 13, 14, 9)], lambda: module.rows


def told_by_their_values(*windows, pads=0, hits=1):
    """Torch's parser asks for plain ints one by one; which went where is told by values, if none are alike.

    Behind drawn numbers the function must go on where the replay left it, whatever is alike by then.
    """

    def make(trace):
        def fn(window, stride):
            return F.max_pool1d(torch.rand(1, 2, 24), window, stride, pads)

        return trace(fn), [call(*one) for one in windows]

    make.__name__ = f"told_by_their_values_{windows}"
    cases(make, hits=hits)


told_by_their_values((2, 1), (2, 2), (4, 5), (3, 3), (5, 4), (2, 1), (2, 2))
told_by_their_values((2, 1), (5, 5), (4, 5), (4, 4), (2, 3), (4, 5))
told_by_their_values((4, 5), (3, 3), (2, 1), (4, 4), (2, 3), (4, 5), pads=1)
told_by_their_values((4, 4), (4, 3), (2, 1), (2, 2), (4, 1), (4, 4))


FLOATS = {
    "a shape": lambda k: torch.kaiser_window(3, True, k),
    "a shape, followed further": lambda k: torch.kaiser_window(4, True, k + 1),
    "a factor": lambda k: torch.hamming_window(3, True, k),
    "another factor": lambda k: torch.hamming_window(3, True, 0.5, k),
    "a base": lambda k: torch.logspace(0, 1, steps=3, base=k),
    "a distance": lambda k: torch.fft.fftfreq(3, d=k),
    "a length, too": lambda k: torch.kaiser_window(k, True, k),
}


@pytest.mark.parametrize("name", FLOATS)
def test_an_int_for_a_float(name):
    """A binding asks it as it asks ints: a length equal to it at the first call does not follow it."""

    def make(trace):
        return trace(FLOATS[name]), [call(k) for k in (3, 1, 2, 4, 3)]

    check(make, hits=1)


@cases(hits=2)
def an_int_beside_a_float_that_is_equal_at_one_call(trace):
    return trace(lambda k: torch.kaiser_window(k, True, 3)), [call(k) for k in (3, 1, 2, 4, 3)]


@pytest.mark.parametrize("first", [(1, 1), (3, 3)])
def test_a_value_beside_an_int_that_is_equal_at_one_call(first):
    """Behind the exit there are two numbers to tell apart again, and each is read as it was."""

    def make(trace):
        total, rows = torch.zeros(1), torch.arange(144.0).reshape(4, 6, 6)

        def fn(a, b):
            values = torch.tensor([a, b])
            total.add_(1)
            return rows.unfold(a * b, 2, int(values[0]))

        others = [(2, 1), (1, 2), (3, 3), (1, 1), (3, 3), (2, 3), (3, 1), (1, 1)]
        return trace(fn), [call(*one) for one in (first, *others)], lambda: total

    check(make, hits=1)


@cases(hits=1)
def read_in_another_order(trace):
    """What the size of a result hangs on is read by the arguments, what is in doubt as the parser asks."""
    state = Holder(count=torch.zeros(1))

    def fn(columns, rows):
        state.count.add_(1)
        return torch.triu_indices(rows, columns, offset=rows - 1)

    windows = ((3, 2), (3, 2), (2, 1), (1, 1), (2, 3), (2, 2), (1, 1), (2, 2), (3, 3), (4, 3))
    return trace(fn), [call(*one) for one in windows], lambda: state.count


@cases.parametrize()
def test_sizes_handed_on(make, expected):
    check(make, **expected)
