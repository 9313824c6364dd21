"""Real training programs: is a whole step replayed, is it what eager gives, and how long does it take?

    pip install --no-deps -r benchmarks/programs.txt
    python benchmarks/programs.py [--steps 16] [--rounds 9] [NAME ...]

Each program is built twice from equal seeds, once plain and once with its whole step traced, and makes the
same steps over the same batches. What the step returns, parameters, gradients, buffers, the optimizer's
state and the random stream must be equal bit by bit. The row gives hits, recordings, flat
programs, thread time over eager's, as the median of rounds that run in turn, and the reason of most eager
calls. A program whose package is not installed is left out, and said.
"""

from __future__ import annotations

import argparse
import collections
import copy
import itertools
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

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import lazytrace

Step = Callable[..., Any]


@dataclass
class Program:
    """What a training script has made before its loop."""

    step: Step
    batch: Callable[[], tuple[Any, ...]]
    modules: list[nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    other: Callable[[], Any] = lambda: None

    def state(self) -> Iterator[Any]:
        """All that a step may change."""
        for module in self.modules:
            yield module.state_dict()
            yield [p.grad for p in module.parameters()]
        for optimizer in self.optimizers:
            yield optimizer.state_dict()["state"]
            yield [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        yield self.other()


TWINS = itertools.count()  # for what is known by its name in all of a process
PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(build: Callable[[], Program]) -> Callable[[], Program]:
    """Put a program into the table, under the name of the function that builds it."""
    PROGRAMS[build.__name__] = build
    return build


# ---------------------------------------------------------------- plain PyTorch
class Attention(nn.Module):
    """A block of nanoGPT."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Causal attention and a perceptron."""
        b, t, c = x.size()
        q, k, v = self.qkv(self.one(x)).split(c, dim=2)
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True
        )
        x = x + self.out(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.mlp(self.two(x))


class NanoGPT(nn.Module):
    """nanoGPT, small."""

    def __init__(self, vocabulary: int = 65, length: int = 32, width: int = 64) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocabulary, width),
                "wpe": nn.Embedding(length, width),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList([Attention(width, 4, 0.1) for _ in range(2)]),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(
        self, idx: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scores, and the loss where there are targets."""
        t = idx.size(1)
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def token_pairs(vocabulary: int, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and the ones that follow."""
    ids = torch.randint(0, vocabulary, (rows, length + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


@program
def nanogpt() -> Program:
    """Decay groups, accumulation over two batches, clipping, a cosine schedule set by hand."""
    model = NanoGPT()
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        for half, target in zip(x.chunk(2), y.chunk(2), strict=True):
            _, loss = model(half, target)
            loss = loss / 2
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    count = iter(range(10**9))

    def batch() -> tuple[Any, ...]:
        rate = 1e-3 * (1 - 1e-3 * next(count))
        for group in optimizer.param_groups:
            group["lr"] = rate
        return token_pairs(65, 4, 16)

    return Program(step, batch, [model], [optimizer])


@program
def rnn_language_model() -> Program:
    """PyTorch's word language model: a hidden state carried from batch to batch, SGD by hand."""
    encoder, cells, decoder = nn.Embedding(50, 32), nn.LSTM(32, 32, 2, dropout=0.2), nn.Linear(32, 50)
    model = nn.ModuleDict({"encoder": encoder, "cells": cells, "decoder": decoder})
    held = {"hidden": (torch.zeros(2, 4, 32), torch.zeros(2, 4, 32))}

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        model.zero_grad()
        hidden = tuple(h.detach() for h in held["hidden"])
        out, held["hidden"] = model["cells"](model["encoder"](x), hidden)
        loss = F.nll_loss(F.log_softmax(model["decoder"](out).view(-1, 50), dim=1), y.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.1)
        return loss.item()

    return Program(
        step,
        lambda: tuple(t.t().contiguous() for t in token_pairs(50, 4, 12)),
        [model],
        other=lambda: held["hidden"],
    )


@program
def vae() -> Program:
    """PyTorch's example, with the loss summed up for the log."""
    encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
    mean, spread = nn.Linear(32, 8), nn.Linear(32, 8)
    decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())
    model = nn.ModuleList([encoder, mean, spread, decoder])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    log = {"train_loss": 0.0}

    def step(data: torch.Tensor) -> None:
        optimizer.zero_grad()
        h = encoder(data)
        mu, logvar = mean(h), spread(h)
        std = torch.exp(0.5 * logvar)
        z = mu + torch.randn_like(std) * std
        bce = F.binary_cross_entropy(decoder(z), data.view(-1, 64), reduction="sum")
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss = bce + kld
        loss.backward()
        log["train_loss"] += loss.item()
        optimizer.step()

    return Program(step, lambda: (torch.rand(16, 64),), [model], [optimizer], lambda: log)


class Discriminator(nn.Module):
    """Three layers."""

    def __init__(self, norm: Callable[[nn.Module], nn.Module] = lambda m: m) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            norm(nn.Linear(16, 32)), nn.LeakyReLU(0.2), norm(nn.Linear(32, 32)), nn.LeakyReLU(0.2),
            norm(nn.Linear(32, 1)),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One score a row."""
        return self.layers(x)


def generator() -> nn.Module:
    """Noise to samples."""
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh())


@program
def wgan_gp() -> Program:
    """Gradient penalty: a gradient of a gradient; the generator each fifth step."""
    g, d = generator(), Discriminator()
    og = torch.optim.Adam(g.parameters(), lr=1e-4, betas=(0.5, 0.9))
    od = torch.optim.Adam(d.parameters(), lr=1e-4, betas=(0.5, 0.9))

    def penalty(real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
        alpha = torch.rand(real.size(0), 1)
        mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        score = d(mixed)
        gradient = torch.autograd.grad(
            outputs=score,
            inputs=mixed,
            grad_outputs=torch.ones_like(score),
            create_graph=True,
            retain_graph=True,
        )[0]
        return ((gradient.norm(2, dim=1) - 1) ** 2).mean()

    def step(real: torch.Tensor, i: int) -> tuple[float, float]:
        od.zero_grad()
        fake = g(torch.randn(real.size(0), 8))
        d_loss = -d(real).mean() + d(fake).mean() + 10 * penalty(real.data, fake.data)
        d_loss.backward()
        od.step()
        og.zero_grad()
        if i % 5 == 0:
            g_loss = -d(g(torch.randn(real.size(0), 8))).mean()
            g_loss.backward()
            og.step()
            return d_loss.item(), g_loss.item()
        return d_loss.item(), 0.0

    count = iter(range(10**9))
    return Program(step, lambda: (torch.randn(16, 16), next(count) % 5), [g, d], [og, od])


@program
def dcgan_spectral() -> Program:
    """DCGAN's loop with spectral normalisation and labels that are filled in place."""
    g, d = generator(), Discriminator(nn.utils.parametrizations.spectral_norm)
    og = torch.optim.Adam(g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    od = torch.optim.Adam(d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()

    def step(real: torch.Tensor) -> tuple[float, float, float]:
        d.zero_grad()
        label = torch.full((real.size(0),), 1.0, dtype=real.dtype)
        output = d(real).view(-1)
        real_loss = criterion(output, label)
        real_loss.backward()
        d_x = output.mean().item()
        fake = g(torch.randn(real.size(0), 8))
        label.fill_(0.0)
        fake_loss = criterion(d(fake.detach()).view(-1), label)
        fake_loss.backward()
        od.step()
        g.zero_grad()
        label.fill_(1.0)
        g_loss = criterion(d(fake).view(-1), label)
        g_loss.backward()
        og.step()
        return (real_loss + fake_loss).item(), g_loss.item(), d_x

    return Program(step, lambda: (torch.randn(16, 16),), [g, d], [og, od])


@program
def pinn() -> Program:
    """Burgers' equation: second derivatives of a network by its inputs."""
    net = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        x = x.clone().requires_grad_(True)
        t = t.clone().requires_grad_(True)
        u = net(torch.cat([x, t], dim=1))
        one = torch.ones_like(u)
        u_t = torch.autograd.grad(u, t, one, retain_graph=True, create_graph=True)[0]
        u_x = torch.autograd.grad(u, x, one, retain_graph=True, create_graph=True)[0]
        u_xx = torch.autograd.grad(u_x, x, one, retain_graph=True, create_graph=True)[0]
        residual = u_t + u * u_x - (0.01 / torch.pi) * u_xx
        loss = residual.pow(2).mean() + (u - torch.sin(x)).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, lambda: (torch.rand(32, 1), torch.rand(32, 1)), [net], [optimizer])


@program
def maml() -> Program:
    """Two inner steps with weights of their own, then a step through them."""
    net = nn.Sequential(nn.Linear(1, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def forward(weights: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.linear(x, weights[0], weights[1]))
        x = F.relu(F.linear(x, weights[2], weights[3]))
        return F.linear(x, weights[4], weights[5])

    def step(support: torch.Tensor, query: torch.Tensor) -> float:
        total = torch.zeros(())
        for task in range(support.shape[0]):
            weights = list(net.parameters())
            for _ in range(2):
                loss = F.mse_loss(forward(weights, support[task, :, :1]), support[task, :, 1:])
                gradients = torch.autograd.grad(loss, weights, create_graph=True)
                weights = [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)]
            total = total + F.mse_loss(forward(weights, query[task, :, :1]), query[task, :, 1:])
        total = total / support.shape[0]
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        return float(total)

    return Program(step, lambda: (torch.randn(3, 10, 2), torch.randn(3, 10, 2)), [net], [optimizer])


@program
def maml_functional() -> Program:
    """The same with torch.func."""
    net = nn.Sequential(nn.Linear(1, 20), nn.ReLU(), nn.Linear(20, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)

    def loss_of(weights: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(torch.func.functional_call(net, weights, (batch[:, :1],)), batch[:, 1:])

    def one(weights: dict[str, torch.Tensor], support: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        gradients = torch.func.grad(loss_of)(weights, support)
        return loss_of({k: w - 0.01 * gradients[k] for k, w in weights.items()}, query)

    def step(support: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        weights = dict(net.named_parameters())
        loss = torch.func.vmap(one, in_dims=(None, 0, 0))(weights, support, query).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, lambda: (torch.randn(3, 10, 2), torch.randn(3, 10, 2)), [net], [optimizer])


@program
def ddpm() -> Program:
    """A diffusion step written by hand, with an average of the weights."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
            self.one, self.two = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
            self.norm, self.out = nn.GroupNorm(8, 32), nn.Conv2d(32, 1, 3, padding=1)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            frequency = torch.exp(-np.log(10000) * torch.arange(8) / 8)
            angle = t[:, None].float() * frequency[None]
            emb = self.time(torch.cat([angle.sin(), angle.cos()], dim=-1))
            h = F.silu(self.norm(self.one(x))) + emb[:, :, None, None]
            return self.out(F.silu(self.two(h)) + h)

    net = Net()
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-4)
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), dim=0)

    def step(x: torch.Tensor) -> float:
        t = torch.randint(0, 100, (x.shape[0],))
        noise = torch.randn_like(x)
        a = alphas[t].view(-1, 1, 1, 1)
        loss = F.mse_loss(net(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for kept, now in zip(average.parameters(), net.parameters(), strict=True):
                kept.mul_(0.99).add_(now, alpha=0.01)
        return loss.item()

    return Program(step, lambda: (torch.randn(4, 1, 8, 8),), [net, average], [optimizer])


@program
def nerf() -> Program:
    """Positional encoding, samples along rays, volume rendering."""
    net = nn.Sequential(nn.Linear(39, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)

    def encode(x: torch.Tensor) -> torch.Tensor:
        parts = [x]
        for i in range(6):
            for fn in (torch.sin, torch.cos):
                parts.append(fn(2.0**i * x))
        return torch.cat(parts, dim=-1)

    def step(origins: torch.Tensor, directions: torch.Tensor, target: torch.Tensor) -> tuple[float, float]:
        depth = torch.linspace(2.0, 6.0, 16) + torch.rand(origins.shape[0], 16) * 4.0 / 16
        points = origins[:, None] + directions[:, None] * depth[..., None]
        raw = net(encode(points.reshape(-1, 3))).reshape(*points.shape[:-1], 4)
        rgb, sigma = torch.sigmoid(raw[..., :3]), F.relu(raw[..., 3])
        delta = torch.cat([depth[..., 1:] - depth[..., :-1], torch.full_like(depth[..., :1], 1e10)], -1)
        alpha = 1.0 - torch.exp(-sigma * delta)
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[..., :1]), 1 - alpha + 1e-10], -1), -1)[
            ..., :-1
        ]
        color = (alpha * clear)[..., None].mul(rgb).sum(-2)
        loss = ((color - target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.item(), -10.0 * np.log10(loss.item())

    return Program(
        step, lambda: (torch.randn(32, 3), torch.randn(32, 3), torch.rand(32, 3)), [net], [optimizer]
    )


@program
def resnet_warmup() -> Program:
    """Batch normalisation, momentum, warm-up and cosine, label smoothing, a running accuracy."""

    def block(a: int, b: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())

    class Res(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b = block(3, 16), block(16, 16), block(16, 16)
            self.head = nn.Linear(16, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            x = F.max_pool2d(x + self.b(self.a(x)), 2)
            return self.head(x.mean((2, 3)))

    model = Res().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [3])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    meter = {"correct": 0, "total": 0, "loss": 0.0}

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        meter["loss"] += loss.item() * x.size(0)
        meter["correct"] += out.argmax(1).eq(y).sum().item()
        meter["total"] += y.size(0)

    def batch() -> tuple[Any, ...]:
        schedule.step()
        return torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
    return Program(step, batch, [model], [optimizer], lambda: meter)


@program
def simclr() -> Program:
    """Two views of each image, the NT-Xent loss with its mask."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)

    def step(a: torch.Tensor, b: torch.Tensor) -> float:
        n = a.shape[0]
        z = F.normalize(torch.cat([net(a), net(b)]), dim=1)
        similar = z @ z.T
        mask = torch.eye(2 * n, dtype=torch.bool)
        similar = similar[~mask].view(2 * n, -1)
        labels = torch.cat([torch.arange(n) for _ in range(2)])
        positive = (labels[None] == labels[:, None])[~mask].view(2 * n, -1)
        logits = (
            torch.cat([similar[positive].view(2 * n, -1), similar[~positive].view(2 * n, -1)], dim=1) / 0.07
        )
        loss = F.cross_entropy(logits, torch.zeros(2 * n, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(step, lambda: (torch.randn(8, 3, 4, 4), torch.randn(8, 3, 4, 4)), [net], [optimizer])


@program
def dqn() -> Program:
    """A target network that is copied each fourth step."""
    online = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    target = copy.deepcopy(online)
    optimizer = torch.optim.AdamW(online.parameters(), lr=1e-3, amsgrad=True)
    count = {"steps": 0}

    def step(s: torch.Tensor, a: torch.Tensor, r: torch.Tensor, n: torch.Tensor, done: torch.Tensor) -> float:
        q = online(s).gather(1, a)
        with torch.no_grad():
            future = target(n).max(1).values
        loss = F.smooth_l1_loss(q, (r + 0.99 * future * (1 - done)).unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(online.parameters(), 100)
        optimizer.step()
        count["steps"] += 1
        if count["steps"] % 4 == 0:
            target.load_state_dict(online.state_dict())
        return loss.item()

    def batch() -> tuple[Any, ...]:
        return (
            torch.randn(32, 4), torch.randint(0, 2, (32, 1)), torch.randn(32), torch.randn(32, 4),
            (torch.rand(32) < 0.1).float(),
        )  # fmt: skip

    return Program(step, batch, [online, target], [optimizer], lambda: count)


@program
def dqn_memory() -> Program:
    """A step that puts a transition into a memory, and learns from a few that it draws there."""
    online = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    memory: collections.deque[tuple[Any, ...]] = collections.deque(maxlen=4000)

    def experience() -> tuple[Any, ...]:
        state, after = np.random.randn(4), np.random.randn(4)
        return state, random.randrange(2), random.gauss(0, 1), after, random.random() < 0.1

    def step(state: Any, action: int, reward: float, after: Any, done: bool) -> float:
        memory.append((state, action, reward, after, done))
        states, actions, rewards, afters, flags = zip(*random.sample(memory, 32), strict=True)
        q = online(torch.tensor(np.array(states), dtype=torch.float)).gather(
            1, torch.tensor(actions)[:, None]
        )
        with torch.no_grad():
            future = target(torch.tensor(np.array(afters), dtype=torch.float)).max(1).values
        wanted = torch.tensor(rewards) + 0.99 * future * (1 - torch.tensor(flags, dtype=torch.float))
        loss = F.smooth_l1_loss(q, wanted[:, None])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    memory.extend(experience() for _ in range(2000))
    return Program(step, experience, [online, target], [optimizer], lambda: [len(memory), memory[-1][4]])


@program
def actor_critic_rollouts() -> Program:
    """A step that discounts the rewards of a rollout, in which some episodes end."""
    body, actor, critic = nn.Linear(4, 64), nn.Linear(64, 2), nn.Linear(64, 1)
    agent = nn.ModuleList([body, actor, critic])
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4)
    rollout: list[tuple[Any, ...]] = []

    def step() -> float:
        total, returns, states, actions = 0.0, [], [], []
        for state, action, _, _ in rollout:
            states.append(state)
            actions.append([action])
        for _, _, reward, done in reversed(rollout):
            total = reward + 0.99 * total * (0.0 if done else 1.0)
            returns.insert(0, [total])
        hidden = torch.relu(body(torch.tensor(np.array(states), dtype=torch.float)))
        value, wanted = critic(hidden), torch.tensor(returns)
        chosen = torch.log_softmax(actor(hidden), 1).gather(1, torch.tensor(actions))
        loss = (-chosen * (wanted - value.detach()) + F.smooth_l1_loss(value, wanted)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def batch() -> tuple[Any, ...]:
        rollout[:] = [
            (np.random.randn(4), random.randrange(2), random.random(), random.random() < 0.2)
            for _ in range(16)
        ]
        return ()

    return Program(step, batch, [agent], [optimizer])


@program
def cleanrl_ppo() -> Program:
    """One update of cleanrl's ppo.py: minibatches from shuffled indices, clipped losses, KL for the log."""

    def layer(a: int, b: int, std: float = 2**0.5) -> nn.Linear:
        made = nn.Linear(a, b)
        torch.nn.init.orthogonal_(made.weight, std)
        torch.nn.init.constant_(made.bias, 0.0)
        return made

    critic = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))
    actor = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 2, 0.01))
    agent = nn.ModuleDict({"critic": critic, "actor": actor})
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)

    def step(
        obs: torch.Tensor, actions: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor,
        returns: torch.Tensor, values: torch.Tensor,
    ) -> tuple[float, float, float]:  # fmt: skip
        clipfracs = []
        dist = torch.distributions.Categorical(logits=actor(obs))
        newlogprob, entropy, newvalue = dist.log_prob(actions), dist.entropy(), critic(obs)
        logratio = newlogprob - logprobs
        ratio = logratio.exp()
        with torch.no_grad():
            approx_kl = ((ratio - 1) - logratio).mean()
            clipfracs += [((ratio - 1.0).abs() > 0.2).float().mean().item()]
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        pg_loss = torch.max(-advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.2)).mean()
        newvalue = newvalue.view(-1)
        clipped = values + torch.clamp(newvalue - values, -0.2, 0.2)
        v_loss = 0.5 * torch.max((newvalue - returns) ** 2, (clipped - returns) ** 2).mean()
        entropy_loss = entropy.mean()
        loss = pg_loss - 0.01 * entropy_loss + v_loss * 0.5
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        return approx_kl.item(), float(np.mean(clipfracs)), loss.item()

    def batch() -> tuple[Any, ...]:
        return (
            torch.randn(32, 4), torch.randint(0, 2, (32,)), torch.randn(32) - 1, torch.randn(32),
            torch.randn(32), torch.randn(32),
        )  # fmt: skip

    return Program(step, batch, [agent], [optimizer])


@program
def amp_scaler() -> Program:
    """Autocast in bfloat16 with a gradient scaler, as recipes for mixed precision have it."""
    net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return Program(
        step, lambda: (torch.randn(16, 32), torch.randint(0, 8, (16,))), [net], [optimizer], scaler.state_dict
    )


@program
def distillation() -> Program:
    """A frozen teacher in evaluation mode, two losses."""
    teacher = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 10)).eval()
    student = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 10)).train()
    optimizer = torch.optim.RMSprop(student.parameters(), lr=1e-3)

    def step(x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        with torch.no_grad():
            soft = F.softmax(teacher(x) / 4.0, dim=-1)
        out = student(x)
        kl = F.kl_div(F.log_softmax(out / 4.0, dim=-1), soft, reduction="batchmean") * 16.0
        ce = F.cross_entropy(out, y)
        loss = 0.7 * kl + 0.3 * ce
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"kl": kl.item(), "ce": ce.item(), "accuracy": (out.argmax(-1) == y).float().mean().item()}

    return Program(
        step,
        lambda: (torch.randn(16, 16), torch.randint(0, 10, (16,))),
        [teacher, student],
        [optimizer],
    )


@program
def lbfgs_style_transfer() -> Program:
    """LBFGS with a closure over an image that is optimised."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).requires_grad_(False)
    image = nn.Parameter(torch.rand(1, 3, 12, 12))
    optimizer = torch.optim.LBFGS([image], max_iter=4)

    def step(target: torch.Tensor) -> float:
        def closure() -> torch.Tensor:
            with torch.no_grad():
                image.clamp_(0, 1)
            optimizer.zero_grad()
            f = net(image).flatten(2)[0]
            loss = F.mse_loss(f @ f.t() / f.numel(), target)
            loss.backward()
            return loss

        return float(optimizer.step(closure))

    return Program(step, lambda: (torch.eye(8) * 0.01,), [nn.ParameterList([image])], [optimizer])


@program
def normalizing_flow() -> Program:
    """RealNVP: coupling layers with masks, a density under a distribution."""

    class Coupling(nn.Module):
        def __init__(self, mask: torch.Tensor) -> None:
            super().__init__()
            self.register_buffer("mask", mask)
            self.s = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(), nn.Linear(32, 2), nn.Tanh())
            self.t = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(), nn.Linear(32, 2))

        def forward(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            kept = self.mask * z
            s, t = self.s(kept) * (1 - self.mask), self.t(kept) * (1 - self.mask)
            return (1 - self.mask) * (z - t) * torch.exp(-s) + kept, -s.sum(dim=1)

    flow = nn.ModuleList([Coupling(torch.tensor([i % 2, 1 - i % 2]).float()) for i in range(4)])
    prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-4)

    def step(x: torch.Tensor) -> float:
        log_det, z = x.new_zeros(x.shape[0]), x
        for layer in reversed(flow):
            z, found = layer(z)
            log_det = log_det + found
        loss = -(prior.log_prob(z) + log_det).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(step, lambda: (torch.randn(64, 2),), [flow], [optimizer])


@program
def seq2seq_attention() -> Program:
    """The tutorial's translation network: a loop over time with teacher forcing by chance."""
    encoder, embed = nn.GRU(16, 16, batch_first=True), nn.Embedding(20, 16)
    cell, attend, out = nn.GRUCell(32, 16), nn.Linear(32, 1), nn.Linear(16, 20)
    model = nn.ModuleList([encoder, embed, cell, attend, out])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(source: torch.Tensor, target: torch.Tensor, forced: bool) -> float:
        optimizer.zero_grad()
        keys, hidden = encoder(embed(source))
        hidden, token = hidden[0], torch.zeros(source.size(0), dtype=torch.long)
        loss = 0
        for i in range(target.size(1)):
            query = hidden.unsqueeze(1).expand(-1, keys.size(1), -1)
            weights = F.softmax(attend(torch.cat([query, keys], -1)).squeeze(-1), dim=-1)
            context = torch.bmm(weights.unsqueeze(1), keys).squeeze(1)
            hidden = cell(torch.cat([embed(token), context], -1), hidden)
            logits = out(hidden)
            loss = loss + F.cross_entropy(logits, target[:, i])
            token = target[:, i] if forced else logits.topk(1)[1].squeeze(-1).detach()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item() / target.size(1)

    choice = random.Random(0)
    return Program(
        step,
        lambda: (torch.randint(0, 20, (4, 6)), torch.randint(0, 20, (4, 5)), choice.random() < 0.5),
        [model],
        [optimizer],
    )


@program
def mixture_of_experts() -> Program:
    """A gate, the two best experts, a balance loss; tokens are sorted into experts by index."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(16, 4)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(4)
            )

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            scores = F.softmax(self.gate(x), dim=-1)
            weights, chosen = scores.topk(2, dim=-1)
            result = torch.zeros_like(x)
            for i, expert in enumerate(self.experts):
                row, place = torch.where(chosen == i)
                result.index_add_(0, row, expert(x[row]) * weights[row, place, None])
            return result, scores.mean(0).pow(2).sum() * 4

    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
    experts, head = Experts(), nn.Linear(16, 3)
    whole = nn.ModuleList([model, experts, head])
    optimizer = torch.optim.Adam(whole.parameters(), lr=1e-3)

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        h, balance = experts(model(x))
        loss = F.cross_entropy(head(h), y) + 0.01 * balance
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(step, lambda: (torch.randn(24, 8), torch.randint(0, 3, (24,))), [whole], [optimizer])


@program
def recommender() -> Program:
    """DLRM's shape: embedding bags, pairwise interactions, binary targets, Adagrad."""
    bags = nn.ModuleList(nn.EmbeddingBag(50, 8, mode="sum") for _ in range(3))
    bottom, top = (
        nn.Sequential(nn.Linear(4, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(14, 8), nn.ReLU(), nn.Linear(8, 1)),
    )
    model = nn.ModuleList([*bags, bottom, top])
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    row, column = torch.tril_indices(4, 4, -1)

    def step(dense: torch.Tensor, sparse: list[torch.Tensor], y: torch.Tensor) -> float:
        optimizer.zero_grad()
        x = bottom(dense)
        parts = torch.stack([x, *(bag(i) for bag, i in zip(bags, sparse, strict=True))], dim=1)
        pairs = torch.bmm(parts, parts.transpose(1, 2))[:, row, column]
        loss = F.binary_cross_entropy_with_logits(top(torch.cat([x, pairs], dim=1)).squeeze(1), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    def batch() -> tuple[Any, ...]:
        return torch.randn(16, 4), [torch.randint(0, 50, (16, 2)) for _ in range(3)], torch.rand(16).round()

    return Program(step, batch, [model], [optimizer])


@program
def swa_sam() -> Program:
    """Sharpness-aware minimisation: two passes, weights moved and put back."""
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        with torch.no_grad():
            norm = torch.norm(torch.stack([p.grad.norm(p=2) for p in net.parameters()]), p=2)
            moves = []
            for p in net.parameters():
                move = p.grad * (0.05 / (norm + 1e-12))
                p.add_(move)
                moves.append(move)
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for p, move in zip(net.parameters(), moves, strict=True):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return Program(step, lambda: (torch.randn(16, 10), torch.randint(0, 3, (16,))), [net], [optimizer])


# ---------------------------------------------------------------- libraries
def language_model(model: nn.Module, optimizer: torch.optim.Optimizer) -> Program:
    """The step of the course of transformers, for a model that works out its loss."""

    def step(ids: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, lambda: (torch.randint(0, 99, (4, 12)),), [model], [optimizer])


@program
def hf_bert_lengths() -> Program:
    """BERT for masked words, three lengths in turn."""
    from transformers import BertConfig, BertForMaskedLM, get_linear_schedule_with_warmup

    config = BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=37
    )
    model = BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = get_linear_schedule_with_warmup(optimizer, 4, 1000)
    count = iter(range(10**9))

    def step(input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    def batch() -> tuple[Any, ...]:
        length = (7, 11, 13)[next(count) % 3]
        ids = torch.randint(0, 99, (4, length))
        return ids, torch.ones_like(ids), ids.clone()

    return Program(step, batch, [model], [optimizer])


@program
def hf_gpt2() -> Program:
    """GPT-2 with labels."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=99, n_positions=32, n_embd=32, n_layer=2, n_head=2)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    return language_model(model, optimizer)


@program
def hf_t5_adafactor() -> Program:
    """T5 with Adafactor."""
    from transformers import Adafactor, T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    config.decoder_start_token_id = 0
    model = T5ForConditionalGeneration(config).train()
    optimizer = Adafactor(model.parameters(), lr=1e-3, relative_step=False, scale_parameter=False)

    def step(ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(
        step, lambda: (torch.randint(0, 99, (2, 9)), torch.randint(1, 99, (2, 7))), [model], [optimizer]
    )


@program
def hf_trainer() -> Program:
    """The training_step of transformers' Trainer, and the optimizer behind it."""
    import tempfile

    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = GPT2LMHeadModel(GPT2Config(vocab_size=99, n_positions=32, n_embd=32, n_layer=2, n_head=2)).train()
    where = tempfile.mkdtemp()
    arguments = TrainingArguments(where, report_to=[], use_cpu=True, max_steps=1000, disable_tqdm=True)
    trainer = Trainer(model=model, args=arguments, train_dataset=[{"input_ids": [1], "labels": [1]}])
    trainer.create_optimizer_and_scheduler(1000)

    def step(ids: torch.Tensor) -> torch.Tensor:
        trainer.current_gradient_accumulation_steps = 1
        loss = trainer.training_step(model, {"input_ids": ids, "labels": ids})
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
        model.zero_grad()
        return loss

    return Program(step, lambda: (torch.randint(0, 99, (4, 12)),), [model], [trainer.optimizer])


@program
def accelerate_loop() -> Program:
    """accelerate: prepared objects, accelerator.backward, accumulation."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Program(
        step, lambda: (torch.randn(16, 16), torch.randint(0, 4, (16,))), [model], [optimizer.optimizer]
    )


@program
def lightning_fabric() -> Program:
    """Fabric: its wrapped module and optimizer."""
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    plain = torch.optim.Adam(net.parameters(), lr=1e-3)
    model, optimizer = fabric.setup(net, plain)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        return loss.detach()

    return Program(step, lambda: (torch.randn(16, 16), torch.randint(0, 4, (16,))), [net], [plain])


@program
def lightning_module() -> Program:
    """A LightningModule with torchmetrics, its training_step called as the loop calls it."""
    import pytorch_lightning as pl
    import torchmetrics

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
            self.accuracy = torchmetrics.MeanMetric()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = batch
            loss = F.cross_entropy(self.net(x), y)
            self.accuracy.update(loss.detach())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    module = Module()
    optimizer = module.configure_optimizers()
    count = iter(range(10**9))

    def step(batch: Any, batch_idx: int) -> torch.Tensor:
        loss = module.training_step(batch, batch_idx)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(
        step, lambda: ((torch.randn(16, 16), torch.randint(0, 4, (16,))), next(count)), [module], [optimizer]
    )


@program
def peft_lora() -> Program:
    """LoRA on GPT-2."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    base = GPT2LMHeadModel(GPT2Config(vocab_size=99, n_positions=32, n_embd=32, n_layer=2, n_head=2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(
            base, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["c_attn"])
        )
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    return language_model(model, optimizer)


@program
def diffusers_unet() -> Program:
    """diffusers' UNet2DModel with its scheduler, as its training tutorial has it."""
    from diffusers import DDPMScheduler, UNet2DModel
    from diffusers.training_utils import EMAModel

    model = UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(16, 16),
        norm_num_groups=4, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).train()  # fmt: skip
    noise_scheduler = DDPMScheduler(num_train_timesteps=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    average = EMAModel(model.parameters())

    def step(clean: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(clean.shape)
        timesteps = torch.randint(0, 100, (clean.shape[0],), dtype=torch.int64)
        noisy = noise_scheduler.add_noise(clean, noise, timesteps)
        loss = F.mse_loss(model(noisy, timesteps, return_dict=False)[0], noise)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average.step(model.parameters())
        return loss.detach()

    return Program(
        step, lambda: (torch.randn(2, 1, 8, 8),), [model], [optimizer], lambda: list(average.shadow_params)
    )


def sb3(name: str, environment: str, **options: Any) -> Program:
    """The train() of an algorithm of Stable-Baselines3 over a buffer that was filled once."""
    import stable_baselines3

    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    algorithm = getattr(stable_baselines3, name)(
        "MlpPolicy", environment, seed=0, device="cpu", policy_kwargs={"net_arch": [32]}, **options
    )
    if name == "PPO":
        algorithm.learn(64)

        def step() -> float:
            algorithm.train()
            return float(algorithm.logger.name_to_value["train/loss"])
    else:
        algorithm.learn(60)

        def step() -> float:
            algorithm.train(1, 16)
            return float(algorithm.logger.name_to_value.get("train/loss", 0.0))

    policy = algorithm.policy
    optimizers = [
        o
        for owner in (policy, getattr(policy, "actor", None), getattr(policy, "critic", None))
        for o in [getattr(owner, "optimizer", None)]
        if o is not None
    ]
    return Program(step, lambda: (), [policy], optimizers)


@program
def sb3_ppo() -> Program:
    """PPO.train()."""
    return sb3("PPO", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=2)


@program
def sb3_dqn() -> Program:
    """DQN.train()."""
    return sb3("DQN", "CartPole-v1", learning_starts=20, buffer_size=200)


@program
def sb3_sac() -> Program:
    """SAC.train()."""
    return sb3("SAC", "Pendulum-v1", learning_starts=20, buffer_size=200)


def graph(conv: Any) -> Program:
    """Two layers of a graph convolution on a random graph, as PyG's first example."""
    import torch_geometric.nn as pyg

    first, second = getattr(pyg, conv)(16, 16), getattr(pyg, conv)(16, 4)
    model = nn.ModuleList([first, second])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    edges = torch.randint(0, 30, (2, 90))

    def step(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> float:
        model.train()
        optimizer.zero_grad()
        h = F.dropout(first(x, edges).relu(), p=0.5, training=model.training)
        loss = F.nll_loss(F.log_softmax(second(h, edges), dim=1)[mask], y[mask])
        loss.backward()
        optimizer.step()
        return float(loss)

    return Program(
        step,
        lambda: (torch.randn(30, 16), torch.randint(0, 4, (30,)), torch.arange(30) % 2 == 0),
        [model],
        [optimizer],
    )


@program
def pyg_gcn() -> Program:
    """GCNConv."""
    return graph("GCNConv")


@program
def pyg_gat() -> Program:
    """GATConv."""
    return graph("GATConv")


@program
def pyg_sage() -> Program:
    """SAGEConv."""
    return graph("SAGEConv")


@program
def gpytorch_exact() -> Program:
    """An exact Gaussian process and its marginal likelihood."""
    import gpytorch

    x = torch.linspace(0, 1, 20)
    y = torch.sin(x * 6.0)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, inputs: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(inputs), self.covar_module(inputs)
            )

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(likelihood).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def step() -> float:
        optimizer.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(step, lambda: (), [model], [optimizer])


@program
def pyro_svi() -> Program:
    """Pyro's first example: a model, a guide, SVI.step()."""
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVI, Trace_ELBO
    from pyro.optim import Adam

    data = torch.cat([torch.ones(6), torch.zeros(4)])

    def model(values: torch.Tensor) -> None:
        fairness = pyro.sample("fairness", dist.Beta(10.0, 10.0))
        with pyro.plate("data", len(values)):
            pyro.sample("obs", dist.Bernoulli(fairness), obs=values)

    twin = next(TWINS)
    names = [f"{name}{twin}" for name in ("alpha", "beta")]

    def guide(values: torch.Tensor) -> None:
        a = pyro.param(names[0], torch.tensor(15.0), constraint=dist.constraints.positive)
        b = pyro.param(names[1], torch.tensor(15.0), constraint=dist.constraints.positive)
        pyro.sample("fairness", dist.Beta(a, b))

    svi = SVI(model, guide, Adam({"lr": 0.0005}), loss=Trace_ELBO())

    def step(values: torch.Tensor) -> float:
        return svi.step(values)

    return Program(
        step, lambda: (data,), other=lambda: [pyro.param(n) for n in names if n in pyro.get_param_store()]
    )


@program
def neural_ode() -> Program:
    """torchdiffeq: a Runge-Kutta solver of fixed steps."""
    from torchdiffeq import odeint

    class Right(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))

        def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.net(y**3)

    right = Right()
    optimizer = torch.optim.RMSprop(right.parameters(), lr=1e-3)
    t = torch.linspace(0.0, 1.0, 6)

    def step(y0: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = torch.mean(torch.abs(odeint(right, y0, t, method="rk4") - y))
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(step, lambda: (torch.randn(8, 2), torch.randn(6, 8, 2)), [right], [optimizer])


@program
def x_transformers() -> Program:
    """A decoder of x-transformers with its wrapper for next tokens."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    net = TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=Decoder(dim=32, depth=2, heads=2))
    model = AutoregressiveWrapper(net).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(ids: torch.Tensor) -> float:
        loss = model(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return Program(step, lambda: (torch.randint(0, 64, (2, 17)),), [model], [optimizer])


@program
def botorch_acquisition() -> Program:
    """Gradient steps on candidates under a Monte Carlo acquisition function."""
    from botorch.acquisition import qExpectedImprovement
    from botorch.models import SingleTaskGP
    from botorch.sampling import SobolQMCNormalSampler

    x = torch.rand(8, 2, dtype=torch.double)
    model = SingleTaskGP(x, x.sin().sum(-1, keepdim=True))
    model.eval()
    sampler = SobolQMCNormalSampler(sample_shape=torch.Size([16]), seed=1)
    acquisition = qExpectedImprovement(model, best_f=0.5, sampler=sampler)
    candidates = nn.Parameter(torch.rand(4, 1, 2, dtype=torch.double))
    optimizer = torch.optim.Adam([candidates], lr=0.01)

    def step() -> float:
        optimizer.zero_grad()
        loss = -acquisition(candidates).sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(step, lambda: (), [nn.ParameterList([candidates])], [optimizer])


@program
def torchrl_dqn() -> Program:
    """TorchRL's DQNLoss over tensordicts."""
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.data import OneHot
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    actor = QValueActor(TensorDictModule(net, ["observation"], ["action_value"]), spec=OneHot(2))
    loss_module = DQNLoss(actor, delay_value=True, action_space="one_hot")
    loss_module.make_value_estimator(gamma=0.99)
    update = SoftUpdate(loss_module, eps=0.99)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step(
        observation: torch.Tensor, action: torch.Tensor, reward: torch.Tensor, after: torch.Tensor
    ) -> float:
        done = torch.zeros(reward.shape, dtype=torch.bool)
        data = TensorDict(
            {
                "observation": observation,
                "action": action,
                "next": {"observation": after, "reward": reward, "done": done, "terminated": done},
            },
            [observation.shape[0]],
        )
        loss = loss_module(data)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update.step()
        return loss.item()

    def batch() -> tuple[Any, ...]:
        action = F.one_hot(torch.randint(0, 2, (16,)), 2)
        return torch.randn(16, 4), action, torch.randn(16, 1), torch.randn(16, 4)

    return Program(step, batch, [loss_module], [optimizer])


@program
def torchrl_ppo() -> Program:
    """TorchRL's ClipPPOLoss, whose advantages map over the parameters of the critic."""
    from tensordict import TensorDict
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import ClipPPOLoss

    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(policy, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )
    critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    loss_module = ClipPPOLoss(actor, ValueOperator(critic, ["observation"]))
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)

    def step(rollout: TensorDict) -> float:
        losses = loss_module(rollout)
        loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(loss_module.parameters(), 0.5)
        optimizer.step()
        return loss.item()

    def batch() -> tuple[Any, ...]:
        shape = 4, 8
        done = torch.zeros(*shape, 1, dtype=torch.bool)
        after = {"observation": torch.randn(*shape, 4), "reward": torch.randn(*shape, 1)}
        rollout = {
            "observation": torch.randn(*shape, 4),
            "action": torch.rand(*shape, 2) * 1.8 - 0.9,
            "action_log_prob": torch.randn(shape),
            "next": after | {"done": done, "terminated": done},
        }
        return (TensorDict(rollout, shape),)

    return Program(step, batch, [loss_module], [optimizer])


@program
def pyg_hetero() -> Program:
    """PyG's HeteroConv over two kinds of nodes and three of edges, in dicts with tuples as keys."""
    from torch_geometric.nn import HeteroConv, SAGEConv

    sizes = {"author": 12, "paper": 20}
    kinds = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "is by", "author")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                HeteroConv({kind: SAGEConv((16, 16), 16) for kind in kinds}) for _ in range(2)
            )
            self.last = nn.Linear(16, 4)

        def forward(
            self, nodes: dict[str, torch.Tensor], edges: dict[tuple[str, str, str], torch.Tensor]
        ) -> torch.Tensor:
            for layer in self.layers:
                nodes = {kind: F.relu(found) for kind, found in layer(nodes, edges).items()}
            return self.last(nodes["paper"])

    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)

    def step(
        nodes: dict[str, torch.Tensor],
        edges: dict[tuple[str, str, str], torch.Tensor],
        labels: torch.Tensor,
    ) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(nodes, edges), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    def batch() -> tuple[Any, ...]:
        nodes = {kind: torch.randn(size, 16) for kind, size in sizes.items()}
        edges = {
            kind: torch.stack([torch.randint(sizes[end], (40,)) for end in (kind[0], kind[2])])
            for kind in kinds
        }
        return nodes, edges, torch.randint(4, (sizes["paper"],))

    return Program(step, batch, [net], [optimizer])


# ---------------------------------------------------------------- running
def seed() -> None:
    """The same random numbers for both twins."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def same(a: Any, b: Any) -> bool:
    """Whether two nested values agree, tensors bit for bit."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape or a.requires_grad != b.requires_grad:
            return False
        return bool(torch.equal(a, b)) or bool(
            torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
        )
    if isinstance(a, dict) and isinstance(b, dict):
        return list(map(str, a)) == list(map(str, b)) and all(map(same, a.values(), b.values()))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (isinstance(a, float) and a != a and b != b)


class Twin:
    """A program, plain or traced, with random streams of its own."""

    def __init__(self, build: Callable[[], Program], wrap: Callable[[Step], Step]) -> None:
        seed()
        self.program = build()
        self.step = wrap(self.program.step)
        self.keep()

    def keep(self) -> None:
        """Remember where the random streams are."""
        self.streams = torch.get_rng_state(), random.getstate(), np.random.get_state()

    def run(self, steps: int = 1) -> tuple[list[Any], float]:
        """The results of some steps and the thread time of all."""
        torch.set_rng_state(self.streams[0])
        random.setstate(self.streams[1])
        np.random.set_state(self.streams[2])
        results, spent = [], 0.0
        for _ in range(steps):
            arguments = self.program.batch()
            start = time.thread_time()
            results.append(self.step(*arguments))
            spent += time.thread_time() - start
        self.keep()
        return results, spent


def measure(name: str, steps: int, rounds: int) -> str:
    """The row of one program."""
    build = PROGRAMS[name]
    build()  # imports may draw random numbers
    plain, other = Twin(build, lambda step: step), Twin(build, lazytrace.traced)
    wrong = ""
    for i in range(steps):
        expected, found = plain.run()[0], other.run()[0]
        if not wrong and not same(expected, found):
            wrong = f"result of step {i}"
        if not wrong and not same(list(plain.program.state()), list(other.program.state())):
            wrong = f"state after step {i}"
        if not wrong and not all(map(same_stream, plain.streams, other.streams)):
            wrong = f"random stream after step {i}"
    info, stats = other.step.cache_info(), other.step.stats()
    flat = sum(1 for row in other.step._self_handle()._cache.traces.all() if row.flat() == "flat")
    ratios = [] if rounds else [float("nan")]
    each = max(1, int(0.01 / max(1e-6, plain.run()[1])))
    for _ in range(rounds):
        first, second = (plain, other) if random.random() < 0.5 else (other, plain)
        spent = {id(t): t.run(each)[1] for t in (first, second)}
        ratios.append(spent[id(other)] / spent[id(plain)])
    reason = max(stats.eager, key=stats.eager.__getitem__) if stats.eager else ""
    verdict = "DIFFERS: " + wrong if wrong else "equal"
    return (
        f"{name:22} {verdict:8} hits {info.hits:3} of {info.hits + info.misses:3}  "
        f"recorded {stats.recordings:2}  flat {flat}  {statistics.median(ratios):6.2f}  {reason}"
    )


def same_stream(a: Any, b: Any) -> bool:
    """Whether two states of a generator of torch, random or numpy are one."""
    if isinstance(a, torch.Tensor):
        return bool(torch.equal(a, b))
    return str(a) == str(b)


def main() -> int:
    """Print a row for each program; 1 where one differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--steps", type=int, default=16, help="compared steps")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds; 0 for none")
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = False
    for name in options.names or PROGRAMS:
        try:
            row = measure(name, options.steps, options.rounds)
        except ImportError as error:
            row = f"{name:22} not installed: {error}"
        except Exception:
            row = f"{name:22} FAILED {traceback.format_exc().strip().splitlines()[-1]}"
            if "-v" in sys.argv:
                traceback.print_exc()
            failed = True
        failed |= "DIFFERS" in row
        print(row, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
