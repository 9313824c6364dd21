"""Values that Python looked at, as assertions of a graph."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from lazytrace._torch import assert_function
from lazytrace.programs.program import Operation

aten = torch.ops.aten


@dataclass(frozen=True)
class Check:
    """How a read is asserted. `in_graph`: by operators alone, which every tool can take."""

    write: Callable[[fx.Graph, tuple[tuple[Any, ...], dict[str, Any]], Operation], None]
    in_graph: bool


def _text(step: Operation) -> str:
    value = step.reads()[0]
    return (
        f"{step.operator.partition('::')[2]} at {step.place} gave another value than {value!r}, for "
        f"which the "
        "program was recorded"
    )


def _tensor_check(make: Callable[[fx.Graph, tuple[Any, ...], Any], fx.Node]) -> Check:
    def write(graph: fx.Graph, args: tuple[tuple[Any, ...], dict[str, Any]], step: Operation) -> None:
        condition = make(graph, args[0], step.reads()[0])
        graph.call_function(aten._assert_async.msg, (condition, _text(step)))

    return Check(write, in_graph=True)


def _call(graph: fx.Graph, target: Any, *args: Any, like: Any = None) -> fx.Node:
    node = graph.call_function(target, args)
    source = args[0].meta.get("val") if isinstance(args[0], fx.Node) else None
    if isinstance(source, torch.Tensor) and isinstance(like, torch.Size | tuple | None):
        shape = source.shape if like is None else like
        with source.fake_mode:  # type: ignore[attr-defined]
            node.meta["val"] = torch.empty(shape, dtype=torch.bool, device=source.device)
    return node


def _truth(graph: fx.Graph, args: tuple[Any, ...], value: Any) -> fx.Node:
    return args[0] if value else _call(graph, aten.logical_not.default, args[0])


def _number(graph: fx.Graph, args: tuple[Any, ...], value: Any) -> fx.Node:
    tensor = args[0]
    if isinstance(value, bool):
        return _truth(graph, args, value)
    if isinstance(value, float) and math.isnan(value):
        return _call(graph, aten.isnan.default, tensor)
    same = _call(graph, aten.eq.Scalar, tensor, value)
    if isinstance(value, float) and value == 0:  # 0.0 is not -0.0 to Python
        sign = _call(graph, aten.signbit.default, tensor)
        if math.copysign(1, value) > 0:
            sign = _call(graph, aten.logical_not.default, sign)
        return _call(graph, aten.logical_and.default, same, sign)
    return same


def _all(graph: fx.Graph, each: fx.Node, value: Any) -> fx.Node:
    whole = _call(graph, aten.all.default, each, like=())
    return _truth(graph, (whole,), value)


def _equal(graph: fx.Graph, args: tuple[Any, ...], value: Any) -> fx.Node:
    return _all(graph, _call(graph, aten.eq.Tensor, *args), value)


def _allclose(graph: fx.Graph, args: tuple[Any, ...], value: Any) -> fx.Node:
    return _all(graph, _call(graph, aten.isclose.default, *args), value)


def _any(graph: fx.Graph, args: tuple[tuple[Any, ...], dict[str, Any]], step: Operation) -> None:
    for i, value in enumerate(step.reads()):
        read = graph.call_function(step.handle(), *args)
        if len(step.results) > 1:
            read = graph.call_function(operator.getitem, (read, i))
        same = graph.call_function(operator.eq, (read, value))
        graph.call_function(assert_function(), (same, _text(step)))


_KNOWN: dict[str, Check] = {
    "aten::is_nonzero": _tensor_check(_truth),
    "aten::item": _tensor_check(_number),
    "aten::_local_scalar_dense": _tensor_check(_number),
    "aten::equal": _tensor_check(_equal),
    "aten::allclose": _tensor_check(_allclose),
}
_OTHER = Check(_any, in_graph=False)


def check_of(step: Operation) -> Check:
    """How the read of a step is asserted."""
    return _KNOWN.get(step.operator, _OTHER)
