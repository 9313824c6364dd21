"""Iterators that were there before the call, which a step moves on with `next()`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tests.soundness.runner import Cases, Holder, X, call, calls, check, opaque
from tests.soundness.test_flat_steps import ENOUGH

cases = Cases()


@cases(hits=4)
def batches_of_a_generator(trace):
    def batches():
        for k in range(20):
            yield X() * k, {"y": X() + k}

    held = Holder(batches=batches())

    def step(x):
        first, rest = next(held.batches)
        return first * x + rest["y"]

    def change():
        held.batches = (([X()], {"y": k}) for k in range(9))

    return trace(step), [*calls(7), change, call(2), call(2)], lambda: None


def in_turn(loader):
    while True:
        for batch in loader:
            held = batch
            yield held


@cases(hits=5)
def batches_that_the_generator_holds(trace):
    """Lists and dicts that others have, too, until they are asked for the next one."""
    data = torch.utils.data.TensorDataset(torch.arange(24.0).view(8, 3), torch.arange(8.0))
    pairs = in_turn(torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
    dicts = in_turn([{"x": [X() * k], "n": k} for k in range(3)])

    def one(x):
        inputs, targets = next(pairs)
        return (inputs * x).sum() + len(targets)

    def other(x):
        batch = next(dicts)
        return x * batch["x"][0] * batch["n"]

    other = trace(other)
    return trace(one), [step for _ in range(8) for step in (call(X()), call(X()).of(other))], lambda: None


@cases(hits=0, eager="reads-touched")
def a_list_that_the_generator_fills_again(trace):
    kept = [X(), X()]

    def fill():
        for k in range(20):
            kept[0] = X() * k
            yield kept

    filled = fill()

    def step(x):
        first = next(filled)
        value = first[0] * x
        next(filled)
        return value + first[0]

    return trace(step), calls(6), lambda: kept


@cases(hits=0, eager="reads-unknown")
def a_list_that_state_may_have(trace):
    """It is another one at each second call."""
    held = Holder(kept=[X()])
    turns = in_turn([[X()], held.kept])

    def step(x):
        given = next(turns)
        return x * 2 if given is held.kept else x * 3

    return trace(step), calls(6), lambda: held.kept


def adds_beside(trace, order):
    held = Holder(kept=[1.0, 2.0])
    turns = iter([held.kept if one else [1.0, 2.0] for one in order])

    def step(x):
        given = next(turns)
        held.kept.append(3.0)
        return [x * value for value in given]

    return trace(step), [s for one in calls(4) for s in (one, held.kept.pop)], lambda: held.kept


@cases(hits=0, eager="reads-unknown")
def a_list_that_the_call_has_changed_later_on(trace):
    """The first are only equal to what the call adds to."""
    return adds_beside(trace, [False, False, True, True])


@cases(hits=0, eager="reads-unknown")
def a_list_that_the_call_has_changed_at_first(trace):
    return adds_beside(trace, [True, True, False, False])


@cases(hits=0, eager="reads-unknown")
def a_dict_that_the_call_has_changed_later_on(trace):
    held = Holder(kept={"a": 1.0})
    turns = iter([{"a": 1.0}, *[held.kept] * 5])

    def step(x):
        given = next(turns)
        held.kept["b"] = 3.0
        return [x * value for value in given.values()]

    return trace(step), [s for one in calls(4) for s in (one, lambda: held.kept.pop("b"))], lambda: held.kept


@cases(hits=0, eager="reads-unknown")
def a_list_that_is_compared_with_others(trace):
    held = Holder(kept=[X()], made=lambda: [X()])
    turns = (held.kept if k % 3 == 0 else held.made() for k in range(1, 20))

    def step(x):
        kept = held.kept
        given = next(turns)
        return x * 2 if kept is given else x * given[0]

    return trace(step), calls(7), lambda: held.kept


@cases(hits=3)
def a_list_of_state_or_another(trace):
    held = Holder(kept=[X()])
    turns = in_turn([[X() + 3], held.kept])

    def step(x):
        before = held.kept[0]
        return next(turns)[0] * x - before

    return trace(step), calls(9), lambda: held.kept


@cases(hits=0, eager="hands-on-given")
def a_list_that_is_handed_on(trace):
    kept = [X()]
    turns = in_turn([kept])
    swell = opaque(trace, lambda one: one.append(one[-1] + 1))

    def step(x):
        given = next(turns)
        swell(given)
        return x * len(given)

    return trace(step), calls(5), lambda: kept


@cases(hits=0, eager="sets-item")
def a_list_that_is_written_to(trace):
    kept = [X(), X()]
    turns = in_turn([kept])

    def step(x):
        given = next(turns)
        given[0] = given[0] * x
        return given[0].sum()

    return trace(step), calls(5), lambda: kept


@cases(hits=3)
def batches_of_a_loader(trace):
    data = torch.utils.data.TensorDataset(torch.arange(24.0).view(8, 3), torch.arange(8.0))
    loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
    held = Holder(batches=iter(loader))

    def step(x):
        try:
            inputs, targets = next(held.batches)
        except StopIteration:
            held.batches = iter(loader)
            inputs, targets = next(held.batches)
        return inputs * x, targets.sum()

    return trace(step), calls(12), lambda: None


@cases(hits=4)
def counts(trace):
    held = Holder(count=itertools.count(3))

    def step(x):
        n = next(held.count)
        if n > 8:
            return x * n * 10
        return x * n

    def floats():
        held.count = itertools.count(0.5, 0.25)

    return trace(step), [*calls(10), floats, *calls(4)], lambda: repr(held.count)


@cases(hits=1)
def turns(trace):
    held = Holder(turns=itertools.cycle(["a", "b"]))

    def step(x):
        return x * (2 if next(held.turns) == "a" else 3)

    return trace(step), calls(8)


@cases(hits=1)
def one_that_ends(trace):
    held = Holder(left=iter([1, 1, 1]))

    def step(x):
        return x * next(held.left)

    def again():
        held.left = iter([1, 2])

    return trace(step), [*calls(5), again, *calls(3)]


@cases(recordings=5)
def one_that_reads_what_the_step_writes(trace):
    held = Holder(n=0, given=None)

    def give():
        while True:
            yield held.n

    held.given = give()

    def step(x):
        held.n += 1
        return x * next(held.given)

    return trace(step), calls(5), lambda: held.n


@cases(hits=2)
def one_that_writes_what_the_step_reads(trace):
    held = Holder(n=1, given=None)

    def give():
        while True:
            held.n += 1
            yield 1

    held.given = give()

    def step(x):
        return x * next(held.given) * held.n

    return trace(step), calls(5), lambda: held.n


@cases(hits=2)
def tensors_that_others_hold(trace):
    tensors = [X() * k for k in range(12)]
    held = Holder(given=iter(tensors), last=None)

    def step(x):
        held.last = next(held.given)
        held.last.add_(1)
        return held.last * x

    return trace(step), calls(9), lambda: [held.last, *tensors]


KINDS = {
    "floats": lambda: itertools.count(0.5, 0.25),
    "steps of floats": lambda: itertools.count(1, 0.5),
    "large": lambda: itertools.count(2**65),
    "becomes large": lambda: itertools.count(2**63 - 2),
    "complex": lambda: itertools.count(1j),
    "of numpy": lambda: itertools.count(np.float32(1)),
    "tensors": lambda: itertools.count(torch.ones(1)),
}


def first_thing(s, x):
    return x * next(s.count)


def behind_writes(s, x):
    s.total.add_(1)
    noise = torch.rand(3)
    return x * next(s.count) + noise * next(s.count)


def in_a_graph(s, x):
    loss = ((x * s.weight).tanh() * (1 + next(s.count))).sum()
    loss.backward()
    return loss.detach()


def behind_a_pass(s, x):
    loss = (x * s.weight).tanh().sum()
    loss.backward()
    return loss.detach() * next(s.count)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "body", [first_thing, behind_writes, in_a_graph, behind_a_pass], ids=lambda body: body.__name__
)
def test_a_count_becomes_one_of_another_kind(kind, body):
    def make(trace):
        s = Holder(count=itertools.count(), total=torch.zeros(1), weight=torch.ones(3, requires_grad=True))

        def change():
            s.count = KINDS[kind]()

        before, after = calls(ENOUGH + 2), calls(5)
        steps = [*before, change, *after]
        return trace(lambda x: body(s, x)), steps, lambda: [s.total, s.weight, repr(s.count)]

    check(make, hits=ENOUGH - 1)


# ---------------------------------------------------------------- that have come to their end
def nets():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)


@cases(hits=9)
def parameters_that_an_optimizer_was_made_of(trace):
    """Spinning Up's agents: the chain gives nothing any more, and the loops over it do nothing."""
    one, other = nets()
    parameters = itertools.chain(one.parameters(), other.parameters())
    optimizer = torch.optim.Adam(parameters, lr=0.01)

    def fn(x):
        optimizer.zero_grad()
        for p in parameters:
            p.requires_grad = False
        loss = (one(x) * other(x)).sum()
        loss.backward()
        optimizer.step()
        for p in parameters:
            p.requires_grad = True
        return loss.detach()

    return trace(fn), calls(14), lambda: [*one.parameters(), *other.parameters()]


@cases(hits=6)
def a_generator_that_has_ended(trace):
    one, other = nets()
    held = Holder(parameters=one.parameters())
    list(held.parameters)

    def fn(x):
        total = x.sum()
        for p in held.parameters:
            total = total + p.sum()
        return total

    def another():
        held.parameters = other.parameters()

    steps = [*calls(5), another, call(2), call(2), *calls(4)]
    return trace(fn), steps, lambda: None


@cases(hits=3)
def a_chain_that_comes_back(trace):
    """What was at its end is given iterators anew."""
    chain = itertools.chain()
    list(chain)

    def fn(x):
        for n in chain:
            x = x + n
        return x * 2

    def fill():
        chain.__setstate__((iter([iter([1, 2]), iter([3])]),))

    return trace(fn), [*calls(4), fill, *calls(3), fill, *calls(3)], lambda: list(chain)


@cases(hits=2)
def a_chain_of_nothing_yet(trace):
    """One that has not found its end is moved on."""
    entries = []
    held = Holder(chain=itertools.chain(entries, entries))

    def fn(x):
        for n in held.chain:
            x = x + n
        return x * 2

    def fill():
        entries.append(5)
        held.chain = itertools.chain(entries, [1])

    return trace(fn), [*calls(5), fill, *calls(4)], lambda: list(held.chain)


@cases.parametrize
def test_iterators_in_state(make, expected):
    check(make, **expected)
