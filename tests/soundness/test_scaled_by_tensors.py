"""Tensors of one value where torch wants a number: x.add_(y, alpha=t), as LBFGS has it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.soundness.runner import Cases, call, check

cases = Cases()


def calls(count=6, make=lambda: torch.randn(3)):
    return [call(make()) for _ in range(count)]


@cases(hits=5, recordings=1)
def of_methods(trace):
    def step(x):
        t = x.mean()
        z = x.clone().add_(x, alpha=t)
        return z.addcmul(x, x, value=x.std()), z.sub(x, alpha=-t)

    return trace(step), calls()


@cases(hits=5, recordings=1)
def from_the_state(trace):
    t = torch.ones(())

    def step(x):
        y = x.add(x, alpha=t)
        t.mul_(1.5)
        return y

    return trace(step), calls(), lambda: t


@cases(hits=5)
def in_a_graph(trace):
    w = torch.randn(3, requires_grad=True)
    return trace(lambda x: (w * 2).add(x * w, alpha=x.mean())), calls(), lambda: w


@cases(hits=3)
def of_another_type(trace):
    t = [torch.tensor(2.0)]

    def change():
        t[0] = torch.tensor(3)

    return trace(lambda x: x.add(x, alpha=t[0])), [*calls(3), change, *calls(3)]


@cases(eager="raised TypeError")
def that_requires_gradients(trace):
    t = torch.ones((), requires_grad=True)
    return trace(lambda x: x.add(x, alpha=t)), calls(3)


@cases(hits=3)
def nan_and_infinity(trace):
    def step(x):
        return x.add(torch.ones(3), alpha=x[0] / x[1])

    values = ([1.0, 2, 3], [3.0, 4, 5], [0.0, 0, 1], [1.0, 0, 1], [-1.0, 0, 1], [5.0, 2, 3])
    return trace(step), [call(torch.tensor(value)) for value in values]


@cases(recordings=3)
def of_ints_that_do_not_fit(trace):
    def step(x):
        return x.add(x, alpha=x.sum())

    return trace(step), [call(torch.tensor(value)) for value in ([1, 2], [3, 4], [5, 6])]


def rate_in_a_tensor(optimizer, **options):
    def make(trace):
        lr = torch.tensor(0.1)
        w = torch.nn.Parameter(torch.ones(3))
        opt = optimizer([w], lr=lr, **options)

        def step(x):
            opt.zero_grad()
            (x * w).pow(2).sum().backward()
            opt.step()

        steps = [part for one in calls(9) for part in (one, lambda: lr.mul_(0.9))]
        return trace(step), steps, lambda: [w, opt.state_dict()["state"]]

    return make


@cases(hits=6)
def rate_of_adam(trace):
    return rate_in_a_tensor(torch.optim.Adam, foreach=False)(trace)


@cases(hits=6)
def rate_of_sgd(trace):
    return rate_in_a_tensor(torch.optim.SGD, foreach=False, momentum=0.9)(trace)


def lbfgs(**options):
    def make(trace):
        torch.manual_seed(3)
        model = torch.nn.Linear(3, 2)
        opt = torch.optim.LBFGS(model.parameters(), lr=0.1, **options)

        def step(x):
            def closure():
                opt.zero_grad()
                loss = F.mse_loss(model(x), x[:, :2])
                loss.backward()
                return loss

            return opt.step(closure)

        def state():
            return [list(model.parameters()), opt.state_dict()]

        return trace(step), calls(14, lambda: torch.randn(6, 3)), state

    return make


@cases(hits=8)
def quasi_newton_steps(trace):
    return lbfgs(max_iter=4, history_size=3)(trace)


@cases(hits=4)
def few_evaluations(trace):
    return lbfgs(max_iter=6, max_eval=5, history_size=3)(trace)


@cases(hits=3)
def line_search(trace):
    return lbfgs(max_iter=3, history_size=2, line_search_fn="strong_wolfe")(trace)


@cases.parametrize
def test_scaled(make, expected):
    check(make, **expected)
