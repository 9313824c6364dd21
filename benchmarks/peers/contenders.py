"""The contenders on torch's side: how each makes a callable of a function or module, and what it counts."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from peers.cases import Case

EAGER, EAGER_AGAIN = "eager", "eager again"
LAZYTRACE = "lazytrace"
COMPILE = "torch.compile"
COMPILE_EAGER, COMPILE_AOT, COMPILE_INDUCTOR = (f"{COMPILE} {b}" for b in ("eager", "aot_eager", "inductor"))
JIT_TRACE = "torch.jit.trace"

Build = Callable[[Any, tuple[Any, ...], dict[str, Any]], Callable[..., Any]]
"""Makes a callable of a function or module; the arguments are examples for those that want such."""


def plain(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """The function as it is."""
    call: Callable[..., Any] = fn
    return call


def jit_traced(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """Examples of torch.jit.trace are positional or keywords, not both."""
    examples: dict[str, Any] = {"example_inputs": args}
    if kwargs:
        examples = {"example_kwarg_inputs": dict(inspect.signature(fn).bind(*args, **kwargs).arguments)}
    trace: Callable[..., Any] = torch.jit.trace
    traced: Callable[..., Any] = trace(fn, check_trace=False, **examples)
    return traced


def builder(name: str, **options: Any) -> Build:
    """How a contender builds; `options` are those of `torch.compile` or of `traced`."""
    if name in (EAGER, EAGER_AGAIN):
        return plain
    if name == JIT_TRACE:
        return jit_traced
    if name == LAZYTRACE:
        from lazytrace import traced

        return lambda fn, args, kwargs: traced(fn, **options)
    backend = options.pop("backend", name.removeprefix(COMPILE).strip())
    return lambda fn, args, kwargs: torch.compile(fn, backend=backend, **options)


def compiles(name: str) -> bool:
    """Whether a contender is torch.compile."""
    return name.startswith(COMPILE)


def forget(name: str) -> None:
    """Let go of what torch.compile keeps for the process; the others keep nothing."""
    if compiles(name):
        torch._dynamo.reset()


def keep_all(name: str) -> None:
    """Take away the limits on how many graphs torch.compile keeps for one function."""
    if compiles(name):
        settings = torch._dynamo.config
        settings.recompile_limit = settings.accumulated_recompile_limit = 10**6


# ---------------------------------------------------------------- counting
@dataclass
class Counts:
    """How often something was recorded (traced, compiled), and how many calls ran a recording."""

    recordings: int = 0
    replays: int = 0


class CountingBackend:
    """A backend of torch.compile that counts its graphs and their runs, in all threads."""

    def __init__(self, name: str) -> None:
        self.name, self.counts, self.lock = name, Counts(), threading.Lock()

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        """Compile a graph."""
        from torch._dynamo.backends.registry import lookup_backend

        with self.lock:
            self.counts.recordings += 1
        inner = lookup_backend(self.name)(graph, inputs)

        def run(*args: Any) -> Any:
            with self.lock:
                self.counts.replays += 1
            return inner(*args)

        return run


class CountingTracer:
    """torch.jit.trace, with its traces and their calls counted."""

    def __init__(self) -> None:
        self.counts = Counts()

    def __call__(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Trace a function."""
        inner = jit_traced(fn, args, kwargs)
        self.counts.recordings += 1

        def run(*args: Any, **kwargs: Any) -> Any:
            self.counts.replays += 1
            return inner(*args, **kwargs)

        return run


class CountingLazytrace:
    """lazytrace, with its own counts of what it has built."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.build = builder(LAZYTRACE, **options)
        self.made: list[Any] = []

    def __call__(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Trace a function."""
        made = self.build(fn, args, kwargs)
        self.made.append(made)
        return made

    @property
    def counts(self) -> Counts:
        """The sums over all functions built."""
        all_stats = [function.stats() for function in self.made]
        return Counts(sum(s.recordings for s in all_stats), sum(s.hits for s in all_stats))


def counted(name: str, **options: Any) -> tuple[Build, Callable[[], Counts]]:
    """A builder, and what has been recorded and replayed by what it built."""
    if name == JIT_TRACE:
        tracer = CountingTracer()
        return tracer, lambda: tracer.counts
    if name == LAZYTRACE:
        ours = CountingLazytrace(options)
        return ours, lambda: ours.counts
    if compiles(name):
        backend = CountingBackend(name.removeprefix(COMPILE).strip())
        return builder(name, backend=backend, **options), lambda: backend.counts
    return plain, Counts


# ---------------------------------------------------------------- what they are given, and what they give
def fresh(source: str, parameters: int = 0) -> Any:
    """The function or module of a source, with a code object and a class that nothing else has.

    torch.compile keeps its graphs on code objects, so contenders must not share them.
    """

    class Base(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i in range(parameters):
                setattr(self, f"p{i}", nn.Parameter(torch.randn(4)))

    names: dict[str, Any] = {"BASE": Base, "STACK": torch.stack, "CAT": torch.cat, "__name__": "case"}
    exec(compile(source, "case.py", "exec"), names)
    torch.manual_seed(0)
    # Popped: torch.compile holds the globals of what it compiles, which must not then hold the function.
    return names.pop("M")() if "M" in names else names.pop("f")


def fresh_case(case: Case) -> Any:
    """The function or module of a case."""
    return fresh(case.source, case.parameters)


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal but for rounding."""
    if not isinstance(a, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    relative, absolute = (3e-2, 3e-2) if a.dtype == torch.bfloat16 else (1e-2, 1e-3)
    with torch.no_grad():
        return torch.allclose(a.double(), b.double(), relative, absolute)


def must_replay(name: str, call: Any) -> None:
    """Raise where lazytrace has answered no call from a recording: it runs eagerly, and that is not a hit."""
    if name == LAZYTRACE and call.cache_info().hits == 0:
        reasons = ", ".join(call.stats().eager) or "each call is recorded"
        raise RuntimeError(f"not replayed: {reasons}")


def one_thread() -> None:
    """Let operators run in the calling thread only."""
    torch.set_num_threads(1)
