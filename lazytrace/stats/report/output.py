"""Where a report goes: which format belongs to a name, and how it is written."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Final, Literal, get_args

from lazytrace.stats.report.document import Process, Report, merged
from lazytrace.stats.report.text import render

Format = Literal["text", "json", "csv", "html", "chrome"]

_ENDINGS: Final[dict[str, Format]] = {
    ".json": "json",
    ".csv": "csv",
    ".html": "html",
    ".trace": "chrome",
    ".txt": "text",
}


def formatted(report: Report, format: Format, width: int | None = None, color: bool = False) -> str:
    """A report in one format. Raises `ValueError` for another.

    >>> formatted(Report.of([]), "text")
    'lazytrace: no traced function was called\\n'
    """
    if format == "json":
        return json.dumps(report.as_dict(), indent=1) + "\n"
    # What writes a format is imported when it is asked for.
    if format == "csv":
        from lazytrace.stats.report.tables import csv_table

        return csv_table(report)
    if format == "html":
        from lazytrace.stats.report.page import page

        return page(report)
    if format == "chrome":
        from lazytrace.stats.report.chrome import chrome_trace

        return json.dumps(chrome_trace(report)) + "\n"
    if format == "text":
        return render(report.functions, width, color)
    raise ValueError(f"report(format={format!r}): format must be one of {', '.join(get_args(Format))}")


def format_of(target: str) -> Format | None:
    """The format that belongs to a file's name; None where its ending says nothing.

    >>> format_of("run.trace"), format_of("run.pdf")
    ('chrome', None)
    """
    return _ENDINGS.get(os.path.splitext(target)[1].lower())


def wants_timed_hits(target: str) -> bool:
    """Whether a report there shows hits on a timeline, for which each of them must be timed.

    >>> wants_timed_hits("run.html"), wants_timed_hits("run.json")
    (True, False)
    """
    return format_of(target) in ("html", "chrome")


def own_path(target: str, process: Process, child: bool) -> Path:
    """The file of one process: in a folder each has its own; beside a file, children and other ranks do.

    >>> str(own_path("run.html", Process(7, "here", rank="1"), child=False))
    'run.rank1.html'
    """
    name = re.sub(r"[^\w.-]", "_", process.host)
    rank = f"-rank{process.rank}" if process.rank else ""
    if target.endswith("/"):
        return Path(target, f"lazytrace-{name}{rank}-{process.pid}.json")
    path = Path(target)
    mark = f".rank{process.rank}" if process.rank not in ("", "0") else ""
    mark += f".{process.pid}" if child else ""
    return path.with_name(f"{path.stem}{mark}{path.suffix}")


def write(report: Report, target: str, child: bool = False) -> None:
    """Write a report to "text" (stderr), a file or a folder; says on stderr where it could not be written."""
    if target == "text":
        # Without a console, as under pythonw, there is no stderr.
        if sys.stderr is not None:
            print(on_terminal(report, sys.stderr), end="", file=sys.stderr)
        return
    path = own_path(target, report.processes[0], child)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(formatted(report, format_of(path.name) or "text"))
    except OSError as error:
        if sys.stderr is not None:
            print(not_written(str(path), error), file=sys.stderr)


def not_written(path: str, error: OSError) -> str:
    """Says that a report could not be written.

    >>> not_written("run.html", PermissionError(13, "Permission denied"))
    'lazytrace: the report was not written to run.html: Permission denied. Name a place that can be written
    to.'
    """
    return (
        f"lazytrace: the report was not written to {path}: {error.strerror or error}. "
        "Name a place that can be written to."
    )


def on_terminal(report: Report, stream: object) -> str:
    """The text as fits a stream: as wide as a terminal and with bold titles there, plain anywhere else."""
    isatty = getattr(stream, "isatty", None)
    if isatty is None or not isatty():
        return formatted(report, "text")
    try:
        width = os.get_terminal_size(stream.fileno()).columns  # type: ignore[attr-defined]
    except (OSError, AttributeError, ValueError):
        width = None
    return formatted(report, "text", width, color="NO_COLOR" not in os.environ)


def read(path: str) -> Report:
    """The report in a JSON file, or the merged reports of a folder.

    Raises `OSError` where it cannot be read and `ValueError` where it holds no report; both say what to do.
    """
    if os.path.isdir(path):
        files = sorted(Path(path).glob("*.json"))
        if not files:
            raise ValueError(
                f"{path} holds no .json reports. "
                f"Run the program with LAZYTRACE_REPORT={path.rstrip('/')}/ first."
            )
        return merged([read(str(file)) for file in files])
    try:
        return Report.from_dict(json.loads(Path(path).read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read as a report: {error}. Write one with LAZYTRACE_REPORT=report.json, or "
            "with python -m lazytrace run --report report.json."
        ) from error
