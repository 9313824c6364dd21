"""Ints, floats and texts that lie in containers among the arguments: what nobody reads may differ."""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import json
import operator
from typing import NamedTuple

import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, X, agree, call, check

cases = Cases()


# ---------------------------------------------------------------- nobody reads them
class Sample(NamedTuple):
    x: torch.Tensor
    index: int
    name: str


BATCHES = {
    "a_dict": (lambda i: {"x": X(3), "id": i, "name": f"{i}.png"}, lambda b: b["x"] * 2),
    "a_list": (lambda i: [X(3), i, f"{i}"], lambda b: b[0] * 2),
    "a_tuple": (lambda i: (X(3), i, float(i)), lambda b: b[0] * 2),
    "unpacked": (lambda i: (X(3), i), lambda b: (lambda x, _: x * 2)(b[0], None)),
    "named": (lambda i: Sample(X(3), i, f"{i}"), lambda b: b.x * 2),
    "ordered": (lambda i: collections.OrderedDict(x=X(3), id=i), lambda b: b["x"] * 2),
    "tuples": (lambda i: {"x": X(3), "size": (i, 2), "names": ("a", f"{i}")}, lambda b: b["x"] * 2),
    "nested": (lambda i: {"x": [X(3), {"at": i}], "names": ["a", f"{i}"]}, lambda b: b["x"][0] * 2),
    "asked_for_length": (lambda i: [X(3), i, f"{i}"], lambda b: b[0] * len(b)),
    "asked_for_a_key": (lambda i: {"x": X(3), "id": i}, lambda b: b["x"] * ("id" in b)),
    "large": (lambda i: {"x": X(3), "id": i - 2**62}, lambda b: b.get("x") * 2),
}


@pytest.mark.parametrize(("made", "body"), BATCHES.values(), ids=list(BATCHES))
def test_what_nobody_reads(made, body):
    def make(trace):
        return trace(body), [call(made(i)) for i in range(8)]

    check(make, hits=6, recordings=2)


def test_a_training_step():
    def make(trace):
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(net.parameters())

        def step(batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(batch["x"]), batch["y"])
            loss.backward()
            optimizer.step()
            return loss.detach()

        steps = [
            call({"x": X(4, 3) + i, "y": torch.arange(4) % 2, "id": i, "files": [f"{i}.png", f"{i + 1}.png"]})
            for i in range(12)
        ]
        return trace(step), steps, lambda: (net.state_dict(), optimizer.state_dict())

    check(make, hits=8)


# ---------------------------------------------------------------- somebody does
def spread(a=0, b=0):
    return a + 2 * b


def inner_function(values):
    return values[0] + 2 * values[-1]


READS = {
    "item": lambda b: b[0],
    "last": lambda b: b[-1],
    "unpacked": lambda b: (lambda first, second: first - second)(*b),
    "assigned": lambda b: next(second for first, second in [b]),
    "starred": lambda b: [*b][1],
    "sum": sum,
    "max": max,
    "sorted": lambda b: sorted(b, reverse=True)[0],
    "map": lambda b: list(map(float, b))[1],
    "zip": lambda b: sum(first * second for first, second in zip(b, reversed(b), strict=True)),
    "pairwise": lambda b: next(first * second for first, second in itertools.pairwise(b)),
    "enumerated": lambda b: sum(i * v for i, v in enumerate(b)),
    "reversed": lambda b: next(reversed(b)),
    "sliced": lambda b: b[1:][0],
    "searched": lambda b: 3 in b,
    "index": lambda b: b.index(2) if 2 in b else -1,
    "count": lambda b: b.count(3),
    "equal": lambda b: list(b) == [1, 2],
    "less": lambda b: list(b) < [3, 3],
    "text": lambda b: len(str(b)),
    "formatted": lambda b: len(f"{b}"),
    "percent": lambda b: len(operator.mod("%s %s", tuple(b))),
    "format": lambda b: len("{} {}".format(*b)),
    "json": lambda b: len(json.dumps(list(b))),
    "copied": lambda b: copy.deepcopy(b)[1],
    "shallow": lambda b: copy.copy(b)[1],
    "tensor": lambda b: torch.tensor(b).sum(),
    "as_sizes": lambda b: torch.zeros(*b).sum() + torch.ones(b).sum(),
    "view": lambda b: X(3).expand(*b, 3).sum(),
    "as_index": lambda b: torch.arange(40)[list(b)].sum(),
    "reduced": lambda b: functools.reduce(operator.mul, b),
    "chained": lambda b: list(itertools.chain(b, b))[3],
    "product": lambda b: sum(p * q for p, q in itertools.product(b, b)),
    "getter": lambda b: operator.itemgetter(1)(b),
    "hash": lambda b: hash(tuple(b)) % 1000,
    "any": lambda b: any(v == 5 for v in b),
    "partial": lambda b: functools.partial(spread, *b)(),
    "spread": lambda b: spread(*b),
    "called": inner_function,
    "is_same": lambda b: b[0] is b[1],
    "type": lambda b: type(b[0]) is int,
    "divmod": lambda b: divmod(b[1], 3)[1],
    "range": lambda b: sum(range(b[0], b[1])),
    "comprehended": lambda b: dict(enumerate(b))[1],
}
PAIRS = [(1, 2), (1, 3), (2, 3), (1, 2), (3, 3), (5, 8), (1, 5), (1, 2), (4, 6)]


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
def test_what_is_read_of_sequences(read, kind):
    def make(trace):
        return trace(lambda x, b: x * read(b)), [call(X(3), kind(pair)) for pair in PAIRS]

    agree(make)


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
def test_what_is_read_of_one_inside_another(read):
    def make(trace):
        return trace(lambda b: b["x"][0] * read(b["pair"])), [
            call({"x": [X(3), i], "pair": list(pair)}) for i, pair in enumerate(PAIRS)
        ]

    agree(make)


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
def test_what_is_read_of_a_tuple_inside_another(read):
    def make(trace):
        return trace(lambda b: b["x"] * read(b["pair"])), [call({"x": X(3), "pair": pair}) for pair in PAIRS]

    agree(make)


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
def test_what_is_read_of_an_entry_that_is_spread(read):
    def body(x, pair, **rest):
        return x * read(pair) + len(rest)

    def make(trace):
        return trace(lambda b: body(**b)), [
            call({"x": X(3), "pair": pair, "id": i}) for i, pair in enumerate(PAIRS)
        ]

    agree(make)


READS_OF_DICTS = {
    "item": lambda d: d["a"],
    "get": lambda d: d.get("b", 7),
    "missing": lambda d: d.get("c", 7),
    "values": lambda d: sum(d.values()),
    "items": lambda d: sum(v for k, v in d.items() if k == "b"),
    "keys": lambda d: len([*d]),
    "spread": lambda d: spread(**d),
    "merged": lambda d: {**d, "a": 1}["b"],
    "joined": lambda d: (d | {"a": 1})["b"],
    "dict": lambda d: dict(d)["b"],
    "copy": lambda d: d.copy()["b"],
    "equal": lambda d: d == {"a": 1, "b": 2},
    "text": lambda d: len(str(d)),
    "json": lambda d: len(json.dumps(d)),
    "format": lambda d: len("{a} {b}".format(**d)),
    "deep": lambda d: copy.deepcopy(d)["b"],
    "popped": lambda d: d.pop("b"),
    "popitem": lambda d: d.popitem()[1],
    "default": lambda d: d.setdefault("b", 3) + d.setdefault("c", 4),
    "updated": lambda d: (d.update(a=5), d["a"] + d["b"])[1],
    "written": lambda d: (operator.setitem(d, "a", 3), sum(d.values()))[1],
    "added": lambda d: (operator.setitem(d, "c", d["a"] + 1), sum(d.values()), d["c"])[1:],
    "deleted": lambda d: (d.__delitem__("a"), sum(d.values()))[1],
    "getter": lambda d: operator.itemgetter("a", "b")(d)[1],
    "minimum": lambda d: min(d, key=d.get) == "a",
    "counter": lambda d: collections.Counter(d)["b"],
    "chain": lambda d: collections.ChainMap({}, d)["b"],
    "matched": lambda d: next(v for v in [d.get("b")] if v),
}


def of_dict(read):
    def body(x, d):
        found = read(d)
        return x * (sum(v for v in found if v is not None) if isinstance(found, tuple) else found), d

    return body


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
@pytest.mark.parametrize("read", READS_OF_DICTS.values(), ids=list(READS_OF_DICTS))
def test_what_is_read_of_dicts(read, kind):
    def make(trace):
        return trace(of_dict(read)), [call(X(3), kind(a=a, b=b)) for a, b in PAIRS]

    agree(make)


WRITES = {
    "appended": lambda b: (b.append(7), b[-1] + b[0])[1],
    "inserted": lambda b: (b.insert(0, 7), b[0] + b[1])[1],
    "popped": lambda b: b.pop() + b[0],
    "popped_first": lambda b: b.pop(0) + len(b),
    "set": lambda b: (operator.setitem(b, 0, 9), sum(b))[1],
    "doubled": lambda b: (operator.setitem(b, 1, b[0] * 2), sum(b))[1],
    "extended": lambda b: (b.extend([1, b[0]]), sum(b))[1],
    "sorted": lambda b: (b.sort(), b[0])[1],
    "reversed": lambda b: (b.reverse(), b[0])[1],
    "cleared": lambda b: (b.clear(), len(b))[1],
    "sliced": lambda b: (operator.setitem(b, slice(0, 1), [4, 4]), sum(b))[1],
    "repeated": lambda b: (operator.imul(b, 2), sum(b))[1],
    "removed": lambda b: (b.remove(b[0]), sum(b))[1],
    "swapped": lambda b: (operator.setitem(b, slice(None), b[::-1]), b[0])[1],
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_what_is_written(write):
    def make(trace):
        return trace(lambda x, b: (x * write(b), b)), [call(X(3), list(pair)) for pair in PAIRS]

    agree(make)


# ---------------------------------------------------------------- followed and compared
@cases(hits=5, recordings=3)
def a_number_that_is_used(trace):
    return trace(lambda b: b["x"] * b["scale"]), [call({"x": X(3), "scale": 1.5 + i}) for i in range(8)]


@cases(hits=5)
def a_number_of_a_tuple(trace):
    def body(b):
        x, scale = b
        return x * scale

    return trace(body), [call((X(3), i)) for i in range(2, 10)]


@cases(hits=5, recordings=3)
def a_number_of_a_list(trace):
    def body(b):
        x, *rest = b
        first, _second = rest
        return x * first

    return trace(body), [call([X(3), i, 2 * i]) for i in range(2, 10)]


@cases(hits=6)
def a_list_of_numbers_in_state(trace):
    state = {"pair": [1.0, 2.0]}

    def body(x):
        scale, shift = state["pair"]
        state["pair"] = [scale + 1, shift * 2]
        return x * scale + shift

    return trace(body), [call(X(3)) for _ in range(12)], lambda: state


@cases(hits=5, recordings=3)
def a_field_of_a_named_tuple(trace):
    return trace(lambda b: b.x * b.index), [call(Sample(X(3), i, f"{i}")) for i in range(2, 10)]


@cases(hits=2)
def too_many_values(trace):
    def body(x, pair):
        try:
            first, second = pair
        except ValueError as error:
            return x, str(error)
        return x * first, second

    pairs = [[1, 2], [3, 4], [5, 6], [1, 2, 3], [7, 8], [1], [2, 3]]
    return trace(body), [call(X(3), pair) for pair in pairs]


@cases(hits=4, recordings=2)
def tuples_of_texts(trace):
    """As the loaders of torch collate them."""
    return trace(lambda b: b[0] * 2), [call([X(3), (f"{i}.png", f"{i + 1}.png")]) for i in range(6)]


@cases(hits=4)
def a_tuple_is_given_back(trace):
    def body(b):
        return b["x"] * 2, b["size"], b["same"] == b["size"]

    def sized(i):
        size = (i % 3, "a")
        return call({"x": X(3), "size": size, "same": size if i % 2 else (i % 3, "a")})

    return trace(body), [sized(i) for i in range(16)]


SIZE = (4, 2)


@cases(hits=3)
def a_tuple_that_is_a_constant_of_the_program(trace):
    sizes = [(4, 9), (6, 1), SIZE, SIZE, (5, 3), (9, 9), SIZE, (7, 7)]
    return trace(lambda b: b["x"] * SIZE[0] + b["size"][0]), [call({"x": X(3), "size": s}) for s in sizes]


@cases(hits=3)
def a_literal_of_both(trace):
    sizes = [(4, 9), (6, 1), (8, 2), (8, 2), (5, 3), (9, 9), (8, 2), (7, 7)]

    def body(b):
        shape = (8, 2)
        height, width = shape
        return b["x"] * height + b["size"][0] - width

    return trace(body), [call({"x": X(3), "size": s}) for s in sizes]


@cases(hits=2)
def a_write_beside_one_that_nobody_reads(trace):
    def body(b):
        b["v"] = max(SIZE[1], b["v"] % 3)
        return b["x"] * b["v"], b

    pairs = [((1, 1), 3), ((2, 2), 5), (SIZE, 7), (SIZE, 8), ((3, 3), 9), (SIZE, 6), ((5, 5), 2), (SIZE, 0)]
    return trace(body), [call({"x": X(3), "t": t, "v": v}) for t, v in pairs]


@cases(hits=1)
def which_tuple_it_is(trace):
    def body(b):
        same = b["size"] is SIZE if b["mode"] == "eval" else None
        height, width = b["size"]
        return b["x"] * height + width, same

    modes = [("train", (5, 3)), ("train", (6, 1)), ("train", (7, 2)), ("train", (8, 3)), ("eval", SIZE)]
    modes += [("eval", (9, 9)), ("eval", SIZE), ("train", SIZE)]
    return trace(body), [call({"x": X(3), "size": size, "mode": mode}) for mode, size in modes]


@cases(hits=4)
def texts_that_say_what_to_do(trace):
    modes = ["up", "down", "up", "down", "other", "up", "down", "other"]

    def body(b):
        return b["x"] * 2 if b["mode"] == "up" else b["x"] / 2 if b["mode"] == "down" else b["x"]

    return trace(body), [call({"x": X(3), "mode": mode, "id": i}) for i, mode in enumerate(modes)]


@cases(hits=2)
def texts_that_begin_alike(trace):
    """Keys hold texts of any length: none is taken for another with what comes behind it."""
    names = ["a", "ab", "", "a\x00", "ä", "€", "a", "ab"]
    return trace(lambda b, c: b["x"] * len(b["name"])), [call({"x": X(3), "name": n}, [n]) for n in names]


@cases(hits=1, recordings=5)
def each_by_itself(trace):
    by_itself = trace(lambda b: b["x"] * 2, dynamic=False)
    return by_itself, [call({"x": X(3), "id": i}) for i in (0, 1, 2, 3, 4, 0)]


@cases(hits=1)
def another_type(trace):
    values = [1, 2, 3.0, 4.0, True, "5", None, 6, 7, 8.0]
    return trace(lambda b: (b["x"] * 2, type(b["id"]))), [call({"x": X(3), "id": v}) for v in values]


@cases(hits=4)
def given_back(trace):
    return trace(lambda b: (b["x"] * 2, b, b["id"])), [
        call({"x": X(3), "id": i}) for i in (0, 1, 2, 3, 4, 5, 6)
    ]


@cases(hits=4)
def stored_in_state(trace):
    state = {}

    def body(b):
        state["last"] = b
        state["id"] = b["id"]
        return b["x"] * 2

    return trace(body), [call({"x": X(3), "id": i}) for i in range(8)], lambda: state


@cases(hits=2)
def the_same_list_twice(trace):
    def body(a, b, x):
        a[0] = a[0] + 1
        return x * b[0]

    def shared(i):
        one = [i, 2]
        return call(one, one, X(3))

    return trace(body), [*(shared(i) for i in range(6)), *(call([i], [i], X(3)) for i in range(6))]


def raises_at_a_value(b):
    if b["id"] == 4:
        raise ValueError(f"no {b['name']}")
    return b["x"] * 2


@cases(hits=1)
def an_exception_that_names_one(trace):
    return trace(raises_at_a_value), [
        call({"x": X(3), "id": i, "name": f"n{i}"}) for i in (0, 1, 4, 2, 4, 0, 3)
    ]


@cases(hits=3)
def numbers_beside_a_number(trace):
    """An int that is passed by itself is followed beside one that is not."""
    return trace(lambda x, k, b: x * k + b[0]), [call(X(3), i, [i % 2]) for i in range(2, 12)]


@cases.parametrize
def test_agrees(make, expected):
    check(make, **expected)
