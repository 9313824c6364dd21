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
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.soundness.attacks.programs import Attack, Program, Slow, attack
from tests.soundness.runner import difference, drive


def outcome(case: Attack) -> tuple[str, int, list[str], bool]:
    """How plain and traced differ ("" if they do not), hits, reasons of eager calls, whether the change shows."""
    program = Program(case.text)
    plain, _ = drive(program, False)
    try:
        traced, tracer = drive(program, True)
    except BaseException as error:  # a lost exception, an error of the core
        return confirmed(program, plain, f"traced raised {type(error).__name__}: {error}"), 0, [], True
    hits, reasons = tracer.count("hits"), [*tracer.reasons()]
    telling = len(plain) > 3 and plain[1][1] != plain[3][1]
    return confirmed(program, plain, first_difference(plain, traced)), hits, reasons, telling


def first_difference(plain: Any, other: Any) -> str:
    pairs = zip(plain, other, strict=False)
    found = next((found for (name, a), (_, b) in pairs if (found := difference(name, a, b))), "")
    return found or ("another number of tensors" if len(plain) != len(other) else "")


def confirmed(program: Program, plain: Any, found: str) -> str:
    """A difference counts if two plain runs agree with each other."""
    if not found:
        return ""
    again, _ = drive(program, False)
    return "" if first_difference(plain, again) else found


def run_batch(seed: int, numbers: range, log: Path) -> None:
    """Runs cases, with a line for each in the log: the process may die in any of them."""
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # a list without an end is a MemoryError
    with log.open("a") as out:
        for number in numbers:
            print(json.dumps(["at", number]), file=out, flush=True)
            faulthandler.dump_traceback_later(20, exit=True)
            print(json.dumps(["done", number, *one(seed, number)]), file=out, flush=True)
            faulthandler.cancel_dump_traceback_later()
            if not number % 50:
                gc.collect()


def one(seed: int, number: int) -> list[Any]:
    try:
        case = attack(seed, number)
        if case is None:
            return ["none"]
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, hits, reasons, telling = outcome(case)
    except (Exception, Slow) as error:  # plain Python does not run the case either
        return ["unusable", f"{type(error).__name__}: {error}"]
    if found:
        return ["wrong", *case[:4], found[:600], hits, reasons[:3]]
    return ["hit" if hits else "eager", *case[:2], telling, reasons[:1]]


# ---------------------------------------------------------------- many
def run_many(
    seed: int, start: int, count: int, jobs: int, folder: Path, batch: int = 400
) -> Iterator[list[Any]]:
    """Results of all cases, from processes that each run a batch."""
    waiting = [range(i, min(i + batch, start + count)) for i in range(start, start + count, batch)][::-1]
    running: dict[Any, tuple[range, Path, Any]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            numbers = waiting.pop()
            log = folder / f"{seed}_{numbers.start}.jsonl"
            errors = log.with_suffix(".err").open("w")
            log.unlink(missing_ok=True)
            running[subprocess.Popen(command(seed, numbers, log), stdout=errors, stderr=errors)] = (
                numbers,
                log,
                errors,
            )
        time.sleep(0.2)
        for process in [p for p in running if p.poll() is not None]:
            numbers, log, errors = running.pop(process)
            errors.close()
            last = numbers.start - 1
            for row in map(json.loads, log.read_text().splitlines()):
                last = row[1]
                if row[0] == "done":
                    yield row[1:]
            if process.returncode:
                yield [last, "crash", process.returncode, log.with_suffix(".err").read_text()[-1500:]]
                waiting += [range(last + 1, numbers.stop)] if last + 1 < numbers.stop else []
            log.unlink()


def command(seed: int, numbers: range, log: Path) -> list[str]:
    where = [str(seed), str(numbers.start), str(numbers.stop), str(log)]
    return [sys.executable, "-m", "tests.soundness.attacks", "--batch", *where]


def table(rows: Counter[Any]) -> str:
    return "\n".join(f"{count:7d}  {row}" for row, count in rows.most_common(60))
