"""Runs attacks: one in this process, many in batches of processes of their own."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.soundness.attacks.drawing import entries
from tests.soundness.attacks.handed import handed
from tests.soundness.attacks.meetings import meetings
from tests.soundness.attacks.orders import orders
from tests.soundness.attacks.programs import Attack, Program, Slow, attack, import_slow_modules
from tests.soundness.attacks.training import training
from tests.soundness.runner import Tracer, difference, drive

KINDS: dict[str, Callable[[int, int], Attack | None]] = {
    "state": attack,
    "training": training,
    "entries": entries,
    "meetings": meetings,
    "handed": handed,
    "orders": orders,
}


class Result(NamedTuple):
    """How a case ended: "hit", "eager", "wrong", "crash", "none" (nothing fits) or "unusable" (plain fails)."""

    number: int
    verdict: str
    case: list[str]  # the fields of the attack
    text: str = ""  # the difference, or why it was not used
    hits: int = 0
    reasons: tuple[str, ...] = ()
    telling: bool = False  # the change shows in what the plain function gives


def run_one(
    seed: int, number: int, ready: Callable[[Attack], object] = lambda case: None, kind: str = "state"
) -> Result:
    """Runs a case; `ready` is called when plain Python is through with it."""
    try:
        case = KINDS[kind](seed, number)
        if case is None:
            return Result(number, "none", [])
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compare(number, case, ready)
    except (Exception, Slow) as error:  # plain Python does not run the case either
        return Result(number, "unusable", [], f"{type(error).__name__}: {error}")


def compare(number: int, case: Attack, ready: Callable[[Attack], object]) -> Result:
    program = Program(case.text)
    plain, _ = drive(program, False)
    ready(case)
    found, tracer = against(program, plain)
    if found and not confirmed(program, plain):
        return Result(number, "unusable", [*case], "plain Python does not agree with itself")
    hits = tracer.count("hits") if tracer else 0
    verdict = "wrong" if found else "hit" if hits else "eager"
    reasons = (*tracer.reasons(),)[:3] if tracer else ()
    return Result(number, verdict, [*case], found[:600], hits, reasons, tells(plain))


def tells(plain: Any) -> bool:
    """Whether the fourth step, which comes behind the change, shows something else than the second."""
    return len(plain) > 3 and plain[1][1] != plain[3][1]


def against(program: Program, plain: Any) -> tuple[str, Tracer | None]:
    """How a traced run differs from a plain one, "" if it does not."""
    try:
        traced, tracer = drive(program, True)
    except BaseException as error:  # a lost exception, an error of the core
        return f"traced raised {type(error).__name__}: {error}", None
    return first_difference(plain, traced), tracer


def first_difference(plain: Any, other: Any) -> str:
    pairs = zip(plain, other, strict=False)
    found = next((found for (name, a), (_, b) in pairs if (found := difference(name, a, b))), "")
    return found or ("another number of tensors" if len(plain) != len(other) else "")


def confirmed(program: Program, plain: Any) -> bool:
    """A difference counts if plain runs agree with each other, and another traced one differs again.

    The order of a set of objects hangs on their addresses, and recording puts them at others. So plain runs
    have other addresses, too.
    """
    agree = all(not first_difference(plain, elsewhere(program, count)) for count in (0, 1, 3, 8, 21, 55, 144))
    return agree and bool(against(program, plain)[0])


def elsewhere(program: Program, count: int) -> Any:
    """What a plain run gives in memory that so many objects of each size and kind have been put into."""
    junk = [[KeyError(i), P(), [i], {i: i}, bytearray(16 * i)] for i in range(count)]
    seen, _ = drive(program, False)
    del junk
    return seen


class P:
    """As large as the objects of the programs."""


# ---------------------------------------------------------------- many
def run_batch(seed: int, numbers: range, log: Path, kind: str) -> None:
    """Runs cases, with lines for each in the log: the process may die in any of them."""
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # a list without an end is a MemoryError
    import_slow_modules()
    with log.open("w") as out:
        for number in numbers:
            faulthandler.dump_traceback_later(20, exit=True)
            write(out, "at", number)
            write(out, *run_one(seed, number, lambda case: write(out, "traced", *case), kind))
            faulthandler.cancel_dump_traceback_later()
            if not number % 50:
                gc.collect()


def write(out: Any, *row: Any) -> None:
    print(json.dumps(row), file=out, flush=True)


def read(log: Path, returncode: int, error: str) -> Iterator[Result]:
    """The results of a batch; the last one is a crash if the process died while traced."""
    number, case = -1, []
    for row in map(json.loads, log.read_text().splitlines()):
        if row[0] == "at":
            number, case = row[1], []
        elif row[0] == "traced":
            case = row[1:]
        else:
            yield Result(*row)
            number = -1
    if returncode and number >= 0:
        yield Result(
            number, "crash" if case else "unusable", case, f"exit status {returncode}\n{error[-1500:]}"
        )


class Batch:
    """A process that runs some cases, and the files that it writes."""

    def __init__(self, seed: int, numbers: range, folder: Path, kind: str) -> None:
        self.numbers, self.log = numbers, folder / f"{numbers.start}.jsonl"
        self.error = self.log.with_suffix(".err")
        bounds = [str(seed), str(numbers.start), str(numbers.stop), str(self.log), kind]
        command = [sys.executable, "-m", "tests.soundness.attacks", "--batch", *bounds]
        with self.error.open("w") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file)

    def results(self) -> list[Result]:
        found = list(read(self.log, self.process.returncode, self.error.read_text()))
        self.log.unlink()
        self.error.unlink()
        return found


def run_many(
    seed: int, numbers: range, jobs: int, folder: Path, size: int = 400, kind: str = "state"
) -> Iterator[Result]:
    """Results of all cases, from processes that each run a batch; what follows a crash is another batch."""
    waiting = [numbers[i : i + size] for i in range(0, len(numbers), size)][::-1]
    running: list[Batch] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(Batch(seed, waiting.pop(), folder, kind))
        time.sleep(0.2)
        for batch in [batch for batch in running if batch.process.poll() is not None]:
            running.remove(batch)
            found = batch.results()
            yield from found
            begun = found[-1].number + 1 if found else batch.numbers.stop
            if begun < batch.numbers.stop:
                waiting.append(range(begun, batch.numbers.stop))
