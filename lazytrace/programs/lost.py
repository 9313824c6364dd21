"""What a program does that what is handed on does not."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator

from lazytrace.errors import TracerWarning, handed_on_with_less
from lazytrace.programs.fx import live_steps
from lazytrace.programs.layout import layout_of
from lazytrace.programs.program import Program


def frozen_reads(program: Program) -> Iterator[str]:
    """The values that Python looked at and that another call can change; a graph without assertions has them.

    Each completes "It ...".
    """
    steps, checks = live_steps(program, layout_of(program).result, "assert")
    for step in steps:
        if id(step) in checks:
            yield f"takes {step.reads()[0]!r} for what {step.operator} gives ({step.place})"


def lost_in_onnx(program: Program) -> Iterator[str]:
    """What the function does and its ONNX model does not; each completes "It ..."."""
    yield from frozen_reads(program)
    for step in program.steps:
        if step.random:
            yield f"draws random numbers of its own for {step.operator} ({step.place})"
        if step.kind == "operator" and step.effect:
            yield f"does not write to arguments or state: {step.operator} ({step.place})"


def warn_of(program: Program, what: str, lost: Iterable[str], stacklevel: int = 3) -> None:
    """Give a `TracerWarning`, if anything is lost; the level is that of the caller's caller."""
    told = list(dict.fromkeys(lost))
    if told:
        warnings.warn(handed_on_with_less(program.name, what, told), TracerWarning, stacklevel=stacklevel)
