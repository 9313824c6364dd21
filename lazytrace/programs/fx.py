"""A program as an fx graph that computes the same, or a reason why there is none."""

from __future__ import annotations

import itertools
import linecache
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from lazytrace._torch import fake_mode, fake_of, pytree_codegen, tree_flatten
from lazytrace.programs.layout import PLAIN, Expectations, Layout, Leaf, identifier, layout_of, refuse
from lazytrace.programs.opaque import custom_operator_of, operator_of
from lazytrace.programs.program import (
    Capture,
    Generator,
    Input,
    Meta,
    Modes,
    Operation,
    Program,
    Register,
    Result,
    obstacles_of_objects,
)
from lazytrace.programs.reads import Check, check_of

aten = torch.ops.aten


class RecordedGraph(fx.GraphModule):
    """The graph of a recorded program. Its parameters are those of the function."""

    def __reduce__(self) -> Any:
        """Refused: fx traces the code again when it loads, and then factories are constants."""
        raise TypeError(
            "the graph of a program cannot be pickled: fx traces it again when it loads, and what zeros() or "
            "rand() gave then becomes a constant. Use lazytrace.save(), or "
            "torch.export.save(lazytrace.export(...))."
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()


# ---------------------------------------------------------------- which steps are left
def live_steps(
    program: Program, result: Iterable[Any], reads: str
) -> tuple[list[Operation], dict[int, Check]]:
    """The steps that a graph needs, and the checks of their reads by `id` of the step.

    A read of what neither an argument nor the state can change always finds the same, so it is left out with
    all that led to it.
    """
    fixed = _fixed_registers(program)
    checks = {
        id(step): check_of(step)
        for step in program.steps
        if step.reads() and reads != "drop" and any(register not in fixed for register in step.used())
    }
    needed = {leaf for leaf in result if isinstance(leaf, Register)}
    kept: list[Operation] = []
    for step in reversed(program.steps):
        checked = id(step) in checks or (step.sizes and reads != "drop" and not fixed.issuperset(step.used()))
        if _must_stay(step) or checked or any(register in needed for register in step.made()):
            needed.update(step.used())
            kept.append(step)
    return kept[::-1], checks


def _must_stay(step: Operation) -> bool:
    if step.kind in ("opaque", "fill", "requires_grad") or step.effect or step.random:
        return True
    return step.kind == "operator" and not step.reads() and _may_write(step)


def _fixed_registers(program: Program) -> set[Register]:
    """Those that are the same at each call: made of constants, and never written to."""
    fixed: set[Register] = set()
    memory: dict[Register, set[Register]] = {}  # those that may share it
    for step in program.steps:
        used = set(step.used())
        mutable = step.kind != "operator" or (step.kind == "operator" and _may_write(step))
        if step.kind == "operator" and _may_share(step):
            shared = {*used, *step.made()}.union(*(memory.get(one, set()) for one in used))
            memory.update(dict.fromkeys(shared, shared))
        if step.kind == "literal":
            fixed.update(step.made())
        elif step.random or step.kind == "opaque" or not used <= fixed:
            if mutable or step.random:
                fixed -= used.union(*(memory.get(one, set()) for one in used))
        else:
            fixed.update(step.made())
    return fixed


def _may_write(step: Operation) -> bool:
    return bool(step.handle()._schema.is_mutable)


def _may_share(step: Operation) -> bool:
    return any(one.alias_info is not None for one in step.handle()._schema.returns)


# ---------------------------------------------------------------- building
_Wrap = tuple[Any, tuple[Any, ...]]


class GraphBuilder:
    """Writes one program as an fx graph; `names` are those of its placeholders and attributes."""

    def __init__(
        self, program: Program, layout: Layout, *, reads: str = "assert", checks: bool = True
    ) -> None:
        self.program = program
        self.layout = layout
        self.module = torch.nn.Module()
        self.fakes = fake_mode()
        self._reads = reads
        self.checks = checks
        self._regions = 0
        self._names = {capture.name.partition(".")[0] for capture in program.captures}
        self._state = self._all_state()
        self._steps, self._found = live_steps(program, layout.result, reads)
        # Literals are sources beside the registers of the program: their numbers are negative.
        found = [step for step in self._steps if step.literal is not None]
        self.literals = {
            id(step): (Register(-2 - i), self._free(f"literal{i}"), step.literal)
            for i, step in enumerate(found)
        }
        if reads == "refuse":
            self._refuse_reads()

    def used(self, step: Operation) -> Iterator[Register]:
        """The registers that a step takes, its literal among them."""
        yield from step.used()
        if id(step) in self.literals:
            yield self.literals[id(step)][0]

    def _refuse_reads(self) -> None:
        for step in self._steps:
            if id(step) in self._found:
                raise refuse(
                    self.program,
                    f"looks at the value of {step.operator} ({step.place})",
                    "Leave that out of the function, or pass reads='assert'.",
                )

    # ------------------------------------------------------------ tensors that come from outside
    def lifted(self) -> tuple[fx.Graph, list[fx.Node]]:
        """The graph with the state among its placeholders, as torch.export has it, and these placeholders."""
        writer = _Writer(self, fx.Graph())
        state = [writer.placeholder_of_state(one) for one in self.state_in_order()]
        for register, name, literal in self.literals.values():
            capture = Capture(register, name, name, "constant", literal)  # type: ignore[arg-type]
            state.append(writer.placeholder_of_state(capture))
        self._arguments(writer)
        self._finish(writer)
        return writer.graph, state

    def graph_module(self) -> RecordedGraph:
        """The graph with the state as its attributes."""
        writer = _Writer(self, fx.Graph())
        self._arguments(writer)
        for capture in self._state:
            self.attach(capture.name, capture.tensor)
            writer.put(capture.register, writer.attribute(capture.name, capture.tensor))
        for register, name, literal in self.literals.values():
            self.module.register_buffer(name, literal, persistent=False)
            writer.put(register, writer.attribute(name, literal))  # type: ignore[arg-type]
        self._finish(writer)
        layout = self.layout
        writer.graph.set_codegen(pytree_codegen(layout.names, layout.in_spec, layout.out_spec))
        made = RecordedGraph(self.module, writer.graph, class_name="RecordedGraph")
        made.graph.lint()
        if self.checks:
            made.register_forward_pre_hook(Expectations(layout), with_kwargs=True)
        return made

    def state_in_order(self) -> list[Any]:
        """Captured state as torch.export orders it: parameters, buffers, constants."""
        order = {"parameter": 0, "buffer": 1, "constant": 2}
        return sorted(self._state, key=lambda one: order[one.kind])

    def _free(self, name: str) -> str:
        """That name, or one like it, for an attribute of the graph; its state keeps its names."""
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name

    def _all_state(self) -> list[Capture]:
        """All tensors that no call of the graph passes: captures, and defaults of parameters."""
        taken = {leaf.register for leaf in self.layout.leaves}
        found = [one for one in self.program.captures if one.register not in taken]
        defaults = [one for one in self.program.inputs if one.register not in taken]
        return found + [self._captured_default(one) for one in defaults]

    def _captured_default(self, one: Input) -> Capture:
        kind = "parameter" if isinstance(one.tensor, torch.nn.Parameter) else "constant"
        name = self._free(f"default_{identifier(one.path)}")
        return Capture(one.register, one.path, name, kind, one.tensor)

    def _arguments(self, writer: _Writer) -> None:
        known: set[Register] = set()
        for leaf in self.layout.leaves:
            node = writer.placeholder(leaf)
            if leaf.register is not None and leaf.register not in known:
                known.add(leaf.register)
                writer.put(leaf.register, node)

    def _finish(self, writer: _Writer) -> None:
        writer.run(self._steps, self._found)
        writer.output(self.layout.result)

    def attach(self, name: str, tensor: torch.Tensor) -> None:
        """Give the module a tensor by its dotted name."""
        *path, last = name.split(".")
        owner = self.module
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, torch.nn.Module())
            owner = owner._modules[part]  # type: ignore[assignment]
        if isinstance(tensor, torch.nn.Parameter):
            owner.register_parameter(last, tensor)
        else:
            owner.register_buffer(last, tensor)

    def fake(self, meta: Meta | None) -> Any:
        """What stands for a tensor of such a look; None where torch has nothing that does."""
        if meta is None or meta.stride is None:
            return None
        with self.fakes:
            made = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)
        return made.requires_grad_() if meta.requires_grad else made

    def region_name(self) -> str:
        """A name for one more region in other modes."""
        self._regions += 1
        return self._free(f"submod_{self._regions}")

    def wraps(self, modes: Modes) -> list[_Wrap]:
        """What brings the modes about, seen from those at the start, outermost first."""
        start = self.program.modes
        higher = torch.ops.higher_order
        found: list[_Wrap] = [
            (higher.wrap_with_autocast, (device, dtype, True, modes.autocast_cache))
            for device, dtype in modes.autocast
        ]
        grad = modes.grad and not modes.inference
        if grad != (start.grad and not start.inference):
            found.append((higher.wrap_with_set_grad_enabled, (grad,)))
        return found


class _Writer:
    """Writes steps into one graph: that of the program, or of a region in other modes."""

    def __init__(self, builder: GraphBuilder, graph: fx.Graph) -> None:
        self.builder = builder
        self.graph = graph
        self._nodes: dict[Register, fx.Node] = {}

    def put(self, register: Register, node: fx.Node) -> None:
        self._nodes[register] = node

    # ------------------------------------------------------------ from outside
    def placeholder(self, leaf: Leaf) -> fx.Node:
        node = self.graph.placeholder(leaf.name)
        if isinstance(leaf.value, torch.Tensor):
            node.meta["val"] = self._fake_of(leaf.value)
        else:
            node.meta["val"] = leaf.value
        return node

    def placeholder_of_state(self, capture: Any) -> fx.Node:
        prefix = {"parameter": "p", "buffer": "b", "constant": "c"}[capture.kind]
        node = self.graph.placeholder(f"{prefix}_{capture.name.replace('.', '_')}")
        node.meta["val"] = self._fake_of(capture.tensor)
        self.put(capture.register, node)
        return node

    def attribute(self, name: str, tensor: torch.Tensor) -> fx.Node:
        node = self.graph.get_attr(name)
        node.meta["val"] = self._fake_of(tensor)
        return node

    def _fake_of(self, tensor: torch.Tensor) -> Any:
        return fake_of(self.builder.fakes, tensor)

    def _check_look(self, node: fx.Node, shape: Sequence[int], stride: Sequence[int], dtype: Any) -> None:
        check = aten._assert_tensor_metadata.default
        self.graph.call_function(check, (node, list(shape), list(stride), dtype)).meta["val"] = None

    # ------------------------------------------------------------ steps
    def run(self, steps: list[Operation], checks: dict[int, Check]) -> None:
        """All steps, those in other modes as regions of their own."""
        at = 0
        while at < len(steps):
            end = at
            while end < len(steps) and steps[end].modes.key == steps[at].modes.key:
                end += 1
            wraps = self.builder.wraps(steps[at].modes)
            if wraps:
                self._region(steps[at:end], steps[end:], wraps, checks)
            else:
                self.straight(steps[at:end], checks)
            at = end

    def straight(self, steps: list[Operation], checks: dict[int, Check]) -> None:
        for step in steps:
            before = set(self.graph.nodes)
            self._step(step, checks.get(id(step)))
            for node in self.graph.nodes:
                if node not in before:
                    self._say_where(node, step)

    def _region(
        self, steps: list[Operation], later: list[Operation], wraps: list[_Wrap], checks: dict[int, Check]
    ) -> None:
        made = {register for step in steps for register in step.made()} - set(self._nodes)
        wanted = {register for step in later for register in step.used()}
        wanted.update(leaf for leaf in self.builder.layout.result if isinstance(leaf, Register))
        taken = sorted({r for step in steps for r in self.builder.used(step) if r in self._nodes})
        given = sorted(made & wanted)
        inner = self._body(steps, taken, given, checks)
        for higher, args in reversed(wraps[1:]):
            inner = self._wrapped(inner, higher, args, taken, given)
        name = self.builder.region_name()
        self.builder.module.add_module(name, inner)
        call = self._call(name, *wraps[0], [self._nodes[register] for register in taken], inner)
        around = _around(steps)
        call.args[len(wraps[0][1])].meta["nn_module_stack"] = module_stack(around)  # type: ignore[union-attr]
        call.meta["nn_module_stack"] = module_stack(around)
        for i, register in enumerate(given):
            node = self.graph.call_function(operator.getitem, (call, i))
            node.meta["val"] = call.meta["val"][i]
            node.meta["nn_module_stack"] = module_stack(around)
            self.put(register, node)

    def _call(
        self, name: str, higher: Any, args: tuple[Any, ...], inputs: list[fx.Node], inner: fx.GraphModule
    ) -> fx.Node:
        body = self.graph.get_attr(name)
        call = self.graph.call_function(higher, (*args, body, *inputs))
        outputs = next(node for node in inner.graph.nodes if node.op == "output").args[0]
        call.meta["val"] = tuple(node.meta.get("val") for node in outputs)
        return call

    def _body(
        self, steps: list[Operation], taken: list[Register], given: list[Register], checks: dict[int, Check]
    ) -> fx.GraphModule:
        writer = _Writer(self.builder, fx.Graph())
        writer.take(taken, self._nodes)
        writer.straight(steps, checks)
        writer.graph.output(tuple(writer._nodes[register] for register in given))
        return fx.GraphModule(self.builder.module, writer.graph)

    def _wrapped(
        self,
        inner: fx.GraphModule,
        higher: Any,
        args: tuple[Any, ...],
        taken: list[Register],
        given: list[Register],
    ) -> fx.GraphModule:
        writer = _Writer(self.builder, fx.Graph())
        writer.take(taken, self._nodes)
        call = writer._call("body", higher, args, [writer._nodes[register] for register in taken], inner)
        parts = []
        for i in range(len(given)):
            parts.append(writer.graph.call_function(operator.getitem, (call, i)))
            parts[-1].meta["val"] = call.meta["val"][i]
        writer.graph.output(tuple(parts))
        return fx.GraphModule({"body": inner}, writer.graph)

    def take(self, taken: list[Register], outer: dict[Register, fx.Node]) -> None:
        """Placeholders for what comes from the graph around."""
        for register in taken:
            node = self.graph.placeholder(outer[register].name)
            node.meta = dict(outer[register].meta)
            self.put(register, node)

    def _step(self, step: Operation, check: Check | None) -> None:
        if step.kind == "literal":
            self._bind(self._literal(step, aten.clone.default), step)
        elif step.kind == "fill":
            target = self._value(step.arguments[0].value)
            self._made(aten.copy_.default, (target, self._literal(step, None)), {}, step)
        elif step.kind == "data":
            self._bind(
                self._made(aten.detach.default, (self._value(step.arguments[0].value),), {}, step), step
            )
        elif step.kind == "requires_grad":
            self.graph.call_method("requires_grad_", (self._value(step.arguments[0].value),))
        elif step.kind == "opaque":
            self._opaque(step)
        elif step.reads():
            if check is not None:
                check.write(self.graph, self._args(step), step)
        else:
            self._operator(step)

    def _operator(self, step: Operation) -> None:
        node = self._made(step.handle(), *self._args(step), step)
        self._bind(node, step)
        if step.sizes and self.builder.checks:
            for register in step.made():
                meta = next(one.meta for one in _flat(step.results) if one.register == register)
                if meta is not None and meta.stride is not None:
                    self._check_look(self._nodes[register], meta.shape, meta.stride, meta.dtype)

    def _opaque(self, step: Operation) -> None:
        assert step.opaque is not None
        if (custom := custom_operator_of(step.opaque)) is not None:
            state = dict(self.builder.program.state)
            args, kwargs = step.opaque.call.build(self._nodes.__getitem__, state.__getitem__)
            return self._bind(self._made(custom, args, kwargs, step), step)
        target, kept = operator_of(step.opaque, self.builder.program)
        tensors = [self._nodes[register] for register in step.opaque.call.registers()]
        node = self._made(target, (tensors,), {}, step, tuple_of=True)
        node.meta["library"] = kept  # the operator lives as long as a graph has the node
        given = [one for one in step.results if one.kind == "register"]
        for i, result in enumerate(given):
            self._bind_result(self._item(node, i), result)

    def _literal(self, step: Operation, copied: Any) -> fx.Node:
        assert step.literal is not None
        source = self._nodes[self.builder.literals[id(step)][0]]
        return self._made(copied, (source,), {}, step) if copied is not None else source

    def _args(self, step: Operation) -> tuple[tuple[Any, ...], dict[str, Any]]:
        defaults = {one.name: one.default_value for one in step.handle()._schema.arguments}
        args = tuple(self._value(one.value) for one in step.arguments if not one.keyword_only)
        return args, {
            one.name: self._value(one.value)
            for one in step.arguments
            if one.keyword_only and not _is_default(one.value, defaults.get(one.name))
        }

    def _value(self, value: Any) -> Any:
        if isinstance(value, Register):
            return self._nodes[value]
        if isinstance(value, list) and any(isinstance(one, Register) for one in value):
            return [self._nodes[one] if isinstance(one, Register) else one for one in value]
        # A Python number that met a tensor operator: the schema wants the tensor, promotion the number.
        return value.item() if isinstance(value, torch.Tensor) else value

    def _made(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        step: Operation,
        *,
        tuple_of: bool = False,
    ) -> fx.Node:
        name = step.operator.partition("::")[2] if step.kind == "operator" else None
        node = self.graph.create_node("call_function", target, args, kwargs, name)
        values = [self._val(result) for result in step.results]
        node.meta["val"] = (
            values[0] if len(values) == 1 and not tuple_of else tuple(values) if values else None
        )
        return node

    def _val(self, result: Result) -> Any:
        if result.kind == "list":
            return [self._val(one) for one in result.items]
        return self.builder.fake(result.meta)

    def _bind(self, node: fx.Node, step: Operation) -> None:
        if len(step.results) == 1:
            self._bind_result(node, step.results[0])
            return
        for i, result in enumerate(step.results):
            if any(True for _ in result.registers()):
                self._bind_result(self._item(node, i), result)

    def _bind_result(self, node: fx.Node, result: Result) -> None:
        if result.kind == "register" and result.register is not None:
            self._nodes[result.register] = node
        for i, item in enumerate(result.items):
            if item.register is not None:
                self._bind_result(self._item(node, i), item)

    def _item(self, node: fx.Node, index: int) -> fx.Node:
        item = self.graph.call_function(operator.getitem, (node, index))
        value = node.meta.get("val")
        item.meta["val"] = value[index] if isinstance(value, list | tuple) else None
        return item

    def _say_where(self, node: fx.Node, step: Operation) -> None:
        if step.place.file and "stack_trace" not in node.meta:
            file, line, function = step.place
            code = linecache.getline(file, line).strip()
            node.meta["stack_trace"] = f'File "{file}", line {line}, in {function}\n    {code}'
        if "nn_module_stack" not in node.meta:
            node.meta["nn_module_stack"] = module_stack(step.modules)

    def output(self, leaves: list[Any]) -> None:
        self.graph.output(tuple(self._nodes[one] if isinstance(one, Register) else one for one in leaves))


def _is_default(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default) and isinstance(value, PLAIN)


def module_stack(modules: tuple[tuple[str, str, int], ...]) -> dict[str, tuple[str, str]]:
    """The modules around a step, as torch.export writes them: the key tells apart several calls of one.

    >>> module_stack((("net", "my.Net", 1),))
    {'L__self__': ('', 'function'), 'L__self__net@1': ('net', 'my.Net')}
    """
    if not modules or modules[0][0]:
        modules = (("", "function", 0), *modules)
    return {f"L__self__{path}{f'@{call}' if call else ''}": (path, cls) for path, cls, call in modules}


def _around(steps: list[Operation]) -> tuple[tuple[str, str, int], ...]:
    """The modules that all of some steps are in."""
    together = zip(*(step.modules for step in steps), strict=False)
    return tuple(each[0] for each in itertools.takewhile(lambda each: len(set(each)) == 1, together))


def _flat(results: Iterable[Result]) -> Iterator[Result]:
    for result in results:
        yield result
        yield from _flat(result.items)


def obstacles(program: Program) -> Iterator[tuple[str, str]]:
    """(why, advice) of each thing that no graph of the program can do."""
    if program.native.follows_numbers:
        yield (
            "works out numbers while it runs, and a graph needs one recording for each size and number",
            "Trace the function with dynamic=False.",
        )
    for step in program.steps:
        for argument in step.arguments:
            if isinstance(argument.value, Generator):
                why = f"takes random numbers from {argument.value} ({step.place}), which a graph cannot hold"
                yield why, "Draw from torch's own generator."
    for write in program.writes:
        yield f"writes {write.path}, and a graph writes to no Python state", "Return the value instead."
    for step in program.steps:
        if step.kind == "requires_grad" and step.effect:
            yield f"sets requires_grad of a tensor from before the call ({step.place})", "Set it outside."
        if step.kind == "set_data":
            yield f"sets .data of a tensor ({step.place})", "Copy into it instead."
        if step.kind in ("gradient", "set_gradient"):
            what = "reads" if step.kind == "gradient" else "sets"
            yield f"{what} the gradient of a tensor ({step.place})", "Take that out of the function."
        if step.modes.switches:
            names = ", ".join(name for name, _ in step.modes.switches)
            yield f"runs under a switch of its own, {names} ({step.place})", "Set it outside."
    yield from obstacles_of_objects(program)
    known = {id(leaf) for leaf in tree_flatten((program.args, program.kwargs))[0]}
    for capture in program.captures:
        if capture.argument and id(capture.tensor) not in known:
            yield (
                f"takes {capture.path} out of an argument that torch's pytree does not know",
                "Pass the tensor itself, or register the class with torch.export.register_dataclass().",
            )


def graph_of(program: Program, *, reads: str, checks: bool) -> fx.GraphModule:
    """The program as a graph module; see `Program.to_fx`."""
    if reads not in ("assert", "drop", "refuse"):
        raise ValueError(f"reads={reads!r}: it must be 'assert', 'drop' or 'refuse'.")
    for why, advice in obstacles(program):
        raise refuse(program, why, advice)
    return GraphBuilder(program, layout_of(program), reads=reads, checks=checks).graph_module()


__all__ = ["GraphBuilder", "RecordedGraph", "graph_of", "module_stack"]
