"""Functions whose `functools` cache has no entry for a size: it is made, and is that of the plain call."""

from __future__ import annotations

import functools
import gc

import torch
from torch import nn

from tests.soundness.runner import Cases, call, check

cases = Cases()
SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 2, 10, 11, 3, 12, 13)
NO_ENTRY = "calls a function with a functools cache, which has no entry for the call"
WORLD = {"k": 1, "log": 0}


def rows(*sizes):
    return [call(torch.arange(n * 3.0).view(n, 3)) for n in sizes]


def plan(n, shape, kind):
    """Lists, tuples, dicts, constants, numbers: all that a step makes anew."""
    half = n // 2
    return [n, half, -1], (shape[0] * 2, 0.5), {"kind": kind, 1: n}, None, True, "a" * 3


def kinds_of(value):
    """Which no number that stands for another one may be found in."""
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(kinds_of, value)]
    if isinstance(value, dict):
        return [(k, kinds_of(v)) for k, v in value.items()]
    return type(value).__name__


@cases(hits=11)
def each_size_is_new(trace):
    cached = functools.lru_cache(None)(plan)

    def fn(x):
        sizes, (double, half), names, *_ = cached(x.shape[0], x.shape, "k")
        return x.sum() * sizes[1] + double * half + names[1]

    return trace(fn), rows(*range(2, 16)), lambda: cached.cache_info()


@cases(hits=10)
def what_lies_in_the_cache(trace):
    cached = functools.lru_cache(64)(plan)

    def fn(x):
        return x * cached(x.shape[0], x.shape, "k")[0][0]

    def entries():
        found = [cached(n, torch.Size((n, 3)), "k") for n in sorted({*SIZES})]
        return found, list(map(kinds_of, found)), cached.cache_info()

    return trace(fn), rows(*SIZES), entries


@cases(hits=10)
def twice_in_a_call(trace):
    """The second call finds the entry of the first."""
    cached = functools.lru_cache(64)(plan)

    def fn(x):
        first = cached(x.shape[0], x.shape, "k")[0]
        second = cached(x.shape[0], x.shape, "k")[0]
        other = cached(x.shape[0], x.shape, "other")[0]
        return x * first[0] + second[1] - other[1], first is second

    return trace(fn), rows(*SIZES), lambda: cached.cache_info()


@cases(hits=8)
def sizes_that_meet(trace):
    """One size is now another's, and now is not: whether there is an entry for it follows from that."""
    cached = functools.lru_cache(64)(lambda n: [n + 1])

    def fn(x, y):
        return x.sum() * cached(x.shape[0])[0] + y.sum() * cached(y.shape[0])[0]

    pairs = [
        (2, 3),
        (3, 4),
        (5, 5),
        (6, 2),
        (7, 7),
        (8, 9),
        (9, 10),
        (11, 11),
        (4, 12),
        (13, 14),
        (15, 16),
        (17, 17),
    ]
    steps = [call(torch.ones(a, 2), torch.ones(b, 2)) for a, b in pairs]
    return trace(fn), steps, lambda: cached.cache_info()


@cases(hits=8)
def entries_that_go(trace):
    """Which entry a full cache drops follows from all calls."""
    cached = functools.lru_cache(9)(lambda n: (n, n * 2))

    def fn(x):
        return x * cached(x.shape[0])[1]

    steps = rows(*range(2, 14), 2, 5, 13, 6, 2, 7, 14, 3)
    return (
        trace(fn),
        steps,
        lambda: (cached.cache_info(), [cached(n) for n in (2, 3, 14)], cached.cache_info()),
    )


@cases(hits=8)
def cleared_between_calls(trace):
    cached = functools.lru_cache(64)(lambda n: [n, WORLD["k"]])

    def fn(x):
        n, k = cached(x.shape[0])
        return x * n + k

    def change():
        WORLD["k"] += 1

    def back():
        WORLD["k"] = 1

    clear = cached.cache_clear
    steps = [
        back,
        *rows(2, 3, 4, 5),
        clear,
        *rows(2, 3, 6),
        change,
        *rows(2, 6, 7, 8),
        clear,
        *rows(7, 8, 9, 3),
        back,
    ]
    return trace(fn), steps, lambda: cached.cache_info()


@cases(hits=6)
def what_the_function_reads(trace):
    """A global that it reads is read by a call without an entry alone."""
    cached = functools.lru_cache(64)(lambda n: n * WORLD["k"])

    def fn(x):
        return x * cached(x.shape[0])

    def change():
        WORLD["k"] = 7

    def back():
        WORLD["k"] = 1

    steps = [back, *rows(2, 3, 4), change, *rows(2, 3, 5, 6, 7), back, *rows(5, 6, 8, 9, 10, 2), back]
    return trace(fn), steps, lambda: cached.cache_info()


@cases(hits=6)
def what_the_function_writes(trace):
    log, count = [], {"n": 0}

    def noted(n):
        count["n"] += 1
        log.append(n)
        return n + count["n"]

    cached = functools.lru_cache(64)(noted)

    def fn(x):
        before = count["n"]
        y = x * cached(x.shape[0]) + before
        return y, count["n"]

    return trace(fn), rows(*SIZES, 3, 9, 14, 15), lambda: (log, count, cached.cache_info())


@cases(hits=6)
def it_raises(trace):
    def checked(n):
        if n % 4 == 0:
            raise ValueError(f"not {n}")
        return [n, n // 2]

    cached = functools.lru_cache(64)(checked)

    def fn(x):
        return x * cached(x.shape[0])[1]

    return trace(fn), rows(2, 3, 5, 4, 6, 7, 8, 4, 9, 10, 11, 12, 13, 4), lambda: cached.cache_info()


@cases(hits=6)
def it_raises_and_is_caught(trace):
    def checked(n):
        if n % 4 == 0:
            raise ValueError(n)
        return [n, n // 2]

    cached = functools.lru_cache(64)(checked)

    def fn(x):
        try:
            n = cached(x.shape[0])[1]
        except ValueError as error:
            n = -error.args[0]
        return x * n

    return trace(fn), rows(2, 3, 5, 4, 6, 7, 8, 4, 9, 10, 11, 12, 13, 4, 16), lambda: cached.cache_info()


@cases(hits=6)
def it_calls_itself(trace):
    @functools.lru_cache(64)
    def steps(n):
        return 0 if n <= 1 else 1 + steps(n // 2)

    def fn(x):
        return x * steps(x.shape[0])

    return (
        trace(fn),
        rows(2, 3, 4, 5, 8, 9, 7, 16, 6, 12, 13, 2, 15, 10, 11, 14, 30, 31, 29),
        lambda: steps.cache_info(),
    )


@cases(hits=8)
def a_method(trace):
    class Table:
        def __init__(self, step):
            self.step = step

        @functools.lru_cache(64)  # noqa: B019
        def row(self, n):
            return [n * self.step, n]

    table = Table(2)

    def fn(x):
        wide, n = table.row(x.shape[0])
        return x * wide - n

    def other():
        nonlocal table
        table = Table(3)

    return trace(fn), [*rows(*SIZES), other, *rows(2, 20, 21, 22, 3)], lambda: Table.row.cache_info()


@cases(hits=8)
def other_caches(trace):
    """What is under the name is another cache, of another function or of the same one."""

    def double(n):
        return n * 2

    caches = [
        functools.lru_cache(64)(double),
        functools.lru_cache(64)(lambda n: n * 3),
        functools.lru_cache(64)(double),
    ]
    held = {"cached": caches[0]}

    def fn(x):
        return x * held["cached"](x.shape[0])

    def put(which):
        return lambda: held.update(cached=caches[which])

    steps = [
        *rows(*range(2, 10)),
        put(1),
        *rows(2, 3, 11),
        put(2),
        *rows(2, 3, 12, 13),
        put(0),
        *rows(4, 14, 15),
    ]
    return trace(fn), steps, lambda: [one.cache_info() for one in caches]


@cases(hits=2)
def another_function_is_shown(trace):
    """What it calls is not what it shows under `__wrapped__`."""
    cached = functools.lru_cache(64)(lambda n: n * 2)
    shown = cached.__wrapped__

    def fn(x):
        return x * cached(x.shape[0])

    def hide():
        cached.__wrapped__ = lambda n: n * 100

    def show():
        cached.__wrapped__ = shown

    steps = [*rows(*range(2, 7)), hide, *rows(2, 3, 11, 12, 13), show, *rows(4, 14, 15)]
    return trace(fn), steps, lambda: cached.cache_info()


@cases(hits=1)
def written_to(trace):
    cached = functools.lru_cache(64)(lambda n: [n, 0])

    def fn(x):
        found = cached(x.shape[0])
        found[1] += 1
        return x * found[1]

    return trace(fn), rows(2, 3, 4, 2, 3, 4, 5, 5, 2, 3), lambda: [cached(n) for n in range(2, 6)]


@cases(hits=1)
def returned(trace):
    """A replay would hand out another list than the cache's."""
    cached = functools.lru_cache(64)(lambda n: [n])

    def fn(x):
        found = cached(x.shape[0])
        return x * 2, found

    return trace(fn), rows(2, 3, 4, 2, 3, 4, 5, 6), lambda: [fn(torch.ones(2, 3))[1] is cached(2)]


@cases(hits=1)
def kept(trace):
    cached = functools.lru_cache(64)(lambda n: [n])
    held = {"last": None}

    def fn(x):
        held["last"] = cached(x.shape[0])
        return x * 2

    return trace(fn), rows(2, 3, 4, 2, 3, 4, 5, 6), lambda: [held["last"] is cached(n) for n in (4, 5, 6)]


@cases(eager="cached-function")
def kept_by_the_function(trace):
    """It has put what it gives elsewhere, too: that is the list of the cache."""
    table = {}

    def noted(n):
        made = table[n] = [n, 0]
        return made

    cached = functools.lru_cache(64)(noted)

    def fn(x):
        return x * cached(x.shape[0])[0] + table[x.shape[0]][1]

    def write():
        for n in list(table):
            cached(n)[1] += 1

    return trace(fn), [*rows(2, 3, 4), write, *rows(2, 3, 4, 5, 6, 5), write, *rows(6, 5, 7)], lambda: table


@cases(hits=3)
def tensors_in_it(trace):
    """A mask is made once for each size; what holds it is the cache."""
    cached = functools.lru_cache(64)(lambda n: torch.ones(n, n).tril())

    def fn(x):
        return cached(x.shape[0]) @ x

    return trace(fn), rows(2, 3, 4, 2, 3, 4, 5, 5, 2, 3, 5), lambda: cached.cache_info()


@cases(hits=2)
def types_are_told_apart(trace):
    cached = functools.lru_cache(64, typed=True)(lambda n: n * 2)

    def fn(x):
        return x * cached(x.shape[0])

    steps = [*rows(2, 3, 4, 2, 3, 4), lambda: cached(2.0), *rows(2, 5, 5, 6)]
    return trace(fn), steps, lambda: (cached.cache_info(), cached(2.0), cached(2), cached.cache_info())


@cases(hits=9)
def a_step_of_training(trace):
    cached = functools.lru_cache(64)(lambda shape, heads: [shape[0], heads, shape[1] // heads])
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.5)

    def fn(x):
        optimizer.zero_grad()
        loss = net(x).reshape(cached(x.shape, 2)).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    steps = [call(torch.arange(n * 4.0).view(n, 4)) for n in SIZES]
    return trace(fn), steps, lambda: ([*net.parameters()], cached.cache_info())


@cases(hits=9)
def behind_a_write(trace):
    """What the function has written by then the cached one finds, and the other way round."""
    state = {"n": 0, "seen": 0}

    def counted(n):
        return [n, state["n"]]

    cached = functools.lru_cache(64)(counted)

    def fn(x):
        state["n"] += 1
        n, seen = cached(x.shape[0])
        state["seen"] = seen
        return x * n + seen

    return trace(fn), rows(*SIZES, 3, 14, 15, 4), lambda: (state, cached.cache_info())


def entries_of(cache):
    """The lists that lie in it, by the tests of which one is another, without a call."""
    (entries,) = (
        part for part in gc.get_referents(cache) if type(part) is dict and "__wrapped__" not in part
    )
    return list(entries.values())


@cases(hits=10)
def a_list_of_state(trace):
    """The function gives one that lies elsewhere: the cache holds that, and not another."""
    table = [1.0, 2.0]
    cached = functools.lru_cache(None)(lambda n: table)

    def fn(x):
        return x * cached(x.shape[0])[0]

    return trace(fn), rows(*SIZES), lambda: [entry is table for entry in entries_of(cached)]


@cases(eager=NO_ENTRY)
def an_entry_of_another_cache(trace):
    inner = functools.lru_cache(None)(lambda n: [n, n])
    cached = functools.lru_cache(None)(lambda n: {"inner": inner(n // 2)})

    def fn(x):
        return x * cached(x.shape[0])["inner"][0]

    def same():
        lists = entries_of(inner)
        return [any(entry["inner"] is one for one in lists) for entry in entries_of(cached)]

    return trace(fn), rows(*SIZES), same


@cases(hits=9)
def a_tuple_of_state(trace):
    pair = (2.0, 3.0)
    cached = functools.lru_cache(None)(lambda n: [n, pair])

    def fn(x):
        return x * cached(x.shape[0])[1][0]

    return trace(fn), rows(*SIZES), lambda: [entry[1] is pair for entry in entries_of(cached)]


@cases(hits=1)
def the_call_has_written_to_the_entry(trace):
    """A replay writes it when its steps are done: they would find what was there before."""
    table = [1.0, 2.0]
    cached = functools.lru_cache(None)(lambda n: table)
    for n in range(20):
        cached(n)

    def fn(x):
        table[0] = x.shape[0] * 2
        return x * cached(x.shape[0])[0]

    return trace(fn), rows(*SIZES), lambda: table


@cases(hits=1)
def the_function_makes_its_own_entry(trace):
    """A cache without a limit keeps what was made last."""
    deep = []

    def plan(n):
        deep.append(n)
        return [cached(n)[0] + 1] if len(deep) < 2 else [n]

    cached = functools.lru_cache(None)(plan)

    def fn(x):
        deep.clear()
        return x * cached(x.shape[0])[0]

    return trace(fn), rows(*SIZES), lambda: (entries_of(cached), cached.cache_info())


@cases(hits=4)
def entries_that_no_step_gives(trace):
    """There is one, so the function does not run: it lies too deep, holds a tensor, or is an Ellipsis."""
    made = []

    def plan(n):
        made.append(n)
        if n > 6:
            return [[[[[[[[n]]]]]]]]
        return {3: ..., 5: torch.ones(2), 6: NotImplemented}.get(n, n)

    cached = functools.lru_cache(64)(plan)

    def fn(x):
        WORLD["log"] += 1
        found = cached(x.shape[0])
        return x * found if isinstance(found, int) else x + 1

    def entries():
        return made, [type(entry).__name__ for entry in entries_of(cached)], cached.cache_info()

    return trace(fn), rows(4, 2, 8, 3, 5, 6, 9, 8, 3, 5, 6, 4, 7, 10, 7, 3, 6, 8, 2, 5, 11, 12), entries


@cases(hits=3)
def caches_that_tell_types_apart_behind_entries(trace):
    """The function runs where a replay has found an entry before, and what the call has counted stays."""
    cached = functools.lru_cache(None, typed=True)(lambda n: [n])
    world = {"calls": 0}
    for n in (2, 3, 4):
        cached(n)

    def fn(x):
        world["calls"] += 1
        x = x + 1
        print(world["calls"])
        return x * cached(x.shape[0])[0]

    return trace(fn), rows(2, 3, 4, 5, 3, 6, 2, 7, 7), lambda: (world, cached.cache_info())


@cases(eager="compares the identity of two values of type float")
def numbers_that_were_kept(trace):
    """Which object a number of the cache is shows."""

    def plan(n):
        drawn = torch.rand(()).item()
        return max(n * 0.5, max(n - 2, drawn))

    cached = functools.lru_cache(64)(plan)

    def fn(x):
        first = cached(x.shape[0])
        return x.sum() + (cached(x.shape[0]) is first)

    return trace(fn), rows(*SIZES), lambda: cached.cache_info()


@cases(hits=3)
def one_list_in_two_caches(trace):
    """What the one keeps the other one keeps, too, and whoever writes to it writes to that of both."""
    inner = functools.lru_cache(64)(lambda n: [n])
    outer = functools.lru_cache(64)(lambda n: inner(n))

    def fn(x, y):
        first = inner(y.shape[0])
        z = x.sum() * first[0] + len(first)
        found = outer(x.shape[0])
        if x.shape[0] > 5:
            found.append(1)
        return z

    sizes = [
        (2, 3),
        (3, 2),
        (6, 3),
        (4, 6),
        (7, 7),
        (5, 7),
        (5, 6),
        (2, 7),
        (3, 4),
        (8, 9),
        (5, 8),
        (4, 3),
        (3, 5),
    ]
    steps = [call(torch.ones(a, 2), torch.ones(b, 2)) for a, b in sizes]
    return trace(fn), steps, lambda: [inner(n) is outer(n) for n in range(2, 9)]


@cases(hits=8)
def lists_of_before(trace):
    """What it gives holds a list, a dict and a tuple of an object's: the same ones for all sizes."""

    class Recipe:
        order, added, pair = [1, 0], {}, (1, 2)

    recipe = Recipe()
    cached = functools.lru_cache(64)(lambda recipe, n: ([n], recipe.order, recipe.added, recipe.pair, (0, 1)))

    def fn(x):
        (n,), order, added, pair, fixed = cached(recipe, x.shape[0])
        return x.permute(order).reshape(-1, n) + len(added) + pair[0] - fixed[0]

    def are_one():
        found = [cached(recipe, n) for n in range(2, 12)]
        parts = [(row[1] is recipe.order, row[2] is recipe.added, row[3] is recipe.pair) for row in found]
        return parts, [row[4] is found[0][4] for row in found], cached.cache_info()

    def change():
        recipe.order.reverse()
        recipe.added["k"] = len(recipe.added)

    return trace(fn), [*rows(*SIZES[:9]), change, *rows(2, 3, 10, 11), change, *rows(12, 4, 13)], are_one


@cases(hits=1)
def objects_beside_entries(trace):
    """An object that a guard finds, and behind it an entry that has gone."""
    log, thing = [], object()
    plan = functools.lru_cache(64)(lambda n: slice(None))

    @functools.lru_cache(None)
    def things(n):
        log.append(n)
        return thing

    def fn(x, y):
        z = x.sum() + y.sum()
        things(3)
        rows = plan(3)
        things(y.shape[0])
        return z + x[rows].sum()

    sizes = [(6, 6), (6, 11), (5, 2), (6, 11), (4, 2), (11, 2), (5, 4), (3, 4), (6, 8)]
    steps = [call(torch.ones(a, 2), torch.ones(b)) for a, b in sizes]
    last = [plan.cache_clear, call(torch.ones(8, 2), torch.ones(4)), call(torch.ones(7, 2), torch.ones(11))]
    return trace(fn), [*steps, *last], lambda: (log, plan.cache_info(), things.cache_info())


@cases.parametrize
def test_entries_made(make, expected):
    check(make, **expected)
