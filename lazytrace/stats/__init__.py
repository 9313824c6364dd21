"""Counting: events, counters and snapshots, and the reports made of them."""

from lazytrace.stats.counters import Counters, Retrace, Snapshot
from lazytrace.stats.registry import Counted, register, report, report_at_exit, stats
from lazytrace.stats.report import render

__all__ = [
    "Counted",
    "Counters",
    "Retrace",
    "Snapshot",
    "register",
    "render",
    "report",
    "report_at_exit",
    "stats",
]
