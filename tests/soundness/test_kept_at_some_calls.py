"""What a function of the user's keeps, at some calls only, of what it is given: it logs each n-th step."""

from __future__ import annotations

import collections
import functools
import itertools

import pytest

import lazytrace
from tests.soundness.runner import Cases, Holder, X, call, check, opaque

cases = Cases()


def appends(given, x):
    given.append(3.0)


def appends_a_tensor(given, x):
    given.append(x)


def overwrites(given, x):
    given[0] = x * 2


def clears(given, x):
    given.clear()


def leaves_it(given, x):
    pass


CHANGES = [appends, appends_a_tensor, overwrites, clears, leaves_it]


def the_list(keep, change, x):
    given = [1.0, 2.0]
    keep(given)
    change(given, x)
    return given


def the_list_in_others(keep, change, x):
    given = [1.0, 2.0]
    both = {"a": given, "b": [given]}
    keep(given)
    change(given, x)
    return both, x * len(given)


def the_dict_around_it(keep, change, x):
    given = {"a": [1.0, 2.0]}
    keep(given)
    change(given["a"], x)
    return given["a"]


def what_is_given_back(keep, change, x):
    given = [1.0, 2.0]
    back = keep(given)
    change(back, x)
    return given is back, given


def a_new_list_that_is_given_back(keep, change, x):
    back = keep([x, 2.0])
    change(back, x)
    return back


def of_a_caller(keep, change, x):
    def keeps(given):
        keep(given)
        change(given, x)

    given = [1.0, 2.0]
    keeps(given)
    return len(given), given


def what_c_code_was_given(keep, change, x):
    given = [1.0, 2.0]
    scaled = x * sum(given)
    keep(given)
    change(given, x)
    return scaled, given


HANDED = [
    the_list,
    the_list_in_others,
    the_dict_around_it,
    what_is_given_back,
    a_new_list_that_is_given_back,
    of_a_caller,
    what_c_code_was_given,
]


@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
@pytest.mark.parametrize("handed", HANDED, ids=[handed.__name__ for handed in HANDED])
def test_what_is_kept_later(handed, change):
    """The call goes on with the very list that is kept, which the caller is given."""

    def make(trace):
        state = Holder(keeps=False, kept=[], results=[])

        def keep(given):
            if state.keeps:
                state.kept.append(given)
            return given

        keeps = opaque(trace, keep)
        f = trace(lambda x: handed(keeps, change, x))

        def once(x):
            state.results.append(f(x))

        def switch():
            state.keeps = not state.keeps

        steps = [*[call(X())] * 3, switch, *[call(X())] * 2, switch, call(X())]
        return once, steps, lambda: (state.kept, state.results)

    check(make, hits=3)


def keeps_each_third(trace):
    """A function of the user's, and what it has kept."""
    runs, kept = itertools.count(), []

    def log(metrics):
        if next(runs) % 3 == 2:
            kept.append(metrics)

    return opaque(trace, log), kept


@cases(hits=6)
def each_third_call_is_logged(trace):
    """Behind that, nobody changes what was kept: both ways are replayed."""
    log, kept = keeps_each_third(trace)

    def step(x):
        metrics = {"loss": x.sum().item(), "scale": 2.0}
        log(metrics)
        return x * metrics["scale"]

    return trace(step), [call(X()) for _ in range(9)], lambda: kept


AROUND = {
    "tuple": lambda given: (given, 3.0),
    "partial": lambda given: functools.partial(len, given),
    "function": lambda given: lambda: given,
    "attributes": lambda given: Holder(given=given),
}
WHAT_IS_KEPT = {"partial": lambda one: one.args, "function": lambda one: one()}


@pytest.mark.parametrize("around", AROUND)
def test_what_leads_to_a_list_is_kept(around):
    """Who keeps it comes to the list, which the call changes behind that."""

    def make(trace):
        state = Holder(keeps=False, kept=[])

        def keep(given):
            if state.keeps:
                state.kept.append(vars(given) if around == "attributes" else given)

        keeps = opaque(trace, keep)

        def f(x):
            given = [1.0, 2.0]
            keeps(AROUND[around](given))
            given.append(3.0)
            return x * len(given), given

        def switch():
            state.keeps = not state.keeps

        steps = [*[call(X())] * 3, switch, *[call(X())] * 2, switch, call(X())]
        return trace(f), steps, lambda: [WHAT_IS_KEPT.get(around, lambda one: one)(one) for one in state.kept]

    check(make, hits=3)


Losses = collections.namedtuple("Losses", "first second")


@cases(hits=6)
def each_third_named_tuple_is_logged(trace):
    log, kept = keeps_each_third(trace)

    def step(x):
        losses = Losses(x.sum(), 2.0)
        log(losses)
        return x * losses.second

    return trace(step), [call(X()) for _ in range(9)], lambda: kept


def test_more_than_lists_leads_to_what_is_kept():
    """An object of the call's holds the list, too, which would still lead to that of the function."""
    state = Holder(keeps=False, kept=[])

    @lazytrace.opaque
    def keep(given):
        if state.keeps:
            state.kept.append(given)

    @lazytrace.traced
    def f(x):
        given = [1.0]
        holder = Holder(given=given)
        keep(given)
        holder.given.append(x)
        return len(given)

    for _ in range(3):
        f(X())
    assert f.cache_info().hits == 2
    state.keeps = True
    with pytest.raises(lazytrace.ReplayError, match=r"a list that a step keeps, and to which more than"):
        f(X())


# ---------------------------------------------------------------- given back, where another step varies
@cases(hits=7)
def a_list_of_state_is_given_back(trace):
    state, runs = Holder(all=[1.0, 2.0]), itertools.count()
    same, vary = opaque(trace, lambda given: given), opaque(trace, lambda: next(runs) % 2)

    def f(x):
        given = same(state.all)
        return given is state.all, x * vary() + given[0]

    return trace(f), [call(X())] * 9


@cases(hits=7)
def a_list_of_the_call_is_given_back(trace):
    runs = itertools.count()
    same, vary = opaque(trace, lambda given: (given, {"a": [given]})), opaque(trace, lambda: next(runs) % 2)

    def f(x):
        given = [x * 2, 1.0]
        back, inside = same(given)
        return x * vary(), back is given, inside["a"][0] is given, back

    return trace(f), [call(X())] * 9
