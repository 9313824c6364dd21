"""Sizes that values say: the second one that differs is recorded for all."""

from __future__ import annotations

import collections

import pytest
import torch
import torch.nn.functional as F

import lazytrace
from tests.soundness.runner import Cases, Holder, agree, call, check

cases = Cases()


def masks(count=12, size=6):
    """Inputs with another number of positive entries each."""
    steps = []
    for i in range(count):
        x = -torch.rand(size, 3)
        x[: i % (size + 1)] *= -1
        steps.append(call(x))
    return steps


@cases(hits=8)
def chosen_rows(trace):
    w = torch.ones(3, requires_grad=True)
    return trace(lambda x: (x[x[:, 0] > 0] * w).sum(0)), masks()


@cases(hits=8)
def where_it_is(trace):
    return trace(lambda x: x[torch.where(x[:, 0] > 0)[0]].mul(2).sum()), masks()


@cases(hits=6)
def after_a_write(trace):
    count = torch.zeros(())

    def fn(x):
        count.add_(1)
        return x[x[:, 0] > 0].sum() + torch.rand(())

    return trace(fn), masks(), lambda: [count.item()]


@cases(hits=6)
def its_size_is_returned(trace):
    def fn(x):
        rows = x.nonzero()
        return rows.shape[0], rows * 2

    return trace(fn), masks()


@cases(hits=6)
def in_place_on_what_was_chosen(trace):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        h = (x[x[:, 0] > 0] * w).exp()
        return h.sqrt_().add(1).mul_(2).sum()

    return trace(fn), masks()


@cases(hits=5)
def experts(trace):
    torch.manual_seed(0)
    gate, one, two = (torch.nn.Linear(3, 3) for _ in range(3))
    model = torch.nn.ModuleList([gate, one, two])
    opt = torch.optim.Adam(model.parameters(), lr=0.1)

    def fn(x):
        opt.zero_grad()
        chosen = gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate((one, two)):
            (row,) = torch.where(chosen == i)
            out.index_add_(0, row, expert(x[row]))
        loss = F.mse_loss(out, x)
        loss.backward()
        opt.step()
        return loss.detach()

    return trace(fn), masks(), lambda: [(p, p.grad) for p in model.parameters()]


@cases(hits=6)
def an_index_beyond_it_after_a_write(trace):
    log = []

    def fn(x):
        rows = x[x[:, 0] > 0]
        log.append(rows.size(0))
        rows[0] = 3
        return rows

    return trace(fn, dynamic=True), masks(14), lambda: log


@cases(hits=6)
def an_index_beyond_it_after_a_change(trace):
    count = torch.zeros(())

    def fn(x):
        rows = x[x[:, 0] > 0]
        count.add_(1)
        return rows[0] * 2

    return trace(fn), masks(14), lambda: [count]


@cases.parametrize
def test_sizes_from_values(make, expected):
    check(make, **expected)


def test_the_second_size_is_the_last_recording():
    fn = lazytrace.traced(lambda x: x[x[:, 0] > 0].sum())
    for step in masks():
        fn(*step.args)
    assert fn.stats().recordings == 2, fn.stats()


def test_dynamic_false_records_each_size():
    fn = lazytrace.traced(dynamic=False)(lambda x: x[x[:, 0] > 0].sum())
    for step in masks():
        fn(*step.args)
    assert fn.stats().recordings == 7


def test_behind_a_change_the_call_goes_on_and_the_next_is_recorded():
    count = torch.zeros(())

    @lazytrace.traced
    def fn(x):
        count.add_(1)
        return x[x[:, 0] > 0].sum()

    for step in masks():
        fn(*step.args)
    reason = "values say how large a result is, and another size came"
    assert any(text.startswith(reason) for text in fn.stats().eager), fn.stats().eager
    assert fn.stats().recordings == 2
    assert count.item() == 12


def lengths_of_windows(x, lengths):
    """As models that cut a series into periods do, each with a length of its own."""
    parts = []
    for at in range(len(lengths)):
        n = lengths[at].item()
        parts.append(x[: 12 // n * n].reshape(12 // n, n).sum(0).mean())
    return torch.stack(parts)


def test_several_numbers_that_say_sizes_count_together():
    """Each of the four has a few values: a recording for each of their 81 combinations would be too many."""
    rows = [[(2, 3, 4)[at // 3**i % 3] for i in range(4)] for at in range(81)]

    def make(trace):
        count = torch.zeros(())

        def fn(x, lengths):
            count.add_(1)
            return lengths_of_windows(x, lengths)

        return trace(fn), [call(torch.arange(12.0), torch.tensor(row)) for row in rows], lambda: [count]

    tracer = agree(make)
    assert tracer.count("recordings") <= 6, tracer.account()
    assert tracer.count("hits") >= 70, tracer.account()


# ---------------------------------------------------------------- containers and optimizers
class Output(collections.OrderedDict):
    """As models of transformers give it."""

    def __getitem__(self, k):
        return dict(self.items())[k] if isinstance(k, str) else self.to_tuple()[k]

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())


def other_sizes(make, sizes=(5, 7, 3, 8, 1, 0, 5, 6)):
    return [call(make(n)) for n in sizes]


@pytest.mark.parametrize("take", ["by name", "by number", "list", "update"])
def test_containers_look_at_no_size(take):
    """What a generator gives to a container is kept by it."""

    def fn(x):
        out = Output(a=x * 2, b=x.sum(0))
        if take == "by name":
            return out["a"] + 1
        if take == "by number":
            return out[0] + out[1]
        if take == "list":
            return sum(list(t.sum() for t in out.to_tuple()))  # noqa: C400 (the generator is the case)
        kept = {}
        kept.update((k, v) for k, v in out.items())
        return kept["a"]

    check(lambda trace: (trace(fn), other_sizes(lambda n: torch.randn(n, 3))), recordings=2, hits=6)


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD", "RMSprop", "Adagrad"])
def test_a_step_at_other_sizes(optimizer):
    """What an optimizer computes has memory of its own, at all sizes."""

    def make(trace):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        opt = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1, foreach=False)

        def fn(x):
            opt.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            return loss.detach()

        steps = other_sizes(lambda n: torch.randn(n, 3), (5, 5, 5, 7, 3, 8, 1, 6, 2))
        return trace(fn), steps, lambda: [(p, p.grad) for p in model.parameters()]

    check(make, hits=5)


def test_an_import_inside():
    def fn(x):
        from torch.nn import functional
        from torch.utils import data  # noqa: F401 (a module below a package)

        return functional.relu(x) + (1 if torch.onnx.is_in_onnx_export() else 2)

    check(lambda trace: (trace(fn), [call(torch.randn(3)) for _ in range(4)]), hits=2)


@pytest.mark.parametrize("trained", [False, True])
def test_calls_without_tensors(trained):
    """What is in state has sizes, too, though no key shows them."""

    def make(trace):
        torch.manual_seed(0)
        s = Holder(w=torch.randn(20, 3, requires_grad=trained), bias=torch.zeros(3), at=0.5)
        optimizer = torch.optim.SGD([s.w], 0.1) if trained else None

        def fn():
            chosen = s.w[torch.rand(len(s.w)) > s.at]
            if chosen.shape[0] > 14:
                chosen = chosen[:14]
            loss = (chosen + s.bias).pow(2).sum()
            if trained:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return loss.detach(), chosen.shape[0]

        def resize():
            s.w = torch.randn(7, 3, requires_grad=trained)

        steps = [call() for _ in range(10)]
        steps += [lambda: setattr(s, "bias", torch.zeros(1)), *(call() for _ in range(4))]
        steps += [
            lambda: setattr(s, "at", 1.5),
            call(),
            call(),
            lambda: setattr(s, "at", -1.0),
            call(),
            call(),
        ]
        steps += [resize, *(call() for _ in range(5))]
        return trace(fn), steps, lambda: [s.w, s.w.grad, s.bias]

    tracer = agree(make)
    assert tracer.count("recordings") <= 9, tracer.account()
    assert tracer.count("hits") >= 12, tracer.account()


FOUND = {
    "nonzero": lambda x: (x > 0).nonzero(as_tuple=True),
    "nonzero_of_torch": lambda x: torch.nonzero(x > 0, as_tuple=True),
    "nonzero_in_rows": lambda x: torch.nonzero(x > 0),
    "where": lambda x: torch.where(x > 0),
    "argwhere": lambda x: torch.argwhere(x > 0),
    "where_of_a_number": lambda x: torch.where(x.sum() > 0),
    "the_same_of_one": lambda x: (x[0] > 0).nonzero(as_tuple=True)[0] * 2,
    "where_of_three": lambda x: torch.where(x > 0, x, 0.0),
}


@pytest.mark.parametrize("kept", [False, True], ids=["alone", "behind_a_write"])
@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_where_sizes_vary(name, kept):
    def make(trace):
        total = torch.zeros(1)

        def fn(x):
            if kept:
                total.add_(1)
            return FOUND[name](x), total.clone()

        return trace(fn), [call(torch.randn(1 + (3 * k) % 5, 3)) for k in range(14)]

    check(make, hits=11)
