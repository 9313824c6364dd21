"""What `re` puts in place of a match: made by Python code that its C code calls, and kept by a cache."""

from __future__ import annotations

import functools
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()

NAMES = ("net.weight", "net.bias", "head.weight")
WITHIN = re.compile(r"^net\.(.+)")


class Text(str):
    """A text whose hash is Python code."""

    asked = 0

    def __hash__(self):
        Text.asked += 1
        return super().__hash__()

    def __eq__(self, other):
        return super().__eq__(other)


MADE = {
    "sub": lambda: [WITHIN.sub(r"\1", name) for name in NAMES],
    "subn": lambda: [WITHIN.subn(r"\1\1", name) for name in NAMES],
    "by_name": lambda: re.sub(r"(?P<first>\w)\.", r"\g<first>_", NAMES[0]),
    "plain": lambda: WITHIN.sub("x", NAMES[0]) + WITHIN.sub(r"\\", NAMES[1]),
    "by_function": lambda: WITHIN.sub(lambda found: found.group(1).upper(), NAMES[0]),
    "of_bytes": lambda: re.sub(rb"(a)", rb"\1b", b"aca").decode(),
    "at_most": lambda: re.sub(r"(e)", r"\1\1", NAMES[0], count=1),
}


@pytest.mark.parametrize("name", MADE)
def test_substitution(name):
    def make(trace):
        made = MADE[name]
        made()  # the caches of `re` have it from now on
        return trace(lambda x: (x * 2, made())), [call(X()) for _ in range(5)]

    check(make, hits=3)


@cases(hits=4)
def parameters_by_name(trace):
    """As the meta-modules of torchmeta pass them on."""
    torch.manual_seed(0)
    layer = nn.Linear(2, 2)
    params = {"net.weight": layer.weight, "net.bias": layer.bias}

    def forward(x):
        within = re.compile(r"^{}\.(.+)".format(re.escape("net")))
        own = {within.sub(r"\1", key): value for key, value in params.items() if within.match(key)}
        return nn.functional.linear(x, own["weight"], own["bias"])

    return trace(forward), [call(torch.ones(2)) for _ in range(7)]


@cases(hits=3)
def another_template(trace):
    state = SimpleNamespace(template=r"\1")
    fn = trace(lambda x: (x * 2, WITHIN.sub(state.template, NAMES[0])))
    steps = [call(X()), call(X()), call(X())]
    return fn, [*steps, lambda: setattr(state, "template", r"\1-\1"), *steps]


@cases(hits=3)
def another_pattern(trace):
    state = SimpleNamespace(pattern=re.compile("(n)"))
    fn = trace(lambda x: (x * 2, state.pattern.sub(r"<\1>", NAMES[0])))
    steps = [call(X()), call(X()), call(X())]
    return fn, [*steps, lambda: setattr(state, "pattern", re.compile("(e)")), *steps]


@cases(hits=2)
def another_helper(trace):
    """What makes the replacement is looked up in the module at each call."""
    own = re._subx
    fn = trace(lambda x: (x * 2, WITHIN.sub(r"\1", NAMES[0])))
    change = lambda: setattr(re, "_subx", lambda pattern, template: "other")  # noqa: E731
    restore = lambda: setattr(re, "_subx", own)  # noqa: E731
    return fn, [call(X()), call(X()), call(X()), change, call(X()), restore, call(X())]


@cases(hits=2)
def a_cache_of_patterns(trace):
    """A pattern is a key as its text is."""
    made = []

    @functools.lru_cache(None)
    def length(pattern):
        made.append(pattern)
        return len(pattern.pattern)

    held = SimpleNamespace(pattern=re.compile("abc"))
    fn = trace(lambda x: x * length(held.pattern))
    length(held.pattern)
    length(re.compile("d"))
    other = lambda: setattr(held, "pattern", re.compile("d"))  # noqa: E731
    return (
        fn,
        [call(X()), call(X()), other, call(X()), call(X())],
        lambda: [len(made), length.cache_info().hits],
    )


@cases(eager="key-of-code")
def a_pattern_of_a_text_with_code(trace):
    @functools.lru_cache(None)
    def length(pattern):
        return len(pattern.pattern)

    pattern = re.compile(Text("abc"))
    length(pattern)
    return trace(lambda x: x * length(pattern)), [call(X()) for _ in range(3)]


@cases(hits=2)
def purged_caches(trace):
    fn = trace(lambda x: (x * 2, re.sub("(b)", r"\1\1", "abc")))
    return fn, [*[call(X())] * 4, re.purge, *[call(X())] * 4]


@cases(eager="reads .groupindex of a Pattern")
def expanded_anew(trace):
    """No cache keeps what is made of the template, so that each call asks the pattern for its groups."""
    fn = trace(lambda x: (x * 2, WITHIN.match(NAMES[0]).expand(r"<\1>")))
    return fn, [call(X()) for _ in range(3)]


@cases(hits=1)
def an_error_of_the_template(trace):
    state = SimpleNamespace(template=r"\1")

    def fn(x):
        try:
            return x * 2, WITHIN.sub(state.template, NAMES[0])
        except re.error as error:
            return str(error)

    return trace(fn), around(lambda: setattr(state, "template", r"\7"), X())


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)
