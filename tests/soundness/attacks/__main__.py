"""Many attacks, and a table of what was wrong: `python -m tests.soundness.attacks --count 100000 --jobs 2`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

import lazytrace
from tests.soundness.attacks.programs import Attack
from tests.soundness.attacks.running import KINDS, Result, run_batch, run_many, run_one


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--kind",
        choices=KINDS,
        default="state",
        help="reads of state, training steps, draws of entries, several features in one function, or other orders",
    )
    parser.add_argument("--show", type=int, help="print the program of one case, and how it ends")
    parser.add_argument("--wrong", type=Path, help="append the program of each wrong case to this file")
    parser.add_argument("--batch", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.batch:
        seed, start, stop, log, kind = options.batch
        run_batch(int(seed), range(int(start), int(stop)), Path(log), kind)
        return 0
    return show(options.seed, options.show, options.kind) if options.show is not None else many(options)


def show(seed: int, number: int, kind: str) -> int:
    case = KINDS[kind](seed, number)
    print(case.text if case else "nothing fits this source")
    print(run_one(seed, number, kind=kind)._replace(case=[]))
    return 0


def many(options: argparse.Namespace) -> int:
    if lazytrace._native.problem:
        raise SystemExit(f"nothing would be replayed: {lazytrace._native.problem}")
    numbers = range(options.start, options.start + options.count)
    began, ended, wrong = time.time(), Counter[str](), list[Result]()
    with tempfile.TemporaryDirectory() as folder:
        for result in run_many(options.seed, numbers, options.jobs, Path(folder), kind=options.kind):
            ended[result.verdict] += 1
            ended["hit before a change that shows"] += result.telling and result.verdict == "hit"
            if result.verdict in ("wrong", "crash"):
                wrong.append(result)
                keep(options, result)
    for field in ("source", "consumer", "way", "change"):
        print(f"--- wrong by {field}\n{table(wrong, field)}")
    print(f"--- {options.count} cases in {time.time() - began:.0f} s: {dict(ended)}")
    return 1 if wrong else 0


def keep(options: argparse.Namespace, result: Result) -> None:
    if options.wrong:
        *names, text = result.case
        with options.wrong.open("a") as file:
            file.write(
                f"#### {options.seed}:{result.number} {result.verdict}\n{text}# {names}\n# {result.text}\n"
            )


def table(results: list[Result], field: str) -> str:
    rows = Counter(getattr(Attack(*result.case), field) for result in results)
    return "\n".join(f"{count:7d}  {row!r}" for row, count in rows.most_common(40))


if __name__ == "__main__":
    sys.exit(main())
