"""Counting: events, counters and snapshots, and the reports made of them."""

from lazytrace.stats.counters import Counters, Program, Retrace, Snapshot, Step
from lazytrace.stats.events import Event, EventLog, Hit, Reason, brief, said, texts
from lazytrace.stats.patterns import Suggestion, suggestions, wasted
from lazytrace.stats.registry import (
    Counted,
    log_events,
    new_log,
    on_event,
    register,
    report,
    report_at_exit,
    stats,
)
from lazytrace.stats.report import render

__all__ = [
    "Counted",
    "Counters",
    "Event",
    "EventLog",
    "Hit",
    "Program",
    "Reason",
    "Retrace",
    "Snapshot",
    "Step",
    "Suggestion",
    "brief",
    "log_events",
    "new_log",
    "on_event",
    "register",
    "render",
    "report",
    "report_at_exit",
    "said",
    "stats",
    "suggestions",
    "texts",
    "wasted",
]
