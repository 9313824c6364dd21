"""Parts of a tensor that begin at another place in each call, and are as long as they were."""

from __future__ import annotations

import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.soundness.runner import Cases, X, agree, call, check
from tests.soundness.test_flat_steps import forms

cases = Cases()


def numbered(*starts):
    return [call(X(3), i) for i in starts]


# ---------------------------------------------------------------- windows
@cases(hits=6, recordings=2)
def batches_of_what_is_known(trace):
    rows = torch.arange(40.0).view(20, 2)
    return trace(lambda x, i: rows[i * 2 : (i + 1) * 2].sum(0) + x.sum()), numbered(*range(9))


@cases(hits=6, recordings=2)
def a_window_that_slides(trace):
    line = torch.arange(32.0)
    return trace(lambda x, i: (line[i : i + 4], line[i + 1 : i + 5].clone())), numbered(*range(9))


@cases(hits=8)
def a_queue_that_is_written_around(trace):
    queue, state = torch.zeros(2, 12), types.SimpleNamespace(at=0)

    def step(x):
        at = state.at
        queue[:, at : at + 3] = x
        state.at = (at + 3) % 12
        return queue.sum(0)

    return trace(step), [call(X(2, 3) * i) for i in range(12)], lambda: (queue, state)


@cases(hits=5)
def windows_that_come_to_overlap(trace):
    line = torch.arange(12.0)

    def step(x, i, j):
        line[i : i + 3] += x
        line[j : j + 3] *= 2.0
        line[i : i + 3] = line[j : j + 3] + 1.0
        return line.clone(), line[i : i + 3], line[j : j + 3]

    pairs = [(0, 6), (1, 7), (2, 8), (2, 3), (3, 3), (4, 3), (9, 0), (5, 6)]
    return trace(step), [call(X(3), i, j) for i, j in pairs], lambda: line


@cases(hits=5)
def the_place_is_the_value_of_a_tensor(trace):
    text = torch.arange(50)

    def step(x, at):
        return torch.stack([text[i : i + 4] for i in at]), torch.stack([text[i + 1 : i + 5] for i in at])

    draw = torch.Generator().manual_seed(0)
    return trace(step), [call(X(3), torch.randint(46, (3,), generator=draw)) for _ in range(8)]


@cases(hits=5)
def by_narrow(trace):
    line = torch.arange(32.0)
    return trace(lambda x, i: (line.narrow(0, i, 4), line.narrow(0, 3 * i, 5) * 2)), numbered(*range(9))


@cases(hits=5)
def of_two_dimensions(trace):
    image = torch.arange(80.0).view(8, 10)
    crop = trace(lambda x, i, j: image[i : i + 3, j : j + 4] * x[0])
    return crop, [call(X(3), i % 5, i % 7) for i in range(9)]


@cases(hits=5)
def of_an_argument_with_a_gradient(trace):
    def step(x, i):
        return (x[i : i + 2] * x[i + 1 : i + 3]).sum()

    return trace(step), [call(X(8).requires_grad_(), i) for i in range(6)] * 2


# ---------------------------------------------------------------- what is no window any more
@cases(hits=4)
def the_last_one_is_shorter(trace):
    rows = torch.arange(22.0).view(11, 2)
    return trace(lambda x, i: rows[i * 3 : i * 3 + 3].sum(0)), numbered(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3)


@cases(hits=4)
def it_begins_before_the_first(trace):
    line = torch.arange(12.0)
    return trace(lambda x, i: line[i : i + 3] * 1.0), numbered(3, 4, 5, 6, -5, -3, -2, 0, 1, -3, -5, 2, 3, -1)


@cases(hits=4)
def it_ends_behind_the_last(trace):
    line = torch.arange(12.0)
    return trace(lambda x, i: (line[i : i + 3], x)), numbered(6, 7, 8, 9, 10, 11, 12, 13, 9, 10, 20, 2, 3)


@cases(hits=4)
def shorter_behind_a_write(trace):
    rows, count = torch.arange(22.0).view(11, 2), torch.zeros(1)

    def step(x, i):
        count.add_(1)
        return rows[i * 3 : i * 3 + 3].sum(0) + count

    return trace(step), numbered(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3), lambda: count


@cases(hits=4)
def both_ends_go_their_own_ways(trace):
    line = torch.arange(32.0)
    pairs = [(0, 4), (1, 5), (2, 6), (2, 7), (3, 3), (5, 2), (1, 9), (0, 4), (1, 5), (4, 20)]
    return trace(lambda x, i, j: line[i:j] * 2), [call(X(3), i, j) for i, j in pairs]


@cases(hits=4)
def a_window_that_grows(trace):
    line = torch.arange(64.0)
    return trace(lambda x, i: line[i : i + i] * 2), numbered(1, 2, 3, 4, 5, 6, 7, 8, 9)


@cases(hits=4)
def every_second_one(trace):
    line = torch.arange(64.0)
    return trace(lambda x, i: line[i : i + 5 : 2] * 2), numbered(1, 2, 3, 4, 5, 6, 7, 8, 9)


@cases(hits=4)
def set_to_what_is_made_as_large(trace):
    """It begins behind the last element from the other side, where nothing is left to set."""
    rows = torch.zeros(3, 4)

    def step(x, i):
        rows[i : i + 1] = x[:1]
        rows[:, i : i + 2] = x[:1, None]
        return rows[0:2, i : i + 2]

    return trace(step), numbered(1, 2, 3, -1, -2, 1, 2, -3, -2, 0, 1, 3, -2, 0), lambda: rows


@cases(hits=4)
def ends_too_large_for_an_index(trace):
    line = torch.arange(12.0)
    far = (0, 1, 2, 2**61, 2**62, 2**63 - 2, 2**63 + 5, 3, 4, -(2**62), 5, 6)
    return trace(lambda x, i: line[i : i + 3] * 2), numbered(*far)


@cases(hits=4)
def another_dimension_is_asked(trace):
    """The tensor is shorter in a later call: a signature of its own."""
    step = trace(lambda x, i: x[i : i + 3] * 2)
    return step, [
        call(X(n), i) for n, i in ((8, 1), (8, 2), (8, 3), (5, 1), (5, 2), (8, 5), (5, 3), (8, 4), (8, 0))
    ]


# ---------------------------------------------------------------- other numbers that are no sizes
@cases(hits=6, recordings=2)
def rolled_by_a_number(trace):
    return trace(lambda x, i: (x.roll(i), x.roll((i,), (0,)))), numbered(*range(9))


@cases(hits=6, recordings=2)
def triangles_at_a_diagonal(trace):
    square = torch.arange(16.0).view(4, 4)
    return trace(lambda x, i: (square.tril(i - 3), square.triu(i - 3))), numbered(*range(9))


@cases(hits=6, recordings=2)
def random_ints_up_to_a_number(trace):
    def step(x, i):
        return torch.randint(i + 2, (5,)), torch.randint(-i, i + 1, (5,))

    return trace(step), numbered(*range(9))


@cases(hits=6, recordings=2)
def the_kth_value(trace):
    return trace(lambda x, i: torch.arange(12.0).flip(0).kthvalue(i + 1)), numbered(*range(9))


@cases(hits=4)
def the_kth_value_of_too_few(trace):
    return trace(lambda x, i: x.kthvalue(i)), numbered(1, 2, 3, 4, 1, 0, 2, 3)


# ---------------------------------------------------------------- how long a part is hangs on values
def lengths(*found):
    return [call(X(12), torch.tensor(n)) for n in found]


@cases(hits=8)
def as_long_as_a_value_says(trace):
    return trace(lambda x, n: x[: n.item()] * 2), lengths(3, 4, 5, 6, 7, 8, 9, 10, 11, 2, 1, 0, 12, 5)


@cases(hits=10, recordings=3)
def few_lengths_have_branches(trace):
    return trace(lambda x, n: x[: n.item()] * 2), lengths(3, 4, 5, 3, 4, 5, 3, 4, 5, 3, 4, 5, 3)


@cases(hits=6)
def written_as_long_as_a_value_says(trace):
    def body(x, n):
        x = x.clone()
        x[2 : 2 + n.item()] = -1.0
        return x, x[n.item() :].sum()

    return trace(body), lengths(3, 4, 5, 6, 7, 8, 9, 10, 1, 0, 2, 6, 9)


# ---------------------------------------------------------------- memory of which a part is in use
class Cache(nn.Module):
    """Keys and values of the steps so far, in memory that is there from the start."""

    def __init__(self, room=12):
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(4, 12)
        self.register_buffer("keys", torch.zeros(1, room, 4))
        self.register_buffer("values", torch.zeros(1, room, 4))
        self.used = 0

    def look(self, x, part):
        query, key, value = self.project(x).chunk(3, -1)
        end = self.used + x.shape[1]
        part(self.keys, self.used, end).copy_(key)
        part(self.values, self.used, end).copy_(value)
        self.used = end
        scores = query @ self.keys[:, :end].transpose(1, 2)
        return scores.softmax(-1) @ self.values[:, :end]


PARTS = {
    "sliced": lambda whole, start, end: whole[:, start:end],
    "narrowed": lambda whole, start, end: whole.narrow(1, start, end - start),
    "turned": lambda whole, start, end: whole.mT.transpose(1, 2)[:, start:end],
    "of_a_view": lambda whole, start, end: whole.view_as(whole).movedim(1, 0)[start:end].movedim(0, 1),
}


@pytest.mark.parametrize("part", PARTS.values(), ids=list(PARTS))
@pytest.mark.parametrize("lengths", [[1] * 11, [3, 1, 1, 1, 2, 1, 1, 1]], ids=["by_one", "by_more"])
def test_a_cache_that_fills_up(part, lengths):
    def make(trace):
        cache = Cache()

        @torch.no_grad()
        def step(x):
            return cache.look(x, part)

        return (
            trace(step),
            [call(X(1, n, 4) * n) for n in lengths],
            lambda: (cache.used, cache.keys, cache.values),
        )

    check(make, hits=len(lengths) - 6)


def test_a_copy_at_some_sizes_only_is_none_of_them():
    """What `contiguous` gives is the argument's memory at one size and a copy at another."""

    def make(trace):
        def step(x, n):
            seen, other = x[:, :n].contiguous(), x[:, :n].contiguous()
            seen[:1] += 1.0
            other[:1] *= 3.0
            return seen.sum(), other.sum()

        return trace(step), [call(X(2, 6) + i, n) for i, n in enumerate([2, 3, 6, 4, 6, 5, 2, 6])]

    check(make, hits=4)


@cases.parametrize
def test_agrees(make, expected):
    check(make, **expected)


# ---------------------------------------------------------------- flat steps
def training(body, calls):
    def make(trace):
        torch.manual_seed(0)
        net = nn.Linear(2, 3)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        data, labels = torch.randn(24, 2), torch.randint(3, (24,))

        def step(i):
            loss = body(net, data, labels, i)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.item()

        return trace(step), [call(i) for i in calls], lambda: list(net.parameters())

    return make


def batch(net, data, labels, i):
    return F.cross_entropy(net(data[i * 4 : (i + 1) * 4]), labels[i * 4 : (i + 1) * 4])


def window_of_results(net, data, labels, i):
    return net(data)[i : i + 4].square().sum()


def test_a_step_that_takes_its_batch_is_flat():
    tracer = agree(training(batch, [i % 6 for i in range(24)]))
    assert tracer.count("hits") >= 18, tracer.account()
    assert "flat" in forms(tracer), forms(tracer)


def test_a_window_of_what_has_a_graph():
    tracer = agree(training(window_of_results, [i % 6 for i in range(24)]))
    assert tracer.count("hits") >= 18, tracer.account()
    assert "a number that may differ enters a graph" in forms(tracer), forms(tracer)
