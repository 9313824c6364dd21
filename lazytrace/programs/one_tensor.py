"""Whether a program is the same where some of its arguments are one tensor as where each is its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from lazytrace.checks import same
from lazytrace.programs.fx import GraphBuilder
from lazytrace.programs.layout import layout_of
from lazytrace.programs.program import Program


def computes_the_same(shared: Program, apart: Program) -> bool:
    """Whether two programs differ in nothing but that some arguments of `shared` are one tensor.

    An exported program has an input for each, and is that of arguments that are not.
    """
    leaves = [leaf.value for leaf in layout_of(shared).leaves]
    first = {id(leaf): i for i, leaf in reversed([*enumerate(leaves)]) if isinstance(leaf, torch.Tensor)}
    owners = [first.get(id(leaf), i) for i, leaf in enumerate(leaves)]
    literals = [[step.literal for step in program.steps] for program in (shared, apart)]
    texts = [_text_with_one_input(program, owners) for program in (shared, apart)]
    return texts[0] == texts[1] and bool(same(*literals, rtol=0, atol=0))


def _text_with_one_input(program: Program, owners: list[int]) -> list[str]:
    """The code of a graph, with the first of the arguments that are one tensor in place of each."""
    made = GraphBuilder(program, layout_of(program), checks=False).graph_module()
    inputs = [node for node in made.graph.nodes if node.op == "placeholder"]
    for node, owner in zip(inputs, owners, strict=True):
        if node is not inputs[owner]:
            node.replace_all_uses_with(inputs[owner])
    texts = []
    for module in made.modules():
        if isinstance(module, fx.GraphModule):
            _name_written_tensors_once(module.graph)
            texts.append(str(module.graph))
    return texts


def _name_written_tensors_once(graph: fx.Graph) -> None:
    """What an operator has written to goes by two names, its argument and its result."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            continue
        if len(schema.returns) == 1 and _is_written(schema.returns[0]):
            at = [_is_written(one) for one in schema.arguments].index(True)
            argument = schema.arguments[at]
            written = node.kwargs[argument.name] if argument.kwarg_only else node.args[at]
            node.replace_all_uses_with(written)


def _is_written(value: Any) -> bool:
    return value.alias_info is not None and bool(value.alias_info.is_write)
