"""Flat forms of programs that follow sizes: one for each sizes that are met."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, agree, call
from tests.soundness.test_flat_steps import forms, forms_of
from tests.soundness.test_steps import parts

cases = Cases()

ROUNDS = 14  # of all sizes: recordings, a hit at each, one watched, one proved, then flat

LATE = 22  # by then two sizes have forms


def flat_sizes(tracer):
    """For how many sizes the programs that a case has traced have a flat form."""
    return sum(map(forms_at_sizes, tracer.made))


def forms_at_sizes(step):
    """The same of one traced function."""
    return sum(trace.native.flat_forms for trace in step._self_handle()._cache.traces.all())


def rounds(*batches, count=ROUNDS):
    """Calls with each of these in turn: functions that make the arguments."""
    return [call(*batch()) for _ in range(count) for batch in batches]


def rows(*sizes, features=4):
    """Batches of so many rows, with targets."""
    return [lambda n=n: (torch.randn(n, features), torch.randint(0, 3, (n,))) for n in sizes]


def training(body, model, optimizer=torch.optim.SGD, lr=0.1):
    """A step that is watched from outside: the model and its gradients."""
    opt = optimizer(model.parameters(), lr=lr)

    def step(*args):
        opt.zero_grad()
        loss = body(model, *args)
        loss.backward()
        opt.step()
        return loss.detach()

    return step, lambda: [parts(model), opt.state_dict()]


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def classifies(model, x, y):
    return F.cross_entropy(model(x), y)


# ---------------------------------------------------------------- what is usual
@cases(sizes=2)
def a_last_batch_that_is_smaller(trace):
    step, watch = training(classifies, mlp(), torch.optim.AdamW)
    return trace(step), rounds(*rows(6, 6, 6, 2)), watch


@cases(sizes=3)
def sizes_of_none_and_one(trace):
    step, watch = training(classifies, mlp())
    return trace(step), rounds(*rows(1, 0, 7, 5)), watch


class Texts(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table, self.places = nn.Embedding(9, 8), nn.Embedding(16, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 9)

    def forward(self, tokens):
        at = self.table(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.layer(at, src_key_padding_mask=tokens.eq(0)))


@cases(sizes=3)
def padded_texts(trace):
    def predicts(model, tokens):
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), ignore_index=0)

    def batch(length):
        tokens = torch.randint(1, 9, (3, length))
        tokens[0, length // 2 :] = 0
        return (tokens,)

    step, watch = training(predicts, Texts(), torch.optim.AdamW)
    return trace(step), rounds(*(lambda n=n: batch(n) for n in (5, 7, 4))), watch


@cases(sizes=2)
def lengths_of_a_recurrent_layer(trace):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.cells, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

    def last(model, x, y):
        return F.cross_entropy(model.head(model.cells(x)[0][:, -1]), y)

    step, watch = training(last, Model(), torch.optim.Adam)
    lengths = [lambda n=n: (torch.randn(2, n, 4), torch.randint(0, 3, (2,))) for n in (3, 5, 3, 2)]
    return trace(step), rounds(*lengths), watch


# ---------------------------------------------------------------- sizes as numbers
@cases(sizes=2)
def a_size_as_a_factor(trace):
    def by_rows(model, x, y):
        return F.cross_entropy(model(x), y, reduction="sum") / len(x) * (x.shape[0] - 1)

    step, watch = training(by_rows, mlp())
    return trace(step), rounds(*rows(6, 2, 5)), watch


@cases(sizes=2)
def a_size_beside_a_number_that_differs(trace):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    @trace
    def step(x, y, scale):
        opt.zero_grad()
        loss = classifies(model, x, y) * (scale * x.shape[0])
        loss.backward()
        opt.step()
        return loss.detach(), scale * x.shape[0]

    made = rows(6, 2)
    steps = [call(*made[i % 2](), 0.5 + i) for i in range(2 * ROUNDS)]
    return step, steps, lambda: parts(model)


@cases(sizes=1)
def sizes_that_are_returned_and_kept(trace):
    model, seen = mlp(), []
    step, watch = training(classifies, model)

    @trace
    def counts(x, y):
        seen.append(len(x))
        return step(x, y), x.shape, x.numel() // 2

    return counts, rounds(*rows(6, 3)), lambda: [watch(), seen]


@cases(sizes=2)
def a_branch_on_a_size(trace):
    def cut(model, x, y):
        if len(x) > 4:
            x, y = x[:4], y[:4]
        return classifies(model, x, y)

    step, watch = training(cut, mlp())
    return trace(step), rounds(*rows(6, 3, 5, 2)), watch


# ---------------------------------------------------------------- what else a call looks like
@cases(sizes=3)
def other_strides_of_the_same_sizes(trace):
    def batch(turned, n=4):
        x = torch.randn(4, n).t() if turned else torch.randn(n, 4)
        return x, torch.randint(0, 3, (n,))

    step, watch = training(lambda m, x, y: classifies(m, x.reshape(-1).view(x.shape), y), mlp())
    both = [lambda: batch(False), lambda: batch(True), lambda: batch(False, 6)]
    return trace(step), rounds(*both), watch


@cases(sizes=2)
def parts_of_one_tensor(trace):
    """They begin at other places of it."""
    data, targets = torch.randn(64, 4), torch.randint(0, 3, (64,))
    step, watch = training(lambda m, x, y: classifies(m, x, y) + 0 * x.as_strided((2,), (1,), 0).sum(), mlp())
    steps = [call(data[i : i + n], targets[i : i + n]) for i in range(30) for n in (5, 3)]
    return trace(step), steps, watch


@cases(sizes=2)
def one_tensor_for_two(trace):
    step, watch = training(lambda m, x, z: (m(x) - m(z).detach()).square().mean(), mlp())

    def batch(n, same):
        x = torch.randn(n, 4)
        return x, x if same else torch.randn(n, 4)

    calls = [call(*batch(n, i > 8 and i % 2 == 0)) for i in range(ROUNDS) for n in (4, 6)]
    return trace(step), calls, watch


@cases(sizes=2)
def gradients_that_are_there_or_not(trace):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        loss = classifies(model, x, y)
        loss.backward()
        opt.step()
        return loss.detach()

    steps = rounds(*rows(6, 3))
    steps[LATE:LATE] = [lambda: opt.zero_grad(set_to_none=False)]
    steps[LATE + 4 : LATE + 4] = [opt.zero_grad]
    return trace(step), [*steps, *rounds(*rows(6, 3), count=6)], lambda: parts(model)


@cases(sizes=2)
def hooks_that_come_later(trace):
    model = mlp()
    step, watch = training(classifies, model)
    seen = []
    steps = rounds(*rows(6, 3))
    steps[LATE:LATE] = [lambda: model[0].weight.register_hook(lambda g: seen.append(g.sum()) or g * 2)]
    return trace(step), steps, lambda: [watch(), seen]


@cases(sizes=2)
def state_that_grows_and_begins_again(trace):
    model = mlp()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    class Kept:
        rows = torch.zeros(0, 4)

    kept = Kept()

    def step(x, y):
        opt.zero_grad()
        kept.rows = torch.cat([kept.rows, x])[-5:]
        loss = classifies(model, x, y) + model(kept.rows).square().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    def empty():
        kept.rows = torch.zeros(0, 4)

    steps = rounds(*rows(3, 2), count=20)
    steps[30:30] = [empty]
    return trace(step), steps, lambda: [parts(model), kept.rows]


@cases(sizes=2)
def weights_that_are_plain_tensors(trace):
    """Their sizes are not guarded: one that is replaced by another of other sizes has no form yet."""

    class Model:
        w = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()

    model = Model()

    @trace
    def step(x, y):
        loss = F.cross_entropy((x @ model.w)[:, :3], y) + model.w.square().mean()
        loss.backward()
        with torch.no_grad():
            model.w -= 0.1 * model.w.grad
        model.w.grad = None
        return loss.detach()

    def wider():
        model.w = torch.randn(4, 5, generator=torch.Generator().manual_seed(2)).requires_grad_()

    def turned():
        model.w = torch.randn(5, 4, generator=torch.Generator().manual_seed(2)).t().requires_grad_()

    steps = rounds(*rows(6, 3), count=3 * ROUNDS)
    steps[48:48] = [turned]
    steps[LATE:LATE] = [wider]
    return step, steps, lambda: [model.w, model.w.grad]


@cases(sizes=2)
def arrays_of_several_sizes(trace):
    step, watch = training(lambda m, x, y: classifies(m, torch.from_numpy(x), y), mlp())
    batches = [lambda n=n: (torch.randn(n, 4).numpy(), torch.randint(0, 3, (n,))) for n in (5, 3)]
    return trace(step), rounds(*batches), watch


# ---------------------------------------------------------------- sizes that hang on values
def rows_taken(model, x, y):
    keep = y > 0
    return F.cross_entropy(model(x)[keep], y[keep], reduction="sum")


@cases(sizes=0)
def rows_that_a_mask_takes(trace):
    step, watch = training(rows_taken, mlp())
    return trace(step), rounds(*rows(6, 5)), watch


@cases(sizes=2)
def as_many_rows_at_each_call(trace):
    """And fewer at one."""

    def batch(n, none=False):
        y = torch.zeros(n, dtype=torch.long)
        y[: 1 if none else 2] = 1
        return torch.randn(n, 4), y[torch.randperm(n)]

    step, watch = training(rows_taken, mlp(), torch.optim.Adam)
    steps = rounds(lambda: batch(6), lambda: batch(5))
    steps[LATE:LATE] = [call(*batch(6, True)), call(*batch(5, True))]
    return trace(step), steps, watch


@cases(sizes=0)
def as_many_columns_as_the_longest_has(trace):
    def cut(model, x, y):
        most = int(y.max().item())
        return model(x[:, : most + 1].repeat(1, 4)[:, :4]).square().mean()

    step, watch = training(cut, mlp())
    return trace(step), rounds(*rows(6, 5)), watch


@cases(sizes=1)
def as_many_rows_at_most_calls(trace):
    """One in five has fewer, the one that proves a form perhaps."""

    def batch(n, most):
        y = torch.zeros(n, dtype=torch.long)
        y[:most] = 1
        return torch.randn(n, 4), y

    step, watch = training(rows_taken, mlp())
    steps = [call(*batch(n, 1 if i % 6 == (2 if n == 6 else 3) else 2)) for i in range(24) for n in (6, 5)]
    return trace(step), steps, watch


@cases(sizes=0)
def experts_that_take_rows(trace):
    """What they give is added to a tensor that comes to require gradients in place."""
    torch.manual_seed(1)
    model = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 4), nn.Linear(4, 4)])

    def routed(model, x, y):
        chosen = model[0](x).argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(model[1:]):
            (row,) = torch.where(chosen == i)
            out.index_add_(0, row, expert(x[row]))
        return F.cross_entropy(out[:, :3], y)

    step, watch = training(routed, model, torch.optim.Adam)
    return trace(step), rounds(*rows(6, 9)), watch


def cut_to_the_longest(model, x, lengths):
    most = int(lengths.max().item())
    mask = torch.arange(most) < lengths[:, None]
    hidden = model(x)[:, :most].reshape(len(x), most, 3)
    return (hidden * mask[..., None]).square().sum() / mask.sum()


def texts_of(length, longest=0):
    lengths = torch.randint(1, 1 + (longest or length), (3,))
    lengths[1] = longest or length
    return torch.randn(3, length, 4), lengths


@cases(sizes=2)
def as_long_as_the_longest(trace):
    """Which is as long as the batch, but for two calls."""
    step, watch = training(cut_to_the_longest, mlp(), torch.optim.Adam)
    steps = rounds(lambda: texts_of(6), lambda: texts_of(4))
    steps[LATE:LATE] = [call(*texts_of(6, 3)), call(*texts_of(4, 2))]
    return trace(step), steps, watch


@cases(sizes=2)
def a_length_that_nothing_but_a_graph_takes(trace):
    """Kernels were given it as a constant."""

    def cut(model, x, lengths):
        return model(x).narrow(1, 0, lengths.max().item()).square().mean()

    step, watch = training(cut, mlp())
    steps = rounds(lambda: texts_of(6, 5), lambda: texts_of(4, 3))
    steps[LATE:LATE] = [call(*texts_of(6, 3)), call(*texts_of(4, 2))]
    return trace(step), steps, watch


@cases(sizes=2)
def a_length_behind_a_write(trace):
    """What was written before is undone where as many elements are made as never before."""
    seen = torch.zeros(4)

    def taken(model, x, y):
        seen.add_(x.sum(0))
        rows = torch.ones(y.sum().item())
        return classifies(model, x, y) + model(x).sum() * rows.sum()

    def batch(n, most=2):
        y = torch.zeros(n, dtype=torch.long)
        y[:most] = 1
        return torch.randn(n, 4), y

    step, watch = training(taken, mlp())
    steps = rounds(lambda: batch(6), lambda: batch(5))
    steps[LATE:LATE] = [call(*batch(6, 1)), call(*batch(5, 3))]
    return trace(step), steps, lambda: [watch(), seen]


# ---------------------------------------------------------------- one node
@cases(sizes=2)
def a_graph_that_is_left_to_the_caller(trace):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3), nn.Tanh())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of = trace(lambda x, y: F.cross_entropy(model(x), y) * len(x))

    def step(x, y):
        opt.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        opt.step()
        return loss.detach()

    return step, rounds(*rows(6, 6, 3)), lambda: parts(model)


@cases.parametrize
def test_steps_of_several_sizes(make, expected):
    tracer = agree(make)
    assert flat_sizes(tracer) >= expected["sizes"], (flat_sizes(tracer), forms(tracer), tracer.account())
    assert tracer.count("hits") > ROUNDS, tracer.account()


def test_a_second_pass_asks_for_more_at_other_sizes():
    """The graph is built by the program that follows sizes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3), nn.Tanh())

    def plain(x):
        return model(x).square().mean()

    traced = lazytrace.traced(plain)
    for i in range(2 * ROUNDS):
        traced(torch.randn((5, 3)[i % 2], 4)).backward()
    assert "one node" in forms_of(traced)
    x = torch.randn(3, 4, requires_grad=True)
    both = []
    for function in (traced, plain):
        (g,) = torch.autograd.grad(function(x), x, create_graph=True)
        both.append(torch.autograd.grad(g.square().sum(), x)[0])
    assert torch.equal(*both)


def test_sizes_that_never_come_again():
    """Forms are bounded, and those that are used stay."""
    step, _ = training(classifies, mlp())
    traced = lazytrace.traced(step)
    for i in range(900):
        n = 3 if i % 2 else 4 + i // 6
        traced(torch.randn(n, 4), torch.randint(0, 3, (n,)))
    (dynamic,) = [t for t in traced._self_handle()._cache.traces.all() if t.native.dynamic]
    assert 1 <= dynamic.native.flat_forms <= 128


@pytest.mark.parametrize("size", [0, 1, 2, 3, 13])
def test_each_size_is_that_of_an_untraced_twin(size):
    """Broadcasts, sums to one row, views or copies: what kernels autograd comes to hangs on the size."""

    def step_of(trace):
        model = mlp().eval()
        row = nn.Parameter(torch.ones(1, 4))
        opt = torch.optim.SGD([*model.parameters(), row], lr=0.01)

        @trace
        def step(x):
            opt.zero_grad()
            wide = (x * row).expand(len(x), 4).reshape(len(x), 2, 2).transpose(1, 2).reshape(len(x), 4)
            loss = model(wide).square().sum() / (x.numel() + 1) + wide.narrow(0, 0, len(x) // 2).sin().sum()
            loss.backward()
            opt.step()
            return loss.detach()

        return step, [*model.parameters(), row]

    (plain, a), (traced, b) = step_of(lambda f: f), step_of(lazytrace.traced)
    for i in range(4 * ROUNDS):
        x = torch.randn((size, 5, 7)[i % 3], 4)
        assert torch.equal(plain(x), traced(x))
        assert all(torch.equal(p, q) and torch.equal(p.grad, q.grad) for p, q in zip(a, b, strict=True))
    assert forms_at_sizes(traced) >= 3


def test_forms_of_many_sizes_are_made_one_after_the_other():
    """Between two of them most calls run the program: what makes a form takes a few calls of its time."""
    traced, _ = training(classifies, mlp())
    traced = lazytrace.traced(traced)
    made = []
    for at in range(120):
        traced(*rows(2 + at % 4)[0]())
        if forms_at_sizes(traced) > len(made):
            made.append(at)
    apart = [after - before for before, after in itertools.pairwise(made)]
    assert len(made) == 4
    assert min(apart) > 4
