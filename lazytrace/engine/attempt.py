"""One call that is no plain hit: it is replayed, resumed, recorded, refused or run."""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lazytrace._native import available, core
from lazytrace.callsite import Site, call_site
from lazytrace.engine.decide import (
    CHANGED_MEANWHILE,
    ELSEWHERE,
    OUTGROWN,
    Decision,
    after_side_exit,
    at_limit,
    eager_reason,
    how_forbidden,
    too_many_branches,
    while_aside,
    without_trace,
)
from lazytrace.engine.owner import Owner
from lazytrace.engine.recording import Finished, Recorded, place, record
from lazytrace.engine.store import TraceCache, makes_state
from lazytrace.engine.switches import total_limit
from lazytrace.engine.total import evict_over
from lazytrace.errors import (
    CacheLimitError,
    ProofWarning,
    ReplayError,
    RetraceError,
    UntraceableError,
    cache_limit,
    proof_failed,
    replay_diverged,
    retrace_refused,
    retraced,
    untraceable,
)
from lazytrace.explain import Search, failed_guard
from lazytrace.marks import any_dynamic
from lazytrace.originals import BUILTINS
from lazytrace.recorded import NUMBERS, SIZES, Trace
from lazytrace.signature import Parameters, describe, root_names
from lazytrace.stats import Reason, line_of
from lazytrace.stats.reasons import say

if TYPE_CHECKING:
    from lazytrace._core import Call, Miss, Resume
    from lazytrace._core import Trace as NativeTrace

__builtins__ = BUILTINS

_KEPT = Reason("")
# Why an attribute is better set at once than when a replay ends.
_WRITES_OVER = ("opaque-rewrites", "opaque-after-write", "opaque-varies")
# With fewer traces of one signature, what activation checkpointing calls is watched.
_WATCHED = 3
# So many are asked which numbers may change with sizes, as calls of one structure may take other ways.
_ASKED_OF_NUMBERS = 4


def exception_of(
    decision: Decision, owner: Owner, wanted: int = 0, why: str = "", site: str = ""
) -> Exception:
    """The exception of a decision to raise; `wanted` counts traces, `why` says what differs, `site` where."""
    if decision.cause == "limit":
        return CacheLimitError(cache_limit(owner.name, owner.options.cache_limit, wanted))
    if decision.cause == "retrace":
        return RetraceError(retrace_refused(owner.name, how_forbidden(decision.reason), why, site))
    return UntraceableError(untraceable(owner.name, str(decision.reason)))


class Attempt:
    """What is known of one call: how it binds, the traces of its signature, and how they missed."""

    __slots__ = ("_differing", "_restarts", "_traces", "args", "cache", "call", "key", "kwargs", "owner")

    def __init__(
        self, owner: Owner, cache: TraceCache, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.owner = owner
        self.cache = cache
        self.call = call
        self.key = call.key
        self.args = args
        self.kwargs = kwargs
        self._traces: tuple[Trace, ...] = ()
        self._restarts = 0
        # The first guard that did not hold, or the newest value that differed; put in words when asked for.
        self._differing: tuple[Trace | None, Miss] | None = None

    @property
    def parameters(self) -> Parameters:
        """How calls bind; a call that got here has been bound."""
        assert self.owner.parameters is not None
        return self.owner.parameters

    # ------------------------------------------------------------ matching
    def run(self, number: int = -1, outcome: Any = None) -> Any:
        """The result of the call; the trace with this `number` has run already, and ended with `outcome`."""
        aside = while_aside(self.owner, self.cache) if number < 0 else None
        if aside is not None:
            return self._act(aside)
        self._traces = self.cache.traces.matching(self.call)
        asked = self._to_ask(number)
        for at, trace in enumerate(asked):
            ran = trace is None or trace.number == number
            result = self._unraised(outcome) if ran else self._replay(trace)
            if type(result) is not core.Miss:
                return self._hit(trace, result)
            self._missed(trace, result)
            if result.resume is not None:
                try:
                    if not self._fits_others(trace, result, asked[at + 1 :]):
                        return self._resume(result, result.resume)
                finally:
                    # Whatever comes next is in no region of autocast that this replay has entered.
                    result.resume.leave_region()
        self._refuse_many_branches()
        return self._without_trace()

    def _fits_others(self, trace: Trace | None, miss: Miss, left: tuple[Trace | None, ...]) -> bool:
        """Whether one for all sizes is left, which may know the way that one for these alone has not gone.

        What has run by then has changed nothing, and runs again.
        """
        exact = trace is not None and not trace.native.loose & SIZES and not miss.effects
        return exact and any(one is not None and one.native.loose & SIZES for one in left)

    def _to_ask(self, number: int) -> tuple[Trace | None, ...]:
        """The traces from that with this number on; None stands for it when it has been dropped meanwhile."""
        if number < 0:
            return self._traces
        begin = next((i for i, trace in enumerate(self._traces) if trace.number == number), -1)
        return self._traces[begin:] if begin >= 0 else (None, *self._traces)

    def _replay(self, trace: Trace | None) -> Any:
        assert trace is not None
        try:
            return trace.native.replay(self.call)
        except BaseException as error:
            self._raised(error)
            raise

    def _unraised(self, outcome: Any) -> Any:
        if type(outcome) is not core.Raised:
            return outcome
        try:
            outcome.rethrow()
        except BaseException as error:
            self._raised(error)
            raise

    def _raised(self, error: BaseException) -> None:
        # How long it ran is not known: a clock would have to be read at every hit.
        reason = eager_reason("raised", type(error).__name__)
        self.owner.gave_up(self.key, call_site(), reason, perf_counter())

    def _hit(self, trace: Trace | None, result: Any) -> Any:
        self.owner.counters.hit()
        if type(result) is core.Branched:
            self.cache.traces.branched(self._key_of(trace), result.trace)
            return result.result
        if trace is not None:
            self.cache.traces.used(trace)
            if self._differing is not None and self._differing[1].step >= 0:
                self.cache.traces.answered_late(trace)
        return result

    def _key_of(self, trace: Trace | None) -> bytes:
        """What the traces beside this one are stored under."""
        return trace.key if trace is not None else self.key

    def _missed(self, trace: Trace | None, miss: Miss) -> None:
        if self._differing is None or miss.step >= 0:
            self._differing = trace, miss
        if miss.step < 0 or miss.resume is not None:
            return
        # Of sizes that are marked there may be as many as there is room for.
        self._restarts += trace is None or trace.number != miss.trace or miss.step >= trace.native.fixed
        if miss.effects:
            row = self._row(trace, miss)
            operator = f"{row['operator']} ({place(row['place'])})" if row is not None else "an operator"
            raise self._stop(f"{operator} gave {miss.found}")

    def _stop(self, detail: str) -> ReplayError:
        """The error of a call that can neither go on nor begin anew, the last of its kind to be replayed."""
        self.cache.stop(self.call, eager_reason("stopped-halfway", detail))
        return ReplayError(replay_diverged(self.owner.name, detail))

    def _refuse_many_branches(self) -> None:
        if self._restarts >= self.owner.options.exit_limit:
            why = self._why()
            assert why is not None
            trace, miss = self._differing if self._differing is not None else (None, None)
            key = self._key_of(trace)
            if not self._stop_following(key, trace.native.loose if trace is not None else 0, miss):
                self.cache.refuse_for_good(self.key, too_many_branches(why))

    def _stop_following(self, key: bytes, loose: int, miss: Miss | None) -> bool:
        """Whether the number that took too many ways was followed, and is followed no more.

        `key` is what the trace that came to it is stored under, `loose` what else that fits.
        """
        at = self._trace_of(miss) if miss is not None and miss.step >= 0 else None
        state, arguments = at.native.numbers_behind(miss.step) if at is not None and miss else ([], [])
        if state:
            self.cache.fix_state(self.call, key, state)
        elif loose:
            numbers = arguments or not loose & SIZES
            self.cache.keep_exact(self.call, loose, NUMBERS if numbers and loose & NUMBERS else SIZES)
        return bool(state or loose)

    # ------------------------------------------------------------ deciding
    def _without_trace(self) -> Any:
        refusal = self.cache.refusal_of(self.call)
        decision = without_trace(self.owner, self.cache, self.key, refusal)
        if refusal is not None and not self.owner.frozen:
            refusal.count()
        if decision.outcome != "record":
            return self._act(decision)
        if not self.cache.claims.begin(self.key):
            return self._act(ELSEWHERE)
        try:
            # Another thread may have recorded this very call since the traces were asked, or be about to take
            # the last place.
            unchanged = (
                self.cache.traces.matching(self.call) == self._traces
                and self.cache.refusal_of(self.call) is refusal
            )
            if unchanged and (self.owner.options.on_limit == "evict" or not self.cache.overbooked()):
                return self._record_steadily()
        finally:
            self.cache.claims.end(self.key)
        return self._act(at_limit(self.owner, self.cache)) if unchanged else self._again()

    def _again(self) -> Any:
        return Attempt(self.owner, self.cache, self.call, self.args, self.kwargs).run()

    def _act(self, decision: Decision) -> Any:
        """Do what was decided of a call that is neither replayed nor recorded."""
        wanted = 0
        if decision.cause == "limit":
            wanted, exact = self.cache.want(self.key)
            self.owner.counters.wanted(wanted, exact)
        if decision.outcome == "raise":
            retrace = decision.cause == "retrace"
            why = line_of(self.search().before()) if retrace else ""
            raise exception_of(decision, self.owner, wanted, why, str(call_site()) if retrace else "")
        try:
            return self._eagerly(decision.reason, self.key)
        finally:
            if decision.cause == "rest":
                self.cache.rest(self.owner.count_natively(decision.reason))
            elif decision.cause == "untraceable":
                self.owner.settle(self.cache, self.key, decision.reason)

    def _eagerly(self, reason: Reason, key: bytes | None = None) -> Any:
        # What the function drops from a list that it was given goes when it is due.
        self.call.let_go()
        return self.owner.eager(self.args, self.kwargs, reason, key)

    def _resume(self, miss: Miss, resume: Resume) -> Any:
        """Go on after a side exit: what the replay has done is fed to the function, and the rest recorded."""
        why = self._why()
        assert why is not None
        at = self._trace_of(miss)
        key = at.key if at is not None else self.call.key_of(resume.loose)
        outgrown = self._says_sizes(at, miss, resume.measured) and self._outgrown(resume.loose)
        follows = self._shall_follow_sizes(resume.loose)
        outgrown |= follows and miss.effects
        if outgrown:
            self.cache.traces.drop(key)  # the next call is recorded for all sizes
        if follows and not miss.effects:
            resume.leave_region()
            return self._without_trace()
        decision = after_side_exit(
            self.owner, self.cache, key, effects=miss.effects, branches=resume.branches, why=why
        )
        if decision.outcome != "resume":
            resume.leave_region()
            return self._act(decision)
        claimed = self.cache.claims.begin(self.key)
        self._pass_defaults()
        unkept = decision.reason if claimed else ELSEWHERE.reason
        try:
            return self._record(resume, OUTGROWN if outgrown else unkept, key)
        except core.Diverged as divergence:
            detail = say("other-way", divergence)
            if miss.effects or divergence.wrote:
                raise self._stop(detail) from None
        finally:
            if claimed:
                self.cache.claims.end(self.key)
            if decision.cause == "branches" and not self._stop_following(key, resume.loose, miss):
                self.cache.refuse_for_good(key, decision.reason)
        return self._eagerly(Reason(detail, kind="eager"))

    def _says_sizes(self, at: Trace | None, miss: Miss, branches: int) -> bool:
        """Whether what differed says how large a result is.

        A few numbers that do may have branches of their own.
        """
        return at is not None and (at.native.gives_sizes(miss.step) or self._measures(at, miss, branches))

    def _measures(self, at: Trace, miss: Miss, branches: int) -> bool:
        return 2 * branches >= self.owner.options.exit_limit and at.native.measures(miss.step)

    def _start_to_follow_sizes(self) -> None:
        """Where it would be recorded from its start for each number that says how large a result is."""
        _, miss = self._differing if self._differing is not None else (None, None)
        at = self._trace_of(miss) if miss is not None and miss.step >= 0 else None
        if at is None or miss is None or not self._measures(at, miss, self._restarts):
            return
        if self._outgrown(at.native.loose):
            self.cache.traces.drop(at.key)

    # ------------------------------------------------------------ recording
    def _record_steadily(self) -> Any:
        """Record a call whose defaults may be assigned by another thread before the function reads them."""
        return self._record() if self._pass_defaults() else self._act(CHANGED_MEANWHILE)

    def _pass_defaults(self) -> bool:
        """Pass the defaults as arguments; whether the call is still the same."""
        args, kwargs = self.parameters.explicit(self.args, self.kwargs)
        if len(args) != len(self.args) or len(kwargs) != len(self.kwargs):
            again = self.parameters.bind(self.owner.function, args, kwargs)
            if again is None or again.key != self.key:
                return False
            self.call, self.args, self.kwargs = again, args, kwargs
        return True

    def _record(self, resume: Resume | None = None, unkept: Reason = _KEPT, key: bytes = b"") -> Any:
        search, site = self.search(), call_site()
        reasons = search.before()
        if resume is None:
            self._start_to_follow_sizes()
        if search.known and not unkept.path and self.owner.options.on_retrace == "warn":
            self.owner.warn(retraced(self.owner.name, line_of(reasons)), site)
        self.owner.log.remember(self.key, search.words)
        start = perf_counter()
        loose = resume.loose if resume is not None else self._looseness()
        state = self._followed_state(search.names, loose, fed=resume is not None)
        lengths = self.parameters.lengths(self.args, self.kwargs)
        recorded = self._run_recording(resume, loose, state, search.names, site, start)
        self.parameters.note_changed(lengths)
        native, trace, reason = recorded.native, None, unkept
        if native is not None:
            key = key or (self.key if recorded.wrong or unkept.path else self._key_for(native, loose))
            trace = Trace(native, key, search.words, search.names)
        if unkept.path:
            self.owner.gave_up(self.key, site, unkept, start)
        elif trace is None or recorded.wrong:
            reason = Reason(recorded.reason, kind="eager", where=recorded.where)
            self.owner.gave_up(self.key, site, reason, start)
            self._reject(recorded, reason, resume, loose, site)
        else:
            self._keep(trace, search, reasons, start, recorded.seconds, site)
        self._measure(recorded, trace, reason, start, site, bool(search.known))
        if self.owner.log.watched():
            self._tell(recorded, trace)
        return recorded.result

    def _tell(self, recorded: Recorded, trace: Trace | None) -> None:
        """Tell who watches recordings of this one."""
        events = self.owner.log.events()
        named = self.parameters.named(self.args, self.kwargs)
        finished = Finished(
            self.owner.name,
            trace,
            self.call,
            self.parameters,
            named,
            self.args,
            self.kwargs,
            recorded.result,
            recorded.wrong,
            events[-1] if events else None,
        )
        self.owner.log.tell(finished)

    def _measure(
        self,
        recorded: Recorded,
        trace: Trace | None,
        unkept: Reason,
        start: float,
        site: Site,
        retrace: bool,
    ) -> None:
        stored = trace is not None and not unkept.path
        self.owner.log.measured(
            start,
            recorded.seconds,
            recorded.phases,
            stored=stored,
            reason="" if stored else str(unkept),
            where=str(site),
            operators=trace.operators if trace is not None else 0,
            guards=trace.native.guards if trace is not None else 0,
            cache_size=len(self.cache.traces),
            retrace=retrace,
        )

    def _looseness(self) -> int:
        """What may differ between calls that the recording shall fit: sizes, numbers, both or nothing."""
        wanted, call, known = self.owner.options.dynamic, self.call, self.cache
        # Tensors in state have sizes, too, though the key of a call that has no others is the same for all.
        allowed = ~known.shapes.exact(call.structure) & (call.loose_in(SIZES | NUMBERS) | SIZES)
        if wanted is False:
            return 0
        loose = known.shapes.meet(call.structure, (call.measures, (call.numbers, call.constants)))
        for other in (SIZES, NUMBERS, SIZES | NUMBERS):
            if call.loose_in(other) == other and known.traces.find(call.key_of(other)):
                loose |= other
        trace, miss = self._differing if self._differing is not None else (None, None)
        if trace is not None and miss is not None and miss.step < 0:
            loose |= SIZES * trace.native.differs_in_size(miss.node, call)
            # State that it carries from call to call, as the cache of a decoder: it may grow.
            loose |= SIZES * trace.native.carries(miss.node)
            if loose & allowed & SIZES and not call.loose_in(SIZES):
                known.shapes.follow_sizes(call.structure)  # no key will show that they were followed
        loose |= SIZES * any_dynamic(call.tensors)
        loose = allowed if wanted else loose & allowed
        return loose | SIZES * self._shall_follow_sizes(loose)

    def _outgrown(self, loose: int) -> bool:
        """Whether sizes can be followed, now that values have said that a result has another size."""
        structure, shapes = self.call.structure, self.cache.shapes
        # Tensors in state have sizes, too.
        if self.owner.options.dynamic is False or (loose | shapes.exact(structure)) & SIZES:
            return False
        shapes.follow_sizes(structure)
        return True

    def _shall_follow_sizes(self, loose: int) -> bool:
        """Whether numbers say how large results are, which what is `loose` does not fit."""
        shapes, structure = self.cache.shapes, self.call.structure
        return not (loose | shapes.exact(structure)) & SIZES and shapes.follows_sizes(structure)

    def _key_for(self, native: NativeTrace, loose: int) -> bytes:
        """What a new trace is stored under."""
        if not native.sized or loose & SIZES:
            return self.call.key_of(loose)
        # It fits no other numbers, and the next recording no other sizes, if it does not follow them.
        self.cache.shapes.follow_sizes(self.call.structure)
        return self.key

    def _follows_numbers(self) -> bool:
        """Whether the recording shall follow what `item()` gives."""
        return self.owner.options.dynamic is not False and not self.cache.shapes.is_plain(self.call.structure)

    def _followed_state(self, names: list[str], loose: int, *, fed: bool) -> tuple[str, ...]:
        """The paths of the numbers in state that the recording shall follow: those that have differed.

        What is `fed` knows them as they were, so that they are followed from the next recording on.
        """
        if self.owner.options.dynamic is False:
            return ()
        known, structure = self.cache.shapes, self.call.structure
        trace, miss = self._differing if self._differing is not None else (None, None)
        before = known.state(structure)
        if miss is not None and miss.step >= 0:
            # Another way from there may be known, but for a number in state that was another then.
            for other in self._traces:
                if other.number != miss.trace:
                    known.follow_state(structure, other.native.differing_numbers(self.call, names))
        elif trace is not None:
            known.follow_state(structure, trace.native.differing_numbers(self.call, names))
        elif loose:
            # What was recorded for other sizes was not asked. Numbers in state have changed with these, or
            # will: they are sizes.
            for other in self.cache.traces.of_structure(structure)[:_ASKED_OF_NUMBERS]:
                known.follow_state(structure, other.native.differing_numbers(self.call, names))
                known.follow_state(structure, other.native.sizing_numbers(names))
        return before if fed else known.state(structure)

    def _watches_blocks(self, loose: int) -> bool:
        """Whether the recording shall watch what activation checkpointing calls.

        Guards for what that reads are worth it where they seldom fail.
        """
        known = self.cache.traces.find(self.call.key_of(loose))
        return len(known) < _WATCHED and not self.cache.shapes.leaves_blocks(self.call.structure)

    def _run_recording(
        self,
        resume: Resume | None,
        loose: int,
        state: tuple[str, ...],
        names: list[str],
        site: Site,
        start: float,
    ) -> Recorded:
        try:
            return record(
                self.call,
                self.owner.function,
                self.args,
                self.kwargs,
                check=self.owner.options.check,
                key_now=partial(_key, self.owner, self.args, self.kwargs),
                resume=resume,
                ignore=self.owner.options.ignore,
                loose=loose,
                numbers=self._follows_numbers(),
                state=state,
                fixed=self.cache.shapes.fixed(self.call.structure),
                names=names,
                blocks=self._watches_blocks(loose),
                turns=self.cache.shapes.keeps_turns(self.call.structure),
                whole_operators=self.cache.shapes.takes(self.call.structure, "whole operators"),
                early=self.cache.shapes.takes(self.call.structure, "early stores"),
            )
        except core.Diverged:
            raise
        except BaseException as error:
            reason = eager_reason("raised", type(error).__name__)
            self.owner.gave_up(self.key, site, reason, start)
            if isinstance(error, Exception):  # an interrupt says nothing of the next call
                self.cache.retreat.raised()
            raise

    def _keep(
        self,
        trace: Trace,
        search: Search,
        reasons: tuple[Reason, ...],
        start: float,
        seconds: float,
        site: Site,
    ) -> None:
        self.owner.counters.wanted(*self.cache.want(trace.key, trace))
        branch = self._differing is not None and self._differing[1].step >= 0
        judged = not self.owner.counters.warming
        self.cache.add(trace, judged=judged, reasons=reasons, branch=branch)
        self.owner.log.recorded(
            start,
            seconds,
            trace.native.size,
            reasons,
            retrace=bool(search.known),
            where=str(site),
            key=trace.key,
            instance=self.cache.instance,
        )
        self.owner.warn_of_waste(site)
        if total_limit:
            evict_over(total_limit, trace)

    def _reject(
        self, recorded: Recorded, reason: Reason, resume: Resume | None, loose: int, site: Site
    ) -> None:
        if recorded.wrong:
            self.owner.counters.proof_failed()
            self.owner.warn(proof_failed(self.owner.name, recorded.wrong), site, ProofWarning)
        options = self.owner.options
        structure, key = self.call.structure, self.call.key_of(loose)
        about_sizes = recorded.reason_code.startswith("sizes-")
        if recorded.stiff and self.cache.shapes.fix_state(structure, recorded.stiff):
            # The next recording does not follow these, as the first one did not.
            return self.cache.refusals.forget(self.key)
        if recorded.turned and self.cache.shapes.take_turn(structure, recorded.turned):
            # Something that was made lazily, it seemed at first, and is taken away again.
            return self.cache.refusals.forget(self.key)
        if recorded.failed_in_operator and self.cache.shapes.take(structure, "whole operators"):
            # The next recording does not look into their kernels.
            self.cache.traces.drop(key)
            return self.cache.refusals.forget(self.key)
        written_over = recorded.may_store_early and recorded.reason_code in _WRITES_OVER
        if written_over and self.cache.shapes.take(structure, "early stores"):
            self.cache.traces.drop(key)
            return self.cache.refusals.forget(self.key)
        # Anything else may be state that is made when it is first asked for.
        to_blame = recorded.failed_in_block and recorded.reason_code.startswith("block-")
        if recorded.watched and self.cache.shapes.leave_blocks(structure, to_blame=to_blame):
            # The next recording has them as steps, and looks at nothing inside.
            return self.cache.refusals.forget(self.key)
        if options.dynamic is not False and self.cache.shapes.follow_state(structure, recorded.varying):
            # The next recording follows what this one has changed.
            return self.cache.refusals.forget(self.key)
        if not loose and about_sizes:
            return self.cache.shapes.keep_plain(structure)
        # An entry of a cache is there the next time that this size comes, and so is an optimizer's state.
        innocent = (
            recorded.reason_code == "cached-function"
            or makes_state(reason)
            or (not about_sizes and self.cache.shapes.refused_for(structure, reason))
        )
        if not loose and resume is None:
            self.cache.shapes.refuse(structure, reason)
        kept = any(trace.native.loose & SIZES >= loose & SIZES for trace in self.cache.traces.find(key))
        if loose and not innocent and (about_sizes or not kept):
            # The next call is recorded for its own sizes and numbers, and refused if need be.
            return self.cache.keep_exact(self.call, loose, NUMBERS if loose & NUMBERS else SIZES)
        if recorded.failed_behind_change and self.cache.shapes.take(structure, "anew"):
            return self.cache.traces.drop(key)
        if resume is not None:  # the other branches stay, unless this one is taken again and again
            self.cache.refuse_branch(key, reason, options.exit_limit)
            return
        tried = self.cache.refusals.of(self.key) is not None
        self.cache.refusals.refuse(self.key, reason)
        if options.on_untraceable == "raise":
            raise exception_of(Decision("raise", reason, "untraceable"), self.owner)
        if not self.owner.counters.warming:
            self.cache.retreat.refused(reason, again=tried)

    # ------------------------------------------------------------ in words
    def search(self) -> Search:
        """The differences of this call to the traces that are known now."""
        named, ambient = self.parameters.named(self.args, self.kwargs), core.describe_ambient()
        words, names = describe(named, ambient), root_names(self.owner.name, named)
        why = self._why()
        same_key = self.cache.traces.matching(self.call)
        mismatch = (why,) if why is not None else None
        missed_by = same_key[0] if mismatch and same_key else None
        evicted = self.cache.traces.has_evicted(self.key)
        return Search(self.cache.traces.all(), self.call, words, names, ambient, mismatch, missed_by, evicted)

    def _why(self) -> Reason | None:
        """What keeps the call from the trace that was nearest to answering it; None when none was asked."""
        if self._differing is None:
            return None
        trace, miss = self._differing
        if miss.step >= 0:
            return self._other_value(trace, miss)
        assert trace is not None  # what the core hands over has run
        names = root_names(self.owner.name, self.parameters.named(self.args, self.kwargs))
        return failed_guard(trace.native.explain(miss.node, self.call, names))

    def _other_value(self, trace: Trace | None, miss: Miss) -> Reason:
        row = self._row(trace, miss)
        if row is None:
            return Reason("result of a step whose trace was dropped meanwhile", "", miss.found, "branch")
        old = (row["results"] or [("none", None, "")])[0]
        was = repr(old[1]) if old[0] == "read" else "the recorded shape"
        name = row["operator"].removeprefix("aten::")
        return Reason(f"result of {name}", was, miss.found, "branch", place(row["place"]))

    def _row(self, trace: Trace | None, miss: Miss) -> dict[str, Any] | None:
        """The step of a miss, which another trace than the one asked may have come to; None: that is gone."""
        at = self._trace_of(miss) or trace
        return at.native.row(miss.step) if at is not None and at.number == miss.trace else None

    def _trace_of(self, miss: Miss) -> Trace | None:
        return next((one for one in self._traces if one.number == miss.trace), None)


if available():
    # The frames that these leave in a traceback are none of the program's.
    core.configure_replaying([Attempt._replay, Attempt._unraised])


def _key(owner: Owner, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | None:
    assert owner.parameters is not None
    call = owner.parameters.bind(owner.function, args, kwargs)
    return call.key if call is not None else None
