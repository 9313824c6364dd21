"""Models that `shapes.py` calls at many sizes, and what they are given for a size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from models import (
    WIDTH,
    Batch,
    GraphNetwork,
    Recurrent,
    bert,
    flat,
    gpt2,
    graph,
    language,
    masked,
    sequences,
    t5,
)
from torch import nn


@dataclass(frozen=True)
class Subject:
    """A model and what it is given for a size, as people give it.

    `trains`: gradients are taken, too; `learns`: it is in training mode, with statistics that it updates.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    trains: bool = False
    learns: bool = False
    by_keyword: bool = False

    def model(self) -> nn.Module:
        """A new one, in its mode."""
        return self.build().train(self.learns)

    def call(self, model: nn.Module, batch: Batch) -> Any:
        """What the model gives, with its gradients where it trains."""
        if not self.trains:
            with torch.no_grad():
                return self._out(model, batch)
        out = self._out(model, batch)
        loss = out.loss if hasattr(out, "loss") else sum(t.square().mean() for t in flat_with_graph(out))
        return [out, *torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])]

    def _out(self, model: nn.Module, batch: Batch) -> Any:
        return model(**batch) if self.by_keyword else model(*batch.values())


def flat_with_graph(out: Any) -> list[torch.Tensor]:
    """The tensors of a result that is one or a tuple of them."""
    return [out] if isinstance(out, torch.Tensor) else list(out)


# ---------------------------------------------------------------- pictures
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


def normalized() -> nn.Module:
    """Linear layers with batch normalization between them."""
    return nn.Sequential(
        nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Linear(32, 4),
    )  # fmt: skip


class UNet(nn.Module):
    """Three levels down and up again, each joined with what was there on the way down."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 8), (8, 16), (16, 16))])
        self.up = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1) for a, b in ((32, 8), (16, 8))])
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, 3, height, width) -> (rows, 2, height, width)."""
        skips = []
        for layer in self.down:
            x = torch.relu(layer(x))
            skips.append(x)
            x = F.max_pool2d(x, 2, ceil_mode=True)
        x = F.interpolate(x, size=skips.pop().shape[-2:])
        for layer in self.up:
            skip = skips.pop()
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear")
            x = torch.relu(layer(torch.cat([x, skip], 1)))
        return self.head(x)


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


# ---------------------------------------------------------------- sequences
def encoder() -> nn.Module:
    """PyTorch's own encoder."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def sources(length: int) -> Batch:
    """A (2, length, WIDTH) input."""
    return {"src": torch.randn(2, length, WIDTH)}


def rows_of_numbers(rows: int) -> Batch:
    """A (rows, WIDTH) input."""
    return {"input": torch.randn(rows, WIDTH)}


# ---------------------------------------------------------------- values that say sizes
class Chosen(nn.Module):
    """The sum of the entries that a mask chooses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, WIDTH) -> a number."""
        mask = x > 0
        return x[mask].sum()


class Padded(nn.Module):
    """Attention over sequences of several lengths, which are padded to the longest."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
        """(total, WIDTH), (sequences,) -> (sequences, WIDTH)."""
        longest = lens.max().item()
        mask = torch.arange(longest)[None, :] < lens[:, None]
        x = rows.new_zeros(lens.shape[0], longest, WIDTH)
        x[mask] = self.inside(rows)
        scores = (x @ x.mT).masked_fill(~mask[:, None, :], float("-inf"))
        return (scores.softmax(-1) @ x).sum(1)


def several_lengths(size: int) -> Batch:
    """Four sequences, the longest of which is as long as the size says."""
    lens = torch.tensor([size, size // 2, 1, size - 2])
    return {"rows": torch.randn(int(lens.sum()), WIDTH), "lens": lens}


# ---------------------------------------------------------------- graphs
class Convolution(nn.Module):
    """Kipf and Welling's: neighbors, and the node itself, weighted by their degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)])

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """(nodes, WIDTH) and (2, edges) -> (nodes, WIDTH)."""
        loops = torch.arange(x.size(0))
        source, target = (torch.cat([row, loops]) for row in edges)
        degree = torch.zeros(x.size(0)).scatter_add_(0, target, torch.ones(target.numel()))
        weight = degree.rsqrt()[source] * degree.rsqrt()[target]
        for layer in self.layers:
            x = torch.relu(torch.zeros_like(x).index_add_(0, target, layer(x)[source] * weight[:, None]))
        return x


class Attention(nn.Module):
    """Velickovic's: a softmax over the edges that lead to a node."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(WIDTH, WIDTH, bias=False)
        self.source, self.target = (nn.Parameter(torch.randn(WIDTH)) for _ in range(2))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """(nodes, WIDTH) and (2, edges) -> (nodes, WIDTH)."""
        source, target = edges
        h, nodes = self.inside(x), x.size(0)
        scores = F.leaky_relu((h @ self.source)[source] + (h @ self.target)[target], 0.2)
        most = torch.full((nodes,), float("-inf")).scatter_reduce(0, target, scores, "amax")
        weights = (scores - most[target]).exp()
        total = torch.zeros(nodes).index_add(0, target, weights)
        weights = weights / (total[target] + 1e-16)
        return torch.zeros_like(h).index_add(0, target, h[source] * weights[:, None])


class Sampled(nn.Module):
    """Hamilton's GraphSAGE with the mean of the neighbors, normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """(nodes, WIDTH) and (2, edges) -> (nodes, WIDTH)."""
        source, target = edges
        index = target[:, None].expand(-1, x.size(1))
        mean = torch.zeros_like(x).scatter_reduce(0, index, x[source], "mean", include_self=False)
        return F.normalize(self.own(x) + self.others(mean), dim=-1)


def some_edges(nodes: int) -> Batch:
    """Nodes with three random edges each; none at all for each fifth size."""
    edges = 3 * nodes if nodes % 5 else 0
    return {"x": torch.randn(nodes, WIDTH), "edges": torch.randint(0, nodes, (2, edges))}


SUBJECTS = [
    Subject("GPT-2", gpt2, language, by_keyword=True),
    Subject("GPT-2, backward", gpt2, language, trains=True, by_keyword=True),
    Subject("BERT", bert, masked, by_keyword=True),
    Subject("T5", t5, masked, by_keyword=True),
    Subject("ViT", vit, rows_of_pictures),
    Subject("ResNet", residual_network, pictures_of_size),
    Subject("UNet, backward", UNet, pictures_of_size, trains=True),
    Subject("BatchNorm, training", normalized, rows_of_numbers, trains=True, learns=True),
    Subject("LSTM", Recurrent, sequences),
    Subject("nn.TransformerEncoder", encoder, sources),
    Subject("graph network", GraphNetwork, graph),
    Subject("GCN", Convolution, some_edges),
    Subject("GAT", Attention, some_edges),
    Subject("SAGE", Sampled, some_edges),
    Subject("x[mask].sum()", Chosen, rows_of_numbers),
    Subject("padding to the longest", Padded, several_lengths),
]


def same(a: Any, b: Any) -> bool:
    """Whether all tensors of two results are equal bit by bit."""
    one, other = flat(a), flat(b)
    return len(one) == len(other) and all(
        x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(one, other, strict=True)
    )
