"""A call in words: every property that its signature holds, by the path that a person would write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

Description = dict[str, str]
"""Path -> value, as in `{"x.shape[0]": "64", "x.dtype": "float32", "grad_mode": "True"}`."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout)


def _tensor(path: str, t: torch.Tensor) -> Iterator[tuple[str, str]]:
    yield f"{path}.dtype", str(t.dtype).removeprefix("torch.")
    yield f"{path}.ndim", str(t.ndim)
    for i, size in enumerate(t.shape):
        yield f"{path}.shape[{i}]", str(size)
    if t.layout is torch.strided:
        # Strides follow from the shape unless the memory lies otherwise, and would only repeat it.
        yield f"{path}.is_contiguous()", str(t.is_contiguous())
        if not t.is_contiguous():
            yield f"{path}.stride()", str(t.stride())
    yield f"{path}.layout", str(t.layout).removeprefix("torch.")
    yield f"{path}.device", str(t.device)
    yield f"{path}.requires_grad", str(t.requires_grad)
    yield f"{path}.is_leaf", str(t.is_leaf)
    yield f"{path}.is_inference()", str(t.is_inference())
    yield f"type({path})", type(t).__name__


def _is_container(value: object) -> bool:
    return type(value) in (tuple, list, dict, torch.Size) or (
        isinstance(value, dict | tuple) and type(value).__module__ != "builtins" and _is_known_subclass(value)
    )


def _is_known_subclass(value: object) -> bool:
    return type(value).__name__ == "OrderedDict" or hasattr(value, "_fields")


def _children(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
    else:
        yield from ((f"{path}[{i}]", item) for i, item in enumerate(value))


def _walk(path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, torch.Tensor):
        yield from _tensor(path, value)
    elif isinstance(value, _PLAIN):
        yield path, repr(value)
    elif _is_container(value) and depth < 64:
        yield f"type({path})", type(value).__name__
        yield f"len({path})", str(len(value))
        for child_path, child in _children(path, value):
            yield from _walk(child_path, child, depth + 1)
    else:
        yield f"type({path})", type(value).__name__


def _sharing(tensors: list[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, str]]:
    first: dict[int, str] = {}
    for path, t in tensors:
        if t.layout is torch.strided and t.numel():
            owner = first.setdefault(t.untyped_storage().data_ptr(), path)
            if owner != path:
                yield f"memory of {path}", f"shared with {owner}"


def _tensors(path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif _is_container(value) and depth < 64:
        for child_path, child in _children(path, value):
            yield from _tensors(child_path, child, depth + 1)


def describe(named: Iterable[tuple[str, Any]], ambient: dict[str, Any]) -> Description:
    """What identifies a call, property by property.

    `named` are the bound arguments, `ambient` the modes and defaults around the call.

    >>> describe([("x", torch.ones(2, 3)), ("scale", 2.0)], {"grad_mode": True})["x.shape[1]"]
    '3'
    """
    named = list(named)
    words: Description = {}
    for path, value in named:
        words.update(_walk(path, value))
    words.update(_sharing([pair for path, value in named for pair in _tensors(path, value)]))
    words.update({name: str(value) for name, value in ambient.items()})
    return words


def _roots(path: str, value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, (torch.Tensor, *_PLAIN)):
        return
    yield path
    if _is_container(value) and depth < 64:
        for child_path, child in _children(path, value):
            yield from _roots(child_path, child, depth + 1)


def root_names(function: str, named: Iterable[tuple[str, Any]]) -> list[str]:
    """The names of the roots that guards start from, in the order of the native signature.

    >>> root_names("step", [("x", torch.ones(2)), ("options", {"a": [1]})])
    ['step', 'options', "options['a']"]
    """
    return [function, *(name for path, value in named for name in _roots(path, value))]
