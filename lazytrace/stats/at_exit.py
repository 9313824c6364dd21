"""The report that is written when the process exits, in forked children too."""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
from dataclasses import dataclass, field
from os import getpid

from lazytrace.stats.process import count_from_now, full_report
from lazytrace.stats.registry import keep_dead, stats, time_hits


@dataclass
class _Plan:
    """Where the report goes, and which process asked for it."""

    target: str = ""
    started_by: int = field(default_factory=os.getpid)


_plan = _Plan()


def report_at_exit(target: bool | str = True) -> None:
    """Write the report when the process exits, or no longer do so.

    `target` is "text" (or True) for stderr, a file that ends with .json, .csv, .html, .trace or .txt, or a
    folder that ends with a slash, where each process writes a file of its own. Until then the counts and the
    programs of each traced function that is gone are kept by themselves, and for .html and .trace hits are
    timed. Writes nothing where no traced function was called.

    >>> report_at_exit()
    >>> report_at_exit(False)
    """
    from lazytrace.stats.report import wants_timed_hits

    # Taken off first, so that asking twice still writes once.
    atexit.unregister(_write_report)
    if _plan.target:
        keep_dead(-1)
    before = _plan.target
    _plan.target = target if isinstance(target, str) else "text" * target
    # Who switched the timing of hits on otherwise goes on having them timed.
    if wants_timed_hits(before) != wants_timed_hits(_plan.target):
        time_hits(wants_timed_hits(_plan.target))
    if not _plan.target:
        return
    _plan.started_by = getpid()
    keep_dead(+1)
    atexit.register(_write_report)
    if _plan.target.endswith("/"):
        multiprocessing.util.register_after_fork(_plan, _started_as_child)


def _started_as_child(_: _Plan) -> None:
    # Children of multiprocessing end without atexit, and start with the counts of their parent.
    count_from_now()
    multiprocessing.util.Finalize(None, _write_report, exitpriority=0)


def _write_report() -> None:
    from lazytrace.stats.report import write

    if any(snapshot.calls for snapshot in stats()):
        child = multiprocessing.parent_process() is not None or getpid() != _plan.started_by
        write(full_report(), _plan.target, child)
