"""`.data` of tensors that show one memory: it is told which of them a tensor comes from."""

from __future__ import annotations

import numpy as np
import torch
from torch.autograd import Variable

from tests.soundness.runner import Cases, Holder, X, call, check

cases = Cases()


def drawn():
    return torch.from_numpy(np.random.randint(0, 9, 4))


def seeded(trace, body):
    """Seven calls; each draws from numpy's stream."""
    fn = trace(lambda x: body(x))
    seed = lambda: np.random.seed(3)  # noqa: E731
    return fn, [seed, *(call(X(4) * k) for k in (1, 2, 3, -4, 5, 6, 7))]


@cases(hits=6)
def of_a_variable_of_drawn_numbers(trace):
    """Losses of labels that numpy draws, as generative networks make them."""

    def body(x):
        labels = Variable(drawn())
        return x + labels, np.concatenate([labels.data.cpu().numpy(), labels.numpy()]).sum()

    return seeded(trace, body)


@cases(hits=6)
def of_a_view_of_drawn_numbers(trace):
    return seeded(trace, lambda x: (x + 1, drawn().view(-1).data, drawn().view(4).data.numpy().max()))


@cases(hits=6)
def of_a_view_and_of_what_it_shows(trace):
    def body(x):
        all_of_it = drawn()
        whole = all_of_it.view(-1)
        first, second = all_of_it.data, whole.data
        whole[0] = 3
        return x + first, second * 2, first.numpy().sum(), second.numpy().sum()

    return seeded(trace, body)


@cases(hits=3)
def of_rows_from_a_place_that_differs(trace):
    """At the first call they are all rows."""

    def body(x, k):
        y = x * 2
        rows = y[k:]
        first, second = y.data, rows.data
        y[0] = 5
        return first.sum(), second.sum(), second

    steps = [call(X(6), k) for k in (0, 1, 2, 0, 3, 4, 1)]
    return trace(body), steps


@cases(hits=4)
def of_rows_that_are_all_at_one_size(trace):
    def body(x):
        y = x * 2
        rows = y[:4]
        first, second = y.data, rows.data
        y[0] = 5
        return first.sum(), second.sum(), second

    return trace(body), [call(X(n, 2)) for n in (4, 6, 4, 7, 9, 5, 3)]


@cases(hits=3)
def of_a_view_whose_memory_is_exchanged(trace):
    """`.data =` in between."""

    def body(x, other):
        y = x * 2
        whole = y.view(-1)
        first = y.data
        y.data = other * 3
        return first, whole.data, y.data, y

    return trace(body), [call(X(4) * k, X(4)) for k in (1, 2, 3, 4, 5)]


@cases(hits=3)
def of_state_and_its_view(trace):
    """What lies in state may be exchanged between calls."""
    o = Holder(held=X(4))

    def body(x):
        whole = o.held.view(-1)
        first, second = o.held.data, whole.data
        return first + x, second * x, second

    change = lambda: setattr(o, "held", X(4) * 7)  # noqa: E731
    steps = [call(X(4) * k) for k in (1, 2, 3)] + [change] + [call(X(4) * k) for k in (4, 5, 6)]
    return trace(body), steps


@cases.parametrize
def test_data_of_views(make, expected):
    check(make, **expected)
