"""lazytrace: a decorator-driven lazy tracing runtime for PyTorch."""

from lazytrace.api import traced
from lazytrace.config import Environment as _Environment
from lazytrace.engine import disabled, is_tracing
from lazytrace.errors import (
    CacheLimitError,
    ExtensionWarning,
    LazytraceError,
    LazytraceWarning,
    NotTraceableError,
    OptionError,
    ProofWarning,
    ReplayError,
    UntraceableError,
)
from lazytrace.stats import Snapshot, report, report_at_exit, stats
from lazytrace.steps import opaque, script_if_tracing

__all__ = [
    "CacheLimitError",
    "ExtensionWarning",
    "LazytraceError",
    "LazytraceWarning",
    "NotTraceableError",
    "OptionError",
    "ProofWarning",
    "ReplayError",
    "Snapshot",
    "UntraceableError",
    "disabled",
    "is_tracing",
    "opaque",
    "report",
    "report_at_exit",
    "script_if_tracing",
    "stats",
    "traced",
]

__version__ = "0.1.0"

if _Environment.read().report:
    report_at_exit()
