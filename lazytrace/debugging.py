"""`LAZYTRACE_DEBUG=folder`: each recording written down, and failed proofs that can be run again."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import time
from collections.abc import Callable, Iterator
from os import getpid
from pathlib import Path

import torch

from lazytrace.checks import differences
from lazytrace.engine import Finished
from lazytrace.loaded import FileError, load
from lazytrace.locks import new_lock
from lazytrace.originals import BUILTINS
from lazytrace.programs import Program, exportable, program_of
from lazytrace.saving import Saving
from lazytrace.stats import signature_line, watch_recordings

__builtins__ = BUILTINS

_PROGRAM, _CALL, _WHY = "program.zip", "call.pt", "why.txt"


class Debugger:
    """Writes a folder for each recording of this process, from the first one on.

    `run_<date>-pid_<n>/0000-step` has the listing, the guards and the event of a program; a failed proof has
    its program, what it was called with, and what the plain call gave, for `run_again`.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._lock = new_lock()
        self._run: Path | None = None
        self._number = 0

    def write(self, finished: Finished) -> None:
        """Write down one recording; what fails here is logged, for the call must not fail."""
        if finished.trace is None:
            return
        try:
            folder = self._new_folder(finished)
            _write_texts(folder, finished)
            if finished.wrong:
                _write_proof(folder, finished)
        except Exception:
            logging.getLogger("lazytrace").exception("lazytrace: LAZYTRACE_DEBUG could not be written")

    def _new_folder(self, finished: Finished) -> Path:
        with self._lock:
            if self._run is None or not self._run.name.endswith(f"-pid_{getpid()}"):  # a forked child
                self._run = self._folder / f"run_{time.strftime('%Y-%m-%d_%H-%M-%S')}-pid_{getpid()}"
                self._number = 0
            name = re.sub(r"[^\w.]+", "_", finished.function).strip("_") or "function"
            kind = "-failed-proof" if finished.wrong else ""
            folder = self._run / f"{self._number:04d}-{name}{kind}"
            self._number += 1
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _write_texts(folder: Path, finished: Finished) -> None:
    trace = finished.trace
    assert trace is not None
    (folder / "listing.txt").write_text(trace.listing() + "\n")
    rows = trace.native.guard_rows(trace.names)
    (folder / "guards.txt").write_text("".join(f"{path}: {expected}\n" for path, expected, _ in rows))
    if finished.event is not None:
        (folder / "event.json").write_text(json.dumps(finished.event.as_dict(), indent=1) + "\n")


def _write_proof(folder: Path, finished: Finished) -> None:
    why = finished.wrong
    try:
        _write_program(folder / _PROGRAM, finished)
        call = {"args": finished.args, "kwargs": finished.kwargs, "grad": torch.is_grad_enabled()}
        torch.save({**call, "result": finished.result}, folder / _CALL)
    except (NotImplementedError, LookupError, TypeError, AttributeError, pickle.PicklingError) as error:
        # Opaque steps, objects of the user's: what a file cannot hold.
        (folder / _PROGRAM).unlink(missing_ok=True)
        why += f"\nIt cannot be run again from here: {error}"
    (folder / _WHY).write_text(why + "\n")


def _write_program(path: Path, finished: Finished) -> None:
    saving = Saving(include_state=True)
    parameters = finished.parameters
    saving.add_program(_program(finished), finished.named, parameters.declared(), parameters.left_out())
    saving.write(path)


def _program(finished: Finished) -> Program:
    """The program of a recording; `LookupError` where the call has changed the state that it read."""
    assert finished.trace is not None
    return program_of(
        finished.trace,
        finished.call,
        named=finished.named,
        args=finished.args,
        kwargs=finished.kwargs,
        positional=finished.parameters.positional_names(len(finished.args)),
        receiver="",
        root=None,
    )


class Exportability:
    """Whether each recording can be exported, asked as it is made.

    >>> import lazytrace
    >>> asked = Exportability()
    >>> stop = watch_recordings(asked.ask)
    >>> _ = lazytrace.traced(lambda x: x * 2, name="double")(torch.ones(2))
    >>> stop()
    >>> print(asked)
    double(x: float32[2]): yes
    """

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def ask(self, finished: Finished) -> None:
        """Ask it of one recording. One that was given up is told of, unless the call is recorded later."""
        signature = finished.event.signature if finished.event is not None else {}
        call = f"{finished.function}({signature_line(signature)})"
        self._told[call] = _exportability(finished)

    def __str__(self) -> str:
        return "\n".join(f"{call}: {told}" for call, told in self._told.items()) or "nothing was recorded"


def _exportability(finished: Finished) -> str:
    if finished.trace is None or finished.wrong:
        reasons = finished.event.reasons if finished.event is not None else ()
        return "\n  ".join(["no, it is not recorded:", *map(str, reasons)])
    try:
        return str(exportable(_program(finished)))
    except LookupError:
        return "no:\n  the call changes the state that it reads. Return the value instead."


def run_again(path: str | os.PathLike[str]) -> Iterator[tuple[Path, str]]:
    """Run the failed proofs in a folder again: each with how it ends now, "" where it is as the plain call.

    `path` is the folder of one of them, of a run, or of runs. What a proof was called with is loaded as data.
    Raises `FileNotFoundError` when there is none.

    >>> list(run_again("no-such-folder"))
    Traceback (most recent call last):
        ...
    FileNotFoundError: [Errno 2] no failed proof: 'no-such-folder'
    """
    found = sorted(file.parent for file in Path(path).rglob(_WHY))
    if not found:
        raise FileNotFoundError(2, "no failed proof", os.fspath(path))
    for folder in found:
        yield folder, _run_again(folder)


def _run_again(folder: Path) -> str:
    if not (folder / _CALL).exists():
        return (folder / _WHY).read_text().strip()
    try:
        call = torch.load(folder / _CALL, weights_only=True)
        loaded = load(folder / _PROGRAM)
        with torch.set_grad_enabled(bool(call["grad"])):
            result = loaded(*call["args"], **call["kwargs"])
    except (FileError, LookupError, RuntimeError, pickle.UnpicklingError) as error:
        return f"{type(error).__name__}: {error}"
    return "; ".join(differences("result", call["result"], result, rtol=None, atol=None))


def write_recordings(folder: str) -> Callable[[], None]:
    """Write down each recording of this process from now on; a function that ends this.

    A folder `run_<date>-pid_<n>` inside `folder` has a folder for each recording: the listing of the program,
    its guards and its event. That of a failed proof can be run again: `python -m lazytrace replay`. Nothing
    is made before there is something to write. `LAZYTRACE_DEBUG=folder` does this from the start.

    >>> import lazytrace, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> stop = lazytrace.write_recordings(folder)
    >>> _ = lazytrace.traced(lambda x: x * 2, name="double")(torch.ones(1))
    >>> stop()
    >>> [path.name for path in sorted(Path(folder).glob("run_*/*/*"))]
    ['event.json', 'guards.txt', 'listing.txt']
    """
    return watch_recordings(Debugger(folder).write)
