"""`python -m lazytrace`: what each command prints, its exit codes, and what it says where it cannot go on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from lazytrace.cli import main
from lazytrace.decorate import Patterns
from lazytrace.stats import Process, Report, Retrace, Snapshot, formatted
from tests.processes import python

ROOT = Path(__file__).resolve().parent.parent
HERE = Process(7, "here")

OLD = Snapshot("step", hits=5, recordings=2, retraces=1, retrace_reasons=(Retrace("k 1 -> 2", 1, 0.1),))
NEW = Snapshot(
    "step",
    hits=5,
    recordings=4,
    retraces=3,
    evictions=1,
    eager={"calls print() (a.py:3)": 2},
    retrace_reasons=(Retrace("k 1 -> 2", 1, 0.1), Retrace("x.shape[0] 64 -> 13", 2, 0.2)),
)

SCRIPT = """
import sys, torch
import helper

class Net(torch.nn.Module):
    def forward(self, x):
        return x * 2

def step(x):
    return x + 1

def numbers():
    yield 1

if __name__ == "__main__":
    print(sys.argv, __file__, type(step).__name__, type(helper.double).__name__)
    for n in (1, 1, 2):
        step(helper.double(Net()(torch.ones(n))))
    if "fail" in sys.argv:
        raise ValueError("of the program")
    if "exit" in sys.argv:
        sys.exit(7)
"""
HELPER = "def double(x):\n    return x * 2\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text(HELPER)
    for name, snapshot in (("old", OLD), ("new", NEW)):
        (tmp_path / f"{name}.json").write_text(formatted(Report((snapshot,), (HERE,), (0,)), "json"))
    return tmp_path


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "lazytrace", *arguments, cwd=folder, COLUMNS="100")


# ---------------------------------------------------------------- run
def test_run_decorates_and_reports(folder):
    patterns = ("--trace", "__main__:step", "--trace", "helper:*", "--trace", "__main__:Net")
    done = command(folder, "run", "--report", "run.json", *patterns, "script.py", "a", "--report")
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout == "['script.py', 'a', '--report'] script.py TracedFunction TracedFunction\n"
    found = json.loads((folder / "run.json").read_text())["functions"]
    assert {one["name"]: (one["calls"], one["hits"]) for one in found} == {
        "step": (3, 1),
        "double": (3, 1),
        "Net.forward": (3, 0),
    }
    assert {one["source"] for one in found} == {"script.py:9", "helper.py:1", "script.py:6"}


def test_run_reports_to_stderr(folder):
    done = command(folder, "run", "--trace", "__main__:*", "script.py")
    assert done.returncode == 0
    assert done.stderr.startswith("lazytrace: 2 functions, 6 calls: 1 hit ")
    assert "step(x): x.shape[0] 1 -> 2   x1" in done.stderr


def test_run_of_a_module(folder):
    done = command(folder, "run", "--trace", "script:step", "-m", "script", "a")
    assert done.returncode == 0
    assert "TracedFunction function" in done.stdout
    assert "lazytrace: 1 function, 3 calls" in done.stderr


def test_run_of_a_program_that_fails(folder):
    done = command(folder, "run", "script.py", "fail")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Traceback (most recent call last):",
        '  File "script.py", line 20, in <module>',
        '    raise ValueError("of the program")',
        "ValueError: of the program",
    ]
    assert command(folder, "run", "script.py", "exit").returncode == 7


def test_run_with_a_pattern_that_matches_nothing(folder):
    done = command(folder, "run", "--trace", "helper:dubble", "--trace", "__main__:step", "script.py")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        "lazytrace run: --trace helper:dubble matched nothing. The part before the colon is the module as "
        "it is imported (__main__ for the script), the part behind it the function's name, Class.method "
        "for a method. Modules that are imported before the program starts, as those of torch, cannot be "
        "decorated so."
    )


def said(capsys, *arguments: str) -> str:
    """What a command that exits with 2 says, without the usage."""
    try:
        code: object = main(arguments)
    except SystemExit as error:
        code = error.code
    assert code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_run_misused(capsys, tmp_path):
    assert said(capsys, "run") == (
        "lazytrace run: no program was named: python -m lazytrace run script.py, or run -m package.module"
    )
    assert said(capsys, "run", "missing.py") == (
        "lazytrace run: missing.py is not a file. For a module, say: python -m lazytrace run -m missing.py"
    )
    assert said(capsys, "run", "--report", "a.pdf", "x.py") == (
        "python -m lazytrace run: error: argument --report: 'a.pdf' is not understood: name 1, text, "
        "a file that ends with .json, .csv, .html, .trace or .txt, or a folder with a slash"
    )
    assert said(capsys, "run", "--trace", "step", "x.py") == (
        "python -m lazytrace run: error: argument --trace: 'step' names no function: write "
        "'module:function', as in 'pkg.mod:step' or '__main__:main'"
    )


def test_lines_of_what_is_decorated_are_those_of_the_source():
    code = Patterns(["m:f"]).compiled("\n\ndef f(x):\n    1 / 0\n", "m.py", "m")
    names: dict = {}
    exec(code, names)
    with pytest.raises(ZeroDivisionError) as caught:
        names["f"](1)
    assert caught.traceback[-1].lineno == 3
    assert names["f"].original.__code__.co_firstlineno == 3


def test_wildcards_leave_out_what_cannot_be_traced():
    source = (
        "import asyncio\ndef plain(): pass\ndef numbers(): yield 1\nasync def later(): pass\n"
        "class A:\n    def __init__(self): pass\n    def run(self): return 1\n"
    )
    patterns, names = Patterns(["m:*"]), {}
    exec(patterns.compiled(source, "m.py", "m"), names)
    traced = [n for n, v in {**names, **vars(names["A"])}.items() if type(v).__name__ == "TracedFunction"]
    assert traced == ["plain", "run"]
    assert patterns.unmatched() == []


# ---------------------------------------------------------------- show and merge
def test_show(folder, capsys):
    assert main(["show", str(folder / "new.json")]) == 0
    assert capsys.readouterr().out == formatted(Report((NEW,), (HERE,), (0,)), "text")
    assert main(["show", "--format", "csv", str(folder / "new.json")]) == 0
    assert capsys.readouterr().out.startswith("process,function,")


def test_show_to_a_file(folder, capsys):
    target = folder / "out.html"
    assert main(["show", str(folder / "new.json"), "-o", str(target)]) == 0
    assert target.read_text().startswith("<!doctype html>")
    assert said(capsys, "show", str(folder / "new.json"), "-o", "out.pdf") == (
        "lazytrace show: out.pdf: end the name with .html, .json, .csv, .trace or .txt"
    )


def test_merge(folder, capsys):
    assert main(["merge", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("lazytrace: 2 functions, 18 calls: 10 hits ")


def test_reports_that_are_missing(tmp_path, capsys):
    path = tmp_path / "missing.json"
    assert said(capsys, "show", str(path)) == (
        f"lazytrace show: {path}: No such file or directory. Check the path, or write the report first."
    )
    assert said(capsys, "merge", str(tmp_path)) == (
        f"lazytrace merge: {tmp_path} holds no .json reports. "
        f"Run the program with LAZYTRACE_REPORT={tmp_path}/ first."
    )


# ---------------------------------------------------------------- diff
def test_diff(folder, capsys):
    old, new = str(folder / "old.json"), str(folder / "new.json")
    assert main(["diff", old, new]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "step: 3 retraces, 1 before",
        "  x.shape[0] 64 -> 13   x2",
        "step: 2 eager calls, none before",
        "  calls print() (a.py:3)   x2",
        "step: 1 eviction, none before",
    ]
    for pair in ((new, old), (new, new)):
        assert main(["diff", *pair]) == 0
        assert capsys.readouterr().out == "no more retraces, eager calls or evictions than before\n"


# ---------------------------------------------------------------- help
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["run a script or module, and report when it ends", "exit codes:", "LAZYTRACE_REPORT=run.html"]),
        (["run"], ["--report TARGET", "--trace PATTERN", "'pkg.mod:Net.forward'", "program ..."]),
        (
            ["show"],
            [
                "a .json report, a folder of them, or what lazytrace.save() wrote",
                "{text,json,csv,html,chrome}",
                "-o",
            ],
        ),
        (["diff"], ["old", "new"]),
        (["merge"], ["what LAZYTRACE_REPORT=folder/ named"]),
    ],
)
def test_help(arguments, parts, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert [part for part in parts if part not in text] == []


# ---------------------------------------------------------------- run --exportable
EXPORTED = """
import torch
from lazytrace import traced

class Holder: pass
holder = Holder()

@traced
def plain(x):
    return x * 2

@traced
def writes(x):
    holder.last = x * 2
    return x

@traced
def escapes(x):
    return x * len(x.tolist())

for f in (plain, writes, escapes):
    f(torch.ones(99)), f(torch.ones(99))
"""


def test_run_says_what_can_be_exported(tmp_path):
    (tmp_path / "program.py").write_text(EXPORTED)
    done = command(tmp_path, "run", "--exportable", "program.py")
    assert done.returncode == 0, done.stderr
    lines = done.stderr[done.stderr.index("Exportable:") :].splitlines()
    assert lines[:2] == ["Exportable:", "plain(x: float32[99]): yes"]
    assert lines[2:4][0] == "writes(x: float32[99]): no:"
    assert "holder.last" in lines[3]
    assert lines[4] == "escapes(x: float32[99]): no, it is not recorded:"
    assert lines[5].strip().startswith("calls .tolist() of a tensor")


def test_run_says_that_nothing_was_recorded(tmp_path):
    (tmp_path / "program.py").write_text("import torch\n")
    done = command(tmp_path, "run", "--exportable", "program.py")
    assert "Exportable:\nnothing was recorded" in done.stderr
