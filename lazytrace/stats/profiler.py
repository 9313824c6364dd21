"""What was counted inside a block: the difference of two snapshots of every function."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Any

from lazytrace.originals import BUILTINS
from lazytrace.stats.difference import since
from lazytrace.stats.model import Snapshot
from lazytrace.stats.registry import Baseline, baseline, keep_dead

__builtins__ = BUILTINS

_METRICS = ("calls", "hits", "recordings", "retraces", "eager_calls", "inlined", "evictions")
_TIMES = ("seconds_recording", "seconds_eager")


class CompileProfiler:
    """Counts what happens inside a `with` block, in all threads, as dynamo's profiler of that name does.

    >>> import torch
    >>> from lazytrace import traced
    >>> step = traced(lambda x: x * 2, name="step")
    >>> with CompileProfiler() as profiler:
    ...     _ = step(torch.ones(2)), step(torch.ones(2)), step(torch.ones(3))
    >>> profiler.get_metrics()["recordings"], profiler.get_metrics()["retraces"]
    (2, 1)
    """

    def __init__(self) -> None:
        self._before: Baseline = {}
        self._after: Baseline | None = None

    def __enter__(self) -> CompileProfiler:
        # Functions that are gone by the end of the block were called all the same.
        keep_dead(+1)
        self._before, self._after = baseline(), None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._after = baseline()
        keep_dead(-1)

    def snapshots(self) -> tuple[Snapshot, ...]:
        """The counts of each function that was called in the block, so far or until its end."""
        after = self._after if self._after is not None else baseline()
        found = (since(self._before.get(number), snapshot) for number, snapshot in after.items())
        return tuple(snapshot for snapshot in found if snapshot.calls)

    def get_metrics(self) -> dict[str, Any]:
        """Totals by name, and under "functions" the same for each function.

        >>> CompileProfiler().get_metrics()["functions"]
        {}
        """
        from lazytrace.stats.report import by_loss

        found = by_loss(self.snapshots()) if self._before or self._after else ()
        totals = {name: sum(getattr(s, name) for s in found) for name in (*_METRICS, *_TIMES)}
        each: dict[str, Counter[str]] = {}
        for s in found:
            # Functions of one name are told of together.
            each.setdefault(s.name, Counter()).update({name: getattr(s, name) for name in totals})
        return {**totals, "functions": {name: dict(counts) for name, counts in each.items()}}

    def report(self, width: int | None = None) -> str:
        """The report on the block, as text; `width` in characters bounds its table.

        >>> with CompileProfiler() as profiler:
        ...     pass
        >>> profiler.report()
        'lazytrace: no traced function was called\\n'
        """
        from lazytrace.stats.report import render

        return render(self.snapshots(), width)
