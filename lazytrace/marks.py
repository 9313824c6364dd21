"""What a person says of the sizes of a tensor: which stay as they are, and which will differ."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lazytrace.errors import OptionError, bad_dimension, not_a_tensor
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

# On the tensor itself, so that a mark goes where the tensor goes.
_STATIC, _DYNAMIC = "_lazytrace_static", "_lazytrace_dynamic"


def mark_static(tensor: torch.Tensor, *dims: int) -> None:
    """Say that these sizes of a tensor are few, and each shall have recordings of its own.

    All sizes where no dimension is named. It matters where the tensor is an argument of a call that is
    recorded: a recording that fits all sizes fits one size alone in these dimensions.

    A mark is an attribute of the tensor object, and tensors with attributes of their own have signatures of
    their own: mark the argument of each call, or of none. What is computed from a tensor has no mark. Takes
    back `mark_dynamic` for these dimensions. Raises `OptionError` for what is no tensor, and for a dimension
    that it does not have.

    >>> import lazytrace
    >>> step = lazytrace.traced(lambda x: x * 2, dynamic=True)
    >>> for rows, width in ((2, 8), (3, 8), (5, 8), (6, 16), (7, 16)):
    ...     x = torch.ones(rows, width)
    ...     lazytrace.mark_static(x, 1)
    ...     _ = step(x)
    >>> step.cache_info().misses, step.cache_info().hits
    (2, 3)
    """
    chosen = _dimensions("mark_static", tensor, dims)
    _mark(tensor, _STATIC, _marked(tensor, _STATIC) | chosen)
    _mark(tensor, _DYNAMIC, _marked(tensor, _DYNAMIC) - chosen)


def mark_dynamic(tensor: torch.Tensor, *dims: int) -> None:
    """Say that these sizes of a tensor will differ from call to call.

    All sizes where no dimension is named. A call with such a tensor among its arguments is recorded for all
    sizes at once, where `traced(dynamic=None)` would wait for the second size. It changes nothing with
    `dynamic=False`. Mark the argument of each call, or of none. Takes back `mark_static` for these
    dimensions. Raises `OptionError` for what is no tensor, and for a dimension that it does not have.

    >>> import lazytrace
    >>> step = lazytrace.traced(lambda x: x * 2)
    >>> for rows in (3, 4, 5):
    ...     x = torch.ones(rows)
    ...     lazytrace.mark_dynamic(x, 0)
    ...     _ = step(x)
    >>> step.cache_info().misses
    1
    """
    chosen = _dimensions("mark_dynamic", tensor, dims)
    _mark(tensor, _DYNAMIC, _marked(tensor, _DYNAMIC) | chosen)
    _mark(tensor, _STATIC, _marked(tensor, _STATIC) - chosen)


def static_sizes(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    """The sizes that `mark_static` has fixed, as (tensor, dimension).

    >>> x = torch.ones(2, 3)
    >>> mark_static(x, -1)
    >>> [dim for _, dim in static_sizes([x])]
    [1]
    """
    return [
        (tensor, dim)
        for tensor in tensors
        for dim in sorted(_marked(tensor, _STATIC))
        if dim < tensor.dim()  # its shape may have been changed in place
    ]


def any_dynamic(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether `mark_dynamic` has marked any of the tensors.

    >>> any_dynamic([torch.ones(2)])
    False
    """
    return any(_marked(tensor, _DYNAMIC) for tensor in tensors)


def _dimensions(name: str, tensor: object, dims: tuple[object, ...]) -> frozenset[int]:
    if not isinstance(tensor, torch.Tensor):
        raise OptionError(not_a_tensor(name, tensor))
    count = tensor.dim()
    for dim in dims:
        if not isinstance(dim, int) or isinstance(dim, bool) or not -count <= dim < count:
            raise OptionError(bad_dimension(name, dim, count))
    named = frozenset(dim % count for dim in dims if isinstance(dim, int))
    return named if dims else frozenset(range(count))


def _marked(tensor: torch.Tensor, name: str) -> frozenset[int]:
    found = getattr(tensor, "__dict__", {}).get(name, frozenset())
    return found if isinstance(found, frozenset) else frozenset()


def _mark(tensor: torch.Tensor, name: str, dims: frozenset[int]) -> None:
    if dims:
        setattr(tensor, name, dims)
    elif _marked(tensor, name):
        delattr(tensor, name)
