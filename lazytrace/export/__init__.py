"""What becomes of a program beside its replays: data, graphs, exported programs, files."""

from collections.abc import Sequence

from lazytrace.export.program import Program, program_of

__all__ = ["Program", "branch_of", "program_of"]


def branch_of(programs: Sequence[Program]) -> Program | None:
    """The program that a call takes, of those whose guards hold; see `lazytrace.export.branch`."""
    from lazytrace.export import branch  # takes fx, which few calls need

    return branch.branch_of(programs)
