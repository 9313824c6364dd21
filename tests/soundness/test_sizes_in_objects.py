"""Calls whose tensors all lie in objects, as those of a batch of graphs: each call may bring other sizes."""

from __future__ import annotations

import torch
from torch import nn

from tests.soundness.runner import Cases, X, call, check

cases = Cases()


class Graphs:
    """A batch of graphs, all in one."""

    def __init__(self, nodes, edges=4, graphs=2):
        self.x = torch.arange(nodes * 2.0).reshape(nodes, 2)
        self.edges = torch.arange(2 * edges).reshape(2, edges) % max(nodes, 1)
        self.graph = torch.arange(nodes) % graphs
        self.graphs = graphs


SIZES = (5, 6, 7, 1, 2, 5, 9)


def batches(*nodes, **others):
    return [call(Graphs(n, **others)) for n in nodes]


@cases(hits=5, recordings=2)
def sums_by_graph(trace):
    def fn(batch):
        sums = torch.zeros(batch.graphs, 2)
        return sums.index_add(0, batch.graph, batch.x[batch.edges[0]].sum() + batch.x), len(batch.x)

    return trace(fn), batches(*SIZES)


@cases(hits=4, recordings=2)
def step_of_training(trace):
    torch.manual_seed(0)
    layer = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def fn(batch):
        optimizer.zero_grad()
        loss = layer(batch.x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return trace(fn), batches(*SIZES), lambda: [p.detach().clone() for p in layer.parameters()]


@cases(hits=4)
def branch_on_a_size(trace):
    fn = trace(lambda batch: batch.x * 2 if batch.x.shape[0] > 5 else batch.x.sum())
    return fn, batches(*SIZES)


@cases(hits=3)
def two_sizes_that_are_one(trace):
    """The second tensor is cut to the first one: a slice of everything, or less."""

    def fn(batch):
        return batch.x.sum(1)[: batch.graph.shape[0]] + batch.graph

    def make(nodes, longer):
        batch = Graphs(nodes)
        batch.x = torch.cat([batch.x, torch.ones(longer, 2)])
        return batch

    sizes = ((4, 0), (5, 0), (5, 2), (6, 0), (7, 1), (4, 3))
    return trace(fn), [call(make(*each)) for each in sizes]


@cases(hits=3)
def broadcast_at_one_size(trace):
    """A tensor with one row is stretched over the others."""

    def fn(batch):
        return batch.x + batch.other

    def make(nodes, rows):
        batch = Graphs(nodes)
        batch.other = torch.arange(rows * 2.0).reshape(rows, 2)
        return batch

    sizes = ((4, 4), (5, 5), (5, 1), (6, 6), (7, 1), (1, 3), (4, 4))
    return trace(fn), [call(make(*each)) for each in sizes]


@cases(hits=4)
def number_beside_the_sizes(trace):
    fn = trace(lambda batch: batch.x.sum(0) * batch.graphs)
    return fn, [
        call(Graphs(n, graphs=g)) for n, g in ((4, 2), (5, 2), (6, 3), (7, 4), (8, 5), (9, 2), (3, 7))
    ]


class Cache:
    """As a cache of a decoder: what it has room for is made at the first use."""

    def __init__(self, room):
        self.room = room
        self.keys = None

    def update(self, x):
        if self.keys is None:
            self.keys = torch.zeros(self.room, x.shape[1])
        self.keys[: len(x)] = x
        return self.keys


def with_rooms(fn, *pairs):
    return fn, [call(X(n, 2), Cache(room)) for n, room in pairs]


@cases(hits=6, recordings=2)
def size_of_what_the_call_makes(trace):
    """It is the same at the first two sizes, and followed from the second one on."""
    fn = trace(lambda x, cache: (cache.update(x) * 2, x.sum()))
    return with_rooms(fn, (4, 9), (5, 9), (5, 11), (2, 3), (1, 2), (7, 9), (1, 1), (0, 0))


@cases(hits=5, recordings=4)
def size_that_another_way_makes(trace):
    """The first call with a cache fills it, the next ones take what is there: no key tells them apart."""

    def fn(x, cache):
        return (cache.keys if cache.keys is not None else cache.update(x)).sum() + x.sum()

    caches = [(n, Cache(room)) for n, room in ((4, 9), (5, 8), (3, 7), (2, 3), (1, 1))]
    return trace(fn), [call(X(n, 2), cache) for n, cache in caches for _ in range(2)]


@cases(hits=3, recordings=3)
def size_that_is_counted_through(trace):
    """The number is read as well: of each that is another one there is a recording."""

    def fn(x, cache):
        return cache.update(x), [2 * i for i in range(cache.room)]

    return with_rooms(trace(fn), (4, 9), (5, 9), (5, 7), (2, 9), (3, 7), (3, 9))


@cases(hits=3, recordings=3)
def size_that_is_asked_for(trace):
    def fn(x, cache):
        kept = cache.update(x)
        return (kept * 2 if cache.room > 8 else kept.sum()), cache.room

    return with_rooms(trace(fn), (4, 9), (5, 9), (5, 7), (2, 3), (3, 12), (2, 4))


@cases(hits=3, recordings=3)
def size_that_becomes_another_thing(trace):
    fn = trace(lambda x, cache: cache.update(x).sum() if cache.room else x.sum())
    rooms = ((4, 9), (5, 9), (5, None), (6, 7), (6, None), (2, 3))
    return with_rooms(fn, *rooms)


@cases(hits=4, recordings=2)
def number_that_differs_with_a_size(trace):
    """What was recorded for another size says which numbers have changed with it."""
    fn = trace(lambda x, held: x * held.graphs + held.x.sum())
    sizes = ((4, 2), (5, 3), (6, 3), (1, 7), (2, 2), (7, 0))
    return fn, [call(X(n, 2), Graphs(3, graphs=max(g, 1))) for n, g in sizes]


@cases(hits=3)
def tensors_of_a_closure(trace):
    """No argument at all."""
    held = {"x": X(3, 2)}
    fn = trace(lambda: held["x"] * 2)

    def use(size):
        held["x"] = torch.ones(size, 2)
        return fn()

    return use, [call(n) for n in (3, 4, 5, 3, 1)]


@cases(hits=1, recordings=3)
def another_dtype_of_the_same_batch(trace):
    def make(dtype, nodes):
        batch = Graphs(nodes)
        batch.x = batch.x.to(dtype)
        return batch

    fn = trace(lambda batch: batch.x * 2)
    return fn, [call(make(torch.float32, n)) for n in (4, 5)] + [
        call(make(t, 6)) for t in (torch.float64, torch.float32)
    ]


@cases(hits=2)
def recorded_for_each_size(trace):
    fn = trace(lambda batch: batch.x * 2, dynamic=False)
    return fn, batches(4, 5, 4, 5, 6)


@cases(hits=2)
def a_value_that_cannot_be_followed(trace):
    """Its sizes go to C code that looks at them: each size is recorded for itself."""
    fn = trace(lambda batch: batch.x * len(str(batch.x.shape)))
    return fn, batches(4, 5, 4, 5, 4, 5)


@cases.parametrize()
def test_sizes_in_objects(make, expected):
    check(make, **expected)
