"""Followed numbers among indices, and as keys of tables."""

from __future__ import annotations

import collections
import operator
import sys
from typing import Any

import torch

from lazytrace._native import core
from lazytrace._torch import default_device
from lazytrace.carriers.classes import (
    CARRIERS,
    Dim,
    Real,
    Scalar,
    Single,
    called,
    read,
    read_inside,
    read_key,
    with_dims,
)
from lazytrace.carriers.functions import item_of, largest, size_of
from lazytrace.carriers.tensors import tensor_of
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS


def numbered(end: int) -> torch.Tensor:
    """What torch makes of `range(end)` as an index: how many there are is no matter of Python's."""
    return torch.arange(largest(end, 0), device="cpu")


def _as_dims(key: Any) -> Any:
    """Slices whose bounds torch compares with no size before it calls the operator."""
    if isinstance(key, tuple):
        return tuple(map(_as_dims, key))
    return core.followed_index(key) if isinstance(key, slice) else key


def _is_index(item: Any) -> bool:
    return type(item) is Dim or type(item) is int


def _is_plain_index(item: Any) -> bool:
    return _is_index(item) or isinstance(item, slice) or item is Ellipsis or item is None


def _plain_index(item: Any) -> Any:
    if isinstance(item, slice):
        return slice(*map(_plain_index, (item.start, item.stop, item.step)))
    return item_of(item) if core.is_index(item) else item


def _selected(tensor: torch.Tensor, key: Any) -> tuple[torch.Tensor, Any]:
    """`tensor[key]` with the numbers among the indices taken out by an operator each."""
    items = key if isinstance(key, tuple) else (key,)
    if all(_is_plain_index(item) or isinstance(item, torch.Tensor) for item in items):
        # As torch's binding does it: it asks such a tensor for its value (handleDimInMultiDimIndexing).
        items = tuple(map(_plain_index, items))
        key = items if isinstance(key, tuple) else items[0]
    plain = all(map(_is_plain_index, items))
    if not any(type(i) is Dim or _strides(i) for i in items):
        return tensor, key
    if not plain:
        return _taken_beside_tensors(tensor, items) or (tensor, tuple(map(read, items)))
    full = _without_ellipsis(tensor, items)
    if _strides(key) and tensor.dim():
        found = _strided(tensor, key)
        return (tensor, key) if found is None else (found, Ellipsis)
    # torch says something else of an index than of an argument.
    found = _taken_out(tensor, full)
    if found is None:
        return tensor, tuple(map(read, key)) if isinstance(key, tuple) else read(key)
    return found, Ellipsis


def _strides(item: Any) -> bool:
    return isinstance(item, slice) and type(item.step) is Dim


def _has_stride(key: Any) -> bool:
    return any(map(_strides, key)) if isinstance(key, tuple) else _strides(key)


def _strided(tensor: torch.Tensor, key: slice, dim: int = -1) -> torch.Tensor | None:
    """What torch's binding does with such a slice, by the operator to which it hands the value of the stride.

    As one of several indices it is for a dimension; None where the binding would raise.
    """
    start, stop = 0 if key.start is None else key.start, sys.maxsize if key.stop is None else key.stop

    def plainly(*_: Any) -> torch.Tensor:
        item = _as_dims(key)
        return torch.Tensor.__getitem__(tensor, item if dim < 0 else (*[slice(None)] * dim, item))

    if not key.step > 0:
        return None
    if dim >= 0 and key.step == 1:  # all of it may be the tensor itself
        return plainly()
    args = tensor, max(dim, 0), start, stop, key.step
    made: torch.Tensor = core.call_with_numbers(plainly, "aten::slice", "Tensor", args, {})
    return made


def _without_ellipsis(tensor: torch.Tensor, items: tuple[Any, ...]) -> list[tuple[int, Any]]:
    """The indices, one for each dimension that it stands for, with their places among those written."""
    used = sum(i is not None and i is not Ellipsis for i in items)
    full: list[tuple[int, Any]] = []
    for place, item in enumerate(items):
        several = [slice(None)] * (tensor.dim() - used) if item is Ellipsis else [item]
        full += [(place, one) for one in several]
    return full


def _taken_beside_tensors(
    tensor: torch.Tensor, items: tuple[Any, ...]
) -> tuple[torch.Tensor, tuple[Any, ...]] | None:
    """As torch's binding does it, which takes numbers out before it calls the operator that takes tensors.

    None of a mask that stands for several dimensions, of slices, which it takes in turn with the numbers,
    and where torch would raise.
    """
    if sum(item is Ellipsis for item in items) > 1:
        return None
    rest: list[Any] = []
    for place, item in _without_ellipsis(tensor, items):
        if isinstance(item, torch.Tensor):
            mask = item.dtype is torch.bool and item.dim() == 1
            if not mask and (not item.dim() or item.dtype not in (torch.int64, torch.int32)):
                return None
        elif type(item) is list:
            if not item or not all(type(one) is int for one in item):
                return None
        elif not _is_index(item):
            if not isinstance(item, slice) or item != slice(None):
                return None
        else:
            if not core.is_within(tensor, len(rest), item):
                return None
            tensor = tensor.select(len(rest), item)
            if type(item) is Dim:
                core.note_index(place)
            continue
        rest.append(item)
    return tensor, tuple(rest)


def _taken_out(tensor: torch.Tensor, items: list[tuple[int, Any]]) -> torch.Tensor | None:
    """What torch's binding does with each index, in its order; None where it would raise.

    Each comes with its place among those that were written.
    """
    dim = 0
    for place, item in items:
        if _is_index(item):
            if not core.is_within(tensor, dim, item):
                return None
            tensor = tensor.select(dim, item)
            if type(item) is Dim:
                core.note_index(place)
            continue
        if item is None:
            tensor = tensor.unsqueeze(dim)
        elif _strides(item):
            strided = _strided(tensor, item, dim)
            if strided is None:
                return None
            tensor = strided
        elif item != slice(None):
            tensor = torch.Tensor.__getitem__(tensor, ((slice(None),) * dim + (_as_dims(item),)))
        dim += 1
    return tensor


def _without_lists(key: Any, tensor: torch.Tensor) -> Any:
    """`key` with the numbers in lists read, of which torch would make a tensor of the lower bits of each.

    And with numpy's floats read, which are no indices. Of a list of whole numbers there is a tensor.
    """
    items = key if isinstance(key, tuple) else (key,)
    if tensor.is_cpu and default_device().type == "cpu" and any(map(_lists_dims, items)):
        items = tuple(tensor_of(item) if _lists_dims(item) else item for item in items)
        key = items if isinstance(key, tuple) else items[0]

    def is_read(item: Any) -> bool:
        return type(item) in (Scalar, Single) or isinstance(item, list | tuple | collections.deque)

    if not any(map(is_read, items)):
        return key
    made = tuple(read_inside(item) if is_read(item) else item for item in items)
    return made if isinstance(key, tuple) else made[0]


def _lists_dims(item: Any) -> bool:
    return type(item) is list and all(map(_is_index, item)) and any(type(one) is Dim for one in item)


def _with_wholes(key: Any, tensor: torch.Tensor) -> Any:
    """`key` with slices of everything as such; for the others, it is read that they are not.

    torch takes the tensor itself for such a slice (`applySlice`), which shows in graphs alone.
    """
    items = key if isinstance(key, tuple) else (key,)
    if not all(_is_plain_index(item) or isinstance(item, torch.Tensor) for item in items):
        return key
    made: list[Any] = []
    dim, left = 0, tensor.dim() - sum(map(_dimensions, items))
    for item in items:
        if isinstance(item, slice) and dim < tensor.dim() and _takes_all(item, tensor, dim):
            item = slice(None)
        dim += left if item is Ellipsis else _dimensions(item)
        made.append(item)
    return tuple(made) if isinstance(key, tuple) else made[0]


def _dimensions(item: Any) -> int:
    """How many dimensions the index is for."""
    if isinstance(item, torch.Tensor):
        return item.dim() if item.dtype in (torch.bool, torch.uint8) else 1
    return 0 if item is None or item is Ellipsis else 1


def _takes_all(item: slice, tensor: torch.Tensor, dim: int) -> bool:
    bounds = (item.start, item.stop, item.step)
    if not all(bound is None or _is_index(bound) for bound in bounds):
        return False
    start, stop, step = 0 if item.start is None else item.start, item.stop, item.step
    if (step is not None and step != 1) or (type(start) is int and start != 0):
        return False
    # The end first: a window that moves is seldom at it.
    return bool((stop is None or stop >= size_of("Size", tensor, dim)) and start == 0)


def _chooses(items: tuple[Any, ...]) -> bool:
    """Whether what is set goes to `index_put_` as it is: torch asks for no size but to take slices."""
    tensors = [item for item in items if isinstance(item, torch.Tensor)]
    others = (item for item in items if not isinstance(item, torch.Tensor))
    return (
        bool(tensors)
        and all(item.dim() for item in tensors)
        and all(isinstance(item, slice) or item is None or item is Ellipsis for item in others)
    )


def _filled(tensor: torch.Tensor, value: Any) -> Any:
    """What torch's binding makes of a number that is set (valueToTensor, python_variable_indexing.cpp).

    Only where each number of its kind can be converted; otherwise the plain value.
    """
    kinds = {torch.float32: (Dim, Real), torch.float64: (Dim, Real), torch.int64: (Dim,)}
    if type(value) not in kinds.get(tensor.dtype, ()) or not tensor.is_cpu:
        return read(value)
    return torch.full((), value, dtype=tensor.dtype)


def _copy(target: torch.Tensor, value: torch.Tensor) -> None:
    """As torch's binding does where slices and numbers are set (`copy_to`, TensorIndexing.h)."""
    wanted, sizes = core.shape_of(target), core.shape_of(value)
    if len(wanted) == len(sizes) and wanted == sizes:
        target.copy_(value)
    elif not sizes and value.is_cpu:
        target.fill_(value)
    else:
        ones = 0
        while ones < len(sizes) and sizes[ones] == 1:
            ones += 1
        value = value.view(sizes[ones:])
        target.copy_(value if wanted == sizes[ones:] else value.expand(wanted))


class Among:
    """Stands for a container of ints that is asked whether it holds one."""

    __slots__ = ("container",)

    def __init__(self, container: Any) -> None:
        self.container = container

    def __contains__(self, number: Any) -> bool:
        for item in self.container:  # noqa: SIM110 (any() would be handed the number)
            if item == number:
                return True
        return False


class _Indexed:
    """Stands for a tensor that is indexed."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getitem__(self, key: Any) -> torch.Tensor:
        return core.minding(self._get, None, key, self.tensor)  # type: ignore[no-any-return]

    def __setitem__(self, key: Any, value: Any) -> None:
        core.minding(self._set, None, key, value, self.tensor)

    def _get(self, key: Any, tensor: torch.Tensor) -> torch.Tensor:
        key = _without_lists(with_dims(key), self.tensor)
        item: torch.Tensor
        if (
            tensor.layout is not torch.strided
        ):  # there is no operator that slices one: a bound that says nothing
            item = called(torch.Tensor.__getitem__, tensor, read_key(key))
            return item
        if isinstance(key, tuple) and core.requires_gradients(tensor) and torch.is_grad_enabled():
            key = _with_wholes(key, tensor)
        followed = NotImplemented if _has_stride(key) else core.followed_index(key)
        if followed is not NotImplemented:
            item = called(torch.Tensor.__getitem__, tensor, followed)
            return item
        tensor, rest = _selected(tensor, key)
        if rest is Ellipsis and key is not Ellipsis:
            return tensor
        item = called(torch.Tensor.__getitem__, tensor, _as_dims(rest))
        return item

    def _set(self, key: Any, value: Any, *_: Any) -> None:
        key = _without_lists(with_dims(key), self.tensor)
        if type(value) in CARRIERS:
            value = _filled(self.tensor, with_dims(value))
        if self.tensor.layout is not torch.strided:  # torch refuses, in words that name no operator
            called(torch.Tensor.__setitem__, self.tensor, read_key(key), value)
            return
        tensors = [part for part in (self.tensor, value) if isinstance(part, torch.Tensor)]
        grows = any(map(core.requires_gradients, tensors))
        if grows and torch.is_grad_enabled():
            key = _with_wholes(key, self.tensor)
        tensor, rest = _selected(self.tensor, key)
        if isinstance(value, torch.Tensor):
            items = rest if isinstance(rest, tuple) else (rest,)
            if all(isinstance(i, slice | int) or i is Ellipsis or i is None for i in items):
                whole = all(i is Ellipsis or i == slice(None) for i in items)
                target = tensor if whole else torch.Tensor.__getitem__(tensor, _as_dims(rest))
                _copy(target, value)
                return
            # Leading dimensions of size 1 are dropped, or not.
            if not _chooses(items) or (value.dim() and size_of("Size", value, 0) == 1):
                core.pin_sizes(value)
                core.pin_sizes(tensor)
        called(torch.Tensor.__setitem__, tensor, _as_dims(rest), value)


class _Table:
    """Stands for a list or a dict of texts that a number is looked up in."""

    __slots__ = ("texts",)

    def __init__(self, texts: Any) -> None:
        self.texts = texts

    def __getitem__(self, number: Any) -> Any:
        made = core.minding(_picked, None, self.texts, with_dims(number))
        return self.texts[read(number)] if made is None else made


def _picked(texts: Any, number: Any) -> Any:
    """The text under a number, as one that follows from it; None where there may be none."""
    count = len(texts)
    if type(texts) is dict:
        if not all(i in texts for i in range(count)) or not 0 <= number < count:
            return None
        texts = [texts[i] for i in range(count)]
    elif not -count <= number < count:
        return None
    return core.follow_text(operator.getitem, tuple(texts), number)


def indexed(container: Any) -> Any:
    """What stands for a tensor, or for a table, where it is indexed by a followed number."""
    return _Indexed(container) if isinstance(container, torch.Tensor) else _Table(container)
