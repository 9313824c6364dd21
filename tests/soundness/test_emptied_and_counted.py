"""Lists that a call empties and fills, dicts that it takes entries from, and entries of dicts and lists under
keys that are counted."""

from __future__ import annotations

import collections
import weakref
from typing import ClassVar

import numpy as np
import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, Holder, X, agree, call, check

cases = Cases()


def other(i):
    """An input of its own for each call."""
    return X(2, 3) * (1 + i / 4) - i / 8


def runs(trace, state, fn, *changes, count=6, watch=None):
    """`count` calls of different tensors, then for each change that and four more calls."""
    steps = [call(other(i)) for i in range(count)]
    for n, change in enumerate(changes):
        steps += [change, *(call(other(20 + 4 * n + i)) for i in range(4))]
    return trace(fn), steps, watch or (lambda: [vars(state)])


def put(d, **entries):
    """One by one: a Counter adds up."""
    for key, value in entries.items():
        d[key] = value


# ---------------------------------------------------------------- lists
def fills(log, x):
    for row in x:
        log.append(row.sum().item())
    return sum(log) / len(log), log[-1], max(log), log[0]


@cases(hits=12)
def emptied_and_filled(trace):
    s = Holder(log=[])

    def fn(x):
        s.log.clear()
        return fills(s.log, x)

    return runs(trace, s, fn, lambda: s.log.append(1.0), lambda: setattr(s, "log", [3.0]))


@cases(hits=8)
def emptied_by_del(trace):
    s = Holder(log=[1.0, 2.0])

    def fn(x):
        del s.log[:]
        return fills(s.log, x)

    return runs(trace, s, fn, lambda: s.log.clear())


@cases(hits=8)
def set_to_another(trace):
    s = Holder(log=[])

    def fn(x):
        s.log[:] = [row.sum().item() for row in x]
        return min(s.log), x * len(s.log)

    return runs(trace, s, fn, lambda: s.log.extend([1.0, 2.0]))


@cases(hits=8)
def deque_that_is_emptied(trace):
    s = Holder(log=collections.deque([1.0], maxlen=2))

    def fn(x):
        s.log.clear()
        s.log.append(x.sum().item())
        return sum(s.log), len(s.log)

    return runs(trace, s, fn, lambda: s.log.append(2.0))


@cases(hits=8)
def emptied_twice(trace):
    s = Holder(log=[])

    def fn(x):
        s.log.append(x.sum().item())
        first = s.log[-1], len(s.log)
        s.log.clear()
        s.log.append(x.mean().item())
        s.log.clear()
        s.log.append(x.max().item())
        return first, list(s.log)

    return runs(trace, s, fn, lambda: s.log.extend([1.0, 2.0]))


@cases(hits=9)
def emptied_when_it_is_full(trace):
    s = Holder(log=[], means=[])

    def fn(x):
        s.log.append(x.sum().item())
        if len(s.log) >= 4:
            s.means.append(sum(s.log) / len(s.log))
            s.log.clear()
        return x * len(s.log)

    return runs(trace, s, fn, count=14)


@cases(hits=8)
def tensors_in_a_list_that_is_emptied(trace):
    s = Holder(log=[])

    def fn(x):
        s.log.clear()
        s.log.append(x.sum())
        s.log.append(x.mean())
        return torch.stack(s.log).sum()

    return runs(trace, s, fn, lambda: s.log.clear())


def empty_first(s, fn):
    def step(x):
        s.log.clear()
        return fn(s, x)

    return step


def alias(s):
    s.other = s.log


class Loud:
    """Tells when it goes."""

    told: ClassVar[list[int]] = []

    def __init__(self, n):
        self.n = n

    def __del__(self):
        Loud.told.append(self.n)


class Sub(list):
    def clear(self):
        super().clear()
        self.append(7.0)


def loop_that_empties(s, x):
    s.log.extend([x.sum().item(), x.mean().item()])
    seen = []
    for one in s.log:
        seen.append(one)
        s.log.clear()
    return seen


def raises(s, x):
    s.log.append(x.sum().item())
    y = torch.linalg.cholesky(torch.eye(2) * x[0, 0])
    s.log.append(2.0)
    return y


def pops(s, x):
    s.log.append(x.sum().item())
    s.log.append(1.0)
    return s.log.pop(), s.log.pop(0), len(s.log)


def set_to_itself(s, x):
    s.log.append(x.sum().item())
    s.log[:] = s.log
    return list(s.log)


def set_to_its_end(s, x):
    s.log.append(x.sum().item())
    s.log[:] = s.log[-2:]
    return sum(s.log)


def set_to_a_generator(s, x):
    s.log[:] = (v + len(s.log) for v in (x.sum().item(), 2.0))
    return list(s.log)


def no_index(s, x):
    try:
        return s.log[0]
    except IndexError as error:
        return str(error), x


def is_handed_out(s, x):
    s.log.append(x.sum().item())
    return s.log, x


def in_another(s, x):
    s.outer = [s.log, x.sum().item()]
    s.log.append(s.outer[1])
    return len(s.outer[0])


@pytest.mark.parametrize(
    "fn",
    [
        loop_that_empties,
        raises,
        pops,
        set_to_itself,
        set_to_its_end,
        set_to_a_generator,
        no_index,
        is_handed_out,
        in_another,
    ],
)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.log.append(4.0),
        lambda s: setattr(s, "log", Sub([1.0])),
        lambda s: setattr(s, "log", collections.deque([1.0], maxlen=3)),
        lambda s: setattr(s, "log", ("a", 1.0)),
        lambda s: s.log.append("a"),
        lambda s: s.log.append([1.0]),
        lambda s: s.log.append(float("nan")),
        alias,
    ],
)
def test_attacks_on_lists(fn, first, change):
    def make(trace):
        s = Holder(log=[])
        step = empty_first(s, fn) if first else lambda x: fn(s, x)
        calls = [call(other(i)) for i in range(4)]
        return trace(step), [*calls, call(-other(0)), *calls, lambda: change(s), *calls], lambda: [vars(s)]

    agree(make)


def test_whose_end_shows():
    def make(trace):
        s = Holder(log=[])
        Loud.told = []

        def fn(x):
            s.log.clear()
            s.log.append(x.sum().item())
            return len(Loud.told), s.log[0]

        def put():
            s.log.append(Loud(len(s.log)))
            s.log.append([Loud(9)])

        calls = [call(other(i)) for i in range(4)]
        return trace(fn), [*calls, put, *calls, put, *calls], lambda: [s.log, Loud.told]

    agree(make)


def test_a_weak_reference_to_what_goes():
    def make(trace):
        s = Holder(log=[], ref=lambda: None)

        def fn(x):
            s.log.clear()
            gone = s.ref() is None
            s.log.append(x.sum().item())
            return gone

        def put():
            one = Holder(a=1)
            s.ref = weakref.ref(one)
            s.log.append(one)

        calls = [call(other(i)) for i in range(4)]
        return trace(fn), [*calls, put, *calls, put, *calls], lambda: [s.log, s.ref() is None]

    agree(make)


def test_opaque_code_that_looks_at_an_emptied_list():
    def make(trace):
        s = Holder(log=[1.0])
        look = lazytrace.opaque(lambda x: x * len(s.log)) if trace.enabled else lambda x: x * len(s.log)

        def fn(x):
            s.log.clear()
            s.log.append(x.sum().item())
            return look(x)

        return runs(trace, s, fn, lambda: s.log.append(1.0))

    agree(make)


# ---------------------------------------------------------------- entries that are taken out
@cases(hits=6)
def popped_and_put_back(trace):
    s = Holder(d={"a": 1.0, "b": 2.0})

    def fn(x):
        v = s.d.pop("a", 0.0)
        s.d["a"] = v + x.sum().item()
        return v, s.d["b"], s.d["a"]

    return runs(trace, s, fn, lambda: s.d.update(b=5.0))


@cases(hits=8)
def last_entry(trace):
    s = Holder(d={"a": 1.0, "b": 2.0})

    def fn(x):
        key, v = s.d.popitem()
        s.d[key] = v + x.sum().item()
        return v, list(s.d)

    return runs(trace, s, fn, lambda: s.d.update(b=5.0))


def pops_all(d, x):
    return [d.pop(k) for k in list(d)], x.sum().item()


def pops_and_sums(d, x):
    d["n"] = d.pop("a") + x.sum().item()
    d["a"] = d["n"]
    return sum(d.values()), list(d.items()), d.get("b"), len(d)


def pops_missing(d, x):
    try:
        return d.pop("z")
    except KeyError as error:
        d["b"] += x.sum().item()
        return error.args


def pops_by_default(d, x):
    return d.pop("z", x), d.pop("z", None), d.setdefault("b", 1.0), {**d}


def pops_under_another_type(d, x):
    d[1] = x.sum().item()
    return d.pop(True), d.pop(1.0, None), list(d)


def pops_until_it_is_empty(d, x):
    found = []
    try:
        while True:
            found.append(d.popitem())
    except KeyError as error:
        return found, str(error), x
    finally:
        d["a"] = x.sum().item()
        d["b"] = 3.0


@pytest.mark.parametrize(
    "fn",
    [pops_all, pops_and_sums, pops_missing, pops_by_default, pops_under_another_type, pops_until_it_is_empty],
)
@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.Counter])
def test_attacks_on_entries(fn, kind):
    def make(trace):
        s = Holder(d=kind({"a": 1.0, "b": 2.0}))

        def fill():
            s.d["a"], s.d["b"] = s.d.get("b", 0.5), s.d.get("a", 0.25)

        calls = [step for i in range(6) for step in (fill, call(other(i)))]
        changes = [
            lambda: put(s.d, c="text"),
            lambda: s.d.pop("c", None),
            lambda: setattr(s, "d", kind(b=1, a=2)),
            lambda: put(s.d, a=X(3)),
            lambda: put(s.d, a=None),
        ]
        return (
            trace(lambda x: fn(s.d, x)),
            [*calls, *(one for c in changes for one in (c, *calls))],
            lambda: [s.d],
        )

    agree(make)


# ---------------------------------------------------------------- keys that are counted
@cases(hits=9)
def history_by_step(trace):
    s = Holder(h={}, n=0)

    def fn(x):
        s.h[s.n] = x.sum().item()
        s.n += 1
        return x * 2

    return runs(trace, s, fn, lambda: s.h.clear())


@cases(hits=8)
def history_by_argument(trace):
    s = Holder(h={"best": 0.0})

    def fn(x, i):
        s.h[i] = x.mean()
        s.h["last"] = x.sum().item()
        s.h[i + 1] = {"loss": x.max().item(), "step": i}
        return s.h["best"], s.h["last"]

    steps = [call(other(i), 2 * i) for i in range(5)]
    again = [call(other(i), i) for i in (3, 3, 2, 1, -1, 2**70)]
    return trace(fn), [*steps, *again], lambda: s.h


@cases(hits=4)
def an_entry_that_is_there(trace):
    """Its place in the dict stays."""
    s = Holder(h={3: "a", 0: "b", 1: "c"}, n=0)

    def fn(x):
        s.h[s.n % 4] = x.sum().item()
        s.n += 1
        return x

    return runs(trace, s, fn, watch=lambda: [list(s.h.items())])


def reads_it(h, n, x):
    h[n] = x.sum().item()
    return h[n]


def reads_a_constant(h, n, x):
    h[n] = x.sum().item()
    return h.get(2), h.get("a"), 2 in h, h.get(True), h.get(1.0)


def sets_constants(h, n, x):
    h[2] = 5.0
    h[n] = x.sum().item()
    h[3] = 6.0
    h["a"] = n
    h[None] = n
    return x


def sets_twice(h, n, x):
    h[n] = 1.0
    h[n + 1] = x.sum().item()
    h[n - 1 + 1] = 2.0
    return x


def counts(h, n, x):
    h[n] = x.sum().item()
    return len(h)


def takes_out(h, n, x):
    h[n] = x.sum().item()
    return h.pop(n), list(h)


def deletes(h, n, x):
    h[n] = x.sum().item()
    h[n + 1] = x
    del h[n]
    return list(h.values())


def goes_through(h, n, x):
    h[n] = x.sum().item()
    return list(h), list(h.items()), {**h}, dict(h), str(list(h.values()))


def asks_before(h, n, x):
    found = h.get(n), 2 in h, len(h)
    h[n] = x.sum().item()
    return found


def raises_midway(h, n, x):
    h[n] = x.sum().item()
    y = torch.linalg.cholesky(torch.eye(2) * x[0, 0])
    h[n + 1] = y
    return y


def goes_on_by_value(h, n, x):
    h[n] = x.sum().item()
    if h and x.mean() > 0:
        h[n + 1] = 1.0
    return x


def another_key(h, n, x):
    h[float(n)] = x.sum().item()
    h[n, 1] = n
    h[str(n)] = n
    h[n > 2] = n
    h[x.sum().item()] = 1
    return x


def keyed_by_a_value(h, n, x):
    h[int(x.sum().item())] = n
    h[x.argmax().item()] = 1.5
    return x


def nested(h, n, x):
    h[n] = {}
    h[n]["loss"] = x.sum().item()
    return x


def updates(h, n, x):
    h[n] = x.sum().item()
    h.update({n: 3.0, 7: 1.0})
    h.setdefault(n, 4.0)
    return x


def in_place(h, n, x):
    h[n] = 1.0
    h[n] += x.sum().item()
    return x


KINDS = [dict, collections.OrderedDict, collections.Counter, lambda *a: collections.defaultdict(list, *a)]


@pytest.mark.parametrize(
    "fn",
    [
        reads_it,
        reads_a_constant,
        sets_constants,
        sets_twice,
        counts,
        takes_out,
        deletes,
        goes_through,
        asks_before,
        raises_midway,
        goes_on_by_value,
        another_key,
        keyed_by_a_value,
        nested,
        updates,
        in_place,
    ],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("passed", [False, True])
def test_attacks_on_keys(fn, kind, passed):
    def make(trace):
        s = Holder(h=kind(), n=0)

        def counting(x):
            s.n += 1
            return fn(s.h, s.n - 1, x)

        step = (lambda x, n: fn(s.h, n, x)) if passed else counting

        def calls(count):
            more = [call(other(i) * (-1) ** (i // 3), *([i % 5] if passed else [])) for i in range(count)]
            return more

        changes = [
            lambda: put(s.h, a=1.0) or s.h.__setitem__(2, 9.0),
            lambda: s.h.clear(),
            lambda: setattr(s, "h", kind({True: 1.0, 2.0: 2.0})),
            lambda: setattr(s, "n", -3),
        ]
        steps = [*calls(9), *(one for change in changes for one in (change, *calls(4)))]
        return trace(step), steps, lambda: [list(s.h.items()), list(map(type, s.h)), s.n]

    agree(make)


@cases(hits=8)
def ring_buffer(trace):
    s = Holder(buffer=[None] * 50, at=0)

    def fn(x):
        s.buffer[s.at] = (x.sum(), x.mean().item())
        s.at = (s.at + 1) % 50
        return x

    return runs(trace, s, fn, lambda: setattr(s, "at", 48), watch=lambda: [s.buffer, s.at])


def goes_round(b, n, x):
    b[n % len(b)] = x.sum().item()
    return x


def beyond_its_end(b, n, x):
    try:
        b[n] = x.sum().item()
    except IndexError as error:
        return str(error), x
    return x * 2


def from_its_end(b, n, x):
    b[-1 - n % len(b)] = x.sum().item()
    return x


def takes_and_puts(b, n, x):
    k = n % len(b)
    old = b[k]
    b[k] = x.sum()
    return old


def puts_and_takes(b, n, x):
    k = n % len(b)
    b[k] = x.sum()
    b[0] = 1.0
    return b[k], b[1], len(b)


def puts_twice(b, n, x):
    b[n % 2] = 1.0
    b[1] = x.mean().item()
    b[(n + 1) % 2] = x.sum().item()
    b[0] = 3.0
    return x


def puts_and_grows(b, n, x):
    b[n % len(b)] = x.sum().item()
    b.append(2.0)
    b[n % len(b)] = n
    return b.pop(0)


def grows_first(b, n, x):
    b.append(None)
    b[n % len(b)] = x.sum().item()
    return b.pop()


def puts_and_goes_through(b, n, x):
    b[n % len(b)] = x.sum().item()
    return list(b), [*b], b[1:]


def swaps(b, n, x):
    i, j = n % len(b), (n + 1) % len(b)
    b[i], b[j] = b[j], b[i]
    return x


def stops_midway(b, n, x):
    b[n % len(b)] = x.sum().item()
    y = torch.linalg.cholesky(torch.eye(2) * x[0, 0])
    b[(n + 1) % len(b)] = y
    return y


def by_a_flag(b, n, x):
    b[n % 3 == 0] = x.sum().item()
    b[n % 2 == 0] = [n, {"n": n}]
    return x


def puts_a_container(b, n, x):
    held = [x.sum()]
    b[n % len(b)] = held
    held.append(n)
    return held


def by_another_way(b, n, x):
    b.__setitem__(n % len(b), x.sum().item())
    list.__setitem__(b, 0, n)
    b.insert(n % len(b), 4.0)
    return b.pop()


class Checked(list):
    def __setitem__(self, index, value):
        super().__setitem__(index, (index, value))


@pytest.mark.parametrize(
    "fn",
    [
        goes_round,
        beyond_its_end,
        from_its_end,
        takes_and_puts,
        puts_and_takes,
        puts_twice,
        puts_and_grows,
        grows_first,
        puts_and_goes_through,
        swaps,
        stops_midway,
        by_a_flag,
        puts_a_container,
        by_another_way,
    ],
)
@pytest.mark.parametrize("kind", [list, Checked, collections.deque])
@pytest.mark.parametrize("passed", [False, True])
def test_attacks_on_indices(fn, kind, passed):
    def make(trace):
        s = Holder(b=kind([0.5, 0.25, "c", None, 2]), n=0)

        def counting(x):
            s.n += 1
            return fn(s.b, s.n - 1, x)

        step = (lambda x, n: fn(s.b, n, x)) if passed else counting

        def calls(count):
            return [call(other(i) * (-1) ** (i // 4), *([i % 7] if passed else [])) for i in range(count)]

        def alias():
            s.other = s.b

        changes = [
            lambda: s.b.append(1.0),
            lambda: setattr(s, "b", kind([1.0, 2.0])),
            lambda: setattr(s, "n", -3),
            alias,
            lambda: setattr(s, "b", [X(3), X(3), X(3)]),
        ]
        steps = [*calls(9), *(one for change in changes for one in (change, *calls(4)))]
        return trace(step), steps, lambda: [s.b, type(s.b), s.n]

    agree(make)


def test_entries_whose_end_shows():
    def make(trace):
        s = Holder(b=[None, None, None], n=0)
        Loud.told = []

        def fn(x):
            s.b[s.n % 3] = x.sum().item()
            s.n += 1
            return len(Loud.told), x

        def fill():
            s.b[:] = [Loud(i) for i in range(3)]

        calls = [call(other(i)) for i in range(4)]
        return trace(fn), [fill, *calls, fill, *calls], lambda: [s.b, Loud.told]

    agree(make)


def test_keys_in_a_dict_that_is_passed():
    def make(trace):
        def fn(h, n, x):
            h[n] = x.sum().item()
            return h

        return trace(fn), [call({0: 1.0, "a": 2.0}, i, other(i)) for i in range(6)]

    agree(make)


def test_keys_and_numpy():
    def make(trace):
        s = Holder(h={}, n=np.int64(0))

        def fn(x):
            s.n = s.n + 1
            s.h[s.n] = x.sum().item()
            return x

        return runs(trace, s, fn, watch=lambda: [list(s.h.items()), list(map(type, s.h))])

    agree(make)


@cases.parametrize
def test_emptied_and_counted(make, expected):
    check(make, **expected)
