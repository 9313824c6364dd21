"""Entries of lists, tuples and deques at places that are drawn, given by operators, or counted."""

from __future__ import annotations

import math
import random
import time
from collections import deque, namedtuple

import numpy as np
import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, Holder, X, agree, call, check

cases = Cases()

Seen = namedtuple("Seen", "state reward")


def rows(count=12, scale=1.0):
    return [torch.tensor([float(n), -n]) * scale for n in range(count)]


def pairs(count=12):
    return [(torch.tensor([float(n), -n]), n / 2) for n in range(count)]


def steps(count, *changes):
    """`count` calls, then for each change that and four more calls."""
    made = [call() for _ in range(count)]
    for change in changes:
        made += [change, *(call() for _ in range(4))]
    return made


def place(s):
    """One that differs at each call, and is none that repeats for long."""
    return random.randrange(len(s.pool))


# ---------------------------------------------------------------- ways of reaching a place
DRAWS = {
    "randrange": lambda pool: [pool[random.randrange(len(pool))]],
    "choice": lambda pool: [random.choice(pool)],
    "choices": lambda pool: random.choices(pool, k=1),
    "sample": lambda pool: random.sample(pool, 3),
    "sample by name": lambda pool: random.sample(pool, k=3),
    "floor": lambda pool: [pool[math.floor(random.random() * len(pool))]],
    "int": lambda pool: [pool[int(random.random() * len(pool))]],
    "numpy": lambda pool: [pool[i] for i in np.random.choice(len(pool), 3, replace=False)],
    "numpy item": lambda pool: [pool[np.random.randint(len(pool))]],
    "torch list": lambda pool: [pool[i] for i in torch.randperm(len(pool))[:3].tolist()],
    "torch tensor": lambda pool: [pool[i] for i in torch.randperm(len(pool))[:3]],
    "torch item": lambda pool: [pool[torch.randint(len(pool), ()).item()]],
    "from the end": lambda pool: [pool[random.randrange(len(pool)) - len(pool)]],
}
POOLS = {
    "tensors": lambda n: torch.tensor([float(n), -n]),
    "pairs": lambda n: (torch.tensor([float(n), -n]), n / 2),
    "named": lambda n: Seen(torch.tensor([float(n), -n]), torch.tensor(n / 2)),
    "nested": lambda n: ((torch.tensor([float(n), -n]), (n, n / 2)), "same"),
    "numbers": lambda n: n / 2,
    "ints": lambda n: n * 3,
}
KINDS = {"list": list, "tuple": tuple, "deque": lambda made: deque(made, maxlen=14)}


def total(entry):
    if isinstance(entry, tuple):
        return sum(total(one) for one in entry if not isinstance(one, str))
    return entry * 1.5 if isinstance(entry, torch.Tensor) else torch.ones(2) * entry


GROWS = [("list", False), ("list", True), ("tuple", False), ("deque", False), ("deque", True)]


@pytest.mark.parametrize(("kind", "grows"), GROWS)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("draw", DRAWS)
def test_each_way(draw, pool, kind, grows):
    def make(trace):
        s = Holder(pool=KINDS[kind](POOLS[pool](n) for n in range(12)), count=12)

        def fn():
            return sum(total(entry) for entry in DRAWS[draw](s.pool))

        def step():
            if grows:
                s.pool.append(POOLS[pool](s.count))
                s.count += 1

        made = []
        for _ in range(14):
            made += [step, call()]
        return trace(fn), made, lambda: list(s.pool)

    check(make, hits=6)


# ---------------------------------------------------------------- what lies there changes
@cases(hits=16)
def entries_that_are_replaced(trace):
    s = Holder(pool=rows())

    def fn():
        return s.pool[place(s)] * 2

    def replace():
        s.pool[:] = rows(scale=0.5)

    return trace(fn), steps(6, replace, lambda: s.pool[0].mul_(3), s.pool.reverse), lambda: list(s.pool)


@cases(hits=12)
def entries_that_look_otherwise(trace):
    s = Holder(pool=rows())

    def fn():
        return s.pool[place(s)] * 2

    def change(make):
        def now():
            s.pool[:] = [make(one) for one in rows()]

        return now

    changes = [torch.Tensor.double, lambda one: one[:1], lambda one: one[None], nn.Parameter, lambda one: 2.0]
    return trace(fn), steps(6, *map(change, changes)), lambda: list(s.pool)


@cases(hits=4)
def entries_that_are_of_other_kinds(trace):
    s = Holder(pool=[torch.ones(2), 2, 2.5, True, None, (torch.ones(2), 1.0), "ab", [torch.ones(2)]])

    def fn():
        one = s.pool[place(s)]
        kind = type(one).__name__
        return torch.ones(2) * one if isinstance(one, (torch.Tensor, float)) else torch.ones(2) * len(
            kind
        ), kind

    return trace(fn), steps(40), lambda: list(s.pool)


@cases(hits=6)
def numbers_that_are_not_finite(trace):
    s = Holder(pool=[1.0, math.nan, math.inf, -0.0, 0.0, 2.0])

    def fn():
        return torch.ones(2) * s.pool[place(s)]

    return trace(fn), steps(40), lambda: list(s.pool)


@cases(hits=6)
def numbers_that_do_not_fit(trace):
    s = Holder(pool=[1, 2**62, 2**63 - 1, 2**63, -(2**63), 5, 6, 7])

    def fn():
        return torch.ones(2) * (s.pool[place(s)] % 7)

    return trace(fn), steps(40), lambda: list(s.pool)


@cases(hits=8)
def a_number_decides(trace):
    s = Holder(pool=[(row, n / 2) for n, row in enumerate(rows())])

    def fn():
        row, weight = s.pool[place(s)]
        return row * 2 if weight > 2 else row - weight

    return trace(fn), steps(16), lambda: list(s.pool)


@cases(hits=10)
def a_counter_is_the_place(trace):
    s = Holder(pool=[0.1 * n for n in range(20)], t=0)

    def fn():
        s.t += 1
        return torch.ones(2) * s.pool[s.t]

    return trace(fn), steps(16), lambda: [s.t]


@cases(hits=8)
def a_counter_that_leaves_the_list(trace):
    s = Holder(pool=rows(10), t=0)

    def fn():
        s.t += 1
        try:
            return s.pool[s.t] * 2
        except IndexError as error:
            return str(error)

    return trace(fn), steps(16), lambda: [s.t]


# ---------------------------------------------------------------- one object in several places
def _same_rows():
    one = torch.ones(2)
    return [one, one * 2, one, one * 3]


@cases(hits=6)
def entries_that_are_one_tensor(trace):
    s = Holder(pool=_same_rows())

    def fn():
        a, b = s.pool[place(s)], s.pool[place(s)]
        return a + b, a is b

    return trace(fn), steps(40), lambda: list(s.pool)


@cases(hits=6)
def an_entry_of_which_a_view_is_kept(trace):
    s = Holder(pool=rows(5), view=None)

    def fn():
        s.view = s.pool[place(s)][:1]
        return s.view + 1

    return trace(fn), steps(20), lambda: [s.view, s.pool]


@cases(hits=6)
def an_entry_that_is_an_attribute(trace):
    s = Holder(pool=rows(5))
    s.best = s.pool[2]

    def fn():
        one = s.pool[place(s)]
        return one * 2, one is s.best, one + s.best

    return trace(fn), steps(30, lambda: setattr(s, "best", s.pool[0])), lambda: list(s.pool)


@cases(hits=6)
def an_entry_that_is_an_argument(trace):
    s = Holder(pool=rows(4))

    def fn(x):
        one = s.pool[place(s)]
        return one * 2, one is x, x + one

    return trace(fn), [call(s.pool[n % 3]) for n in range(30)], lambda: list(s.pool)


@cases(hits=4)
def an_argument_is_written_before_its_memory_is_drawn(trace):
    base = torch.arange(8.0)
    s = Holder(pool=[base[n : n + 2] for n in range(6)])

    def fn(x):
        x.add_(1)
        first = s.pool[place(s)] * 2
        x.mul_(0.5)
        return first, s.pool[place(s)] + first

    return trace(fn), [call(base[n % 5 : n % 5 + 3]) for n in range(40)], lambda: [base]


@cases(eager="writes-drawn")
def an_attribute_is_written_whose_memory_is_drawn(trace):
    base = torch.arange(8.0)
    s = Holder(pool=[base[n : n + 2] for n in range(6)], whole=base)

    def fn():
        one, other = s.pool[place(s)], s.pool[place(s)]
        before = one * other
        s.whole.add_(1)
        return before, one * other, one.sum() + s.whole.sum()

    return trace(fn), steps(24), lambda: [base]


@cases(eager="writes-drawn")
def an_entry_is_written_to(trace):
    s = Holder(pool=rows(5))

    def fn():
        one = s.pool[place(s)]
        one.add_(1)
        return one * 2, s.pool[place(s)] * 3

    return trace(fn), steps(24), lambda: list(s.pool)


@cases(eager="writes-drawn")
def a_view_of_an_entry_is_written_to(trace):
    s = Holder(pool=rows(5))

    def fn():
        s.pool[place(s)][0] = 7.0
        return torch.stack([s.pool[place(s)] for _ in range(3)])

    return trace(fn), steps(24), lambda: list(s.pool)


# ---------------------------------------------------------------- what becomes of an entry
@cases(hits=8)
def an_entry_is_returned(trace):
    s = Holder(pool=rows(5))

    def fn():
        return s.pool[place(s)], s.pool

    return trace(fn), steps(14), lambda: list(s.pool)


@cases(eager="returns-drawn")
def a_tuple_is_returned(trace):
    s = Holder(pool=pairs(5))

    def fn():
        return s.pool[place(s)]

    return trace(fn), steps(14), lambda: list(s.pool)


@cases(eager="given-and-found")
def a_tuple_of_tensors_is_returned(trace):
    s = Holder(pool=[(row, row * 2) for row in rows(5)])

    def fn():
        one = s.pool[place(s)]
        return [one], any(one is other for other in s.pool)

    return trace(fn), steps(14), lambda: list(s.pool)


@cases(eager="returns-drawn")
def a_tuple_is_kept(trace):
    s = Holder(pool=[(row, row * 2) for row in rows(5)], last=None)

    def fn():
        s.last = s.pool[place(s)]
        return s.last[0] * 2

    return trace(fn), steps(14), lambda: [s.last, any(s.last is other for other in s.pool)]


def found_beside(first):
    """A tuple of tensors is drawn, and found at a place of its own before or after that."""

    def make(trace):
        s = Holder(pool=[(row, row * 2) for row in rows(12)])
        s.best = s.pool[1]

        def fn():
            places = [place(s) for _ in range(2)]
            if first:
                found = s.pool[0], s.best
            drawn = sum(total(s.pool[n]) for n in places)
            if not first:
                found = s.pool[0], s.best
            return drawn, total(found[0]), total(found[1])

        return trace(fn), steps(24, s.pool.reverse), lambda: list(s.pool)

    return make


def test_a_tuple_is_drawn_and_found():
    check(found_beside(False), hits=1)


def test_a_tuple_is_found_and_drawn():
    check(found_beside(True), hits=1)


@cases(hits=8)
def an_entry_is_kept(trace):
    s = Holder(pool=rows(5), last=None)

    def fn():
        s.last = s.pool[place(s)]
        return s.last * 2

    return trace(fn), steps(14), lambda: [s.last, s.pool]


@cases(hits=6)
def arrays_are_drawn_after_gradients_are_let_go(trace):
    """What stands for the memory of an array may lie where something of a gradient has been."""
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    pool = [(np.random.randn(3), np.random.randn()) for _ in range(50)]

    def f():
        for _ in range(2):
            states, rewards = zip(*random.sample(pool, 20), strict=True)
            loss = (
                (net(torch.tensor(np.array(states), dtype=torch.float)).sum(1) - sum(rewards)).pow(2).mean()
            )
            net.zero_grad()
            loss.backward()
        return loss

    return trace(f), steps(8), lambda: net


@cases(hits=1)
def two_entries_change_places(trace):
    s = Holder(pool=rows(5))

    def fn():
        i, j = place(s), place(s)
        s.pool[i], s.pool[j] = s.pool[j], s.pool[i]
        return s.pool[0] * 2

    return trace(fn), steps(14), lambda: list(s.pool)


@cases(hits=10, eager="given-and-found")
def an_entry_is_replaced_and_drawn_again(trace):
    s = Holder(pool=rows(3))

    def fn():
        s.pool[1] = s.pool[place(s)] + 1
        return s.pool[place(s)] * 2

    return trace(fn), steps(30), lambda: list(s.pool)


def appends(trace, pool):
    s = Holder(pool=pool)

    def fn(x):
        s.pool.append(x * 2)
        return s.pool[place(s)] + 1

    return trace(fn), [call(X(2)) for _ in range(30)], lambda: list(s.pool)


@cases(hits=6)
def the_call_appends_before_it_draws(trace):
    return appends(trace, rows(8))


@cases(hits=6)
def the_call_appends_an_entry_before_it_draws(trace):
    s = Holder(pool=[1.0, 2.0, 3.0])

    def fn(x):
        s.pool.append(s.pool[0])
        return s.pool[place(s)] * x

    return trace(fn), [call(X(2)) for _ in range(30)], lambda: list(s.pool)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drop", [False, True])
def test_places_from_both_ends_of_what_the_call_has_changed(kind, drop):
    def make(trace):
        s = Holder(pool=KINDS[kind](float(n) for n in range(9)))

        def fn(x):
            if kind != "tuple":
                if drop and kind == "deque":
                    s.pool.popleft()
                elif drop:
                    del s.pool[0]
                s.pool.append(s.pool[0] + 0.5)
            n = random.randrange(len(s.pool))
            return x * s.pool[n], x * s.pool[-1 - n], x - s.pool[n - len(s.pool)]

        return trace(fn), [call(X(2)) for _ in range(40)], lambda: list(s.pool)

    # Of a list that is as long as before nobody has learned that it differs from call to call.
    steady = kind == "list" and drop
    check(make, **{"eager": "records-too-often"} if steady else {"hits": 10})


@cases(hits=6)
def a_table_that_is_made_anew(trace):
    s = Holder(table=((True, 1), (False, 2), (False, 3)))

    def fn(x):
        flag, weight = s.table[random.randrange(len(s.table))]
        return x * weight if flag else x - weight

    def again():
        s.table = tuple(tuple(row) for row in [[True, 1], [False, 2], [False, 3]])

    made = []
    for _ in range(16):
        made += [call(X(2)), again]
    return trace(fn), made


@cases(hits=6)
def the_call_appends_to_a_deque_that_is_full(trace):
    return appends(trace, deque(rows(8), maxlen=8))


@cases(hits=4)
def the_call_drops_before_it_draws(trace):
    s = Holder(pool=rows(40))

    def fn():
        s.pool.pop(0)
        return s.pool[place(s)] + 1

    return trace(fn), steps(24), lambda: list(s.pool)


@cases(eager="too-many-branches")
def the_call_takes_the_last_before_it_draws(trace):
    s = Holder(pool=rows(40))

    def fn():
        s.pool.pop()
        return s.pool[-1 - place(s)] + 1

    return trace(fn), steps(24), lambda: list(s.pool)


@cases(hits=4)
def it_raises_behind_a_draw(trace):
    s = Holder(pool=[(row, n % 3) for n, row in enumerate(rows(9))], count=0)

    def fn():
        s.count += 1
        row, kind = s.pool[place(s)]
        if kind == 2:
            raise ValueError("two")
        return row * kind

    return trace(fn), steps(24), lambda: [s.count]


# ---------------------------------------------------------------- training
@cases(hits=12)
def a_step_on_a_sample(trace):
    torch.manual_seed(0)
    net = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    s = Holder(pool=deque(((row, n % 2, n / 10) for n, row in enumerate(rows(10))), maxlen=16))

    def fn():
        state, action, reward = zip(*random.sample(s.pool, 4), strict=True)
        wanted = torch.tensor(reward) + torch.tensor(action)
        loss = ((net(torch.stack(state))[:, 0] - wanted) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def push():
        s.pool.append((torch.randn(2), random.randrange(2), random.random()))

    made = []
    for _ in range(18):
        made += [push, call()]
    return trace(fn), made, lambda: [*net.parameters(), optimizer.state_dict()]


SHOWN = {
    "parameter": lambda net, optimizer: net.bias.detach(),
    "row": lambda net, optimizer: net.weight.data[0],
    "state": lambda net, optimizer: optimizer.state[net.bias]["momentum_buffer"],
    "gradient": lambda net, optimizer: net.bias.grad,
    "leaf": lambda net, optimizer: net.bias,
    "twice": lambda net, optimizer: SAME,
}
SAME = torch.tensor([0.25, -0.5])


@pytest.mark.parametrize("zeroed", [False, True])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("what", SHOWN)
def test_an_entry_comes_to_show_what_a_step_writes(what, early, zeroed):
    def make(trace):
        torch.manual_seed(0)
        net = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        net(torch.ones(2)).sum().backward()
        optimizer.step()
        s = Holder(pool=rows(6, 0.1))

        def fn():
            first, second = s.pool[place(s)], s.pool[place(s)]
            loss = (net(first * second) ** 2).mean()
            optimizer.zero_grad(set_to_none=zeroed)
            loss.backward()
            optimizer.step()
            return loss.detach(), first * 2, s.pool[place(s)] - 1

        def show():
            for n in range(4):
                s.pool[n] = SHOWN[what](net, optimizer)

        made = [show] if early else []
        made += [call() for _ in range(8)]
        made += [show, *(call() for _ in range(6))]
        made += [lambda: s.pool.__setitem__(slice(None), rows(6, 0.2)), *(call() for _ in range(8))]
        return trace(fn), made, lambda: [*net.parameters(), optimizer.state_dict(), *s.pool]

    tracer = agree(make)
    assert early or tracer.count("hits") >= 5, tracer.account()


@cases(hits=8)
def weights_that_are_drawn(trace):
    torch.manual_seed(0)
    s = Holder(pool=[torch.randn(2, 2) for _ in range(6)], grads=[torch.randn(2, requires_grad=True)])

    def fn():
        loss = (s.pool[place(s)] @ s.grads[0]).sum()
        loss.backward()
        return loss.detach()

    return trace(fn), steps(14), lambda: [s.grads[0].grad]


@cases(hits=4)
def parameters_that_are_drawn(trace):
    torch.manual_seed(0)
    s = Holder(pool=[torch.randn(2, requires_grad=True) for _ in range(6)])

    def fn():
        loss = (s.pool[place(s)] ** 2).sum()
        loss.backward()
        return loss.detach()

    return trace(fn), steps(14), lambda: [one.grad for one in s.pool]


@cases.parametrize
def test_drawn_entries(make, expected):
    check(make, **expected)


class Tenfold(Seen):
    __slots__ = ()

    def __getitem__(self, place):
        return tuple.__getitem__(self, place) * 10


class Keeping(Seen):
    pass


def kept(n):
    made = Keeping(torch.ones(2) * n, 0.5 * n)
    made.more = 3.0 * n
    return made


KINDS_OF_TUPLES = {
    "one of its own": lambda n: Tenfold(torch.ones(2) * n, 0.5 * n),
    "numbers of its own": lambda n: Tenfold(1.5 * n, 0.5 * n),
    "with a namespace": kept,
    "of C": lambda n: time.gmtime(86400 * n),
    "of torch": lambda n: (torch.ones(2) * n).max(0),
    "a size": lambda n: torch.Size([n, 3]),
}


@pytest.mark.parametrize("kind", KINDS_OF_TUPLES)
@pytest.mark.parametrize("inside", [False, True])
def test_tuples_of_other_classes(kind, inside):
    def make(trace):
        made = [KINDS_OF_TUPLES[kind](n) for n in (1, 2, 3)]
        s = Holder(pool=made if inside else made[1])

        def fn(x):
            entry = s.pool[random.randrange(2)]
            first = entry[0] if inside else entry
            names = ("more", "tm_zone", "tm_gmtoff", "indices") if inside else ()
            return x * first, type(entry).__name__, [getattr(entry, name, None) for name in names]

        return trace(fn), [call(X(2)) for _ in range(14)]

    # Its own code hands the number to C code.
    looks = inside and "own" in kind
    check(make, **{"eager": "asked-value"} if looks else {"hits": 6})


TABLES = {
    "itself": (lambda t: t, lambda t: t),
    "in a list": (lambda t: [t], lambda t: t[0]),
    "in a dict": (lambda t: {"a": t}, lambda t: t["a"]),
    "in a tuple": (lambda t: (1, t), lambda t: t[1]),
    "in lists": (lambda t: [[t], t], lambda t: t[0][0]),
}


@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize("where", TABLES)
@pytest.mark.parametrize("what", ["argument", "attribute", "default"])
def test_tables_that_differ_from_call_to_call(what, where, kind):
    put, get = TABLES[where]

    def tables():
        draw = random.Random(5)
        return [put(kind(draw.random() for _ in range(3))) for _ in range(14)]

    def of_an_argument(trace):
        def fn(x, t):
            return x * get(t)[random.randrange(3)]

        return trace(fn), [call(X(), t) for t in tables()]

    def of_state(trace):
        s = Holder(t=None)

        def fn(x, t=None):
            return x * get(s.t if t is None else t)[random.randrange(3)]

        def change(t):
            if what == "attribute":
                s.t = t
            else:
                fn.__defaults__ = (t,)

        made = []
        for t in tables():
            made += [lambda t=t: change(t), call(X())]
        return trace(fn), made

    agree(of_an_argument if what == "argument" else of_state)


def test_a_generator_of_the_users_own():
    class Mine(random.Random):
        def random(self):
            return 0.25

        def getrandbits(self, k):
            return 1

    def make(trace):
        s = Holder(pool=rows(6), mine=Mine(3), plain=random.Random(3))

        def fn():
            return sum(s.mine.sample(s.pool, 2)) + sum(s.plain.sample(s.pool, 2))

        return trace(fn), steps(8), lambda: [s.plain.getstate()]

    agree(make)


@pytest.mark.parametrize(
    "given", [{"k": 7}, {"k": 2, "counts": None}, {"k": 1, "population": []}, {"n": 2}, {}], ids=str
)
def test_samples_that_are_told_more(given):
    def make(trace):
        s = Holder(pool=rows(6))

        def fn():
            try:
                return [one * 2 for one in random.sample(s.pool, **given)]
            except (ValueError, TypeError) as error:
                return str(error).partition("<")[0]

        return trace(fn), steps(5)

    agree(make)


@pytest.mark.parametrize("count", [-1, 0, 7, 2.0, True, None, "a"])
def test_samples_that_are_no_samples(count):
    def make(trace):
        s = Holder(pool=rows(6))

        def fn():
            try:
                return [one * 2 for one in random.sample(s.pool, count)]
            except (ValueError, TypeError) as error:
                return str(error)

        return trace(fn), steps(6), lambda: s.pool

    agree(make)


def test_what_is_called_in_the_place_of_a_draw_may_be_replaced(monkeypatch):
    def make(trace):
        s = Holder(pool=rows(6))

        def fn():
            return sum(random.sample(s.pool, 2))

        def replace(name):
            return lambda: monkeypatch.setattr(random.Random, name, lambda self, *args: 0, raising=False)

        made = steps(4, replace("_randbelow"), monkeypatch.undo)
        return trace(fn), made, lambda: s.pool

    agree(make)
    monkeypatch.undo()


# ---------------------------------------------------------------- ranges, numbers in lists of the call's
def shuffled(numbers):
    random.shuffle(numbers)
    return numbers


def changed_between():
    weights = [0.5, 1.0, 2.0, 4.0]
    first = random.choice(weights)
    weights[random.randrange(4)] = 8.0
    weights.append(16.0)
    return [first, random.choice(weights), sum(weights)]


def one_list_by_two_names():
    order = list(range(5))
    other = order
    random.shuffle(order)
    other.reverse()
    random.shuffle(other)
    return [*order, order is other, order.index(3)]


OF_NUMBERS = {
    "sample of a range": lambda: random.sample(range(40, 3, -2), 5),
    "choices of a range": lambda: random.choices(range(100), k=4),
    "choice of a range": lambda: [random.choice(range(7)), range(5)[-random.randrange(1, 6)]],
    "rows of a range": lambda: random.sample(list(range(50)), 6),
    "shuffled": lambda: shuffled(list(range(20)))[:6],
    "shuffled twice": lambda: shuffled(shuffled([3, 5, 900, -2])),
    "shuffled, and chosen of": lambda: [random.choice(shuffled([7, 8, 9]))],
    "two names": one_list_by_two_names,
    "changed between": changed_between,
    "none is drawn": lambda: [*shuffled([]), *shuffled([4]), len(random.sample(range(0), 0))],
}


@pytest.mark.parametrize("body", OF_NUMBERS)
def test_numbers_of_the_calls_own(body):
    def make(trace):
        return trace(lambda: (torch.tensor(OF_NUMBERS[body]()), OF_NUMBERS[body]())), steps(8)

    tracer = agree(make)
    asks = body in ("two names", "changed between", "shuffled, and chosen of")
    assert asks or tracer.count("hits") >= 7, tracer.account()


@pytest.mark.parametrize("numbers", [[True, 2, 3], [1.5, 2, 3], ["a", "b"], (1, 2), [2**70, 1], [None, 1]])
def test_what_is_shuffled_may_be_no_list_of_numbers(numbers):
    def make(trace):
        def fn():
            try:
                return shuffled(type(numbers)(numbers)), torch.rand(1)
            except TypeError as error:
                return str(error)

        return trace(fn), steps(6)

    agree(make)


def test_a_list_of_state_is_shuffled():
    def make(trace):
        s = Holder(order=list(range(6)), seen=None)
        s.seen = s.order

        def fn():
            random.shuffle(s.order)
            return torch.tensor(s.order[:3]), s.order is s.seen

        return trace(fn), steps(4, lambda: s.order.append(9), lambda: setattr(s, "order", [5, 4])), lambda: s

    agree(make)


@pytest.mark.parametrize("change", ["range", "number"])
def test_a_range_becomes_another(change):
    def make(trace):
        s = Holder(rows=range(3, 30, 3), n=9)

        def fn():
            taken = s.rows[random.randrange(s.n)] if change == "range" else range(s.n)[random.randrange(4)]
            return torch.ones(2) * taken

        changes = [lambda: setattr(s, "rows", range(1, 10)), lambda: setattr(s, "n", 7)]
        return trace(fn), steps(5, *changes, lambda: setattr(s, "rows", range(20, 0, -2)))

    assert agree(make).count("hits") >= 10


@pytest.mark.parametrize("late", [False, True])
def test_a_hook_changes_the_list_that_is_drawn_from(late):
    def make(trace):
        torch.manual_seed(0)
        s = Holder(w=torch.randn(3, requires_grad=True), calls=0)

        def fn():
            table = [1, 2, 4]

            def hook(grad):
                s.calls += 1
                if s.calls > 5 or not late:
                    table[s.calls % 3] = s.calls * 10

            y = s.w * 2
            y.register_hook(hook)
            y.sum().backward()
            random.shuffle(table)
            return torch.ones(1) * random.choice(table), table[0]

        return trace(fn), steps(12), lambda: [s.w.grad, s.calls]

    agree(make)


def test_what_shuffles_may_be_replaced(monkeypatch):
    def make(trace):
        def replace(name):
            return lambda: monkeypatch.setattr(random.Random, name, lambda self, *args: 0, raising=False)

        made = steps(4, replace("_randbelow"), monkeypatch.undo, replace("getrandbits"), monkeypatch.undo)
        return trace(lambda: shuffled([1, 2, 3, 4])), made

    agree(make)
    monkeypatch.undo()


# ---------------------------------------------------------------- what was chosen is found in the state
ALSO_FOUND = {
    "added": lambda s, chosen, x: s.ts[2] + x,
    "stacked": lambda s, chosen, x: torch.stack([s.ts[2], s.ts[0], x]).sum(0),
    "by both names": lambda s, chosen, x: s.ts[2] * 2 - chosen,
}


@pytest.mark.parametrize("use", ALSO_FOUND.values(), ids=ALSO_FOUND)
def test_an_entry_that_was_chosen_is_found_by_another_place(use):
    """It is another tensor than what is found when both are recorded, and the same one at later calls."""

    def make(trace):
        s = Holder(n=0, ts=[torch.ones(3), torch.zeros(3), torch.arange(3.0)])

        def fn(x):
            s.n += 1
            chosen = s.ts[int(x[0]) % 3]
            s.ts[2 - s.n % 2] = chosen
            s.ts[1] = use(s, chosen, x)
            if x.sum() > 5:
                return x * 1.0
            return s.ts[1] + s.ts[2]

        signs = [1 if n % 3 else -1 for n in range(14)]
        return trace(fn), [call(torch.arange(1.0, 4.0) * sign) for sign in signs], lambda: list(s.ts)

    check(make, hits=5, eager="given-and-found", recordings=5)
