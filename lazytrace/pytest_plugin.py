"""The pytest plugin: counts of the running test, and a report after the session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lazytrace.config import REPORT_TARGETS, report_target
from lazytrace.stats import (
    CompileProfiler,
    format_of,
    full_report,
    keep_dead,
    report,
    write,
)
from lazytrace.testing import count_from_now

_OPTION = "--lazytrace-report"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the report."""
    parser.getgroup("lazytrace").addoption(
        _OPTION,
        nargs="?",
        const="text",
        default="",
        metavar="FILE",
        help="after the tests, show what traced functions did; with FILE (.html, .json, .csv, .trace, .txt) "
        "write it there",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep the counts of functions that tests make and drop, where they are reported."""
    value = config.getoption(_OPTION)
    target = report_target(value)
    if target is None or target.endswith("/"):
        raise pytest.UsageError(f"{_OPTION}={value} is not understood: name {REPORT_TARGETS}")
    if target:
        keep_dead(+1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Count from here: what other tests recorded is no concern of this one."""
    count_from_now()


@pytest.fixture
def lazytrace_stats() -> Iterator[CompileProfiler]:
    """Counts what traced functions do in this test: `get_metrics()`, `snapshots()` and `report()`."""
    with CompileProfiler() as profiler:
        yield profiler


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the report, or write it and say where."""
    target = report_target(config.getoption(_OPTION)) or ""
    if not target:
        return
    terminalreporter.section("lazytrace")
    if format_of(target) is None:
        terminalreporter.write(report(width=terminalreporter._tw.fullwidth))
    else:
        write(full_report(), target)
        terminalreporter.write_line(f"written to {target}")
