"""The pytest plugin, in sessions of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TESTS = """
import torch
from lazytrace import traced
from lazytrace.testing import assert_traces, no_retrace

@traced(dynamic=False)
def step(x, k):
    return x * k

X = torch.ones(3)

def test_one():
    step(X, 1), step(X, 2)
    assert_traces(step, exactly=2)

def test_counts_are_isolated(lazytrace_stats):
    step(X, 1)
    assert_traces(step, exactly=0)
    assert lazytrace_stats.get_metrics()["hits"] == 1
    step(X, 3)
    assert_traces(step, exactly=1)
    assert "step(x, k): k 2 -> 3   x1" in lazytrace_stats.report()
    assert "1 -> 2" not in lazytrace_stats.report()

def test_fails():
    with no_retrace():
        step(X, 4)

def test_gone():
    traced(lambda x: x, name="gone_by_the_end")(X)
"""


def session(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_it.py").write_text(TESTS)
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("LAZYTRACE_", "PYTEST_"))
    }
    # Installed, the plugin is found by its entry point; a checkout that is not need not be.
    plugin = ("-p", "no:lazytrace", "-p", "lazytrace.pytest_plugin")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", "-q", *options],
        cwd=directory,
        env={**clean, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_counts_and_failures(tmp_path):
    out = session(tmp_path).stdout
    assert "1 failed, 3 passed" in out
    line = TESTS.splitlines().index("        step(X, 4)") + 1
    assert "AssertionError: expected 0 retraces in this block, 1 was recorded:" in out
    assert f"step: k 3 -> 4 (called at test_it.py:{line})" in out
    assert "lazytrace: " not in out


def test_report_on_the_terminal(tmp_path):
    out = session(tmp_path, "--lazytrace-report").stdout
    lines = out.splitlines()
    title = next(i for i, line in enumerate(lines) if " lazytrace " in line and line.startswith("==="))
    assert lines[title + 1].startswith("lazytrace: 2 functions, 6 calls: 1 hit ")
    assert any(line.startswith("gone_by_the_end ") for line in lines)


def test_report_in_a_file(tmp_path):
    out = session(tmp_path, "--lazytrace-report=run.html").stdout
    assert "written to run.html" in out
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")


def test_report_option_that_is_not_understood(tmp_path):
    done = session(tmp_path, "--lazytrace-report=run.pdf")
    assert done.returncode == 4
    assert done.stderr.strip() == (
        "ERROR: --lazytrace-report=run.pdf is not understood: name 1, text, a file that ends with .json, "
        ".csv, .html, .trace or .txt, or a folder with a slash"
    )
