"""Calls whose sizes change: how many recordings they take, and the time over eager.

`pip install transformers`, then `python benchmarks/shapes.py`; nothing is downloaded. Each model is called
at 20 sizes, plain and traced by turns. Then `generate` of transformers runs with the forward traced. Results,
gradients, statistics and tokens must be equal bit by bit; where they are not, the row says so and the exit
status is 1. All of it takes half an hour; parts of it take minutes:

    python benchmarks/shapes.py models                      # the first table; `texts` is the second one
    python benchmarks/shapes.py models BERT LSTM            # some of the models
    python benchmarks/shapes.py models --dynamic None True  # other values of `dynamic`
    python benchmarks/shapes.py models --compile eager      # torch.compile beside it, with this backend
    python benchmarks/shapes.py texts Llama --tokens 128 --ways greedy beam --caches dynamic
"""

from __future__ import annotations

import argparse
import copy
import functools
import os
import random
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from shape_models import SUBJECTS, Subject, same
from shape_texts import CACHES, PROMPTS, TEXTS, WAYS, generate
from torch import nn

import lazytrace

SIZES = range(5, 25)
MODES = {"None": None, "True": True, "False": False}
# The second one does not count what other work takes of a machine: one torch thread does all.
CLOCKS = {"wall": time.perf_counter, "thread": time.thread_time}
COUNTS = ("recorded", "of them at exits", "hits", "eager", "equal")


# ---------------------------------------------------------------- measuring
@dataclass
class Column:
    """What one way of calling gave, each list with an entry per trial."""

    first: list[float] = field(default_factory=list)
    steady: list[float] = field(default_factory=list)
    differs: bool = False
    counts: str = ""
    reasons: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = "DIFFERS" if self.differs else "equal"
        return f"{self.counts} | {verdict} | {ratio(self.first)} | {ratio(self.steady)}"


def ratio(values: list[float]) -> str:
    """The median of some ratios."""
    return f"{statistics.median(values):.2f}" if values else ""


def by_turns(
    work: Callable[[Any], Any],
    ways: list[Any],
    turn: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[tuple[Any, float]]:
    """The result and seconds of each way, in the order of `ways`; which goes first hangs on the turn."""
    found: dict[int, tuple[Any, float]] = {}
    for way in ways if turn % 2 else ways[::-1]:
        begin = clock()
        result = work(way)
        found[id(way)] = result, clock() - begin
    return [found[id(way)] for way in ways]


def trial(
    subject: Subject, model: nn.Module, other: Any, column: Column, rounds: int, exact: bool = True
) -> None:
    """All sizes once, then `rounds` times more, plain and another way by turns."""
    batches = [subject.batch(size) for size in random.sample(SIZES, len(SIZES))]
    for _ in range(2):  # what torch sets up once is no part of the time
        subject.call(copy.deepcopy(model), subject.batch(SIZES.stop))
    passes: list[list[tuple[float, float]]] = []
    for number in range(rounds + 1):
        passes.append([])
        for index, batch in enumerate(batches):
            work = functools.partial(answer, subject, batch)
            (plain, plain_time), (found, found_time) = by_turns(work, [model, other], number + index)
            column.differs |= exact and not same(plain, found)
            passes[-1].append((plain_time, found_time))
    column.differs |= exact and not same(dict(model.named_buffers()), dict(other.named_buffers()))
    column.first.append(over(passes[:1]))
    column.steady.append(over(passes[1:]))


def answer(subject: Subject, batch: dict[str, Any], model: nn.Module) -> Any:
    """What the model gives at a turn, with equal random numbers for all who have one."""
    torch.manual_seed(0)
    return subject.call(model, batch)


def over(passes: list[list[tuple[float, float]]]) -> float:
    """The time over eager: each size with its median, all sizes together."""
    by_size = list(zip(*passes, strict=True))
    plain, other = (sum(statistics.median(t[i] for t in times) for times in by_size) for i in (0, 1))
    return other / plain


def counts_of(stats: Any) -> str:
    """Recordings, those of them that began at a side exit, hits and eager calls of a trial."""
    reasons = [event.reasons for event in stats.events if event.kind == "recorded"]
    branches = sum(any(reason.kind == "branch" for reason in of_one) for of_one in reasons)
    return f"{stats.recordings} | {branches} | {stats.hits} | {stats.eager_calls}"


def reasons_of(stats: Any) -> list[str]:
    """Why there was more than one recording, and why calls ran eagerly."""
    found = [f"recorded {reason.count}: {reason.text}" for reason in stats.retrace_reasons]
    return found + [f"eager {times}: {reason}" for reason, times in stats.eager.items()]


def column_of(subject: Subject, dynamic: bool | None, trials: int, rounds: int) -> Column:
    """Several trials of a fresh model."""
    column = Column()
    for number in range(trials):
        torch.manual_seed(number)
        random.seed(number)
        model = subject.model()
        traced = lazytrace.traced(copy.deepcopy(model), dynamic=dynamic)
        trial(subject, model, traced, column, rounds)
        stats = traced.stats()
        column.counts, column.reasons = counts_of(stats), reasons_of(stats)
    return column


def compiled(subject: Subject, dynamic: bool | None, backend: str, rounds: int) -> str:
    """The same with torch.compile, which need not be equal bit by bit; once, as it is slow."""
    column = Column()
    torch.manual_seed(0)
    random.seed(0)
    torch.compiler.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    model = subject.model()
    other = torch.compile(copy.deepcopy(model), dynamic=dynamic, backend=backend)
    try:
        trial(subject, model, other, column, rounds, exact=False)
    except Exception as error:
        return f"raised {type(error).__name__} | | "
    return f"{counters['stats']['unique_graphs']} | {ratio(column.first)} | {ratio(column.steady)}"


# ---------------------------------------------------------------- generation
def generation(
    name: str, tokens: int, way: str, cache: str, clock: Callable[[], float], dynamic: bool | None
) -> Column:
    """Texts for some prompts of several lengths: the first is cold, the others warm."""
    build, prompt = TEXTS[name]
    torch.manual_seed(0)
    plain, traced = build().eval(), build().eval()
    traced.load_state_dict(plain.state_dict())
    traced.forward = lazytrace.traced(traced.forward, dynamic=dynamic)
    options = {**WAYS[way], **CACHES[cache]}
    for _ in range(2):
        generate(prompt(6), 4, options, plain)
    column, ratios = Column(), []
    for number, length in enumerate(PROMPTS):
        work = functools.partial(generate, prompt(length), tokens, options)
        (one, one_time), (other, other_time) = by_turns(work, [plain, traced], number, clock)
        column.differs |= not torch.equal(one, other)
        ratios.append(other_time / one_time)
    column.first, column.steady = ratios[:1], ratios[1:]
    stats = traced.forward.stats()
    column.counts, column.reasons = counts_of(stats), reasons_of(stats)
    return column


# ---------------------------------------------------------------- printing
def rows(
    name: str, modes: list[str], column: Callable[[bool | None], Column]
) -> Iterator[tuple[str, Column | None]]:
    """A line for each value of `dynamic`, with what it is made of; None where it raised."""
    for label in modes:
        try:
            found = column(MODES[label])
        except Exception:
            traceback.print_exc()
            yield f"| {name} | {label} | raised what eager does not |", None
        else:
            yield f"| {name} | {label} | {found} |", found


def show(lines: Iterator[tuple[str, Column | None]], verbose: bool) -> bool:
    """Print lines as they come, each with its reasons when asked for; whether all were equal."""
    agreed = True
    for line, column in lines:
        print(line, flush=True)
        agreed &= column is not None and not column.differs
        for reason in column.reasons if column is not None and verbose else ():
            print(f"    {reason}", file=sys.stderr)
    return agreed


def head(first: str, second: str, names: tuple[str, ...]) -> str:
    """The head of a table whose first two columns are words."""
    return f"\n| {first} | {second} | {' | '.join(names)} |\n|---|---|{'---:|' * len(names)}"


def models(options: argparse.Namespace) -> bool:
    """The table of the models; whether all were equal."""
    subjects = [subject for subject in SUBJECTS if not options.names or subject.name in options.names]
    print(head("model", "dynamic", (*COUNTS, "first pass over eager", "steady over eager")))
    agreed = True
    for subject in subjects:
        find = functools.partial(column_of, subject, trials=options.trials, rounds=options.rounds)
        agreed &= show(rows(subject.name, options.dynamic or ["None", "False"], find), options.verbose)
    if options.compile:
        print(head("torch.compile of", "dynamic", ("graphs", "first pass over eager", "steady over eager")))
        for subject in subjects:
            for label in ("None", "True"):
                found = compiled(subject, MODES[label], options.compile, options.rounds)
                print(f"| {subject.name} | {label} | {found} |", flush=True)
    return agreed


def texts(options: argparse.Namespace) -> bool:
    """The table of the generated texts; whether all were equal."""
    print(head("generate", "dynamic", (*COUNTS, "cold over eager", "warm over eager")))
    agreed = True
    for name in options.names or TEXTS:
        for cache in options.caches:
            for way in options.ways:
                for tokens in options.tokens:
                    find = functools.partial(generation, name, tokens, way, cache, CLOCKS[options.clock])
                    label = f"{name}, {cache} cache, {way}, {tokens} tokens"
                    agreed &= show(rows(label, options.dynamic or ["None"], find), options.verbose)
    return agreed


def parsed(arguments: list[str]) -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", default="all", choices=("all", "models", "texts"))
    parser.add_argument("names", nargs="*", help="models, all if none is named")
    parser.add_argument("--dynamic", nargs="*", choices=MODES)
    parser.add_argument("--compile", default="", metavar="BACKEND", help="torch.compile beside the models")
    parser.add_argument("--tokens", nargs="*", type=int, default=[32, 128, 512])
    parser.add_argument("--ways", nargs="*", default=[*WAYS], choices=WAYS)
    parser.add_argument("--caches", nargs="*", default=[*CACHES], choices=CACHES)
    parser.add_argument("--clock", default="wall", choices=CLOCKS, help="what times the texts")
    parser.add_argument("--verbose", action="store_true", help="print reasons to stderr")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5, help="steady passes over the sizes")
    return parser.parse_intermixed_args(arguments)


def main(arguments: list[str]) -> int:
    """Both tables, or what is asked for."""
    options = parsed(arguments)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    torch.set_num_threads(1)
    warnings.simplefilter("error", lazytrace.ProofWarning)
    warnings.simplefilter("ignore", lazytrace.RetraceWarning)
    agreed = options.part == "texts" or models(options)
    agreed &= options.part == "models" or texts(options)
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
