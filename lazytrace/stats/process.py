"""The report on this process, of whatever format, from what is registered."""

from __future__ import annotations

import sys
from typing import Literal, overload

from lazytrace.stats.difference import since
from lazytrace.stats.registry import Baseline, baseline, stats
from lazytrace.stats.report import Format, Report, formatted, on_terminal

# What a forked child had from its parent.
_inherited: Baseline = {}


def count_from_now() -> None:
    """Leave what has been counted so far out of full reports: it is another process's."""
    _inherited.update(baseline())


def full_report() -> Report:
    """Everything that is known of this process, programs included.

    >>> len(full_report().processes)
    1
    """
    found = baseline(programs=True)
    return Report.of([since(_inherited.get(number), snapshot) for number, snapshot in found.items()])


def report(width: int | None = None, *, format: Format = "text") -> str:
    """The report on every traced function that was called, as "text", "json", "csv", "html" or "chrome".

    Functions that are gone are included; those of one name and line are told of together.
    `width` in characters bounds the table of the text; by default that of the terminal on stdout, where the
    titles are bold, and 100 anywhere else. Raises `ValueError` for another format.

    >>> report().startswith("lazytrace: ")
    True
    >>> report(format="csv").splitlines()[0]
    'process,function,what,detail,count,seconds,where'
    """
    if format == "text" and width is None:
        return on_terminal(Report.of(stats()), sys.stdout)
    return formatted(full_report(), format, width)


@overload
def compile_times(repr: Literal["str"] = "str") -> str: ...
@overload
def compile_times(repr: Literal["csv"]) -> tuple[list[str], list[str]]: ...
def compile_times(repr: Literal["str", "csv"] = "str") -> str | tuple[list[str], list[str]]:
    """Seconds per function and phase, in the shapes of `torch._dynamo.utils.compile_times`.

    "str" gives a table as text, "csv" a list of headers and a list of values. Checking and replaying are
    known only of hits that were timed.

    >>> compile_times().splitlines()[0]
    'lazytrace recording metrics:'
    """
    from lazytrace.stats.report.tables import compile_times_of

    return compile_times_of(stats(), repr)
