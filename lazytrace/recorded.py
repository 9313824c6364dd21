"""One cached trace: its program, what its call looked like, and how it shows itself."""

from __future__ import annotations

import functools
import itertools
import linecache
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from lazytrace.originals import BUILTINS
from lazytrace.signature import Description
from lazytrace.stats import Program, Step, signature_line

if TYPE_CHECKING:
    from lazytrace._core import Trace as NativeTrace

__builtins__ = BUILTINS

_numbers = itertools.count()
_FEW = 8  # numbers that a line of a listing shows one by one

# What may differ between calls that share a trace, as the core has it (Call::Loose): sizes and strides of
# tensors, and the ints and floats that were passed by themselves.
SIZES, NUMBERS = 1, 2


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
        how = [f"backward passes: {self.flat()}"] if self.flat() else []
        if self.native.unguarded:
            how.append(f"promised state: {self.native.unguarded} guards are left out")
        return "\n".join([head, *how, *lines, f"return {returned or 'constants'}"])

    def _captures(self) -> list[tuple[str, int]]:
        registers = self.native.captures
        rows = self.native.guard_rows(self.names)
        return [(path, registers[slot]) for path, _, slot in rows if slot >= 0]

    @functools.cached_property
    def likeness(self) -> int:
        """The same number for traces of one signature whose guards expect the same, as far as words tell."""
        rows = self.native.guard_rows(self.names)
        return hash((self.key, tuple((path, expected) for path, expected, _ in rows)))

    def flat(self) -> str:
        """How its backward passes run: "", "flat", "one node", or why autograd's engine runs them."""
        stage, why = self.native.flat
        return why or stage

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
            flat=self.flat(),
            promised=self.native.unguarded,
            varies=self.varies(),
        )

    def varies(self) -> tuple[str, ...]:
        """The sizes of arguments that may differ between the calls that it answers."""
        if not self.native.loose & SIZES:
            return ()
        fixed = {row["operator"] for row in self.native.rows() if row["kind"] == "read"}
        tensors = [path.removesuffix(".dtype") for path in self.description if path.endswith(".dtype")]
        return tuple(
            f"{path}.shape[{dim}]"
            for register, path in enumerate(tensors)
            for dim in range(int(self.description[f"{path}.ndim"]))
            if f"size(r{register}, {dim})" not in fixed
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
    shown = [_result(one) for one in row["results"]]
    numbers = len(shown) > _FEW and not any(one != "_" for one in shown)
    results = f"{len(shown)} numbers" if numbers else ", ".join(shown)
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
