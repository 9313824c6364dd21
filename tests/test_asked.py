"""The functions that a replay asks for numbers: each exists, and gives an int or a float."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lazytrace import asked, reason_code, report, traced

ARGUMENTS = {
    "beta": (0.5, 0.5),
    "binomial": (8, 0.5),
    "chisquare": (2.0,),
    "f": (2.0, 3.0),
    "geometric": (0.5,),
    "hypergeometric": (5, 4, 3),
    "logseries": (0.5,),
    "negative_binomial": (4, 0.5),
    "noncentral_chisquare": (2.0, 0.5),
    "noncentral_f": (2.0, 3.0, 0.5),
    "pareto": (2.0,),
    "power": (2.0,),
    "standard_gamma": (2.0,),
    "standard_t": (3.0,),
    "vonmises": (0.0, 4.0),
    "wald": (1.0, 0.5),
    "weibull": (2.0,),
    "zipf": (2.0,),
    "gamma": (2.0,),
    "betavariate": (0.5, 0.5),
    "gammavariate": (0.5, 1.0),
    "vonmisesvariate": (0.0, 4.0),
    "triangular": (0.0, 0.5, 1.0),
    "getrandbits": (8,),
    "randint": (5,),
    "_randbelow_with_getrandbits": (5,),
    "choice": (5,),
    "permutation": (5,),
    "dirichlet": ((1.0, 2.0),),
    "multivariate_normal": ((0.0, 0.0), np.eye(2)),
    "multinomial": (5, (0.5, 0.5)),
    "integers": (5,),
    **{sample.__name__: (1.5, 2.0, 4.0) for sample in asked.OF_SAMPLES.values()},
    "next_count": (itertools.count(3),),
    "places_of_sample": (random.Random(1), 5, 1),
    "shuffled": (random.Random(1), 5, 1),
    "seed_of_python": (random.Random(1), 5),
    "seed_of_numpy": (5,),
    "first_seed": (torch.Generator(),),
    "values_of_row": (torch.tensor([3, 4]),),
}
FUNCTIONS = asked.functions() | asked.of_numpy()
# What they change is none of their own: an iterator, or the stream that they are given.
OF_OTHERS = {
    asked.next_count,
    asked.places_of_sample,
    asked.shuffled,
    asked.seed_of_python,
    asked.seed_of_numpy,
}
OWNERS = (np.random.Generator, np.random.RandomState, random.Random)


def owner_of(function: Callable[..., Any]) -> Any:
    """An object that has the function for a method, or None."""
    for owner in OWNERS:
        if getattr(owner, function.__name__, None) is function:
            return np.random.default_rng(0) if owner is np.random.Generator else owner(0)
    return None


# What numpy's generators give that is no number of Python's.
OTHERS = {
    **dict.fromkeys(("choice", "integers"), (int, np.int64)),
    **dict.fromkeys(("permutation", "dirichlet", "multivariate_normal", "multinomial"), (np.ndarray,)),
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__qualname__)
def test_each_gives_a_number(function: Callable[..., Any]) -> None:
    owner = owner_of(function)
    without = FUNCTIONS[function] in ("clock", "sample")
    assert (owner is None) == (without or function in OF_OTHERS)
    if asked.shuffles(function):
        items = np.arange(9)
        assert function(owner, items) is None
        assert sorted(items) == list(range(9)) != list(items)
        return
    arguments = ARGUMENTS.get(function.__name__, ())
    given = function(*arguments) if owner is None else function(owner, *arguments)
    numpys = isinstance(owner, np.random.Generator | np.random.RandomState)
    kinds = OTHERS.get(function.__name__, (int, float)) if numpys else (int, float)
    all_given = (
        given if function in (asked.places_of_sample, asked.shuffled, asked.values_of_row) else [given]
    )
    assert all_given
    assert all(type(one) in kinds for one in all_given)


def test_a_clock_has_no_memory_and_a_generator_has() -> None:
    for function, kind in FUNCTIONS.items():
        assert kind in ("clock", "sample") or function in OF_OTHERS or owner_of(function) is not None
    assert set(FUNCTIONS.values()) == {"clock", "sample", "draws", "counts", "bits", "below", "within"}


def test_a_look_at_the_value_has_a_reason() -> None:
    @traced
    def told(x: torch.Tensor) -> list[str]:
        return f"{x.sum()} at {time.time()}".split()

    for _ in range(3):
        told(torch.ones(2))
    reasons = [str(reason) for event in told.stats().events for reason in event.reasons]
    assert all(reason_code(text) == "asked-value" for text in reasons), reasons
    assert reasons[0].startswith(
        "looks at what time.time() gives, another number at each call (test_asked.py:"
    )
    assert "compare it, return it or store it" in report(format="text")


def test_a_graph_has_no_clock() -> None:
    @traced
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * random.random()

    x = torch.ones(2)
    noisy(x)
    with pytest.raises(NotImplementedError, match="the program works out numbers while it runs"):
        noisy.graph(x)
