"""The report on this process, of whatever format, from what is registered."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal, overload

# Imported now, with nothing in it: later the package would take the place of the function of that name.
import lazytrace.stats.report  # noqa: F401
from lazytrace.originals import BUILTINS
from lazytrace.stats.difference import since
from lazytrace.stats.registry import Baseline, baseline, stats

if TYPE_CHECKING:
    from lazytrace.stats.report import Format, Report

__builtins__ = BUILTINS

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
    from lazytrace.stats.report import Report

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
    from lazytrace.stats.report import Report, formatted, on_terminal

    if format == "text" and width is None:
        return on_terminal(Report.of([*baseline(programs=True).values()]), sys.stdout)
    return formatted(full_report(), format, width)


@overload
def compile_times(repr: Literal["str"] = "str", aggregate: bool = False) -> str: ...
@overload
def compile_times(repr: Literal["csv"], aggregate: bool = False) -> tuple[list[str], list[str]]: ...
def compile_times(
    repr: Literal["str", "csv"] = "str", aggregate: bool = False
) -> str | tuple[list[str], list[str]]:
    """Seconds per function and phase, in the shapes of `torch._dynamo.utils.compile_times`.

    "str" gives a table as text, "csv" a list of headers and a list of values. Recording holds the phases
    that `Phases` names. Checking and replaying are known only of hits that were timed. With `aggregate` the
    seconds of all functions are added up. Raises `ValueError` for another `repr`.

    >>> compile_times().splitlines()[0]
    'lazytrace recording metrics:'
    >>> compile_times("json")
    Traceback (most recent call last):
        ...
    ValueError: compile_times(repr='json'): repr must be 'str' or 'csv'
    """
    if repr not in ("str", "csv"):
        raise ValueError(f"compile_times(repr={repr!r}): repr must be 'str' or 'csv'")
    from lazytrace.stats.report.tables import compile_times_of

    return compile_times_of(stats(), repr, aggregate)
