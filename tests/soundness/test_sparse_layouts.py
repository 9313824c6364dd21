"""Sparse tensors by rows and by columns, with blocks and without: all have the same dispatch keys."""

from __future__ import annotations

import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, call, check

cases = Cases()

DENSE = torch.arange(16.0).reshape(4, 4)
MAKERS = {
    "by rows": lambda: DENSE.to_sparse_csr(),
    "by columns": lambda: DENSE.to_sparse_csc(),
    "blocks by rows": lambda: DENSE.to_sparse_bsr((2, 2)),
    "blocks by columns": lambda: DENSE.to_sparse_bsc((2, 2)),
    "entries": lambda: DENSE.to_sparse(),
    "dense": lambda: DENSE.clone(),
}
BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)


def layout(t):
    return t.layout


def branch(t):
    return "rows" if t.layout in BY_ROWS else "others"


def text(t):
    return str(t.layout)


def beside_a_step(t):
    return DENSE * 2, t.layout


def positions(t):
    return t.crow_indices() if t.layout in BY_ROWS else DENSE.sum()


def scaled(t):
    return (t * 2).to_dense()


USES = [layout, branch, text, beside_a_step, positions, scaled]


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_each_layout_is_a_signature(use, dynamic):
    traced = lazytrace.traced(use, dynamic=dynamic)
    for make in [*MAKERS.values()] * 3:
        expected, seen = use(make()), traced(make())
        torch.testing.assert_close(seen, expected) if use is scaled else None
        assert str(seen) == str(expected)
    assert traced.stats().hits >= len(MAKERS)


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_each_layout_in_state_is_guarded(use, dynamic):
    class Holder:
        held = None

    def of_state():
        return use(holder.held)

    holder = Holder()
    traced = lazytrace.traced(of_state, dynamic=dynamic)
    for make in [*MAKERS.values()] * 3:
        holder.held = make()
        assert str(traced()) == str(of_state())
    assert traced.stats().hits >= len(MAKERS)


@cases(hits=4)
def what_is_added_to_a_set_by_layout(trace):
    """Adding what is there already is no write; the next layout is not there."""
    known = {torch.sparse_csr}

    def fn(t):
        return t.layout in known

    by_rows, by_columns = MAKERS["by rows"](), MAKERS["by columns"]()
    return trace(fn), [call(t) for t in (by_rows, by_rows, by_columns, by_columns, by_rows, by_columns)]


@cases.parametrize
def test_layouts(make, expected):
    check(make, **expected)


def test_the_layout_is_named():
    traced = lazytrace.traced(layout)
    traced(MAKERS["by rows"]())
    traced(MAKERS["by columns"]())
    assert any("layout" in str(reason) for event in traced.stats().events for reason in event.reasons)
