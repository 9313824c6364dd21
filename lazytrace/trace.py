"""One cached trace: its program, what its call looked like, and how it shows itself."""

from __future__ import annotations

import functools
import itertools
import linecache
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from lazytrace.signature import Description
from lazytrace.stats import Program, Step, signature_line

if TYPE_CHECKING:
    from lazytrace._core import Trace as NativeTrace

_numbers = itertools.count()


@dataclass(eq=False)
class Trace:
    """A recorded program that answers the calls of one signature while its guards hold."""

    native: NativeTrace
    key: bytes
    description: Description
    names: list[str]
    number: int = field(default_factory=lambda: next(_numbers))

    def __post_init__(self) -> None:
        self.native.number = self.number

    @property
    def operators(self) -> int:
        """How many operators a replay runs."""
        return self.native.size

    def listing(self) -> str:
        """The program as text: step, results, operator, arguments, and the user's file and line."""
        inputs = ", ".join(f"r{i}" for i in range(self.native.inputs))
        captures = ", ".join(f"r{reg} = {path}" for path, reg in self._captures())
        head = f"inputs: {inputs or 'none'}" + (f"; state: {captures}" if captures else "")
        lines = [_line(i, row) for i, row in enumerate(self.native.rows())]
        returned = ", ".join(f"r{reg}" for reg in self.native.output_registers())
        return "\n".join([head, *lines, f"return {returned or 'constants'}"])

    def _captures(self) -> list[tuple[str, int]]:
        registers = self.native.captures
        rows = self.native.guard_rows(self.names)
        return [(path, registers[slot]) for path, _, slot in rows if slot >= 0]

    def to_fx(self) -> fx.GraphModule:
        """The program as a `torch.fx.GraphModule` of ATen calls that computes the same.

        Takes the tensors of the arguments in order, then the captured state in the order of `listing()`,
        and returns the tuple of the tensors in the result. Reads and mode switches are not part of it.
        Raises `NotImplementedError` when the program has an opaque Python step, or serves all sizes.
        """
        return _Exporter(self.native).export()

    @functools.cached_property
    def likeness(self) -> int:
        """The same number for traces of one signature whose guards expect the same, as far as words tell."""
        rows = self.native.guard_rows(self.names)
        return hash((self.key, tuple((path, expected) for path, expected, _ in rows)))

    def reads(self) -> tuple[str, ...]:
        """The values in the program that Python looked at, as in `is_nonzero True (train.py:4)`."""
        return self._reads

    @functools.cached_property
    def _reads(self) -> tuple[str, ...]:
        return tuple(_read(row) for row in self.native.rows() if row["results"] and _is_read(row))

    def steps(self) -> tuple[Step, ...]:
        """The steps of the program, each with its line of the user's code."""
        return tuple(_step(i, row) for i, row in enumerate(self.native.rows()))

    def described(self, signature_id: int, instance: int) -> Program:
        """What reports say of this trace; `signature_id` is common to the branches of one signature."""
        rows = self.native.rows()
        literals = [row["literal"] for row in rows if row["literal"] is not None]
        return Program(
            signature_line(self.description),
            signature_id,
            operators=self.operators,
            guards=self.native.guards,
            reads=self.reads(),
            effects=self.native.effects,
            random=self.native.random,
            bytes=sum(literal.nbytes for literal in literals),
            instance=instance,
            steps=self.steps(),
        )

    def __str__(self) -> str:
        return self.listing()


def _value(encoded: tuple[str, Any]) -> str:
    kind, value = encoded
    if kind == "r":
        return f"r{value}"
    if kind == "l":
        return f"[{', '.join('None' if reg < 0 else f'r{reg}' for reg in value)}]"
    if kind == "n":  # worked out by the program
        return value if isinstance(value, str) else f"[{', '.join(value)}]"
    return f"tensor({value.item()})" if isinstance(value, torch.Tensor) and value.ndim == 0 else repr(value)


def _result(encoded: tuple[str, Any, str]) -> str:
    kind, value, meta = encoded
    if kind == "r":
        return f"r{value}: {meta}" if value >= 0 else "_"
    if kind == "l":
        return f"[{', '.join(_result(one) for one in value)}]"
    return f"read {value!r}" if kind == "read" else "_"


def _line(number: int, row: dict[str, Any]) -> str:
    results = ", ".join(_result(one) for one in row["results"])
    name = row["operator"].removeprefix("aten::")
    if row["kind"] == "literal":
        name = f"literal {tuple(row['literal'].shape)}"
    elif row["kind"] != "operator":
        name = f"{row['kind']} {name}"
    elif row["overload"]:
        name += f".{row['overload']}"
    arguments = ", ".join(_value(one) for one in row["arguments"])
    file, line, _ = row["place"]
    place = f"  # {os.path.basename(file)}:{line}" if file else ""
    modes = f"  [{row['modes'] or 'default modes'}]" if row["modes"] is not None else ""
    return f"{number:4d}  {results} = {name}({arguments}){modes}{place}"


def _is_read(row: dict[str, Any]) -> bool:
    return any(result[0] == "read" for result in row["results"])


def _read(row: dict[str, Any]) -> str:
    file, line, _ = row["place"]
    value = next(value for kind, value, _ in row["results"] if kind == "read")
    place = f" ({os.path.basename(file)}:{line})" if file else ""
    return f"{row['operator'].removeprefix('aten::')} {value!r}{place}"


def _step(number: int, row: dict[str, Any]) -> Step:
    file, line, _ = row["place"]
    source = linecache.getline(file, line).strip() if file else ""
    text = _line(number, row).partition("  # ")[0].strip()
    return Step(text, f"{os.path.basename(file)}:{line}" if file else "", source)


class _Exporter:
    """Writes one program as an fx graph."""

    def __init__(self, native: NativeTrace) -> None:
        self._native = native
        self._graph = fx.Graph()
        self._module = torch.nn.Module()
        self._nodes: dict[int, fx.Node] = {}

    def export(self) -> fx.GraphModule:
        for reg in [*range(self._native.inputs), *self._native.captures]:
            self._nodes[reg] = self._graph.placeholder(f"r{reg}")
        for number, row in enumerate(self._native.rows()):
            self._step(number, row)
        self._graph.output(tuple(self._nodes[reg] for reg in self._native.output_registers()))
        return fx.GraphModule(self._module, self._graph)

    def _step(self, number: int, row: dict[str, Any]) -> None:
        if self._native.dynamic:
            raise NotImplementedError(
                "the program works out sizes while it runs; an fx graph needs one recording for each size: "
                "trace the function with dynamic=False"
            )
        if row["kind"] == "opaque":
            raise NotImplementedError(
                f"the program calls {row['operator']}, which stays Python; an fx graph holds ATen calls only"
            )
        if row["kind"] == "literal":
            self._module.register_buffer(f"literal{number}", row["literal"])
            source = self._graph.get_attr(f"literal{number}")
            made = self._graph.call_function(torch.ops.aten.clone.default, (source,))
        elif row["kind"] == "data":
            made = self._graph.call_function(
                torch.ops.aten.detach.default, (self._argument(row["arguments"][0]),)
            )
        elif row["kind"] == "requires_grad":
            target = self._argument(row["arguments"][0])
            self._graph.call_method("requires_grad_", (target,))
            return
        else:
            made = self._operator(row)
        self._bind(made, row["results"])

    def _operator(self, row: dict[str, Any]) -> fx.Node:
        namespace, _, name = row["operator"].partition("::")
        packet = getattr(getattr(torch.ops, namespace), name)
        values = [self._argument(one) for one in row["arguments"]]
        args = [v for v, (_, keyword) in zip(values, row["names"], strict=True) if not keyword]
        kwargs = {n: v for v, (n, keyword) in zip(values, row["names"], strict=True) if keyword}
        return self._graph.call_function(getattr(packet, row["overload"] or "default"), tuple(args), kwargs)

    def _argument(self, encoded: tuple[str, Any]) -> Any:
        kind, value = encoded
        if kind == "r":
            return self._nodes[value]
        if kind == "l":
            return [None if reg < 0 else self._nodes[reg] for reg in value]
        # A Python number that met a tensor operator: the schema wants the tensor, promotion the number.
        return value.item() if isinstance(value, torch.Tensor) else value

    def _bind(self, made: fx.Node, results: list[tuple[str, Any, str]]) -> None:
        if len(results) == 1:
            self._bind_one(made, results[0])
            return
        for i, result in enumerate(results):
            self._bind_one(self._graph.call_function(_item, (made, i)), result)

    def _bind_one(self, made: fx.Node, result: tuple[str, Any, str]) -> None:
        kind, value, _ = result
        if kind == "r" and value >= 0:
            self._nodes[value] = made
        elif kind == "l":
            for i, one in enumerate(value):
                self._bind_one(self._graph.call_function(_item, (made, i)), one)


def _item(values: Any, index: int) -> Any:
    return values[index]
