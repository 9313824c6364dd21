"""Lists, dicts and tuples that a step gives and that others hold, too: a replay knows what they hold, not
which one of several that are equal it is given."""

from __future__ import annotations

import itertools

import pytest

from tests.soundness.runner import Cases, Holder, X, call, check, opaque

cases = Cases()


def by_next(trace, state):
    state.all = itertools.cycle([state.one])
    return lambda: next(state.all)


def by_an_opaque_function(trace, state):
    return opaque(trace, lambda: state.one)


def inside_another(trace, state):
    give = opaque(trace, lambda: (1.0, {"a": state.one}))
    return lambda: give()[1]["a"]


def by_a_generator(trace, state):
    def all_of_them():
        while True:
            yield state.one

    state.all = all_of_them()
    return lambda: next(state.all)


WAYS = [by_next, by_an_opaque_function, inside_another, by_a_generator]
GIVEN = {
    "list": lambda: [1.0, X()],
    "dict": lambda: {0: 1.0},
    "tuple": lambda: ([1.0], 2.0),
    "deep": lambda: [[[[[[1.0]]]]]],
}


def stored(state, given, x):
    state.kept = given
    return x * 2


def appended(state, given, x):
    state.all_kept.append(given)
    return x * 2


def stored_inside(state, given, x):
    state.entries["a"] = (1.0, [given])
    return x * 2


def returned(state, given, x):
    return x, given


@pytest.mark.parametrize("use", [stored, appended, stored_inside, returned], ids=lambda use: use.__name__)
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_it_does_not_leave_the_call(way, given, use):
    def make(trace):
        state = Holder(one=GIVEN[given](), kept=None, all_kept=[], entries={})
        give = way(trace, state)
        fn = trace(lambda x: use(state, give(), x))
        seen = []

        def step():
            seen.append(fn(X()))

        # What is the same object in all of these stays so.
        return fn, [step] * 3, lambda: (seen, state.one, state.kept, state.all_kept, state.entries)

    check(make, eager="returns-given")


@cases(hits=3)
def it_may_be_read(trace):
    state = Holder(one=[1.0, X()], rest={"a": 2.0})
    give = opaque(trace, lambda: (state.one, state.rest))

    def fn(x):
        one, rest = give()
        return [x * v for v in one], x + rest["a"]

    return trace(fn), [call(X())] * 4


@cases(hits=3)
def one_that_nobody_else_holds_may_leave(trace):
    state = Holder(kept=None)
    give = opaque(trace, lambda: [1.0, {"a": [2.0]}])

    def fn(x):
        state.kept = given = give()
        return x * given[0], given

    return trace(fn), [call(X())] * 4, lambda: state.kept


OWN = {
    "list": lambda x: [1.0, x * 2, {"a": [2.0]}],
    "dict": lambda x: {"a": [x * 2]},
    "tuple": lambda x: ([1.0], {"a": x * 2}, (x, [2.0])),
}


@pytest.mark.parametrize("given", OWN)
@pytest.mark.parametrize("at", ["behind it", "with it", "before it"])
def test_where_it_goes_on_at_an_exit(given, at):
    """What the replay has kept of what nobody else holds is the function's."""

    def make(trace):
        state = Holder(kept=None, more=False)
        give = opaque(trace, lambda x: OWN[given](x) if not state.more else [OWN[given](x)])

        def fn(x):
            if at == "before it":
                x = x * 2 if x.sum() > 0 else x * 3
            state.kept = given = give(x)
            if at == "behind it":
                x = x * 2 if x.sum() > 0 else x * 3
            return x, given

        def change():
            state.more = at == "with it" and not state.more

        return trace(fn), [call(X()), call(-X()), change] * 6, lambda: state.kept

    check(make, hits=8)


@cases(eager="returns-given")
def there_already(trace):
    """What it writes is what was there, at the first calls."""
    state = Holder(one=[1.0])
    state.kept = state.one
    give = opaque(trace, lambda: state.one)

    def fn(x):
        state.kept = give()
        return x * 2

    def renew():
        state.one = list(state.one)

    return trace(fn), [call(X()), call(X()), renew, call(X())], lambda: (state.kept, state.one)


@cases(eager="returns-given")
def one_of_two_that_are_equal(trace):
    state = Holder(one=[1.0], other=[1.0], kept=None)
    state.all = itertools.cycle([state.one, state.one, state.other])

    def fn(x):
        given = next(state.all)
        y = x * state.one[0]
        state.kept = given
        return y

    return trace(fn), [call(X())] * 6, lambda: (state.kept, state.one, state.other)


@cases(eager="hands-on-given")
def handed_to_another_step(trace):
    state = Holder(one=[1.0])
    give = opaque(trace, lambda: state.one)

    def count(given):
        given[0] += 1

    counts = opaque(trace, count)

    def fn(x):
        counts(give())
        return x * 2

    return trace(fn), [call(X())] * 4, lambda: state.one


@cases(hits=3, eager="returns-given")
def where_one_of_the_call_has_lain(trace):
    """The list that a step makes and keeps may lie where one of the call has lain that is gone."""
    state = Holder(one=None, kept=None, keeps=False)

    def new():
        given = [1.0, 2.0]
        if state.keeps:
            state.one = given
        return given

    give = opaque(trace, new)

    def fn(x):
        for _ in range(3):
            own = [1.0, 2.0]
            x = x * own[1]
            del own
        state.kept = give()
        return x

    def keep():
        state.keeps = True

    return trace(fn), [call(X())] * 4 + [keep] + [call(X())] * 3, lambda: (state.one, state.kept)


@cases.parametrize
def test_of_a_step(make, expected):
    check(make, **expected)
