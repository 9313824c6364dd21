"""Generators of Python's `random` that a function makes itself."""

from __future__ import annotations

import random

import torch
from torch import nn

from tests.soundness.runner import Cases, Holder, X, call, check

cases = Cases()


def case(name, body, *args, hits=4, eager=None, count=6, look=lambda: None):
    """`args`: made for each call, by its number."""

    def make(trace):
        random.seed(1)
        steps = [call(X() * k, *(one(k) for one in args)) for k in range(count)]
        return trace(body), steps, lambda: (random.getstate(), look())

    make.__name__ = name
    cases(make, hits=hits, **({"eager": eager} if eager else {}))


def seeded(x):
    r = random.Random(3)
    return x * r.random(), r.randint(0, 5), r.uniform(1, 2)


case("one_that_is_seeded", seeded)


def several(x):
    a, b = random.Random(3), random.Random(3)
    return x * a.random(), a.random(), b.random(), a is b, random.random()


case("two_of_one_seed", several)
case("seeded_with_a_number", lambda x, seed: x * random.Random(seed * 2).random(), lambda k: k + 3)


def entries(x):
    r = random.Random(5)
    order = [0, 1, 2]
    r.shuffle(order)
    return x[order], r.choice([x, x + 1, x + 2]), r.sample([1, 2, 3, 4], 2)


case("entries_that_it_draws", entries)


def gaussian(x):
    r = random.Random(5)
    first = r.gauss(0, 1)
    return x * first, r.gauss(0, 1), r.gauss_next


case("what_it_keeps_for_the_next_draw", gaussian)


def seeded_again(x):
    r = random.Random(5)
    a = r.random()
    r.seed(7)
    return x * a, r.random()


case("seeded_again", seeded_again)


def two_ways(x):
    r = random.Random(5)
    a = r.random()
    y = x * a
    if x.sum() > 4:
        return y, r.random(), "large"
    return y * 2, random.Random(5).random(), r.random(), r.randint(0, 9)


case("in_two_ways", two_ways)


def marked(x):
    r = random.Random(5)
    before = hasattr(r, "mark")
    r.mark = x + 1
    return r.mark * r.random(), before


case("an_attribute_is_put_on_it", marked, hits=0, eager="sets-attribute")


def given_back(x):
    r = random.Random(5)
    r.random()
    return x + 1, r.getstate()[1][:3], r.random()


def textual(x):
    return x * random.Random("text").random()


case("its_state", given_back, hits=0, eager="calls-method")
case("seeded_with_a_text", textual, hits=0, eager="makes-unseen")
case("seeded_with_a_bool", lambda x: x * random.Random(True).random(), hits=0, eager="makes-unseen")


class Mine(random.Random):
    def random(self):
        return 0.5


case("of_a_class_of_the_users", lambda x: x * Mine(3).random(), hits=0, eager="makes-unseen")


def not_seeded(x):
    r = random.Random()
    a, b = r.random(), r.random()
    return x + 1, a == b, 0 <= a < 1, type(r)


case("one_that_is_not_seeded", not_seeded)


def kept(trace):
    """What a call keeps is another one at each; a later one draws from it."""
    state = Holder(r=None, all=[])

    @trace
    def step(x):
        drawn = None if state.r is None else state.r.random()
        state.r = random.Random(3)
        return x * state.r.random(), drawn

    def look():
        state.all.append(state.r)
        return len({id(r) for r in state.all}), state.r and state.r.getstate()

    return step, [call(X() * k) for k in range(6)], look


def returned(trace):
    def body(x):
        r = random.Random(3)
        return x * r.random(), r

    step = trace(body)

    def use(x):
        y, r = step(x)
        return y, r.random(), r.getstate()[1][-1]

    return use, [call(X() * k) for k in range(6)], lambda: None


def seeding_is_replaced(trace):
    original = random.Random.seed

    def seed(self, number=None, version=2):
        return original(self, 11)

    def body(x):
        return x * random.Random(3).random()

    step = trace(body)

    def use(x, replaced):
        random.Random.seed = seed if replaced else original
        try:
            return step(x)
        finally:
            random.Random.seed = original

    return use, [call(X(), k in (3, 4)) for k in range(6)], lambda: None


def training(trace):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @trace
    def step(x):
        r = random.Random(3)
        loss = (model(x) * r.random()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item(), r.randint(0, 5)

    return step, [call(torch.ones(2, 4) * k) for k in range(8)], lambda: list(model.parameters())


cases(training, hits=6)
cases(kept, hits=3)
cases(returned, hits=3)
cases(seeding_is_replaced, hits=2)


@cases.parametrize
def test_generators(make, expected):
    check(make, **expected)
