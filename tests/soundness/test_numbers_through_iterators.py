"""Values of tensors that are followed where C code hands them on, as iterators do."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.soundness.runner import Cases, call, check

cases = Cases()


def each(x):
    yield from x.tolist()


def one_by_one(x):
    for value in x.tolist():
        last = value
        yield last


class Row:
    """Items through code of Python."""

    def __init__(self, x):
        self.x = x

    def __getitem__(self, at):
        return self.x[at] * 2


def groups(x):
    values = each(x)
    while group := [*itertools.islice(values, 2)]:
        yield group


FOLLOWED = {
    "list_of_a_generator": lambda x: list(one_by_one(x)),
    "tuple_of_a_generator": lambda x: tuple(each(x)),
    "enumerated": lambda x: dict(enumerate(one_by_one(x))),
    "zipped": lambda x: list(zip(each(x), one_by_one(x), strict=True)),
    "a_slice": lambda x: list(itertools.islice(one_by_one(x), 2)),
    "a_slice_in_a_loop": lambda x: [value * 2 for value in itertools.islice(each(x), 1, 3)],
    "groups": lambda x: list(groups(x)),
    "chained": lambda x: [*itertools.chain(each(x), one_by_one(x))],
    "chained_lists": lambda x: list(itertools.chain.from_iterable([x.tolist(), x.tolist()])),
    "pairs": lambda x: [a - b for a, b in itertools.pairwise(x.tolist())],
    "products": lambda x: [a * b for a, b in itertools.product(x.tolist(), repeat=2)],
    "combined": lambda x: list(itertools.combinations(x.tolist(), 2)),
    "permuted": lambda x: list(itertools.permutations(x.tolist(), 2)),
    "repeated": lambda x: list(itertools.repeat(x.sum().item(), 3)),
    "in_turns": lambda x: [value for _, value in zip(range(5), itertools.cycle(x.tolist()), strict=False)],
    "filled_up": lambda x: list(itertools.zip_longest(x.tolist(), [1.0], fillvalue=0.5)),
    "mapped": lambda x: list(map(lambda value: value + 1, one_by_one(x))),  # noqa: C417
    "a_union": lambda x: {"a": x.sum().item()} | {"b": x.mean().item(), "a": x.max().item()},
    "items_by_an_index": lambda x: [Row(x)[at] for at in torch.argsort(x).tolist()],
    "into_a_tensor": lambda x: torch.tensor([2 * value for value in itertools.islice(each(x), 3)]),
}


@pytest.mark.parametrize("body", FOLLOWED.values(), ids=list(FOLLOWED))
def test_what_is_handed_on(body):
    def make(trace):
        torch.manual_seed(0)
        return trace(body), [call(torch.randn(4)) for _ in range(6)]

    check(make, hits=5, recordings=1)


def of_ints(x, more):
    """Some of these are read where C code needs an int."""
    at, *rest = x.tolist()
    return more(at, rest)


READ = {
    "how_many": lambda at, rest: list(itertools.islice(rest, at)),
    "how_often": lambda at, rest: list(itertools.repeat(1.5, at)),
    "in_a_set": lambda at, rest: sorted({*itertools.chain([at], rest)}),
    "keys_of_a_dict": lambda at, rest: dict.fromkeys(itertools.chain([at], rest), 1),
    "grouped": lambda at, rest: [(key, len(list(of))) for key, of in itertools.groupby([at, *rest])],
    "kept_while": lambda at, rest: list(itertools.takewhile(lambda value: value < 3, [at, *rest])),
    "selected": lambda at, rest: list(itertools.compress("abc", [at, *rest])),
    "added_up": lambda at, rest: list(itertools.accumulate([at, *rest])),
    "mapped_by_c": lambda at, rest: list(map(abs, itertools.chain([at], rest))),
    "the_largest": lambda at, rest: max(itertools.chain([at], rest)),
    "written": lambda at, rest: str(list(itertools.chain([at], rest))),
    "compared": lambda at, rest: list(itertools.chain([at], rest)) == [1, 2, 3],
}


@pytest.mark.parametrize("more", READ.values(), ids=list(READ))
def test_what_is_read(more):
    def make(trace):
        rows = [[1, 2, 3], [1, 2, 3], [2, 2, 0], [1, 2, 3], [0, 5, 5], [2, 2, 0], [1, 2, 3]]
        return trace(lambda x: of_ints(x, more)), [call(torch.tensor(row)) for row in rows]

    check(make, hits=1)


@cases(hits=4)
def a_key_for_code_of_python(trace):
    class Table:
        def __init__(self):
            self.rows = {}

        def __setitem__(self, at, value):
            self.rows["last"] = at, value

    def step(x):
        table = Table()
        table[x.sum().item()] = x
        return table.rows

    return trace(step), [call(torch.arange(3.0) * k) for k in range(6)]


@cases.parametrize
def test_numbers(make, expected):
    check(make, **expected)
