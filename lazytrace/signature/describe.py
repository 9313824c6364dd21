"""A call in words: every property that its signature holds, by the path that a person would write."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

Description = Mapping[str, str]
"""Path -> value, as in `{"x.shape[0]": "64", "x.dtype": "float32", "grad_mode": "True"}`."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout)


class _Look(NamedTuple):
    """What there is to say of a tensor, without the tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    contiguous: bool | None  # None of one that has no strides
    stride: tuple[int, ...]
    layout: torch.layout
    device: torch.device
    requires_grad: bool
    is_leaf: bool
    is_inference: bool
    type_name: str

    @classmethod
    def of(cls, t: torch.Tensor) -> _Look:
        layout = t.layout
        contiguous = t.is_contiguous() if layout is torch.strided else None
        # Strides follow from the shape unless the memory lies otherwise, and would only repeat it.
        stride = t.stride() if contiguous is False else ()
        return cls(
            *(t.dtype, t.shape, contiguous, stride, layout, t.device),
            *(t.requires_grad, t.is_leaf, t.is_inference(), type(t).__name__),
        )

    def words(self, path: str) -> Iterator[tuple[str, str]]:
        yield f"{path}.dtype", str(self.dtype).removeprefix("torch.")
        yield f"{path}.ndim", str(len(self.shape))
        for i, size in enumerate(self.shape):
            yield f"{path}.shape[{i}]", str(size)
        if self.contiguous is not None:
            yield f"{path}.is_contiguous()", str(self.contiguous)
            if not self.contiguous:
                yield f"{path}.stride()", str(self.stride)
        yield f"{path}.layout", str(self.layout).removeprefix("torch.")
        yield f"{path}.device", str(self.device)
        yield f"{path}.requires_grad", str(self.requires_grad)
        yield f"{path}.is_leaf", str(self.is_leaf)
        yield f"{path}.is_inference()", str(self.is_inference)
        yield f"type({path})", self.type_name


class _Described(Mapping[str, str]):
    """The words of one call, put together when somebody reads them: most recordings are never asked.

    Holds looks, texts and modes, nothing of the user's.
    """

    __slots__ = ("_ambient", "_rows", "_words")

    def __init__(self, rows: list[tuple[str, str | _Look]], ambient: dict[str, Any]) -> None:
        self._rows = rows
        self._ambient = ambient
        self._words: dict[str, str] | None = None

    def _all(self) -> dict[str, str]:
        if self._words is None:
            words: dict[str, str] = {}
            for path, said in self._rows:
                words.update(said.words(path) if isinstance(said, _Look) else ((path, said),))
            words.update({name: str(value) for name, value in self._ambient.items()})
            self._words = words
        return self._words

    def __getitem__(self, path: str) -> str:
        return self._all()[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def items(self) -> ItemsView[str, str]:
        return self._all().items()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._all(),)

    def __repr__(self) -> str:
        return repr(self._all())


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


def _walk(path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str | _Look]]:
    if isinstance(value, torch.Tensor):
        yield path, _Look.of(value)
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
    rows: list[tuple[str, str | _Look]] = [row for path, value in named for row in _walk(path, value)]
    if sum(isinstance(said, _Look) for _, said in rows) > 1:
        rows += _sharing([pair for path, value in named for pair in _tensors(path, value)])
    return _Described(rows, ambient)


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
