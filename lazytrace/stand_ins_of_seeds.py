"""Python code that stands for functions that seed generators of random numbers, watched as the user's is."""

from __future__ import annotations

import random
from typing import Any, Final

import torch

from lazytrace._torch import GPU_IS_BUILT, backend_of_others, seed_defaults
from lazytrace.asked import seed_of_numpy, seed_of_python, seeder_of_numpy
from lazytrace.library import is_original
from lazytrace.library_calls import seed as seed_generator
from lazytrace.library_calls import seeds_all, work_out

_SEED: Final[Any] = seed_defaults
_SEED_ONE: Final[Any] = torch.Generator.manual_seed
_SEED_OF_PYTHON: Final[Any] = random.Random.seed
_LARGEST: Final = 2**63 - 1
_SMALLEST: Final = -(2**63)


def _is_plain(seed: Any) -> bool:
    """Whether it is an int of 64 bits, and no bool."""
    return isinstance(seed, int) and not isinstance(seed, bool) and _SMALLEST <= seed <= _LARGEST


def manual_seed(seed: Any) -> Any:
    """What `torch.manual_seed` calls."""
    seed = int(seed)
    others = hasattr(torch, backend_of_others())
    known = not others and seeds_all() and _is_plain(seed)
    if not known or not seed_generator(None, seed):
        return _SEED(seed)
    return torch.default_generator


def manual_seed_of(generator: Any, seed: Any, /) -> Any:
    """`Generator.manual_seed`."""
    if not _is_plain(seed) or not seed_generator(generator, seed):
        return _SEED_ONE(generator, seed)
    return generator


def _of_gpus(function: Any) -> Any:
    def seed_gpus(seed: Any) -> None:
        """A function of `torch.cuda` that seeds, which is heard of once there is a GPU."""
        if GPU_IS_BUILT:
            function(seed)

    return seed_gpus


def seed_python(generator: Any, seed: Any, /) -> None:
    """`random.seed` of a number."""
    plain = type(generator).seed is _SEED_OF_PYTHON and type(generator).random is random.Random.random
    if not plain or not _is_plain(seed):
        return _SEED_OF_PYTHON(generator, seed)  # type: ignore[no-any-return]
    work_out(seed_of_python, (generator, seed))
    return None


def seed_numpy(seed: Any) -> None:
    """`np.random.seed` of a number."""
    if not _is_plain(seed):
        return seeder_of_numpy()(seed)
    work_out(seed_of_numpy, (seed,))
    return None


def of_numpy() -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Those of a module that not all programs load."""
    return {seeder_of_numpy(): seed_numpy}, {}


def rows() -> dict[Any, Any]:
    """What stands for each function; for a name of a module, what gives those of it once it is loaded."""
    functions: dict[Any, Any] = {_SEED_ONE: manual_seed_of, "numpy.random": of_numpy}
    if is_original(_SEED, torch.random):
        functions[_SEED] = manual_seed
    for seed in (torch.cuda.manual_seed, torch.cuda.manual_seed_all):
        if is_original(seed, torch.cuda.random):
            functions[seed] = _of_gpus(seed)
    if is_original(_SEED_OF_PYTHON, random):
        functions[_SEED_OF_PYTHON] = seed_python
    return functions
