"""What becomes of a program beside its replays: data, graphs, exported programs, files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazytrace.later import later

if TYPE_CHECKING:
    import torch

    from lazytrace.programs.program import Program, program_of

__all__ = [
    "Exportable",
    "Program",
    "branch_of",
    "exportable",
    "exported_program",
    "program_of",
    "warn_of_onnx",
]


@dataclass(frozen=True)
class Exportable:
    """Whether a program can be exported; if not, each obstacle with its line. True and false accordingly.

    >>> print(Exportable())
    yes
    >>> print(Exportable(("calls note (train.py:4), which stays Python. Take that out of the function.",)))
    no:
      calls note (train.py:4), which stays Python. Take that out of the function.
    """

    obstacles: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.obstacles

    def __str__(self) -> str:
        return "\n  ".join(["no:", *self.obstacles]) if self.obstacles else "yes"


def exportable(program: Program) -> Exportable:
    """Whether `exported_program` would give something."""
    from lazytrace.programs import exported

    return Exportable(tuple(exported.told_obstacles(program)))


def exported_program(program: Program, shared: Program | None = None) -> torch.export.ExportedProgram:
    """The program for torch's own tools; see `lazytrace.export`.

    `shared` is the program of the same call where tensors share memory, which must compute the same.
    """
    from lazytrace.programs import exported  # takes torch.export, which few calls need

    return exported.exported_program(program, shared)


def warn_of_onnx(program: Program) -> None:
    """Say what the function does and its ONNX model does not, as a `TracerWarning`."""
    from lazytrace.programs import lost

    lost.warn_of(program, "its ONNX model", lost.lost_in_onnx(program), stacklevel=4)


def branch_of(programs: Sequence[Program]) -> Program | None:
    """The program that a call takes, of those whose guards hold; see `lazytrace.programs.branch`."""
    from lazytrace.programs import branch  # takes fx, which few calls need

    return branch.branch_of(programs)


# Few functions are asked for a program.
__getattr__ = later(__name__, dict.fromkeys(("Program", "program_of"), "programs.program"))
