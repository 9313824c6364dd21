"""A report as data: what was counted in one process or in several, with where it comes from."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from lazytrace.stats.model import Program, Snapshot
from lazytrace.stats.patterns import Suggestion, suggestions

_FORMAT: Final = 1


@dataclass(frozen=True)
class Process:
    """Where a report comes from; `rank` is that of a distributed job, "" outside one.

    >>> Process(pid=7, host="here", rank="1").label
    'rank 1 (here:7)'
    """

    pid: int
    host: str
    rank: str = ""
    command: str = ""
    written: float = 0.0

    @property
    def label(self) -> str:
        """The process in a few words."""
        return f"rank {self.rank} ({self.host}:{self.pid})" if self.rank else f"{self.host}:{self.pid}"

    @classmethod
    def this(cls) -> Process:
        """The process that asks, now.

        >>> Process.this().pid == os.getpid()
        True
        """
        command = " ".join(getattr(sys, "argv", []))
        return cls(os.getpid(), platform.node(), os.environ.get("RANK", ""), command, time.time())


@dataclass(frozen=True)
class Report:
    """What was counted: a snapshot per function, by process.

    `functions[i]` was counted in `processes[owners[i]]`.

    >>> Report.of([Snapshot("step", hits=3)]).functions[0].hits
    3
    """

    functions: tuple[Snapshot, ...]
    processes: tuple[Process, ...]
    owners: tuple[int, ...] = field(default=())

    @classmethod
    def of(cls, snapshots: Sequence[Snapshot]) -> Report:
        """The report of this process.

        >>> len(Report.of([]).processes)
        1
        """
        return cls(tuple(snapshots), (Process.this(),), (0,) * len(snapshots))

    def suggestions(self) -> tuple[Suggestion, ...]:
        """What to do about the patterns that were found."""
        return suggestions(self.functions)

    def called(self) -> tuple[Snapshot, ...]:
        """The functions that were called, the one that lost most time first."""
        return by_loss(self.functions)

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, ready for JSON.

        >>> Report.of([]).as_dict()["lazytrace report"]
        1
        """
        return {
            "lazytrace report": _FORMAT,
            "processes": [{f.name: getattr(one, f.name) for f in fields(one)} for one in self.processes],
            "functions": [
                {"process": owner, **snapshot.as_dict()}
                for owner, snapshot in zip(self.owners, self.functions, strict=True)
            ],
            "suggestions": [{f.name: getattr(s, f.name) for f in fields(s)} for s in self.suggestions()],
        }

    @classmethod
    def from_dict(cls, plain: Any) -> Report:
        """The report behind `as_dict`; raises `ValueError` where it is none, or of another version.

        >>> Report.from_dict(Report.of([Snapshot("step", hits=3)]).as_dict()).functions[0].hits
        3
        """
        if not isinstance(plain, Mapping) or "lazytrace report" not in plain:
            raise ValueError("it holds no report of lazytrace")
        if plain["lazytrace report"] != _FORMAT:
            raise ValueError(f"it was written by another version (format {plain['lazytrace report']})")
        functions = plain["functions"]
        return cls(
            tuple(Snapshot.from_dict(one) for one in functions),
            tuple(Process(**one) for one in plain["processes"]),
            tuple(one["process"] for one in functions),
        )


def by_loss(snapshots: Sequence[Snapshot]) -> tuple[Snapshot, ...]:
    """Those that were called, by the time that they lost, then by calls.

    >>> [s.name for s in by_loss([Snapshot("a", hits=1), Snapshot("b"), Snapshot("c", hits=2)])]
    ['c', 'a']
    """
    return tuple(sorted((s for s in snapshots if s.calls), key=lambda s: (-s.seconds_lost, -s.calls)))


def merged(reports: Sequence[Report]) -> Report:
    """Several reports as one; functions are kept apart by process.

    >>> parts = Report.of([Snapshot("step", hits=3)]), Report.of([Snapshot("step", hits=4)])
    >>> [(merged(parts).owners[i], s.hits) for i, s in enumerate(merged(parts).functions)]
    [(0, 3), (1, 4)]
    """
    functions: list[Snapshot] = []
    processes: list[Process] = []
    owners: list[int] = []
    for report in reports:
        owners += [len(processes) + owner for owner in report.owners]
        functions += report.functions
        processes += report.processes
    return Report(tuple(functions), tuple(processes), tuple(owners))


def branches(programs: Sequence[Program]) -> dict[int, list[Program]]:
    """Programs by signature, each a branch, in the order in which they were recorded.

    >>> list(branches([Program("x: float32[3]", 0), Program("x: float32[3]", 0), Program("k: 2", 1)]))
    [0, 1]
    """
    found: dict[int, list[Program]] = {}
    for program in programs:
        found.setdefault(program.signature_id, []).append(program)
    return found
