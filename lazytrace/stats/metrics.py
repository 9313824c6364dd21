"""What one recording took and gave: its phases, and the size of what was stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Phases(NamedTuple):
    """The seconds of one recording by phase.

    `run`: the function ran under recorder and observer. `verdict`: the program was made, or found to be none.
    `lowering`: of that, the passes worked out how it is run, shorter ways for its steps above all; not part
    of `verdict` here. `proof`: it was replayed once and compared.

    >>> sum(Phases(0.5, 0.25, 0.125, 0.125))
    1.0
    """

    run: float = 0.0
    verdict: float = 0.0
    lowering: float = 0.0
    proof: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordingMetrics:
    """One recording, of whatever function.

    `time` is its start in seconds since the epoch, `seconds` what the call took, `phases` what of it each
    phase took. `outcome` is "stored", or "given up" for the `reason`. `operators` is the size of the graph,
    `guards` how much it asks of state, `cache_size` how many traces its cache held then. `retrace` says that
    its owner had a recording before, `where` is the line that called.

    >>> RecordingMetrics("step", 0.0, 0.5, Phases(run=0.25), "stored", operators=3).phases.run
    0.25
    """

    function: str
    time: float
    seconds: float
    phases: Phases
    outcome: Literal["stored", "given up"]
    reason: str = ""
    where: str = ""
    operators: int = 0
    guards: int = 0
    cache_size: int = 0
    retrace: bool = False
