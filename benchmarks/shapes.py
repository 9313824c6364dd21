"""Calls whose sizes change: how many recordings they take, and the time over eager.

`pip install transformers`, then `python benchmarks/shapes.py`; nothing is downloaded. Each model is called
at 20 sizes, plain and traced by turns, once with `dynamic=None` and once with `dynamic=False`. Then
`generate` of transformers runs with the forward traced. Results, gradients and tokens must be equal bit by
bit; where they are not, the row says so and the exit status is 1.

    python benchmarks/shapes.py BERT LSTM         # some of the models
    python benchmarks/shapes.py --compile         # torch.compile(dynamic=True) beside it; takes minutes
    python benchmarks/shapes.py --no-generation   # or --no-models
"""

from __future__ import annotations

import argparse
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
from models import WIDTH, Batch, GraphNetwork, Recurrent, bert, flat, gpt2, graph, language, masked, sequences
from torch import nn

import lazytrace

SIZES = range(5, 25)
MODES = {"None": None, "False": False}
PROMPTS = (8, 5, 11, 9, 8)  # lengths; the first one is cold


# ---------------------------------------------------------------- models
class Residual(nn.Module):
    """Two convolutions with batch normalization around which the input is added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, channels, height, width), the same out."""
        y = torch.relu(self.norm1(self.first(x)))
        return torch.relu(x + self.norm2(self.second(y)))


def residual_network() -> nn.Module:
    """A small ResNet for images of any size."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), *(Residual(8) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def encoder() -> nn.Module:
    """PyTorch's own encoder."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def vit() -> nn.Module:
    """A vision transformer that classifies."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            image_size=12, patch_size=4, num_labels=4,
        )
    )  # fmt: skip


def rows_of_pictures(rows: int) -> Batch:
    """As many 12 by 12 images as the size says."""
    return {"pixel_values": torch.randn(rows, 3, 12, 12)}


def pictures_of_size(size: int) -> Batch:
    """Two images, as high as the size says and wider."""
    return {"input": torch.randn(2, 3, size, size + 3)}


def sources(length: int) -> Batch:
    """A (2, length, WIDTH) input."""
    return {"src": torch.randn(2, length, WIDTH)}


@dataclass(frozen=True)
class Subject:
    """A model and what it is given for a size, as people give it; `trains`: with gradients."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    trains: bool = False
    by_keyword: bool = False

    def call(self, model: nn.Module, batch: Batch) -> Any:
        """What the model gives."""
        return model(**batch) if self.by_keyword else model(*batch.values())


SUBJECTS = [
    Subject("GPT-2", gpt2, language, by_keyword=True),
    Subject("GPT-2, backward", gpt2, language, trains=True, by_keyword=True),
    Subject("BERT", bert, masked, by_keyword=True),
    Subject("ViT", vit, rows_of_pictures),
    Subject("ResNet", residual_network, pictures_of_size),
    Subject("LSTM", Recurrent, sequences),
    Subject("nn.TransformerEncoder", encoder, sources),
    Subject("graph network", GraphNetwork, graph),
]


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


def call(subject: Subject, parameters: list[torch.Tensor], batch: Batch, model: nn.Module) -> Any:
    """What the model gives, with its gradients where it trains."""
    if not subject.trains:
        with torch.no_grad():
            return subject.call(model, batch)
    out = subject.call(model, batch)
    return [out, *torch.autograd.grad(out.loss, parameters)]


def same(a: Any, b: Any) -> bool:
    """Whether all tensors of two results are equal bit by bit."""
    one, other = flat(a), flat(b)
    return len(one) == len(other) and all(
        x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(one, other, strict=True)
    )


def by_turns(work: Callable[[Any], Any], ways: list[Any], turn: int) -> list[tuple[Any, float]]:
    """The result and seconds of each way, in the order of `ways`; which goes first hangs on the turn."""
    found: dict[int, tuple[Any, float]] = {}
    for way in ways if turn % 2 else ways[::-1]:
        begin = time.perf_counter()
        result = work(way)
        found[id(way)] = result, time.perf_counter() - begin
    return [found[id(way)] for way in ways]


def trial(
    subject: Subject, model: nn.Module, traced: Any, column: Column, rounds: int, exact: bool = True
) -> None:
    """All sizes once, then `rounds` times more, plain and traced by turns."""
    parameters = list(model.parameters())
    batches = [subject.batch(size) for size in random.sample(SIZES, len(SIZES))]
    for _ in range(2):  # what torch sets up once is no part of the time
        call(subject, parameters, subject.batch(SIZES.stop), model)
    passes: list[list[tuple[float, float]]] = []
    for number in range(rounds + 1):
        passes.append([])
        for index, batch in enumerate(batches):
            work = functools.partial(call, subject, parameters, batch)
            (plain, plain_time), (other, time_taken) = by_turns(work, [model, traced], number + index)
            column.differs |= exact and not same(plain, other)
            passes[-1].append((plain_time, time_taken))
    column.first.append(over(passes[:1]))
    column.steady.append(over(passes[1:]))


def over(passes: list[list[tuple[float, float]]]) -> float:
    """The time over eager: each size with its median, all sizes together."""
    by_size = list(zip(*passes, strict=True))
    plain, other = (sum(statistics.median(t[i] for t in times) for times in by_size) for i in (0, 1))
    return other / plain


def counts_of(stats: Any) -> str:
    """Recordings, hits and eager calls of a trial."""
    return f"{stats.recordings} | {stats.hits} | {stats.eager_calls}"


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
        model = subject.build().eval()
        traced = lazytrace.traced(model, dynamic=dynamic)
        trial(subject, model, traced, column, rounds)
        stats = traced.stats()
        column.counts, column.reasons = counts_of(stats), reasons_of(stats)
    return column


def compiled(subject: Subject, rounds: int) -> str:
    """The same with torch.compile, which need not be equal bit by bit; once, as it is slow."""
    column = Column()
    torch.compiler.reset()
    model = subject.build().eval()
    try:
        trial(subject, model, torch.compile(model, dynamic=True), column, rounds, exact=False)
    except Exception as error:
        return f"raised {type(error).__name__} | "
    return f"{ratio(column.first)} | {ratio(column.steady)}"


# ---------------------------------------------------------------- generation
def gpt2_for_text() -> nn.Module:
    """GPT-2 with a cache and room for 160 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=100, n_positions=160, n_embd=64, n_layer=4, n_head=4, bos_token_id=1,
            eos_token_id=None, pad_token_id=0,
        )
    )  # fmt: skip


def llama_for_text() -> nn.Module:
    """Llama with grouped attention and a cache."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, bos_token_id=1, eos_token_id=None, pad_token_id=0,
        )
    )  # fmt: skip


def generate(prompt: torch.Tensor, tokens: int, sample: bool, model: nn.Module) -> torch.Tensor:
    """Token ids, the prompt's first."""
    torch.manual_seed(0)
    mask = torch.ones_like(prompt)
    return model.generate(prompt, attention_mask=mask, max_new_tokens=tokens, do_sample=sample)


def generation(build: Callable[[], nn.Module], dynamic: bool | None, tokens: int, sample: bool) -> Column:
    """Texts for some prompts of several lengths: the first is cold, the others warm."""
    torch.manual_seed(0)
    plain, traced = build().eval(), build().eval()
    traced.load_state_dict(plain.state_dict())
    traced.forward = lazytrace.traced(traced.forward, dynamic=dynamic)
    for _ in range(2):
        generate(torch.randint(2, 100, (1, 6)), 4, sample, plain)
    column, ratios = Column(), []
    for number, length in enumerate(PROMPTS):
        prompt = torch.randint(2, 100, (1, length))
        work = functools.partial(generate, prompt, tokens, sample)
        (one, one_time), (other, other_time) = by_turns(work, [plain, traced], number)
        column.differs |= not torch.equal(one, other)
        ratios.append(other_time / one_time)
    column.first, column.steady = ratios[:1], ratios[1:]
    stats = traced.forward.stats()
    column.counts, column.reasons = counts_of(stats), reasons_of(stats)
    return column


# ---------------------------------------------------------------- printing
def rows(name: str, column: Callable[[bool | None], Column]) -> Iterator[tuple[str, Column | None]]:
    """A line for each value of `dynamic`, with what it is made of; None where it raised."""
    for label, dynamic in MODES.items():
        try:
            found = column(dynamic)
        except Exception:
            traceback.print_exc()
            yield f"| {name} | {label} | raised what eager does not |", None
        else:
            yield f"| {name} | {label} | {found} |", found


def show(lines: Iterator[tuple[str, Column | None]], after: str, verbose: bool) -> bool:
    """Print lines as they come, each with its reasons when asked for; whether all were equal."""
    agreed = True
    for line, column in lines:
        print(line + after, flush=True)
        agreed &= column is not None and not column.differs
        for reason in column.reasons if column is not None and verbose else ():
            print(f"    {reason}", file=sys.stderr)
    return agreed


def head(first: str, names: tuple[str, ...]) -> str:
    """The head of a table whose first two columns are words."""
    return f"\n| {first} | dynamic | {' | '.join(names)} |\n|---|---|{'---:|' * len(names)}"


def models(options: argparse.Namespace) -> bool:
    """The table of the models; whether all were equal."""
    names = ("recorded", "hits", "eager", "equal", "first pass over eager", "steady over eager")
    print(head("model", names + ("compile: first", "compile: steady") * options.compile))
    agreed = True
    for subject in SUBJECTS:
        if options.names and subject.name not in options.names:
            continue
        after = f" {compiled(subject, options.rounds)} |" if options.compile else ""
        lines = rows(subject.name, lambda d, s=subject: column_of(s, d, options.trials, options.rounds))
        agreed &= show(lines, after, options.verbose)
    return agreed


def texts(options: argparse.Namespace) -> bool:
    """The table of the generated texts; whether all were equal."""
    print(head("generate", ("recorded", "hits", "eager", "equal", "cold over eager", "warm over eager")))
    agreed = True
    for name, build in (("GPT-2", gpt2_for_text), ("Llama", llama_for_text)):
        for sample in (False, True):
            for tokens in (32, 128):
                label = f"{name}, {'sampling' if sample else 'greedy'}, {tokens} tokens"
                lines = rows(label, lambda d, b=build, t=tokens, s=sample: generation(b, d, t, s))
                agreed &= show(lines, "", options.verbose)
    return agreed


def main(arguments: list[str]) -> int:
    """Both tables, or what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="models, all if none is named")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--no-models", action="store_true")
    parser.add_argument("--no-generation", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="print reasons to stderr")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5, help="steady passes over the sizes")
    options = parser.parse_args(arguments)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    torch.set_num_threads(1)
    warnings.simplefilter("error", lazytrace.ProofWarning)
    warnings.simplefilter("ignore", lazytrace.RetraceWarning)
    agreed = options.no_models or models(options)
    agreed &= options.no_generation or texts(options)
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
