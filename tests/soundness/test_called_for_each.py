"""Functions of C that C code calls for each item, where sizes vary: `map(len, x)`, `key=len`, `reduce()`."""

from __future__ import annotations

import functools
import math
import operator
import types

import pytest
import torch
import torch.nn.functional as F

from tests.soundness.runner import Cases, call, check

cases = Cases()


def rows(k):
    return [torch.randn(3 + (k + j) % 5, 4) for j in range(3)]


def lengths(xs, s):
    return torch.tensor(list(map(len, xs)))


def longest(xs, s):
    most = max(map(len, xs))
    return torch.stack([F.pad(x, (0, 0, 0, most - len(x))) for x in xs])


def by_length(xs, s):
    return torch.cat(sorted(xs, key=len)[::-1])


def longest_by_key(xs, s):
    return max(xs, key=len) * 2, min(xs, key=torch.numel)


def unpacked(xs, s):
    a, b, c = map(len, xs)
    return torch.zeros(a, b) + c


def sizes_of(xs, s):
    a, b = map(int, xs[0].shape)
    return xs[0].reshape(a * b), list(map(float, xs[1].shape))


def methods(xs, s):
    return [torch.zeros(*size) for size in map(torch.Tensor.size, xs)], sum(map(torch.Tensor.numel, xs))


def reduced(xs, s):
    count = functools.reduce(operator.mul, xs[0].shape, 1)
    return xs[0].reshape(count), functools.reduce(lambda a, b: a[:2] @ b[:2].t() @ a[:2], xs)


def reduced_to_most(xs, s):
    return functools.reduce(max, [x.shape[0] for x in xs]), functools.reduce(lambda a, b: a + b, xs[0].shape)


def of_state(xs, s):
    """The same functions of what is kept, which is read as ever."""
    return xs[0] * sum(map(len, s.lists)) + max(map(int, s.texts)), sorted(s.lists, key=len)


def of_objects(xs, s):
    return xs[0] * sum(map(len, s.objects)), max(s.objects, key=len).name, list(map(float, s.objects))


def kept_map(xs, s):
    """Consumed once what it goes through has changed."""
    found = map(len, s.lists)
    s.lists[0].append(xs[0].shape[0])
    return list(found), xs[0] * 2


class Sized:
    def __init__(self, name, size):
        self.name, self.size = name, size

    def __len__(self):
        return self.size

    def __float__(self):
        return self.size * 0.5


BODIES = [
    lengths, longest, by_length, longest_by_key, unpacked, sizes_of, methods, reduced, reduced_to_most,
    of_state, of_objects, kept_map,
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_what_is_called_for_each_item(body):
    def make(trace):
        s = types.SimpleNamespace(
            lists=[[1, 2], [3]], texts=["3", "4"], objects=[Sized("a", 2), Sized("b", 1)], n=0
        )

        def change():
            s.n += 1
            s.lists[s.n % 2].append(s.n)
            s.texts[0] = str(s.n)
            s.objects[0].size = s.n % 4

        steps = []
        for k in range(18):
            steps.append(call(rows(k), s))
            if k in (8, 11, 14):
                steps.append(change)
        return trace(lambda xs, s: body(xs, s)), steps, lambda: (s.lists, s.texts)

    # Lengths have an order, and each that comes is a way of its own. A list that grows is one, too.
    check(make, **({"recordings": 16} if body is kept_map else {"hits": 12}))


def refused(name, body):
    """In Python's own words."""

    def make(trace):
        def fn(x, items):
            try:
                return x * 2, body(x, items)
            except (TypeError, ValueError) as error:
                return str(error)

        odd = [["1", "2"], ["1", "x"], [1, None], [[1], [2, 3]]]
        return trace(fn), [call(torch.randn(2 + k % 5, 3), odd[k % 4]) for k in range(16)]

    make.__name__ = f"refused_{name}"
    cases(make, hits=2)


refused("int", lambda x, items: [x.shape[0], *map(int, items)])
refused("len", lambda x, items: [x.shape[0], *map(len, items)])
refused("key", lambda x, items: (x.shape[0], sorted(items, key=float)))
refused("reduce", lambda x, items: functools.reduce(operator.add, items, x.shape[0]))
refused("reduce_of_three", lambda x, items: functools.reduce(operator.mul, x.shape, 1, 2))
refused("math", lambda x, items: math.prod(map(int, items), start=x.shape[0]))


@cases.parametrize
def test_called_for_each(make, expected):
    check(make, **expected)
