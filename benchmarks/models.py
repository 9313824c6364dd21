"""Real models with small random configurations: what is replayed, and whether it is what eager gives.

`pip install transformers`, then `python benchmarks/models.py`, with names to choose some; nothing is
downloaded. Each model is trained for five steps, for one with another length, and evaluated with changing
shapes: once plain and once with its forward traced, from equal seeds. Losses, outputs, gradients, weights and
the random stream must be equal bit by bit; where they are not, the row says so and the exit status is 1.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import lazytrace

Batch = dict[str, Any]
WORDS, WIDTH = 50, 16


@dataclass(frozen=True)
class Subject:
    """A model, what it is given for a length, and how it is evaluated."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[Any], torch.Tensor]
    evaluate: Callable[[nn.Module, Callable[[int], Batch]], Iterator[Any]]


# ---------------------------------------------------------------- evaluation
def over_lengths(model: nn.Module, batch: Callable[[int], Batch]) -> Iterator[Any]:
    """One call for each of some changing lengths."""
    for length in (8, 8, 5, 8, 5, 5):
        yield model(**batch(length))


def token_by_token(model: nn.Module, batch: Callable[[int], Batch]) -> Iterator[Any]:
    """Greedy decoding with the model's cache, twice."""
    for _ in range(2):
        out = model(input_ids=batch(5)["input_ids"], use_cache=True)
        for _ in range(4):
            yield out.logits
            token = out.logits[:, -1:].argmax(-1)
            out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)


# ---------------------------------------------------------------- batches
def tokens(length: int, rows: int = 2) -> torch.Tensor:
    """(rows, length) token ids."""
    return torch.randint(2, WORDS, (rows, length))


def language(length: int) -> Batch:
    """Token ids that are their own labels."""
    ids = tokens(length)
    return {"input_ids": ids, "labels": ids.clone()}


def masked(length: int) -> Batch:
    """Token ids with padding at the end of the second row."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, length // 2 :] = 0
    return {**language(length), "attention_mask": mask}


def pictures(rows: int) -> Batch:
    """As many 12 by 12 images as the length says."""
    return {"pixel_values": torch.randn(rows, 3, 12, 12), "labels": torch.randint(0, 4, (rows,))}


def speech(length: int) -> Batch:
    """Spectrograms of a fixed length, labels of the one given."""
    return {"input_features": torch.randn(2, 8, 32), "labels": tokens(length)}


def sequences(length: int) -> Batch:
    """A (2, length, WIDTH) input."""
    return {"x": torch.randn(2, length, WIDTH)}


def pairs(length: int) -> Batch:
    """A source and a target of different lengths."""
    return {"src": torch.randn(2, length, WIDTH), "tgt": torch.randn(2, length - 2, WIDTH)}


def graph(nodes: int) -> Batch:
    """Node features and three random edges for each node."""
    return {"x": torch.randn(nodes, WIDTH), "edges": torch.randint(0, nodes, (2, 3 * nodes))}


def loss_of(out: Any) -> torch.Tensor:
    """The loss that a transformers model returns."""
    return out.loss


def square(out: Any) -> torch.Tensor:
    """A loss for models that return tensors."""
    first = out if isinstance(out, torch.Tensor) else out[0]
    return first.square().mean()


# ---------------------------------------------------------------- models
def bert() -> nn.Module:
    """BERT for masked language modeling, with dropout."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
        )
    )


def gpt2() -> nn.Module:
    """GPT-2, with dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS, n_positions=32, n_embd=WIDTH, n_layer=2, n_head=2, use_cache=False,
            bos_token_id=1, eos_token_id=1,
        )
    )  # fmt: skip


def llama() -> nn.Module:
    """Llama with grouped attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, use_cache=False,
        )
    )  # fmt: skip


def t5() -> nn.Module:
    """T5, encoder and decoder."""
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=WORDS, d_model=WIDTH, d_kv=8, d_ff=32, num_layers=2, num_heads=2, use_cache=False,
            decoder_start_token_id=0,
        )
    )  # fmt: skip


def vit() -> nn.Module:
    """A vision transformer that classifies."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            image_size=12, patch_size=4, num_labels=4, hidden_dropout_prob=0.1,
        )
    )  # fmt: skip


def whisper() -> nn.Module:
    """Whisper, on spectrograms."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=WORDS, num_mel_bins=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, d_model=WIDTH,
            max_source_positions=16, max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=1,
            decoder_start_token_id=0, use_cache=False, dropout=0.1,
        )
    )  # fmt: skip


def transformer() -> nn.Module:
    """PyTorch's own encoder and decoder."""
    return nn.Transformer(WIDTH, 2, 1, 1, 32, batch_first=True)


class Recurrent(nn.Module):
    """A two-layer LSTM with dropout and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(batch, length, WIDTH) -> logits and the last state."""
        out, (h, _) = self.lstm(x)
        return self.head(out), h


class GraphNetwork(nn.Module):
    """Two rounds of mean messages along edges, by `index_add` and `scatter_add`, with batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2 * WIDTH, WIDTH) for _ in range(2)])
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """(nodes, WIDTH) and (2, edges) -> one number for each node."""
        source, target = edges
        degree = torch.zeros(len(x)).scatter_add(0, target, torch.ones(len(target)))
        for layer in self.layers:
            message = torch.zeros_like(x).index_add(0, target, x[source]) / degree.clamp(min=1)[:, None]
            x = torch.relu(self.norm(layer(torch.cat([x, message], -1))))
        if (degree == 0).any():
            x = x * (degree > 0)[:, None]
        return x.sum(-1)


class Autoencoder(nn.Module):
    """A variational autoencoder on torch.distributions; returns the negative evidence lower bound."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, 8), nn.Linear(4, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(batch, length, WIDTH) -> the loss and the mean of the reconstruction."""
        mean, scale = self.encoder(x).chunk(2, -1)
        posterior = torch.distributions.Normal(mean, F.softplus(scale) + 1e-3)
        z = posterior.rsample()
        output = torch.distributions.Normal(self.decoder(z), 1.0)
        prior = torch.distributions.Normal(torch.zeros_like(mean), 1.0)
        kl = torch.distributions.kl_divergence(posterior, prior).sum(-1)
        return (kl - output.log_prob(x).sum(-1)).mean(), output.mean


SUBJECTS = [
    Subject("BERT", bert, masked, loss_of, over_lengths),
    Subject("GPT-2", gpt2, language, loss_of, over_lengths),
    Subject("GPT-2 with cache", gpt2, language, loss_of, token_by_token),
    Subject("Llama", llama, masked, loss_of, over_lengths),
    Subject("Llama with cache", llama, language, loss_of, token_by_token),
    Subject("T5", t5, masked, loss_of, over_lengths),
    Subject("ViT", vit, pictures, loss_of, over_lengths),
    Subject("Whisper", whisper, speech, loss_of, over_lengths),
    Subject("nn.Transformer", transformer, pairs, square, over_lengths),
    Subject("LSTM", Recurrent, sequences, square, over_lengths),
    Subject("graph network", GraphNetwork, graph, square, over_lengths),
    Subject("autoencoder", Autoencoder, sequences, lambda out: out[0], over_lengths),
]


# ---------------------------------------------------------------- running and comparing
def flat(value: Any) -> list[torch.Tensor]:
    """Copies of the tensors in a result."""
    if isinstance(value, torch.Tensor):
        return [value.detach().clone()]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in flat(part)]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, subject: Subject, length: int) -> Any:
    """Forward, backward and an optimizer step; what can be seen of it."""
    out = model(**subject.batch(length))
    optimizer.zero_grad()
    loss = subject.loss(out)
    loss.backward()
    optimizer.step()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [loss.detach().clone(), *flat(out), *gradients]


def seen(subject: Subject, trace: bool) -> tuple[list[list[torch.Tensor]], Any]:
    """Everything that a run shows, in order, and the traced model."""
    torch.manual_seed(0)
    random.seed(0)
    model = subject.build().train()
    if trace:
        model = lazytrace.traced(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    log = [train_step(model, optimizer, subject, length) for length in (8, 8, 8, 8, 8, 6)]
    model.eval()
    with torch.no_grad():
        log += [flat(out) for out in subject.evaluate(model, subject.batch)]
    log.append([*(t.detach().clone() for t in model.state_dict().values()), torch.get_rng_state()])
    return log, model


def difference(plain: list[list[torch.Tensor]], traced: list[list[torch.Tensor]]) -> str:
    """Where two runs first differ, or ""."""
    for number, (a, b) in enumerate(zip(plain, traced, strict=True)):
        if len(a) != len(b):
            return f"step {number} gives {len(a)} tensors in eager and {len(b)} traced"
        for place, (x, y) in enumerate(zip(a, b, strict=True)):
            if x.dtype != y.dtype or not torch.equal(x.nan_to_num(), y.nan_to_num()):
                return f"step {number}, tensor {place}"
    return ""


def guards_of(model: Any) -> int:
    """Guards of the newest program of a traced model, 0 where there is none."""
    traces = [trace for cache in model._self_engine.caches() for trace in cache.traces.all()]
    return traces[-1].native.guards if traces else 0


def row(subject: Subject) -> bool:
    """Print one model's row and reasons; whether both ways agreed."""
    plain, _ = seen(subject, False)
    try:
        traced, model = seen(subject, True)
    except Exception:
        traceback.print_exc()
        print(f"{subject.name:18} raised what eager does not")
        return False
    differs, counts = difference(plain, traced), model.stats()
    operators = counts.operators[-1] if counts.operators else 0
    print(
        f"{subject.name:18}{counts.calls:6}{counts.hits:6}{counts.recordings:6}{counts.eager_calls:6}"
        f"{operators:6}{guards_of(model):8}  {'DIFFERS at ' + differs if differs else 'equal'}"
    )
    for reason in counts.retrace_reasons:
        print(f"    recorded {reason.count}: {reason.text}")
    for reason, times in counts.eager.items():
        print(f"    eager {times}: {reason}")
    return not differs


def main(names: list[str]) -> int:
    """All models, or those named."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    torch.set_num_threads(1)
    warnings.simplefilter("error", lazytrace.ProofWarning)
    print(f"{'model':18}{'calls':>6}{'hits':>6}{'rec':>6}{'eager':>6}{'ops':>6}{'guards':>8}")
    wanted = [subject for subject in SUBJECTS if not names or subject.name in names]
    agreed = [row(subject) for subject in wanted]
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
