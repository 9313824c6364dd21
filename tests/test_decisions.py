"""`explain` says what the call then does, whatever the options, the state and the calls before."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import lazytrace
from lazytrace import LazytraceError, traced

X = torch.ones(2)
SEEN = SimpleNamespace(scale=1.0)


def plain(x, k=1):
    return x * k


class Shown:
    def __str__(self):
        return ""


def refused(x, k=1):
    print(*[Shown()], end="")
    return x * k


def branches(x, k=1):
    return x * k if x.sum() > 0 else x - k


def state(x, k=1):
    return x * SEEN.scale * k


def raising(x, k=1):
    if k == 2:
        raise KeyError("its own")
    return x + k


FUNCTIONS = (plain, refused, branches, state, raising)
# Each call: arguments, and the state before it.
CALLS: tuple[tuple[tuple[Any, ...], float], ...] = (
    ((X,), 1.0),
    ((X,), 1.0),
    ((-X,), 1.0),
    ((X, 2), 1.0),
    ((torch.ones(3),), 1.0),
    ((X,), 2.0),
    ((np.ones(2)[::-1],), 2.0),
    ((X,), 1.0),
    ((-X,), 1.0),
    ((X, 3), 1.0),
    ((torch.ones(3),), 2.0),
    ((X, 2), 1.0),
    ((X, 2), 1.0),
    ((-X, 2), 1.0),
)


def done(call: Callable[[], object], fn: Any) -> str:
    """What a call did, by what it counted and raised."""
    before, error = fn.stats(), None
    try:
        call()
    except (LazytraceError, KeyError) as raised:
        error = raised
    after = fn.stats()
    if after.hits > before.hits:
        return "hit"
    # A recording that was given up is one, whatever came of it.
    if after.seconds_recording > before.seconds_recording:
        return "record"
    if after.inlined > before.inlined:
        return "inline"
    if isinstance(error, LazytraceError):
        return "raise"
    assert after.eager_calls == before.eager_calls + 1
    return "eager"


def expected(explanation: lazytrace.Explanation) -> set[str]:
    """What a call may do after such an explanation: a hit may find another value in its program."""
    if not explanation.hit or not explanation.depends:
        return {explanation.outcome}
    otherwise = explanation.otherwise.outcome if explanation.otherwise is not None else "record"
    return {"hit", "record" if otherwise == "resume" else otherwise}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("frozen_at", [None, 0, 4, 8])
@pytest.mark.filterwarnings("ignore::lazytrace.RetraceWarning")
def test_explain_says_what_the_call_does(function, frozen_at):
    outcomes = set()
    for on_limit, on_untraceable, on_retrace, limit in itertools.product(
        ("evict", "eager", "raise"), ("eager", "raise"), ("record", "warn", "raise"), (1, 2, 8)
    ):
        fn = traced(
            function,
            cache_limit=limit,
            on_limit=on_limit,
            on_untraceable=on_untraceable,
            on_retrace=on_retrace,
            branch_limit=2,
        )
        for number, (args, SEEN.scale) in enumerate(CALLS):
            if number == frozen_at:
                fn.freeze()
            counted = fn.stats()
            explanation = fn.explain(*args)
            assert fn.stats() == counted  # nothing ran
            outcome = done(lambda: fn(*args), fn)  # noqa: B023 (called at once)
            assert outcome in expected(explanation), (number, str(explanation))
            assert str(explanation).startswith(f"{function.__name__} would ")
            outcomes.add(outcome)
    assert {"eager", "raise"} <= outcomes


def test_a_refused_signature_under_raise():
    step = traced(refused, on_untraceable="raise")
    for _ in range(2):
        with pytest.raises(lazytrace.UntraceableError):
            step(X)
    found = step.explain(X)
    assert (found.outcome, [reason.path for reason in found.reasons]) == ("raise", ["calls print()"])
    assert step.explain(np.ones(2)[::-1]).outcome == "raise"
    assert str(step.explain(np.ones(2)[::-1])) == "refused would raise: takes a numpy array"


def test_a_hit_says_what_becomes_of_another_value():
    step = traced(branches, cache_limit=1, on_limit="eager")
    step(X)
    assert str(step.explain(-X)) == (
        "branches would hit, unless one of these differs: is_nonzero True "
        f"(test_decisions.py:{branches.__code__.co_firstlineno + 1}): "
        "then it would run eagerly: cache_limit=1 was reached"
    )
    step(-X)
    assert step.stats().eager == {"cache_limit=1 was reached": 1}


def test_inside_a_recording():
    inner, found = traced(plain), []

    @traced
    def outer(x):
        found.append(inner.explain(x))
        return inner(x)

    outer(X)
    assert [one.outcome for one in found] == ["inline"]
    assert str(found[0]) == (
        "plain would be recorded into the function that is being recorded: runs inside another recording"
    )
    assert inner.stats().inlined == 1
    assert inner.explain(X).outcome == "record"


def test_while_another_thread_records():
    started, finish = threading.Event(), threading.Event()

    @lazytrace.opaque
    def wait():
        started.set()
        assert finish.wait(60)

    def waiting(x):
        wait()
        return x * 2

    step = traced(waiting)
    thread = threading.Thread(target=step, args=(X,))
    thread.start()
    assert started.wait(60)
    found = step.explain(X)
    finish.set()
    thread.join()
    assert (found.outcome, str(found.reasons[0])) == ("eager", "another thread is recording this signature")


def test_without_lazytrace():
    step = traced(plain)
    with lazytrace.disabled():
        assert str(step.explain(X)) == "plain would run eagerly: lazytrace is disabled"
    assert traced(plain, backend="eager").explain(X).outcome == "eager"
    assert step.explain(X, 1, 2).outcome == "eager"
    assert str(step.explain(X, 1, 2)) == "plain would run eagerly: the arguments do not fit the parameters"
