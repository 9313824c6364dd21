"""lazytrace: a decorator-driven lazy tracing runtime for PyTorch."""

import gc as _gc

# What a package makes while it is imported, stays. Importing torch leaves the collector just short of a
# whole collection, and this package's import would pay for looking at all of torch's objects: 70 ms.
_collects = _gc.isenabled()
_gc.disable()
try:
    from lazytrace.ahead import Verification, trace, trace_module, verify
    from lazytrace.api import traced
    from lazytrace.checks import Comparison, checkpoint_params, clone_inputs, preserve_rng_state, same
    from lazytrace.config import Environment as _Environment
    from lazytrace.debugging import write_recordings
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
    from lazytrace.explain import Explanation
    from lazytrace.function import Handle, handle
    from lazytrace.keep import export, onnx, save
    from lazytrace.loaded import FileError, Loaded, load
    from lazytrace.marks import mark_dynamic, mark_static
    from lazytrace.stats import (
        CompileProfiler,
        Event,
        Phases,
        Reason,
        RecordingMetrics,
        Snapshot,
        Suggestion,
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
        suggestions,
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

_environment = _Environment.read()
if _environment.report:
    report_at_exit(_environment.report)
log_events(*_environment.log)
if _environment.debug:
    write_recordings(_environment.debug)
