"""What `map()` gives of Python functions, taken apart at sizes that vary: nothing in C looks at it."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.soundness.runner import Cases, call, check

cases = Cases()


def heads(t):
    return t.reshape(t.shape[0] * 2, 2, -1)


class Splits:
    def heads(self, t):
        return heads(t)


@functools.lru_cache(256)
def shape_of_heads(shape, count):
    return [shape[0] * count, 2, -1], {}


def heads_by_cache(t):
    shape, added = shape_of_heads(tuple(t.shape), 2)
    return t.reshape(shape) if not added else t


def unpacked(split, x):
    a, b, c = map(split, x.chunk(3, dim=-1))
    return a @ b.transpose(-1, -2) @ c


def starred(split, x):
    first, *others = map(split, x.chunk(3, dim=-1))
    return torch.stack([first, *others])


def passed(split, x):
    return (lambda a, b, c: a + b * c)(*map(split, x.chunk(3, dim=-1)))


def looped(split, x):
    total = 0
    for part in map(split, x.chunk(3, dim=-1)):
        total = total + part
    return total


def of_two(split, x):
    a, b = map(lambda s, t: split(s) + split(t), x.chunk(2, dim=-1), x.flip(-1).chunk(2, dim=-1))
    return a * b


def of_a_generator(split, x):
    a, b = map(split, (t * 2 for t in x.chunk(2, dim=-1)))
    return a * b


def of_a_map(split, x):
    a, b = map(split, map(torch.tanh, x.chunk(2, dim=-1)))
    return a * b


SPLITS = {"function": lambda: heads, "method": lambda: Splits().heads, "cached": lambda: heads_by_cache}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(
    "body", [unpacked, starred, passed, looped, of_two, of_a_generator], ids=lambda body: body.__name__
)
def test_what_a_map_gives_is_not_looked_at(body, split):
    def make(trace):
        shape_of_heads.cache_clear()
        part = SPLITS[split]()
        return trace(lambda x: body(part, x)), [call(torch.randn(2 + k % 6, 4, 12)) for k in range(14)]

    check(make, hits=11)


@cases(hits=8)
def a_map_of_a_map_of_c_code(trace):
    return trace(lambda x: of_a_map(heads, x)), [call(torch.randn(2 + k % 3, 4, 12)) for k in range(14)]


def lengths(wanted):
    """C code looks at numbers, wherever they come from: which ones it saw is compared."""

    def make(trace):
        def fn(x):
            a, b = map(wanted, [x.shape[0], x.shape[0] * 2])
            return x * a + b

        return trace(fn), [call(torch.randn(2 + k % 5, 3)) for k in (0, 1, 2, 3, 0, 1, 2, 3, 4, 2)]

    make.__name__ = f"lengths_{wanted.__name__}"
    cases(make, hits=3)


lengths(float)
lengths(abs)
lengths(bool)


class Block(torch.nn.Module):
    def forward(self, x, scale=1, **others):
        return heads(x) * scale, others


def options(x):
    return {"mask": None, "memory": x[:1]}


@pytest.mark.parametrize("named", [False, True])
def test_a_partial_of_a_module_is_its_module(named):
    """As the layers of x-transformers are called."""

    def make(trace):
        block = functools.partial(Block(), scale=2)

        def fn(x):
            out, others = block(x, **options(x)) if named else block(x, mask=None)
            return out, others

        return trace(fn), [call(torch.randn(2 + k % 6, 4, 12)) for k in range(14)]

    check(make, hits=11)


@cases(hits=3)
def a_partial_of_a_class(trace):
    def fn(x):
        shape = functools.partial(torch.Size, [x.shape[0] * 2, -1])()
        return x.reshape(shape), functools.partial(complex, x.shape[0])()

    return trace(fn), [call(torch.randn(2 + k % 3, 4)) for k in range(12)]


def doubled(n):
    return n * 2


def next_one(n):
    return n + 1


@cases(hits=3)
def numbers_through_python_code(trace):
    def fn(x):
        a, b = map(next_one, map(doubled, [x.shape[0], x.shape[1]]))
        return x * a - b

    return trace(fn), [call(torch.randn(2 + k % 5, 3)) for k in range(8)]


@cases.parametrize
def test_maps_at_sizes(make, expected):
    check(make, **expected)
