"""What is put in the place of callables and operands that meet followed numbers."""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from lazytrace._native import core
from lazytrace._torch import pad_sequence, takers_of_floats, takers_of_scales
from lazytrace.carriers import by_numpy, functions, indices, tensors
from lazytrace.carriers.classes import OF_ARRAYS, numpy
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS


def _exchanged() -> dict[Any, Any]:
    tensor = torch.Tensor
    return {
        tensor.size: functions.size,
        tensor.stride: functions.stride,
        tensor.numel: functions.count,
        tensor.nelement: functions.count,
        torch.numel: functions.count,
        tensor.storage_offset: functions.storage_offset,
        tensor.is_contiguous: functions.is_contiguous,
        tensor.contiguous: functions.contiguous,
        torch.Size.numel: functions.elements,
        pad_sequence: functions.padded_sequence,
        torch.tensor: tensors.tensor_of,
        torch.as_tensor: tensors.as_tensor,
        torch.Tensor.new_tensor: tensors.new_tensor,
        torch.Tensor.new: tensors.new,
        collections.deque: tensors.of_items(collections.deque),
        itertools.permutations: tensors.of_items(itertools.permutations),
        **{function: tensors.of_values(function) for function in tensors.MADE_OF_VALUES},
        **{cls: tensors.made_by(cls, dtype) for cls, dtype in tensors.CLASSES.items()},
        **{function: tensors.with_scales(function, name) for function, name in takers_of_scales().items()},
        torch.normal: tensors.normal,
        abs: abs,
        round: round,
        divmod: divmod,
        operator.index: functions.as_index,
        len: functions.length,
        **functions.askers_of_values(),
        range: functions.turns,
        max: functions.largest,
        min: functions.smallest,
        sum: functions.total_of,
        math.prod: functions.product,
        functools.reduce: functions.reduced,
        bisect.bisect_left: functions.bisected(bisect.bisect_left, lambda item, value: item < value),
        bisect.bisect_right: functions.bisected(bisect.bisect_right, lambda item, value: not value < item),
        math.trunc: math.trunc,
        pow: functions.to_power,
        **{function: tensors.with_floats(function, *op) for function, op in takers_of_floats().items()},
        **by_numpy.of_numpys(),
    }


# What Python does where the core has no short way.
_WORKED_OUT: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "TrueDiv": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": pow,
    "Max": max,
    "Min": min,
    "Less": operator.lt,
    "LessEqual": operator.le,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
    "Neg": operator.neg,
    "Abs": abs,
    "Float": float,
    "Long": int,
    "Trunc": int,
    "Floor": math.floor,
    "Ceil": math.ceil,
    "Round": round,
    "RoundTo": round,
    "Log": math.log,
    "Scalar": float,
    "Single": by_numpy.in_single_precision,
    **functions.MATH,
    **{kind: by_numpy.as_numpy(*how) for kind, how in by_numpy.NUMPY.items()},
    **({"NumpyPower": by_numpy.as_numpy(numpy.power, by_numpy.has_power)} if numpy else {}),
}


# They store what they are given, or hand it on as it is, and look at none of it but the keys.
_KEEPERS: list[Any] = [list, tuple, dict, zip, enumerate, reversed, slice, iter, next, setattr, torch.Size]
_KEEPERS += [
    collections.OrderedDict,
    type.__instancecheck__,
]  # of a tensor, as of all else, it asks for the class
_KEEPERS += [object.__setattr__, object.__init__, object.__new__, tuple.__new__, functools.partial]
_KEEPERS += [
    getattr(list, name)
    for name in ("append", "insert", "extend", "copy", "pop", "clear", "reverse", "__setitem__", "__iter__")
]
_KEEPERS += [
    getattr(kind, name)
    for kind in (dict, collections.OrderedDict)
    for name in ("get", "pop", "setdefault", "update", "values", "items", "keys", "copy", "__setitem__")
]
_KEEPERS += [itertools.chain, itertools.combinations, itertools.combinations_with_replacement]
_KEEPERS += [itertools.cycle, itertools.islice, itertools.pairwise]
_KEEPERS += [itertools.product, itertools.repeat, itertools.zip_longest]
_KEEPERS += [vars(itertools.chain)["from_iterable"]]
_KEEPERS += [dict.clear, dict.popitem, collections.OrderedDict.clear, collections.deque.clear]
_KEEPERS += [
    getattr(collections.deque, name)
    for name in (
        "append",
        "appendleft",
        "extend",
        "extendleft",
        "copy",
        "pop",
        "popleft",
        "reverse",
        "__iter__",
    )
]


def configure(by_step: Callable[..., Any]) -> None:
    """Tell the core of all this, once. `by_step` makes a step of a call of numpy."""
    OF_ARRAYS[:] = [by_step]
    core.configure_numbers(_WORKED_OUT)
    exchanged = {function: tensors.minded(function, own) for function, own in _exchanged().items()}
    asking = {function: tensors.minded(function, own) for function, own in tensors.askers().items()}
    core.configure_exchange(
        exchanged,
        list(functions.askers_of_values()),
        indices.indexed,
        indices.Among,
        _KEEPERS,
        [pad_sequence],
        asking,
        indices.numbered,
        functions.plainly,
    )
