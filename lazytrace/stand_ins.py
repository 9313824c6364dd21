"""Python code that stands for code in C while a recording is made, and is watched as the user's is."""

from __future__ import annotations

import collections
from typing import Any

import torch

from lazytrace._torch import BackwardHookFunction, check_capture, set_input_hook, set_output_hook


class Filling:
    """A defaultdict that is asked for an entry which it does not have.

    >>> d = collections.defaultdict(list)
    >>> Filling(d)["k"].append(1)
    >>> d
    defaultdict(<class 'list'>, {'k': [1]})
    """

    __slots__ = ("_held",)

    def __init__(self, held: collections.defaultdict[Any, Any]) -> None:
        self._held = held

    def __getitem__(self, key: Any) -> Any:
        """What `defaultdict.__missing__` does (CPython, Modules/_collectionsmodule.c)."""
        factory = self._held.default_factory
        if factory is None:
            raise KeyError(key)
        made = factory()
        self._held[key] = made
        return made


def entries(items: list[Any]) -> Any:
    """What a loop over a list goes through: the iterator of a list looks how long it is each time.

    >>> list(entries([1.0, 2.0]))
    [1.0, 2.0]
    """
    place = 0
    while place < len(items):
        yield items[place]
        place += 1


def entries_from_end(items: list[Any]) -> Any:
    """What a loop over `reversed(items)` goes through: it begins where the list ends when it is made.

    >>> list(entries_from_end([1.0, 2.0]))
    [2.0, 1.0]
    """
    return _downward(items, len(items) - 1)


def _downward(items: list[Any], place: int) -> Any:
    while 0 <= place < len(items):
        yield items[place]
        place -= 1


def array_of_flags(function: Any, numbers: list[Any]) -> Any:
    """What a function of numpy makes of a list of truth values, of which `numbers` has 1 and 0.

    >>> import numpy
    >>> array_of_flags(numpy.array, [1, 0])
    array([ True, False])
    """
    return function(numbers).astype(bool)


def tensor_of_flags(function: Any, numbers: list[Any]) -> torch.Tensor:
    """The same of `torch.tensor` and `torch.as_tensor`.

    >>> tensor_of_flags(torch.tensor, [1, 0])
    tensor([ True, False])
    """
    made: torch.Tensor = function(numbers, dtype=torch.bool)
    return made


def call_watched(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What calls a function under checkpoint(), or a hook: which code it comes to is read where it is called.

    >>> call_watched(max, 1, 2)
    2
    """
    return function(*args, **kwargs)


def check_no_capture(optimizer: Any) -> None:
    """What optimizers call before each step. A replay leaves it out: what it calls must be torch's."""
    for module, name in (
        (torch.compiler, "is_compiling"),
        (torch.accelerator, "current_accelerator"),
        (torch.accelerator, "is_available"),
        (torch.accelerator, "current_stream"),
    ):
        getattr(module, name)
    check_capture(optimizer)


def _passed_on(values: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int] | None, tuple[Any, ...]]:
    """What `BackwardHook._apply_on_tensors` gives, and the tensors that the node of its function has made."""
    places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
    wanted = any(values[i].requires_grad for i in places) and torch.is_grad_enabled()
    if not wanted:
        return values, None, ()
    made = BackwardHookFunction.apply(  # type: ignore[no-untyped-call]
        *[values[i] for i in places]
    )
    parts = list(values)
    for i, tensor in zip(places, made, strict=True):
        parts[i] = tensor
    return tuple(parts) if type(values) is tuple else type(values)(*parts), places, made


def setup_input_hook(hook: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """`BackwardHook.setup_input_hook`, whose hook becomes a step once that of the outputs is set.

    A node cannot be kept from call to call, but the tensors that it has made are known.
    """
    passed, places, made = _passed_on(args)
    hook.n_inputs = len(args)
    hook.input_tensors_index = places
    if made:
        set_input_hook(hook, made)
    return passed


def setup_output_hook(hook: Any, result: Any) -> Any:
    """`BackwardHook.setup_output_hook`."""
    alone = not isinstance(result, tuple)
    passed, places, made = _passed_on((result,) if alone else result)
    hook.n_outputs = len(passed)
    hook.output_tensors_index = places
    if made:
        set_output_hook(hook, made)
    return passed[0] if alone else passed
