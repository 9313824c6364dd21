"""What a program that tests start prints, and how it ends, is what it would be of one started by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import environment, python

TELLS = """
import atexit, os, sys, torch
atexit.register(print, "at exit", flush=True)
print(__name__, sys.argv, os.getcwd(), os.environ.get("KIND"), sys.path[0], sys.stdin.read())
print("warned", file=sys.stderr)
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "os._exit(4)", "raise SystemExit('over')"])
@pytest.mark.parametrize("kind", ["-c", "file"])
def test_it_runs_as_one_that_was_started_by_itself(kind, end, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(TELLS + end)
    arguments = ["-c", TELLS + end] if kind == "-c" else [str(file), "--size", "3"]
    forked = python(*arguments, cwd=tmp_path, KIND=kind)
    if end == "sys.exit(3)":
        started = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment(KIND=kind),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (forked.stdout, forked.stderr) == (started.stdout, started.stderr)
    assert forked.returncode == {"": 0, "sys.exit(3)": 3, "os._exit(4)": 4}.get(end, 1)
    assert forked.stderr == "warned\n" + "over\n" * ("over" in end)


def test_an_exception_and_a_signal():
    done = python("-c", "1 / 0")
    assert done.returncode == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert python("-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)").returncode == -9
