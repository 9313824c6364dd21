"""Modes of torch's functions that the function itself is in: they are told of what Python calls, as it is."""

from __future__ import annotations

import operator

import pytest
import torch
import torch._dynamo._trace_wrapped_higher_order_op as by_index
from torch.overrides import TorchFunctionMode

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


class Handing(TorchFunctionMode):
    """Hands on what it is told of."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@cases(hits=3)
def attributes_by_their_descriptors(trace):
    """torch hands `Tensor.device.__get__` to a mode."""

    def fn(x):
        with Handing():
            y = torch.zeros(x.shape, device=x.device, dtype=x.dtype) + x.T.sum()
            return y if x.requires_grad else y * 2

    return trace(fn), [
        call(X(2, 3)),
        call(X(2, 3)),
        call(X(2, 3, grad=True)),
        call(X(2, 3, grad=True)),
        call(X(4, 3)),
        call(X(2, 3)),
    ]


@cases(hits=2)
def descriptor_of_an_object(trace):
    class Slots:
        __slots__ = ("scale",)

    state = Slots()
    state.scale = 2.0
    get = Slots.scale.__get__
    fn = trace(lambda x: x * get(state))
    return fn, around(lambda: setattr(state, "scale", 3.0), X())


@cases(eager="calls .__get__() of a getset_descriptor")
def descriptor_of_another_class(trace):
    """A subclass that has another attribute under the name: what is read is no attribute of the object."""

    class Named(Exception):
        args = ("hidden",)

    error = Named(1, 2)
    get = BaseException.args.__get__
    fn = trace(lambda x: x * len(get(error)))
    return fn, [call(X()), call(X()), lambda: error.__setstate__({}), call(X())]


def all_sizes(inside, *shapes):
    """Calls a function that is in a mode at several sizes, and gives what the mode was told of."""

    def make(trace):
        class Telling(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                told = func(*args, **(kwargs or {}))
                return (
                    told * 2 if isinstance(told, int) else told[:1] if isinstance(told, torch.Size) else told
                )

        def fn(x):
            with Telling():
                return inside(x)

        return trace(fn, dynamic=True), [call(X(*shape)) for shape in shapes * 2]

    make.__name__ = "all_sizes"
    return make


SIZES = ((2, 3), (4, 3), (5, 3))


@pytest.mark.parametrize(
    "inside",
    [
        lambda x: x * x.size(0),
        lambda x: x * x.shape[0],
        lambda x: x * len(x.shape),
        lambda x: x * x.numel(),
        lambda x: x * len(x.size()),
        lambda x: x * operator.attrgetter("shape")(x)[0],
    ],
)  # fmt: skip
def test_mode_is_asked_for_sizes(inside):
    check(all_sizes(inside, *SIZES), hits=2)


class NoItems(TorchFunctionMode):
    """Gives the first row for each index."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__:
            return func(args[0], 0)
        return func(*args, **(kwargs or {}))


@cases(hits=2)
def mode_is_told_of_an_index(trace):
    def fn(x, i):
        with NoItems():
            return x[i] * x[1:]

    fn = trace(fn, dynamic=True)
    return fn, [
        call(X(2, 3), torch.tensor(1)),
        call(X(2, 3), torch.tensor(0)),
        call(X(4, 3), torch.tensor(1)),
    ] * 2


# ---------------------------------------------------------------- masks of attention, as in transformers
def masked(rule, scale=None):
    def fn(padding, x):
        def mask(row, query, key):
            seen = query.new_ones((), dtype=torch.bool) & (key <= query).to(query.device)
            return (
                seen & padding[row, key]
                if rule == "padding"
                else seen & padding[row, query] == padding[row, key]
            )

        for dims in ((None, None, 0), (None, 0, None), (0, None, None)):
            mask = torch.vmap(mask, in_dims=dims, out_dims=0)
        with by_index.TransformGetItemToIndex():
            seen = mask(*(torch.arange(n) for n in (padding.shape[0], x.shape[-1], x.shape[-1])))
        return seen, seen.stride(), torch.where(seen.any(1), x * (scale or [1])[0], 0)

    return fn


def padding(*rows):
    return torch.tensor(rows, dtype=torch.bool)


@cases(hits=4)
def masks_by_vmap(trace):
    fn = trace(masked("padding"))
    a, b = padding([1, 1, 1], [1, 1, 0]), padding([0, 1, 1], [1, 1, 0])
    longer = padding([1, 1, 1, 1], [1, 0, 0, 0])
    steps = [call(a, X(2, 3)), call(a, X(2, 3)), call(b, X(2, 3)), call(b, X(2, 3, grad=True))]
    return fn, [
        *steps,
        call(longer, X(2, 4)),
        call(longer, X(2, 4)),
        call(b, X(2, 3)),
        call(b, X(2, 3, grad=True)),
    ]


@cases(hits=3)
def masks_of_packed_sequences(trace):
    fn = trace(masked("packed"))
    return fn, [
        call(torch.tensor(rows), X(2, 3))
        for rows in ([[0, 0, 1]] * 2, [[0, 1, 2]] * 2, [[0, 0, 0]] * 2, [[0, 0, 1]] * 2)
    ]


@cases(hits=2)
def number_inside_of_a_mask(trace):
    scale = [2.0]
    fn = trace(masked("padding", scale))
    a = padding([1, 1, 1], [1, 1, 0])
    return fn, around(lambda: scale.__setitem__(0, 3.0), a, X(2, 3))


@cases(eager="cannot be made again")
def masks_with_gradients(trace):
    """What is indexed requires a gradient: its backward pass is the one of the function's class."""

    def fn(weight):
        def score(i, j):
            return weight[i] * j

        for dims in ((None, 0), (0, None)):
            score = torch.vmap(score, in_dims=dims)
        with by_index.TransformGetItemToIndex():
            return score(torch.arange(2), torch.arange(3))

    return trace(fn), [call(X(2, grad=True))] * 3


@cases(hits=1)
def another_forward_of_the_index_function(trace):
    """Somebody patches torch's function between two calls."""
    fn = trace(masked("padding"))
    a = padding([1, 1, 1], [1, 1, 0])

    def use(patched):
        usual = by_index.ModIndex.__dict__["forward"]
        if patched:
            by_index.ModIndex.forward = staticmethod(lambda x, indices: ~torch.ops.aten.index(x, indices))
        try:
            return fn(a, torch.ones(2, 3))
        finally:
            by_index.ModIndex.forward = usual

    return use, [call(False), call(False), call(True), call(True), call(False)]


@cases.parametrize()
def test_mode_inside(make, expected):
    check(make, **expected)
