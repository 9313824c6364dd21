"""Counting: events, counters and snapshots, and the reports made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytrace.later import later
from lazytrace.stats.at_exit import report_at_exit
from lazytrace.stats.counters import Counters
from lazytrace.stats.difference import since
from lazytrace.stats.log import EventLog
from lazytrace.stats.metrics import Phases, RecordingMetrics
from lazytrace.stats.model import Event, Hit, Program, Reason, Retrace, Snapshot, Step
from lazytrace.stats.process import compile_times, full_report, report
from lazytrace.stats.profiler import CompileProfiler
from lazytrace.stats.reasons import reason_code
from lazytrace.stats.registry import (
    Baseline,
    Counted,
    baseline,
    clear_recording_metrics,
    keep_dead,
    log_events,
    new_log,
    number_of,
    on_event,
    owners,
    recording_metrics,
    register,
    reset,
    set_recording_metrics_limit,
    stats,
    time_hits,
    watch_recordings,
)
from lazytrace.stats.report import __all__ as _OF_REPORTS
from lazytrace.stats.words import line_of, signature_line, texts

if TYPE_CHECKING:
    from lazytrace.stats.patterns import Suggestion, suggestions, wasted
    from lazytrace.stats.report import (
        Format,
        Process,
        Report,
        by_loss,
        format_of,
        formatted,
        increases,
        merged,
        on_terminal,
        read,
        render,
        write,
    )

__all__ = [
    "Baseline",
    "CompileProfiler",
    "Counted",
    "Counters",
    "Event",
    "EventLog",
    "Format",
    "Hit",
    "Phases",
    "Process",
    "Program",
    "Reason",
    "RecordingMetrics",
    "Report",
    "Retrace",
    "Snapshot",
    "Step",
    "Suggestion",
    "baseline",
    "by_loss",
    "clear_recording_metrics",
    "compile_times",
    "format_of",
    "formatted",
    "full_report",
    "increases",
    "keep_dead",
    "line_of",
    "log_events",
    "merged",
    "new_log",
    "number_of",
    "on_event",
    "on_terminal",
    "owners",
    "read",
    "reason_code",
    "recording_metrics",
    "register",
    "render",
    "report",
    "report_at_exit",
    "reset",
    "set_recording_metrics_limit",
    "signature_line",
    "since",
    "stats",
    "suggestions",
    "texts",
    "time_hits",
    "wasted",
    "watch_recordings",
    "write",
]

# What only those need who ask for it.
__getattr__ = later(
    __name__,
    dict.fromkeys(_OF_REPORTS, "stats.report")
    | dict.fromkeys(("Suggestion", "suggestions", "wasted"), "stats.patterns"),
)
