"""What Python code that stands for Python's library asks of the core, beside the recording."""

from __future__ import annotations

import enum
import itertools
import random
import time
from collections.abc import Callable
from typing import Any, Final

import torch

from lazytrace._native import core
from lazytrace._torch import keep_gradient, seeds_default_generators
from lazytrace.asked import next_count
from lazytrace.library import can_be_cloned
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS


def stay_clones(tensors: list[torch.Tensor]) -> bool:
    """Whether they can be cloned, as a step: each replay asks again."""
    return bool(core.opaque_call(can_be_cloned, "", can_be_cloned, (tensors,), {}, False))


def class_names(ask: Callable[..., tuple[str, ...]], cls: type) -> tuple[str, ...]:
    """The names of attributes that a class has, as a step: each replay asks again."""
    names: tuple[str, ...] = core.opaque_call(ask, "", ask, (cls,), {}, False)
    return names


def is_plain_text(text: str) -> bool:
    """Whether it is a str, or stands for one, and none of a class that says itself how it is written."""
    return bool(core.aside(lambda: type(text) is str or core.is_followed(text)))


def is_of(value: object, *classes: type) -> bool:
    """Whether it is of one of these classes, or stands for a number or a text. It is not asked itself."""
    return bool(core.aside(lambda: issubclass(type(value), classes) or core.is_followed(value)))


_OF_CODE: Final = (object.__hash__, enum.Enum.__hash__)


def has_plain_hash(value: object) -> bool:
    """Whether no code of the user's works out its hash, which would be told of how often it is asked."""

    def is_plain(one: object) -> bool:
        if type(one) is tuple:
            return all(map(is_plain, one))
        known = type(one) in (str, int, float, bool, bytes, type(None)) or type(one).__hash__ in _OF_CODE
        return known or bool(core.is_followed(one))

    return bool(core.aside(lambda: is_plain(value)))


_RANDOM: Final = random.Random


def may_clone(can: Callable[..., bool], tensors: list[torch.Tensor], tensor: torch.Tensor) -> bool:
    """Whether one more tensor is cloned.

    Each that a recording has copied was, so that a function that runs again clones them, too, whatever they
    are by now: the step behind them has come to another answer then. Of one that required gradients then, the
    copy was refused.
    """
    fed = core.is_fed() and not core.requires_gradients(tensor)
    return fed or can([*tensors, tensor])


def work_out(function: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    """A number that is made of others, or a tuple of some, as a step."""
    return core.ask_number(function, *values)


def seeds_all() -> bool:
    """Whether `seed()` without a generator is all that `torch.manual_seed` does."""
    return bool(core.aside(seeds_default_generators))


def has_random_steps() -> bool:
    """Whether what follows may be called; torch's functions must be otherwise."""
    return bool(core.has_random_steps())


def new_generator(device: str) -> torch.Generator | None:
    """A `torch.Generator`, of which each replay makes another; None where it cannot."""
    made: torch.Generator | None = core.make_generator(device)
    return made


def new_random() -> random.Random | None:
    """A `random.Random` that nobody has seeded, of which each replay makes another; None where it cannot."""
    made: random.Random | None = core.make_generator(_RANDOM)
    return made


def seed(generator: torch.Generator | None, number: int) -> bool:
    """What `Generator.manual_seed` does, as an operator; without one, to torch's default generators.

    False where nothing is done, as the number has more than 64 bits. It is not read where it is followed.
    """
    return core.seed(generator, number)


def random_state(generator: torch.Generator | None) -> torch.Tensor:
    """`Generator.get_state`, as an operator; without one, of the CPU's default generator."""
    return core.random_state(generator)


def set_random_state(generator: torch.Generator | None, state: torch.Tensor) -> None:
    """`Generator.set_state`, as an operator; without one, of the CPU's default generator."""
    core.set_random_state(generator, state)


def begin_entry(cache: Any) -> None:
    """Count a call of a function with a functools cache that has no entry for it, as a step."""
    core.begin_entry(cache)


def keep_entry(cache: Any, args: tuple[Any, ...], made: Any) -> Any:
    """Put what the function has made into the cache, as a step. What the call gives."""
    return core.keep_entry(cache, args, made)


def retain(tensor: torch.Tensor) -> None:
    """`tensor.retain_grad()`, as a step."""
    core.retain_gradient(keep_gradient, tensor)


def advance(iterator: Any, /) -> Any:
    """`next(iterator)` of one that was there before the call, as a step."""
    if type(iterator) is itertools.count:
        return core.ask_number(next_count, iterator)
    return core.opaque_call(next, "", next, (iterator,), {}, True)


# Before anybody replaces them.
_CLOCK: Final = time.time
_LOCAL: Final = time.localtime
_STRFTIME: Final = time.strftime


def _time_text(form: str, seconds: float) -> str:
    return _STRFTIME(form, _LOCAL(seconds))


def time_as_text(function: Callable[..., str], form: Any) -> Any:
    """`time.strftime(form)`, which asks a clock and is made anew by each replay."""
    if type(form) is not str:
        return function(form)
    seconds = core.ask_number(_CLOCK)
    made = core.follow_text(_time_text, form, seconds)
    return function(form) if made is None else made


# `by`: what makes the call, which watched code has named, so that a replay finds it.
def tell(by: Callable[..., Any], held: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call a method whose result nobody asks for, as a step that may run any Python code."""
    core.opaque_call(by, "", by, (held, name, *args), kwargs, True)
