"""What a graph takes and gives, and what the arguments that it is called with must look like."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from lazytrace._torch import (
    is_dynamo_tracing,
    spec_text,
    stands_for_others,
    tree_flatten,
    tree_leaves_with_path,
    tree_unflatten,
)
from lazytrace.checks import PLAIN_TENSORS, sharing
from lazytrace.errors import graph_argument, graph_refused
from lazytrace.programs.program import Program, Register

PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout)


@dataclass
class Leaf:
    """One leaf of the arguments: a tensor of the program, or a plain value."""

    name: str
    path: str
    value: Any
    register: Register | None = None


@dataclass
class Layout:
    """What a graph takes and gives."""

    leaves: list[Leaf]
    in_spec: Any
    names: list[str]
    spread: tuple[str, ...]
    result: list[Any] = field(default_factory=list)
    """Leaves of the result: a Register or a plain value."""
    out_spec: Any = None


def refuse(program: Program, why: str, advice: str) -> NotImplementedError:
    """What is raised where a graph cannot do the same."""
    return NotImplementedError(graph_refused(program.name, why, advice))


def layout_of(program: Program, *, with_result: bool = True) -> Layout:
    """How the arguments and the result of a program are laid out; raises where a graph cannot say it."""
    _, in_spec = tree_flatten((program.args, program.kwargs))
    names = _argument_names(program)
    pairs = [
        *((names[i] + path, leaf) for i, value in enumerate(program.args) for path, leaf in _paths(value)),
        *((name + path, leaf) for name, value in program.kwargs.items() for path, leaf in _paths(value)),
    ]
    leaves = [Leaf(identifier(path), path, value) for path, value in pairs]
    _bind_leaves(program, leaves)
    layout = Layout(leaves, in_spec, [*names, *program.kwargs], program.spread)
    if with_result:
        _lay_out_result(program, layout)
    else:
        layout.out_spec = tree_flatten(())[1]
    return layout


def _paths(value: Any) -> list[tuple[str, Any]]:
    return tree_leaves_with_path(value)


def _argument_names(program: Program) -> list[str]:
    """Those of the positional arguments: the first parameters that no keyword names.

    A keyword in `**kwargs` may have the name of one that is passed by position only.
    """
    names: list[str] = []
    for name in program.positional:
        while name in program.kwargs or name in names:
            name += "_"
        names.append(name)
    return names


def identifier(path: str) -> str:
    """A name made of a path, as `batch_x` of `batch['x']`."""
    words = "".join(c if c.isalnum() or c == "_" else " " for c in path).split()
    name = "_".join(words) or "argument"
    return name if name.isidentifier() else f"_{name}"


def _bind_leaves(program: Program, leaves: list[Leaf]) -> None:
    waiting: dict[int, list[Register]] = {}
    for one in program.inputs:
        waiting.setdefault(id(one.tensor), []).append(one.register)
    for capture in program.captures:
        if capture.argument:
            waiting.setdefault(id(capture.tensor), []).append(capture.register)
    for leaf in leaves:
        registers = waiting.get(id(leaf.value)) if isinstance(leaf.value, torch.Tensor) else None
        if registers:
            leaf.register = registers.pop(0) if len(registers) > 1 else registers[0]


def _lay_out_result(program: Program, layout: Layout) -> None:
    for tree in program.result.walk():
        if tree.kind == "state":
            raise refuse(
                program,
                f"returns {_shown(program.state.get(tree.index))}, a part of the state",
                "Return tensors and plain values only.",
            )
    # A register is a tuple to pytree, and would be taken apart.
    layout.result, layout.out_spec = tree_flatten(program.result.build(_Hole, outer=1))
    for i, leaf in enumerate(layout.result):
        if isinstance(leaf, _Hole):
            layout.result[i] = leaf.register
        elif not isinstance(leaf, PLAIN):
            raise refuse(
                program,
                f"returns {_shown(leaf)}, which torch's pytree does not know",
                "Register its class with torch.export.register_dataclass() or return a dict.",
            )


@dataclass(frozen=True)
class _Hole:
    register: Register


def _shown(value: object) -> str:
    kind = type(value).__qualname__
    return f"an object of type {kind}"


# ---------------------------------------------------------------- asking
class Expectations:
    """What the arguments of a graph must look like, asked before it runs. Holds no tensor."""

    def __init__(self, layout: Layout) -> None:
        self._names, self._spread = layout.names, layout.spread
        args, kwargs = tree_unflatten([None] * len(layout.leaves), layout.in_spec)
        self._specs = _specs(args, kwargs, self._names)
        self._paths = [leaf.path for leaf in layout.leaves]
        self._looks = [_look(leaf.value) for leaf in layout.leaves]
        self._sharing = sharing([leaf.value for leaf in layout.leaves])

    def __call__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise `ValueError` if they look otherwise."""
        spread = tuple(name for name in kwargs if name in self._spread)
        if spread != self._spread:
            found, wanted = (f"one with {_in_order(names)}" for names in (spread, self._spread))
            raise ValueError(graph_argument("the call", found, wanted))
        kwargs = {name: kwargs[name] for name in self._names if name in kwargs} | kwargs
        leaves = tree_flatten((args, kwargs))[0]
        if len(leaves) != len(self._looks):
            raise ValueError(graph_argument("the call", f"{len(leaves)} values", f"{len(self._looks)}"))
        specs = _specs(args, kwargs, self._names)
        if specs != self._specs:
            raise ValueError(_differing(specs, self._specs))
        for path, leaf, look in zip(self._paths, leaves, self._looks, strict=True):
            if not isinstance(leaf, fx.Proxy) and _look(leaf) != look:
                raise ValueError(graph_argument(path, _look(leaf), look))
        if self._share_otherwise(leaves):
            raise ValueError(
                graph_argument("the call", "one whose tensors share memory", "one where others do")
            )

    def _share_otherwise(self, leaves: list[Any]) -> bool:
        """Asked of ordinary tensors: tools pass others, which stand for tensors."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor | fx.Proxy)]
        return not is_dynamo_tracing() and all(map(_is_itself, tensors)) and sharing(leaves) != self._sharing


def _is_itself(value: Any) -> bool:
    return type(value) in PLAIN_TENSORS and not stands_for_others(value)


def _in_order(names: tuple[str, ...]) -> str:
    return f"**kwargs {', '.join(names)}, in this order"


def _specs(args: tuple[Any, ...], kwargs: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The containers of each argument: dicts in another order are others, as Python can tell them apart."""
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: tree_flatten(value)[1] for name, value in named.items()}


def _differing(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    for name, spec in wanted.items():
        other = found.get(name)
        if other != spec:
            return graph_argument(name, spec_text(other) if other is not None else "missing", spec_text(spec))
    return graph_argument("the call", f"one with {', '.join(found)}", ", ".join(wanted))


def _look(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value) if isinstance(value, PLAIN) else _shown(value)
    dtype = str(value.dtype).removeprefix("torch.")
    if value.layout is not torch.strided:
        return f"{dtype}{list(value.shape)} {value.layout} on {value.device}"
    stride = value.stride()
    strides = "" if not stride or value.is_contiguous() else f" with strides {list(stride)}"
    grad = " that requires grad" if value.requires_grad and _is_itself(value) else ""
    return f"{dtype}{list(value.shape)}{strides} on {value.device}{grad}"
