"""Functions with a `functools` cache that are called with sizes: entries are followed. And with types."""

from __future__ import annotations

import functools
from typing import Any, Optional, Union

import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, X, call, check

cases = Cases()
SIZES = (2, 3, 4, 5, 2, 6, 3, 7, 4, 5, 6, 7)
SCALE = {"k": 1}


class Recipe:
    """What einops makes of a pattern."""

    def __init__(self, heads: int) -> None:
        self.heads = heads


def cached_here(function):
    """Each twin has a cache of its own, which holds all sizes."""
    cached = functools.lru_cache(64)(function)
    return cached


def filled(function, *keys):
    for key in keys:
        function(*key)
    return function


def shapes(recipe, shape, axes):
    b, n, c = shape
    moved = [0, 2, 1, 3] if axes else None
    return [b, n, recipe.heads, c // recipe.heads], moved, [], {0: b}, [b, n * c], None


def batches(*sizes):
    return [call(torch.arange(b * 3 * 4.0).view(b, 3, 4)) for b in sizes]


@cases(hits=8)
def a_recipe(trace):
    """The pattern of einops: a plan of lists, tuples and dicts for each shape."""
    recipe, plan = Recipe(2), cached_here(shapes)
    filled(plan, *((recipe, torch.Size((b, 3, 4)), (("h", 2),)) for b in SIZES))

    def fn(x):
        inner, order, reduced, added, final, _ = plan(recipe, x.shape, (("h", 2),))
        y = x.reshape(inner)
        if order is not None:
            y = y.permute(order)
        if len(reduced) > 0:
            y = y.sum(reduced)
        for place, length in added.items():
            y = y.unsqueeze(place).expand(length, *y.shape)
        return y.reshape(-1, *final) if final is not None else y

    return trace(fn), batches(*SIZES), lambda: plan.cache_info()


@cases(hits=8)
def a_step_of_training(trace):
    recipe, plan = Recipe(2), cached_here(shapes)
    filled(plan, *((recipe, (b, 3, 4), ()) for b in SIZES))
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def fn(x):
        optimizer.zero_grad()
        loss = net(x).reshape(plan(recipe, x.shape, ())[0]).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return trace(fn), batches(*SIZES, *SIZES), lambda: [*net.parameters()]


@cases(hits=5)
def an_entry_that_is_missing(trace):
    """The function runs once for each new size, which no replay does."""
    log = []

    def double(n):
        log.append(n)
        return (n * 2, "rows", 3)

    cached = cached_here(double)

    def fn(x):
        n, _, k = cached(x.shape[0])
        return x.sum() * n + k

    return trace(fn), batches(2, 3, 2, 3, 4, 4, 5, 5, 2, 6, 6, 7, 7, 3, 4), lambda: (log, cached.cache_info())


@cases(hits=6)
def entries_of_another_time(trace):
    """The cache holds what the function gave when it was called, whatever it would give now."""

    def scaled(n):
        return n * SCALE["k"]

    cached = filled(cached_here(scaled), *((b,) for b in SIZES))

    def fn(x):
        return x * cached(x.shape[0])

    def change():
        SCALE["k"] = 5

    def back():
        SCALE["k"] = 1

    return trace(fn), [back, *batches(2, 3, 4, 5), change, *batches(2, 3, 4, 5, 6), back, *batches(7, 7)]


@cases(hits=6)
def entries_that_come_anew(trace):
    kept = [1]

    def scaled(n):
        return [n * kept[0]]

    cached = filled(cached_here(scaled), *((b,) for b in SIZES))

    def fn(x):
        return x * cached(x.shape[0])[0]

    def anew():
        kept[0] += 1
        cached.cache_clear()
        filled(cached, *((b,) for b in SIZES))

    return trace(fn), [*batches(2, 3, 4, 5), anew, *batches(2, 3, 4), anew, *batches(5, 6, 7, 2)]


@cases(hits=6)
def other_structures(trace):
    def by_parity(n):
        return [n, n + 1] if n % 2 else {"n": n}

    cached = filled(cached_here(by_parity), *((b,) for b in SIZES))

    def fn(x):
        found = cached(x.shape[0])
        return x + (found[1] if isinstance(found, list) else found["n"])

    return trace(fn), batches(2, 3, 4, 5, 6, 7, 3, 5, 2, 4, 6, 7)


@cases(hits=4)
def constants_that_are_none(trace):
    """What another entry has as well is a constant, until it is another one."""

    def limits(n):
        return (n, 8 if n < 5 else 16, "low" if n < 6 else "high", n > 6)

    cached = filled(cached_here(limits), *((b,) for b in SIZES))

    def fn(x):
        n, most, text, large = cached(x.shape[0])
        return x.sum() * n + most, text, large

    return trace(fn), batches(2, 3, 4, 5, 6, 7, 2, 4, 5, 6, 7, 3)


@cases(hits=1)
def written_to(trace):
    """The list is that of the cache, for all calls to come."""

    def plan(n):
        return [n, 0]

    cached = filled(cached_here(plan), *((b,) for b in SIZES))

    def fn(x):
        found = cached(x.shape[0])
        found[1] += 1
        return x * found[1]

    return trace(fn), batches(2, 3, 4, 2, 3, 4, 2, 3), lambda: [cached(b) for b in SIZES]


@cases(hits=1)
def appended_to(trace):
    cached = filled(cached_here(lambda n: ([n], {"n": n})), *((b,) for b in SIZES))

    def fn(x):
        found, names = cached(x.shape[0])
        found.append(1)
        names["more"] = len(found)
        return x * len(found)

    return trace(fn), batches(2, 3, 4, 2, 3, 4, 2, 3), lambda: [cached(b) for b in SIZES]


@cases(hits=1)
def returned(trace):
    """A replay would hand out another list than the cache's."""
    cached = filled(cached_here(lambda n: [n]), *((b,) for b in SIZES))

    def fn(x):
        found = cached(x.shape[0])
        return x * 2, found

    def is_own():
        return [fn(torch.ones(2, 3, 4))[1] is cached(2)]

    return trace(fn), batches(2, 3, 4, 2, 3, 4), is_own


@cases(hits=1)
def one_list_twice(trace):
    def twice(n):
        one = [n]
        return one, one

    cached = filled(cached_here(twice), *((b,) for b in SIZES))

    def fn(x):
        first, second = cached(x.shape[0])
        return x * first[0] + (1 if first is second else 0)

    return trace(fn), batches(2, 3, 4, 2, 3, 4)


@cases(hits=6)
def with_a_float_and_a_method(trace):
    class Table:
        @functools.lru_cache(64)  # noqa: B019
        def row(self, n, k):
            return n * k, 0.5 * n

    table = Table()
    for b in SIZES:
        table.row(b, 1.5)

    def fn(x):
        n, half = table.row(x.shape[0], 1.5)
        return x * n - half

    return trace(fn), batches(*SIZES)


@cases(hits=2)
def a_cache_that_is_full(trace):
    """Which entry goes next follows from the calls, replayed ones too."""
    cached = functools.lru_cache(4)(lambda n: n + 1)

    def fn(x):
        return x * cached(x.shape[0])

    return trace(fn), batches(2, 3, 4, 5, 2, 3, 6, 4, 2, 5, 3, 6, 2, 2, 3, 3), lambda: cached.cache_info()


@cases(hits=1)
def a_small_cache_that_is_given_a_shape(trace):
    """The call is a step; the numbers in its arguments are read before it, and the function goes on there."""
    scale, state = [1], {"v": 0}
    cached = functools.lru_cache(1, typed=True)(lambda n, *_: n * scale[0])

    def fn(x):
        state["v"] = cached(x.shape[0], x.shape)
        return x

    def change():
        scale[0] += 1

    def ask():
        cached(4, 4)

    clear = cached.cache_clear
    steps = [*batches(2), lambda: cached(6, 6), *batches(5, 1), clear]
    steps += [*batches(6), clear, change, *batches(7)]
    steps += [ask, *batches(2, 1, 3), change, ask, *batches(1, 5, 1, 1, 4, 3, 6, 5)]
    return trace(fn), steps, lambda: (state, cached.cache_info())


# ---------------------------------------------------------------- types
@cases(hits=3)
def annotations(trace):
    """What is inside Union is made of types, whose hash is code of `typing`."""

    def fn(x):
        def hook(
            one: torch.Tensor | tuple[torch.Tensor, ...],
            other: Union[torch.Tensor, tuple[torch.Tensor, ...]],  # noqa: UP007
            third: Optional[dict[str, tuple[int, ...]]] = None,  # noqa: UP045
        ) -> None:
            return None

        return x * len(hook.__code__.co_varnames)

    return trace(fn), [call(X()) for _ in range(5)]


ALIASES: list[Any] = [tuple[int, ...], tuple[str, ...]]


@cases(hits=2)
def another_alias(trace):
    held = {"alias": ALIASES[0]}

    def fn(x):
        alias = held["alias"]
        made = Union[int, alias]  # noqa: UP007
        return x * 2, made is Union[int, ALIASES[0]]  # noqa: UP007

    def change():
        held["alias"] = ALIASES[1]

    return trace(fn), [call(X()) for _ in range(4)] + [change] + [call(X()) for _ in range(3)]


@cases.parametrize
def test_cached_by_size(make, expected):
    check(make, **expected)


def test_counts_of_a_cache():
    """A replay counts as the call would, one that follows sizes too."""
    plain = filled(functools.lru_cache(64)(lambda n: n + 1), *((b,) for b in SIZES))
    cached = filled(functools.lru_cache(64)(lambda n: n + 1), *((b,) for b in SIZES))
    expected = lazytrace.traced(lambda x: x * cached(x.shape[0]))
    for b in (2, 3, 4, 5, 6, 7, 2, 3):
        expected(torch.ones(b))
        plain(b)
    assert expected.cache_info().hits >= 4
    assert cached.cache_info() == plain.cache_info()


def test_entries_that_calls_make():
    """Each size has no entry at first, nor has the rank: no size is recorded for itself for that."""

    def make(trace):
        rank, plan = (
            cached_here(lambda ndim: Recipe(ndim)),
            cached_here(lambda recipe, n: [recipe.heads, n + 1]),
        )

        def fn(x):
            recipe = rank(x.dim())
            heads, n = plan(recipe, x.shape[0])
            return x.new_ones(n, heads) * x.sum()

        sizes = (5, 8, 0, 1, 2, 11)
        return trace(fn), [call(torch.arange(float(n))) for n in sizes * 3], lambda: plan.cache_info()

    check(make, hits=10, recordings=2)


@pytest.mark.parametrize("clear", [False, True])
def test_an_entry_that_goes(clear):
    cached = filled(functools.lru_cache(64)(lambda n: [n]), *((b,) for b in SIZES))
    fn = lazytrace.traced(lambda x: x * cached(x.shape[0])[0])
    for b in (2, 3, 4, 5):
        assert fn(torch.ones(b))[0] == b
    if clear:
        cached.cache_clear()
    for b in (2, 9, 9, 3):
        assert fn(torch.ones(b))[0] == b
    assert cached.cache_info().currsize == (3 if clear else 7)
