"""What can go wrong: the exceptions and warnings of lazytrace, and the text that each one carries.

A text says what happened, where, and what to do next. The builders live beside the classes so that every
text can be read, and tested word for word, in one place.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable

_LONGEST_VALUE = 80


class LazytraceError(Exception):
    """Base of every exception that lazytrace raises on its own account.

    Exceptions of the traced function itself pass through unchanged and are never of this type.

    >>> issubclass(OptionError, LazytraceError)
    True
    """


class OptionError(LazytraceError, ValueError):
    """An option, or an environment variable, has a value that is not allowed.

    >>> issubclass(OptionError, ValueError)
    True
    """


class NotTraceableError(LazytraceError, TypeError):
    """What was decorated can never be traced: not a callable, a coroutine or a generator function.

    >>> issubclass(NotTraceableError, TypeError)
    True
    """


class UntraceableError(LazytraceError, RuntimeError):
    """A call cannot be replayed, and `on_untraceable="raise"` asked to be told.

    >>> issubclass(UntraceableError, RuntimeError)
    True
    """


class CacheLimitError(LazytraceError, RuntimeError):
    """A call needs one trace more than `cache_limit`, and `on_limit="raise"` asked to be told.

    >>> issubclass(CacheLimitError, RuntimeError)
    True
    """


class ReplayError(LazytraceError, RuntimeError):
    """A replay differed from its recording after it had effects, so it can be neither finished nor undone.

    >>> issubclass(ReplayError, RuntimeError)
    True
    """


class RetraceError(LazytraceError, RuntimeError):
    """A call needs a recording where none may be made: frozen, `on_retrace="raise"` or inside `expect`.

    >>> issubclass(RetraceError, RuntimeError)
    True
    """


class TracingCheckError(LazytraceError, AssertionError):
    """A replay differs from the plain function: what `verify` and `trace` found.

    >>> issubclass(TracingCheckError, AssertionError)
    True
    """


class LazytraceWarning(UserWarning):
    """Base of every warning that lazytrace gives.

    >>> issubclass(ProofWarning, LazytraceWarning)
    True
    """


class ExtensionWarning(LazytraceWarning):
    """The C++ core is missing or was built for another torch: every call runs eagerly.

    >>> issubclass(ExtensionWarning, UserWarning)
    True
    """


class ProofWarning(LazytraceWarning):
    """A replay right after recording gave another result than the eager call: a bug of lazytrace.

    >>> issubclass(ProofWarning, UserWarning)
    True
    """


class RetraceWarning(LazytraceWarning):
    """A function was recorded again with `on_retrace="warn"`, or records more than it can save.

    >>> issubclass(RetraceWarning, UserWarning)
    True
    """


class TracerWarning(LazytraceWarning):
    """What was handed on does not do all that the function does: a value is frozen, for example.

    >>> issubclass(TracerWarning, LazytraceWarning)
    True
    """


def missing_extension(why: str) -> str:
    """Text for `ExtensionWarning`; `why` says what is wrong with the core, without a full stop.

    >>> print(missing_extension("it was built for torch 2.12.0, this is torch 2.13.0"))  # doctest: +ELLIPSIS
    lazytrace._core cannot be used: it was built for torch 2.12.0, this is torch 2.13.0. Every call runs...
    """
    return (
        f"lazytrace._core cannot be used: {why}. "
        "Every call runs eagerly: results are right, nothing is replayed. "
        "To build it, run `python setup.py build_ext --inplace` in the source folder of lazytrace, with this "
        "Python and a C++17 compiler."
    )


def bad_option(name: str, value: object, allowed: str) -> str:
    """Text for an option's bad value; `allowed` completes the sentence "must be ...".

    >>> bad_option("check", 1, "True or False")
    'traced(check=1): check must be True or False. Pass that, or leave check out for its default.'
    """
    return (
        f"traced({name}={_shown(value)}): {name} must be {allowed}. "
        f"Pass that, or leave {name} out for its default."
    )


def unknown_option(name: str, known: Iterable[str]) -> str:
    """Text for an option that does not exist, with the closest of the `known` names where one is close.

    >>> unknown_option("cache_limt", ["cache_limit", "check"])
    "traced() has no option 'cache_limt': did you mean 'cache_limit'? Its options are cache_limit, check."
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f": did you mean {close[0]!r}?" if close else "."
    return f"traced() has no option {name!r}{hint} Its options are {', '.join(names)}."


def not_a_tensor(asker: str, found: object) -> str:
    """Text for a mark on something else than a tensor.

    >>> not_a_tensor("mark_static", [1, 2])
    'mark_static() takes a tensor and dimensions of it, not a list: [1, 2]. Mark the tensors themselves.'
    """
    return (
        f"{asker}() takes a tensor and dimensions of it, not a {type(found).__name__}: {_shown(found)}. "
        "Mark the tensors themselves."
    )


def bad_dimension(asker: str, dim: object, count: int) -> str:
    """Text for a mark on a dimension that a tensor of `count` dimensions does not have.

    >>> bad_dimension("mark_dynamic", 2, 2)
    'mark_dynamic(): 2 is no dimension of a tensor that has 2. Pass ints from -2 to 1, or none for all.'
    """
    allowed = f"ints from {-count} to {count - 1}, or none for all" if count else "none"
    return f"{asker}(): {_shown(dim)} is no dimension of a tensor that has {count}. Pass {allowed}."


def bucket_unknown(function: str, name: str) -> str:
    """Text for buckets of a parameter that the function does not have.

    >>> bucket_unknown("step", "y")
    "traced(buckets=...): step has no parameter 'y'. Name its parameters as they are defined."
    """
    return (
        f"traced(buckets=...): {function} has no parameter {name!r}. Name its parameters as they are defined."
    )


def bucket_result(function: str, dim: int, wanted: int, found: str) -> str:
    """Text for a result that cannot be cut back to the size that the argument had.

    >>> bucket_result("step", 1, 64, "a tensor of sizes [2, 8]")
    "traced(buckets=...): step was called with size 64, and dimension 1 of its result has another: it gave \
a tensor of sizes [2, 8]. Say under 'return' which results have the size, with None for the others."
    """
    return (
        f"traced(buckets=...): {function} was called with size {wanted}, and dimension {dim} of its result "
        f"has another: it gave {found}. Say under 'return' which results have the size, with None for the "
        "others."
    )


def bucket_written(function: str, name: str) -> str:
    """Text for a function that has written to an argument that was padded, which is a copy.

    >>> bucket_written("step", "x")
    "traced(buckets=...): step writes to 'x', which was padded, so that the caller's tensor does not change. \
Return the new values instead."
    """
    return (
        f"traced(buckets=...): {function} writes to {name!r}, which was padded, so that the caller's tensor "
        "does not change. Return the new values instead."
    )


def bad_environment(variable: str, value: str, allowed: str) -> str:
    """Text for an environment variable's bad value; `allowed` completes the sentence "set it to ...".

    >>> bad_environment("LAZYTRACE_REPORT", "maybe", "1 or 0")
    "environment variable LAZYTRACE_REPORT='maybe' is not understood: set it to 1 or 0, or unset it."
    """
    return (
        f"environment variable {variable}={_shown(value)} is not understood: "
        f"set it to {allowed}, or unset it."
    )


def cache_limit(function: str, limit: int, wanted: int) -> str:
    """Text for `CacheLimitError`; `limit` and `wanted` count traces.

    >>> print(cache_limit("step", 2, 3))  # doctest: +ELLIPSIS
    step: cache_limit=2 was reached and this call needs trace 3, with on_limit='raise'. Pass cache_limit=3...
    """
    return (
        f"{function}: cache_limit={limit} was reached and this call needs trace {wanted}, "
        "with on_limit='raise'. "
        f"Pass cache_limit={wanted} or more, or on_limit='evict' or 'eager' to carry on at the limit; "
        "lazytrace.report() says what keeps changing."
    )


def untraceable(function: str, reason: str) -> str:
    """Text for `UntraceableError`; `reason` names what cannot be replayed, and where.

    >>> print(untraceable("step", "calls x.tolist() (train.py:41)"))  # doctest: +ELLIPSIS
    step: this call cannot be replayed, with on_untraceable='raise': calls x.tolist() (train.py:41). Take...
    """
    return (
        f"{function}: this call cannot be replayed, with on_untraceable='raise': {reason}. "
        "Take that out of the function, or pass on_untraceable='eager' to run such calls eagerly."
    )


def retrace_refused(function: str, how: str, reasons: str, where: str) -> str:
    """Text for `RetraceError`; `how` says what forbids the recording, `where` is the line that called.

    >>> print(retrace_refused("step", "is frozen", "x.shape[0] 64 -> 13", "train.py:9"))  # doctest: +ELLIPSIS
    step is frozen, and the call at train.py:9 would be recorded: x.shape[0] 64 -> 13. Undo that change, ...
    """
    called = f"the call at {where}" if where else "this call"
    return (
        f"{function} {how}, and {called} would be recorded: {reasons}. "
        "Undo that change, or make such a call once with lazytrace.warmup() before, "
        "or let the function record: thaw() and on_retrace='record' do."
    )


def retraced(function: str, reasons: str) -> str:
    """Text for `RetraceWarning` with `on_retrace="warn"`.

    >>> retraced("step", "x.shape[0] 64 -> 13")
    "step was recorded again, with on_retrace='warn': x.shape[0] 64 -> 13."
    """
    return f"{function} was recorded again, with on_retrace='warn': {reasons}."


def retraces_waste(function: str, recordings: int, hits: int, seconds: float, cause: str) -> str:
    """Text for `RetraceWarning`, given once per function; `cause` is a sentence on what keeps changing.

    >>> print(retraces_waste("step", 16, 2, 0.031, "k changed 15 times."))  # doctest: +ELLIPSIS
    step was recorded 16 times (31.0 ms) for 2 hits, which cost more than it saved. k changed 15 times. ...
    """
    return (
        f"{function} was recorded {recordings} times ({seconds * 1e3:.1f} ms) for {hits} hits, "
        f"which cost more than it saved. {cause} "
        "lazytrace.report() lists every reason; this warning is given once for each function."
    )


def unexpected_calls(what: str, expected: int, found: int, lines: Iterable[str]) -> str:
    """Text for calls that a block should not have had; `lines` tell of each.

    >>> print(unexpected_calls("trace", 0, 2, ["step: x.shape[0] 64 -> 13 (called at train.py:9)"]))
    expected 0 traces in this block, 2 were recorded:
      step: x.shape[0] 64 -> 13 (called at train.py:9)
    Make such calls before the block, or undo what changed.
    """
    verb = "recorded" if what != "eager call" else "made"
    was = "was" if found == 1 else "were"
    told = "".join(f"\n  {line}" for line in lines)
    plural = what if expected == 1 else f"{what}s"
    return (
        f"expected {expected} {plural} in this block, {found or 'none'} {was} {verb}"
        f"{':' if told else '.'}{told}\n"
        "Make such calls before the block, or undo what changed."
    )


def wrong_traces(function: str, wanted: str, found: int, lines: Iterable[str]) -> str:
    """Text for a function that was recorded another number of times than a test asserts.

    >>> print(wrong_traces("step", "exactly 1", 2, ["step: first call", "step: x.shape[0] 64 -> 13"]))
    step: expected exactly 1 recordings, found 2
      step: first call
      step: x.shape[0] 64 -> 13
    """
    return "\n  ".join([f"{function}: expected {wanted} recordings, found {found}", *lines])


def not_traced(asker: str, obj: object) -> str:
    """Text for `NotTraceableError` where a traced function is needed.

    >>> not_traced("warmup", 3)
    'warmup(3): an object of type int is not traced. Decorate it with lazytrace.traced first.'
    """
    kind = type(obj).__qualname__
    return (
        f"{asker}({_shown(obj)}): an object of type {kind} is not traced. "
        "Decorate it with lazytrace.traced first."
    )


def replay_diverged(function: str, detail: str) -> str:
    """Text for `ReplayError`; `detail` says which step differed, and how.

    >>> print(replay_diverged("step", "step 4 aten::nonzero gave 3 rows, recorded 5"))  # doctest: +ELLIPSIS
    step: the replay differs from its recording: step 4 aten::nonzero gave 3 rows, recorded 5. It had...
    """
    return (
        f"{function}: the replay differs from its recording: {detail}. "
        "It had already changed its inputs, state or random numbers, so the call was stopped halfway. "
        "Restore what the function writes, then call its `.original`, or pass backend='eager' where you "
        "decorate it."
    )


def proof_failed(function: str, detail: str) -> str:
    """Text for `ProofWarning`; `detail` says where replay and eager call differ.

    >>> print(proof_failed("step", "output 0 differs by 0.5"))  # doctest: +ELLIPSIS
    step: a replay right after recording differs from the eager call: output 0 differs by 0.5. The eager...
    """
    return (
        f"{function}: a replay right after recording differs from the eager call: {detail}. "
        "The eager result was returned, and calls with this signature run eagerly from now on. "
        "This is a bug of lazytrace: please report it together with the function."
    )


def graph_refused(function: str, why: str, advice: str) -> str:
    """Text for a program that cannot be told as a graph; `why` completes "the program ...".

    >>> graph_refused("step", "writes self.h", "Return the value instead.")
    'step has no graph for these arguments: the program writes self.h. Return the value instead.'
    """
    return f"{function} has no graph for these arguments: the program {why}. {advice}"


def check_failed(function: str, differences: Iterable[str], listings: str) -> str:
    """Text for `TracingCheckError`; `listings` says how two recordings differ, "" where they do not.

    >>> print(check_failed("step", ["result[0]: dtype float32 and float64"], ""))
    step: plain and replayed differ (first the plain value, then the replay's):
      result[0]: dtype float32 and float64
    Two recordings are alike. If the function is the same at each call, please report this as a bug.
    """
    told = "".join(f"\n  {line}" for line in differences)
    end = (
        f"Two recordings differ, so the function is not the same at each call:\n{listings}"
        if listings
        else "Two recordings are alike. If the function is the same at each call, please report this as a "
        "bug."
    )
    return f"{function}: plain and replayed differ (first the plain value, then the replay's):{told}\n{end}"


def not_held(function: str, call: str, why: object) -> str:
    """Text for a recording that cannot be saved without the arguments of its call.

    >>> print(not_held("step", "x: float32[3]", "k is of type Options"))
    step: no call can be made up for the recording (x: float32[3]): k is of type Options. Pass example_inputs.
    """
    return f"{function}: no call can be made up for the recording ({call}): {why}. Pass example_inputs."


def nothing_held(function: str) -> str:
    """Text for a function without recordings that could be saved.

    >>> nothing_held("step")
    'step has no recording that its state still fits: call it, or pass example_inputs.'
    """
    return f"{function} has no recording that its state still fits: call it, or pass example_inputs."


def not_replayed(function: str, why: str) -> str:
    """Text for a call that should be replayed and is not; `why` names the reasons.

    >>> not_replayed("step", "calls x.tolist() (train.py:41)")
    'step: this call is not replayed, so there is nothing to check or keep: calls x.tolist() (train.py:41).'
    """
    return f"{function}: this call is not replayed, so there is nothing to check or keep: {why}."


def graph_argument(path: str, found: str, wanted: str) -> str:
    """Text for a graph that is called with another kind of argument than it was recorded for.

    >>> graph_argument("x", "float32[4] on cpu", "float32[3] on cpu")
    'x is float32[4] on cpu, and the graph was recorded for float32[3] on cpu: ask for one of such arguments.'
    """
    return f"{path} is {found}, and the graph was recorded for {wanted}: ask for one of such arguments."


def shares_memory() -> str:
    """What an exported program cannot do for arguments that share memory; completes "The program ...".

    >>> shares_memory()[:59]
    'takes another way where arguments share memory, and has an '
    """
    return (
        "takes another way where arguments share memory, and has an input for each when it is exported. "
        "Pass tensors that share none."
    )


def modules_not_timed(function: str, why: str) -> str:
    """Text for a program whose steps cannot be run one by one.

    >>> modules_not_timed("step", "it works out numbers")
    'the modules of step cannot be timed: it works out numbers. Trace a part of it, with dynamic=False.'
    """
    return f"the modules of {function} cannot be timed: {why}. Trace a part of it, with dynamic=False."


def handed_on_with_less(function: str, what: str, lost: Iterable[str]) -> str:
    """Text for `TracerWarning`; each of `lost` is something that `what` does not do.

    >>> print(handed_on_with_less("step", "its graph", ["takes True for what is_nonzero gives (train.py:4)"]))
    step: its graph is not all that the function is. It
      takes True for what is_nonzero gives (train.py:4)
    """
    return "\n  ".join([f"{function}: {what} is not all that the function is. It", *lost])


def export_refused(function: str, obstacles: Iterable[str]) -> str:
    """Text for a program that cannot be exported; each of `obstacles` completes "the program ...".

    >>> print(export_refused("step", ["writes self.h, and so on. Return the value instead."]))
    step cannot be exported for these arguments. The program
      writes self.h, and so on. Return the value instead.
    """
    told = "".join(f"\n  {line}" for line in obstacles)
    return f"{function} cannot be exported for these arguments. The program{told}"


def save_refused(function: str, obstacles: Iterable[str]) -> str:
    """Text for a program that a file cannot hold; each of `obstacles` completes "the program ...".

    >>> print(save_refused("step", ["calls note (a.py:3), which stays Python. Take that out."]))
    step cannot be saved for these arguments. The program
      calls note (a.py:3), which stays Python. Take that out.
    """
    told = "".join(f"\n  {line}" for line in obstacles)
    return f"{function} cannot be saved for these arguments. The program{told}"


def file_refused(path: str, why: str) -> str:
    """Text for `FileError`; `why` says what is wrong with the file.

    >>> file_refused("step.zip", "tensors/3 is missing")
    'step.zip cannot be loaded: tensors/3 is missing. Save it again with this version; see docs/export.md.'
    """
    return f"{path} cannot be loaded: {why}. Save it again with this version; see docs/export.md."


def no_saved_program(function: str, differences: Iterable[str], programs: int) -> str:
    """Text for `LookupError` of a loaded function; `differences` are those to the nearest of its programs.

    >>> no_saved_program("step", ["x.shape [2] -> [3]"], 1)
    'step has no saved program for this call: x.shape [2] -> [3]. It has 1.'
    """
    return f"{function} has no saved program for this call: {', '.join(differences)}. It has {programs}."


def loaded_diverged(function: str, step: int, gave: str) -> str:
    """Text for `ReplayError` of a loaded function that had written to tensors by then.

    >>> loaded_diverged("step", 4, "False")
    'step: step 4 gave False, for which no program was saved, after tensors had been written to.'
    """
    return (
        f"{function}: step {step} gave {gave}, for which no program was saved, after tensors had been "
        "written to."
    )


def missing_package(asker: str, packages: Iterable[str]) -> str:
    """Text for packages that something needs and that are not installed.

    >>> missing_package("lazytrace.onnx", ["onnx", "onnxscript"])
    'lazytrace.onnx needs onnx and onnxscript, which are not installed: pip install onnx onnxscript'
    """
    names = list(packages)
    verb = "is" if len(names) == 1 else "are"
    return f"{asker} needs {' and '.join(names)}, which {verb} not installed: pip install {' '.join(names)}"


def no_such_branch(function: str) -> str:
    """Text for `LookupError` where the arguments take a branch that was not recorded.

    >>> print(no_such_branch("step"))  # doctest: +ELLIPSIS
    step has no program for these arguments: they take a branch that was not recorded. Call it with them...
    """
    return (
        f"{function} has no program for these arguments: they take a branch that was not recorded. "
        "Call it with them first."
    )


def not_callable(obj: object, decorator: str = "traced") -> str:
    """Text for `NotTraceableError` when `obj` cannot be called.

    >>> not_callable(3)
    'traced(3): an object of type int cannot be called. Decorate a function, a method or an nn.Module.'
    """
    kind = type(obj).__qualname__
    return (
        f"{decorator}({_shown(obj)}): an object of type {kind} cannot be called. "
        "Decorate a function, a method or an nn.Module."
    )


def no_forward_of_class() -> str:
    """Text for `NotTraceableError` when the class of a traced module is asked to run its forward.

    >>> no_forward_of_class().partition(": ")[0]
    'a traced module has no forward on its class, where torch.fx.symbolic_trace() looks for it'
    """
    return (
        "a traced module has no forward on its class, where torch.fx.symbolic_trace() looks for it: "
        "trace the plain module, traced.original, or take traced.graph(...), which is an fx graph."
    )


def not_alike(name: str, path: str, expected: str, got: str) -> str:
    """Text for `TypeError` when an opaque function gave something else than it was said to give.

    >>> not_alike("pair", "[0]", "float32[4]", "float32[5]")
    'pair gave float32[5] at [0], and opaque(like=...) expected float32[4]. Correct like, or leave it out.'
    """
    at = f" at {path}" if path else ""
    return f"{name} gave {got}{at}, and opaque(like=...) expected {expected}. Correct like, or leave it out."


def like_holds_no_tensors(like: object) -> str:
    """Text for `OptionError` when `like` of `opaque` is no tensor and no container of tensors.

    >>> like_holds_no_tensors(3)
    'opaque(like=3): like must be a tensor or a container of tensors. Pass that, or leave like out.'
    """
    return (
        f"opaque(like={_shown(like)}): like must be a tensor or a container of tensors. "
        "Pass that, or leave like out."
    )


def coroutine(obj: object) -> str:
    """Text for `NotTraceableError` when `obj` is a coroutine or async generator function.

    >>> print(coroutine(type("fetch", (), {})))  # doctest: +ELLIPSIS
    traced(fetch): an `async def` suspends in the middle of a call, which cannot be recorded. Decorate...
    """
    return (
        f"traced({_named(obj)}): an `async def` suspends in the middle of a call, which cannot be recorded. "
        "Decorate the plain function that it calls between two awaits."
    )


def generator(obj: object) -> str:
    """Text for `NotTraceableError` when `obj` is a generator function.

    >>> print(generator(type("batches", (), {})))  # doctest: +ELLIPSIS
    traced(batches): a generator suspends in the middle of a call, which cannot be recorded. Decorate...
    """
    return (
        f"traced({_named(obj)}): a generator suspends in the middle of a call, which cannot be recorded. "
        "Decorate the plain function that makes one item."
    )


def _shown(value: object) -> str:
    # A broken or endless repr must not hide the error that is being told.
    try:
        text = " ".join(repr(value).split())
    except Exception:
        return f"<{type(value).__qualname__} object>"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _named(obj: object) -> str:
    name = getattr(obj, "__qualname__", None)
    if not isinstance(name, str):
        return _shown(obj)
    code = getattr(obj, "__code__", None)
    if code is None:
        return name
    return f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
