"""A program as a `torch.export.ExportedProgram`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from lazytrace._torch import training_verifier, tree_flatten
from lazytrace.errors import export_refused, shares_memory
from lazytrace.programs.fx import GraphBuilder, obstacles
from lazytrace.programs.layout import Layout, layout_of
from lazytrace.programs.one_tensor import computes_the_same
from lazytrace.programs.opaque import custom_operator_of, stays_python
from lazytrace.programs.program import Program, Register
from lazytrace.programs.reads import check_of


def obstacles_to_export(program: Program) -> Iterator[tuple[str, str]]:
    """(why, advice) of each thing that an exported program cannot hold."""
    yield from obstacles(program)
    for step in program.steps:
        if step.opaque is not None:
            if custom_operator_of(step.opaque) is None:
                yield stays_python(step)
        elif step.kind == "requires_grad":
            yield f"sets requires_grad ({step.place})", "Do that outside."
        elif step.sizes:
            yield (
                f"makes a tensor whose size follows from values: {step.operator} ({step.place})",
                "Use an operator with a fixed size, such as torch.where().",
            )
        elif step.reads() and not check_of(step).in_graph:
            yield (
                f"looks at what {step.operator} gives ({step.place}), which no operator can assert",
                "Leave that out of the function.",
            )
        elif step.kind == "operator" and any(meta_missing(result) for result in step.results):
            yield (
                f"makes a tensor that is not strided: {step.operator} ({step.place})",
                "Only dense tensors can be exported.",
            )


def meta_missing(result: Any) -> bool:
    """Whether nothing can stand for a result in a graph."""
    if result.kind == "list":
        return any(meta_missing(item) for item in result.items)
    return result.kind == "register" and result.meta is not None and result.meta.stride is None


def refuse_export(program: Program) -> None:
    """Raise `NotImplementedError` with all that keeps the program from being exported."""
    found = told_obstacles(program)
    if found:
        raise NotImplementedError(export_refused(program.name, found))


def told_obstacles(program: Program) -> list[str]:
    """The obstacles in words, what the layout of arguments and result says among them."""
    found = [f"{why}. {advice}" for why, advice in obstacles_to_export(program)]
    if not found:
        try:
            layout_of(program)
        except NotImplementedError as error:
            found = [str(error).partition("the program ")[2]]
    return list(dict.fromkeys(found))


def exported_program(program: Program, shared: Program | None = None) -> torch.export.ExportedProgram:
    """The program for torch's own tools; see `lazytrace.export`."""
    refuse_export(program)
    if shared is not None:
        refuse_export(shared)
        if not computes_the_same(shared, program):
            raise NotImplementedError(export_refused(program.name, [shares_memory()]))
    layout = layout_of(program)
    builder = GraphBuilder(program, layout, checks=False)
    graph, state = builder.lifted()
    return _Exporting(program, layout, builder, graph, state).program()


class _Exporting:
    """Puts graph, signature and state together."""

    def __init__(
        self, program: Program, layout: Layout, builder: GraphBuilder, graph: fx.Graph, state: list[fx.Node]
    ) -> None:
        self._program = program
        self._layout = layout
        self._builder = builder
        self._graph = graph
        self._state = state
        self._captures = builder.state_in_order()

    def program(self) -> torch.export.ExportedProgram:
        from torch.export import ExportedProgram

        return ExportedProgram(
            self._builder.module,
            self._graph,
            self._signature(),
            self._tensors(),
            {},
            self._modules(),
            (self._program.args, self._program.kwargs),
            self._constants(),
            verifiers=[training_verifier()],
        )

    # ------------------------------------------------------------ state
    def _in_state_dict(self, capture: Any) -> bool:
        return bool(capture.kind == "parameter" or (capture.kind == "buffer" and capture.persistent))

    def _tensors(self) -> dict[str, torch.Tensor]:
        """All that the module's state_dict has, with what the program does not take, too."""
        found = {one.name: one.tensor for one in self._captures if self._in_state_dict(one)}
        if self._program.root is not None:
            for name, tensor in self._program.root.state_dict(keep_vars=True).items():
                found.setdefault(name, tensor)
        return found

    def _constants(self) -> dict[str, Any]:
        found = {one.name: one.tensor for one in self._captures if not self._in_state_dict(one)}
        found.update({name: literal for _, name, literal in self._builder.literals.values()})
        return found

    # ------------------------------------------------------------ the signature
    def _signature(self) -> Any:
        from torch.export.graph_signature import ExportGraphSignature, OutputKind, OutputSpec

        outputs = [OutputSpec(OutputKind.USER_OUTPUT, one, None) for one in self._outputs()]
        return ExportGraphSignature(list(self._inputs()), outputs)

    def _inputs(self) -> Iterator[Any]:
        from torch.export.graph_signature import (
            ConstantArgument,
            InputKind,
            InputSpec,
            TensorArgument,
        )

        kinds = {
            "parameter": InputKind.PARAMETER,
            "buffer": InputKind.BUFFER,
            "constant": InputKind.CONSTANT_TENSOR,
        }
        nodes = [node for node in self._graph.nodes if node.op == "placeholder"]
        for capture, node in zip(self._captures, nodes, strict=False):
            persistent = capture.persistent if capture.kind == "buffer" else None
            yield InputSpec(kinds[capture.kind], TensorArgument(node.name), capture.name, persistent)
        literals = [name for _, name, _ in self._builder.literals.values()]
        for name, node in zip(literals, nodes[len(self._captures) :], strict=False):
            yield InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), name)
        for leaf, node in zip(self._layout.leaves, nodes[len(self._state) :], strict=True):
            tensor = isinstance(leaf.value, torch.Tensor)
            argument = TensorArgument(node.name) if tensor else ConstantArgument(node.name, leaf.value)
            yield InputSpec(InputKind.USER_INPUT, argument, None)

    def _outputs(self) -> Iterator[Any]:
        from torch.export.graph_signature import ConstantArgument, TensorArgument

        output = next(node for node in self._graph.nodes if node.op == "output")
        for leaf, node in zip(self._layout.result, output.args[0], strict=True):
            if isinstance(leaf, Register):
                yield TensorArgument(node.name)
            else:
                yield ConstantArgument("", leaf)

    # ------------------------------------------------------------ modules
    def _modules(self) -> list[Any]:
        from torch.export import ModuleCallEntry, ModuleCallSignature

        in_spec = tree_flatten((self._program.args, self._program.kwargs))[1]
        signature = ModuleCallSignature([], [], in_spec, self._layout.out_spec, self._layout.names)
        paths = [path for step in self._program.steps for path, _, _ in step.modules if path]
        return [
            ModuleCallEntry("", signature),
            *(ModuleCallEntry(path, None) for path in dict.fromkeys(paths)),
        ]
