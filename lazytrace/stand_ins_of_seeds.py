"""Python code that stands for functions that seed generators of random numbers, ask or set where they are.

It is watched as the user's is.
"""

from __future__ import annotations

import random
from typing import Any, Final

import torch

from lazytrace._torch import GPU_IS_BUILT, backend_of_others, seed_defaults
from lazytrace.asked import first_seed, seed_of_numpy, seed_of_python, seeder_of_numpy
from lazytrace.library import is_original
from lazytrace.library_calls import (
    has_random_steps,
    new_generator,
    new_random,
    random_state,
    seeds_all,
    set_random_state,
    work_out,
)
from lazytrace.library_calls import seed as seed_generator

_SEED: Final[Any] = seed_defaults
_SEED_ONE: Final[Any] = torch.Generator.manual_seed
_STATE_OF: Final[Any] = torch.Generator.get_state
_SET_STATE_OF: Final[Any] = torch.Generator.set_state
_FIRST_SEED: Final[Any] = torch.Generator.initial_seed
_GENERATOR: Final = torch.Generator
_DEFAULT: Final = torch.default_generator
_SEED_OF_PYTHON: Final[Any] = random.Random.seed
_RANDOM: Final[Any] = random.Random
_INIT_OF_RANDOM: Final[Any] = random.Random.__init__
_LARGEST: Final = 2**63 - 1
_SMALLEST: Final = -(2**63)


def _is_whole(seed: Any) -> bool:
    """Whether it is an int, and no bool; of one that is followed nothing is read."""
    return isinstance(seed, int) and not isinstance(seed, bool)


def _is_plain(seed: Any) -> bool:
    """Whether it is an int of 64 bits, and no bool."""
    return _is_whole(seed) and _SMALLEST <= seed <= _LARGEST


def manual_seed(seed: Any) -> Any:
    """What `torch.manual_seed` calls."""
    seed = int(seed)
    others = hasattr(torch, backend_of_others())
    known = not others and seeds_all() and _is_whole(seed)
    if not known or not has_random_steps() or not seed_generator(None, seed):
        return _SEED(seed)
    return torch.default_generator


def manual_seed_of(generator: Any, seed: Any, /) -> Any:
    """`Generator.manual_seed`."""
    if not _is_whole(seed) or not has_random_steps() or not seed_generator(generator, seed):
        return _SEED_ONE(generator, seed)
    return generator


def state_of(generator: Any, /) -> Any:
    """`Generator.get_state`."""
    if not has_random_steps():
        return _STATE_OF(generator)
    return random_state(None if generator is _DEFAULT else generator)


def set_state_of(generator: Any, state: Any, /) -> Any:
    """`Generator.set_state`."""
    if type(state) is not torch.Tensor or not has_random_steps():
        return _SET_STATE_OF(generator, state)
    set_random_state(None if generator is _DEFAULT else generator, state)
    return generator


def make_generator(*args: Any, **kwargs: Any) -> Any:
    """What `torch.Generator` makes of the name of a device."""
    device = args[0] if len(args) == 1 else kwargs.get("device", "cpu")
    plain = len(args) + len(kwargs) == (len(args) == 1 or "device" in kwargs)
    known = type(device) is str or type(device) is torch.device
    made = new_generator(str(device)) if plain and known and has_random_steps() else None
    return _GENERATOR(*args, **kwargs) if made is None else made


def first_seed_of(generator: Any, /) -> Any:
    """`Generator.initial_seed`."""
    return work_out(first_seed, (generator,))


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


def make_random(*args: Any, **kwargs: Any) -> Any:
    """What `random.Random` makes of a number, or of nothing."""
    usual = _RANDOM.__init__ is _INIT_OF_RANDOM and _RANDOM.seed is _SEED_OF_PYTHON
    plain = usual and not kwargs and (not args or (len(args) == 1 and _is_plain(args[0])))
    made = new_random() if plain else None
    if made is None:
        return _RANDOM(*args, **kwargs)
    if args:
        work_out(seed_of_python, (made, args[0]))
    return made


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
    functions: dict[Any, Any] = {
        _SEED_ONE: manual_seed_of,
        _STATE_OF: state_of,
        _SET_STATE_OF: set_state_of,
        _FIRST_SEED: first_seed_of,
        _GENERATOR: make_generator,
        "numpy.random": of_numpy,
    }
    if is_original(_SEED, torch.random):
        functions[_SEED] = manual_seed
    for seed in (torch.cuda.manual_seed, torch.cuda.manual_seed_all):
        if is_original(seed, torch.cuda.random):
            functions[seed] = _of_gpus(seed)
    if is_original(_SEED_OF_PYTHON, random):
        functions[_SEED_OF_PYTHON] = seed_python
    if is_original(_SEED_OF_PYTHON, random) and is_original(_INIT_OF_RANDOM, random):
        functions[_RANDOM] = make_random
    return functions
