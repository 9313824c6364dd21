"""Whole training steps: the time of a traced step over that of the eager one, and whether both agree.

    python benchmarks/steps.py [--rounds 25] [--steps N] [--compile] [--device cuda] [NAME ...]

Seven steps, as users write them: zero_grad, forward, loss, backward, clipping, optimizer; one has a model of
transformers, where that is installed. Contenders run in turn, in one process, on one torch thread, in each
round as many steps one after the other as eager makes in 12 ms, as a training loop does (`--steps 1`: a step
each, with the caches as the other contenders have left them). The figure is the median of thread time, on a
GPU of the time on the wall until its last kernel has ended, over that of eager in the same round. `equal`
compares loss, parameters, gradients, buffers and optimizer state after all rounds, bit for bit; cuDNN adds up
the gradients of a convolution in any order.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lazytrace import traced

Batch = tuple[torch.Tensor, torch.Tensor]


class Block(nn.Module):
    """One layer of a small GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then two linear layers."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class GPT(nn.Module):
    """Two layers over 256 tokens; the loss is that of the next token."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, classes before places."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x)).transpose(1, 2)


class Residual(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(before, after, 3, stride, 1), nn.Conv2d(after, after, 3, 1, 1)
        self.norm, self.again = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.short = nn.Conv2d(before, after, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both ways together."""
        return F.relu(self.short(x) + self.again(self.two(F.relu(self.norm(self.one(x))))))


class LSTM(nn.Module):
    """The class of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.out = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores from the last cell."""
        return self.out(self.cells(x)[0][:, -1])


def mlp() -> nn.Module:
    """Three layers with a normalisation."""
    return nn.Sequential(
        nn.Linear(16, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)
    )


class GPT2(nn.Module):
    """The scores of transformers' GPT-2, of the same size; needs that package."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 256, "n_positions": 64}
        drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        self.model = GPT2LMHeadModel(GPT2Config(**sizes, **drops, bos_token_id=0, eos_token_id=1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, classes before places."""
        return self.model(input_ids=ids, use_cache=False).logits.transpose(1, 2)


def cnn() -> nn.Module:
    """Four residual blocks over 32 x 32 pixels."""
    blocks = [Residual(a, b, s) for a, b, s in ((3, 16, 1), (16, 32, 2), (32, 64, 2), (64, 128, 2))]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


@dataclass(frozen=True)
class Case:
    """A model, its optimizer, the shape of its input and the number of classes."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    shape: tuple[int, ...]
    classes: int
    clip: float | None = None

    def batch(self, device: str) -> Batch:
        """Random inputs and what they should give."""
        if self.model in (GPT, GPT2):
            ids = torch.randint(0, self.classes, (self.shape[0], self.shape[1] + 1), device=device)
            return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        classes = torch.randint(0, self.classes, self.shape[:1], device=device)
        return torch.randn(self.shape, device=device), classes


CASES = {
    "mlp sgd": Case(mlp, lambda p: torch.optim.SGD(p, lr=0.05), (8, 16), 4),
    "mlp adamw": Case(mlp, lambda p: torch.optim.AdamW(p, lr=1e-3), (8, 16), 4),
    "mlp adamw fused": Case(mlp, lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True), (8, 16), 4),
    "gpt adamw clip": Case(GPT, lambda p: torch.optim.AdamW(p, lr=1e-3), (2, 16), 256, 1.0),
    "gpt2 adamw clip": Case(GPT2, lambda p: torch.optim.AdamW(p, lr=1e-3), (2, 16), 256, 1.0),
    "cnn sgd momentum": Case(cnn, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), (4, 3, 32, 32), 10),
    "lstm adam": Case(LSTM, lambda p: torch.optim.Adam(p, lr=1e-3), (8, 20, 16), 4),
}


class Twin:
    """A model with its optimizer and the step that trains it."""

    def __init__(self, case: Case, wrap: Callable[[Any], Any], device: str) -> None:
        torch.manual_seed(0)
        self.on_gpu = device != "cpu"
        self.model = case.model().train().to(device)
        self.optimizer = case.optimizer(self.model.parameters())
        self.loss: torch.Tensor | None = None

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            if case.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), case.clip)
            self.optimizer.step()
            return loss

        self.step = wrap(step)

    def run(self, batch: Batch, steps: int = 1) -> float:
        """Time of some steps, in seconds."""
        start = self.now()
        for _ in range(steps):
            self.loss = self.step(*batch)
        return self.now() - start

    def now(self) -> float:
        """What the thread has used; where a GPU works, too, the time on the wall once that is done."""
        if not self.on_gpu:
            return time.thread_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def state(self) -> Iterator[torch.Tensor | None]:
        """All that a step may change."""
        yield self.loss
        yield from self.model.state_dict().values()
        yield from (p.grad for p in self.model.parameters())
        for kept in self.optimizer.state.values():
            yield from (value for value in kept.values() if isinstance(value, torch.Tensor))


def same(a: Twin, b: Twin) -> bool:
    """Whether two twins have come to the same numbers."""
    for x, y in zip(a.state(), b.state(), strict=True):
        if (x is None) != (y is None) or (x is not None and y is not None and not torch.equal(x, y)):
            return False
    return True


def measure(name: str, rounds: int, compiled: bool, steps: int | None, device: str) -> dict[str, Any]:
    """Ratios of one case; `steps` a round, or as many as take eager 12 ms."""
    case = CASES[name]
    twins = {"eager": Twin(case, lambda step: step, device), "traced": Twin(case, traced, device)}
    if compiled:
        twins["compile"] = Twin(case, torch.compile, device)
    torch.manual_seed(5)
    for _ in range(8):
        batch = case.batch(device)
        for twin in twins.values():
            twin.run(batch)
    if steps is None:
        once = [twins["eager"].run(batch) for _ in range(5)]
        steps = max(1, int(0.012 / statistics.median(once)))
        for _ in range(5):
            for key in set(twins) - {"eager"}:
                twins[key].run(batch)
    times: dict[str, list[float]] = {key: [] for key in twins}
    for _ in range(rounds):
        batch = case.batch(device)
        order = list(twins)
        random.shuffle(order)
        for key in order:
            times[key].append(twins[key].run(batch, steps) / steps)
    found: dict[str, Any] = {"eager us": 1e6 * statistics.median(times["eager"])}
    for key in twins:
        if key != "eager":
            found[key] = statistics.median(a / b for a, b in zip(times[key], times["eager"], strict=True))
    found["equal"] = same(twins["eager"], twins["traced"])
    found["calls"] = twins["traced"].step.cache_info()
    return found


def main() -> None:
    """Print one line for each step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--steps", type=int, help="how many steps a contender makes in a round")
    parser.add_argument("--compile", action="store_true", help="torch.compile of the whole step, too")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratios = []
    installed = importlib.util.find_spec("transformers") is not None
    for name in options.names or CASES:
        if name == "gpt2 adamw clip" and not (options.names or installed):
            print("transformers is not installed: its model is left out")
            continue
        found = measure(name, options.rounds, options.compile, options.steps, options.device)
        ratios.append(found["traced"])
        other = f"  torch.compile {found['compile']:.2f}" if options.compile else ""
        info = found["calls"]
        print(
            f"{name:18} eager {found['eager us']:8.0f} us  traced {found['traced']:.3f}{other}  "
            f"equal {found['equal']}  hits {info.hits} of {info.hits + info.misses}",
            flush=True,
        )
    print(f"geometric mean {statistics.geometric_mean(ratios):.3f}")


if __name__ == "__main__":
    main()
