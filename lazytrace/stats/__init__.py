"""Counting: events, counters and snapshots, and the reports made of them."""

from lazytrace.stats.compare import more
from lazytrace.stats.counters import Counters, Program, Retrace, Snapshot, Step
from lazytrace.stats.document import Process, Report, by_loss, merged, since
from lazytrace.stats.events import Event, EventLog, Hit, Reason, brief, said, texts
from lazytrace.stats.output import Format, format_of, formatted, on_terminal, read, write
from lazytrace.stats.patterns import Suggestion, suggestions, wasted
from lazytrace.stats.profiler import CompileProfiler
from lazytrace.stats.registry import (
    Baseline,
    Counted,
    baseline,
    compile_times,
    full_report,
    in_test,
    keep_dead,
    log_events,
    new_log,
    on_event,
    register,
    report,
    report_at_exit,
    start_of_test,
    stats,
    time_hits,
)
from lazytrace.stats.report import render

__all__ = [
    "Baseline",
    "CompileProfiler",
    "Counted",
    "Counters",
    "Event",
    "EventLog",
    "Format",
    "Hit",
    "Process",
    "Program",
    "Reason",
    "Report",
    "Retrace",
    "Snapshot",
    "Step",
    "Suggestion",
    "baseline",
    "brief",
    "by_loss",
    "compile_times",
    "format_of",
    "formatted",
    "full_report",
    "in_test",
    "keep_dead",
    "log_events",
    "merged",
    "more",
    "new_log",
    "on_event",
    "on_terminal",
    "read",
    "register",
    "render",
    "report",
    "report_at_exit",
    "said",
    "since",
    "start_of_test",
    "stats",
    "suggestions",
    "texts",
    "time_hits",
    "wasted",
    "write",
]
