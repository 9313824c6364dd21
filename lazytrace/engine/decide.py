"""What becomes of a call: decided here once, acted on by `Attempt` and shown by `explain`.

Nothing here runs the function, counts or changes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from lazytrace._native import core, problem
from lazytrace.engine.switches import inside_other_tracer, is_disabled
from lazytrace.originals import BUILTINS
from lazytrace.stats import Reason
from lazytrace.stats.reasons import say

if TYPE_CHECKING:
    from lazytrace._core import Call
    from lazytrace.engine.owner import Owner
    from lazytrace.engine.store import Refusal, TraceCache

__builtins__ = BUILTINS

Outcome = Literal["hit", "record", "resume", "eager", "raise", "inline"]
Cause = Literal["", "untraceable", "limit", "retrace", "branches", "rest"]


class Decision(NamedTuple):
    """What becomes of a call, and what says so.

    `outcome` is "hit", "record", "resume" (after a side exit the rest is recorded), "eager", "raise" or
    "inline" (into the recording that is under way). `cause` is the kind of `reason`, and with "raise" of the
    exception. A "resume" with a reason runs without being kept.
    """

    outcome: Outcome
    reason: Reason = Reason("")
    cause: Cause = ""


def eager_reason(code: str, *values: object) -> Reason:
    """A reason for an eager call, from the table in `stats.reasons`.

    >>> str(eager_reason("raised", "ValueError"))
    'raised ValueError'
    """
    return Reason(say(code, *values), kind="eager")


ELSEWHERE: Final = Decision("eager", eager_reason("recorded-elsewhere"))
CHANGED_MEANWHILE: Final = Decision("eager", eager_reason("changed-meanwhile"))
OUTGROWN: Final = eager_reason("outgrown")
FROZEN: Final = Reason("frozen", kind="limit")
NO_RETRACE: Final = Reason("on_retrace='raise'", kind="limit")

_INLINE: Final = Decision("inline", eager_reason("inlined"))
_OTHER_TRACER: Final = Decision("eager", eager_reason("other-tracer"))
_DISABLED: Final = Decision("eager", eager_reason("disabled"))
_EAGER_BACKEND: Final = Decision("eager", eager_reason("backend-eager"))
_DO_NOT_FIT: Final = Decision("eager", eager_reason("do-not-fit"))
_RECORD: Final = Decision("record")


def before_binding(owner: Owner) -> Decision | None:
    """What becomes of any call now, whatever its arguments; None when they decide."""
    if problem:
        return Decision("eager", Reason(problem, kind="eager"))
    if core.is_recording():
        return _INLINE
    if inside_other_tracer():
        return _OTHER_TRACER
    if is_disabled():
        return _DISABLED
    return _EAGER_BACKEND if owner.options.backend == "eager" else None


def of_arguments(owner: Owner, call: Call | None) -> Decision | None:
    """What becomes of a call whose arguments have no signature; None when they have one."""
    if call is None:
        return _DO_NOT_FIT  # the function says so itself
    return untraceable(owner, Reason(call.unsupported, kind="eager")) if call.unsupported else None


def untraceable(owner: Owner, reason: Reason) -> Decision:
    """A call that cannot be replayed."""
    return Decision(owner.options.on_untraceable, reason, "untraceable")


def at_limit(owner: Owner, cache: TraceCache) -> Decision:
    """A call that needs more traces than fit."""
    assert owner.options.on_limit != "evict"
    reason = Reason(say("cache-limit", cache.limit), kind="limit")
    return Decision(owner.options.on_limit, reason, "limit")


def without_trace(owner: Owner, cache: TraceCache, key: bytes, refusal: Refusal | None) -> Decision:
    """A call that no trace answers; `refusal` says why its signature was not recorded before."""
    if refusal is not None and (owner.frozen or not refusal.due()):
        return untraceable(owner, refusal.reason)
    bounded = owner.options.on_limit != "evict"
    if bounded and cache.traces.full():
        return at_limit(owner, cache)
    if key in cache.claims:
        return ELSEWHERE
    if bounded and cache.booked_up():
        return at_limit(owner, cache)
    forbidden = _retraces_forbidden(owner)
    if forbidden is not None and (owner.frozen or len(cache.traces)):
        return Decision("raise", forbidden, "retrace")
    if cache.retreat.resting():
        return _rests(cache)
    return _RECORD


def while_aside(owner: Owner, cache: TraceCache) -> Decision | None:
    """What becomes of a call whose traces are better not asked, as their replays end in side exits."""
    return _rests(cache) if not owner.frozen and cache.retreat.aside() else None


def _rests(cache: TraceCache) -> Decision:
    return Decision("eager", cache.retreat.reason(), "rest")


def after_side_exit(
    owner: Owner, cache: TraceCache, key: bytes, *, effects: bool, branches: int, why: Reason
) -> Decision:
    """A call whose replay came to a value that no trace has a branch for.

    `effects` says that the replay has changed something: the call must then be finished, kept or not.
    `branches` counts the values that there is a branch for, `why` is the one that differed.
    """
    full = cache.traces.full() and owner.options.on_limit != "evict"
    if full and not effects:
        return at_limit(owner, cache)
    many = branches >= owner.options.exit_limit or len(cache.traces.find(key)) >= owner.options.branch_limit
    if many or not cache.retreat.branches_pay(key):
        return Decision("resume", too_many_branches(why), "branches")
    if full:
        return Decision("resume", at_limit(owner, cache).reason, "limit")
    forbidden = _retraces_forbidden(owner)
    if forbidden is None:
        return Decision("resume")
    if effects:
        code = "frozen" if forbidden is FROZEN else "retrace-refused"
        return Decision("resume", eager_reason(code, why), "retrace")
    return Decision("raise", forbidden, "retrace")


def too_many_branches(newest: Reason) -> Reason:
    """Says that a signature takes too many ways.

    >>> str(too_many_branches(Reason("result of item", "1", "2", "branch")))
    'too many branches: result of item 1 -> 2; a @script_if_tracing function keeps them in one program'
    """
    return eager_reason("too-many-branches", newest)


def how_forbidden(reason: Reason) -> str:
    """What forbids a retrace, to go on after the function's name.

    >>> how_forbidden(FROZEN), how_forbidden(NO_RETRACE)
    ('is frozen', "has on_retrace='raise'")
    """
    return "is frozen" if reason is FROZEN else f"has {reason}"


def _retraces_forbidden(owner: Owner) -> Reason | None:
    if owner.frozen:
        return FROZEN
    return NO_RETRACE if owner.options.on_retrace == "raise" else None
