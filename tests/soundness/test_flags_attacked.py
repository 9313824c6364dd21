"""Truth values in entries that are drawn or filled anew, in odder programs than those of test_flags."""

# ruff: noqa: B007, B009, B018, B023, B905, C408, E712, F401, F601, F841, PIE804, RUF005, RUF015, RUF023, RUF034, RUF058, RUF059
# ruff: noqa: SIM102, SIM108, UP031, UP032
from __future__ import annotations

import array
import asyncio
import bisect
import collections
import contextlib
import contextvars
import copy
import dataclasses
import functools
import heapq
import io
import itertools
import json
import logging
import math
import numbers
import operator
import pickle
import random
import struct
import sys
import threading
import types
import warnings
from collections import deque

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.soundness.runner import Holder, agree
from tests.soundness.test_flags import WAYS, Seen, program

ONE = torch.ones(1)


def given_to_a_generator(s, rows):
    def made(done, *rest):
        yield 1.0 - done
        yield done, rest

    return ONE * 1, list(made(*rows[0][2:], *rows[1][2:]))


def given_to_a_generator_by_steps(s, rows):
    def made(reward, done):
        yield 0.0 if done else 1.0
        yield 1 - done

    one = made(*rows[0][1:])
    return ONE * next(one), next(one)


def thrown_into_generators(s, rows):
    def made():
        state, _, done = rows[0]
        try:
            yield 1
        except ValueError:
            yield (done is True, 1.0 - done)

    waiting = made()
    next(waiting)
    return ONE * 1, waiting.throw(ValueError())


def closed_generators(s, rows):
    seen = []

    def made():
        state, _, done = rows[0]
        try:
            yield 1
        finally:
            seen.append(2.0 if done else 3.0)
            seen.append(done)

    waiting = made()
    next(waiting)
    waiting.close()
    return ONE * 1, seen


def context_raises(s, rows):
    seen = []

    @contextlib.contextmanager
    def around(row):
        _, _, done = row
        try:
            yield
        except ZeroDivisionError:
            seen.append("a" if done else "b")
        finally:
            seen.append(1 - done)

    with around(rows[0]):
        1 / 0
    return ONE * 1, seen


def left_by_break(s, rows):
    seen = []

    def made():
        for _, _, done in rows:
            try:
                yield 1
            finally:
                seen.append("a" if done else "b")

    for i, _ in enumerate(made()):
        if i == 1:
            break
    return ONE * 1, seen


async def awaits(row, seen):
    _, _, done = row
    try:
        await asyncio.sleep(0)
    finally:
        seen.append("a" if done else "b")


def thrown_into_coroutines(s, rows):
    seen = []
    for row in rows[:2]:
        waiting = awaits(row, seen)
        waiting.send(None)
        with contextlib.suppress(ValueError):
            waiting.throw(ValueError())
    return ONE * 1, seen


def yields_from(s, rows):
    def inner(row):
        _, _, done = row
        got = yield 1
        return done, got

    def outer():
        _, _, done = rows[1]
        found = yield from inner(rows[0])
        yield found, done

    waiting = outer()
    next(waiting)
    return ONE * 1, waiting.send(5)


async def given_to_coroutines_inner(reward, done):
    return 1.0 - done, done


def given_to_coroutines(s, rows):
    try:
        given_to_coroutines_inner(*rows[0][1:]).send(None)
    except StopIteration as stop:
        return ONE * 1, stop.value


def fresh_list_kept_before(s, rows):
    flags = []
    s.seen.append(flags)
    for _, _, done in rows[:2]:
        flags.append(done)
    return ONE * 1


def fresh_list_under_a_name(s, rows):
    s.last = flags = []
    for _, _, done in rows[:2]:
        flags.append(done)
    return ONE * 1, s.last[0] is True


def fresh_list_in_dict_of_state(s, rows):
    s.by_name["flags"] = flags = []
    for _, _, done in rows[:2]:
        flags.append(done)
    return ONE * 1


def fresh_list_in_object(s, rows):
    made = Holder()
    made.flags = []
    for _, _, done in rows[:2]:
        made.flags.append(done)
    return ONE * 1, made


def fresh_list_in_object_returned(s, rows):
    made = Holder()
    made.flags = []
    for _, _, done in rows[:2]:
        made.flags.append(done)
    return ONE * 1, made, vars(made), made.__dict__["flags"]


def fresh_list_in_object_pickled(s, rows):
    made = Holder()
    made.flags = []
    for _, _, done in rows[:2]:
        made.flags.append(done)
    return ONE * 1, pickle.loads(pickle.dumps(made)).flags


def fresh_list_in_object_shown(s, rows):
    made = Holder()
    made.flags = []
    for _, _, done in rows[:2]:
        made.flags.append(done)
    return ONE * 1, json.dumps(made, default=vars), copy.deepcopy(made).flags


def fresh_list_in_deque(s, rows):
    flags = []
    waiting = deque([flags])
    for _, _, done in rows[:2]:
        flags.append(done)
    return (
        ONE * 1,
        waiting,
        list(itertools.chain.from_iterable(waiting)),
        set(itertools.chain.from_iterable(waiting)),
        str(waiting),
    )


def fresh_list_in_deque_of_numpy(s, rows):
    flags = []
    waiting = deque([flags])
    for _, _, done in rows[:2]:
        flags.append(done)
    return ONE * 1, str(np.array(list(waiting)).dtype), np.array(waiting).tolist()


def fresh_list_in_deque_of_torch(s, rows):
    flags = []
    waiting = deque([flags])
    for _, _, done in rows[:2]:
        flags.append(done)
    return torch.tensor(waiting), pickle.dumps(waiting)


def fresh_list_in_iterators(s, rows):
    flags = [1]
    one, two, three = iter(flags), map(str, flags), zip(flags, flags)
    flags.append(rows[0][2])
    flags.append(rows[1][2])
    return ONE * 1, list(one), list(two), set(three)


def fresh_list_in_iterator_later(s, rows):
    flags = [1]
    kept = itertools.cycle(flags)
    chain = itertools.chain(flags, flags)
    flags.append(rows[0][2])
    return ONE * 1, set(itertools.islice(kept, 4)), set(chain)


def fresh_list_in_partial(s, rows):
    flags = []
    show, total = functools.partial(str, flags), functools.partial(sum, flags)
    method = flags.__len__, flags.copy, flags.__repr__
    flags.append(rows[0][2])
    return ONE * 1, show(), total(), [one() for one in method]


def bound_methods(s, rows):
    flags = [rows[0][2], rows[1][2]]
    count, index, add = flags.count, flags.index, flags.append
    add(rows[0][2])
    return ONE * 1, count(True), index(rows[1][2]), flags[-1] is True, list(map(count, [True, False]))


def bound_append_by_map(s, rows):
    flags = []
    list(map(flags.append, (one[2] for one in rows[:2])))
    collections.deque(map(flags.append, [one[2] for one in rows[:2]]))
    return ONE * 1, flags, flags[0] is True


def annotations(s, rows):
    _, _, done = rows[0]

    exec_globals = {}
    return ONE * 1, annotated(done)


def annotated(done):
    def f(x: done = done):
        return x

    return f.__annotations__, f.__defaults__, f()


def defaults(s, rows):
    _, _, done = rows[0]

    def f(x, flag=done, *, other=rows[1][2]):
        return x, flag, other

    class A:
        flag = done

        def f(self, flag=done):
            return 1.0 - flag

    return ONE * 1, f(1), f.__defaults__, f.__kwdefaults__, A.flag, A().f(), A.f.__defaults__


def sets(s, rows):
    _, _, done = rows[0]
    return ONE * 1, {*rows[0][1:]}, {*rows[0][2:], 1}, frozenset(rows[0][2:]), {rows[0][1:]: 1}, {done: done}


def stars(s, rows):
    return ONE * 1, [*rows[0][1:], *rows[1][1:]], (*rows[0][1:],), {**dict(a=rows[0][2])}, [*(rows[0][2:])]


def dicts(s, rows):
    made = dict(a=rows[0][2], b=rows[0][1:])
    made.update(c=rows[1][2])
    made.setdefault("d", rows[1][2:])
    made |= {"e": rows[0][2]}
    return (
        ONE * 1,
        made,
        list(made.values()),
        made.items(),
        dict.fromkeys(rows[0][1:], 1),
        made["b"][1] is True,
    )


def keyword_arguments(s, rows):
    def f(*args, **named):
        return args, named, named["done"] is True, list(named.values())

    return (
        ONE * 1,
        f(done=rows[0][2]),
        f(*rows[0][1:], **{"done": rows[1][2]}),
        dict(f=f, done=rows[0][2])["done"],
    )


def by_reduce(s, rows):
    flags = [one[2] for one in rows[:3]]
    return (
        ONE * 1,
        functools.reduce(lambda a, b: a and b, flags),
        functools.reduce(operator.or_, flags),
        functools.reduce(lambda total, done: 0.0 if done else total + 1.0, flags, 0.5),
        list(itertools.accumulate(flags, lambda a, b: a + b)),
        list(itertools.starmap(lambda a, b: (a, b is True), zip(flags, flags))),
        sorted(flags, key=functools.cmp_to_key(lambda a, b: b - a)),
        list(filter(lambda done: not done, flags)),
        list(itertools.takewhile(lambda done: not done, flags)),
    )


def by_heaps(s, rows):
    heap = []
    for _, reward, done in rows[:3]:
        heapq.heappush(heap, (done, reward))
    flags = sorted([one[2] for one in rows[:3]])
    bisect.insort(flags, rows[0][2])
    return (
        ONE * 1,
        heapq.heappop(heap),
        flags,
        bisect.bisect(flags, rows[1][2]),
        array.array("b", flags).tolist(),
        struct.pack("???", *[one[2] for one in rows[:3]]),
        heapq.nlargest(1, [one[2] for one in rows[:2]]),
    )


def list_methods(s, rows):
    flags = [one[2] for one in rows[:3]]
    other = list(flags)
    other.extend(flags)
    other += flags
    other *= 2
    other.insert(1, rows[0][2])
    other.sort()
    more = flags[::-1] + [None]
    more[0:1] = flags
    del more[0]
    flags.reverse()
    third = flags.copy()
    third.remove(rows[0][2])
    return ONE * 1, other, more, flags, third, other.index(other[2]), flags[0] is third[0], other[0] is False


def user_lists(s, rows):
    made = collections.UserList([one[2] for one in rows[:2]])
    made.append(rows[0][2])
    chain = collections.ChainMap({"a": rows[0][2]}, {"b": rows[0][1:]})
    return ONE * 1, list(made), made[0] is True, chain["a"], chain["b"], dict(chain)


class Flags(list):
    def add(self, done):
        self.append(done)
        return self


class Pair(tuple):
    __slots__ = ()


def subclasses(s, rows):
    made = Flags()
    for one in rows[:2]:
        made.add(one[2])
    return (
        ONE * 1,
        made,
        Flags(one[2] for one in rows[:2]),
        Pair(rows[0][1:]),
        Pair(rows[0][1:])[1] is True,
        sum(made),
    )


@dataclasses.dataclass
class Data:
    reward: float
    done: bool
    flags: list = dataclasses.field(default_factory=list)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)


def data_classes(s, rows):
    made = Data(*rows[0][1:])
    made.flags.append(rows[1][2])
    other = dataclasses.replace(made, done=rows[1][2])
    return (
        ONE * 1,
        repr(made),
        dataclasses.asdict(made),
        dataclasses.astuple(made),
        other == made,
        made.done is True,
    )


def named_tuples(s, rows):
    made = Seen(*rows[0])
    other = made._replace(done=rows[1][2])
    again = Seen._make(rows[1])
    state, reward, done = other
    return (
        ONE * 1,
        made.done is True,
        other._asdict()["done"],
        again[2],
        again,
        getattr(made, "done"),
        operator.attrgetter("done")(other),
        1.0 - made.done,
        done is False,
        hash(made[1:]) == hash((made.reward, made.done)),
    )


def named_matched(s, rows):
    match Seen(*rows[0]):
        case Seen(done=True, reward=r):
            return ONE * 2, r
        case Seen(state, r, done):
            return ONE * 3, done, r


def mapping_matched(s, rows):
    match {"a": rows[0][2], "b": rows[1][1:]}:
        case {"a": True, "b": (_, x), **rest}:
            return ONE * 2, x, rest
        case {"a": y, **rest}:
            return ONE * 3, y, rest


def star_matched(s, rows):
    match [one[2] for one in rows[:2]]:
        case [first, *rest] if first:
            return ONE * 2, first, rest
        case [x, (True | False) as y]:
            return ONE * 3, x, y


class Slots:
    __slots__ = ("done", "flags", "__weakref__")

    def __init__(self, done, flags):
        self.done = done
        self.flags = flags


def slots(s, rows):
    made = Slots(rows[0][2], [])
    made.flags.append(rows[1][2])
    made.flags += [rows[0][2]]
    return ONE * 1, made.done is True, made.flags, made.flags[0] is True, made


def slots_kept(s, rows):
    made = Slots(rows[0][2], [])
    s.last = made
    made.flags.append(rows[1][2])
    return ONE * 1


VAR = contextvars.ContextVar("var", default=None)


def context_variables(s, rows):
    token = VAR.set((rows[0][2], rows[1][2]))
    found = VAR.get()
    VAR.reset(token)
    return ONE * 1, found, found[0] is True


def nested_function_changes(s, rows):
    total = 0.5
    last = None

    def step(row):
        nonlocal total, last
        _, reward, done = row
        if done:
            total = 0
        last = done
        total = total * 0.5 + reward

    for one in rows[:3]:
        step(one)
    return ONE * total, total, last


def evaluated(s, rows):
    _, _, done = rows[0]
    other = done
    return ONE * 1, eval("done"), eval("other is True"), eval("1.0 - done", {"done": done}), locals()["other"]


def executed(s, rows):
    _, _, done = rows[0]
    space = {"done": done, "rows": rows[:2]}
    exec("x = 1.0 if done else 2.0\ny = [one[2] for one in rows]", space)
    return ONE * space["x"], space["y"], space["y"][0] is True


def recursion(s, rows):
    def walk(at, total):
        if at == 3:
            return total
        _, reward, done = rows[at % len(rows)]
        if done:
            total = 0.0
        return walk(at + 1, total * 0.5 + reward)

    return ONE * walk(0, 1.0)


def finally_and_with(s, rows):
    found = []
    for _, reward, done in rows[:3]:
        try:
            with contextlib.suppress(ZeroDivisionError):
                kept = done
                1 / (reward * 0)
        finally:
            found.append(kept)
        try:
            [done, 1 / 0]
        except ZeroDivisionError as error:
            found.append(1 - done)
            found.append(error.__traceback__.tb_frame.f_locals["done"])
        else:
            found.append("no")
    return ONE * 1, found


def raised_between(s, rows):
    found = []

    def raises(x):
        raise ValueError(x)

    for _, _, done in rows[:3]:
        try:
            found.append((done, True, raises(1)))
        except ValueError:
            x = (True, done)
            found.append(x)
        try:
            y = [done, done, None.x]
        except AttributeError:
            y = [True, False]
        found.append(y)
    return ONE * 1, found


def loops_with_else(s, rows):
    count = 0
    for _, _, done in rows[:4]:
        if done:
            break
        count += 1
    else:
        count = 100
    left = 0.5
    for _, reward, done in rows[:4]:
        if not done:
            continue
        left = left * 0.5 + reward
    i = 0
    while i < 2 and not rows[i][2]:
        i += 1
    return ONE * count, left, i


def conditions(s, rows):
    a, b = rows[0][2], rows[1][2]
    return (
        ONE * 1,
        (1.0 if a else 2.0) if b else (3.0 if a else 4.0),
        max(1.0 if a else 2.0, 3 if b else 4),
        [1.0 if a else 2.0, 1 if b else 2],
        a and b,
        a or 1,
        not a or b,
        a == b,
        a != b,
        a is b,
        a is not b,
        a < b <= True,
        a in (True,),
        (1.0 if a and b else 2.0),
        (1.0 if not a else 2.0),
        (1.0 if a is True else 2.0),
        (1.0 if a == True else 2.0),
        "x" if a else None,
        True if a else None,
        1 if a else True,
        (1,) if a else (2,),
    )


def odd_constants(s, rows):
    a, b = rows[0][2], rows[1][2]
    nan = 1e999 - 1e999 if a else 1.0
    inf = 1e999 if b else -1e999
    zero = -0.0 if a else 0.0
    same = 1.5 if a else 1.5
    big = 99999999999999999999 if a else 1
    edge = 9223372036854775807 if b else -9223372036854775807
    kinds = 1j if a else 2j
    text = f"{zero} {inf} {same} {edge} {big}"
    return ONE * 1, nan != nan, inf, math.copysign(1, zero), same, big, edge, text, kinds, edge + 1, edge * 2


def as_shapes(s, rows):
    x = torch.arange(12.0)
    a, b = rows[0][2], rows[1][2]
    return (
        x[: 3 if a else 5],
        x.reshape(2 if b else 3, -1),
        torch.full((2 - a,), 1.5 if b else 2.5),
        x[1 if a else 2 :: 2 if b else 3],
        x.view(3, 4)[:, 1 if a else 2],
        x.sum(0 if a else -1),
        x.narrow(0, int(a), int(b) + 1),
        x.repeat(1 + a),
    )


def as_keys(s, rows):
    a, b = rows[0][2], rows[1][2]
    names = {1: "one", 2: "two", 0.5: "half", True: "true"}
    key = 1 if a else 2
    return (
        ONE * 1,
        names[key],
        {key: 3},
        names[a + 1],
        {1.0 if b else 0.5},
        ["x", "y", "z"][key],
        "abc"[1 - a],
    )


def operators_of_ints(s, rows):
    a, b = rows[0][2], rows[1][2]
    found = [
        a + b,
        a - b,
        a * b,
        a**b,
        a // 2,
        a % 2,
        a & b,
        a | b,
        a ^ b,
        a << 1,
        a >> 1,
        a & 1,
        a | 2,
        a ^ 1,
    ]
    found += [a + 1.5, 2**a, -a, +a, ~a, abs(a), round(a), divmod(a, 2), pow(a, 2), a / 2, 2.0**a, a + 1j]
    found += [a * "ab", a * [1], (1,) * b, a + np.float32(1.0), np.float64(2) * a, np.int64(2) - b]
    c = a
    c += b
    c &= True
    d = a
    d *= 2.0
    return ONE * 1, [(type(one).__name__, one) for one in found], c, d


def methods_of_bools(s, rows):
    a = rows[0][2]
    return (
        ONE * 1,
        a.real,
        a.numerator,
        a.bit_length(),
        a.__class__.__name__,
        a.__bool__() if hasattr(a, "__bool__") else 0,
        a.to_bytes(1, "big"),
        isinstance(a, (int, numbers.Number)),
        isinstance(a, numbers.Integral),
        type(a),
        callable(a),
        dir(a)[:2],
        id(a) == id(True),
        hash(a),
        a.__eq__(True),
        type(a).__mro__[1],
    )


def texts(s, rows):
    a, b = rows[0][2], rows[1][2]
    out = io.StringIO()
    print(a, [b], rows[0][1:], file=out)
    return (
        ONE * 1,
        out.getvalue(),
        "{} {!r} {:d}".format(a, b, a),
        "%d %r" % (a, b),
        "%(a)s" % {"a": b},
        ",".join(str(one[2]) for one in rows[:2]),
        f"{1 - a} {a:>6} {a=}",
        format(a, ""),
        ascii(b),
        bin(a),
        "x" * a,
    )


def printed(s, rows):
    print(rows[0][2], rows[1][1:])
    return ONE * 1


def warned(s, rows):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.warn(f"{rows[0][2]}", stacklevel=1)
    logging.getLogger("odd").debug("%s", rows[0][2])
    return ONE * 1, [str(one.message) for one in found]


def threads(s, rows):
    found = []
    row = rows[0]

    def work():
        found.append((row[2] is True, 1.0 - row[2]))

    one = threading.Thread(target=work)
    one.start()
    one.join()
    return ONE * 1, found


def errors(s, rows):
    class Odd(Exception):
        def __init__(self, done, *more):
            self.done = done
            self.more = more

    try:
        raise Odd(*rows[0][2:], rows[1][2:])
    except Odd as error:
        return ONE * 1, error.done, error.more, error.args


def escaped(s, rows):
    raise KeyError(rows[0][2], rows[0][1:])


def asserted(s, rows):
    try:
        assert rows[0][2], rows[1][1:]
    except AssertionError as error:
        return ONE * 1, error.args
    return ONE * 2


def walrus_and_stars(s, rows):
    *_, a = rows[0]
    first, *rest, last = rows[1]
    (x, y), z = rows[0][1:], 1
    if (b := rows[1][2]) or (c := rows[0][2]):
        return ONE * 1, a, last, rest, y, b
    return ONE * 2, a, last, rest, y, b, c


def comprehensions(s, rows):
    return (
        ONE * 1,
        [[1.0 if a[2] else 2.0 for a in rows[:2] if not b[2]] for b in rows[:2]],
        {i: one[2] for i, one in enumerate(rows[:2])},
        {one[2] for one in rows[:2]},
        [x for one in rows[:2] for x in one[1:]],
        [(done, not done) for _, _, done in rows[:2]],
        [lambda d=done: d for _, _, done in rows[:2]][0](),
        [f() for f in [lambda: done for _, _, done in rows[:2]]],
    )


def deep_tuples(s, rows):
    done = rows[0][2]
    deep = (((((((((done,),),),),),),),),)
    same = [done] * 3
    both = (done, [done], {"a": [done]})
    x = deep
    while isinstance(x, tuple):
        (x,) = x
    return ONE * 1, x, same, both, copy.deepcopy(both), both[2]["a"][0] is True


def truths(s, rows):
    return (
        ONE * 1,
        bool(rows[0][2:]),
        not [rows[0][2]],
        1 if [rows[0][2]] else 2,
        any([[rows[0][2]]]),
        all(rows[0][2:]),
    )


def by_torch(s, rows):
    a, b = rows[0][2], rows[1][2]
    x = torch.arange(6.0).reshape(2, 3)
    flags = [one[2] for one in rows[:2]]
    return (
        x.sum(1, keepdim=a),
        x[flags],
        x[torch.tensor(flags)],
        torch.where(torch.tensor([a, b, a]), x, -x),
        F.dropout(x, 0.0, training=a),
        x.sort(descending=a)[0],
        torch.zeros(2, requires_grad=b),
        x.std(unbiased=a, dim=0),
        x.index_put((torch.tensor(flags),), torch.tensor(9.0)),
        torch.as_tensor(flags, dtype=torch.int32),
        torch.tensor((a, b)),
        torch.tensor([a, 1]),
        torch.tensor([a, 0.5]),
        torch.tensor([flags, [True, False]]),
        torch.scalar_tensor(a),
        x.new_tensor(flags),
        x == a,
        x + a,
        x.masked_fill(torch.tensor([[a], [b]]), 3.0 if a else 4.0),
    )


def by_torch_later(s, rows):
    flags = [one[2] for one in rows[:2]]
    x = torch.zeros(2, 3)
    x[flags] = 1.0 if flags[0] else 2.0
    x[0, int(flags[1])] = flags[0]
    x[rows[0][2]] += 1
    y = torch.tensor(flags).logical_not()
    return x, y, torch.BoolTensor(flags), torch.stack([torch.tensor(one) for one in flags])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x, *rest, done=None, **more):
        self.last = rest
        return x * (1.0 - rest[0]), done, more


def by_modules(s, rows):
    net = Net()
    made = net(ONE * 2, *rows[0][2:], done=rows[1][2], more=rows[1][1:])
    return made, net.last, net.last[0] is True


def by_training(s, rows):
    net = nn.Dropout(0.0)
    net.training = rows[0][2]
    net.train(rows[1][2])
    x = torch.ones(2, requires_grad=True)
    x.requires_grad_(rows[0][2])
    with torch.set_grad_enabled(rows[1][2]):
        y = x * 2
    return net(x), net.training, y, x.requires_grad, y.requires_grad


def by_numpy(s, rows):
    a, b = rows[0][2], rows[1][2]
    flags = [one[2] for one in rows[:3]]
    return (
        ONE * 1,
        np.logical_not(a),
        np.float32(a),
        np.any(flags),
        np.array(flags, dtype=object).tolist(),
        np.array([a, 1.5]).tolist(),
        np.array([rows[0][1:], rows[1][1:]]).tolist(),
        np.where(np.array(flags), 1, 2).tolist(),
        np.arange(3)[flags].tolist(),
        np.bool_(a),
        np.asarray(flags).dtype.name,
        np.array(flags, np.int8).tolist(),
        np.stack(flags).tolist(),
        np.concatenate([[a], [b]]).tolist(),
        np.full(2, a).tolist(),
        np.array((a, b)).sum().item(),
        np.mean(flags).item(),
        np.array(flags, ndmin=2).tolist(),
        np.array(flags, copy=True).dtype.name,
        np.hstack([flags, flags]).tolist(),
    )


def by_typed_arrays(s, rows):
    flags = [one[2] for one in rows[:3]]
    return (
        ONE * 1,
        np.array(flags, dtype=object)[0] is True,
        np.array(flags, dtype=object).tolist(),
        np.array(flags, dtype=str).tolist(),
        np.array([flags], dtype="U5").tolist(),
        np.array(flags, dtype=bool).tolist(),
        np.asarray(flags, dtype="O").tolist(),
        np.array(flags, dtype="S").tolist(),
        np.vstack(flags).tolist(),
    )


def by_typed_tensors(s, rows):
    flags = [one[2] for one in rows[:2]]
    return (
        torch.Tensor(flags),
        torch.LongTensor([flags]),
        torch.tensor(flags, dtype=None),
        torch.tensor(data=flags),
        torch.as_tensor(flags, dtype=torch.bool),
        torch.tensor(flags, dtype=torch.complex64),
        torch.tensor(flags, device="cpu"),
        torch.tensor(flags, requires_grad=False),
        torch.tensor([flags, (flags[1], flags[0])]),
    )


def by_gradients(s, rows):
    w = torch.ones(2, requires_grad=True)
    loss = sum(
        (w * one[0]).sum() * (0.0 if one[2] else 1.0) + (1 - one[2]) * (w**2).sum() for one in rows[:3]
    )
    if isinstance(loss, torch.Tensor):
        loss.backward()
    return loss, w.grad


def by_optimizers(s, rows):
    w = torch.ones(2, requires_grad=True)
    opt = torch.optim.SGD([w], lr=0.1 if rows[0][2] else 0.2, nesterov=False, maximize=rows[1][2])
    (w * 2).sum().backward()
    opt.step()
    opt.param_groups[0]["lr"] *= 0.5 if rows[1][2] else 2.0
    (w * 3).sum().backward()
    opt.step()
    return w, opt.param_groups[0]["lr"], opt.param_groups[0]["maximize"]


def stops_midway(s, rows):
    _, _, done = rows[0]
    flags = [one[2] for one in rows[:2]]
    row = rows[0][1:]
    scale = 0.0 if done else 1.0
    inverse = not done
    threading.Lock().acquire()
    random.Random(3).random()
    torch.manual_seed(1)
    found = torch.rand(2).tolist()
    s.count += 1
    return (
        ONE * scale,
        done is True,
        inverse is (not done),
        flags,
        row,
        [one is True for one in flags],
        found,
        scale,
    )


def stops_by_gc(s, rows):
    import gc

    _, _, done = rows[0]
    pairs = [(one[2], not one[2]) for one in rows[:2]]
    closure = lambda: (done, pairs)  # noqa: E731
    gc.get_objects()[:1]
    return ONE * 1, closure(), done is True, pairs[0][0] is True


def stops_behind_odd_containers(s, rows):
    done = rows[0][2]
    pair, deep = Pair((done, 1)), [[[[[[[done]]]]]]]
    kept, many = Flags([done]), deque([[done]])
    sys._current_frames()
    x = deep
    while isinstance(x, list):
        (x,) = x
    return ONE * 1, pair, str(pair), pair[0] is True, x is True, kept, many, Seen(*rows[0])[1:]


def deleted_objects(s, rows):
    seen = []

    class Dies:
        def __del__(self):
            _, _, other = rows[1]
            seen.append(5.0 if other else 6.0)

    _, _, done = rows[0]
    value = Dies()
    if done:
        value = 1.0
    else:
        value = 2.0
    return ONE * value, value, seen


def totals_of_many_kinds(s, rows):
    found = []
    for start in (
        0.5,
        2,
        True,
        None,
        "a",
        np.float32(2.5),
        np.float64(1.5),
        torch.ones(1),
        10**30,
        -0.0,
        1e999,
    ):
        total = start
        for _, _, done in rows[:2]:
            if done:
                total = 0
        found.append((type(total).__name__, total))
        total = start
        _, _, done = rows[1]
        if not done:
            total = 1.0
        found.append((type(total).__name__, total))
    return ONE * 1, found


def total_is_a_flag(s, rows):
    total = rows[0][2]
    for _, _, done in rows[1:3]:
        if done:
            total = 0
    other = rows[1][2]
    if rows[0][2]:
        other = False
    return ONE * 1, total, type(total), other


def total_is_undefined(s, rows):
    _, _, done = rows[0]
    if done:
        total = 0.0
    try:
        return ONE * 1, total
    except UnboundLocalError:
        return ONE * 2


def total_is_a_cell(s, rows):
    total = 1.5
    for _, _, done in rows[:2]:
        if done:
            total = 0
    return ONE * 1, (lambda: total)(), [total for _ in range(1)]


def totals_after_loops(s, rows):
    total, other = 0.25, 1
    for _, reward, done in rows[:3]:
        if done:
            total = 0
        other = total
    keep = [total, other]
    total += 0.5
    return ONE * total, keep, other is keep[1], type(other)


def total_by_branches(s, rows):
    total = 0.5
    for i, (_, reward, done) in enumerate(rows[:3]):
        if i == 1 or reward > 1e9:
            total = 7.0
        elif done:
            total = 0.0
        else:
            total = 2.0
        if i != 2:
            if done:
                total = 3
    return ONE * total, total, type(total)


def flags_written(s, rows):
    flags = [one[2] for one in rows[:3]]
    for i in range(3):
        flags[i] = not flags[i]
    flags[0] |= flags[1]
    done = flags[2]
    flags.clear()
    flags.append(done)
    return ONE * (1 - done), flags, flags[0] is True


def last_compared(s, rows):
    same = s.last is rows[0][2], s.last == rows[0][2]
    s.last = rows[0][2]
    return ONE * 1, same


def last_row_compared(s, rows):
    same = s.last is not None and (s.last[1] is rows[0][2], s.last == rows[0][1:])
    s.last = rows[0][1:]
    return ONE * 1, same


def zips(s, rows):
    flags = [one[2] for one in rows[:2]]
    return (
        ONE * 1,
        list(zip(flags, flags, strict=True)),
        list(zip(*rows))[2],
        list(enumerate(flags)),
        list(map(lambda *a: a, flags, flags)),
        list(iter([*flags, None].pop, True))[:0],
        dict(enumerate(flags)),
        list(itertools.pairwise(flags)),
        list(itertools.product(flags, repeat=2)),
        list(itertools.zip_longest(flags, [1])),
        [tuple(one) for one in zip(flags, flags)],
        list(itertools.groupby(flags))[0][0],
        next(iter(flags), None),
        tuple(reversed(flags)),
        min(zip(flags, range(2))),
    )


def many_locals_code():
    lines = ["def many(s, rows):", "    _, _, done = rows[0]"]
    lines += [f"    a{i} = {i}.5" for i in range(300)]
    lines += [
        "    zz = done",
        "    yy = [zz, a299]",
        "    b = 1000.25 if zz else 2000.25",
        "    c = 1.0 - zz",
    ]
    lines += ["    if zz:", "        a298 = 3000.5", "    d = not zz", "    del done"]
    lines += ["    if zz:"] + [f"        a{i} = a{i} + 1" for i in range(150)]
    lines += ["    return torch.ones(1) * b, yy, c, a298, d, a3, zz"]
    space = {"torch": torch}
    exec("\n".join(lines), space)
    return space["many"]


many_locals = many_locals_code()


class Sorted:
    def __init__(self, done):
        self.done = done

    def __lt__(self, other):
        return self.done < other.done

    def __eq__(self, other):
        return self.done == other.done

    def __hash__(self):
        return hash(self.done)


def user_classes(s, rows):
    made = [Sorted(one[2]) for one in rows[:3]]
    return ONE * 1, [one.done for one in sorted(made)], len(set(made)), made[0] == made[1]


def iterators_kept(s, rows):
    one = iter(rows[0][1:])
    next(one)
    s.last = list(one)
    flags = iter([one[2] for one in rows[:2]])
    return ONE * 1, list(flags), tuple(one)


def subscripts(s, rows):
    done = rows[0][2]
    flags = [done, not done]
    pair = (0.5, done)
    return (
        ONE * 1,
        flags[done],
        pair[done],
        flags[-1],
        flags[:done],
        pair[-1:],
        (flags, pair)[0][1] is True,
        rows[done][2],
        rows[1 - done][2],
        {True: 1, False: 2}[done],
        {pair: 1}[pair],
        operator.getitem(flags, 0),
        operator.contains(flags, True),
        operator.concat(flags, flags),
        operator.truth(done),
    )


def swaps(s, rows):
    a, b, c = rows[0][2], rows[1][2], 0.5
    a, b, c = c, a, b
    b, c = c, b
    x = y = z = b
    [p, q] = [b, c]
    return ONE * a, b, c, x is True, z, p, q, (1 - x, y)


def switch_of_state(s, rows):
    s.by_name["flag"] = not s.by_name.get("flag", rows[0][2])
    s.by_name.setdefault("list", []).append(rows[0][2])
    s.by_name["list"] += [one[2] for one in rows[:1]]
    return ONE * s.by_name["flag"], len(s.by_name["list"]), s.by_name["list"][-1] is True


USES = [
    use
    for use in list(globals().values())
    if getattr(use, "__code__", None) and use.__code__.co_varnames[:2] == ("s", "rows")
]


@pytest.mark.parametrize("use", USES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_more_that_looks_at_them(way, use):
    agree(program(way, use))


# What is read once is guarded, so each of these stands alone. a, b: flags of two rows; r: the rest of a row.
EXPRESSIONS = """
[*map(type, [a, b])]
(1.0 if a else 2.0) if b else (3.0 if a else 4.0)
max(1.0 if a else 2.0, 3.5 if b else 4.5)
{1.0 if a else 2.0: 1}
a and b
a or 1
a is b
a < b <= True
a in (True,)
1.0 if a and b else 2.0
1.0 if not a else 2.0
True if a else None
1 if a else True
(1,) if a else (2,)
1e999 - 1e999 if a else 1.0
-0.0 if a else 0.0
math.copysign(1, -0.0 if a else 0.0)
f"{-0.0 if a else 0.0}"
99999999999999999999 if a else 1
(9223372036854775807 if b else -9223372036854775807) + 1
1j if a else 2j
x[: 3 if a else 5]
x.reshape(2 if b else 3, -1)
torch.full((2 - a,), 1.5 if b else 2.5)
torch.full((2,), 1 if b else 2)
x[1 if a else 2 :: 2 if b else 3]
x.view(3, 4)[:, 1 if a else 2]
x.sum(0 if a else -1)
x.repeat(1 + a)
x.narrow(0, int(a), int(b) + 1)
{1: "one", 2: "two"}[1 if a else 2]
{1: "one", 2: "two"}[a + 1]
["x", "y", "z"][1 if a else 2]
"abc"[1 - a]
a + b
a**b
a // 2
a % 2
a & b
a << 1
a & 1
2**a
-a
+a
~a
abs(a)
round(a)
divmod(a, 2)
pow(a, 2)
2.0**a
a + 1j
a * "ab"
a * [1]
(1,) * b
a + np.float32(1.0)
np.float64(2) * a
np.int64(2) - b
np.ones(2) * a
np.ones(2, dtype=bool) * a
a * x
a @ x if False else a - x
1 - (not a)
not not a
type(not a)
type(1 - a)
type(int(a))
float(not a) + int(b)
int(a) is int(a)
a.real
a.numerator
a.bit_length()
a.__class__.__name__
isinstance(a, numbers.Integral)
type(a)
id(a) == id(True)
hash(a)
a.__eq__(True)
"{!r:d}".format(a) if False else "{}".format(a)
"%d %r" % (a, b)
"%(a)s" % {"a": b}
f"{a=}"
f"{1 - a}"
f"{[a]}"
f"{r}"
bin(a)
"x" * a
"x" * (1 + a)
[one := a, one is True]
[lambda d=a: d][0]() is True
[f() for f in [lambda: a]]
[(done, not done) for done in (a, b)]
{*r}
{*r[1:], 1}
frozenset(r[1:])
{r: 1}
[*r]
(*r,)
dict(a=r)
dict(zip("ab", r))
dict([("k", a)])
dict(enumerate(r))
list(dict(a=r).values())
list({"a": [a]}.items())[0][1][0] is True
dict.fromkeys(r, 1)
set(zip([a], [b]))
{pair for pair in zip([a], [b])}
collections.OrderedDict(zip("ab", r))
collections.Counter(r)
sum([[a], [b]], [])
sum([a, b])
min(zip([a, b], range(2)))
sorted(zip([a, b], range(2)))
max([a], [b])
list(zip(r, r, strict=True))
list(iter([a, None].pop, True))
next(iter([a]))
next(iter(r)), next(reversed(r))
next(zip([a], [b]))
next(enumerate([a]))[1] is True
tuple(reversed([a, b]))
list(itertools.pairwise([a, b]))
list(itertools.zip_longest([a], [1, 2]))
list(itertools.islice([a, b], 1))
next(itertools.groupby([a]))[0]
list(itertools.repeat(a, 2))
functools.reduce(operator.or_, [a, b])
functools.reduce(lambda t, d: 0.0 if d else t + 1.0, [a, b], 0.5)
functools.partial(lambda v, w: (v is True, w), a)(b)
functools.partial(lambda *v: v, *r)()
functools.partial(str, [a])()
(lambda *v, **k: (v, k))(*r, **{"a": b})
(lambda v, w: 1.0 if w else 2.0)(*r)
(lambda *v: v)(*[a, b])
(lambda *, k: 1 - k)(**dict(k=a))
(lambda k: [k])(k=a)[0] is True
operator.itemgetter(1)(r)
operator.itemgetter(0, 1)([a, b])
operator.getitem([a], 0)
operator.contains([a], True)
operator.concat([a], [b])
operator.eq(r, r)
operator.is_(a, True)
operator.methodcaller("index", True)([a, True])
[a, b].index(True) if a or b else 5
[a, b, True].index(True)
[a, b].count(True)
[a].copy()
[a, b][::-1]
[a, b][a]
r[1:][0] is True
r[-1:] == (True,)
r + (b,)
(b,) + r
r * 2
[a] * 2
[a] + [b]
(a, [b]) == (True, [False])
[a] == [b]
[a] < [b]
[a] is [b]
not [a]
bool(r)
any([a, b])
all((a, b))
any([[a]])
len([a, b])
Seen(*row).done is True
Seen(*row)._replace(done=b).done
Seen._make(row)
Seen(*row)._asdict()["done"]
Seen(*row)[1:]
hash(Seen(*row)[1:])
repr(Seen(*row)[1:])
getattr(Seen(*row), "done")
Seen(1, 2, a) == Seen(1, 2, True)
Pair(r)
Pair(r)[1] is True
Flags([a]).add(b)
Flags([a]).add(b)[1] is True
Flags().add(b) == [True]
sum(Flags().add(a))
str(Flags().add(a))
collections.UserList([a])[0]
collections.UserList([a]).data
collections.ChainMap({"a": a}, {"b": r})["b"]
Data(*r).done
Data(*r)
repr(Data(*r))
dataclasses.astuple(Data(*r))
Slots(a, [b]).flags[0] is True
Slots(a, [b])
Slots(a, r).flags
[Sorted(a), Sorted(b)][0] < Sorted(b)
Sorted(r).done
types.SimpleNamespace(done=a, row=r).row
str(types.SimpleNamespace(done=a, row=r))
vars(types.SimpleNamespace(row=[a]))
types.MappingProxyType({"a": r})["a"]
{"a": r} | {"b": [a]}
{"a": r} == {"a": (0.5, True)}
deque([a])[0]
deque(r)
deque([r])[0][1] is True
array.array("b", [a, b]).tolist()
struct.pack("??", a, b)
struct.pack("2b", *[a, b])
bytes([a, b])
heapq.nlargest(1, [a, b])
heapq.merge([a], [b]).__next__()
bisect.bisect([False, a, True], b)
bisect.bisect([False, True], a)
json.dumps([a])
json.dumps({"a": r})
pickle.dumps(r)
copy.copy(r)
copy.deepcopy([r])
copy.deepcopy({"k": [a]})["k"][0] is True
eval("a", {"a": a})
eval("1.0 - a", {"a": a})
eval("r[1] is True", {"r": r})
eval("a")
torch.tensor([a, b])
torch.tensor((a, b))
torch.tensor([a, 1])
torch.tensor([a, 0.5])
torch.tensor([[a, b], [True, False]])
torch.tensor([[a], [b]])
torch.tensor([[a], (b,)])
torch.tensor([a, b], dtype=None)
torch.tensor([a, b], dtype=torch.int32)
torch.tensor([a, b], dtype=torch.bool)
torch.tensor([a, b], dtype=torch.complex64)
torch.tensor([a, b], dtype=torch.float, requires_grad=True)
torch.tensor([a, b], device="cpu")
torch.tensor([a, b], requires_grad=False)
torch.tensor(data=[a, b])
torch.tensor(data=[a, b], dtype=torch.float)
torch.tensor(dtype=torch.float, data=[a, b])
torch.tensor(*[[a, b]])
torch.tensor(a)
torch.tensor(a, dtype=torch.float)
torch.tensor(())
torch.as_tensor([a, b], dtype=torch.bool)
torch.as_tensor([a, b], device="cpu", dtype=torch.float)
torch.Tensor([a, b])
torch.LongTensor([[a], [b]])
torch.ByteTensor([a, b])
torch.BoolTensor([a, b])
torch.HalfTensor([a, b])
torch.scalar_tensor(a)
torch.asarray([a, b])
torch.asarray([a, b], dtype=torch.float)
torch.stack([torch.tensor(one) for one in [a, b]])
x.new_tensor([a, b])
x.new_full((2,), a)
x[[a, b] * 6]
x.reshape(2, 6)[[a, b]]
x.view(2, 6)[torch.tensor([a, b])]
x.view(2, 6)[a]
x.view(2, 6)[a, 1]
x.view(2, 6)[(a, 1)]
x.view(2, 6)[int(a), 1]
torch.where(torch.tensor([a, b]), 1.0, 2.0)
torch.where(torch.tensor([a, b]), 1.0 if a else 2.0, 2.0)
F.dropout(x, 0.0, training=a)
x.view(3, 4).sort(descending=a)[0]
x.sum(0, keepdim=a)
x.sum(0, a)
torch.zeros(2, requires_grad=a)
torch.zeros(2).requires_grad_(a).requires_grad
x.view(2, 6).std(unbiased=a, dim=0)
x == a
x + a
x * (not a)
torch.add(x, a)
torch.add(x, x, alpha=1 - a)
torch.mul(x, 1 if a else 2)
x.clamp(0.5 if a else 1.5, 7 if b else 8)
x.index_fill(0, torch.tensor([a, b], dtype=torch.long), 9.0)
torch.pow(x, 2 if a else 3)
x ** (2 if a else 3)
x ** (2.0 if a else 0.5)
x.transpose(0, 0 if a else -1)
x.view(3, 4).flip([0 if a else 1])
x.view(3, 4).roll(1 if a else 2, 0)
torch.linspace(0, 1 if a else 2, 3)
torch.arange(3 if a else 4)
torch.arange(0, 2.0 if a else 3.0)
nn.functional.one_hot(torch.tensor([a, b], dtype=torch.long), 2)
nn.functional.leaky_relu(x, 0.5 if a else 0.25)
nn.functional.pad(x, (1 if a else 2, 0))
nn.Linear(2, 2, bias=a).bias is None
nn.Linear(1 if a else 2, 3).weight.shape
nn.Dropout(0.0 if a else 1.0)(x)
nn.Sequential(nn.Flatten(0)).train(a).training
torch.manual_seed(3 if a else 4).initial_seed()
torch.randn(2, generator=torch.Generator().manual_seed(3 if a else 4))
torch.rand(2 if a else 3).shape
torch.vmap(lambda v: v * (1.0 if a else 2.0))(x)
torch.vmap(lambda v, w: v * (1.0 if w[1] else 2.0), in_dims=(0, None))(x, r)
torch.func.grad(lambda v, w: (v * (1.0 - w[1])).sum())(x, r)
torch.utils._pytree.tree_map(lambda v: v, [a, r])
torch.utils._pytree.tree_flatten({"a": r})[0]
torch.autograd.functional.jacobian(lambda v: v * (1.0 - a), x[:2])
torch.nn.utils.parameters_to_vector([x * (1 - a)])
Net()(x, a, done=b, more=r)
Net()(x, *[a, b])
np.logical_not(a)
np.float32(a)
np.any([a, b])
np.array([a, b]).tolist()
np.array([a, b], dtype=object).tolist()
np.array([a, b], dtype=object)[0] is True
np.array([a, b], dtype="O").tolist()
np.array([a, b], dtype=str).tolist()
np.array([a, b], dtype="S").tolist()
np.array([a, b], dtype="f4").tolist()
np.array([a, b], dtype=bool).tolist()
np.array([a, b], dtype=np.bool_).tolist()
np.array([a, b], dtype=float).tolist()
np.array([a, b], dtype=int).tolist()
np.array([a, b], dtype=np.dtype("int8")).tolist()
np.array([a, b], dtype=None).tolist()
np.array([a, b], np.int8).tolist()
np.array(object=[a, b], dtype=np.float32).tolist()
np.array([a, b], dtype=np.float32, ndmin=2).tolist()
np.array([a, 1.5]).tolist()
np.array([r, r]).tolist()
np.asarray((a, b)).tolist()
np.asarray([a, b]).dtype.name
np.asanyarray([a, b]).tolist()
np.stack([a, b]).tolist()
np.vstack([a, b]).dtype.name
np.vstack([a, b], dtype=np.float32).tolist()
np.vstack([a, b], dtype=np.uint8).tolist()
np.hstack([[a], [b]]).tolist()
np.stack([a, b], axis=0).tolist()
np.concatenate([[a], [b]]).tolist()
np.full(2, a).tolist()
np.full(2, 1 if a else 2).tolist()
np.where([a, b], 1, 2).tolist()
np.arange(2)[[a, b]].tolist()
np.mean([a, b]).item()
np.sum([a, b]).item()
np.bool_(a)
np.invert([a, b]).tolist()
np.float32(1.0) * a
np.float32(0.5 if a else 2.0)
np.maximum(1.0 if a else 2.0, 1.5)
np.array(1.0 if a else 2.0)
torch.from_numpy(np.array([a, b]))
torch.from_numpy(np.array([[a], [b]], dtype=np.float32))
torch.tensor(np.array([a, b]))
random.Random(3 if a else 4).random()
isinstance(r, collections.abc.Sequence)
isinstance([a], collections.abc.Iterable)
math.isnan(1.0 if a else 2.0)
math.prod([a, b])
math.fsum([a, b])
math.sqrt(4.0 if a else 9.0)
math.floor(1.5 if a else 2.5)
range(2 if a else 3)
list(range(1 + a))
slice(a, b)
complex(a, b)
str(a)
str(r)
repr([a])
ascii(b)
",".join(map(str, [a, b]))
",".join([str(one) for one in r])
"%s" % [a]
"{0[1]}".format(r)
format(a)
str([1.0 if a else 2.0])
(1.0 if a else 2.0).is_integer()
(1 if a else 2).bit_length()
(0.5 if a else 2.0) == 0.5
(0.5 if a else 2.0) is None
(2.0 if a else 3.0) > (2.5 if b else 1.5)
(2.0 if a else 3.0) // 2
-(2 if a else 3)
not (0 if a else 3)
[5, 6][0 if a else 1]
(0 if a else 1) or "zero"
bool(0.0 if a else 1.0)
int(0.5 if a else 1.5)
str(1 if a else 2)
(1 if a else 2) + (0.5 if b else 0.25)
sum([1 if a else 2, 0.5 if b else 3.0])
[1 if a else 2, 1 if a else 2].count(1)
(1 if a else 2) in (1,)
isinstance(1 if a else 2, float)
type(1.0 if a else 2.0)
divmod(7 if a else 8, 2)
round(0.5 if a else 1.5)
hash(1.0 if a else 2.0)
json.dumps(1.0 if a else 2.0)
copy.copy(1.0 if a else 2.0)
(lambda v: v)(1.0 if a else 2.0)
[v for v in (1.0 if a else 2.0, b)]
"""


def program_of(text):
    space = dict(globals())
    body = "row = rows[0]; _, _, a = row; _, _, b = rows[1]; r = row[1:]; x = torch.arange(12.0)"
    code = f"def use(s, rows):\n    {body}\n    return ONE * 1, ({text})\n"
    exec(compile(code, "<expression>", "exec"), space)
    return space["use"]


@pytest.mark.parametrize("text", EXPRESSIONS.strip().splitlines())
@pytest.mark.parametrize("way", ["drawn", "looped"])
def test_expressions(way, text):
    agree(program(way, program_of(text)))
