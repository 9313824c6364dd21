"""Dicts among the arguments with tuples as keys, as those of graphs with several kinds of edges."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from lazytrace import traced
from tests.soundness.runner import Cases, Holder, X, call, check

cases = Cases()
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def graph(authors=4, papers=3, edges=5, order=(WRITES, CITES)):
    sizes = {"author": authors, "paper": papers}
    nodes = {kind: torch.randn(size, 3) for kind, size in sizes.items()}
    ends = {
        key: torch.stack([torch.randint(sizes[end], (edges,)) for end in (key[0], key[2])]) for key in order
    }
    return call(nodes, ends)


def message_passing(trace):
    weights = nn.ParameterDict({"writes": torch.ones(3, 3), "cites": torch.full((3, 3), 2.0)})

    def forward(x, edges):
        found = {}
        for key, (begin, end) in edges.items():
            source, name, target = key
            sent = x[source][begin] @ weights[name]
            found.setdefault(target, []).append(torch.zeros_like(x[target]).index_add(0, end, sent))
        return {kind: torch.stack(all_of_it).sum(0) for kind, all_of_it in found.items()}

    return trace(forward), weights


@cases(hits=5)
def kinds_of_edges(trace):
    step, weights = message_passing(trace)
    return step, [graph() for _ in range(6)], lambda: dict(weights)


@cases(hits=4)
def kinds_of_edges_at_other_sizes(trace):
    step, weights = message_passing(trace)
    sizes = [(4, 3, 5), (5, 2, 7), (7, 1, 0), (2, 6, 1), (1, 1, 3), (3, 5, 2)]
    return step, [graph(*some) for some in sizes], lambda: dict(weights)


@cases(hits=3, recordings=3)
def kinds_of_edges_in_another_order_or_fewer(trace):
    step, weights = message_passing(trace)
    orders = [(WRITES, CITES), (CITES, WRITES), (CITES,)] * 2
    return step, [graph(order=order) for order in orders], lambda: dict(weights)


@cases(hits=3, recordings=3)
def keys_that_are_equal_and_of_other_types(trace):
    def step(x):
        (key,) = x
        return x[1, 2] * 2, type(key[0]).__name__

    keys = [(1, 2), (1.0, 2), (True, 2)] * 2
    return trace(step), [call({key: X()}) for key in keys], lambda: None


@cases(hits=2, recordings=2)
def keys_of_which_one_is_not_a_number(trace):
    nan = float("nan")

    def step(x):
        return x[nan,] * 2 if (nan,) in x else sum(x.values()) * 3

    keys = [(nan,), (-nan,)] * 2
    return trace(step), [call({key: X()}) for key in keys], lambda: None


@cases(eager="compares-identity")
def which_tuple_it_is(trace):
    kept = tuple("a1")

    def step(x):
        (key,) = x
        return x[key] * (2 if key is kept else 3)

    keys = [kept, tuple("a1"), kept, tuple("a1")]
    return trace(step), [call({key: X()}) for key in keys], lambda: None


@cases(hits=3)
def numbers_in_keys(trace):
    def step(x, n):
        return x[n, "a"] * n

    return trace(step), [call({(n, "a"): X()}, n) for n in (1, 2, 3, 1, 2, 3)], lambda: None


@cases(hits=3)
def entries_that_are_written(trace):
    def step(x):
        x["sum", 0] = x.pop(("a", 1)) + x["b", 2]
        x.setdefault(("c",), x["sum", 0] * 2)
        x.update({("d", 4): x["c",] - 1})
        del x["b", 2]
        return x, ("a", 1) in x, x.get(("b", 2)), len(x)

    return trace(step), [call({("a", 1): k * X(), ("b", 2): X()}) for k in range(1, 5)], lambda: None


@cases(hits=3)
def in_other_containers(trace):
    def step(x):
        ordered = x["all"][0]
        ordered.move_to_end(("a",))
        return list(ordered), max(ordered), {k[0]: v * 2 for k, v in ordered.items()}

    def given(k):
        return call({"all": [OrderedDict({("a",): k * X(), ("b",): X()})]})

    return trace(step), [given(k) for k in range(1, 5)], lambda: None


@cases(hits=2)
def stored_in_state(trace):
    state = Holder(last=None, keys=None)

    def step(x):
        state.last = {key: value * 2 for key, value in x.items()}
        state.keys = list(x)
        return state.last["a", 1]

    return trace(step), [call({("a", 1): k * X()}) for k in range(1, 5)], lambda: (state.last, state.keys)


@cases(eager="takes-odd-key")
def tuples_with_other_keys(trace):
    def step(x):
        return sum(x.values()) * 2

    return trace(step), [call({("a", frozenset({k})): X()}) for k in (1, 1, 2)], lambda: None


@cases.parametrize
def test_tuples(make, expected):
    check(make, **expected)


def test_the_key_is_named():
    step = traced(lambda x: x["e"][("a", 1)] * 2 if ("a", 1) in x["e"] else x["e"]["b",] * 2)
    step({"e": {("a", 1): X()}})
    said = str(step.explain({"e": {("b",): X()}}))
    assert "x['e'][('a', 1)].dtype float32 -> nothing" in said, said
    assert "x['e'][('b',)].dtype nothing -> float32" in said or "more" in said, said
