"""What an opaque function gives besides tensors: its structure is compared in all that code can see."""

from __future__ import annotations

import collections
import enum

import pytest

import lazytrace
from tests.soundness.runner import X, agree, call


class Label(enum.Enum):
    CAT = 1
    DOG = 2


LONG = "images/" * 20
First, Second = collections.namedtuple("Pair", "mean std"), collections.namedtuple("Pair", "std mean")


def long_keys(x, later):
    return {LONG + ("b" if later else "a"): x * 2}


def enum_keys(x, later):
    return {Label.DOG if later else Label.CAT: x * 2}


def keys_of_other_types(x, later):
    return {1.0 if later else 1: x * 2}


def keys_in_another_order(x, later):
    return dict(reversed([("a", x), ("b", x + 1)])) if later else {"a": x, "b": x + 1}


def object_keys(x, later, one=object(), other=object()):  # noqa: B008
    return {(one if later else other): x * 2}


def named_tuples(x, later):
    return (Second if later else First)(x * 2, x * 3)


def named_or_plain(x, later):
    return (x * 2, x * 3) if later else First(x * 2, x * 3)


def one_list_or_two(x, later):
    inner = [x * 2]
    return [inner, list(inner) if later else inner]


def one_dict_or_two(x, later):
    inner = {"a": x * 2}
    return inner, dict(inner) if later else inner


def shared_in_another_way(x, later):
    first, second = [x], [x]
    return (first, second, first) if later else (first, second, second)


def holds_itself(x, later):
    inner: list = [x * 2]
    inner.append([inner] if later else inner)
    return inner


def nested_deeply(x, later):
    inner = [x * 2]
    for _ in range(50000 if later else 49999):
        inner = [inner]
    return inner


def keys_and_types(r):
    return [(type(k), str(k)) for k in r], list(r.values())


def by_name(r):
    return (r.mean, r.std) if hasattr(r, "mean") else (r[1], r[0])


def writes_to_the_first(r):
    (r[0].append if isinstance(r[0], list) else r[0].setdefault)(len(r))
    return len(r[0]), len(r[1]), r[0] is r[1]


def asks_who_is_who(r):
    return [a is b for a in r for b in r], r[1] is r, len(r[1])


def only_calls(r):
    return len(r)


LOOKS = {
    long_keys: keys_and_types,
    enum_keys: keys_and_types,
    keys_of_other_types: keys_and_types,
    keys_in_another_order: keys_and_types,
    object_keys: lambda r: [k is object_keys.__defaults__[0] for k in r],
    named_tuples: by_name,
    named_or_plain: by_name,
    one_list_or_two: writes_to_the_first,
    one_dict_or_two: writes_to_the_first,
    shared_in_another_way: lambda r: [a is b for a in r for b in r],
    holds_itself: asks_who_is_who,
    nested_deeply: only_calls,
}


@pytest.mark.parametrize("gives", LOOKS, ids=[one.__name__ for one in LOOKS])
@pytest.mark.parametrize("period", [4, 7])
def test_results_of_another_structure(gives, period):
    def make(trace):
        count = [0]

        def given(x):
            count[0] += 1
            return gives(x, count[0] % period == period - 1)

        step = lazytrace.opaque(given)
        look = LOOKS[gives]
        return trace(lambda x: (look(step(x)), x + 1)), [call(X()) for _ in range(16)], lambda: count

    agree(make)


def gives_back(held, cache, later):
    return list(held) if later else held


def gives_state_back(held, cache, later):
    return list(cache) if later else cache


def gives_state_back_at_times(held, cache, later):
    return cache if later else list(cache)


def writes_to_what_it_is_given(gives, trace):
    count, cache = [0], [1.0]

    def given(held):
        count[0] += 1
        return gives(held, cache, count[0] % 5 == 4)

    step = lazytrace.opaque(given)

    def fn(x):
        held = [x * 2]
        back = step(held)
        same = back is held
        back.append(x)
        return same, len(held), len(back)

    return trace(fn), cache


@pytest.mark.parametrize("gives", [gives_back, gives_state_back, gives_state_back_at_times])
def test_results_that_are_arguments_or_state(gives):
    """The function writes to what it is given back."""

    def make(trace):
        fn, cache = writes_to_what_it_is_given(gives, trace)
        return fn, [call(X()) for _ in range(16)], lambda: cache

    agree(make)


def test_an_argument_that_is_given_back_at_times():
    """The function that runs again has another list, which it is given in the place of the replay's."""
    fn, _ = writes_to_what_it_is_given(lambda held, _, later: held if later else list(held), lazytrace.traced)
    found = [fn(X()) for _ in range(8)]
    assert found == [(False, 1, 2)] * 3 + [(True, 2, 2)] + [(False, 1, 2)] * 4
    assert fn.cache_info().hits >= 2
