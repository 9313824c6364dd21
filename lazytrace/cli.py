"""`python -m lazytrace`: run a program and report, show, compare and merge reports."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import get_args

from lazytrace.config import REPORT_TARGETS, Environment, report_target
from lazytrace.debugging import Exportability, run_again
from lazytrace.decorate import Patterns, installed
from lazytrace.loaded import FileError, describe_file
from lazytrace.stats import (
    Format,
    Report,
    format_of,
    formatted,
    increases,
    on_terminal,
    read,
    report_at_exit,
    watch_recordings,
)

_DESCRIPTION = "Run a program under lazytrace and see what its traced functions did, and why."
_EPILOG = """exit codes:
  0  all went well
  1  diff: the new report has more retraces, eager calls or evictions; run: the program raised; replay: a
     proof fails again
  2  something was not understood, or could not be read or written

LAZYTRACE_REPORT=run.html python train.py writes a report without this command.
"""
_FAILED, _MISUSED = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit code.

    >>> main(["show", "missing.json"])
    2
    """
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        code: int = asked.do(asked)
        return code
    except (OSError, ValueError) as error:
        print(f"lazytrace {asked.command}: {_said(error)}", file=sys.stderr)
        return _MISUSED


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}. Check the path, or write the report first."
    return str(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m lazytrace",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_run(commands)
    _add_show(commands)
    _add_diff(commands)
    _add_merge(commands)
    _add_replay(commands)
    return parser


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", help="run a script or module, and report when it ends")
    run.add_argument(
        "--report",
        metavar="TARGET",
        type=_target,
        help=f"where the report goes: {REPORT_TARGETS} (default: LAZYTRACE_REPORT, or text on stderr)",
    )
    run.add_argument(
        "--trace",
        metavar="PATTERN",
        action="append",
        default=[],
        type=_pattern,
        help="decorate a function without editing it, as in 'pkg.mod:step', 'pkg.mod:Net.forward' or "
        "'__main__:*' (the script itself); can be given several times",
    )
    run.add_argument(
        "--exportable",
        action="store_true",
        help="say of each recording whether torch.export can have it, or what stands against it",
    )
    run.add_argument("-m", dest="module", action="store_true", help="the program is a module, not a file")
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="program ...", help="with its arguments")
    run.set_defaults(do=_run)


def _add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    show = commands.add_parser(
        "show", help="show a report that was written as .json, in any format, or a file of saved programs"
    )
    show.add_argument("report", help="a .json report, a folder of them, or what lazytrace.save() wrote")
    show.add_argument("--format", choices=get_args(Format), default="text", help="(default: text)")
    show.add_argument("-o", "--output", metavar="FILE", help="write there; its ending chooses the format")
    show.set_defaults(do=_show)


def _add_diff(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    diff = commands.add_parser(
        "diff", help="what a new report has more of than an old one; exits with 1 then"
    )
    diff.add_argument("old", help="a .json report, or a folder of them")
    diff.add_argument("new", help="another")
    diff.set_defaults(do=_diff)


def _add_merge(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    merge = commands.add_parser("merge", help="one report of the processes that wrote to a folder")
    merge.add_argument("report", metavar="folder", help="what LAZYTRACE_REPORT=folder/ named")
    merge.add_argument("--format", choices=get_args(Format), default="text", help="(default: text)")
    merge.add_argument("-o", "--output", metavar="FILE", help="write there; its ending chooses the format")
    merge.set_defaults(do=_show)


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    replay = commands.add_parser(
        "replay", help="run failed proofs again that LAZYTRACE_DEBUG has written; exits with 1 if one fails"
    )
    replay.add_argument("folder", help="of one failed proof, of a run, or of runs")
    replay.set_defaults(do=_replay)


def _target(value: str) -> str:
    target = report_target(value)
    if target is None:
        raise argparse.ArgumentTypeError(f"{value!r} is not understood: name {REPORT_TARGETS}")
    return target


def _pattern(value: str) -> str:
    module, _, name = value.partition(":")
    if not module or not name:
        raise argparse.ArgumentTypeError(
            f"{value!r} names no function: write 'module:function', as in 'pkg.mod:step' or '__main__:main'"
        )
    return value


def _show_programs(path: str) -> int:
    try:
        print(describe_file(path))
    except FileError as error:
        print(error, file=sys.stderr)
        return _MISUSED
    return 0


def _show(asked: argparse.Namespace) -> int:
    if os.path.isfile(asked.report) and zipfile.is_zipfile(asked.report):
        return _show_programs(asked.report)
    report = read(asked.report)
    if asked.output:
        chosen = format_of(asked.output)
        if chosen is None:
            raise ValueError(f"{asked.output}: end the name with .html, .json, .csv, .trace or .txt")
        Path(asked.output).write_text(formatted(report, chosen))
    else:
        print(_text(report, asked.format), end="")
    return 0


def _replay(asked: argparse.Namespace) -> int:
    failed = False
    for folder, why in run_again(asked.folder):
        print(f"{folder}: {why or 'the same as the plain call'}")
        failed |= bool(why)
    return _FAILED if failed else 0


def _text(report: Report, chosen: Format) -> str:
    return on_terminal(report, sys.stdout) if chosen == "text" else formatted(report, chosen)


def _diff(asked: argparse.Namespace) -> int:
    lines = increases(read(asked.old), read(asked.new))
    print("\n".join(lines) or "no more retraces, eager calls or evictions than before")
    return _FAILED if lines else 0


def _run(asked: argparse.Namespace) -> int:
    if not asked.program:
        raise ValueError("no program was named: python -m lazytrace run script.py, or run -m package.module")
    program, *arguments = asked.program
    if not asked.module and not os.path.isfile(program):
        raise ValueError(f"{program} is not a file. For a module, say: python -m lazytrace run -m {program}")
    report_at_exit(asked.report if asked.report is not None else Environment.read().report or "text")
    patterns = Patterns(asked.trace)
    finder = installed(patterns)
    sys.argv = [program, *arguments]
    asked_of = Exportability()
    stop = watch_recordings(asked_of.ask) if asked.exportable else None
    try:
        code = _run_module(program) if asked.module else _run_script(program, patterns)
    finally:
        sys.meta_path.remove(finder)
        if stop is not None:
            stop()
            print(f"Exportable:\n{asked_of}", file=sys.stderr)
        unmatched = patterns.unmatched()
        if unmatched:
            print(_unmatched(unmatched), file=sys.stderr)
    return code or (_MISUSED if unmatched else 0)


def _unmatched(patterns: Sequence[str]) -> str:
    return (
        f"lazytrace run: --trace {' '.join(patterns)} matched nothing. The part before the colon is the "
        "module as it is imported (__main__ for the script), the part behind it the function's name, "
        "Class.method for a method. Modules that are imported before the program starts, as those of torch, "
        "cannot be decorated so."
    )


def _run_script(program: str, patterns: Patterns) -> int:
    # As `python script.py` does: its folder comes first, and it is __main__.
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    main = ModuleType("__main__")
    main.__file__ = program
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    try:
        exec(patterns.compiled(Path(program).read_bytes(), program, "__main__"), main.__dict__)
    except Exception as error:
        return _raised(error, program)
    return 0


def _run_module(program: str) -> int:
    sys.path[0] = os.getcwd()
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    except Exception as error:
        return _raised(error, program)
    return 0


def _raised(error: Exception, program: str) -> int:
    # The frames of this file are of no interest to whoever wrote the program.
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        own = own.tb_next
    traceback.print_exception(error.with_traceback(own))
    return _FAILED
