"""Libraries that users of PyTorch decorate: whether models and steps of theirs do the same traced.

`pip install --no-deps -r benchmarks/libraries.txt`; what is not installed is left out, and said. Each row is
built twice from equal seeds. The traced one and the plain one are called with the same batches, of a few
sizes: a model in eval mode without gradients (`forward`), and its whole training step, with AdamW and
clipping (`training`), or a step of its own (`step`). Results, exceptions, warnings, parameters, gradients,
buffers, the optimizer's state and the random streams are compared bit by bit. Times are thread times over
those of the plain twin, in the second half of the calls.

    python benchmarks/libraries.py                            # all; some ten minutes
    python benchmarks/libraries.py e3nn kornia --verbose
"""

# Builders are named for what they build; forward references are those of jaxtyping.
# ruff: noqa: D102, D103, F722, F821, UP037

from __future__ import annotations

import argparse
import collections
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from architectures import OutOfTimeError, Row, expire
from programs import TWINS, Program, Twin, same, same_stream
from torch import Tensor, nn

import lazytrace

ROWS = (4, 3, 4, 2, 5, 4, 3, 4)
CALLS = 20


@dataclass
class Model:
    """A model, its arguments for so many rows, and its loss."""

    module: nn.Module
    batch: Callable[[int], tuple[Any, ...]]
    loss: Callable[[Any], Tensor] = lambda out: first_tensor(out).float().pow(2).mean()
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda parameters: torch.optim.AdamW(parameters, 1e-3)
    kinds: tuple[str, ...] = ("forward", "training")


LIBRARIES: dict[str, list[Callable[[], Model | Program]]] = {}


def of(library: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Put what builds a model or a step into the table."""

    def put(build: Callable[[], Any]) -> Callable[[], Any]:
        LIBRARIES.setdefault(library, []).append(build)
        return build

    return put


def first_tensor(out: Any) -> Tensor:
    """The first tensor of a nested result that has a gradient, or the first."""
    found = list(all_tensors(out))
    return next((tensor for tensor in found if tensor.requires_grad), found[0])


def all_tensors(out: Any) -> list[Tensor]:
    """All tensors of a nested result."""
    if isinstance(out, Tensor):
        return [out]
    if hasattr(out, "__dataclass_fields__"):
        out = vars(out)
    items = out.values() if isinstance(out, dict) else out if isinstance(out, list | tuple) else ()
    return [tensor for item in items for tensor in all_tensors(item)]


def counted(batch: Callable[[int], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
    """Batches of a few sizes, one after the other."""
    turns = iter(range(10**9))
    return lambda: batch(ROWS[next(turns) % len(ROWS)])


def forward(model: Model) -> Program:
    """A model in eval mode, without gradients."""
    module = model.module.eval()

    def call(*batch: Any) -> Any:
        with torch.no_grad():
            return module(*batch)

    return Program(call, counted(model.batch), [module])


def training(model: Model) -> Program:
    """A whole step of training."""
    module = model.module.train()
    optimizer = model.optimizer([p for p in module.parameters() if p.requires_grad])

    def step(*batch: Any) -> Tensor:
        optimizer.zero_grad()
        loss = model.loss(module(*batch))
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return Program(step, counted(model.batch), [module], [optimizer])


USES: dict[str, Callable[[Any], Program]] = {
    "forward": forward,
    "training": training,
    "step": lambda program: program,
}


def outcome(twin: Twin, told: list[str]) -> tuple[Any, str, list[str], float]:
    """What the next call gives, raises and warns of, and its seconds."""
    told.clear()
    try:
        results, seconds = twin.run()
        raised = ""
    except Exception as error:
        results, seconds, raised = [], 0.0, repr(error)
        twin.keep()
    return results, raised, list(told), seconds


def plain_state(value: Any) -> Any:
    """Nested state, of objects their attributes."""
    if isinstance(value, dict):
        return {key: plain_state(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_state(item) for item in value]
    if isinstance(value, nn.Module):
        return value.state_dict()
    if hasattr(value, "__dict__") and not isinstance(value, Tensor | type) and not callable(value):
        return plain_state(vars(value))
    return None if callable(value) else value


def note_warnings(told: list[str]) -> None:
    """From now on, what is warned of is noted."""

    def note(message: Any, category: Any, *_: Any, **__: Any) -> None:
        if not issubclass(category, lazytrace.RetraceWarning):
            told.append(str(message))

    warnings.simplefilter("always")
    warnings.showwarning = note


def compare(name: str, build: Callable[[], Any], kind: str) -> Row:
    """Call both twins with the same batches."""
    told: list[str] = []
    note_warnings(told)
    Twin(lambda: USES[kind](build()), lambda step: step).run()  # what is made or warned of once in a process
    plain = Twin(lambda: USES[kind](build()), lambda step: step)
    traced = Twin(lambda: USES[kind](build()), lazytrace.traced)
    wrong, spent = "", [0.0, 0.0]
    for i in range(CALLS):
        expected, error, warned, seconds = outcome(plain, told)
        if error and not i:
            raise RuntimeError(error)
        found, raised, heard, more = outcome(traced, told)
        if i >= CALLS // 2:
            spent = [spent[0] + seconds, spent[1] + more]
        if wrong:
            continue
        if raised != error:
            wrong = f"call {i} raised {raised or 'nothing'} for {error or 'nothing'}"
        elif warned != heard:
            wrong = f"call {i} warned of {heard} for {warned}"
        elif not same(all_tensors(expected) or expected, all_tensors(found) or found):
            wrong = f"result of call {i}"
        elif not same(plain_state(list(plain.program.state())), plain_state(list(traced.program.state()))):
            wrong = f"state after call {i}"
        elif not all(map(same_stream, plain.streams, traced.streams)):
            wrong = f"random stream after call {i}"
    stats = traced.step.stats()  # type: ignore[attr-defined]
    why = [f"{n} eager: {reason}" for reason, n in collections.Counter(dict(stats.eager)).most_common(3)]
    why += [
        f"{r.count} recorded: {r.text}" for r in sorted(stats.retrace_reasons, key=lambda r: -r.count)[:4]
    ]
    ratio = spent[1] / max(spent[0], 1e-9)
    return Row(name, kind, wrong, stats.hits, stats.recordings, stats.eager_calls, ratio, why)


def images(channels: int = 3, size: int = 32) -> Callable[[int], tuple[Any, ...]]:
    """Batches of images."""
    return lambda rows: (torch.randn(rows, channels, size, size),)


def sequences(length: int = 16, width: int = 32) -> Callable[[int], tuple[Any, ...]]:
    """Batches of rows of vectors."""
    return lambda rows: (torch.randn(rows, length, width),)


def tokens(length: int = 16, vocabulary: int = 50) -> Callable[[int], tuple[Any, ...]]:
    """Batches of tokens."""
    return lambda rows: (torch.randint(0, vocabulary, (rows, length)),)


def network(inputs: int = 8, outputs: int = 3) -> nn.Module:
    """A small perceptron."""
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def labeled(rows: int) -> tuple[Tensor, Tensor]:
    """Vectors and their classes."""
    return torch.randn(rows, 8), torch.randint(0, 3, (rows,))


# ---------------------------------------------------------------- attention, images, texts
@of("vit_pytorch")
def vit() -> Model:
    """A vision transformer."""
    from vit_pytorch import ViT

    options = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2, "heads": 2}
    return Model(ViT(**options, mlp_dim=48, dropout=0.1, emb_dropout=0.1), images())


@of("vit_pytorch")
def simple_vit() -> Model:
    from vit_pytorch import SimpleViT

    return Model(
        SimpleViT(image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=48), images()
    )


@of("vit_pytorch")
def na_vit() -> Model:
    from vit_pytorch.na_vit import NaViT

    model = NaViT(
        image_size=32,
        patch_size=8,
        num_classes=5,
        dim=32,
        depth=2,
        heads=2,
        mlp_dim=48,
        token_dropout_prob=0.1,
    )
    return Model(model, lambda rows: ([[torch.randn(3, 16, 24), torch.randn(3, 32, 8)]] * rows,))


@of("vit_pytorch")
def cait() -> Model:
    from vit_pytorch.cait import CaiT

    return Model(
        CaiT(
            image_size=32,
            patch_size=8,
            num_classes=5,
            dim=32,
            depth=2,
            cls_depth=2,
            heads=2,
            mlp_dim=48,
            dropout=0.1,
            emb_dropout=0.1,
            layer_dropout=0.05,
        ),
        images(),
    )


@of("vit_pytorch")
def max_vit() -> Model:
    from vit_pytorch.max_vit import MaxViT

    return Model(
        MaxViT(
            num_classes=5,
            dim_conv_stem=16,
            dim=16,
            dim_head=8,
            depth=(1, 1),
            window_size=4,
            mbconv_expansion_rate=2,
            mbconv_shrinkage_rate=0.25,
            dropout=0.1,
        ),
        images(),
    )


@of("denoising_diffusion")
def gaussian_diffusion() -> Model:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    unet = Unet(dim=8, dim_mults=(1, 2), flash_attn=False)
    return Model(
        GaussianDiffusion(unet, image_size=16, timesteps=20),
        lambda n: (torch.rand(n, 3, 16, 16),),
        loss=lambda o: o,
    )


@of("denoising_diffusion")
def gaussian_diffusion_1d() -> Model:
    from denoising_diffusion_pytorch import GaussianDiffusion1D, Unet1D

    unet = Unet1D(dim=8, dim_mults=(1, 2), channels=4)
    return Model(
        GaussianDiffusion1D(unet, seq_length=16, timesteps=20, objective="pred_v"),
        lambda n: (torch.rand(n, 4, 16),),
        loss=lambda o: o,
    )


@of("vector_quantize")
def vq() -> Model:
    from vector_quantize_pytorch import VectorQuantize

    return Model(
        nn.Sequential(
            nn.Linear(16, 16), VectorQuantize(dim=16, codebook_size=32, decay=0.8, commitment_weight=1.0)
        ),
        sequences(8, 16),
        loss=lambda o: o[0].pow(2).mean() + o[2].sum(),
    )


@of("vector_quantize")
def residual_vq() -> Model:
    from vector_quantize_pytorch import ResidualVQ

    return Model(
        nn.Sequential(
            nn.Linear(16, 16),
            ResidualVQ(
                dim=16,
                num_quantizers=3,
                codebook_size=16,
                kmeans_init=True,
                threshold_ema_dead_code=2,
                quantize_dropout=True,
            ),
        ),
        sequences(8, 16),
        loss=lambda o: o[0].pow(2).mean() + o[2].sum(),
    )


@of("vector_quantize")
def fsq() -> Model:
    from vector_quantize_pytorch import FSQ

    return Model(nn.Sequential(nn.Linear(16, 16), FSQ(levels=[8, 5, 5], dim=16)), sequences(8, 16))


@of("vector_quantize")
def lfq() -> Model:
    from vector_quantize_pytorch import LFQ

    return Model(
        nn.Sequential(nn.Linear(16, 16), LFQ(codebook_size=64, dim=16)),
        sequences(8, 16),
        loss=lambda o: o[0].pow(2).mean() + o[2],
    )


class Rotated(nn.Module):
    """Attention with rotary embeddings."""

    def __init__(self) -> None:
        super().__init__()
        from rotary_embedding_torch import RotaryEmbedding

        self.qkv, self.rotary = nn.Linear(32, 96), RotaryEmbedding(dim=8)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 2, 16).permute(2, 0, 3, 1, 4)
        q, k = self.rotary.rotate_queries_or_keys(q), self.rotary.rotate_queries_or_keys(k)
        return F.scaled_dot_product_attention(q, k, v)


@of("rotary_embedding_torch")
def rotary() -> Model:
    return Model(Rotated(), lambda n: (torch.randn(2, 4 + n, 32),))


@of("performer_pytorch")
def performer() -> Model:
    from performer_pytorch import PerformerLM

    return Model(
        PerformerLM(
            num_tokens=50,
            max_seq_len=32,
            dim=32,
            depth=2,
            heads=2,
            dim_head=16,
            causal=False,
            ff_dropout=0.1,
            feature_redraw_interval=5,
        ),
        tokens(),
    )


@of("reformer_pytorch")
def reformer() -> Model:
    from reformer_pytorch import ReformerLM

    return Model(
        ReformerLM(num_tokens=50, dim=32, depth=2, max_seq_len=32, heads=2, bucket_size=4, n_hashes=2),
        tokens(),
    )


@of("linformer")
def linformer() -> Model:
    from linformer import LinformerLM

    return Model(LinformerLM(num_tokens=50, dim=32, seq_len=16, depth=2, heads=2, k=8, dropout=0.1), tokens())


@of("perceiver_pytorch")
def perceiver() -> Model:
    from perceiver_pytorch import Perceiver

    model = Perceiver(
        input_channels=3,
        input_axis=2,
        num_freq_bands=4,
        max_freq=10.0,
        depth=2,
        num_latents=8,
        latent_dim=32,
        cross_heads=1,
        latent_heads=2,
        num_classes=5,
        attn_dropout=0.1,
    )
    return Model(model, lambda n: (torch.randn(n, 8, 8, 3),))


@of("perceiver_pytorch")
def perceiver_io() -> Model:
    from perceiver_pytorch import PerceiverIO

    return Model(
        PerceiverIO(dim=16, queries_dim=16, logits_dim=5, depth=2, num_latents=8, latent_dim=32),
        lambda n: (torch.randn(n, 10, 16), None, torch.randn(6, 16)),
    )


@of("x_transformers")
def x_decoder() -> Model:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    model = TransformerWrapper(
        num_tokens=50,
        max_seq_len=32,
        attn_layers=Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True, ff_glu=True, attn_dropout=0.1),
    )
    return Model(AutoregressiveWrapper(model), tokens(), loss=lambda o: o)


@of("x_transformers")
def x_encoder() -> Model:
    from x_transformers import ContinuousTransformerWrapper, Encoder

    model = ContinuousTransformerWrapper(
        dim_in=16,
        dim_out=8,
        max_seq_len=32,
        attn_layers=Encoder(
            dim=32, depth=2, heads=2, use_rmsnorm=True, alibi_pos_bias=True, layer_dropout=0.1
        ),
    )
    return Model(model, sequences(16, 16))


@of("soft_moe")
def soft_moe() -> Model:
    from soft_moe_pytorch import SoftMoE

    return Model(SoftMoE(dim=32, seq_len=16, num_experts=4), sequences())


@of("local_attention")
def local_attention() -> Model:
    from local_attention import LocalTransformer

    return Model(
        LocalTransformer(
            num_tokens=50,
            dim=32,
            depth=2,
            max_seq_len=32,
            causal=True,
            local_attn_window_size=8,
            heads=2,
            dim_head=16,
        ),
        tokens(),
    )


@of("invariant_point_attention")
def ipa() -> Model:
    from invariant_point_attention import IPATransformer

    return Model(
        IPATransformer(dim=16, depth=2, num_tokens=10, predict_points=True),
        lambda n: (torch.randint(0, 10, (1, 4 + n)),),
    )


@of("egnn")
def egnn() -> Model:
    from egnn_pytorch import EGNN_Network

    return Model(
        EGNN_Network(num_tokens=10, dim=16, depth=2, num_nearest_neighbors=4),
        lambda n: (torch.randint(0, 10, (2, 6 + n)), torch.randn(2, 6 + n, 3)),
    )


@of("titans")
def titans() -> Model:
    from titans_pytorch import NeuralMemory

    return Model(NeuralMemory(dim=16, chunk_size=4), lambda n: (torch.randn(2, 16, 16),))


@of("mixture_of_experts")
def moe() -> Model:
    from mixture_of_experts import MoE

    return Model(
        MoE(dim=16, num_experts=4, hidden_dim=32), sequences(8, 16), loss=lambda o: o[0].pow(2).mean() + o[1]
    )


@of("st_moe")
def st_moe() -> Model:
    from st_moe_pytorch import MoE

    return Model(MoE(dim=16, num_experts=4), sequences(8, 16), loss=lambda o: o[0].pow(2).mean() + o[1])


@of("conformer")
def conformer() -> Model:
    from conformer import Conformer

    return Model(
        Conformer(
            dim=32,
            depth=2,
            dim_head=16,
            heads=2,
            ff_mult=2,
            conv_expansion_factor=2,
            conv_kernel_size=7,
            attn_dropout=0.1,
            ff_dropout=0.1,
            conv_dropout=0.1,
        ),
        sequences(),
    )


@of("hyper_connections")
def hyper_connections() -> Model:
    from hyper_connections import get_init_and_expand_reduce_stream_functions

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            init, self.expand, self.reduce = get_init_and_expand_reduce_stream_functions(2)
            self.layers = nn.ModuleList(
                [init(dim=16, branch=nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16))) for _ in range(2)]
            )

        def forward(self, x: Tensor) -> Tensor:
            x = self.expand(x)
            for layer in self.layers:
                x = layer(x)
            return self.reduce(x)

    return Model(Net(), sequences(8, 16))


@of("axial")
def axial_attention() -> Model:
    from axial_attention import AxialAttention

    return Model(AxialAttention(dim=8, dim_index=1, heads=2, num_dimensions=2), images(8, 8))


@of("axial")
def axial_embedding() -> Model:
    from axial_positional_embedding import AxialPositionalEmbedding

    return Model(AxialPositionalEmbedding(dim=32, axial_shape=(4, 4), axial_dims=(16, 16)), sequences())


@of("product_key_memory")
def pkm() -> Model:
    from product_key_memory import PKM

    return Model(PKM(dim=32, heads=2, num_keys=8, topk=4, dim_head=16), sequences())


@of("colt5")
def colt5() -> Model:
    from colt5_attention import ConditionalRoutedFeedForward

    return Model(
        ConditionalRoutedFeedForward(16, light_ff_mult=0.5, heavy_ff_mult=2, num_heavy_tokens=4),
        sequences(12, 16),
    )


@of("mogrifier")
def mogrifier() -> Model:
    from mogrifier import Mogrifier

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.m = Mogrifier(dim=16, iters=3, factorize_k=4)

        def forward(self, x: Tensor, y: Tensor) -> Any:
            return self.m(x, y)

    return Model(Net(), lambda n: (torch.randn(n, 4, 16), torch.randn(n, 4, 16)))


@of("ema_pytorch")
def ema() -> Program:
    from ema_pytorch import EMA

    net = network()
    average = EMA(net, beta=0.99, update_after_step=3, update_every=2)
    return stepped(net, torch.optim.Adam(net.parameters()), after=average.update, modules=[average])


def stepped(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    after: Callable[[], Any] = lambda: None,
    modules: Any = (),
    batch: Callable[[int], tuple[Any, ...]] = labeled,
) -> Program:
    """A step of a classifier."""

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        after()
        return loss.item()

    return Program(step, counted(batch), [net, *modules], [optimizer])


@of("torch_ema")
def torch_ema() -> Program:
    from torch_ema import ExponentialMovingAverage

    net = network()
    average = ExponentialMovingAverage(net.parameters(), decay=0.99)
    made = stepped(net, torch.optim.Adam(net.parameters()), after=average.update)
    made.other = lambda: average.state_dict()
    return made


@of("ema_pytorch")
def post_hoc_ema() -> Program:
    from ema_pytorch import PostHocEMA

    net = network()
    average = PostHocEMA(
        net,
        sigma_rels=(0.05, 0.28),
        update_every=2,
        checkpoint_every_num_steps=10**6,
        checkpoint_folder="/tmp/none-is-written",
    )
    return stepped(net, torch.optim.Adam(net.parameters()), after=average.update, modules=[average])


# ---------------------------------------------------------------- optimizers
def optimizers(library: str, table: dict[str, Callable[[Any], Any]]) -> None:
    """A step for each optimizer."""
    for name, make in table.items():

        def build(make: Callable[[Any], Any] = make) -> Program:
            net = network()
            return stepped(net, make(net.parameters()))

        build.__name__ = name
        of(library)(build)


def made_by(module: str, name: str, **options: Any) -> Callable[[Any], Any]:
    """An optimizer of a module that is imported when it is made."""
    return lambda parameters: getattr(__import__(module, fromlist=["_"]), name)(parameters, **options)


optimizers("lion_pytorch", {"Lion": made_by("lion_pytorch", "Lion", lr=1e-3, weight_decay=0.01)})
optimizers(
    "adam_atan2",
    {
        "AdamAtan2": made_by("adam_atan2_pytorch", "AdamAtan2", lr=1e-3),
        "MuonAdamAtan2": made_by("adam_atan2_pytorch", "AdoptAtan2", lr=1e-3),
    },
)
optimizers("prodigyopt", {"Prodigy": made_by("prodigyopt", "Prodigy", lr=1.0, weight_decay=0.01)})
optimizers(
    "adabelief",
    {"AdaBelief": made_by("adabelief_pytorch", "AdaBelief", lr=1e-3, eps=1e-8, print_change_log=False)},
)
optimizers(
    "torch_optimizer",
    {
        name: made_by("torch_optimizer", name)
        for name in (
            "A2GradExp",
            "A2GradInc",
            "A2GradUni",
            "AccSGD",
            "AdaBelief",
            "AdaBound",
            "AdaMod",
            "Adafactor",
            "AdamP",
            "AggMo",
            "Apollo",
            "DiffGrad",
            "LARS",
            "Lamb",
            "MADGRAD",
            "NovoGrad",
            "PID",
            "QHAdam",
            "QHM",
            "RAdam",
            "Ranger",
            "RangerQH",
            "RangerVA",
            "SGDP",
            "SGDW",
            "SWATS",
            "Shampoo",
            "Yogi",
        )
    },
)
PYTORCH_OPTIMIZERS = (
    "ADOPT", "APOLLO", "AdEMAMix", "AdaBelief", "AdaBound", "AdaDelta", "AdaFactor", "AdaMax", "AdaMod",
    "AdaNorm", "AdaPNM", "AdaSmooth", "Adai", "Adalite", "AdamC", "AdamP", "AdamS", "AdamW", "AdamG",
    "AggMo", "Aida", "AvaGrad", "Ano", "CAME", "Conda", "DAdaptAdaGrad", "DAdaptAdam", "DAdaptAdan",
    "DAdaptLion", "DAdaptSGD", "DiffGrad", "EmoFact", "EmoLynx", "EmoNavi", "EXAdam", "FAdam", "FOCUS",
    "FTRL", "Fira", "Fromage", "GaLore", "GrokFastAdamW", "Gravity", "Grams", "Kate", "Kron", "LARS",
    "Lamb", "LaProp", "Lion", "MADGRAD", "MARS", "MSVAG", "Nero", "NovoGrad", "PAdam", "PID", "PNM",
    "Prodigy", "QHAdam", "QHM", "RACS", "RAdam", "Ranger", "Ranger21", "ScheduleFreeAdamW",
    "ScheduleFreeRAdam", "ScheduleFreeSGD", "SCION", "SGDP", "SGDSaI", "SGDW", "SM3", "SOAP", "SPAM",
    "SPlus", "SRMM", "SWATS", "Shampoo", "ScalableShampoo", "SignSGD", "SimplifiedAdEMAMix", "StableAdamW",
    "StableSPAM", "TAM", "Tiger", "VSGD", "Yogi",
)  # fmt: skip
_OPTIONS: dict[str, dict[str, Any]] = {
    "Ranger21": {"num_iterations": 100},
    "AdEMAMix": {"t_alpha_beta3": 100},
}
optimizers(
    "pytorch_optimizer",
    {name: made_by("pytorch_optimizer", name, **_OPTIONS.get(name, {})) for name in PYTORCH_OPTIMIZERS},
)


def schedule_free(name: str) -> None:
    """A step of one of schedulefree's optimizers."""

    def build() -> Program:
        import schedulefree

        net = network()
        optimizer = getattr(schedulefree, name)(net.parameters(), lr=1e-3)
        optimizer.train()
        return stepped(net, optimizer)

    build.__name__ = name
    of("schedulefree")(build)


for _name in ("AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"):
    schedule_free(_name)


@of("pytorch_optimizer")
def sam() -> Program:
    """Two passes and two steps; the closure style as well."""
    from pytorch_optimizer import SAM

    net = network()
    optimizer = SAM(net.parameters(), base_optimizer=torch.optim.SGD, lr=0.1, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.first_step(zero_grad=True)
        F.cross_entropy(net(x), y).backward()
        optimizer.second_step(zero_grad=True)
        return loss.detach()

    return Program(step, counted(labeled), [net], [optimizer])


@of("pytorch_optimizer")
def sam_closure() -> Program:
    from pytorch_optimizer import SAM

    net = network()
    optimizer = SAM(net.parameters(), base_optimizer=torch.optim.SGD, lr=0.1, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        def closure() -> Tensor:
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step(closure)
        optimizer.zero_grad()
        return loss.detach()

    return Program(step, counted(labeled), [net], [optimizer])


@of("pytorch_optimizer")
def lookahead() -> Program:
    from pytorch_optimizer import Lookahead

    net = network()
    return stepped(net, Lookahead(torch.optim.AdamW(net.parameters()), k=3, alpha=0.5))


# ---------------------------------------------------------------- science, geometry, signals
@of("e3nn")
def e3nn_layers() -> Model:
    from e3nn import o3
    from e3nn.nn import FullyConnectedNet, Gate

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.irreps = o3.Irreps("4x0e + 4x1o")
            self.sh = o3.Irreps.spherical_harmonics(2)
            self.gate = Gate("4x0e", [torch.relu], "4x0e", [torch.sigmoid], "4x1o")
            self.tp = o3.FullyConnectedTensorProduct(
                self.irreps, self.sh, self.gate.irreps_in, shared_weights=False
            )
            self.fc = FullyConnectedNet([3, 8, self.tp.weight_numel], torch.relu)
            self.linear = o3.Linear(self.irreps, self.irreps)

        def forward(self, x: Tensor, vec: Tensor) -> Tensor:
            sh = o3.spherical_harmonics(self.sh, vec, normalize=True, normalization="component")
            return self.gate(self.tp(self.linear(x), sh, self.fc(vec)))

    return Model(Net(), lambda n: (torch.randn(5 + n, 16), torch.randn(5 + n, 3)))


@of("kornia")
def kornia_filters() -> Model:
    import kornia

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            x = kornia.filters.gaussian_blur2d(self.conv(x), (3, 3), (1.0, 1.0))
            x = kornia.color.rgb_to_hsv(x.sigmoid())
            return kornia.filters.sobel(x) + kornia.filters.laplacian(x, 3)

    return Model(Net(), images(3, 16))


@of("kornia")
def kornia_warp() -> Model:
    import kornia

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.angle = nn.Linear(8, 1)

        def forward(self, x: Tensor, f: Tensor) -> Tensor:
            angle = self.angle(f).squeeze(-1) * 30
            x = kornia.geometry.rotate(x, angle)
            return kornia.geometry.translate(x, torch.stack([angle, -angle], -1) / 30)

    return Model(Net(), lambda n: (torch.randn(n, 3, 16, 16), torch.randn(n, 8)))


@of("kornia")
def kornia_augment() -> Model:
    import kornia.augmentation as K

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.augment = nn.Sequential(
                K.RandomHorizontalFlip(p=0.5),
                K.RandomAffine(15.0, p=0.5),
                K.ColorJitter(0.1, 0.1, 0.1, 0.1, p=0.5),
                K.RandomErasing(p=0.5),
            )
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(self.augment(x))

    return Model(Net(), lambda n: (torch.rand(n, 3, 16, 16),))


@of("kornia")
def kornia_losses() -> Model:
    import kornia

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            out = self.conv(x)
            return (
                kornia.losses.focal_loss(out, y, 0.5, 2.0, "mean")
                + kornia.losses.ssim_loss(out, x, 5)
                + kornia.losses.total_variation(out).mean() * 1e-3
                + kornia.losses.dice_loss(out, y)
            )

    return Model(
        Net(), lambda n: (torch.rand(n, 3, 16, 16), torch.randint(0, 3, (n, 16, 16))), loss=lambda o: o
    )


@of("kornia")
def kornia_features() -> Program:
    import kornia

    def step(x: Tensor) -> Any:
        return (
            kornia.feature.harris_response(x),
            kornia.geometry.spatial_soft_argmax2d(x),
            kornia.enhance.equalize(x),
            kornia.morphology.dilation(x, torch.ones(3, 3)),
        )

    return Program(step, counted(lambda n: (torch.rand(n, 1, 16, 16),)))


@of("monai")
def monai_unet() -> Model:
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = UNet(
                spatial_dims=2,
                in_channels=1,
                out_channels=2,
                channels=(4, 8, 16),
                strides=(2, 2),
                num_res_units=1,
                dropout=0.1,
            )
            self.loss = DiceCELoss(to_onehot_y=True, softmax=True)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.loss(self.net(x), y)

    return Model(
        Net(), lambda n: (torch.randn(n, 1, 16, 16), torch.randint(0, 2, (n, 1, 16, 16))), loss=lambda o: o
    )


@of("monai")
def monai_swin() -> Model:
    from monai.networks.nets import SwinUNETR

    return Model(
        SwinUNETR(
            in_channels=1,
            out_channels=2,
            feature_size=12,
            depths=(1, 1, 1, 1),
            num_heads=(1, 1, 2, 2),
            spatial_dims=2,
        ),
        lambda n: (torch.randn(n, 1, 64, 64),),
    )


@of("monai")
def monai_metrics() -> Program:
    from monai.metrics import DiceMetric
    from monai.transforms import AsDiscrete

    metric, discrete = DiceMetric(include_background=False), AsDiscrete(argmax=True, to_onehot=3)

    def step(x: Tensor, y: Tensor) -> Any:
        metric(y_pred=[discrete(i) for i in x], y=y)
        result = metric.aggregate()
        metric.reset()
        return result

    return Program(
        step,
        counted(
            lambda n: (
                torch.randn(n, 3, 8, 8),
                F.one_hot(torch.randint(0, 3, (n, 8, 8)), 3).movedim(-1, 1).float(),
            )
        ),
    )


@of("torchdiffeq")
def neural_ode() -> Model:
    from torchdiffeq import odeint_adjoint

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
            self.field = Field(self.f)

        def forward(self, x: Tensor) -> Tensor:
            return odeint_adjoint(
                self.field, x, torch.linspace(0, 1, 3), method="dopri5", rtol=1e-3, atol=1e-3
            )[-1]

    return Model(Net(), lambda n: (torch.randn(n, 4),))


class Field(nn.Module):
    """A vector field."""

    def __init__(self, f: nn.Module) -> None:
        super().__init__()
        self.f = f

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        """The slope at `y`."""
        return self.f(y) * torch.cos(t)


@of("torchdiffeq")
def odeint_rk4() -> Model:
    from torchdiffeq import odeint

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = Field(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4)))

        def forward(self, x: Tensor) -> Tensor:
            return odeint(self.field, x, torch.linspace(0, 1, 5), method="rk4")[-1]

    return Model(Net(), lambda n: (torch.randn(n, 4),))


@of("torchsde")
def sde() -> Model:
    import torchsde

    class Sde(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift, self.spread = nn.Linear(4, 4), nn.Linear(4, 4)

        def f(self, t: Tensor, y: Tensor) -> Tensor:
            return torch.tanh(self.drift(y))

        def g(self, t: Tensor, y: Tensor) -> Tensor:
            return torch.sigmoid(self.spread(y))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sde = Sde()

        def forward(self, x: Tensor) -> Tensor:
            bm = torchsde.BrownianInterval(t0=0.0, t1=1.0, size=x.shape, entropy=3)
            return torchsde.sdeint(self.sde, x, torch.linspace(0, 1, 3), bm=bm, dt=0.25, method="euler")[-1]

    return Model(Net(), lambda n: (torch.randn(n, 4),))


@of("torchcde")
def cde() -> Model:
    import torchcde

    class F_(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(4, 12)

        def forward(self, t: Tensor, z: Tensor) -> Tensor:
            return torch.tanh(self.l(z)).view(z.size(0), 4, 3)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f, self.start = F_(), nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            path = torchcde.CubicSpline(torchcde.hermite_cubic_coefficients_with_backward_differences(x))
            return torchcde.cdeint(
                X=path,
                func=self.f,
                z0=self.start(path.evaluate(path.interval[0])),
                t=path.interval,
                adjoint=False,
                method="rk4",
            )[:, -1]

    return Model(Net(), lambda n: (torch.randn(n, 6, 3),))


@of("julius")
def julius_filters() -> Program:
    import julius

    low, res = julius.LowPassFilter(0.1), julius.ResampleFrac(4, 5)
    bands = julius.SplitBands(16000, 4)

    def step(x: Tensor) -> Any:
        return low(x), res(x), bands(x)

    return Program(step, counted(lambda n: (torch.randn(n, 1, 600),)), [low, res])


@of("nnaudio")
def nn_audio() -> Model:
    from nnAudio.features import MelSpectrogram

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mel = MelSpectrogram(
                sr=8000, n_fft=128, n_mels=16, hop_length=64, trainable_mel=True, verbose=False
            )
            self.conv = nn.Conv1d(16, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(torch.log(self.mel(x) + 1e-5))

    return Model(Net(), lambda n: (torch.randn(n, 800),))


@of("asteroid")
def conv_tasnet() -> Model:
    from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr
    from asteroid.models import ConvTasNet

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = ConvTasNet(
                n_src=2, n_repeats=1, n_blocks=2, bn_chan=8, hid_chan=8, skip_chan=8, n_filters=16
            )
            self.loss = PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx")

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.loss(self.net(x), y)

    return Model(Net(), lambda n: (torch.randn(n, 400), torch.randn(n, 2, 400)), loss=lambda o: o)


@of("torch_audiomentations")
def augment_audio() -> Program:
    from torch_audiomentations import Compose, Gain, PolarityInversion

    augment = Compose(
        [Gain(p=0.5, output_type="dict"), PolarityInversion(p=0.5, output_type="dict")], output_type="dict"
    )

    def step(x: Tensor) -> Any:
        return augment(x, sample_rate=8000).samples

    return Program(step, counted(lambda n: (torch.randn(n, 1, 400),)))


@of("speechbrain")
def ecapa() -> Model:
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN

    return Model(
        ECAPA_TDNN(
            16,
            channels=[16, 16, 16, 16, 48],
            kernel_sizes=[5, 3, 3, 3, 1],
            dilations=[1, 2, 3, 4, 1],
            attention_channels=8,
            lin_neurons=8,
        ),
        sequences(20, 16),
    )


@of("speechbrain")
def crdnn() -> Model:
    from speechbrain.lobes.models.CRDNN import CRDNN

    return Model(
        CRDNN(
            input_shape=[None, 20, 16],
            cnn_blocks=1,
            cnn_channels=(4,),
            rnn_layers=1,
            rnn_neurons=8,
            dnn_blocks=1,
            dnn_neurons=8,
        ),
        sequences(20, 16),
    )


@of("speechbrain")
def speech_transformer() -> Model:
    from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = TransformerASR(
                tgt_vocab=20,
                input_size=16,
                d_model=16,
                nhead=2,
                num_encoder_layers=1,
                num_decoder_layers=1,
                d_ffn=32,
                encoder_module="conformer",
                attention_type="RelPosMHAXL",
                kernel_size=7,
                causal=False,
            )

        def forward(self, x: Tensor, y: Tensor, lengths: Tensor) -> Any:
            return self.net(x, y, lengths)[1]

    return Model(
        Net(), lambda n: (torch.randn(n, 12, 16), torch.randint(1, 20, (n, 5)), torch.linspace(0.5, 1, n))
    )


@of("schnetpack")
def schnet() -> Model:
    import schnetpack.nn as snn
    from schnetpack.representation import PaiNN

    net = PaiNN(
        n_atom_basis=8,
        n_interactions=2,
        radial_basis=snn.GaussianRBF(n_rbf=8, cutoff=5.0),
        cutoff_fn=snn.CosineCutoff(5.0),
    )

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, z: Tensor, i: Tensor, j: Tensor, r: Tensor) -> Any:
            return self.net({"_atomic_numbers": z, "_idx_i": i, "_idx_j": j, "_Rij": r})[
                "scalar_representation"
            ]

    return Model(
        Net(),
        lambda n: (
            torch.randint(1, 9, (4 + n,)),
            torch.randint(0, 4 + n, (8 * n,)),
            torch.randint(0, 4 + n, (8 * n,)),
            torch.randn(8 * n, 3),
        ),
    )


@of("escnn")
def equivariant() -> Model:
    from escnn import gspaces
    from escnn import nn as enn

    space = gspaces.rot2dOnR2(N=4)
    one, two = enn.FieldType(space, 1 * [space.trivial_repr]), enn.FieldType(space, 4 * [space.regular_repr])

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = enn.SequentialModule(
                enn.R2Conv(one, two, 5), enn.InnerBatchNorm(two), enn.ReLU(two), enn.GroupPooling(two)
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.body(enn.GeometricTensor(x, one)).tensor

    return Model(Net(), images(1, 12))


def riemannian(kind: str) -> None:
    """A step on a manifold."""

    def build() -> Program:
        import geoopt

        ball = geoopt.PoincareBall(c=1.0)
        table = geoopt.ManifoldParameter(ball.expmap0(torch.randn(20, 4) * 0.1), manifold=ball)
        turn = geoopt.ManifoldParameter(torch.linalg.qr(torch.randn(4, 4))[0], manifold=geoopt.Stiefel())
        net = nn.Module()
        net.table, net.turn = table, turn
        optimizer = getattr(geoopt.optim, kind)([table, turn], lr=1e-2, stabilize=4)

        def step(a: Tensor, b: Tensor) -> float:
            optimizer.zero_grad()
            loss = ball.dist(table[a], table[b]).pow(2).mean() + (turn - torch.eye(4)).pow(2).sum()
            loss.backward()
            optimizer.step()
            return loss.item()

        return Program(
            step,
            counted(lambda n: (torch.randint(0, 20, (n,)), torch.randint(0, 20, (n,)))),
            [net],
            [optimizer],
        )

    build.__name__ = kind
    of("geoopt")(build)


for _name in ("RiemannianAdam", "RiemannianSGD"):
    riemannian(_name)


# ---------------------------------------------------------------- metrics and losses
def metrics(names: tuple[str, ...], make: Callable[[Any, str], Any], batch: Any, group: str) -> None:
    """Metrics that are updated and computed."""
    for name in names:

        def build(name: str = name) -> Program:
            import torchmetrics

            metric = make(torchmetrics, name)

            def step(*arguments: Tensor) -> Any:
                value = metric(*arguments)
                return value, metric.compute()

            return Program(step, counted(batch), [metric], other=lambda: list(metric.metric_state.values()))

        build.__name__ = name
        of(group)(build)


metrics(
    (
        "Accuracy",
        "F1Score",
        "Precision",
        "Recall",
        "AUROC",
        "AveragePrecision",
        "ConfusionMatrix",
        "CohenKappa",
        "JaccardIndex",
        "MatthewsCorrCoef",
        "CalibrationError",
        "HammingDistance",
        "Specificity",
        "StatScores",
        "ExactMatch",
    ),
    lambda t, n: getattr(t, n)(task="multiclass", num_classes=3),
    lambda n: (torch.randn(3 * n, 3).softmax(-1), torch.randint(0, 3, (3 * n,))),
    "torchmetrics",
)
metrics(
    (
        "MeanSquaredError",
        "MeanAbsoluteError",
        "R2Score",
        "PearsonCorrCoef",
        "SpearmanCorrCoef",
        "ExplainedVariance",
        "KendallRankCorrCoef",
        "ConcordanceCorrCoef",
        "LogCoshError",
    ),
    lambda t, n: getattr(t, n)(),
    lambda n: (torch.randn(3 * n), torch.randn(3 * n)),
    "torchmetrics",
)
metrics(
    ("SignalNoiseRatio", "ScaleInvariantSignalDistortionRatio"),
    lambda t, n: getattr(t.audio, n)(),
    lambda n: (torch.randn(n, 100), torch.randn(n, 100)),
    "torchmetrics",
)
metrics(
    ("PeakSignalNoiseRatio", "StructuralSimilarityIndexMeasure"),
    lambda t, n: getattr(t.image, n)(data_range=1.0),
    lambda n: (torch.rand(n, 1, 16, 16), torch.rand(n, 1, 16, 16)),
    "torchmetrics",
)
metrics(
    ("MeanMetric", "SumMetric", "MaxMetric", "CatMetric", "RunningMean"),
    lambda t, n: getattr(t.aggregation, n)() if hasattr(t.aggregation, n) else t.MeanMetric(),
    lambda n: (torch.randn(n),),
    "torchmetrics",
)
metrics(
    ("Perplexity",),
    lambda t, n: t.text.Perplexity(ignore_index=0),
    lambda n: (torch.randn(n, 6, 5), torch.randint(0, 5, (n, 6))),
    "torchmetrics",
)


@of("torchmetrics")
def metric_collection() -> Program:
    import torchmetrics as t

    net = network()
    optimizer = torch.optim.Adam(net.parameters())
    options: dict[str, Any] = {"task": "multiclass", "num_classes": 3}
    found = t.MetricCollection(
        [t.Accuracy(**options), t.F1Score(**options), t.AUROC(**options)], prefix="train/"
    )
    track = t.MeanMetric()

    def step(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        out = net(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        found.update(out.softmax(-1).detach(), y)
        track.update(loss.detach())
        return loss.item()

    return Program(
        step,
        counted(labeled),
        [net],
        [optimizer],
        other=lambda: [list(m.metric_state.values()) for m in (*found.values(), track)],
    )


def metric_losses(names: tuple[str, ...], *, miner: str = "") -> None:
    """Losses of embeddings."""
    for name in names:

        def build(name: str = name) -> Model:
            from pytorch_metric_learning import losses, miners

            classes = (
                {"num_classes": 3, "embedding_size": 3}
                if name
                in {
                    "ArcFaceLoss",
                    "CosFaceLoss",
                    "NormalizedSoftmaxLoss",
                    "ProxyAnchorLoss",
                    "ProxyNCALoss",
                    "SphereFaceLoss",
                    "SubCenterArcFaceLoss",
                    "SoftTripleLoss",
                    "LargeMarginSoftmaxLoss",
                }
                else {}
            )

            class Net(nn.Module):
                def __init__(self) -> None:
                    super().__init__()
                    self.net, self.loss = network(), getattr(losses, name)(**classes)
                    self.miner = getattr(miners, miner)() if miner else None

                def forward(self, x: Tensor, y: Tensor) -> Tensor:
                    z = self.net(x)
                    return self.loss(z, y, self.miner(z, y)) if self.miner else self.loss(z, y)

            return Model(
                Net(),
                lambda n: (torch.randn(3 * n, 8), torch.arange(3 * n) % 3),
                loss=lambda o: o,
                kinds=("training",),
            )

        build.__name__ = name + miner
        of("pytorch_metric_learning")(build)


metric_losses(
    (
        "TripletMarginLoss",
        "ContrastiveLoss",
        "NTXentLoss",
        "SupConLoss",
        "ArcFaceLoss",
        "ProxyAnchorLoss",
        "MultiSimilarityLoss",
        "CircleLoss",
        "LiftedStructureLoss",
        "SoftTripleLoss",
        "NPairsLoss",
        "FastAPLoss",
    )
)
metric_losses(("TripletMarginLoss",), miner="MultiSimilarityMiner")
metric_losses(("TripletMarginLoss",), miner="TripletMarginMiner")


@of("entmax")
def entmax() -> Model:
    from entmax import entmax15, entmax_bisect, sparsemax

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor) -> Tensor:
            z = self.net(x)
            return entmax15(z, dim=-1) + sparsemax(z, dim=-1) + entmax_bisect(z, alpha=1.3, dim=-1)

    return Model(Net(), lambda n: (torch.randn(n, 8),))


@of("entmax")
def entmax_loss() -> Model:
    from entmax import Entmax15Loss, SparsemaxLoss

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.one, self.two = network(), Entmax15Loss(), SparsemaxLoss()

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            z = self.net(x)
            return self.one(z, y) + self.two(z, y)

    return Model(Net(), labeled, loss=lambda o: o)


# ---------------------------------------------------------------- probability
@of("zuko")
def zuko_nsf() -> Model:
    import zuko

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flow = zuko.flows.NSF(features=3, context=4, transforms=2, hidden_features=(16,))

        def forward(self, x: Tensor, c: Tensor) -> Tensor:
            return -self.flow(c).log_prob(x).mean()

    return Model(Net(), lambda n: (torch.randn(n, 3), torch.randn(n, 4)), loss=lambda o: o)


@of("zuko")
def zuko_maf_sample() -> Program:
    import zuko

    flow = zuko.flows.MAF(features=3, transforms=2, hidden_features=(16,))
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)

    def step(x: Tensor) -> float:
        optimizer.zero_grad()
        z = flow().rsample((4,))
        loss = -flow().log_prob(x).mean() + z.pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(step, counted(lambda n: (torch.randn(n, 3),)), [flow], [optimizer])


@of("nflows")
def nflows_maf() -> Model:
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms.autoregressive import MaskedAffineAutoregressiveTransform
    from nflows.transforms.base import CompositeTransform
    from nflows.transforms.permutations import ReversePermutation

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            parts = [
                p
                for _ in range(2)
                for p in (
                    ReversePermutation(features=3),
                    MaskedAffineAutoregressiveTransform(features=3, hidden_features=8),
                )
            ]
            self.flow = Flow(CompositeTransform(parts), StandardNormal(shape=[3]))

        def forward(self, x: Tensor) -> Tensor:
            return -self.flow.log_prob(inputs=x).mean()

    return Model(Net(), lambda n: (torch.randn(n, 3),), loss=lambda o: o)


@of("normflows")
def normflows_nvp() -> Program:
    import normflows as nf

    flows = [
        f
        for _ in range(2)
        for f in (
            nf.flows.AffineCouplingBlock(nf.nets.MLP([1, 8, 2], init_zeros=False)),
            nf.flows.Permute(2, mode="swap"),
            nf.flows.ActNorm(2),
        )
    ]
    model = nf.NormalizingFlow(nf.distributions.DiagGaussian(2), flows)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model.forward_kld(x)
        if ~(torch.isnan(loss) | torch.isinf(loss)):
            loss.backward()
            optimizer.step()
        return loss.detach()

    return Program(step, counted(lambda n: (torch.randn(4 * n, 2),)), [model], [optimizer])


@of("gpytorch")
def gp_variational() -> Program:
    import gpytorch

    class Gp(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            points = torch.randn(6, 2)
            q = gpytorch.variational.CholeskyVariationalDistribution(6)
            super().__init__(
                gpytorch.variational.VariationalStrategy(self, points, q, learn_inducing_locations=True)
            )
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model, likelihood = Gp(), gpytorch.likelihoods.GaussianLikelihood()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=100)
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(
        step, counted(lambda n: (torch.randn(n, 2), torch.randn(n))), [model, likelihood], [optimizer]
    )


@of("pyro")
def pyro_svi() -> Program:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVI, Trace_ELBO

    def model(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(len(x), 2), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(z.sum(-1, keepdim=True), 1.0).to_event(1), obs=x)

    net, name = nn.Linear(1, 4), f"net{next(TWINS)}"  # the store of parameters is that of the process

    def guide(x: Tensor) -> None:
        pyro.module(name, net)
        with pyro.plate("data", len(x)):
            loc, scale = net(x).chunk(2, -1)
            pyro.sample("z", dist.Normal(loc, scale.exp()).to_event(1))

    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO())
    return Program(svi.step, counted(lambda n: (torch.randn(n, 1),)), [net])


# ---------------------------------------------------------------- tables
@of("pytorch_tabnet")
def tabnet() -> Model:
    from pytorch_tabnet.tab_network import TabNet

    model = TabNet(8, 3, n_d=4, n_a=4, n_steps=2, virtual_batch_size=4, group_attention_matrix=torch.eye(8))
    return Model(model, lambda n: (torch.randn(2 * n, 8),), loss=lambda o: o[0].pow(2).mean() - 1e-3 * o[1])


@of("tab_transformer")
def tab_transformer() -> Model:
    from tab_transformer_pytorch import FTTransformer

    return Model(
        FTTransformer(
            categories=(5, 4, 3),
            num_continuous=4,
            dim=16,
            dim_out=1,
            depth=2,
            heads=2,
            attn_dropout=0.1,
            ff_dropout=0.1,
        ),
        lambda n: (torch.randint(0, 3, (n, 3)), torch.randn(n, 4)),
    )


@of("rtdl")
def rtdl_embeddings() -> Model:
    from rtdl_num_embeddings import PeriodicEmbeddings, PiecewiseLinearEmbeddings, compute_bins

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = PeriodicEmbeddings(4, 8, lite=False)
            self.two = PiecewiseLinearEmbeddings(
                compute_bins(torch.randn(50, 4), n_bins=5), 8, activation=False, version="B"
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x) + self.two(x)

    return Model(Net(), lambda n: (torch.randn(n, 4),))


@of("tsai")
def inception_time() -> Model:
    from tsai.models.InceptionTime import InceptionTime

    return Model(InceptionTime(3, 4, nf=4, depth=3), lambda n: (torch.randn(n, 3, 20),))


@of("tsai")
def ts_transformer() -> Model:
    from tsai.models.TST import TST

    return Model(
        TST(3, 4, 20, n_layers=2, d_model=16, n_heads=2, d_ff=32, dropout=0.1),
        lambda n: (torch.randn(n, 3, 20),),
    )


# ---------------------------------------------------------------- loops and tools
@of("lightning_fabric")
def fabric() -> Program:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    net = network()
    model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters()))

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        return loss.item()

    return Program(step, counted(labeled), [net], [optimizer.optimizer])


@of("ignite")
def ignite_step() -> Program:
    from ignite.engine import Engine, create_supervised_trainer

    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    update = create_supervised_trainer(net, optimizer, F.cross_entropy)._process_function
    engine = Engine(update)

    def step(x: Tensor, y: Tensor) -> Any:
        return update(engine, (x, y))

    return Program(step, counted(labeled), [net], [optimizer])


@of("ignite")
def ignite_metric() -> Program:
    from ignite.metrics import Accuracy, ConfusionMatrix, Loss, Precision

    net = network()
    found = [Accuracy(), Loss(F.cross_entropy), Precision(average=True), ConfusionMatrix(3)]

    def step(x: Tensor, y: Tensor) -> Any:
        with torch.no_grad():
            out = net(x)
        for metric in found:
            metric.update((out, y))
        return [metric.compute() for metric in found]

    return Program(step, counted(labeled), [net])


@of("skorch")
def skorch_step() -> Program:
    from skorch import NeuralNetClassifier

    net = NeuralNetClassifier(
        network,
        criterion=nn.CrossEntropyLoss,
        lr=0.1,
        optimizer=torch.optim.SGD,
        gradient_clip_value=1.0,
        verbose=0,
    ).initialize()
    return Program(lambda x, y: net.train_step((x, y)), counted(labeled), [net.module_], [net.optimizer_])


@of("accelerate")
def accelerate_step() -> Program:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = network()
    optimizer = torch.optim.AdamW(net.parameters())
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    model, opt, sched = accelerator.prepare(net, optimizer, schedule)

    def step(x: Tensor, y: Tensor) -> float:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
        return loss.item()

    return Program(step, counted(labeled), [net], [optimizer])


def tuned(name: str, **options: Any) -> None:
    """A GPT-2 with an adapter."""

    def build() -> Model:
        import peft
        from transformers import GPT2Config, GPT2LMHeadModel

        base = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2))
        model = peft.get_peft_model(base, getattr(peft, name)(task_type="CAUSAL_LM", **options))

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = model

            def forward(self, ids: Tensor) -> Any:
                return self.net(input_ids=ids, labels=ids).loss

        return Model(Net(), tokens(8), loss=lambda o: o)

    build.__name__ = name
    of("peft")(build)


tuned("LoraConfig", r=4, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True)
tuned("IA3Config", target_modules=["c_attn", "c_proj"], feedforward_modules=["c_proj"], fan_in_fan_out=True)
tuned("PrefixTuningConfig", num_virtual_tokens=3)
tuned("PromptTuningConfig", num_virtual_tokens=3)
tuned("PromptEncoderConfig", num_virtual_tokens=3, encoder_hidden_size=8)
tuned("AdaLoraConfig", init_r=4, target_r=2, total_step=100, target_modules=["c_attn"], fan_in_fan_out=True)
tuned("LoHaConfig", r=4, target_modules=["lm_head"])
tuned("OFTConfig", r=0, oft_block_size=4, target_modules=["lm_head"])
tuned("VeraConfig", r=4, target_modules=["lm_head"])
tuned("LNTuningConfig")


@of("peft")
def dora() -> Model:
    import peft

    return Model(
        peft.get_peft_model(
            network(), peft.LoraConfig(r=4, use_dora=True, use_rslora=True, target_modules=["0", "2"])
        ),
        lambda n: (torch.randn(n, 8),),
    )


@of("higher")
def higher_maml() -> Program:
    import higher

    net = network()
    inner = torch.optim.SGD(net.parameters(), 0.1)
    outer = torch.optim.Adam(net.parameters(), 1e-3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        outer.zero_grad()
        with higher.innerloop_ctx(net, inner, copy_initial_weights=False) as (fast, opt):
            for _ in range(2):
                opt.step(F.cross_entropy(fast(x), y))
            loss = F.cross_entropy(fast(x), y)
            loss.backward()
        outer.step()
        return loss.detach()

    return Program(step, counted(labeled), [net], [outer])


@of("torch_func")
def ensemble() -> Program:
    from torch.func import functional_call, stack_module_state, vmap

    nets = [network() for _ in range(3)]
    params, buffers = stack_module_state(nets)  # type: ignore[arg-type]
    held = nn.ParameterDict({k.replace(".", "_"): v for k, v in params.items()})
    optimizer = torch.optim.Adam(params.values())

    def one(p: Any, b: Any, x: Tensor) -> Tensor:
        return functional_call(nets[0], (p, b), (x,))

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        out = vmap(one, in_dims=(0, 0, None))(params, buffers, x)
        loss = sum(F.cross_entropy(o, y) for o in out)
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(step, counted(labeled), [held], [optimizer])


@of("opacus")
def per_sample() -> Program:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    net = GradSampleModule(network())
    optimizer = DPOptimizer(
        torch.optim.SGD(net.parameters(), 0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4
    )

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(step, counted(labeled), [net], [optimizer.original_optimizer])


def attribution(name: str, **options: Any) -> None:
    """What captum says of a classifier."""

    def build() -> Program:
        import captum.attr

        net = network().eval()
        takes = getattr(captum.attr, name)
        method = takes(net, net[0]) if name.startswith("Layer") else takes(net)
        return Program(
            lambda x, y: method.attribute(x, target=y, **options).detach(), counted(labeled), [net]
        )

    build.__name__ = name
    of("captum")(build)


attribution("IntegratedGradients", n_steps=5)
for _name in (
    "Saliency",
    "InputXGradient",
    "DeepLift",
    "GuidedBackprop",
    "Deconvolution",
    "LayerConductance",
    "FeatureAblation",
    "LRP",
):
    attribution(_name, **({"baselines": 0} if _name == "DeepLift" else {}))
attribution("GradientShap", baselines=torch.zeros(4, 8))


@of("fvcore")
def fvcore_losses() -> Model:
    from fvcore.nn import giou_loss, sigmoid_focal_loss, smooth_l1_loss

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            z = self.net(x)
            boxes = torch.cat([z[:, :2], z[:, :2] + z[:, 2:].exp()], -1)
            other = torch.cat([x[:, :2], x[:, :2] + 1], -1)
            return (
                giou_loss(boxes, other, reduction="mean")
                + sigmoid_focal_loss(z, (x[:, :4] > 0).float(), reduction="mean")
                + smooth_l1_loss(z, x[:, 4:], beta=0.1, reduction="sum")
            )

    return Model(Net(), lambda n: (torch.randn(n, 8),), loss=lambda o: o)


@of("fvcore")
def fvcore_bn() -> Model:
    from fvcore.nn.squeeze_excitation import SqueezeExcitation

    return Model(nn.Sequential(nn.Conv2d(3, 8, 3), SqueezeExcitation(8, 4)), images(3, 8))


@of("einx")
def einx_ops() -> Model:
    import einx

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(16, 32))

        def forward(self, x: Tensor) -> Tensor:
            z = einx.dot("b n c, c d -> b n d", x, self.w)
            z = einx.id("b n (h d) -> b h n d", z, h=4)
            return einx.mean("b h [n] d", z) + einx.softmax("b h n [d]", z)[:, :, 0]

    return Model(Net(), sequences(8, 16))


@of("tensordict")
def tensordict_step() -> Program:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    net = TensorDictSequential(
        TensorDictModule(nn.Linear(8, 16), ["x"], ["h"]), TensorDictModule(nn.Linear(16, 3), ["h"], ["out"])
    )
    optimizer = torch.optim.Adam(net.parameters())

    def step(x: Tensor, y: Tensor) -> float:
        data = TensorDict({"x": x, "y": y}, batch_size=[len(x)])
        data = net(data)
        optimizer.zero_grad()
        loss = F.cross_entropy(data["out"], data["y"])
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(step, counted(labeled), [net], [optimizer])


@of("torchrl")
def torchrl_ppo() -> Program:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import ClipPPOLoss

    class Actor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network(4, 4)

        def forward(self, x: Tensor) -> Any:
            loc, scale = self.net(x).chunk(2, -1)
            return loc, F.softplus(scale) + 0.1

    actor = ProbabilisticActor(
        TensorDictModule(Actor(), ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(network(4, 1), in_keys=["observation"])
    loss_module = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss_module.parameters(), 1e-3)

    def step(o: Tensor, a: Tensor, p: Tensor, adv: Tensor, target: Tensor) -> float:
        data = TensorDict(
            {"observation": o, "action": a, "action_log_prob": p, "advantage": adv, "value_target": target},
            [len(o)],
        )
        out = loss_module(data)
        loss = out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(
        step,
        counted(
            lambda n: (
                torch.randn(n, 4),
                torch.rand(n, 2) - 0.5,
                torch.randn(n),
                torch.randn(n, 1),
                torch.randn(n, 1),
            )
        ),
        [loss_module],
        [optimizer],
    )


@of("jaxtyping")
def jaxtyped() -> Program:
    from beartype import beartype
    from jaxtyping import Float, Int, jaxtyped

    net = network()
    optimizer = torch.optim.Adam(net.parameters())

    @jaxtyped(typechecker=beartype)
    def loss_of(x: Float[Tensor, "b c"], y: Int[Tensor, "b"]) -> Float[Tensor, ""]:
        return F.cross_entropy(net(x), y)

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(step, counted(labeled), [net], [optimizer])


@of("beartype")
def beartyped() -> Program:
    from beartype import beartype

    net = network()

    @beartype
    def call(x: Tensor, scale: float = 1.0, names: list[str] | None = None) -> Tensor:
        return net(x) * scale

    return Program(lambda x, y: call(x, 2.0, ["a", "b"]), counted(labeled), [net])


@of("pydantic")
def pydantic_config() -> Program:
    from pydantic import BaseModel

    class Config(BaseModel):
        rate: float = 0.1
        smooth: float = 0.1
        clip: float | None = 1.0
        names: list[str] = ["a"]

    config, net = Config(), network()
    optimizer = torch.optim.SGD(net.parameters(), config.rate)
    return configured(net, optimizer, config)


def configured(net: nn.Module, optimizer: torch.optim.Optimizer, config: Any) -> Program:
    """A step that reads a configuration."""

    def step(x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y, label_smoothing=config.smooth)
        loss.backward()
        if config.clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), config.clip)
        optimizer.step()
        return loss.item()

    return Program(step, counted(labeled), [net], [optimizer])


@of("omegaconf")
def omegaconf_config() -> Program:
    from omegaconf import OmegaConf

    config = OmegaConf.create({"rate": 0.1, "smooth": 0.1, "clip": 1.0, "deep": {"er": "${rate}"}})
    net = network()
    return configured(net, torch.optim.SGD(net.parameters(), config.deep.er), config)


@of("ml_collections")
def ml_collections_config() -> Program:
    from ml_collections import ConfigDict

    net = network()
    return configured(net, torch.optim.SGD(net.parameters(), 0.1), ConfigDict({"smooth": 0.1, "clip": 1.0}))


def logged(tell: Callable[[], Callable[[float, int], Any]], library: str) -> None:
    """A step that logs its loss."""

    def build() -> Program:
        net = network()
        optimizer, log, count = torch.optim.Adam(net.parameters()), tell(), [0]

        def step(x: Tensor, y: Tensor) -> float:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            count[0] += 1
            log(loss.item(), count[0])
            return loss.item()

        return Program(step, counted(labeled), [net], [optimizer])

    build.__name__ = tell.__name__
    of(library)(build)


def loguru_log() -> Callable[[float, int], Any]:
    """A logger that writes nowhere."""
    from loguru import logger

    logger.remove()
    logger.add(open(os.devnull, "w"))  # noqa: SIM115
    return lambda loss, n: logger.info("step {} loss {:.3f}", n, loss)


def structlog_log() -> Callable[[float, int], Any]:
    import structlog

    logger = structlog.wrap_logger(structlog.PrintLogger(open(os.devnull, "w")))  # noqa: SIM115
    return lambda loss, n: logger.info("step", loss=loss, n=n)


def rich_log() -> Callable[[float, int], Any]:
    from rich.console import Console

    console = Console(file=open(os.devnull, "w"))  # noqa: SIM115
    return lambda loss, n: console.print(f"step {n}: {loss:.3f}")


def tqdm_log() -> Callable[[float, int], Any]:
    from tqdm import tqdm

    bar = tqdm(total=10**6, file=open(os.devnull, "w"))  # noqa: SIM115

    def tell(loss: float, n: int) -> None:
        bar.set_postfix(loss=loss)
        bar.update(1)

    return tell


def tensorboard_like() -> Callable[[float, int], Any]:
    history: list[dict[str, float]] = []

    def log(loss: float, n: int) -> None:
        history.append({"loss": loss, "step": n})

    return log


for _tell, _of in (
    (loguru_log, "loguru"),
    (structlog_log, "structlog"),
    (rich_log, "rich"),
    (tqdm_log, "tqdm"),
    (tensorboard_like, "plain_log"),
):
    logged(_tell, _of)


@of("torchinfo")
def torchinfo_summary() -> Program:
    from torchinfo import summary

    net = network()
    return Program(
        lambda x, y: str(summary(net, input_data=[x], verbose=0, device="cpu")), counted(labeled), [net]
    )


@of("preferences")
def dpo_loss() -> Program:
    """The formula of DPO, as trainers write it."""
    net, reference = network(8, 5), network(8, 5)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)

    def logps(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return torch.gather(model(x).log_softmax(-1), -1, y[:, None]).squeeze(-1)

    def step(x: Tensor, chosen: Tensor, rejected: Tensor) -> Any:
        with torch.no_grad():
            base = logps(reference, x, chosen) - logps(reference, x, rejected)
        margin = logps(net, x, chosen) - logps(net, x, rejected) - base
        loss = -F.logsigmoid(0.1 * margin).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.item(), "accuracy": (margin > 0).float().mean().item()}

    return Program(
        step,
        counted(lambda n: (torch.randn(n, 8), torch.randint(0, 5, (n,)), torch.randint(0, 5, (n,)))),
        [net],
        [optimizer],
    )


@of("neuralop")
def fno() -> Model:
    from neuralop.models import FNO

    return Model(
        FNO(n_modes=(4, 4), hidden_channels=8, in_channels=1, out_channels=1, n_layers=2), images(1, 8)
    )


@of("timm")
def timm_vit() -> Model:
    import timm

    return Model(
        timm.create_model(
            "vit_tiny_patch16_224",
            img_size=32,
            patch_size=8,
            embed_dim=16,
            depth=2,
            num_heads=2,
            num_classes=5,
            drop_path_rate=0.1,
        ),
        images(),
    )


@of("timm")
def timm_resnet() -> Model:
    import timm

    return Model(
        timm.models.resnet.ResNet(
            timm.models.resnet.BasicBlock,
            (1, 1, 1, 1),
            num_classes=5,
            drop_path_rate=0.1,
            channels=(8, 8, 16, 16),
        ),
        images(),
    )


@of("timm")
def timm_optimizer() -> Program:
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import ModelEmaV3

    net = network()
    optimizer = create_optimizer_v2(net, "lamb", lr=1e-3, weight_decay=0.01)
    schedule, average, n = CosineLRScheduler(optimizer, 100, warmup_t=5), ModelEmaV3(net, decay=0.9), [0]

    def after() -> None:
        n[0] += 1
        schedule.step_update(n[0])
        average.update(net)

    return stepped(net, optimizer, after, modules=[average])


@of("pytorch_msssim")
def ms_ssim() -> Model:
    from pytorch_msssim import SSIM

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.ssim = nn.Conv2d(1, 1, 3, padding=1), SSIM(data_range=1.0, channel=1)

        def forward(self, x: Tensor) -> Tensor:
            return 1 - self.ssim(self.conv(x), x)

    return Model(Net(), lambda n: (torch.rand(n, 1, 16, 16),), loss=lambda o: o)


@of("torchbnn")
def bayesian() -> Model:
    import torchbnn as bnn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                bnn.BayesLinear(prior_mu=0, prior_sigma=0.1, in_features=8, out_features=16),
                nn.ReLU(),
                bnn.BayesLinear(prior_mu=0, prior_sigma=0.1, in_features=16, out_features=3),
            )
            self.kl = bnn.BKLLoss(reduction="mean", last_layer_only=False)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.net(x), y) + 0.1 * self.kl(self.net).squeeze()

    return Model(Net(), labeled, loss=lambda o: o)


@of("mambapy")
def mamba() -> Model:
    from mambapy.mamba import Mamba, MambaConfig

    return Model(Mamba(MambaConfig(d_model=16, n_layers=2)), sequences(8, 16))


@of("pytorch_wavelets")
def wavelets() -> Model:
    from pytorch_wavelets import DWTForward, DWTInverse

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.dwt, self.idwt = (
                nn.Conv2d(1, 2, 3, padding=1),
                DWTForward(J=2, wave="haar"),
                DWTInverse(wave="haar"),
            )

        def forward(self, x: Tensor) -> Tensor:
            low, high = self.dwt(self.conv(x))
            return self.idwt((low, [h.relu() for h in high]))

    return Model(Net(), images(1, 16))


def rows(library: str, limit: int, *, verbose: bool) -> list[Row]:
    """Print the rows of a library."""
    found: list[Row] = []
    for build in LIBRARIES[library]:
        name = f"{library}.{build.__name__}" if build.__name__ != library else library
        signal.alarm(limit)
        try:
            made = build()
            for kind in made.kinds if isinstance(made, Model) else ("step",):
                signal.alarm(limit)
                found.append(compare(name, build, kind))
                signal.alarm(0)
                print(found[-1], flush=True)
                for line in found[-1].why if verbose else ():
                    print(f"<!-- {line} -->", flush=True)
        except OutOfTimeError:
            print(f"<!-- {name}: takes too long -->", flush=True)
        except ImportError as error:
            print(f"<!-- {name}: not installed: {error} -->", flush=True)
        except Exception as error:  # of the plain program's
            print(f"<!-- {name}: {error!r:.300} -->", flush=True)
            if verbose:
                traceback.print_exc()
        finally:
            signal.alarm(0)
    return found


def main() -> int:
    """Print a row for each model and step; 1 where one differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=f"of {', '.join(LIBRARIES)}")
    parser.add_argument("--limit", type=int, default=60, help="seconds for one row")
    parser.add_argument("--verbose", action="store_true", help="why calls were recorded or ran eagerly")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, expire)
    print("| program | use | verdict | hits | recorded | eager | over plain |")
    print("|---|---|---|---:|---:|---:|---:|")
    found = [
        row
        for library in options.libraries or LIBRARIES
        for row in rows(library, options.limit, verbose=options.verbose)
    ]
    mostly = sum(2 * row.hits > row.hits + row.recordings + row.eager for row in found)
    equal = sum(not row.wrong for row in found)
    print(f"\n{len(found)} compared, {equal} equal, {mostly} mostly hits")
    return int(equal != len(found))


if __name__ == "__main__":
    sys.exit(main())
