"""Where calls and questions arrive: the methods that the wrappers and the core ask of a traced function."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from lazytrace._native import problem
from lazytrace._torch import is_dynamo_tracing
from lazytrace.engine.attempt import Attempt, exception_of
from lazytrace.engine.decide import (
    Decision,
    after_side_exit,
    before_binding,
    of_arguments,
    while_aside,
    without_trace,
)
from lazytrace.engine.owner import Owner
from lazytrace.engine.store import TraceCache
from lazytrace.engine.timing import time_hits
from lazytrace.errors import no_such_branch, not_held
from lazytrace.explain import candidates
from lazytrace.originals import BUILTINS
from lazytrace.programs import branch_of
from lazytrace.recorded import Trace
from lazytrace.signature import Description, example_of
from lazytrace.stats import Reason, signature_line

if TYPE_CHECKING:
    from lazytrace._core import Call
    from lazytrace.explain import Explanation
    from lazytrace.programs import Program

__builtins__ = BUILTINS


class Engine(Owner):
    """A traced function behind its wrapper: it answers calls, and tells what it would answer."""

    def call(self, instance: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call: a hit, a recording, an eager call or an inlined call, each counted."""
        # Of a traced function that is compiled itself, this is the first frame that torch's compiler sees.
        if is_dynamo_tracing():
            return self.function(*args, **kwargs)
        decision = before_binding(self)
        if decision is not None:
            return self._act(decision, args, kwargs)
        assert self.parameters is not None
        call = self.parameters.bind(self.function, args, kwargs)
        decision = of_arguments(self, call)
        if decision is not None:
            if call is not None and decision.outcome == "eager":
                self._count_unsupported(self.cache_of(instance), call.unsupported, decision.reason)
            return self._act(decision, args, kwargs)
        assert call is not None
        return Attempt(self, self.cache_of(instance), call, args, kwargs).run()

    def go_on(
        self,
        instance: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Call,
        number: int,
        outcome: Any,
    ) -> Any:
        """A call that the core has begun: the trace with this number ran and took a side exit, or raised."""
        return Attempt(self, self.cache_of(instance), call, args, kwargs).run(number, outcome)

    def _count_unsupported(self, cache: TraceCache, why: str, reason: Reason) -> None:
        """A call has no signature: what says why stands for it."""
        key = why.encode()
        refusal = cache.refusals.of(key)
        if refusal is None:
            cache.refusals.refuse(key, reason)
        else:
            refusal.count()
            self.settle(cache, key, reason)

    def _act(self, decision: Decision, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if decision.outcome == "inline":
            self.counters.inlined()
            return self.run(args, kwargs)
        if decision.outcome == "raise":
            raise exception_of(decision, self)
        return self.eager(args, kwargs, decision.reason)

    def __lazytrace_time_hits__(self, enabled: bool) -> None:
        time_hits(self, Engine.call, enabled)

    def __lazytrace_reset__(self) -> None:
        self.frozen = self.warned_of_waste = False
        self.clear()
        self.counters.promised(0)

    # ------------------------------------------------------------ asking
    def explain(self, cache: TraceCache, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
        """What a call would do, and why; nothing runs and nothing is counted."""
        decision, call = before_binding(self), None
        if decision is None:
            assert self.parameters is not None
            call = self.parameters.bind(self.function, args, kwargs)
            decision = of_arguments(self, call) or while_aside(self, cache)
        if decision is not None or call is None:
            return self._explained(decision)
        for trace in cache.traces.matching(call):
            if trace.native.check(call) < 0:
                return self._explained_hit(cache, trace)
        decision = without_trace(self, cache, call.key, cache.refusal_of(call))
        if decision.cause == "untraceable":
            return self._explained(decision)
        return self._explained_miss(decision, Attempt(self, cache, call, args, kwargs))

    def _explained(self, decision: Decision | None) -> Explanation:
        from lazytrace.explain import Explanation

        assert decision is not None
        return Explanation(self.name, decision.outcome, (decision.reason,))

    def _explained_hit(self, cache: TraceCache, trace: Trace) -> Explanation:
        from lazytrace.explain import Explanation

        depends = trace.reads()
        if not depends or trace.native.changes_state:
            return Explanation(self.name, "hit", depends=depends)
        why = Reason("another value", kind="branch")
        other = after_side_exit(self, cache, trace.key, effects=False, branches=0, why=why)
        otherwise = Explanation(self.name, other.outcome, (other.reason,)) if other.reason.path else None
        return Explanation(self.name, "hit", depends=depends, otherwise=otherwise)

    def _explained_miss(self, decision: Decision, attempt: Attempt) -> Explanation:
        from lazytrace.explain import Explanation

        search = attempt.search()
        known = candidates(search.known, search.call, search.words, search.names, search.modes)
        reasons = search.differences(known)
        own = (decision.reason,) if decision.reason.path else ()
        return Explanation(self.name, decision.outcome, (*own, *reasons), known)

    def find(
        self,
        cache: TraceCache,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        receiver: bool,
        root: torch.nn.Module | None,
    ) -> Program:
        """The program of the branch that a call would take; `LookupError` when it would not hit.

        `receiver`: the first argument is the object of a bound method. `root`: the module that names the
        state.
        """
        if self.parameters is None:
            raise LookupError(f"{self.name} has no programs: {problem}")
        call = self.parameters.bind(self.function, args, kwargs)
        traces = cache.traces.matching(call) if call is not None else ()
        found = [trace for trace in traces if call is not None and trace.native.check(call) < 0]
        if call is None or not found:
            raise LookupError(f"{self.name} has no program for these arguments: call it with them first")
        programs = [self._program(trace, call, args, kwargs, receiver, root) for trace in found]
        program = branch_of(programs)
        if program is None:
            raise LookupError(no_such_branch(self.name))
        return program

    def _program(
        self,
        trace: Trace,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        receiver: bool,
        root: torch.nn.Module | None,
    ) -> Program:
        from lazytrace.programs import program_of

        assert self.parameters is not None
        named = self.parameters.named(args, kwargs)
        # In the order of the parameters: so a graph has them, which may be called without their names.
        kwargs = {name: kwargs[name] for name, _ in named if name in kwargs} | kwargs
        return program_of(
            trace,
            call,
            named=named,
            args=args[receiver:],
            kwargs=kwargs,
            positional=self.parameters.positional_names(len(args))[receiver:],
            receiver=named[0][0] if receiver else "",
            root=root,
            spread=self.parameters.spread(kwargs),
        )

    def held(
        self, cache: TraceCache, receiver: tuple[Any, ...], root: torch.nn.Module | None
    ) -> Iterator[Held]:
        """What the traces answer, oldest first; not those whose guards hold no more."""
        for trace in reversed(cache.traces.all()):
            try:
                held = self._held(trace, receiver, root)
            except TypeError as error:
                raise NotImplementedError(
                    not_held(self.name, signature_line(trace.description), error)
                ) from None
            if held is not None:
                yield held

    def _held(self, trace: Trace, receiver: tuple[Any, ...], root: torch.nn.Module | None) -> Held | None:
        assert self.parameters is not None
        args, kwargs = self.parameters.call_of(example_of(trace.description, receiver))
        held = Held(args[len(receiver) :], kwargs, trace.description)
        with held.modes():
            call = self.parameters.bind(self.function, args, kwargs)
            if call is None or call.key_of(trace.native.loose) != trace.key:
                raise TypeError("it was made in other modes than these")
            if trace.native.check(call) >= 0:
                return None
            if trace.native.follows_numbers:
                return held
            return replace(held, program=self._program(trace, call, args, kwargs, bool(receiver), root))


@dataclass(frozen=True)
class Held:
    """A call that looks as the one of a trace did, with zeros in its tensors.

    `program` is that of the trace; None of one that follows sizes or numbers, which is no program for these.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    description: Description = field(repr=False)
    program: Program | None = None

    @contextlib.contextmanager
    def modes(self) -> Iterator[None]:
        """The modes of gradients of that call."""
        inference, grad = (self.description[name] == "True" for name in ("inference_mode", "grad_mode"))
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            yield
