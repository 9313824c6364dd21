"""The models of S2 to S4 and S7, with small random configurations; nothing is downloaded.

Dropout is 0 everywhere, so that each result can be compared with eager's, in training too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
WORDS = 1000


class SmallOps(nn.Module):
    """10 layers of 13 small operators: 130 in all, without submodules."""

    def __init__(self, width: int = 64, layers: int = 10) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(width, width) * 0.1 for _ in range(layers)])
        self.biases = nn.ParameterList([torch.zeros(width) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, width) -> (batch, width)."""
        for weight, bias in zip(self.weights, self.biases, strict=True):
            h = torch.mm(x, weight)
            h = h + bias
            h = h - h.mean(-1, keepdim=True)
            variance = (h * h).mean(-1, keepdim=True)
            h = h * torch.rsqrt(variance + 1e-5)
            h = h * torch.sigmoid(h)
            h = h * 0.5
            x = x + h
        return x


class Transformer(nn.Module):
    """A model of transformers: ids in, the last hidden state out, so that all contenders see tensors only."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(batch, length) -> (batch, length, width)."""
        states: torch.Tensor = self.model(input_ids=ids, **self.options)[0]
        return states


def gpt2() -> nn.Module:
    """Four layers, 128 wide."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        n_layer=4,
        n_embd=128,
        n_head=4,
        vocab_size=WORDS,
        n_positions=512,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=1,
    )
    return Transformer(GPT2Model(config), use_cache=False)


def bert() -> nn.Module:
    """Four layers, 128 wide."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        num_hidden_layers=4,
        hidden_size=128,
        num_attention_heads=4,
        intermediate_size=512,
        vocab_size=WORDS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Transformer(BertModel(config, add_pooling_layer=False))


def llama() -> nn.Module:
    """Four layers, 128 wide."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        num_hidden_layers=4,
        hidden_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=256,
        vocab_size=WORDS,
    )
    return Transformer(LlamaModel(config), use_cache=False)


class Block(nn.Module):
    """A basic block of a residual network."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut: nn.Module | None = None
        if before != after or stride != 1:
            conv = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images to images."""
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet18(nn.Module):
    """The layout of ResNet-18 (stem, 4 stages of 2 basic blocks, linear layer), 16 to 128 wide."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks, before = [], width
        for stage in range(4):
            after = width * 2**stage
            blocks += [Block(before, after, 1 if stage == 0 else 2), Block(after, after, 1)]
            before = after
        self.body = nn.Sequential(*blocks)
        self.classes = nn.Linear(before, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 3, height, width) -> (batch, classes)."""
        pooled = self.body(self.stem(x)).mean((2, 3))
        scores: torch.Tensor = self.classes(pooled)
        return scores


class LSTMLoop(nn.Module):
    """An LSTM cell in a Python loop of 50 steps."""

    def __init__(self, width: int = 64, steps: int = 50) -> None:
        super().__init__()
        self.cell, self.steps = nn.LSTMCell(width, width), steps

    def forward(self, xs: torch.Tensor) -> torch.Tensor:
        """(steps, batch, width) -> (batch, width)."""
        hidden = state = torch.zeros_like(xs[0])
        for step in range(self.steps):
            hidden, state = self.cell(xs[step], (hidden, state))
        return hidden


class MiniGPT(nn.Module):
    """Two causal blocks, which S4 calls with many sequence lengths."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(512, width)
        self.qkv = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(layers)])
        self.mlps = nn.ModuleList(
            [
                nn.Sequential(
                    nn.LayerNorm(width),
                    nn.Linear(width, 2 * width),
                    nn.GELU(),
                    nn.Linear(2 * width, width),
                )
                for _ in range(layers)
            ]
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(batch, length) -> (batch, length, width)."""
        batch, length = ids.shape
        x: torch.Tensor = self.words(ids) + self.places.weight[:length]
        for norm, qkv, mlp in zip(self.norms, self.qkv, self.mlps, strict=True):
            parts = qkv(norm(x)).chunk(3, -1)
            q, k, v = (part.view(batch, length, 4, -1).transpose(1, 2) for part in parts)
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + heads.transpose(1, 2).reshape(batch, length, -1)
            x = x + mlp(x)
        return x


def norm_mlp() -> nn.Module:
    """Layers that differ between training and evaluation."""
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64))


# ---------------------------------------------------------------- the six, and their inputs
Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Subject:
    """How to build a model, and its inputs at both sizes."""

    build: Callable[[], nn.Module]
    small: Callable[[], Inputs]
    medium: Callable[[], Inputs]


def ids(batch: int, length: int) -> Inputs:
    """Random words."""
    return (torch.randint(0, WORDS, (batch, length)),)


def numbers(*shape: int) -> Inputs:
    """Random numbers."""
    return (torch.randn(*shape),)


SUBJECTS = {
    "smallops": Subject(SmallOps, lambda: numbers(4, 64), lambda: numbers(512, 64)),
    "gpt2": Subject(gpt2, lambda: ids(1, 16), lambda: ids(4, 128)),
    "bert": Subject(bert, lambda: ids(1, 16), lambda: ids(4, 128)),
    "llama": Subject(llama, lambda: ids(1, 16), lambda: ids(4, 128)),
    "resnet18": Subject(ResNet18, lambda: numbers(2, 3, 64, 64), lambda: numbers(8, 3, 96, 96)),
    "lstm50": Subject(LSTMLoop, lambda: numbers(50, 1, 64), lambda: numbers(50, 32, 64)),
}


def build(name: str) -> nn.Module:
    """A model, always with the same weights."""
    torch.manual_seed(0)
    return SUBJECTS[name].build()


def inputs(name: str, size: str) -> Inputs:
    """A model's inputs, `"small"` or `"medium"`, always the same."""
    torch.manual_seed(1)
    subject = SUBJECTS[name]
    return subject.small() if size == "small" else subject.medium()
