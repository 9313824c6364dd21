"""Reports: pure functions of snapshots, as text, tables, JSON, page and Chrome trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytrace.later import later

if TYPE_CHECKING:
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

_WHERE = {
    "Format": "output",
    "Process": "document",
    "Report": "document",
    "by_loss": "document",
    "format_of": "output",
    "formatted": "output",
    "increases": "compare",
    "merged": "document",
    "on_terminal": "output",
    "read": "output",
    "render": "text",
    "wants_timed_hits": "output",
    "write": "output",
}
__getattr__ = later(__name__, {name: f"stats.report.{module}" for name, module in _WHERE.items()})
