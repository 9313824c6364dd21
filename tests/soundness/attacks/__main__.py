"""`python -m tests.soundness.attacks --count N --seed S [--jobs J]`: many attacks, and a table of what was wrong."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.soundness.attacks.programs import attack
from tests.soundness.attacks.running import one, outcome, run_batch, run_many, table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--show", type=int, help="print the program of one case and how it ends")
    parser.add_argument("--wrong", type=Path, help="append each wrong case to this file")
    parser.add_argument("--batch", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.batch:
        import torch

        torch.set_num_threads(1)
        seed, start, stop, log = options.batch
        run_batch(int(seed), range(int(start), int(stop)), Path(log))
        return 0
    return show(options.seed, options.show) if options.show is not None else many(options)


def show(seed: int, number: int) -> int:
    case = attack(seed, number)
    print(case.text if case else "nothing fits this source")
    print(outcome(case) if case else one(seed, number))
    return 0


def many(options: argparse.Namespace) -> int:
    ended: Counter[str] = Counter()
    kinds: dict[str, Counter[str]] = {
        "source": Counter(),
        "consumer": Counter(),
        "way": Counter(),
        "change": Counter(),
    }
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        for row in run_many(options.seed, options.start, options.count, options.jobs, Path(folder)):
            number, verdict, *rest = row
            ended[verdict] += 1
            ended["telling and hit"] += verdict == "hit" and rest[2]
            if verdict in ("wrong", "crash"):
                case = attack(options.seed, number)
                assert case
                report = f"#### {options.seed}:{number} {verdict}\n{case.text}\n# {rest}\n"
                if options.wrong:
                    with options.wrong.open("a") as file:
                        file.write(report)
                for kind, value in zip(
                    kinds, (case.source, case.consumer, case.way, case.change), strict=True
                ):
                    kinds[kind][value] += 1
    for kind, rows in kinds.items():
        print(f"--- wrong by {kind}\n{table(rows)}")
    print(f"--- {options.count} cases, {time.time() - began:.0f} s: {dict(ended)}")
    return 1 if ended["wrong"] + ended["crash"] else 0


if __name__ == "__main__":
    sys.exit(main())
