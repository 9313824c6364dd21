"""lazytrace: a decorator-driven lazy tracing runtime for PyTorch."""

import gc as _gc
from typing import TYPE_CHECKING as _TYPE_CHECKING

from lazytrace.later import later as _later

if _TYPE_CHECKING:
    from lazytrace.ahead import Verification, trace, trace_module, verify
    from lazytrace.debugging import write_recordings
    from lazytrace.explain import Explanation
    from lazytrace.keep import export, onnx, save
    from lazytrace.loaded import FileError, Loaded, load
    from lazytrace.stats import Suggestion, suggestions

# What a package makes while it is imported, stays. Importing torch leaves the collector just short of a
# whole collection, and this package's import would pay for looking at all of torch's objects: 70 ms.
_collects = _gc.isenabled()
_gc.disable()
try:
    from lazytrace.api import traced
    from lazytrace.checks import Comparison, checkpoint_params, clone_inputs, preserve_rng_state, same
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
        RetraceError,
        RetraceWarning,
        TracerWarning,
        TracingCheckError,
        UntraceableError,
    )
    from lazytrace.function import Handle, handle
    from lazytrace.marks import mark_dynamic, mark_static
    from lazytrace.stats import (
        CompileProfiler,
        Event,
        Phases,
        Reason,
        RecordingMetrics,
        Snapshot,
        clear_recording_metrics,
        compile_times,
        log_events,
        on_event,
        reason_code,
        recording_metrics,
        report,
        report_at_exit,
        reset,
        set_recording_metrics_limit,
        stats,
        time_hits,
    )
    from lazytrace.steering import expect, warmup
    from lazytrace.steps import opaque, script_if_tracing
finally:
    if _collects:
        _gc.enable()

__all__ = [
    "CacheLimitError",
    "Comparison",
    "CompileProfiler",
    "Event",
    "Explanation",
    "ExtensionWarning",
    "FileError",
    "Handle",
    "LazytraceError",
    "LazytraceWarning",
    "Loaded",
    "NotTraceableError",
    "OptionError",
    "Phases",
    "ProofWarning",
    "Reason",
    "RecordingMetrics",
    "ReplayError",
    "RetraceError",
    "RetraceWarning",
    "Snapshot",
    "Suggestion",
    "TracerWarning",
    "TracingCheckError",
    "UntraceableError",
    "Verification",
    "checkpoint_params",
    "clear_recording_metrics",
    "clone_inputs",
    "compile_times",
    "disabled",
    "expect",
    "export",
    "handle",
    "is_tracing",
    "load",
    "log_events",
    "mark_dynamic",
    "mark_static",
    "on_event",
    "onnx",
    "opaque",
    "preserve_rng_state",
    "reason_code",
    "recording_metrics",
    "report",
    "report_at_exit",
    "reset",
    "same",
    "save",
    "script_if_tracing",
    "set_recording_metrics_limit",
    "stats",
    "suggestions",
    "time_hits",
    "trace",
    "trace_module",
    "traced",
    "verify",
    "warmup",
    "write_recordings",
]

__version__ = "0.1.0"

# Imported when they are asked for: they would take a fifth of the time of importing this package.
__getattr__ = _later(
    __name__,
    dict.fromkeys(("Verification", "trace", "trace_module", "verify"), "ahead")
    | dict.fromkeys(("export", "onnx", "save"), "keep")
    | dict.fromkeys(("FileError", "Loaded", "load"), "loaded")
    | dict.fromkeys(("Suggestion", "suggestions"), "stats")
    | {"Explanation": "explain", "write_recordings": "debugging"},
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_environment = _Environment.read()
if _environment.report:
    report_at_exit(_environment.report)
log_events(*_environment.log)
if _environment.debug:
    from lazytrace.debugging import write_recordings

    write_recordings(_environment.debug)
