"""What `out=` gives another size: a function that runs again finds the one of before."""

from __future__ import annotations

import pytest
import torch

from tests.soundness.runner import Cases, Holder, call, check

cases = Cases()

ENDS = "changes the size of what it writes to"


def growing():
    """The first entry says how large the result is; the tensor itself has other sizes at each call."""
    return [call(torch.tensor([v, 1] + [0] * v)) for v in (3, 4, 9, 5, 3, 4, 0, 1, 9, 2)]


@cases(hits=6)
def as_many_as_a_value_says(trace):
    total = torch.zeros(1)

    def fn(x):
        total.add_(1)
        out = torch.empty(0)
        torch.zeros(x.max().item(), out=out)
        return out + 0, out * 2

    return trace(fn), growing(), lambda: total.clone()


@cases(hits=6)
def two_at_once(trace):
    total = torch.zeros(1)

    def fn(x):
        total.add_(1)
        values, places = torch.empty(0), torch.empty(0, dtype=torch.long)
        torch.max(x.view(1, -1).float().expand(3, -1), 0, out=(values, places))
        return values + places, values, places

    return trace(fn), growing(), lambda: total.clone()


@pytest.mark.parametrize("fails", [False, True], ids=["branch", "error"])
@pytest.mark.parametrize("asked", [False, True], ids=["behind", "before"])
def test_recorded_where_it_stays_empty(asked, fails):
    """At other calls it is given more, and a function that runs again finds it with as much."""

    def make(trace):
        state = Holder(count=torch.zeros(1))

        def fn(x):
            state.count.add_(1)
            out = torch.empty(0)
            size = out.numel() if asked else 0
            torch.masked_select(x, x > 2, out=out)
            y = torch.ones(out.shape) + size
            torch.masked_select(x + 1, x > (1 if fails else 4), out=out)
            if fails:
                return out + y
            return out * 2 if out.sum().item() > 12 else (out, y)

        rows = [call(torch.arange(n * 1.0)) for n in (2, 3, 2, 1, 4, 9, 5, 3, 4, 1, 2, 9, 2, 0, 7)]
        return trace(fn), rows, lambda: state.count

    check(make, eager=ENDS)


def asks_its_size(trace):
    state = Holder(log=[])

    def fn(x):
        out = torch.empty(0)
        before = out.numel()
        torch.mul(x, 2.0, out=out)
        if out.sum().item() > 12:
            return out * 1, before, out.numel()
        return out, before

    return trace(fn), [call(torch.ones(3) * k) for k in (1, 3, 1, 3, 5, 0, 1)], lambda: list(state.log)


def test_starts_over_where_no_tensor_was_changed():
    check(asks_its_size, hits=2)


@pytest.mark.parametrize("seen", [len, torch.numel], ids=("len", "numel"))
def test_is_not_resumed_behind_it(seen):
    """Run again, the function would be handed what has the new size by then, and note that."""

    def make(trace):
        state = Holder(log=[], count=torch.zeros(1))

        def fn(x):
            out = torch.empty(0)
            state.count.add_(1)
            state.log.append(seen(out))
            torch.mul(x, 2.0, out=out)
            return out * 1 if out.sum().item() > 12 else out

        return (
            trace(fn),
            [call(torch.ones(3) * k) for k in (1, 3, 1, 3, 5, 0, 1)],
            lambda: (list(state.log), state.count),
        )

    check(make, eager=ENDS)


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)
