"""Measurements in processes of their own: how the parent asks, and how a child answers."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

LAUNCHER = Path(__file__).resolve().parent.parent / "peers.py"
RESULTS = LAUNCHER.parent / "results"
ANSWER = "answer: "
PATIENCE = 900
"""Seconds after which a child is given up."""

LONGEST = 120
"""Characters of an error's first line that are kept."""

NO_JAX = "JAX_PYTHON names no Python that has jax"
Answer = dict[str, Any]
"""What a child gives: its numbers, or `{"error": reason}`."""


def without_folders(text: str) -> str:
    """A message with the files in it named without their folders.

    >>> without_folders("cannot open /usr/share/words/en.txt")
    'cannot open en.txt'
    """
    return re.sub(r"(?<![\w.])(/[\w.@+-]+)+/", "", text)


def reason(error: BaseException) -> str:
    """The first line of an error, short enough for a note below a table."""
    text = next(iter(str(error).strip().splitlines()), "")
    shortened = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    return without_folders(f"{type(error).__name__}: {shortened}").strip(": ")


def environment() -> dict[str, str]:
    """One thread for every library, and nothing of lazytrace's own switched on from outside.

    Modules are compiled once, as usual: an import that compiles all of them takes three times as long.
    """
    not_kept = ("LAZYTRACE_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(not_kept)}
    return kept | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "TORCHINDUCTOR_CACHE_DIR": str(RESULTS / "inductor"),
    }


def ask(function: str, spec: dict[str, Any], python: str = sys.executable) -> Answer:
    """Run `module.function` of this package on `spec` in a new process, and return its answer."""
    command = [python, str(LAUNCHER), "--child", function, json.dumps(spec)]
    try:
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer after {PATIENCE} seconds"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(ANSWER):
            found: Answer = json.loads(line.removeprefix(ANSWER))
            return found
    last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return {"error": "child died: " + without_folders(last[:LONGEST])}


def ask_jax(function: str, spec: dict[str, Any]) -> Answer:
    """The same for a function of `jax_side`, in the Python that `JAX_PYTHON` names."""
    python = os.environ.get("JAX_PYTHON")
    if not python:
        return {"error": NO_JAX}
    return ask(f"jax_side.{function}", spec, python)


def answer(function: str, spec: str) -> None:
    """Run one measurement in this process, and print what it gives."""
    module, name = function.split(".")
    try:
        found = getattr(importlib.import_module(f"peers.{module}"), name)(json.loads(spec))
    except Exception as error:
        found = {"error": reason(error)}
    print(f"\n{ANSWER}{json.dumps(found)}", flush=True)
