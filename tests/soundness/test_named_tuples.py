"""Named tuples with a `__new__` of their own, as packed sequences have, and code without builtins."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

from tests.soundness.runner import Cases, X, call, check

cases = Cases()


class Pair(NamedTuple):
    a: torch.Tensor
    b: float = 2.0


class BySuper(Pair):
    def __new__(cls, a, b=3.0):
        return super().__new__(cls, a, b * 2)


class ByName(Pair):
    def __new__(cls, a, b=3.0):
        return Pair.__new__(cls, a, b * 2)


@cases(hits=2)
def by_super(trace):
    return trace(lambda x: x * BySuper(x).b), [call(X())] * 4


@cases(hits=2)
def by_name(trace):
    return trace(lambda x: x * ByName(x).b), [call(X())] * 4


@cases(eager="returns a BySuper, which cannot be rebuilt")
def returned(trace):
    return trace(lambda x: (BySuper(x * 2), ByName(x).a)), [call(X())] * 4


@cases(hits=3)
def made_by_replace_and_make(trace):
    def fn(x):
        pair = BySuper(x)._replace(b=4.0)
        return Pair._make((pair.a, pair.b)), pair._asdict()

    return trace(fn), [call(X())] * 4


class Doubled(Pair):
    def __iter__(self):
        return iter((self.a * 2, 7.0))


class Named(Pair):
    def __getitem__(self, place):
        return getattr(self, place) if isinstance(place, str) else 5.0


@cases(eager="hands .pop() to C code")
def replaced_in_one_that_is_gone_through_in_its_own_way(trace):
    def fn(x):
        pair = Doubled(x, 3.0)._replace(a=x + 1)
        return pair.a * pair.b

    return trace(fn), [call(X())] * 4


@cases(eager="hands .pop() to C code")
def replaced_in_one_that_has_items_of_its_own(trace):
    return trace(lambda x: x * Named(x, 3.0)._replace(a=x + 1)["b"]), [call(X())] * 4


@pytest.mark.parametrize("way", [BySuper, ByName])
def test_exchanged_between_calls(monkeypatch, way):
    """The function that makes the tuple is another one, or has other code."""

    def make(trace):
        monkeypatch.undo()
        plain = Pair.__new__

        def other(cls, a, b):
            return plain(cls, a * 10, b * 10)

        twice = [call(X()), call(X())]
        change = lambda: monkeypatch.setattr(Pair, "__new__", other)  # noqa: E731
        return trace(lambda x: way(x).a * way(x).b), [*twice, change, *twice, monkeypatch.undo, *twice]

    check(make, hits=2)


def test_code_exchanged_between_calls():
    code = Pair.__new__.__code__

    def other(_cls, a, b):
        return _tuple_new(_cls, (a * 10, b))  # noqa: F821

    def make(trace):
        Pair.__new__.__code__ = code

        def change():
            Pair.__new__.__code__ = other.__code__

        twice = [call(X()), call(X())]
        return trace(lambda x: BySuper(x).a * 2), [*twice, change, *twice]

    try:
        check(make, hits=2)
    finally:
        Pair.__new__.__code__ = code


# ---------------------------------------------------------------- packed sequences
def lengths(*values):
    return torch.tensor(values)


@cases(hits=3)
def packed(trace):
    torch.manual_seed(0)
    gru = nn.GRU(3, 4, batch_first=True, bidirectional=True)

    def fn(x, n):
        p = pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
        out, _ = gru(p)
        return pad_packed_sequence(out, batch_first=True)

    batches = [lengths(5, 3, 2)] * 4 + [
        lengths(2, 5, 3),
        lengths(5, 5, 5),
        lengths(1, 2, 3),
        lengths(5, 3, 2),
    ]
    return trace(fn), [call(torch.randn(3, 5, 3), n) for n in batches], lambda: list(gru.parameters())


@cases(hits=2)
def packed_with_a_wrong_length(trace):
    def fn(x, n):
        return pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False).data * 2

    batches = [lengths(5, 3, 2)] * 4 + [lengths(5, 0, 2), lengths(9, 3, 2), lengths(5, 3, 2)]
    return trace(fn), [call(torch.randn(3, 5, 3), n) for n in batches]


@cases(hits=2)
def packed_lists(trace):
    def fn(x, y):
        p = pack_sequence([x, y])
        return p.data * 2, p.batch_sizes, p.to(torch.float64).data, p.is_cuda

    return trace(fn), [call(torch.randn(4, 2), torch.randn(3, 2)) for _ in range(4)]


@pytest.mark.parametrize("inside", [True, False], ids=["lengths inside", "lengths passed"])
def test_training_with_packed_sequences(inside):
    def make(trace):
        torch.manual_seed(0)
        lstm, head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)
        both = nn.ModuleList([lstm, head])
        optimizer = torch.optim.Adam(both.parameters(), 0.01)

        def step(x, n):
            optimizer.zero_grad()
            n = (x[:, :, 0] != 0).sum(1) if inside else n
            _, (h, _) = lstm(pack_padded_sequence(x, n.cpu(), batch_first=True, enforce_sorted=False))
            loss = head(h[-1]).pow(2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(both.parameters(), 1.0)
            optimizer.step()
            return loss.item()

        def batch(i):
            n = torch.tensor([[5, 3, 2], [4, 5, 1]][i % 7 == 6])
            x = torch.randn(3, 5, 3) * (torch.arange(5)[None, :, None] < n[:, None, None])
            return call(x, n)

        return trace(step), [batch(i) for i in range(12)], lambda: list(both.parameters())

    check(make, hits=5)


# ---------------------------------------------------------------- other builtins
def bare(source, **names):
    """A function whose code has no builtins but those that are given."""
    space = {"__builtins__": {}, **names}
    exec(source, space)
    return space["f"]


def test_first_instruction_in_code_without_builtins():
    program = (
        "import torch, lazytrace\n"
        "space = {'__builtins__': {}, 'torch': torch}\n"
        "exec('def f(x):\\n    with torch.no_grad(): y = torch.tanh(x) * 2\\n    return y + x', space)\n"
        "f = lazytrace.traced(space['f'])\n"
        "x = torch.ones(3)\n"
        "assert all(torch.equal(f(x), space['f'](x)) for _ in range(4))\n"
        "print(f.stats().hits, f.stats().eager)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 "), done.stdout


@cases(hits=2)
def without_builtins(trace):
    return trace(bare("def f(x):\n    return x * 2 if x.sum() > 0 else x", torch=torch)), [call(X())] * 4


@cases(eager="runs with builtins of its own")
def builtins_of_its_own_change(trace):
    own = {"len": len}
    f = bare("def f(x):\n    return x * len(x)")
    f.__globals__["__builtins__"] = own
    f = type(f)(f.__code__, {"__builtins__": own})
    change = lambda: own.update(len=lambda x: 7)  # noqa: E731
    return trace(f), [call(X()), call(X()), change, call(X()), call(X())]


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)
