"""What opt_einsum notes for people, in decimal numbers, when `torch.einsum` asks it how to multiply."""

from __future__ import annotations

import decimal
import sys
import types

import pytest
import torch

from tests.soundness.runner import Cases, call, check

cases = Cases()

SOURCE = """
from decimal import Decimal

class PathInfo:
    def __init__(self, sizes, cost):
        self.sizes = sizes
        self.cost = Decimal(cost)
        self.speedup = self.cost / max(Decimal(3), Decimal(1))

def contract_path(*operands, optimize="auto"):
    sizes = {i: one.shape[0] for i, one in enumerate(operands)}
    return [(0, 1), (0, 1)], PathInfo(sizes, 10)
"""


@pytest.fixture(autouse=True)
def path_info(monkeypatch):
    """A package with what torch and lazytrace ask of opt_einsum, which need not be installed."""
    package, module = types.ModuleType("opt_einsum"), types.ModuleType("opt_einsum.contract")
    exec(compile(SOURCE, "opt_einsum/contract.py", "exec"), module.__dict__)
    package.contract_path = module.contract_path
    monkeypatch.setitem(sys.modules, "opt_einsum", package)
    monkeypatch.setitem(sys.modules, "opt_einsum.contract", module)
    monkeypatch.setattr(torch.backends.opt_einsum, "_opt_einsum", package)
    monkeypatch.setattr(torch.backends.opt_einsum, "enabled", True)
    monkeypatch.setattr(torch.backends.opt_einsum, "strategy", "auto")


def path(*operands):
    return sys.modules["opt_einsum"].contract_path(*operands)


def matrices(*sizes):
    return [call(*(torch.arange(n * n * 1.0).reshape(n, n) / n for _ in range(3))) for n in sizes]


@cases(hits=5)
def three_tensors(trace):
    fn = trace(lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c))
    return fn, matrices(2, 2, 3, 4, 5, 3, 2)


@cases(hits=3)
def path_that_is_used(trace):
    fn = trace(lambda a, b, c: a @ b * len(path(a, b, c)[0]))
    return fn, matrices(2, 2, 2, 2)


def at_precisions(fn):
    def use(precision, *operands):
        with decimal.localcontext(prec=precision):
            return fn(*operands)

    return use, [call(n, *(torch.ones(2, 2) for _ in range(3))) for n in (28, 28, 3, 5)]


@cases(hits=2)
def precision_of_what_is_dropped(trace):
    fn = trace(lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c))
    return at_precisions(fn)


@cases(eager="reads a PathInfo that an opaque function has changed")
def what_it_notes_is_read(trace):
    fn = trace(lambda a, b, c: (a @ b, str(path(a, b, c)[1].speedup)))
    return at_precisions(fn)


@cases(eager="decimal.Decimal")
def another_class_of_that_name(trace):
    other: dict[str, object] = {}
    exec(compile(SOURCE, "opt_einsum/contract.py", "exec"), other)
    fn = trace(lambda a, b, c: (a @ b, len(other["contract_path"](a, b, c)[0])))
    return fn, matrices(2, 2, 2)


@cases.parametrize()
def test_notes(make, expected):
    check(make, **expected)
