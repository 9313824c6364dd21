"""Training steps that have become flat: kernels in place of operators and graphs of autograd."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, Holder, agree, call, check
from tests.soundness.test_modes import deterministic
from tests.soundness.test_steps import (
    CHANGES,
    OPTIMIZERS,
    WAYS,
    Model,
    accumulates,
    by_hand,
    inputs,
    parts,
    plain,
    reads_gradients,
    returns_loss,
    sgd,
    zeroes,
)

cases = Cases()

# A trace is recorded, hit, watched, proved, and from then on flat.
ENOUGH = 9


def forms_of(step):
    """How the backward passes of all programs of a traced function run."""
    return [trace.flat() for trace in step._self_handle()._cache.traces.all()]


def forms(tracer):
    """The same of all that a case has traced."""
    return [form for made in tracer.made for form in forms_of(made)]


def late(body, optimizer=sgd, between=None, count=ENOUGH + 4, seen=None):
    """A case: `between` runs once the step is flat, and whether it is goes to `seen`."""

    def make(trace):
        torch.manual_seed(1)
        model = Model()
        opt = optimizer(model)
        step = trace(lambda x: body(model, opt, x))

        def change():
            if seen is not None and hasattr(step, "stats"):
                seen.extend(forms_of(step))
            if between is not None:
                between(model, opt)

        steps = inputs(count)
        steps[ENOUGH:ENOUGH] = [change]
        return step, steps, lambda: parts(model)

    return make


def flat(seen):
    assert "flat" in seen, seen


# ---------------------------------------------------------------- code of torch that looks at memory
def splits(w, x, where):
    return 2 * torch.tensor_split(x[:6, 0] * w[0, 0], where[:2])[1].sum()


def packs(w, x, lengths):
    packed, _ = torch._VF._pack_padded_sequence(x.view(4, 3, 2) @ w, lengths, False)
    return (packed.pow(2) * torch.arange(8.0)[:, None]).sum()


def pads(w, x, sizes):
    padded, _ = torch._VF._pad_packed_sequence(x[:8] @ w, sizes, False, 0.0, 4)
    return (padded.pow(2) * torch.arange(len(padded))[:, None, None]).sum()


def runs_packed(w, x, sizes):
    start = torch.zeros(1, 3, 2)
    weights = [torch.cat([w] * 4), torch.cat([w] * 4) * 2]
    return torch._VF.lstm(x[:8], sizes, (start, start), weights, False, 1, 0.0, True, False)[0].pow(2).sum()


# What they are given second, of which other values lead to results of the same sizes.
READERS = [
    (splits, ([2, 4], [3, 5], [1, 3])),
    (packs, ([4, 3, 1], [4, 2, 2], [3, 3, 2])),
    (pads, ([3, 3, 1, 1], [3, 2, 2, 1])),
    (runs_packed, ([3, 3, 1, 1], [3, 2, 2, 1])),
]


@pytest.mark.parametrize(("reads", "values"), READERS, ids=[reads.__name__ for reads, _ in READERS])
def test_values_that_no_kernel_is_given(reads, values):
    def make(trace):
        torch.manual_seed(2)
        w, x = torch.randn(2, 2, requires_grad=True), torch.randn(12, 2)

        def step(x, numbers):
            w.grad = None
            loss = reads(w, x, numbers)
            loss.backward()
            return loss

        calls = [call(x, torch.tensor(one)) for one in [values[0]] * ENOUGH + [*values] * 3]
        return trace(step), calls, lambda: (w, w.grad)

    check(make, hits=ENOUGH)


@pytest.mark.parametrize("body", WAYS, ids=lambda body: body.__name__)
def test_a_way(body):
    seen = []
    check(late(body, seen=seen), hits=ENOUGH)
    flat(seen)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer(name):
    seen = []
    check(late(plain, OPTIMIZERS[name], seen=seen), hits=ENOUGH)
    flat(seen)


# ---------------------------------------------------------------- what changes once it is flat
def more_decay(model, opt):
    opt.param_groups[0]["weight_decay"] = 0.1


def with_history(model, opt):
    del model.one.weight
    model.one.weight = torch.ones(6, 4, requires_grad=True) * 0.5


def in_place(model, opt):
    with torch.no_grad():
        model.one.weight.mul_(0.5)


def of_other_memory(model, opt):
    model.two.weight.data = torch.ones(6, 6).t().contiguous().t()


def a_gradient_with_a_graph(model, opt):
    w = model.one.weight
    w.grad = (torch.ones_like(w).requires_grad_() * 2).detach().requires_grad_()


def an_accumulator_hook(model, opt):
    w = model.one.weight
    node = w.view_as(w).grad_fn.next_functions[0][0]
    model.kept = node
    node.register_hook(lambda gi, go: None)


def a_tied_weight(model, opt):
    model.two.weight.data = model.one.weight.data.new_ones(6, 6)
    model.one.bias.data = model.two.weight.data[0]


def retained(model, opt):
    model.kept = model.one.weight.view(-1)
    model.kept.retain_grad()


LATER = [
    *CHANGES, more_decay, with_history, in_place, of_other_memory, a_gradient_with_a_graph,
    an_accumulator_hook, a_tied_weight, retained,
]  # fmt: skip


@pytest.mark.parametrize("change", LATER, ids=lambda change: change.__name__)
@pytest.mark.parametrize(
    "body", [plain, returns_loss, zeroes, accumulates, by_hand, reads_gradients], ids=lambda b: b.__name__
)
def test_a_change(body, change):
    seen = []
    check(late(body, lambda m: sgd(m, momentum=0.9), between=change, seen=seen), hits=ENOUGH - 2)
    flat(seen)


# ---------------------------------------------------------------- switches
def under(context):
    """A case whose later calls are made in a context."""

    def make(trace):
        model = Model()
        opt = sgd(model)
        step = trace(lambda x: returns_loss(model, opt, x))
        count = [0]

        def run(x):
            count[0] += 1
            if count[0] <= ENOUGH:
                return step(x)
            with context():
                return step(x)

        return run, inputs(ENOUGH + 3), lambda: parts(model)

    return make


CONTEXTS = {
    "profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": deterministic,
    "save_on_cpu": torch.autograd.graph.save_on_cpu,
    "forward_mode": torch.autograd.forward_ad.dual_level,
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_under(name):
    check(under(CONTEXTS[name]), hits=ENOUGH - 2)


# ---------------------------------------------------------------- models
class Picture(torch.nn.Module):
    """Convolutions, statistics that are kept, dropout, and weights of a recurrent layer."""

    def __init__(self, sparse=False):
        super().__init__()
        self.tokens = torch.nn.Embedding(10, 8, sparse=sparse)
        self.conv = torch.nn.Conv1d(8, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm1d(8)
        self.cells = torch.nn.LSTM(8, 8, batch_first=True)
        self.drop = torch.nn.Dropout(0.5)
        self.out = torch.nn.Linear(8, 5)

    def forward(self, ids):
        x = F.relu(self.norm(self.conv(self.tokens(ids).transpose(1, 2)))).transpose(1, 2)
        x = self.drop(self.cells(x)[0])
        q = F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)
        return self.out(q[:, 0, -1] + x.mean(1))


def pictured(optimizer, body=None, **options):
    def make(trace):
        torch.manual_seed(3)
        model = Picture(**options)
        opt = optimizer(model.parameters())

        def step(ids, y):
            opt.zero_grad()
            loss = F.cross_entropy(model(ids), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            return loss

        def state():
            kept = [v for s in opt.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
            return [parts(model), list(model.buffers()), kept]

        calls = [call(torch.randint(0, 10, (4, 6)), torch.randint(0, 5, (4,))) for _ in range(14)]
        return trace(step), calls, state

    return make


ADAPTIVE = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.1, centered=True),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
}


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_model(name):
    tracer = agree(pictured(ADAPTIVE[name]))
    assert tracer.count("hits") >= 8, tracer.account()
    assert "flat" in forms(tracer), forms(tracer)


# ---------------------------------------------------------------- attacks
@cases(hits=ENOUGH)
def a_loss_that_is_asked_again(trace):
    model = Model()
    opt = sgd(model)
    step = trace(lambda x: returns_loss(model, opt, x))

    def again(x):
        loss = step(x)
        node = loss.grad_fn
        about = (type(node).__name__, node.name(), isinstance(node, torch.autograd.graph.Node), loss.is_leaf)
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            torch.autograd.grad(loss, model.one.weight)
        return about, repr(loss), loss.item()

    return again, inputs(ENOUGH + 4), lambda: parts(model)


@cases(hits=ENOUGH - 2)
def an_error_in_the_middle(trace):
    table = torch.nn.Embedding(5, 3)
    opt = torch.optim.SGD(table.parameters(), lr=0.1)

    def step(i):
        opt.zero_grad()
        loss = table(i).sum()
        loss.backward()
        opt.step()
        return loss

    good = [call(torch.randint(0, 5, (4,))) for _ in range(ENOUGH)]
    return trace(step), [*good, call(torch.tensor([1, 2, 3, 9])), *good[:3]], lambda: parts(table)


@cases(hits=ENOUGH - 2)
def an_error_after_a_write(trace):
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss

    good = [call(torch.randn(4, 4), torch.randint(0, 3, (4,))) for _ in range(ENOUGH)]
    bad = call(torch.randn(4, 4), torch.tensor([0, 1, 2, 7]))
    return trace(step), [*good, bad, *good[:3]], lambda: [parts(model), list(model.buffers())]


@cases(hits=ENOUGH - 2)
def a_view_of_the_gradient_that_is_kept(trace):
    model = Model()
    opt = sgd(model)
    step = trace(lambda x: plain(model, opt, x))
    kept = []

    def run(x):
        loss = step(x)
        kept.append(model.one.weight.grad.view(-1))
        return loss, kept[-1]._version, model.two.weight.grad._version, model.two.weight.grad._is_view()

    return run, inputs(ENOUGH + 4), lambda: [parts(model), kept]


@cases(hits=ENOUGH - 2)
def two_models_that_play(trace):
    one, two = Model(), Model()
    first, second = sgd(one), sgd(two, momentum=0.9)

    def step(x):
        first.zero_grad()
        made = one(x)[:, :4]
        judged = two(made.detach()).square().mean() - two(x).mean()
        second.zero_grad()
        judged.backward()
        second.step()
        fooled = -two(made).mean()
        fooled.backward()
        first.step()
        return judged.detach(), fooled.detach()

    return trace(step), inputs(ENOUGH + 4), lambda: [parts(one), parts(two)]


@cases(hits=ENOUGH - 2)
def micro_batches(trace):
    model = Model()
    opt = sgd(model, momentum=0.9)

    def step(x):
        opt.zero_grad()
        total = 0.0
        for part in x.split(1):
            loss = model(part).square().mean() / 3
            loss.backward()
            total = total + loss.detach()
        opt.step()
        return total

    return trace(step), inputs(ENOUGH + 4), lambda: parts(model)


@cases(hits=ENOUGH - 2)
def an_input_that_requires_gradients(trace):
    model = Model()
    opt = sgd(model)

    def step(x):
        opt.zero_grad()
        x.grad = None
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return x.grad

    return (
        trace(step),
        [call(torch.randn(3, 4, requires_grad=True)) for _ in range(ENOUGH + 4)],
        lambda: parts(model),
    )


@cases(hits=ENOUGH - 2)
def an_input_with_a_history(trace):
    model = Model()
    opt = sgd(model)
    before = torch.ones(3, 4, requires_grad=True)
    inner = trace(lambda x: plain(model, opt, x))

    def run(scale):
        before.grad = None
        return inner(before * scale), before.grad

    return run, [call(float(i)) for i in range(1, ENOUGH + 4)], lambda: parts(model)


@cases(hits=ENOUGH - 2)
def random_numbers(trace):
    model = Model()
    opt = sgd(model)

    def step(x):
        opt.zero_grad()
        h = F.dropout(model(x + torch.randn_like(x)), 0.5)
        (h.square().mean() * torch.rand(())).backward()
        opt.step()
        return torch.rand(2)

    return trace(step), inputs(ENOUGH + 4), lambda: parts(model)


@cases(hits=ENOUGH - 2)
def in_place_on_what_has_a_graph(trace):
    model = Model()
    opt = sgd(model)

    def step(x):
        opt.zero_grad()
        h = model(x)
        h[0] = h[1] * 2
        h.relu_()
        out = torch.zeros(3, 6)
        out[:, :3] = h[:, 3:]
        out.square().mean().backward()
        opt.step()
        return out.detach()

    return trace(step), inputs(ENOUGH + 4), lambda: parts(model)


@cases(hits=ENOUGH - 2)
def what_is_read_is_not_taken_over(trace):
    model = Model()

    def step(x):
        w = model.one.weight
        (g,) = torch.autograd.grad(model(x).square().mean(), w)
        w.grad = g
        with torch.no_grad():
            w -= 0.1 * g
        return g * 2, g

    return trace(step), inputs(ENOUGH + 4), lambda: parts(model)


# ---------------------------------------------------------------- memory, numbers and results
def stepping(model, opt, after=lambda loss: loss, before=lambda: None):
    """A step that gives what `after` makes of its loss."""

    def step(x):
        before()
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return after(loss)

    return step


class OneBuffer(torch.nn.Module):
    """Weight and bias are parts of one memory, which overlap where `shift` is less than 24."""

    def __init__(self, shift):
        super().__init__()
        self.memory = torch.randn(30)
        self.weight = torch.nn.Parameter(self.memory[:24].view(6, 4))
        self.bias = torch.nn.Parameter(self.memory[shift : shift + 6])

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


@pytest.mark.parametrize("shift", [24, 20])
def test_parameters_of_one_memory(shift):
    def make(trace):
        torch.manual_seed(2)
        model = OneBuffer(shift)
        return (
            trace(stepping(model, sgd(model, momentum=0.9))),
            inputs(12),
            lambda: [parts(model), model.memory],
        )

    check(make, hits=9)


@cases(hits=9)
def an_input_that_shows_a_parameter(trace):
    model = Model()
    step = trace(stepping(model, sgd(model)))
    return lambda _: step(model.one.weight.data[:3]), [call(i) for i in range(12)], lambda: parts(model)


@cases(hits=9)
def an_argument_becomes_a_gradient(trace):
    model = Model()
    opt = sgd(model)

    def step(x, g):
        model.one.weight.grad = g
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return (
        trace(step),
        [call(torch.randn(3, 4), torch.randn(6, 4)) for _ in range(12)],
        lambda: parts(model),
    )


@cases(hits=9)
def part_of_a_tensor_becomes_a_gradient(trace):
    model = Model()
    opt = sgd(model)
    whole = torch.zeros(2, 6, 4)

    def step(x):
        for p in model.parameters():
            p.grad = None
        model.one.weight.grad = whole[1]
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return trace(step), inputs(12), lambda: [parts(model), whole]


@cases(hits=9)
def a_retained_graph_that_is_used_again(trace):
    model = Model()

    def step(x):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        return loss

    traced = trace(step)

    def run(x):
        loss = traced(x)
        loss.backward()
        return loss

    return run, inputs(12), lambda: parts(model)


@cases(hits=9)
def a_graph_that_saves_nothing(trace):
    weight = torch.nn.Parameter(torch.ones(4))

    def step(x):
        weight.grad = None
        loss = (weight * 2).sum() + x.sum()
        loss.backward()
        return loss

    traced = trace(step)

    def run(x):
        loss = traced(x)
        loss.backward()
        return loss

    return run, inputs(12), lambda: [weight, weight.grad]


@cases(hits=9)
def all_that_a_step_knows(trace):
    model = Model()
    opt = sgd(model)

    def step(x):
        opt.zero_grad()
        out = model(x)
        loss = out.square().mean()
        loss.backward()
        opt.step()
        return {"loss": loss, "out": out, "right": (out.argmax(-1) == 0).float().mean()}

    return trace(step), inputs(12), lambda: parts(model)


@cases(hits=9)
def a_view_with_a_graph(trace):
    model = Model()
    opt = sgd(model)

    def step(x):
        opt.zero_grad()
        out = model(x)
        out.square().mean().backward()
        opt.step()
        return out[0], out.detach()[1]

    return trace(step), inputs(12), lambda: parts(model)


@cases(hits=9)
def a_gradient_with_a_graph_is_left(trace):
    model = Model()

    def step(x):
        for p in model.parameters():
            p.grad = None
        loss = model(x).pow(3).mean()
        loss.backward(create_graph=True)
        return loss

    def state():
        return [(p.grad is not None and (p.grad.detach(), p.grad.requires_grad)) for p in model.parameters()]

    return trace(step), inputs(12), state


@cases(hits=9)
def autocast_of_its_own(trace):
    model = Model()
    opt = sgd(model)

    def step(x):
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return trace(step), inputs(12), lambda: parts(model)


@cases(hits=9)
def a_kernel_that_is_replaced_later(trace):
    model = Model()
    step = trace(stepping(model, sgd(model)))
    count, libraries = [0], []

    def run(x):
        count[0] += 1
        if count[0] == 10:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of kernels that are replaced
                library = torch.library.Library("aten", "IMPL")
                library.impl("tanh_backward", lambda g, out: g * 3, "CPU")
            libraries.append(library)
        try:
            return step(x)
        finally:
            if count[0] == 11:
                libraries.pop()._destroy()

    return run, inputs(14), lambda: parts(model)


@cases(hits=8)
def gradients_of_another_dtype(trace):
    model = Model()

    def step(x):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    def other():
        model.one.weight.grad = None
        model.one.weight.grad_dtype = torch.float64

    steps = inputs(12)
    steps[9:9] = [other]
    return trace(step), steps, lambda: parts(model)


@cases(hits=8)
def a_weight_of_the_loss(trace):
    model = Model()
    opt = sgd(model)

    def step(x, weight):
        opt.zero_grad()
        loss = model(x).square().mean() * weight
        loss.backward()
        opt.step()
        return loss.detach()

    return trace(step), [call(torch.randn(3, 4), 0.1 * i) for i in range(12)], lambda: parts(model)


@cases(hits=8)
def a_counter_in_the_loss(trace):
    model = Model()
    opt = sgd(model)
    model.count = 0

    def step(x):
        model.count += 1
        opt.zero_grad()
        loss = model(x).square().mean() * (1 / model.count)
        loss.backward()
        opt.step()
        return loss.detach()

    return trace(step), inputs(12), lambda: [parts(model), model.count]


ITEMS = {
    "returned": lambda loss: loss.item(),
    "in words": lambda loss: {"loss": loss.item(), "twice": float(loss) * 2},
    "beside the loss": lambda loss: (loss, loss.item()),
}


@pytest.mark.parametrize("name", ITEMS)
def test_the_value_of_the_loss(name):
    def make(trace):
        model = Model()
        return trace(stepping(model, sgd(model), ITEMS[name])), inputs(12), lambda: parts(model)

    tracer = agree(make)
    assert tracer.count("hits") >= 9, tracer.account()
    assert "flat" in forms(tracer), forms(tracer)


ALIASES = {
    "detached": lambda weight: weight.detach(),
    "its data": lambda weight: weight.data,  # which counts by itself
    "a row": lambda weight: weight.detach()[0],
}


@pytest.mark.parametrize("name", ALIASES)
def test_state_that_counts_its_versions_with_what_is_written_to(name):
    """As the containers of torchrl hold parameters once more, for targets."""

    def make(trace):
        model = nn.Linear(4, 3)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        model.alias = ALIASES[name](model.weight)

        def step(x):
            opt.zero_grad()
            loss = model(x).square().mean() * model.alias.square().sum()
            loss.backward()
            opt.step()
            return loss.item()

        return trace(step), inputs(12), lambda: [parts(model), model.alias, model.alias._version]

    tracer = agree(make)
    assert tracer.count("hits") >= 9, tracer.account()
    assert forms(tracer)[0] == "flat", forms(tracer)


VIEWS = {
    "detached": lambda weight, mean: weight.detach(),
    "a row": lambda weight, mean: mean[0],
    "in another shape": lambda weight, mean: (mean.view(-1), mean.t()),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_what_each_step_writes_to(name):
    """It counts the versions of what it is a view of, which are others at each step."""

    def make(trace):
        model = Model()
        opt = sgd(model)
        weight = next(model.parameters())
        mean = torch.zeros_like(weight)

        def step(x):
            opt.zero_grad()
            model(x).square().mean().backward()
            opt.step()
            with torch.no_grad():
                mean.mul_(0.9).add_(weight, alpha=0.1)
            return VIEWS[name](weight, mean)

        return trace(step), inputs(12), lambda: [parts(model), mean._version]

    tracer = agree(make)
    assert tracer.count("hits") >= 9, tracer.account()
    assert forms(tracer)[0] == "flat", forms(tracer)


def test_the_value_of_the_loss_is_stored():
    def make(trace):
        model = Model()
        model.total = 0.0

        def store(loss):
            model.total = loss.item()

        return trace(stepping(model, sgd(model), store)), inputs(12), lambda: [parts(model), model.total]

    tracer = agree(make)
    assert tracer.count("hits") >= 9, tracer.account()
    assert "flat" in forms(tracer), forms(tracer)


@cases(hits=8)
def the_value_of_the_loss_scales_the_step(trace):
    model = Model()

    def step(x):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        size = loss.item()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.sub_(p.grad, alpha=0.1 * size)
        return size

    return trace(step), inputs(12), lambda: parts(model)


class Pair:
    """A parameter and two tensors that may come to share memory."""

    def __init__(self):
        self.weight = torch.nn.Parameter(torch.tensor([1.5, -0.5, 2.0]))
        self.apart()

    def apart(self):
        self.a, self.b = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.4, 0.5, 0.6])

    def one_counter(self):
        self.b = self.a.detach()

    def one_memory(self):
        self.b = self.a.data

    def overlapping(self):
        base = torch.arange(6.0) / 6
        self.a, self.b = base[:3], base[1:4]

    def of_the_weight(self):
        self.b = self.weight.detach()

    def one_counter_and_two_memories(self):
        self.b = self.a.detach()
        self.a.data = torch.tensor([0.5, 0.25, 0.125])

    def a_gradient_of_its_memory(self):
        self.weight.grad = self.a.detach()


def writes_before_backward(pair, x):
    loss = (pair.weight * pair.weight * pair.a * x).sum()
    with torch.no_grad():
        pair.b.add_(0.5)
    loss.backward()
    return loss.detach()


def adds_to_a_gradient(pair, x):
    y = pair.weight * pair.a * x
    (y.exp().sum() + pair.b.sum()).backward()
    pair.b.mul_(0.5)
    return y.detach()


@pytest.mark.parametrize("body", [writes_before_backward, adds_to_a_gradient], ids=lambda body: body.__name__)
@pytest.mark.parametrize("change", [name for name in vars(Pair) if not name.startswith("_")])
def test_memory_that_comes_to_be_shared(body, change):
    def make(trace):
        pair = Pair()
        step = trace(lambda x: body(pair, x))

        def state():
            return [pair.weight, pair.weight.grad, pair.a, pair.b]

        def run(i):
            if i < ENOUGH:
                pair.weight.grad = torch.ones(3)
            elif i == ENOUGH:
                getattr(pair, change)()
            return step(torch.tensor([1.0, 2.0, 3.0]) * (1 + i % 3))

        return (
            run,
            [call(i) for i in range(ENOUGH + 4)],
            lambda: [pair.weight, pair.weight.grad, pair.a, pair.b],
        )

    tracer = agree(make)
    assert tracer.count("hits") >= ENOUGH - 2, tracer.account()
    assert "flat" in forms(tracer), forms(tracer)


def inference(trace, body, made=lambda: torch.ones(3)):
    """A step with a part in inference mode."""
    w, o = nn.Parameter(torch.ones(3)), Holder(kept=made())

    def step(x):
        w.grad = None
        (w * x + o.kept.sum().item()).sum().backward()
        return body(w, o, x)

    return trace(step), [call(torch.arange(3.0) * k) for k in range(ENOUGH)], lambda: [w, o.kept * 1]


@cases(hits=ENOUGH - 2)
def keeps_a_tensor_of_inference_mode(trace):
    def body(w, o, x):
        with torch.inference_mode():
            o.kept = w * 2
        return w.grad.clone()

    return inference(trace, body)


@cases(hits=ENOUGH - 2)
def gives_tensors_of_inference_mode(trace):
    def body(w, o, x):
        with torch.inference_mode():
            y = w * x
            y.mul_(2)
            return y, y[:2], x[1:]

    return inference(trace, body)


@cases(hits=ENOUGH - 2)
def writes_to_a_tensor_of_inference_mode(trace):
    def made():
        with torch.inference_mode():
            return torch.ones(3)

    def body(w, o, x):
        with torch.inference_mode():
            o.kept.mul_(0.5).add_(w)
        return w.grad.clone(), o.kept

    return inference(trace, body, made)


@cases.parametrize
def test_attacks(make, expected):
    check(make, **expected)


def test_nothing_is_kept_alive():
    def run():
        model = Model()
        opt = sgd(model)
        step = lazytrace.traced(lambda x: returns_loss(model, opt, x))
        losses = [step(*one.args) for one in inputs(ENOUGH)]
        assert "flat" in forms_of(step)
        assert losses[-1].grad_fn is not None
        return weakref.ref(model.one.weight), step._self_handle()._cache.traces.all()

    gone, traces = run()
    gc.collect()
    assert traces[0].flat() == "flat"
    assert gone() is None


def test_the_listing_says_how():
    model = Model()
    opt = sgd(model)
    step = lazytrace.traced(lambda x: returns_loss(model, opt, x))
    for one in inputs(ENOUGH):
        step(*one.args)
    trace = next(t for t in step._self_handle()._cache.traces.all() if t.flat())
    assert "backward passes: flat" in trace.listing()


def test_why_it_is_not_flat():
    model = Model()
    opt = sgd(model)

    def step(x):
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return model(x)

    traced = lazytrace.traced(step)
    for one in inputs(ENOUGH):
        traced(*one.args)
    assert "a graph that no backward pass has used up leaves the function" in forms_of(traced)


COMPILED = """
import torch
import lazytrace
from tests.soundness.test_flat_steps import Model, forms_of, inputs, plain, sgd

torch.compile(lambda x: x + 1)
model = Model()
opt = sgd(model, momentum=0.9, fused=True)
step = lazytrace.traced(lambda x: plain(model, opt, x))
for one in inputs(9):
    step(*one.args)
assert forms_of(step) == ["flat"], forms_of(step)

sized = lazytrace.traced(lambda x: (x.t().contiguous(), x.contiguous() is x))
for n in (3, 5, 7, 9):
    sized(torch.randn(n, 4))
assert sized.cache_info().hits == 2, sized.cache_info()
"""


def test_after_torch_compile():
    """torch.compile wraps functions of optimizers, and has others evaluate frames."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILED],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_after_a_profiler():
    """While one is on, nothing is proved; a form is made once it is gone."""
    model = Model()
    opt = sgd(model)
    step = lazytrace.traced(lambda x: plain(model, opt, x))
    one = inputs(1)[0].args
    for _ in range(ENOUGH):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            step(*one)
    assert not any(forms_of(step))
    for _ in range(ENOUGH):
        step(*one)
    assert "flat" in forms_of(step)
