"""Reports: pure functions of snapshots, as text, tables, JSON, page and Chrome trace."""

from lazytrace.stats.report.compare import increases
from lazytrace.stats.report.document import Process, Report, by_loss, merged
from lazytrace.stats.report.output import (
    Format,
    format_of,
    formatted,
    on_terminal,
    read,
    wants_timed_hits,
    write,
)
from lazytrace.stats.report.text import render

__all__ = [
    "Format",
    "Process",
    "Report",
    "by_loss",
    "format_of",
    "formatted",
    "increases",
    "merged",
    "on_terminal",
    "read",
    "render",
    "wants_timed_hits",
    "write",
]
