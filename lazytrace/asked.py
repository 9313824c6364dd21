"""Functions that give another number at each call, which a replay calls where the function did.

Clocks, and generators of random numbers other than torch's. A recording follows what they give; see
docs/sizes.md.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import torch

from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

_CLOCKS: Final = (
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "thread_time",
    "thread_time_ns",
    "time",
    "time_ns",
)
# Of numpy's generators: those that give one float or int where no size is asked for. What gives a scalar of
# numpy or an array is none of them.
_OF_BOTH: Final = (
    "beta",
    "binomial",
    "chisquare",
    "exponential",
    "f",
    "gamma",
    "geometric",
    "gumbel",
    "hypergeometric",
    "laplace",
    "logistic",
    "lognormal",
    "logseries",
    "negative_binomial",
    "noncentral_chisquare",
    "noncentral_f",
    "normal",
    "pareto",
    "poisson",
    "power",
    "random",
    "rayleigh",
    "standard_cauchy",
    "standard_exponential",
    "standard_gamma",
    "standard_normal",
    "standard_t",
    "triangular",
    "uniform",
    "vonmises",
    "wald",
    "weibull",
    "zipf",
)
# Of numpy's, too: what gives an array, or an item of one.
_ARRAYS: Final = ("choice", "permutation", "shuffle", "dirichlet", "multivariate_normal", "multinomial")
# Python code of `random` that draws until a number fits, or keeps one for the next call.
_WITHIN: Final = ("betavariate", "gammavariate", "gauss", "normalvariate", "vonmisesvariate")
_OF_RANDOM_STATE: Final = ("rand", "randint", "randn", "random_sample")


# Where each takes the size of an array, behind the generator. Of those that always give one, `None`; of
# those that take sizes one by one, 0.
_SIZES: Final[dict[str, int | None]] = {
    **dict.fromkeys(_OF_BOTH, 2),
    **dict.fromkeys(
        ("random", "random_sample", "standard_cauchy", "standard_exponential", "standard_normal"), 1
    ),
    **dict.fromkeys(("f", "gamma", "noncentral_chisquare", "laplace", "logistic", "normal"), 3),
    **dict.fromkeys(("beta", "binomial", "gumbel", "lognormal", "negative_binomial", "uniform"), 3),
    **dict.fromkeys(("vonmises", "wald", "randint", "integers"), 3),
    **dict.fromkeys(("hypergeometric", "noncentral_f", "triangular"), 4),
    **dict.fromkeys(("rand", "randn"), 0),
    **dict.fromkeys(("choice", "permutation", "dirichlet", "multivariate_normal", "multinomial"), None),
}


# Of `statistics`: what works with fractions, which no step can.
SAMPLES: Final = ("fmean", "mean", "median", "pstdev", "pvariance", "stdev", "variance")


@functools.cache
def sampler(name: str) -> Callable[..., Any]:
    """A function of `statistics`, as it is when it is asked for first.

    >>> sampler("mean")([1.0, 2.0])
    1.5
    """
    import statistics  # which not all programs load

    function: Callable[..., Any] = getattr(statistics, name)
    return function


def _of_sample(name: str) -> Callable[..., Any]:
    def work_out(*values: float) -> Any:
        return sampler(name)(values)

    work_out.__qualname__ = f"statistics.{name}"
    return work_out


OF_SAMPLES: Final = {name: _of_sample(name) for name in SAMPLES}


def next_count(counter: Any) -> Any:
    """What an `itertools.count` gives, which no other call will be given."""
    return next(counter)


# Before anybody replaces them.
_SAMPLE: Final = random.Random.sample
_SHUFFLE: Final = random.Random.shuffle
_SEED: Final = random.Random.seed
_FIRST_SEED: Final = torch.Generator.initial_seed


def places_of_sample(generator: random.Random, size: int, count: int) -> tuple[int, ...]:
    """Which entries of so many `random.sample` draws.

    >>> sorted(places_of_sample(random.Random(0), 3, 3))
    [0, 1, 2]
    """
    return (*_SAMPLE(generator, range(size), count),)


def shuffled(generator: random.Random, *numbers: int) -> tuple[int, ...]:
    """These numbers in the order that `random.shuffle` brings them into.

    >>> sorted(shuffled(random.Random(0), 3, 5, 4))
    [3, 4, 5]
    """
    order = [*numbers]
    _SHUFFLE(generator, order)
    return (*order,)


def seed_of_python(generator: random.Random, seed: int) -> int:
    """`random.seed(seed)`, whose step gives a number that nobody asks for.

    >>> generator = random.Random()
    >>> seed_of_python(generator, 3), generator.random() == random.Random(3).random()
    (0, True)
    """
    _SEED(generator, seed)
    return 0


def first_seed(generator: torch.Generator) -> int:
    """`Generator.initial_seed()`.

    >>> first_seed(torch.Generator().manual_seed(3))
    3
    """
    return _FIRST_SEED(generator)


# Before anybody replaces it.
_LIST: Final = torch.Tensor.tolist


def values_of_row(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What `tensor.tolist()` gives of a tensor of one dimension.

    >>> values_of_row(torch.tensor([3, 4]))
    (3, 4)
    """
    return tuple(_LIST(tensor))


@functools.cache
def seeder_of_numpy() -> Callable[..., None]:
    """`np.random.seed`, as it is when it is asked for first."""
    from numpy.random import seed

    return seed


def seed_of_numpy(seed: int) -> int:
    """The same of `np.random.seed(seed)`."""
    seeder_of_numpy()(seed)
    return 0


def functions() -> dict[Callable[..., Any], str]:
    """Each function, or what its methods are made of: "clock" or "draws".

    "sample" and "counts" say the same of one that may give an int at one call and a float at another.

    "bits" is one that is told how many bits the number shall have, "below" one that is told what it shall be
    smaller than, "within" Python code that draws by other methods of its object.

    >>> functions()[time.perf_counter], functions()[random.Random.random]
    ('clock', 'draws')
    """
    found: dict[Callable[..., Any], str] = {getattr(time, name): "clock" for name in _CLOCKS}
    # `random.uniform` and the like are Python code that calls these.
    found |= {getattr(random.Random, name): "within" for name in _WITHIN}
    # Which thread this is: the same at each call, but for those of other threads.
    found[threading.get_ident] = "clock"
    found[random.Random.random] = "draws"
    found[random.Random.getrandbits] = "bits"
    # The same numbers give the same one, but how is not known here.
    found |= dict.fromkeys(OF_SAMPLES.values(), "sample")
    found[next_count] = "counts"
    found[values_of_row] = "clock"
    found[first_seed] = "sample"  # an int of 64 bits, or one that is too large for a number of a program
    found |= dict.fromkeys((places_of_sample, shuffled, seed_of_python, seed_of_numpy), "draws")
    # Behind `random.randint`, `randrange` and `choice`: Python code that draws until a number is small
    # enough. The name is private to Python's library; without it each draw is seen as what it is made of.
    below: Any = getattr(random.Random, "_randbelow", None)
    if below is not None:
        found[below] = "below"
    return found


def of_numpy() -> dict[Callable[..., Any], str]:
    """The same of numpy's generators, which not all programs load.

    >>> import numpy as np
    >>> of_numpy()[np.random.Generator.normal]
    'draws'
    """
    from numpy.random import Generator, RandomState

    names: dict[Any, tuple[str, ...]] = {
        Generator: (*_OF_BOTH, *_ARRAYS, "integers"),
        RandomState: (*_OF_BOTH, *_ARRAYS, *_OF_RANDOM_STATE),
    }
    return {getattr(owner, name): "draws" for owner in names for name in names[owner]}


def shuffles(function: Callable[..., Any]) -> bool:
    """Whether it is a method of a generator of numpy's that writes to what it is given."""
    return getattr(function, "__qualname__", "") in ("RandomState.shuffle", "Generator.shuffle")


def gives_array(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a method of a generator of numpy's, the first argument, is asked for more than a number.

    >>> import numpy as np
    >>> normal, state = np.random.RandomState.normal, np.random.RandomState(0)
    >>> gives_array(normal, (state, 0.0, 1.0), {}), gives_array(normal, (state, 0.0, 1.0, 3), {})
    (False, True)
    >>> gives_array(normal, (state,), {"size": (2, 3)})
    True
    """
    generators = ("RandomState", "Generator")
    owner, _, name = getattr(function, "__qualname__", "").rpartition(".")
    if owner not in generators or name not in _SIZES:
        return False
    place = _SIZES[name]
    if not place:
        return place is None or len(args) > 1
    return kwargs.get("size", args[place] if len(args) > place else None) is not None
