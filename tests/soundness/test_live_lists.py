"""Lists and deques that grow, rotate and are read by the function that changes them, or between its calls."""

from __future__ import annotations

import math
import random
import threading
from collections import deque

import numpy as np
import pytest
import torch

from tests.soundness.runner import Cases, X, agree, call, check

cases = Cases()


class Thing:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def other(i):
    """An input of its own for each call."""
    return X() * (1 + i / 4) - i / 8


def steps(count, *changes):
    """`count` calls of different tensors, then for each change that and four more calls."""
    made = [call(other(i)) for i in range(count)]
    for n, change in enumerate(changes):
        made += [change, *(call(other(20 + 4 * n + i)) for i in range(4))]
    return made


def runs(trace, state, fn, *changes, count=6, watch=None):
    return trace(fn), steps(count, *changes), watch or (lambda: [vars(state)])


# ---------------------------------------------------------------- how long it is
@cases(hits=10)
def length_after_an_append(trace):
    s = Thing(log=[])

    def fn(x):
        s.log.append(x.sum().item())
        return x * len(s.log)

    return runs(trace, s, fn, lambda: s.log.clear(), lambda: s.log.extend([1.0, 2.0]), count=6)


@cases(hits=10)
def length_after_a_sum_in_place(trace):
    s = Thing(log=[])

    def fn(x):
        s.log += [x.sum().item(), len(s.log)]
        s.log += (0.5,)
        return x * len(s.log)

    return runs(trace, s, fn, lambda: s.log.clear(), lambda: s.log.extend([1.0, 2.0]), count=6)


@pytest.mark.parametrize("seed", range(6))
def test_tuples_with_nans(seed):
    draw = random.Random(seed)
    pools = [
        [(math.nan if draw.random() < 0.3 else draw.random(), n / 2) for n in range(draw.randint(2, 6))]
        for _ in range(24)
    ]

    def make(trace):
        s = Thing(pool=[(1.0, 2.0)] * 3)

        def fn(x):
            return x, s.pool[-1 - random.randrange(len(s.pool))]

        made = []
        for pool in pools:
            made += [lambda pool=pool: setattr(s, "pool", list(pool)), call(X())]
        return trace(fn), made

    agree(make)


@cases(hits=6)
def a_list_that_is_summed_in_place_under_two_names(trace):
    s = Thing(log=[1.0])
    s.other = s.log

    def fn(x):
        held = s.log
        held += [x.sum().item()]
        return x * len(s.other), held is s.log, s.other is held

    return runs(trace, s, fn, lambda: setattr(s, "other", []), count=6)


class Added(list):
    def __iadd__(self, items):
        self.extend([7.0])
        return [*self, *items]


@pytest.mark.parametrize(
    "items",
    [
        lambda log, v: [],
        lambda log, v: log,
        lambda log, v: {v: 1},
        lambda log, v: "ab",
        lambda log, v: (n for n in (v, v)),
        lambda log, v: [v] * 300,
        lambda log, v: Added([v]),
        lambda log, v: 3,
        lambda log, v: [[v], (v,)],
        lambda log, v: [log],
        lambda log, v: torch.ones(2),
    ],
)
@pytest.mark.parametrize("kind", [list, Added])
def test_sums_in_place(items, kind):
    def make(trace):
        s = Thing(log=kind([1.0]), error="")

        def fn(x):
            try:
                s.log += items(s.log, x.sum().item())
            except TypeError as error:
                s.error = str(error)
            return x * len(s.log)

        return trace(fn), steps(4, lambda: s.log.clear()), lambda: [str(s.log), type(s.log), s.error]

    agree(make)


@cases(hits=7)
def length_before_and_after(trace):
    s = Thing(log=[])

    def fn(x):
        before = len(s.log)
        s.log.append(x.sum().item())
        s.log.append(0.5)
        return x * before + len(s.log)

    return runs(trace, s, fn, lambda: s.log.pop())


@cases(hits=6)
def length_that_is_compared(trace):
    s = Thing(log=[])

    def fn(x):
        s.log.append(x.sum().item())
        return x * 2 if len(s.log) % 4 == 0 else x

    return runs(trace, s, fn, count=12)


@cases(hits=5)
def truth(trace):
    s = Thing(log=[])

    def fn(x):
        y = x * 2 if s.log else x
        s.log.append(x.sum().item())
        return y * 3 if not s.log else y

    return runs(trace, s, fn, lambda: s.log.clear())


@cases(hits=6)
def length_of_a_list_that_others_change(trace):
    s = Thing(log=[1.0])
    made = []
    for i in range(8):
        made += [lambda: s.log.append(2.0), call(other(i))]
    return trace(lambda x: x * len(s.log)), made, lambda: s.log


# ---------------------------------------------------------------- entries
@cases(hits=6)
def last_entries(trace):
    s = Thing(log=[0.5, 1.0])

    def fn(x):
        before = s.log[-1]
        s.log.append(x.sum().item())
        assert s.log[-2] == before
        return x * (s.log[-1] - s.log[-2]) + s.log[0] + s.log[1]

    def swap():
        s.log = [3.0, 4.0]

    return runs(trace, s, fn, swap)


@cases(hits=5)
def what_was_appended_is_the_last(trace):
    s = Thing(log=[0.5])

    def fn(x):
        y = x * 2
        s.log.append(y)
        return s.log[-1] is y, s.log[-1]

    return runs(trace, s, fn, count=8)


@cases(hits=6)
def a_slice_from_the_end(trace):
    s = Thing(log=[1.0, 2.0, 3.0])

    def fn(x):
        s.log.append(x.sum().item())
        recent = s.log[-3:]
        return x * sum(recent) / len(recent), s.log[-3:-1], s.log[:2]

    return runs(trace, s, fn, lambda: s.log.append(7.0))


@cases(hits=5)
def a_slice_of_a_list_that_is_short_at_first(trace):
    s = Thing(log=[])

    def fn(x):
        s.log.append(x.sum().item())
        return sum(s.log[-3:]) / len(s.log[-3:])

    return runs(trace, s, fn, count=10)


@cases(hits=6)
def entries_as_a_tensor(trace):
    s = Thing(log=[float(i) for i in range(4)])

    def fn(x):
        s.log.append(x.sum().item())
        return torch.tensor(s.log[-4:]) * x.sum()

    return runs(trace, s, fn, lambda: s.log.insert(0, 2.0))


@cases(hits=6)
def tensors(trace):
    s = Thing(log=[torch.zeros(3) for _ in range(3)])

    def fn(x):
        h = x * 2
        s.log.append(h.detach())
        return torch.stack(s.log[-3:]).mean(0) + h

    return runs(trace, s, fn, lambda: s.log.append(torch.ones(3)))


@cases(hits=2)
def entries_of_other_kinds(trace):
    s = Thing(log=[1.0, 2.0])

    def fn(x):
        last = s.log[-1]
        s.log.append(x.sum().item())
        return x if last is None else x * last

    kinds = [3, None, True, np.float64(2.0), torch.tensor(2.0), 1 << 70]
    return runs(trace, s, fn, *(lambda kind=kind: s.log.append(kind) for kind in kinds))


@cases(hits=5)
def nans_and_zeros(trace):
    s = Thing(log=[1.0, 2.0])

    def fn(x):
        s.log.append(x.sum().item())
        return x * s.log[-2] + max(s.log), sum(s.log[-2:]), min(s.log)

    changes = [lambda v=v: s.log.append(v) for v in (math.nan, -0.0, math.inf)]
    return runs(trace, s, fn, *changes)


@cases(eager="reads a nan in a list")
def nans_where_it_is_recorded(trace):
    s = Thing(log=[1.0, 2.0])

    def fn(x):
        s.log.append(x.sum().item())
        return tuple(s.log), len(s.log), s.log[-5:], sum(s.log), x * s.log[-2]

    return runs(trace, s, fn, lambda: s.log.append(math.nan))


@cases(hits=3)
def one_that_stands_for_itself_or_another(trace):
    s = Thing(log=[])

    def fn(x):
        first = (s.log or [0.5])[0]
        s.log.append(x.sum().item())
        return x * first, len(s.log and s.log), bool(s.log), not s.log

    return runs(trace, s, fn, count=8)


@cases(hits=1)
def an_index_that_is_out_of_range(trace):
    s = Thing(log=[])

    def fn(x):
        s.log.append(x.sum().item())
        try:
            return x * s.log[-3]
        except IndexError:
            return x

    return runs(trace, s, fn, count=8)


# ---------------------------------------------------------------- sums
@cases(hits=6)
def sum_of_a_list_that_grows(trace):
    s = Thing(log=[])

    def fn(x):
        s.log.append(x.sum().item())
        return sum(s.log) / len(s.log), max(s.log), min(s.log)

    return runs(trace, s, fn, lambda: s.log.append(100.0), count=8)


@cases(hits=4)
def sum_of_ints_and_floats(trace):
    s = Thing(log=[1, 2])

    def fn(x):
        s.log.append(x.sum().item())
        return sum(s.log)

    return runs(trace, s, fn, lambda: s.log.append(3), lambda: s.log.append(1 << 70))


@pytest.mark.parametrize(
    "change", ["rotate", "appendleft", "extend", "extendleft", "insert", "reverse", "clear"]
)
def test_changes_of_a_deque_inside_the_call(change):
    arguments = {"appendleft": [4.0], "extend": [[4.0]], "extendleft": [[4.0]], "insert": [0, 4.0]}

    def make(trace):
        s = Thing(log=deque([1.0, 2.0, 3.0], maxlen=4))

        def fn(x):
            total = sum(s.log) + len(s.log)
            getattr(s.log, change)(*arguments.get(change, []))
            s.log.append(x.sum().item())
            return x * total

        return runs(trace, s, fn)

    agree(make)


@cases(eager="hands .extend() to C code")
def changed_by_c_code(trace):
    s = Thing(log=deque([1.0]))

    def fn(x):
        total = sum(s.log)
        list(map(s.log.extend, [[2.0], [3.0]]))
        return x * total

    return runs(trace, s, fn)


@cases(hits=2)
def sum_of_other_kinds(trace):
    s = Thing(log=[1.0])

    def fn(x):
        s.log.append(x.sum().item())
        return sum(s.log)

    return runs(trace, s, fn, lambda: s.log.append(np.float64(1.0)), lambda: s.log.append(torch.ones(())))


@cases(hits=3)
def iteration(trace):
    s = Thing(log=[1.0, 2.0, 3.0])

    def fn(x):
        for value in s.log:
            x = x * value
        total = sum(v * v for v in s.log)
        s.log.append(x.mean().item())
        s.log.pop(0)
        return x + total, sorted(s.log)[0] <= s.log[0], list(s.log), tuple(s.log)

    return runs(trace, s, fn)


@cases(eager="calls .append() of a list")
def appended_to_while_it_is_gone_through(trace):
    s = Thing(log=[1.0])

    def fn(x):
        seen = 0
        for value in s.log:
            seen += 1
            if seen < 4:
                s.log.append(value + x.sum().item())
        return x * len(s.log) + seen

    return runs(trace, s, fn, lambda: s.log.append(2.0))


@cases(eager="calls .popleft() of a deque")
def changed_while_it_is_gone_through(trace):
    s = Thing(log=deque([1.0, 2.0]))

    def fn(x):
        s.log.append(x.sum().item())
        for i, _ in enumerate(s.log):
            if i == 1:
                s.log.popleft()
                break
        return x

    return runs(trace, s, fn)


# ---------------------------------------------------------------- windows
@cases(hits=9)
def capped_by_pop(trace):
    s = Thing(log=[])

    def fn(x):
        s.log.append(x.sum().item())
        if len(s.log) > 3:
            s.log.pop(0)
        return sum(s.log) / len(s.log)

    return runs(trace, s, fn, lambda: s.log.clear(), count=9)


@cases(hits=6)
def capped_by_del(trace):
    s = Thing(log=[])

    def fn(x):
        s.log.append(x.sum().item())
        if len(s.log) > 3:
            del s.log[0]
        return x * s.log[0]

    return runs(trace, s, fn, count=10)


@cases(hits=5)
def what_is_popped(trace):
    s = Thing(log=[1.0, 2.0, 3.0])

    def fn(x):
        s.log.append(x.sum().item())
        return x * s.log.pop(0)

    return runs(trace, s, fn, lambda: s.log.append(None))


@cases(hits=4)
def a_stack(trace):
    s = Thing(log=[float(i) for i in range(20)])

    def fn(x):
        top = s.log.pop()
        under = s.log[-1]
        s.log.append(x.sum().item())
        s.log.append(top)
        return x * top + under

    return runs(trace, s, fn)


@cases(hits=8)
def a_deque(trace):
    s = Thing(log=deque(maxlen=3))

    def fn(x):
        s.log.append(x.sum().item())
        return sum(s.log) / len(s.log) * x, s.log[0], s.log[-1]

    return runs(trace, s, fn, lambda: s.log.rotate(1), lambda: s.log.appendleft(5.0), count=8)


@cases(hits=6)
def a_queue(trace):
    s = Thing(log=deque([1.0, 2.0]))

    def fn(x):
        first = s.log.popleft()
        s.log.append(x.sum().item())
        s.log.append(first)
        if len(s.log) > 5:
            s.log.popleft()
        return x * first

    return runs(trace, s, fn, count=10)


@cases(hits=2)
def a_deque_that_is_replaced(trace):
    s = Thing(log=deque([1.0], maxlen=3))

    def fn(x):
        s.log.append(x.sum().item())
        return x * s.log[0] + sum(s.log)

    def longer():
        s.log = deque(s.log, maxlen=5)

    return runs(trace, s, fn, longer)


@cases(hits=4)
def a_list_that_is_replaced_by_its_end(trace):
    s = Thing(log=[])

    def fn(x):
        s.log.append(x.sum().item())
        s.log = s.log[-3:]
        return sum(s.log) / len(s.log)

    return runs(trace, s, fn, count=10)


@cases(hits=5)
def a_mean_of_numpys(trace):
    s = Thing(log=[1.0, 2.0, 3.0])

    def fn(x):
        s.log.append(x.sum().item())
        return float(np.mean(s.log[-3:])) * x

    return runs(trace, s, fn, count=8)


# ---------------------------------------------------------------- other changes, other ways to it
@cases(hits=2)
def changed_in_other_ways(trace):
    s = Thing(log=[1.0, 2.0, 3.0])

    def fn(x):
        s.log.append(x.sum().item())
        return x * len(s.log) + s.log[-2]

    changes = [
        lambda: s.log.reverse(),
        lambda: s.log.__setitem__(slice(None), [4.0, 5.0]),
        lambda: s.log.__delitem__(slice(1, None)),
        lambda: setattr(s, "log", (1.0, 2.0)),
    ]
    return runs(trace, s, fn, *changes[:3])


@pytest.mark.parametrize(
    "change",
    [
        lambda log, v: log.insert(0, v),
        lambda log, v: log.extend([v, v]),
        lambda log, v: log.__setitem__(-1, v),
        lambda log, v: log.__setitem__(slice(0, 1), [v, v]),
        lambda log, v: log.sort(),
        lambda log, v: log.reverse(),
        lambda log, v: log.__iadd__([v]),
        lambda log, v: log.clear(),
        lambda log, v: log.pop(1),
        lambda log, v: log.__delitem__(1),
        lambda log, v: log.__delitem__(slice(None, -2)),
        lambda log, v: log.__delitem__(slice(0, 1)),
        lambda log, v: log.remove(log[0]),
    ],
)
def test_changes_inside_the_call(change):
    def make(trace):
        s = Thing(log=[4.0, 2.0, 3.0])

        def fn(x):
            s.log.append(x.sum().item())
            change(s.log, 0.25)
            s.log.append(1.5)
            return x * len(s.log), s.log[-1], sum(s.log), 0.25 in s.log

        return runs(trace, s, fn, lambda: s.log.append(9.0))

    agree(make)


class Named(list):
    def __len__(self):
        return 7


@cases(hits=4)
def a_subclass_takes_its_place(trace):
    s = Thing(log=[1.0])

    def fn(x):
        s.log.append(x.sum().item())
        return x * len(s.log)

    def subclass():
        s.log = Named([1.0, 2.0])

    return runs(trace, s, fn, subclass, lambda: setattr(s, "log", [3.0]))


@cases(hits=4)
def by_two_names(trace):
    log = [1.0]
    s = Thing(a=log, b=log)

    def fn(x):
        before = len(s.b)
        s.a.append(x.sum().item())
        return x * len(s.b) + before, s.b[-1], sum(s.a)

    def part():
        s.b = [5.0]

    def join():
        s.b = s.a

    return runs(trace, s, fn, part, join)


@cases(hits=4)
def two_that_become_one(trace):
    s = Thing(a=[1.0], b=[2.0])

    def fn(x):
        s.a.append(x.sum().item())
        y = x * len(s.b) + sum(s.b)
        s.b.append(y.sum().item())
        return y, s.a[-1], len(s.a)

    def join():
        s.b = s.a

    return runs(trace, s, fn, join)


@cases(hits=4)
def two_that_become_one_before_a_branch(trace):
    s = Thing(a=[1.0], b=[2.0], w=torch.zeros(3))

    def fn(x):
        s.w.add_(x)
        y = x * len(s.a)
        if len(s.b) > 3:
            del s.b[:2]
        return y

    made = []
    for i in range(4):
        made += [call(other(i)), lambda: s.a.append(1.0), lambda: s.b.append(1.0) if len(s.b) < 3 else 0]

    def join():
        s.a = [1.0] * 5
        s.b = s.a

    return trace(fn), [*made, join, *(call(other(i)) for i in range(4))], lambda: [vars(s)]


@cases(hits=3)
def read_by_another_function(trace):
    s = Thing(log=[1.0])

    def write(x):
        s.log.append(x.sum().item())
        return x * len(s.log)

    read = trace(lambda x: x * sum(s.log) + s.log[-1])
    made = []
    for i in range(6):
        made += [call(other(i)), call(other(i)).of(read)]
    return trace(write), made, lambda: s.log


@cases(hits=3)
def an_exception_in_the_middle(trace):
    s = Thing(log=[])

    def fn(x):
        s.log.append(x.sum().item())
        y = x * len(s.log)
        if s.log[-1] > 1.0:
            raise ValueError(len(s.log))
        s.log.append(0.5)
        return y

    calls = [call(torch.full((2,), v)) for v in (0.1, 0.2, 0.3, 0.4, 2.0, 0.5, 3.0, 0.6)]
    return trace(fn), calls, lambda: s.log


@cases(hits=3)
def an_operator_that_raises(trace):
    s = Thing(log=[])

    def fn(x, i):
        s.log.append(x.sum().item())
        y = x[i] * len(s.log)
        s.log.append(0.5)
        return y

    calls = [call(other(n), torch.tensor(k)) for n, k in enumerate((0, 1, 0, 1, 0, 99, 0))]
    return trace(fn), calls, lambda: s.log


@cases(hits=4)
def a_dict_of_statistics(trace):
    s = Thing(stats={"n": 0, "loss": []})

    def fn(x):
        s.stats["n"] += 1
        s.stats["loss"].append(x.sum().item())
        return sum(s.stats["loss"]) / s.stats["n"]

    return runs(trace, s, fn, count=8)


@cases(hits=5)
def an_average_that_moves(trace):
    s = Thing(ema=[0.0])

    def fn(x):
        s.ema.append(0.9 * s.ema[-1] + 0.1 * x.sum().item())
        return x * s.ema[-1]

    return runs(trace, s, fn, count=8)


@cases(hits=4)
def an_opaque_function_looks_on(trace):
    import lazytrace

    s = Thing(log=[1.0], seen=[])

    @lazytrace.opaque
    def look(x):
        s.seen.append(len(s.log))
        return x + len(s.log)

    def fn(x):
        n = len(s.log)
        y = look(x)
        s.log.append(y.sum().item())
        return y * n

    return runs(trace, s, fn)


@cases(eager="which changes what the function has written")
def an_opaque_function_appends(trace):
    import lazytrace

    s = Thing(log=[1.0])

    @lazytrace.opaque
    def push(x):
        s.log.append(0.5)
        return x + 1

    def fn(x):
        s.log.append(x.sum().item())
        y = push(x)
        return y * len(s.log)

    return runs(trace, s, fn)


@cases(eager="after writing to Python state that it may read")
def an_opaque_function_after_a_full_deque_was_appended_to(trace):
    import lazytrace

    s = Thing(log=deque([1.0, 2.0, 3.0], maxlen=3), seen=[])

    @lazytrace.opaque
    def look(x):
        s.seen.append(list(s.log))
        return x + 1

    def fn(x):
        s.log.append(x.sum().item())
        return look(x) * s.log[0]

    return runs(trace, s, fn)


@cases(hits=4)
def gradients(trace):
    s = Thing(log=[1.0], w=torch.ones(3, requires_grad=True))

    def fn(x):
        loss = (x * s.w).sum()
        loss.backward()
        s.log.append(loss.item())
        scale = sum(s.log) / len(s.log)
        with torch.no_grad():
            s.w -= 0.1 * s.w.grad / (1 + abs(scale))
            s.w.grad = None
        return loss.detach()

    return runs(trace, s, fn, count=8)


@cases(hits=6, eager="calls .reverse() of a list")
def one_that_cannot_be_followed_is_recorded_for_each_length(trace):
    s = Thing(log=[])

    def fn(x):
        n = len(s.log)
        s.log.reverse()
        s.log.clear()
        return x * n

    def fill(n):
        return lambda: s.log.extend([1.0] * n)

    steps = [step for n in (2, 3, 2, 3, 2, 3, 2, 3, 2, 3) for step in (fill(n), call(torch.ones(2)))]
    return trace(fn), steps, lambda: s


@cases.parametrize
def test_live_lists(make, expected):
    check(make, **expected)


def test_threads_append_to_one_list():
    import lazytrace

    log = []

    @lazytrace.traced
    def fn(x):
        log.append(x.sum().item())
        return x * 2 if len(log) > 5 else x

    for i in range(8):
        fn(torch.full((2,), float(i)))
    threads = [threading.Thread(target=lambda: [fn(torch.ones(2)) for _ in range(20)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log) == 8 + 60
    assert log.count(2.0) == 61  # one of the first eight
