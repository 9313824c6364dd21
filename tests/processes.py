"""Programs that tests start: each in a process of its own, in which torch has been imported already.

Most of the time of a short program goes into that. One process imports torch, does nothing else, and forks
for each program, which then runs and ends as one that was started by itself.
"""

from __future__ import annotations

import builtins
import functools
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 300


class Forks:
    """A process that forks for each program that it is told of."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )

    def run(self, program: dict[str, Any]) -> int:
        """The exit code of a program.

        Raises:
            TimeoutError: it has not ended for too long.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(program).encode() + b"\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], SECONDS)[0]:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise TimeoutError(f"a program has not ended for {SECONDS} s: {program['arguments']}")
        return int(self._process.stdout.readline())


@functools.cache
def forks(of: int) -> Forks:
    """The one of this process."""
    assert of == os.getpid()
    return Forks()


def environment(**variables: str) -> dict[str, str]:
    """That of a program which imports this lazytrace, with no options for it but these variables."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("LAZYTRACE_")}
    return {**own, "PYTHONPATH": str(ROOT), **variables}


def python(*arguments: str, cwd: Path | str = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run([sys.executable, *arguments], env=environment(**variables))` gives.

    Of `-c CODE`, `-m MODULE ...` or `FILE ...`. Variables that Python itself or torch read when they start
    are those of this process.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        code = forks(os.getpid()).run(
            {
                "arguments": arguments,
                "cwd": str(cwd),
                "env": environment(**variables),
                "out": str(out),
                "err": str(err),
            }
        )
        return subprocess.CompletedProcess(
            [sys.executable, *arguments], code, out.read_text(), err.read_text()
        )


def await_program() -> dict[str, Any] | None:
    """In a fork: the program that it is for. None where nobody asks for one any more."""
    for line in sys.stdin:
        if not (child := os.fork()):
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def become(program: dict[str, Any]) -> None:
    """Run a program as if this process had been started for it."""
    os.chdir(program["cwd"])
    os.environ.clear()
    os.environ.update(program["env"])
    writing = os.O_WRONLY | os.O_CREAT
    for number, name, how in (
        (0, os.devnull, os.O_RDONLY),
        (1, program["out"], writing),
        (2, program["err"], writing),
    ):
        file = os.open(name, how, 0o600)
        os.dup2(file, number)
        os.close(file)
    # What has been read ahead is no input of the program.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
    kind, *rest = program["arguments"]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [kind, *rest[kind in ("-c", "-m") :]]
    first = "" if kind == "-c" else program["cwd"] if kind == "-m" else str(Path(kind).resolve().parent)
    further = program["env"].get("PYTHONPATH", "")
    sys.path[:1] = [first, *(further.split(os.pathsep) if further else ())]
    if kind == "-m":
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
        return
    if kind == "-c":
        code = compile(rest[0], "<string>", "exec")
    else:
        main.__file__ = kind
        code = compile(Path(kind).read_text(), kind, "exec")
    exec(code, main.__dict__)


if __name__ == "__main__":
    import torch  # noqa: F401

    asked = await_program()
    if asked is not None:
        become(asked)
