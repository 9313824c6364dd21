"""Functions with a small functools cache that others crowd, or empty, between the calls."""

from __future__ import annotations

import functools

import pytest

from tests.soundness.runner import Holder, X, call, check


def cached(size, state):
    @functools.lru_cache(size)
    def look_up(key):
        return f"{state.value}{key}"

    return look_up


def crowd(look_up, state):
    look_up(7)
    state.value = "z"
    look_up(8)


def empty(look_up, state):
    look_up.cache_clear()
    state.value = "a"


CHANGES = {
    "crowded, emptied": [crowd, empty],
    "crowded twice, emptied": [crowd, crowd, empty],
    "emptied, crowded": [empty, crowd],
    "emptied twice": [empty, empty],
    "crowded, emptied, crowded": [crowd, empty, crowd],
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(
    ("size", "keys"), [(1, (1,)), (2, (1, 2)), (2, (1, 2, 1)), (4, (1, 2)), (4, (1, 2, 1))]
)
def test_what_it_holds_is_asked(size, keys, changes):
    def make(trace):
        state = Holder(value="a")
        look_up = cached(size, state)
        steps = [call(X(3)), call(X(3))]
        for change in changes:
            steps += [lambda change=change: change(look_up, state), *[call(X(3))] * 3]
        function = lambda x: (x * 2, [look_up(key) for key in keys])  # noqa: E731
        return trace(function), steps, lambda: list(look_up.cache_info())

    # One that drops what it holds is called by each replay; which calls are hits hangs on the size.
    check(make, hits=1)


@pytest.mark.parametrize("first", [crowd, empty])
def test_a_side_exit_behind_it(first):
    def make(trace):
        state = Holder(value="a")
        look_up = cached(2, state)

        def function(x):
            found = [look_up(key) for key in (1, 2)]
            return (x * 2 if x.sum() > 0 else x * 3), found, [look_up(key) for key in (2, 3)]

        steps = []
        for change in (first, crowd, empty, crowd, empty):
            change_it = functools.partial(change, look_up, state)
            steps += [call(X(3) + 9), call(X(3) - 9), change_it, call(X(3) - 9), call(X(3) + 9)]
        return trace(function), steps, lambda: list(look_up.cache_info())

    check(make, hits=1)
