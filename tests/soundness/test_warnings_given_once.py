"""Warnings that are given once for each place: given again when the filters have changed, by a replay too."""

from __future__ import annotations

import sys
import warnings

from lazytrace.arrays import quiet
from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


class Given:
    """Counts the warnings that are shown."""

    def __init__(self):
        self.count = 0

    def __call__(self, *args, **kwargs):
        self.count += 1


def counted(name, action, change, warn=None, **expected):
    """A case: a function that warns, under a filter; `change` happens between calls."""

    def make(trace):
        given = Given()

        def plain(x):
            warnings.warn("careful", UserWarning, stacklevel=1)
            return x * 2

        def start():
            warnings.resetwarnings()
            warnings.simplefilter(action)
            warnings.showwarning = given
            globals().pop("__warningregistry__", None)

        twice = [call(X())] * 3
        steps = [start, *twice, lambda: change(), *twice, lambda: change(), *twice]
        return trace(warn or plain), steps, lambda: given.count

    make.__name__ = name
    cases(make, **expected)


def say_again():
    with warnings.catch_warnings():
        pass


def forget():
    globals()["__warningregistry__"] = {}


def clear():
    globals()["__warningregistry__"].clear()


def insist():
    warnings.simplefilter("always")


def with_an_instance(x):
    warnings.warn(UserWarning("careful"), stacklevel=1)
    return x * 2


class Words(str):
    """A text of a class of the user's, which may have an `__eq__`."""


def with_a_text_of_a_class(x):
    warnings.warn(Words("careful"), stacklevel=1)
    return x * 2


def with_no_text(x):
    try:
        warnings.warn(["careful"], stacklevel=1)
    except TypeError:  # no list can be a key, once there is something to look it up in
        return x * 3
    return x * 2


counted("when_filters_were_put_back", "default", say_again, hits=2)
counted("when_the_same_filter_is_set_again", "default", lambda: warnings.simplefilter("default"), hits=2)
counted("when_the_registry_is_another", "default", forget, hits=2)
counted("when_the_registry_is_cleared", "default", clear, hits=2)
counted("always_from_then_on", "default", insist, hits=1)
counted("an_instance_of_a_warning", "default", say_again, with_an_instance, hits=2)
counted("a_text_of_a_class", "default", say_again, with_a_text_of_a_class, eager="warns-around")
counted("what_is_no_text", "ignore", say_again, with_no_text, eager="warns-around")
counted("once_for_all_places", "once", say_again, hits=2)
counted("once_for_a_module", "module", say_again, hits=2)
counted("ignored_all_the_time", "ignore", say_again, hits=4)


@cases(hits=2)
def a_warning_in_a_function_that_is_called(trace):
    given = Given()

    def helper(x):
        warnings.warn("careful", UserWarning, stacklevel=2)
        return x

    def start():
        warnings.resetwarnings()
        warnings.showwarning = given
        globals().pop("__warningregistry__", None)

    steps = [start, *around(say_again, X()), call(X()), call(X())]
    return trace(lambda x: helper(x) * 2), steps, lambda: given.count


@cases(hits=1, eager="warns-once")
def given_once_at_another_place(trace):
    given = Given()

    def start():
        warnings.resetwarnings()
        warnings.simplefilter("once")
        warnings.showwarning = given
        globals().pop("__warningregistry__", None)
        say_again()
        warnings.warn("careful", UserWarning, stacklevel=1)

    def function(x):
        warnings.warn("careful", UserWarning, stacklevel=1)
        return x * 2

    three = [call(X())] * 3
    return trace(function), [start, *three, say_again, *three], lambda: given.count


def ignored_before_it_is_remembered(trace, ignore):
    """The first filter that matches decides; what stands behind it does not."""
    given = Given()

    def start():
        warnings.resetwarnings()
        warnings.simplefilter("once")
        ignore()
        warnings.showwarning = given

    def function(x):
        warnings.warn("careful", UserWarning, stacklevel=1)
        return x * 2

    return trace(function), [start, *[call(X())] * 4], lambda: given.count


@cases(hits=3)
def ignored_all(trace):
    return ignored_before_it_is_remembered(trace, lambda: warnings.simplefilter("ignore"))


@cases(hits=3)
def ignored_by_a_base_of_the_category(trace):
    return ignored_before_it_is_remembered(trace, lambda: warnings.simplefilter("ignore", Warning))


@cases(hits=2)
def ignored_by_another_category(trace):
    return ignored_before_it_is_remembered(trace, lambda: warnings.simplefilter("ignore", FutureWarning))


@cases(hits=2)
def ignored_by_a_text(trace):
    return ignored_before_it_is_remembered(trace, lambda: warnings.filterwarnings("ignore", "other"))


@cases(eager="warns-around")
def of_a_place_around_the_call(trace):
    warnings.simplefilter("ignore")

    def function(x):
        warnings.warn("careful", UserWarning, stacklevel=2)
        return x * 2

    return trace(function), [call(X())] * 3


@cases.parametrize
def test_warnings_given_once(make, expected):
    shown = warnings.showwarning
    try:
        check(make, **expected)
    finally:
        warnings.showwarning = shown
        sys.modules[__name__].__dict__.pop("__warningregistry__", None)


def test_filters_of_all_threads_come_back():
    """In whichever order two threads end what they have begun."""
    before, rules = warnings.filters, list(warnings.filters)
    kept = warnings.catch_warnings()
    one, other = quiet(), quiet()
    try:
        one.__enter__(), other.__enter__()
        one.__exit__(), other.__exit__()
        assert list(warnings.filters) == rules
        one.__enter__(), kept.__enter__()
        one.__exit__(), kept.__exit__(None, None, None)
        assert list(warnings.filters) == rules
    finally:
        warnings.filters = before
