"""Programs that fit all sizes, without gradients: sizes that come often have a plan of their own."""

from __future__ import annotations

import types

import pytest
import torch
import torch.nn.functional as F

from tests.soundness.runner import agree, call

SIZES = (3, 5, 1, 0, 2, 7)
OFTEN = 13  # a recording, the calls that count, one that is watched, and some that follow the plan


def off():
    torch.set_grad_enabled(False)


def plans(tracer):
    """For how many sizes the programs that a case has traced have a plan."""
    return sum(
        trace.native.plans_at_sizes for f in tracer.made for trace in f._self_handle()._cache.traces.all()
    )


def rows(n):
    """The usual argument."""
    return (torch.randn(n, 4),)


def at_sizes(function, batch=rows, sizes=SIZES, state=None, **options):
    """Each of the sizes often, by turns; the runner puts the mode back."""

    def make(trace):
        steps = [call(*batch(n)) for _ in range(OFTEN) for n in sizes]
        held = state() if state else None
        body = function if state is None else lambda *args: function(held, *args)
        return trace(body, dynamic=True, **options), [off, *steps], lambda: vars(held) if held else None

    return make


def slices(x):
    n = x.shape[0]
    return x[n // 2 :], x[: n // 2] + 1, x.t()[:, n // 3 :].reshape(-1)


def a_copy_here_a_view_there(x):
    y = torch.relu(x).t()
    z = y.reshape(-1)
    z.add_(1)
    return y, z, y.contiguous(), [t._version for t in (y, z)]


def a_branch_behind_a_write(x):
    y = torch.relu(x)
    y.mul_(2)
    if x.shape[0] > 2:
        return y.reshape(-1, 2), x.shape
    return y.view(-1) - x.numel()


def lists(x):
    parts = x.split(2)
    return [part.sum(0) for part in parts], torch.cat([x, *parts]), F.layer_norm(x, (4,)).unbind(1)


def dimensions_that_go(x):
    x.add_(1)
    return x.squeeze().sum(-1), x[:1].squeeze(0) * 2


def the_argument_itself(x):
    x.neg_()
    y = x.contiguous()
    return y, x.reshape(x.shape), y is x


@pytest.mark.parametrize(
    "body",
    [
        slices,
        a_copy_here_a_view_there,
        a_branch_behind_a_write,
        lists,
        dimensions_that_go,
        the_argument_itself,
    ],
)
def test_bodies(body):
    assert plans(agree(at_sizes(body))) >= 2
    # Two sizes, each laid out in two ways.
    turned = at_sizes(body, lambda n: (torch.randn(4, -n).t(),) if n < 0 else rows(n), (3, -3, 2, -2))
    agree(turned)


def cache():
    return types.SimpleNamespace(
        keys=torch.zeros(2, 64, 4),
        values=torch.zeros(2, 64, 4),
        filled=torch.zeros((), dtype=torch.long),
        seen=0,
    )


def attend(cache, x):
    """A step with a static cache: reads of sizes and views behind what it writes."""
    at = torch.arange(x.shape[1]) + cache.filled
    cache.filled.add_(x.shape[1])
    cache.keys.index_copy_(1, at % 64, x)
    if x.shape[1] == 1:
        x = x.view(2, 4).unsqueeze(1)
    cache.values.index_copy_(1, at % 64, x * 2)
    mixed = F.scaled_dot_product_attention(x, cache.keys, cache.values)
    out = mixed.transpose(0, 1).reshape(x.shape[1], -1)
    cache.seen = x.shape[1]
    return out, x.shape


def test_a_static_cache():
    assert plans(agree(at_sizes(attend, lambda n: (torch.randn(2, n, 4),), (3, 1, 2, 1), cache))) >= 1


def test_state_of_several_sizes():
    """What lies in state is another tensor at each call, of the same size or not, or a part of one."""

    def step(state, x):
        state.t.mul_(0.5).add_(x.sum())
        return state.t.view(-1)[: x.shape[0]] + x.view(-1)[: state.t.shape[0]].sum(), state.t.reshape(-1, 1)

    def make(trace):
        state = types.SimpleNamespace(t=torch.randn(4))
        base = torch.randn(40)

        def put(t):
            return lambda: setattr(state, "t", t)

        steps = [off]
        for _ in range(OFTEN):
            for t in (torch.randn(4), base[1:5], base[::2][:4], torch.randn(1), torch.randn(0)):
                steps += [put(t), call(torch.randn(3))]
        return trace(lambda x: step(state, x), dynamic=True), steps, lambda: [state.t, base]

    assert plans(agree(make)) >= 3


@pytest.mark.parametrize("sizes", [(3, 5, 2), (1, 0, 4)])
def test_arguments_that_share_memory(sizes):
    def step(x, y):
        x.add_(1)
        y.mul_(2)
        return x.view(-1)[: x.shape[0] // 2], (x + y).reshape(-1)

    def make(trace):
        base = torch.randn(64)
        ways = (
            lambda n: (base[:n], base[n : 2 * n]),
            lambda n: (base[:n], base[:n]),
            lambda n: (base[:n], base[1 : n + 1]),
            lambda n: (torch.randn(n), base[:n]),
        )
        steps = [call(*way(n)) for _ in range(OFTEN) for n in sizes for way in ways]
        return trace(step, dynamic=True), [off, *steps], lambda: base

    assert plans(agree(make)) >= 3


def test_values_that_lead_away():
    """Before anything is changed, the plan is left for the program, which has or records the other branch."""

    def step(state, x):
        if x.sum() > 0:
            return state.t.add_(x.shape[0]) * x
        return state.t.sub_(1) - x.reshape(-1).sum()

    def make(trace):
        state = types.SimpleNamespace(t=torch.ones(4))
        steps = [
            call(torch.full((n, 4), sign)) for _ in range(OFTEN) for n in (3, 1, 2) for sign in (1.0, 1.0)
        ]
        steps += [call(torch.full((n, 4), sign)) for _ in range(4) for n in (3, 1, 0) for sign in (-1.0, 1.0)]
        return trace(lambda x: step(state, x), dynamic=True), [off, *steps], lambda: state.t

    assert plans(agree(make)) >= 3


def test_values_behind_a_write_have_none():
    def step(x):
        x.add_(1)
        return x.reshape(-1) if x.sum() > 0 else x * 2

    tracer = agree(at_sizes(step, lambda n: (torch.randn(n, 4),), (3, 1, 0)))
    assert not plans(tracer)
    assert tracer.count("hits") > 20


def picks(state, x, at):
    state.t.add_(1)
    got = (x * 2).view(-1, 2).index_select(0, at)
    state.t.mul_(2)
    return got, x.shape[0]


def picks_behind_a_note(state, x, at):
    state.note = x.shape[0]
    return picks(state, x, at)


def picks_and_catches(state, x, at):
    try:
        return picks(state, x, at)
    except IndexError:
        return x.reshape(-1), x.shape[0]


@pytest.mark.parametrize("body", [picks, picks_behind_a_note, picks_and_catches])
def test_what_raises(body):
    """An operator raises behind a write, for what lies in a tensor, at sizes that have a plan by then."""

    def make(trace):
        state = types.SimpleNamespace(t=torch.ones(2), note=0)
        fine, bad = torch.tensor([0, 1]), torch.tensor([0, 99])
        steps = [call(torch.randn(n, 4), fine) for _ in range(OFTEN) for n in (3, 1, 2)]
        steps += [call(torch.randn(n, 4), at) for n in (3, 1, 3, 1) for at in (bad, fine)]
        return trace(lambda *args: body(state, *args), dynamic=True), [off, *steps], lambda: vars(state)

    tracer = agree(make)
    assert tracer.count("hits") > 30
    assert plans(tracer) >= (2 if body is picks else 0)


def test_what_warns():
    def step(x):
        return x.std(0), x.reshape(-1) * 2

    agree(at_sizes(step, sizes=(3, 1, 2)))


def test_numbers_that_are_passed():
    """Ints that differ at the same sizes are no part of a plan."""

    def step(x, n, scale):
        x.mul_(scale)
        return x[:n].reshape(-1), n + x.shape[0]

    def batch(n):
        return torch.randn(n, 4), int(torch.randint(0, 4, ())), float(torch.rand(()))

    agree(at_sizes(step, batch, (3, 1, 5)))


def test_sizes_that_are_handed_on():
    """Results and state made of sizes are those of each call, whichever plan gives them."""

    def step(state, x):
        state.t.add_(x.shape[0])
        made = x.new_zeros(x.shape[0])
        state.sizes = [x.shape[0], x.stride(0)]
        state.text = f"{x.shape[0]} of {x.numel()}"
        return {"n": x.shape[0] * 2, "half": x.shape[0] / 2, "t": made}

    def state():
        return types.SimpleNamespace(sizes=[], text="", t=torch.zeros(2))

    assert plans(agree(at_sizes(step, state=state))) >= 3


def test_kept_results():
    """What a call returns is its own, whatever the next ones do."""

    def make(trace):
        kept = []
        made = trace(lambda x: (torch.relu(x).t().reshape(-1), (x + 1).view(-1), x * 2), dynamic=True)

        def run(x):
            kept.append(made(x))
            return kept[-1]

        return run, [off, *[call(*rows(n)) for _ in range(OFTEN) for n in (3, 1, 2)]], lambda: kept

    assert plans(agree(make)) >= 2


def test_sizes_of_the_recording_need_none():
    tracer = agree(at_sizes(lambda x: torch.relu(x).reshape(-1), sizes=(3,)))
    assert not plans(tracer)


def test_with_gradients_there_is_none():
    def make(trace):
        steps = [call(*rows(n)) for _ in range(OFTEN) for n in (3, 1)]
        return trace(lambda x: (x * 2).reshape(-1), dynamic=True), steps

    assert not plans(agree(make))
