"""Which branch of a function some arguments take: the recordings are run on copies until one goes through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from lazytrace._torch import tree_flatten, tree_unflatten
from lazytrace.checks import clone_tensor
from lazytrace.programs.fx import GraphBuilder, obstacles
from lazytrace.programs.layout import layout_of
from lazytrace.programs.program import Program


def branch_of(programs: Sequence[Program]) -> Program | None:
    """The program that a call takes, of those whose guards hold, newest first; None where it takes another.

    A program that looks at no value is the one. Otherwise it runs on copies of all tensors, with the random
    stream put back, and the values must be those of the recording. Where an opaque step would have to run,
    the newest is taken.
    """
    for program in programs:
        if not _can_differ(program) or not _can_run(program) or _goes_through(program):
            return program
    return None


def _can_differ(program: Program) -> bool:
    return any(step.reads() or step.sizes for step in program.steps)


_RUNS = ("operator", "literal", "fill", "data", "requires_grad")


def _can_run(program: Program) -> bool:
    if program.native.follows_numbers or any(step.kind not in _RUNS for step in program.steps):
        return False
    return not any(text.startswith("takes ") for text, _ in obstacles(program))


def _goes_through(program: Program) -> bool:
    layout = layout_of(program, with_result=False)
    graph = GraphBuilder(program, layout).graph_module()
    memo: dict[Any, Any] = {}
    flat, spec = tree_flatten((program.args, program.kwargs))
    copied = [clone_tensor(leaf, memo) for leaf in flat]
    _copy_state(graph, memo)
    args, kwargs = tree_unflatten(copied, spec)
    with torch.random.fork_rng(devices=[], enabled=program.random), torch.no_grad():
        try:
            graph(*args, **kwargs)
        except (RuntimeError, AssertionError, IndexError):
            return False  # an assertion of a read or shape, or what an operator says of other values
    return True


def _copy_state(graph: fx.GraphModule, memo: dict[Any, Any]) -> None:
    for module in graph.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = clone_tensor(tensor, memo)
