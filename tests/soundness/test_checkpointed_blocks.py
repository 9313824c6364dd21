"""Training steps with activation checkpointing: what is checkpointed is watched, so they become flat."""

from __future__ import annotations

import functools
import random

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.soundness.runner import Cases, Holder, agree, call, check
from tests.soundness.test_flat_steps import ENOUGH, forms
from tests.soundness.test_whole_calls import Squares

cases = Cases()
KINDS = {
    "not_reentrant": functools.partial(checkpoint, use_reentrant=False),
    "reentrant": functools.partial(checkpoint, use_reentrant=True),
}


class Net(nn.Module):
    """What the blocks find, and may write to."""

    def __init__(self, drop=0.3):
        super().__init__()
        self.first, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(drop)
        self.register_buffer("seen", torch.zeros(()))
        self.scale, self.act, self.state = 1.0, torch.tanh, Holder(k=2.0, runs=0)
        self.names = ["a", "b"]

    def forward(self, x):
        return self.drop(self.act(self.b(torch.tanh(self.norm(self.a(x))))))


def trains(body, change=None, at=ENOUGH, count=ENOUGH + 5, net=Net, optimizer=None):
    """Whole steps of `body(net, x)`, and a change of what its block finds once they are flat."""
    optimizer = optimizer or (lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9))

    def make(trace):
        torch.manual_seed(3)
        random.seed(3)
        model = net()
        model.optimizer_of_step = opt = optimizer(model.parameters())

        @trace
        def step(x):
            opt.zero_grad()
            loss = body(model, x).square().mean()
            loss.backward()
            opt.step()
            return loss

        steps = [call(torch.randn(6, 4)) for _ in range(count)]
        if change is not None:
            steps[at:at] = [lambda: change(model)]
        gradients = lambda: [p.grad for p in model.parameters()]  # noqa: E731
        state = lambda: (model.scale, model.state.k, model.state.runs)  # noqa: E731
        return step, steps, lambda: [*model.parameters(), *model.buffers(), gradients(), state()]

    return make


# ---------------------------------------------------------------- what becomes flat
def alone(run, net, x):
    return run(net, net.first(x))


def twice(run, net, x):
    return run(net, run(net, net.first(x)))


def with_draws_between(run, net, x):
    h = run(net, net.first(x)) * torch.rand(4)
    return run(net, h) + torch.rand(4)


def a_lambda(run, net, x):
    return run(lambda y: net(y) * net.scale, net.first(x))


def a_method(run, net, x):
    return run(net.forward, net.first(x))


def several_arguments(run, net, x):
    h = net.first(x)
    return run(lambda y, z, k: net(y) * z + k, h, h * 2, 3.0)


def several_results(run, net, x):
    a, b = run(lambda y: (net(y), y * 2), net.first(x))
    return a * b


def without_gradients_inside(run, net, x):
    def block(y):
        with torch.no_grad():
            still = net(y)
        return net(y) * still

    return run(block, net.first(x))


def with_a_function(run, net, x):
    return run(lambda y: Squares.apply(net(y)), net.first(x))


def one_in_another(run, net, x):
    return run(lambda y: run(net.b, net.a(y)).sin(), net.first(x))


def writes_a_buffer(run, net, x):
    def block(y):
        net.seen.add_(1)
        return net(y) * net.seen

    return run(block, net.first(x))


def in_a_region_of_autocast(run, net, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return run(net, net.first(x)).float()


def with_autocast_inside(run, net, x):
    def block(y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(y)

    return run(block, net.first(x)).float()


def keeps_no_random_state(run, net, x):
    return run(net, net.first(x), preserve_rng_state=False)


def under_a_seed(run, net, x):
    torch.manual_seed(5)
    return run(net, net.first(x)) * torch.rand(4)


def finds_more_the_second_time(run, net, x):
    """The reentrant kind runs it without gradients first."""
    return run(lambda y: net(y) * (net.seen + 2 if torch.is_grad_enabled() else 1.0), net.first(x))


def takes_whole_numbers(run, net, x):
    def block(y):
        best = y.detach().argmax(1)
        rows = nn.functional.embedding(best, net.b.weight)
        return net(y) * rows + nn.functional.cross_entropy(y, best)

    return run(block, net.first(x))


BODIES = [
    *(alone, twice, with_draws_between, a_lambda, several_arguments, several_results),
    *(without_gradients_inside, with_a_function, one_in_another, writes_a_buffer),
    *(in_a_region_of_autocast, with_autocast_inside, keeps_no_random_state, under_a_seed),
    *(finds_more_the_second_time, takes_whole_numbers),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", BODIES, ids=[body.__name__ for body in BODIES])
def test_it_becomes_flat(body, kind):
    made = trains(functools.partial(body, KINDS[kind]))
    assert "flat" in forms(agree(made))
    check(made, hits=ENOUGH)


def test_a_method_that_a_graph_keeps():
    """The loss that is returned holds the graph, this the node of the reentrant kind, and that the method."""
    made = {kind: trains(functools.partial(a_method, run)) for kind, run in KINDS.items()}
    assert "flat" in forms(agree(made["not_reentrant"]))
    check(made["not_reentrant"], hits=ENOUGH)
    # It is known for the call's own where another object of the call has lain at its address.
    tracer = agree(made["reentrant"])
    assert tracer.count("hits") or "reads a method of unknown origin" in str(tracer.reasons())


def runs_to_its_end(net, x):
    return checkpoint(net, net.first(x), use_reentrant=False, early_stop=False)


def a_sequence(net, x):
    layers = nn.Sequential(net.first, net.a, nn.Tanh(), net.b)
    return checkpoint_sequential(layers, 2, x, use_reentrant=False)


def a_partial(net, x):
    return checkpoint(functools.partial(lambda k, y: net(y) * k, 2.0), net.first(x), use_reentrant=False)


@pytest.mark.parametrize("body", [runs_to_its_end, a_sequence, a_partial], ids=lambda body: body.__name__)
def test_other_ways_to_ask_for_it(body):
    assert "flat" in forms(agree(trains(body)))
    check(trains(body), hits=ENOUGH)


OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.1),
    "fused": lambda parameters: torch.optim.Adam(parameters, 0.1, fused=True),
    "for_loop": lambda parameters: torch.optim.RMSprop(parameters, 0.01, foreach=False),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_optimizers(optimizer, kind):
    made = trains(functools.partial(twice, KINDS[kind]), optimizer=OPTIMIZERS[optimizer], count=ENOUGH + 8)
    check(made, hits=ENOUGH)


# ---------------------------------------------------------------- what the block finds is another thing
def sets_scale(net):
    net.scale = 3.0


def sets_k(net):
    net.state.k = 3.0


def other_act(net):
    net.act = torch.relu


def other_names(net):
    net.names.reverse()


def evaluates(net):
    net.eval()


def hooks_a_module(net):
    net.b.register_forward_hook(lambda module, args, out: out * 2)


def hooks_a_parameter(net):
    net.b.weight.register_hook(lambda g: g * 2)


def triples(parameter):
    parameter.grad.mul_(3)


def hooks_what_is_accumulated(net):
    net.b.weight.register_post_accumulate_grad_hook(triples)


def freezes(net):
    net.b.weight.requires_grad_(False)


def swaps(net):
    net.b.weight.data = torch.ones(4, 4)


def swaps_a_layer(net):
    net.act = nn.Softplus()


def other_probability(net):
    net.drop.p = 0.8


def gives_a_gradient(net):
    for p in net.parameters():
        p.grad = torch.ones_like(p)


CHANGES = [
    *(sets_scale, sets_k, other_act, other_names, evaluates, hooks_a_module, hooks_a_parameter),
    *(hooks_what_is_accumulated, freezes, swaps, swaps_a_layer, other_probability, gives_a_gradient),
]


def finds(run, net, x):
    block = lambda y: getattr(net, net.names[0])(net(y)) * net.scale + net.state.k  # noqa: E731
    return run(block, net.first(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
def test_a_change_of_what_it_finds(change, kind):
    check(trains(functools.partial(finds, KINDS[kind]), change), hits=ENOUGH)


def stops_early(net, x):
    def block(y):
        out = net(y).sin()
        net.seen.add_(1)
        return out

    return checkpoint(block, net.first(x), use_reentrant=False) * (1 + net.seen)


def test_whether_it_stops_early(monkeypatch):
    name = "_enable_checkpoint_early_stop"
    steps = trains(stops_early, lambda net: setattr(torch.utils.checkpoint, name, False))

    def make(trace):
        monkeypatch.setattr(torch.utils.checkpoint, name, None)
        return steps(trace)

    check(make, hits=ENOUGH)


# ---------------------------------------------------------------- what no flat form could do
def counts(run, net, x):
    def block(y):
        net.state.runs += 1
        return net(y) * net.state.runs

    return run(block, net.first(x))


def draws_of_python(run, net, x):
    return run(lambda y: net(y) * random.random(), net.first(x))


def looks_at_values(run, net, x):
    return run(lambda y: net(y) * (2 if y.sum() > 0 else 3), net.first(x))


def gives_a_number(run, net, x):
    y, k = run(lambda y: (net(y), net.names[0]), net.first(x))
    return y if k == "a" else y * 2


def hangs_on_who_runs_it(run, net, x):
    return run(lambda y: net(y) * (1.5 if torch.is_grad_enabled() else net.scale), net.first(x))


def asks_for_leaves(run, net, x):
    return run(lambda y: net(y) * (1.5 if y.is_leaf else net.scale), net.first(x))


def writes_once_more(run, net, x):
    """Its handler runs where the second run is stopped, and only there."""

    def block(y):
        try:
            return net(y).sin()
        except BaseException:
            net.state.k += 1
            raise

    return run(block, net.first(x))


def writes_between(run, net, x):
    net.scale = 1.5
    y = run(lambda y: net(y * net.scale), net.first(x))
    net.scale = 0.5
    return y


def looks_the_second_time(run, net, x):
    return run(lambda y: net(y) * (3.0 if torch.is_grad_enabled() and y.sum() > 0 else 1.0), net.first(x))


def sets_a_gradient(run, net, x):
    """Which only hooks of a pass may do that are watched."""

    def block(y):
        net.b.weight.grad = torch.ones_like(net.b.weight)
        return net(y)

    return run(block, net.first(x))


def takes_a_gradient_away(run, net, x):
    def block(y):
        net.b.weight.grad = None
        return net(y)

    return run(block, net.first(x))


def looks_in_torchs_code(run, net, x):
    """`one_hot` asks for the largest number, no kernel is given that."""
    return run(lambda y: net(y) * nn.functional.one_hot((y[:, 0] > 0).long()).sum(), net.first(x))


def packs(run, net, x):
    def block(y):
        packed = nn.utils.rnn.pack_sequence([y[:3], y[3:5]])
        return net(y) * nn.utils.rnn.pad_packed_sequence(packed)[0].sum()

    return run(block, net.first(x))


OTHERS = [
    *(looks_the_second_time, looks_in_torchs_code, packs, sets_a_gradient, takes_a_gradient_away),
    *(counts, draws_of_python, looks_at_values, gives_a_number, hangs_on_who_runs_it, asks_for_leaves),
    *(writes_once_more, writes_between),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [None, sets_scale, evaluates], ids=["none", "scale", "evaluates"])
@pytest.mark.parametrize("body", OTHERS, ids=[body.__name__ for body in OTHERS])
def test_what_does_more_than_run_operators(body, change, kind):
    check(trains(functools.partial(body, KINDS[kind]), change, count=ENOUGH + 8), hits=ENOUGH - 2)


def draws_by_values(run, net, x):
    return run(lambda y: net(y) * torch.poisson(torch.relu(y.detach())), net.first(x))


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_drawn_by_values(kind):
    """How many it draws hangs on these: none where all of them are 0."""

    def change(net):
        with torch.no_grad():
            net.first.weight.zero_(), net.first.bias.fill_(-1)

    check(trains(functools.partial(draws_by_values, KINDS[kind]), change), hits=ENOUGH)


def test_a_number_that_differs_at_each_call():
    """Each value would be a recording, if the block was guarded: it is a step that no guard is for."""

    def make(trace):
        torch.manual_seed(3)
        net = Net()

        @trace
        def step(x):
            net.zero_grad()
            loss = checkpoint(lambda y: net(y) * net.scale, net.first(x), use_reentrant=False).sum()
            loss.backward()
            return loss

        steps = []
        for k in range(20):
            steps += [functools.partial(setattr, net, "scale", 1 + k / 10), call(torch.randn(6, 4))]
        return step, steps, lambda: [p.grad for p in net.parameters()]

    check(make, hits=12)


# ---------------------------------------------------------------- what is kept until the backward pass
def keeps_a_list(run, net, x):
    given = [2.0]
    y = run(lambda y: net(y * given[0]), net.first(x))
    given[0] = 3.0
    return y


def keeps_a_dict(run, net, x):
    given = {"k": 2.0}
    y = run(lambda y: net(y * given["k"]), net.first(x))
    given["k"] = 3.0
    return y


def keeps_an_object(run, net, x):
    given = Holder(k=2.0)
    y = run(lambda y: net(y * given.k), net.first(x))
    given.k = 3.0
    return y


class Negative(Holder):
    k = property(lambda self: -2.0)


def keeps_an_object_of_another_class(run, net, x):
    given = Holder()
    given.k = 2.0
    y = run(lambda y: net(y * given.k), net.first(x))
    given.__class__ = Negative
    return y


def keeps_a_list_of_tensors(run, net, x):
    given = [x * 2]
    y = run(lambda y: net(y * given[0]), net.first(x))
    given[0] = x * 5
    return y


def keeps_an_argument(run, net, x):
    given = [2.0]
    y = run(lambda y, k: net(y * k[0]), net.first(x), given)
    given.insert(0, 3.0)
    return y


KEPT = [
    *(keeps_a_list, keeps_a_dict, keeps_an_object, keeps_an_object_of_another_class),
    *(keeps_a_list_of_tensors, keeps_an_argument),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", KEPT, ids=[body.__name__ for body in KEPT])
def test_what_is_kept_may_not_change(body, kind):
    check(trains(functools.partial(body, KINDS[kind])), eager="changes-handed-on")


@cases(hits=3)
def a_custom_function_that_is_checkpointed_itself(trace):
    return trace(lambda x: checkpoint(Squares.apply, x, use_reentrant=False)), [call(torch.randn(4))] * 4


@cases(hits=2, eager="block-does-more")
def a_custom_function_that_code_of_c_calls_in_a_block(trace):
    def f(x):
        return checkpoint(lambda y: sum(map(Squares.apply, [y, y * 2])), x, use_reentrant=False)

    return trace(f), [call(torch.randn(4)) for _ in range(4)]


@cases(hits=2, eager="block-does-more")
def a_cache_that_counts_its_hits_in_a_block(trace):
    layer, tables = nn.Linear(4, 4), functools.lru_cache(maxsize=2)(lambda k: k * 1.5)

    def f(x):
        checkpoint(lambda y: y * tables(2), layer(x), use_reentrant=False).sum().backward()

    steps = [call(torch.randn(4)) for _ in range(5)]
    return trace(f), steps, lambda: (layer.weight.grad, *tables.cache_info())


@cases(eager="changes-handed-on")
def a_hook_that_keeps_a_list(trace):
    w = torch.ones(3, requires_grad=True)

    @trace
    def step(x):
        given = [2.0]
        y = x * w
        y.register_hook(lambda g: g * given[0])
        given[0] = 3.0
        y.sum().backward()
        return w.grad.clone()

    return step, [call(torch.randn(3)) for _ in range(5)], lambda: w.grad


@cases(hits=2, eager="resumes-after-opaque")
def a_write_of_what_is_there_behind_a_block(trace):
    """It is none where the function runs again behind a side exit, either: `spectral_norm` writes so."""
    layer, state = nn.Linear(4, 4), Holder(seen=torch.ones(4))

    @trace
    def step(x):
        y = checkpoint(layer, x, use_reentrant=False)
        state.seen = state.seen.mul_(1.5)
        loss = (y * state.seen.clone()).square().mean()
        loss.backward()
        return loss.detach() * (2 if x.sum() > 0 else 1)

    signs = (1.0, 1.0, 1.0, -1.0, 1.0, -1.0)
    return step, [call(sign * torch.ones(2, 4)) for sign in signs], lambda: (state, layer.weight.grad)


@cases.parametrize
def test_agrees(make, expected):
    check(make, **expected)
