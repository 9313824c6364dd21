"""What a file of saved programs says, put together call by call."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from inspect import Parameter
from typing import Any

import torch

from lazytrace._native import core
from lazytrace.errors import save_refused
from lazytrace.function import Handle
from lazytrace.originals import BUILTINS
from lazytrace.programs import saved
from lazytrace.programs.program import Capture, Program

__builtins__ = BUILTINS


class Saving:
    """The programs of one function on their way into a file."""

    def __init__(self, include_state: bool) -> None:
        self._include_state = include_state
        self._blobs = saved.Blobs([])
        self._state: dict[str, Capture] = {}
        self._programs: list[Any] = []
        self._last: tuple[Iterable[Parameter] | None, Container[str], Program] | None = None

    def add(self, handle: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the program that a call runs. Raises `NotImplementedError` when a file cannot hold it."""
        program = handle.program(*args, **kwargs)
        named = handle.arguments(*args, **kwargs)
        self.add_program(program, named, handle.parameters(), handle.unread())

    def add_program(
        self,
        program: Program,
        named: list[tuple[str, Any]],
        parameters: Iterable[Parameter] | None,
        unread: Container[str],
    ) -> None:
        """Take a program, of a call that passes `named` to those `parameters` that are not `unread`.

        Raises what `add` raises.
        """
        self._last = parameters, unread, program
        signature = self._signature(program, named)
        self._programs.append(saved.encode_program(program, self._blobs, self._state, signature))

    def _signature(self, program: Program, named: list[tuple[str, Any]]) -> dict[str, Any]:
        try:
            found = saved.describe_arguments(named)
        except TypeError as error:
            advice = "Only tensors and plain values in containers can be passed to a loaded function."
            raise NotImplementedError(
                save_refused(program.name, [f"takes an argument: {error}. {advice}"])
            ) from None
        leaves = saved.leaves_of(named)
        found["inputs"] = _positions(program, leaves)
        found["ambient"] = {name: str(value) for name, value in core.describe_ambient().items()}
        return found

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file."""
        assert self._last is not None
        parameters, unread, program = self._last
        self._take_rest(program)
        root = program.root
        state = [[name, one.kind, one.persistent, row] for name, one, row in self._rows()]
        description = {
            "format": saved.FORMAT,
            "torch": torch.__version__,
            "function": program.name,
            "training": root.training if root is not None else False,
            "parameters": saved.encode_parameters(parameters, unread, self._blobs),
            "programs": self._programs,
            "state": state,
        }
        saved.write(path, description, self._blobs)

    def _take_rest(self, program: Program) -> None:
        """All that the state_dict of the module has, in its order, also what no program takes."""
        if program.root is None:
            return
        taken, self._state = self._state, {}
        for name, tensor in program.root.state_dict(keep_vars=True).items():
            if isinstance(tensor, torch.Tensor):
                kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
                self._state[name] = taken.pop(name, Capture(saved.NOWHERE, name, name, kind, tensor))
        self._state.update(taken)

    def _rows(self) -> Iterator[tuple[str, Capture, dict[str, Any]]]:
        known: dict[Any, tuple[str, dict[str, Any]]] = {}
        for name, one in self._state.items():
            t = one.tensor
            place = (t.untyped_storage().data_ptr(), t.storage_offset(), t.shape, t.stride(), t.dtype)
            found = known.get((one.kind, place)) if t.numel() else None
            if found is None:
                row = self._row(one)
                known[one.kind, place] = name, row
            else:
                first = self._state[found[0]].tensor
                row = {**found[1], "requires_grad": t.requires_grad, "tied": found[0], "same": t is first}
            yield name, one, row

    def _row(self, capture: Capture) -> dict[str, Any]:
        by_reference = not self._include_state and capture.kind != "constant"
        try:
            row = self._blobs.add(capture.tensor, stored=not by_reference)
        except TypeError as error:
            assert self._last is not None
            why = f"holds {capture.path}, {error}. Keep a dense one."
            raise NotImplementedError(save_refused(self._last[2].name, [why])) from None
        return {**row, "requires_grad": capture.tensor.requires_grad}


def _positions(program: Program, leaves: list[Any]) -> list[int]:
    """Which leaf each input of the program is."""
    found: list[int] = []
    for one in program.inputs:
        taken = set(found)
        at = [i for i, leaf in enumerate(leaves) if leaf is one.tensor and i not in taken]
        found.append(at[0] if at else next(i for i, leaf in enumerate(leaves) if leaf is one.tensor))
    return found
