"""Memory that `empty` made, written to in part: the rest is other bytes at each run, in eager mode, too."""

from __future__ import annotations

import warnings

import pytest
import torch

import lazytrace
from lazytrace._native import core


def in_front(x):
    out = torch.empty(8)
    out[:3] = x
    return out


def one_element(x):
    out = torch.empty(8)
    out.select(0, 1).fill_(2.0)
    return out * 2


def beside_what_is_known(x):
    out = x.new_empty(2, 8)
    out[1, :3].copy_(x)
    return out, out[1, :3].sum()


def of_bytes(x):
    out = torch.empty(16, dtype=torch.uint8)
    out[:3] = 1
    return out


def like_another(x):
    out = torch.empty_like(x)
    out[0] = 1
    return out


def turned(x):
    out = torch.empty(4, 8)
    out.t()[2] = x[0]
    return out.t()


# Made once: torch warns of the first of each.
BY_ROWS, BLOCKS = torch.eye(4).to_sparse_csr(), torch.eye(4).to_sparse_bsc((2, 2))


def compressed(x):
    return torch.empty_like(BY_ROWS), x * 2


def blocks(x):
    return torch.empty_like(BLOCKS), x * 2, x * 3


def made_dense(x):
    return torch.empty_like(BY_ROWS).to_dense(), x * 2, x * 3


FORMS = [
    in_front, one_element, beside_what_is_known, of_bytes, like_another, turned,
    compressed, blocks, made_dense,
]  # fmt: skip


def leave_garbage():
    """Memory that the next tensors are given holds something else each time."""
    del [torch.rand(size) for size in (3, 4, 8, 16, 32) * 8][:]


def seen_of(f, result):
    """What does not hang on the rest."""
    parts = {in_front: lambda r: r[:3], one_element: lambda r: r[1], of_bytes: lambda r: r[:3]}
    parts |= {beside_what_is_known: lambda r: (r[0][1, :3], r[1]), like_another: lambda r: r[0]}
    parts |= {compressed: lambda r: r[1]}
    return parts.get(f, lambda r: r[2])(result)


@pytest.mark.parametrize("f", FORMS, ids=lambda f: f.__name__)
def test_the_rest_is_no_difference(f):
    for _ in range(20):
        traced = lazytrace.traced(f)
        with warnings.catch_warnings():
            warnings.simplefilter("error", lazytrace.ProofWarning)
            for _ in range(3):
                leave_garbage()
                x = torch.rand(3)
                torch.testing.assert_close(seen_of(f, traced(x)), seen_of(f, f(x)))
        assert traced.stats().hits == 2, traced.stats().eager


def beside_a_compressed_one(x):
    return x * 2, torch.empty_like(BY_ROWS)


WRITTEN = [in_front, beside_what_is_known, beside_a_compressed_one]


@pytest.mark.parametrize("f", WRITTEN, ids=lambda f: f.__name__)
def test_what_was_written_is_compared(f, monkeypatch):
    prove, found = core.Trace.prove, []

    def with_another_argument(trace, call):
        x.add_(1)
        leave_garbage()
        found.append(prove(trace, call))
        return ""

    monkeypatch.setattr(core.Trace, "prove", with_another_argument)
    x = torch.rand(3)
    lazytrace.traced(f)(x)
    assert found == ["output differs in value"]
