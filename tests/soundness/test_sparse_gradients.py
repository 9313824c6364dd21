"""Steps with sparse gradients: how many entries these have is another number at each call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.soundness.runner import Cases, call, check

cases = Cases()

ROWS = 8


def table():
    return torch.nn.Embedding(ROWS, 3, sparse=True)


def bags(*sizes):
    """Indices of rows, some of them twice."""
    return [call(torch.randint(0, ROWS, (n,)), torch.randint(0, 3, (n,))) for n in sizes]


def parts(embedding, opt=None):
    """What a step changes. A sparse gradient as the parts that it has, and whether they are in order."""
    weight = embedding.weight
    grad = weight.grad
    if grad is not None and grad.is_sparse:
        grad = (grad._indices(), grad._values(), grad.is_coalesced(), grad.shape)
    state = opt.state_dict() if opt is not None else None
    return [weight, weight._version, grad, state]


def trained(make_optimizer, steps, after=lambda embedding: None):
    def make(trace):
        embedding = table()
        opt = make_optimizer(embedding.parameters())
        schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)

        def step(i, y):
            opt.zero_grad()
            loss = F.cross_entropy(embedding(i), y)
            loss.backward()
            after(embedding)
            opt.step()
            schedule.step()
            return loss.item()

        return trace(step), steps(), lambda: parts(embedding, opt)

    return make


OPTIMIZERS = {
    "adam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
    "maximize": lambda p: torch.optim.SparseAdam(p, lr=0.1, betas=(0.5, 0.9), maximize=True),
    "groups": lambda p: torch.optim.SparseAdam([{"params": list(p), "lr": 0.01}], lr=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer(name):
    check(trained(OPTIMIZERS[name], lambda: bags(*[6] * 20)), hits=12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_batches_of_any_size(name):
    # Adagrad writes to entries whose memory may be the state's own where all rows have a gradient.
    hits = 2 if name == "adagrad" else 6
    check(trained(OPTIMIZERS[name], lambda: bags(6, 6, 6, 1, 3, 9, 2, 6, 5, 1, 12, 7, 3, 8, 4, 2)), hits=hits)


def scaled(embedding):
    embedding.weight.grad.mul_(0.5)


def put_in_order(embedding):
    embedding.weight.grad = embedding.weight.grad.coalesce()


def added_to_itself(embedding):
    embedding.weight.grad = embedding.weight.grad + embedding.weight.grad


@pytest.mark.parametrize("after", [scaled, put_in_order, added_to_itself])
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_gradient_that_the_step_changes(name, after):
    check(trained(OPTIMIZERS[name], lambda: bags(*[6] * 16), after), hits=6)


@cases(hits=6)
def gradients_that_add_up(trace):
    embedding = table()
    opt = OPTIMIZERS["adam"](embedding.parameters())

    def step(i, y, last):
        loss = F.cross_entropy(embedding(i), y)
        loss.backward()
        if last:
            opt.step()
            opt.zero_grad()
        return loss.item()

    steps = [call(*one.args, k % 2 == 1) for k, one in enumerate(bags(*[5] * 16))]
    return trace(step), steps, lambda: parts(embedding, opt)


@cases(hits=8)
def between_the_calls(trace):
    """A gradient in order, a dense one, one without entries."""
    embedding = table()
    weight = embedding.weight
    opt = torch.optim.SGD([weight], lr=0.1)

    def step(i):
        embedding(i).square().sum().backward()
        opt.step()

    def ordered():
        weight.grad = weight.grad.coalesce()

    def dense():
        weight.grad = torch.ones_like(weight)

    def empty():
        weight.grad = torch.sparse_coo_tensor(
            torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, 3), (ROWS, 3)
        )

    def gone():
        weight.grad = None

    steps = []
    for change in (gone, ordered, dense, empty, gone):
        for one in bags(4, 4, 4):
            steps += [gone if change is gone else lambda: None, call(one.args[0])]
        steps.append(change)
    return trace(step), steps, lambda: parts(embedding)


# ---------------------------------------------------------------- x.new(...)
def entries(x):
    s = x.to_sparse().coalesce()
    return s, s.indices(), s.values()


NEW = {
    "sizes": lambda s, i, v: s.new(i, v * 2, s.size()),
    "numbers": lambda s, i, v: s.new(i, v, [s.shape[0] + 1]),
    "written_later": lambda s, i, v: (s.new(i, v, s.size()), v.mul_(2))[0],
    "ordered": lambda s, i, v: s.new(torch.cat([i, i], 1), torch.cat([v, v]), s.size()).coalesce(),
    "bound": lambda s, i, v: (lambda new: new(i, v, s.size()))(s.new),
}


@pytest.mark.parametrize("name", NEW)
def test_new(name):
    def make(trace):
        def run(x):
            made = NEW[name](*entries(x))
            return made.to_dense(), made._nnz(), made.is_coalesced()

        masks = [torch.rand(6) > 0.4 for _ in range(12)]
        return trace(run), [call(torch.randn(6) * mask) for mask in masks]

    check(make, hits=4)


INFERS = {
    "largest": lambda s, i, v: s.new(i, v).to_dense(),
    "empty": lambda s, i, v: s.new().to_dense(),
    "zeros": lambda s, i, v: s.new(5).to_dense(),
}


@pytest.mark.parametrize("name", INFERS)
def test_new_without_sizes(name):
    def make(trace):
        def run(x):
            return INFERS[name](*entries(x))

        tops = [3, 5, 2, 6, 4, 6, 1, 2]
        return trace(run), [call((torch.arange(6) < top).float()) for top in tops]

    expected = {"hits": 1} if name == "largest" else {"eager": "calls .new() of a tensor"}
    check(make, **expected)


@cases(eager="calls .new() of a tensor")
def new_of_what_is_not_sparse(trace):
    def run(x):
        return x.new([1.0, 2.0]) + x.new(x[:2])

    return trace(run), [call(torch.randn(4)) for _ in range(4)]


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)
