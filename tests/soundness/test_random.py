"""The random stream: the same numbers in the same order, and the same state afterwards."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.soundness.runner import Cases, X, call, check

cases = Cases()


@cases(hits=3)
def dropout(trace):
    return trace(lambda x: F.dropout(x, 0.5)), [call(X(10, grad=True))] * 4


@cases(hits=3)
def factories(trace):
    return trace(lambda: (torch.rand(2), torch.randn(2), torch.randint(9, (2,)), torch.randperm(5))), [
        call()
    ] * 4


@cases(hits=2)
def like_and_in_place(trace):
    @trace
    def fn(x):
        return x + torch.rand_like(x) + torch.empty(3).normal_() + torch.zeros(3).uniform_().bernoulli()

    return fn, [call(X())] * 3


@cases(hits=2)
def fills_an_argument(trace):
    return trace(lambda x: x.normal_() * 2), [call(X())] * 3


@cases(hits=2)
def seeded_outside(trace):
    return trace(lambda x: x + torch.rand(3)), [
        call(X()),
        lambda: torch.manual_seed(5),
        call(X()),
        lambda: torch.manual_seed(5),
        call(X()),
    ]


@cases(hits=2)
def seeded_inside(trace):
    def fn(x):
        torch.manual_seed(3)
        return x + torch.rand(3)

    return trace(fn), [call(X())] * 3


@cases(hits=2)
def generator_of_state(trace):
    g = torch.Generator().manual_seed(1)
    return trace(lambda x: x + torch.rand(3, generator=g)), [call(X())] * 3, lambda: g.get_state().sum()


@cases(hits=1)
def generator_made_inside(trace):
    def fn(x):
        g = torch.Generator()
        g.manual_seed(1)
        return x + torch.rand(3, generator=g)

    return trace(fn), [call(X())] * 3


@cases(hits=2)
def generator_as_argument(trace):
    fn = trace(lambda x, g: x + torch.rand(3, generator=g))
    g = torch.Generator().manual_seed(1)
    return fn, [call(X(), g)] * 3


@cases(hits=2)
def state_saved_and_restored(trace):
    def fn(x):
        state = torch.get_rng_state()
        y = x + torch.rand(3)
        torch.set_rng_state(state)
        return y

    return trace(fn), [call(X())] * 3


@cases(hits=2)
def forked(trace):
    def fn(x):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            y = torch.rand(3)
        return x + y + torch.rand(3)

    return trace(fn), [call(X())] * 3


@cases(hits=1)
def initial_seed(trace):
    return trace(lambda x: x * torch.initial_seed()), [
        call(X()),
        call(X()),
        lambda: torch.manual_seed(7),
        call(X()),
    ]


@cases(hits=1)
def multinomial_and_bernoulli(trace):
    fn = trace(lambda p: (torch.multinomial(p, 2), torch.bernoulli(p), torch.poisson(p)))
    return fn, [call(torch.full((5,), 0.5))] * 3


@cases(hits=1)
def attention_with_dropout(trace):
    fn = trace(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.3))
    return fn, [call(X(1, 2, 4, 8))] * 3


@cases(hits=1)
def gumbel_and_rrelu(trace):
    fn = trace(lambda x: (F.gumbel_softmax(x), F.rrelu(x, training=True), F.alpha_dropout(x, training=True)))
    return fn, [call(X(grad=True))] * 3


@cases(hits=1)
def distributions(trace):
    fn = trace(lambda m, s: torch.distributions.Normal(m, s).rsample())
    return fn, [call(X(grad=True), torch.ones(3))] * 4


@cases(hits=2)
def distribution_with_checks(trace):
    def fn(m, s):
        d = torch.distributions.Normal(m, s)
        z = d.sample()
        return z, d.log_prob(z)

    return trace(fn), [
        call(X(), torch.ones(3)),
        call(X(), torch.ones(3)),
        call(X(), -torch.ones(3)),
        call(X(), torch.ones(3)),
    ]


@cases(hits=1)
def recurrent_with_dropout(trace):
    lstm = torch.nn.LSTM(2, 3, num_layers=2, dropout=0.5)
    fn = trace(lambda x: lstm(x)[0])
    return fn, [call(X(4, 1, 2))] * 4


@cases(hits=1)
def random_without_drawing(trace):
    return trace(lambda x: F.dropout(x, 0.5, training=False) + F.dropout(x, 0.0)), [call(X())] * 3


@cases.parametrize
def test_random(make, expected):
    check(make, **expected)
