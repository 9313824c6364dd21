"""Arguments that are padded to few sizes for a traced function, and results that are cut back."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
import wrapt

from lazytrace.errors import OptionError, bucket_result, bucket_unknown, bucket_written
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS


class Bucketed(wrapt.ObjectProxy[Any]):
    """A traced function whose arguments are padded; all but calls is that function's."""

    def __init__(
        self, traced: Any, buckets: Mapping[str, Any], positions: dict[str, int] | None = None
    ) -> None:
        super().__init__(traced)
        self._self_buckets = buckets
        self._self_positions = positions if positions is not None else _positions(traced, buckets)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function with padded arguments."""
        call = _Call(self._self_name(), self._self_buckets, self._self_positions, args, kwargs)
        return call.cut(self.__wrapped__(*call.args, **call.kwargs))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        bound = self.__wrapped__.__get__(instance, owner)
        positions = self._self_positions
        if getattr(bound, "__self__", None) is not None:  # the first argument is passed with it
            positions = {name: at - 1 for name, at in positions.items()}
        return Bucketed(bound, self._self_buckets, positions)

    def __copy__(self) -> Any:
        return Bucketed(copy.copy(self.__wrapped__), self._self_buckets, self._self_positions)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return Bucketed(copy.deepcopy(self.__wrapped__, memo), self._self_buckets, self._self_positions)

    def __reduce_ex__(self, protocol: Any) -> Any:
        found = self.__wrapped__.__reduce_ex__(protocol)
        if isinstance(found, str) or found[0] is getattr:
            return found  # a name, in a module or in an object, at which this is found and not what it wraps
        return Bucketed, (self.__wrapped__, self._self_buckets, self._self_positions)

    def _self_name(self) -> str:
        return str(getattr(self.__wrapped__, "__name__", type(self.__wrapped__).__name__))


def _positions(traced: Any, buckets: Mapping[str, Any]) -> dict[str, int]:
    """Where the parameters stand that are padded; -1 of those that are passed by keyword only."""
    known = list(inspect.signature(traced).parameters.values())
    others = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known)
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = {one.name: at if one.kind in by_place else -1 for at, one in enumerate(known)}
    for name in buckets:
        if name != "return" and name not in found and not others:
            raise OptionError(bucket_unknown(getattr(traced, "__name__", type(traced).__name__), name))
    return {name: found.get(name, -1) for name in buckets if name != "return"}


class _Call:
    """One call: its arguments, padded, and what it takes to cut its result back."""

    def __init__(
        self,
        name: str,
        buckets: Mapping[str, Any],
        positions: dict[str, int],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.name, self.buckets = name, buckets
        self.kwargs = dict(kwargs)
        given = list(args)
        self._sizes: tuple[int, int] | None = None  # of the first one: as it was, as it is
        self._padded: list[tuple[str, torch.Tensor, int]] = []
        self._known: dict[tuple[Any, ...], torch.Tensor] = {}  # one tensor that is passed twice stays one
        for parameter, at in positions.items():
            if 0 <= at < len(given):
                given[at] = self._pad(parameter, given[at])
            elif parameter in self.kwargs:
                self.kwargs[parameter] = self._pad(parameter, self.kwargs[parameter])
        self.args = tuple(given)

    def _pad(self, name: str, value: Any) -> Any:
        dim, sizes, *filler = self.buckets[name]
        if not isinstance(value, torch.Tensor) or not -value.dim() <= dim < value.dim():
            return value
        size = value.shape[dim]
        bucket = min((one for one in sizes if one >= size), default=size)
        self._sizes = self._sizes or (size, bucket)
        if bucket == size:
            return value
        key = (id(value), dim % value.dim(), bucket, *filler)
        if key in self._known:
            return self._known[key]
        after = [0, 0] * (value.dim() - 1 - dim % value.dim()) + [0, bucket - size]
        padded = F.pad(value, after, value=filler[0] if filler else 0)
        self._known[key] = padded
        if not padded.is_inference():  # such tensors count no versions
            self._padded.append((name, padded, padded._version))
        return padded

    def cut(self, result: Any) -> Any:
        """The result with the size that the first of the padded arguments had."""
        for name, padded, version in self._padded:
            if padded._version != version:
                raise OptionError(bucket_written(self.name, name))
        size, bucket = self._sizes or (0, 0)
        return result if size == bucket else self._cut(result, self.buckets.get("return"), size, bucket)

    def _cut(self, result: Any, where: Any, size: int, bucket: int) -> Any:
        if where is None:
            return result
        if isinstance(result, torch.Tensor):
            has_it = isinstance(where, int) and -result.dim() <= where < result.dim()
            if not has_it or result.shape[where] != bucket:
                raise OptionError(
                    bucket_result(self.name, where, bucket, f"a tensor of sizes {[*result.shape]}")
                )
            return result.narrow(where, 0, size)
        if isinstance(result, dict):
            cut = copy.copy(result)
            for key in where if isinstance(where, Mapping) else result:
                cut[key] = self._cut(
                    result[key], where[key] if isinstance(where, Mapping) else where, size, bucket
                )
            return cut
        if isinstance(result, list | tuple):
            places = where if isinstance(where, list | tuple) else [where] * len(result)
            items = [self._cut(item, at, size, bucket) for item, at in zip(result, places, strict=True)]
            return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
        return result
