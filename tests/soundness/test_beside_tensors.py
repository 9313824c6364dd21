"""Attributes that are put on parameters and buffers of before the call, and read again."""

from __future__ import annotations

import torch
from torch import nn

from lazytrace import opaque
from tests.soundness.runner import Cases, call, check

cases = Cases()


def layer():
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def batch(seed):
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))


def calls(*changes):
    steps = [call(batch(i)) for i in range(4)]
    for i, change in enumerate(changes):
        steps += [change, call(batch(4 + 2 * i)), call(batch(5 + 2 * i))]
    return steps


def case(name, body, *changes, hits=2, eager=None):
    """`body(model, x)`; each change is made to the model's weight, and two calls follow."""

    def make(trace):
        model = layer()
        made = [lambda change=change: change(model.weight) for change in changes]
        return (
            trace(lambda x: body(model, x)),
            calls(*made),
            lambda: [dict(vars(p)) for p in model.parameters()],
        )

    make.__name__ = name
    cases(make, hits=hits, **({"eager": eager} if eager else {}))


def kept(model, x):
    model.weight.last = model(x).detach()
    return model.weight.last * 2


case("one_that_is_set", kept, lambda p: setattr(p, "last", None), lambda p: delattr(p, "last"))


def by_setattr(model, x):
    name = "last"
    setattr(model.weight, name, x.mean())
    return getattr(model.weight, "last", None) * 2


case("one_that_is_set_by_name", by_setattr, lambda p: setattr(p, "other", 1))


def average(model, x):
    p = model.weight
    p.average = p.detach().clone() if not hasattr(p, "average") else p.average * 0.9 + p.detach() * x.mean()
    return p.average.sum()


case(
    "one_that_is_made_once",
    average,
    lambda p: delattr(p, "average"),
    lambda p: setattr(p, "average", torch.zeros(2, 4)),
)


def counted(model, x):
    model.weight.steps = getattr(model.weight, "steps", 0) + 1
    return x / model.weight.steps


case("a_number", counted, lambda p: setattr(p, "steps", 40), lambda p: setattr(p, "steps", 0.5))


def flagged(model, x):
    first = getattr(model.weight, "done", False)
    model.weight.done = True
    return x * 2 if first else x


case("a_flag", flagged, lambda p: setattr(p, "done", False))


def taken_away(model, x):
    model.weight.sample = torch.einsum("ni,nj->nij", model(x), x)
    norm = model.weight.sample.norm()
    del model.weight.sample
    return norm


case("one_that_is_taken_away", taken_away, lambda p: setattr(p, "sample", 1), hits=3)


def emptied(model, x):
    model.weight.sample = x * 2
    model.weight.sample = None
    return x


case("one_that_is_set_twice", emptied, lambda p: setattr(p, "sample", 1))


def in_a_dict(model, x):
    model.weight.notes = {"mean": x.mean(), "n": 1}
    return model.weight.notes["mean"] * 2


case("a_dict", in_a_dict, lambda p: p.notes.update(n=3))


def on_what_is_there(model, x):
    model.weight.notes["mean"] = x.mean()
    return model.weight.notes["mean"] * len(model.weight.notes)


@cases(hits=3)
def an_entry_of_one(trace):
    model = layer()
    model.weight.notes = {}
    steps = calls(lambda: model.weight.notes.update(other=1))
    return trace(lambda x: on_what_is_there(model, x)), steps, lambda: model.weight.notes


@cases(hits=3)
def of_tied_parameters(trace):
    """What is put on one is on the other, as long as they are one."""
    a, b = layer(), layer()
    b.weight = a.weight

    def step(x):
        a.weight.scale = x.mean()
        return b(x) * b.weight.scale

    def untie():
        b.weight = nn.Parameter(a.weight.detach().clone())
        b.weight.scale = 3.0

    return trace(step), calls(untie), lambda: [vars(a.weight), vars(b.weight)]


@cases(hits=3)
def of_one_that_is_exchanged(trace):
    """Another parameter in its place is written to, not the one of the recording."""
    model = layer()
    first = model.weight

    def step(x):
        model.weight.seen = x.sum()
        return model(x)

    def exchange():
        model.weight = nn.Parameter(first.detach() * 2)

    return trace(step), calls(exchange), lambda: [vars(first), vars(model.weight)]


@cases(hits=2)
def of_a_buffer_that_is_renewed(trace):
    model = nn.BatchNorm1d(4)

    def step(x):
        y = model(x)
        model.running_mean.looks = model.running_mean.sum()
        return y * model.running_mean.looks

    return trace(step), calls(), lambda: vars(model.running_mean)


@cases(hits=2)
def written_to_as_well(trace):
    """Attributes stay where the memory changes in place."""
    model = layer()

    def step(x):
        with torch.no_grad():
            model.weight.add_(x.mean())
            model.weight.seen = model.weight.sum()
            model.weight.mul_(0.5)
        return model.weight.seen

    return trace(step), calls(), lambda: [vars(model.weight), model.weight]


@cases(hits=2)
def seen_by_an_opaque_function(trace):
    model, seen = layer(), []

    @opaque
    def look():
        seen.append(sorted(vars(model.weight)))

    def step(x):
        model.weight.a = 1.0
        look()
        model.weight.b = x.sum()
        return x * 2

    return trace(step), calls(), lambda: [seen, vars(model.weight)]


def training(trace, keep, use):
    """A hook of a module puts something on a parameter, as libraries of private training do."""
    model = layer()

    def hook(module, inputs, outputs):
        keep(module.weight, outputs[0])

    model.register_full_backward_hook(hook)

    def step(x):
        model.zero_grad()
        x = x.clone().requires_grad_()
        model(x).pow(2).sum().backward()
        return use(model.weight)

    return trace(step), calls(), lambda: [vars(p) for p in model.parameters()]


@cases(hits=2)
def by_a_hook(trace):
    return training(trace, lambda p, g: setattr(p, "sample", g), lambda p: p.sample.norm(dim=1))


def sets_sample(p, g):
    p.sample = g * 2


@cases(hits=2)
def by_an_instruction_of_a_hook(trace):
    return training(trace, sets_sample, lambda p: p.sample.norm(dim=1))


@cases(hits=2)
def by_a_hook_and_by_name(trace):
    """As `getattr(p, "sample", None)` finds it."""

    def use(p):
        sample = getattr(p, "sample", None)
        return p if sample is None else sample

    return training(trace, sets_sample, use)


def adds_up(p, g):
    p.total = getattr(p, "total", 0.0) + g.sum().item()


@cases(hits=2)
def a_number_by_a_hook(trace):
    return training(trace, adds_up, lambda p: p.grad * p.total)


@cases(eager="sets-attribute")
def on_an_argument(trace):
    """It would stay on what the caller has."""

    def step(x):
        x.seen = True
        return x * 2

    return trace(step), [call(batch(i)) for i in range(3)]


class Setting(nn.Parameter):
    """Its attributes are set by Python code."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value * 2)


@cases(eager="sets-attribute")
def of_a_class_that_sets_itself(trace):
    p = Setting(torch.ones(4))

    def step(x):
        p.scale = 2
        return x * p.scale

    return trace(step), calls(), lambda: vars(p)


@cases.parametrize
def test_attributes_of_tensors(make, expected):
    check(make, **expected)
