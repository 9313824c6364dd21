"""Dicts and sets with keys that are objects, which a call goes through."""

from __future__ import annotations

import collections

import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, Holder, X, around, call, calls, check, opaque

cases = Cases()


class Key:
    """Equal to itself alone."""

    def __init__(self, scale):
        self.scale = scale


class Named:
    """Equal to any other of the same name."""

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return self.name == other.name

    def __hash__(self):
        return hash(self.name)


BODIES = {
    "keys": lambda d, x: [x * key.scale for key in d],
    "view_of_keys": lambda d, x: [x * key.scale for key in d.keys()],  # noqa: SIM118
    "items": lambda d, x: [x * key.scale + value for key, value in d.items()],
    "values": lambda d, x: [x * value for value in d.values()],
    "list_of_values": lambda d, x: [x * value for value in list(d.values())],
    "list_of_keys": lambda d, x: [x * key.scale for key in list(d)],
    "in_pairs": lambda d, x: [x * a.scale + b for a, b in zip(d, d.values(), strict=True)],
    "counted": lambda d, x: [x * i + b for i, b in enumerate(d.values())],
    "looked_up": lambda d, x: [x * d[key] for key in d],
    "unpacked": lambda d, x: [x * value for value in [*d.values()]],
    "sorted_values": lambda d, x: [x * value for value in sorted(d.values())],
    "the_largest": lambda d, x: x * max(d.values()) + sum(d.values()),
    "first": lambda d, x: x * next(iter(d)).scale + next(iter(d.values())),
    "another_dict": lambda d, x: {key.scale: x * value for key, value in d.items()},
}


def other_scale(d):
    next(iter(d)).scale = 5.0


def other_value(d):
    d[next(iter(d))] = 7.0


def other_order(d):
    first = next(iter(d))
    d[first] = d.pop(first)


def one_more(d):
    d[Key(9.0)] = 4.0


def one_less(d):
    del d[next(iter(d))]


def other_keys(d):
    values = list(d.values())
    d.clear()
    d.update({Key(6.0): value for value in values})


def plain_keys(d):
    d.clear()
    d.update({1: 2.0, 2: 3.0})


CHANGES = [other_scale, other_value, other_order, one_more, one_less, other_keys]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_what_is_gone_through(body, change):
    def make(trace):
        d = {Key(2.0): 1.0, Key(3.0): 2.0, "x": 0.5}
        d.pop("x")  # a hole in its table
        d[Key(4.0)] = 3.0
        return trace(lambda x: body(d, x)), around(lambda: change(d), X())

    check(make, hits=1)


@cases(hits=1)
def keys_of_another_kind(trace):
    d = {Key(2.0): 1.0}
    return trace(lambda x: [type(key) is int and x * value for key, value in d.items()]), around(
        lambda: plain_keys(d), X()
    )


@cases(hits=1)
def members_of_a_set(trace):
    members = {Key(2.0)}

    def change():
        members.clear()
        members.add(Key(5.0))

    return trace(lambda x: [x * member.scale for member in members]), around(change, X())


@cases(hits=1)
def parameters_as_keys(trace):
    torch.manual_seed(0)
    net = nn.Linear(3, 3)
    scales = {net.weight: 2.0, net.bias: 3.0}

    def change():
        scales[nn.Parameter(torch.ones(3))] = scales.pop(net.bias)

    return trace(lambda x: x + sum((key * scale).sum() for key, scale in scales.items())), around(change, X())


@cases(hits=1)
def keys_that_swap_their_values(trace):
    a, b = Key(2.0), Key(3.0)
    d = {a: 1.0, b: 10.0}

    def change():
        d[a], d[b] = d[b], d[a]

    return trace(lambda x: [x * key.scale * value for key, value in d.items()]), around(change, X())


@cases(hits=1)
def tuples_as_keys(trace):
    d = {(Key(2.0), 1): 1.0, (Key(3.0), 2): 2.0}

    def change():
        d[Key(4.0), 3] = d.pop(next(iter(d)))

    return trace(lambda x: [x * key.scale * n + value for (key, n), value in d.items()]), around(change, X())


@cases(hits=2)
def tuples_of_classes(trace):
    kinds = {int: 1.0, (float, torch.Tensor): 2.0}

    def pick(x):
        for kind, scale in kinds.items():
            if isinstance(x, kind):
                return x * scale
        return x

    def change():
        kinds[int, torch.Tensor] = 3.0
        del kinds[float, torch.Tensor]

    return trace(pick), around(change, X())


@cases(hits=3)
def state_of_an_optimizer(trace):
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters())
    names = {parameter: name for name, parameter in net.named_parameters()}

    def step(x):
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()
        for state in optimizer.state.values():
            state["exp_avg"].mul_(0.5)
        return [names[key] for key in optimizer.state], sum(key.norm() for key in list(names)).detach()

    return trace(step), [call(X(2, 3) * k) for k in range(1, 8)], net.state_dict


# ---------------------------------------------------------------- where a key is looked up
@cases(hits=0, eager="reads-odd-key")
def looked_up_behind_a_look(trace):
    """Which of two keys is found hangs on an equality of the user's."""
    d = {Named("a"): 1.0, Named("b"): 2.0}

    def change():
        next(iter(d)).name = "c"

    return trace(lambda x: x * sum(key.name == "a" for key in d) + d.get(Named("a"), 5.0)), around(
        change, X()
    )


class Numbered:
    """Equal to what its number says by now; its hash is that of a number."""

    def __init__(self, number):
        self.number = self.hash = number

    def __eq__(self, other):
        return other == self.number

    def __hash__(self):
        return hash(self.hash)


def among(count, number, dead):
    """Keys of ints, of which each `dead`-th is gone again, and one of the user's, hashed as `number`."""
    held = {i: float(i) for i in range(count) if i != number}
    held[Numbered(number)] = 0.5
    for i in range(0, count, dead):
        held.pop(i, None)
    return held


MET = {
    "few": (5, 3, 7),
    "one hash in two": (300, 257, 2),
    "around the end of the table": (120, 2**61 - 1 + 7, 5),
    "below 0": (120, -2, 3),
    "many": (3_000, 2_000, 3),
}


@pytest.mark.parametrize("sizes", MET.values(), ids=MET)
@pytest.mark.parametrize("kind", [dict, set])
def test_a_key_of_the_users_is_met_in_the_table(kind, sizes):
    """It is compared with what is looked up, which has the same hash, and with nothing else."""
    _, number, _ = sizes

    def looked_up(trace, asked):
        held = among(*sizes)
        odd = next(key for key in held if isinstance(key, Numbered))
        held = held if kind is dict else set(held)

        def change():
            odd.number = number + 1

        def step(x):
            return x * (held.get(asked, 5.0) if kind is dict else float(asked in held))

        return trace(step), around(change, X())

    check(lambda trace: looked_up(trace, number), hits=0, eager="reads-odd-key")
    check(lambda trace: looked_up(trace, 1), hits=3)


@cases(hits=1)
def copied(trace):
    """A copy looks its keys up."""
    a, b = Key(2.0), Key(3.0)
    d = {a: 1.0}
    held = {"key": a}
    return trace(lambda x: x * d.copy().get(held["key"], 5.0)), around(lambda: held.update(key=b), X())


@cases(hits=0, eager="reads-odd-key")
def ordered(trace):
    """Its order is not that of its table."""
    d = collections.OrderedDict([(Key(2.0), 1.0), (Key(3.0), 2.0)])
    return trace(lambda x: [x * key.scale for key in d]), [
        *calls(2),
        lambda: d.move_to_end(next(iter(d))),
        *calls(2),
    ]


@cases(hits=2)
def written_to(trace):
    d = {Key(2.0): 1.0, Key(3.0): 2.0}

    def step(x):
        for key in list(d):
            d[key] = x * key.scale
        return [value.sum() for value in d.values()]

    return trace(step), calls(4), lambda: list(d.values())


class Counting:
    """Tells how often it was hashed and compared."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def __hash__(self):
        self.log.append("hash")
        return hash(self.name)

    def __eq__(self, other):
        self.log.append("eq")
        return self.name == getattr(other, "name", other)


def returns_a_dict(n, s):
    return {s.key: 1, s.other: n}


def returns_one_of_keys_that_it_made(n, s):
    return {Counting(1, s.log): 1, Counting(2, s.log): n}


def returns_a_set(n, s):
    return {s.key}


def returns_an_ordered_one(n, s):
    return collections.OrderedDict([(s.key, n)])


def returns_keys_in_tuples(n, s):
    return {(s.key, 1): n}


def writes_a_dict(n, s):
    s.kept = {s.key: n}


def sets_an_entry(n, s):
    s.table[s.key] = n


def sets_an_entry_by_an_equal_one(n, s):
    s.table[Counting("a", s.log)] = n


def takes_an_entry_away(n, s):
    s.table.setdefault(s.other, n)
    return s.table.pop(s.other)


def looks_it_up(n, s):
    return s.table[s.key], s.table.get(s.other)


def has_one_among_its_own(n, s):
    table = {s.key: n, "n": n}
    return table["n"] + table[s.key]


BY_HAND = [returns_a_dict, returns_one_of_keys_that_it_made, returns_a_set, returns_an_ordered_one]
BY_HAND += [returns_keys_in_tuples, writes_a_dict, sets_an_entry, sets_an_entry_by_an_equal_one]
BY_HAND += [takes_an_entry_away, looks_it_up]


def hashed(body, **expected):
    def make(trace):
        log = []
        s = Holder(key=Counting("a", log), other=Counting("b", log), log=log, kept=None, n=1)
        s.table = {s.key: 1}
        s.defaults, s.ordered = collections.defaultdict(int, s.table), collections.OrderedDict(s.table, z=1)

        def step(x):
            return x * s.n, body(s.n, s)

        def change():
            s.n += 150

        steps = [one for _ in range(4) for one in (call(torch.ones(2)), call(torch.ones(2)), change)]
        return trace(step), steps, lambda: list(log)

    check(make, **expected)


def asks_for_a_text(n, s):
    return "a" in s.table


def gets_by_a_text(n, s):
    return s.table.get("a"), s.table["a"]


def sets_by_a_text(n, s):
    s.table["a"] = n


def sets_a_default(n, s):
    return s.table.setdefault("a", n)


def has_a_default(n, s):
    return s.defaults["a"]


def moves_to_the_end(n, s):
    s.ordered.move_to_end("a")


BY_HAND += [asks_for_a_text, gets_by_a_text, sets_by_a_text, sets_a_default, has_a_default, moves_to_the_end]


@pytest.mark.parametrize("body", BY_HAND, ids=lambda body: body.__name__)
def test_keys_are_hashed_as_often_as_the_function_does(body):
    """Neither what is written down of a dict nor a replay that makes one asks a key for its hash."""
    hashed(body, eager="reads-odd-key")


def test_keys_of_a_dict_that_stays_inside_are_hashed_as_often():
    """Where the recording ends, the numbers in it become those of Python."""
    hashed(has_one_among_its_own, hits=5)


class Telling(list):
    """Tells how often it was gone through."""

    def __init__(self, items, log):
        super().__init__(items)
        self.log = log

    def __iter__(self):
        self.log.append("iter")
        return super().__iter__()

    def __len__(self):
        self.log.append("len")
        return super().__len__()


def test_a_list_that_goes_to_a_step_is_gone_through_as_often():
    def make(trace):
        log = []

        @lambda f: opaque(trace, f)
        def total(items):
            return torch.ones(3) * list.__getitem__(items, 0)

        return trace(lambda x: x * total(Telling([2.0, 1.0], log))), calls(), lambda: list(log)

    check(make, hits=4)


class Name(str):
    """Hashed and compared as any str."""


def test_keys_of_a_class_that_is_a_str():
    def make(trace):
        s = Holder(name=Name("a"))
        return trace(lambda x: {s.name: x * 2, "b": x}), [call(x * X()) for x in range(5)]

    check(make, hits=3)


@cases.parametrize
def test_keys(make, expected):
    check(make, **expected)
