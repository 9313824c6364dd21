"""The search for what keeps a call from its nearest trace, over the rows that the core gives."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazytrace.explain.differences import changes, failed_guard, is_loose_value, is_size, nearest
from lazytrace.originals import BUILTINS
from lazytrace.recorded import NUMBERS, Trace
from lazytrace.signature import Description
from lazytrace.stats import Reason

if TYPE_CHECKING:
    from lazytrace._core import Call
    from lazytrace.explain.words import Candidate

__builtins__ = BUILTINS

AGAIN = Reason("recorded again after an eviction", kind="limit")
FIRST = Reason("first call", kind="first")
UNKNOWN = Reason("no difference found (a bug of lazytrace: please report it)", kind="unknown")


def guard_reasons(trace: Trace, call: Call, names: list[str]) -> tuple[Reason, ...]:
    """All guards of a trace that a call fails; () when all hold."""
    failed = trace.native.explain_all(call, names)
    if not failed and call.key_of(trace.native.loose) == trace.key:
        # What is checked of all values together, such as which are one object, is no guard of its own. Those
        # of another signature may be of any kind.
        node = trace.native.check(call)
        failed = [trace.native.explain(node, call, names)] if node >= 0 else []
    return tuple(dict.fromkeys(failed_guard(row) for row in failed))


def against(
    trace: Trace, call: Call, words: Description, names: list[str], modes: Container[str]
) -> tuple[Reason, ...]:
    """Every difference between a call and a trace: what the signature holds, then the state."""
    found = changes(trace.description, words, modes) + guard_reasons(trace, call, names)
    # What it fits is no reason beside another one.
    return tuple(reason for reason in found if not _fits(trace, reason)) or found


def _fits(trace: Trace, reason: Reason) -> bool:
    if trace.native.dynamic and is_size(reason.path):
        return True
    return bool(trace.native.loose & NUMBERS) and reason.kind == "value" and is_loose_value(reason)


def candidates(
    traces: Iterable[Trace], call: Call, words: Description, names: list[str], modes: Container[str]
) -> tuple[Candidate, ...]:
    """All traces with what keeps the call from hitting them, the nearest first, the newest of equals."""
    from lazytrace.explain.words import Candidate

    found = [Candidate(trace.number, against(trace, call, words, names, modes)) for trace in traces]
    return tuple(sorted(found, key=lambda candidate: len(candidate.reasons)))


@dataclass
class Search:
    """The differences of one call to the traces that are known when it is made.

    `mismatch` is what the match found: guards that failed, or a value that differed, under the very same
    signature. Otherwise the nearest signature is asked. `evicted` says that a trace of this very signature
    was dropped at the limit.
    """

    known: list[Trace]
    call: Call
    words: Description
    names: list[str]
    modes: Container[str]
    mismatch: tuple[Reason, ...] | None = None
    missed_by: Trace | None = None
    evicted: bool = False

    def before(self) -> tuple[Reason, ...]:
        """What is known of the reasons before the function runs."""
        if not self.known:
            return (FIRST,)
        if self.mismatch is not None:
            if self.missed_by is None or self.mismatch[0].kind == "branch":
                return self.mismatch
            return guard_reasons(self.missed_by, self.call, self.names) or self.mismatch
        # Of equals the newest, and the known ones come newest first.
        closest = nearest(self.words, [trace.description for trace in self.known])
        trace = next(trace for trace in self.known if trace.description is closest)
        found = against(trace, self.call, self.words, self.names, self.modes)
        return found or (self._without_difference(),)

    def differences(self, known: Sequence[Candidate]) -> tuple[Reason, ...]:
        """The same from candidates that have been compared already, the nearest first."""
        if not known:
            return (FIRST,)
        return known[0].reasons or (self._without_difference(),)

    def _without_difference(self) -> Reason:
        return AGAIN if self.evicted else UNKNOWN
