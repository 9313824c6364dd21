"""Architectures of libraries at changing sizes: whether traced ones do as plain ones, and what is replayed.

`pip install transformers diffusers torch_geometric`, of which each section needs one; nothing is downloaded.
Models are built small, from their configurations. A twin is traced: both are called with the same batches, of
several sizes, and compare outputs, exceptions, random numbers, and parameters at the end. Times are thread
times over those of the plain twin, in the second half of the calls.

    python benchmarks/architectures.py                        # all; half an hour
    python benchmarks/architectures.py texts --names gemma fnet --verbose
    python benchmarks/architectures.py generate images sounds graphs diffusion

A row that differs says so, and the exit status is 1. What cannot be built small is counted at the end.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import inspect
import logging
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from programs import same
from torch import nn

import lazytrace

Batch = dict[str, Any]
LENGTHS = (5, 9, 7, 5, 9, 12, 7, 1, 6, 11, 9, 5, 8, 10, 3, 9)
MOST_PARAMETERS = 4_000_000

# What configurations call the dimensions of a model.
SMALL_TEXTS: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"), 2),
    **dict.fromkeys(
        ("decoder_layers", "num_decoder_layers", "num_key_value_heads", "num_experts_per_tok"), 2
    ),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "rotary_dim"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "d_inner", "hidden_dim"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_target_positions"), 64),
    **dict.fromkeys(("max_source_positions",), 64),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "state_size", "ssm_state_size", "kv_lora_rank"), 8),
    **dict.fromkeys(("q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "attention_window"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "linear_num_value_heads"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "sliding_window"), 16),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "n_shared_experts"), 1),
    "vocab_size": 120,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "expand": 2,
    "linear_num_key_heads": 2,
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "layer_types": None,
    "mlp_layer_types": None,
    "initializer_range": 0.2,
}
SMALL_IMAGES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "image_size", "d_model"), 32),
    **dict.fromkeys(("num_hidden_layers", "encoder_layers", "decoder_layers", "num_feat_extract_layers"), 2),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim"), 48),
    "num_attention_heads": 4,
    "patch_size": 8,
    "num_channels": 3,
    "num_queries": 8,
    "num_labels": 5,
    "conv_dim": (16, 16),
    "conv_stride": (4, 4),
    "conv_kernel": (8, 8),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 16,
    "mask_time_prob": 0.0,
    "drop_path_rate": 0.1,
    "use_pretrained_backbone": False,
}
# What a configuration may refuse beside the rest.
LEFT_OUT = (
    (),
    ("head_dim",),
    ("layer_types", "mlp_layer_types"),
    ("head_dim", "layer_types", "mlp_layer_types"),
    ("intermediate_size",),
    ("hidden_size", "num_attention_heads"),
    ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "patch_size"),
)


# ---------------------------------------------------------------- comparing
@dataclass
class Subject:
    """A model in eval mode, its batches, and how one is answered."""

    model: nn.Module
    batch: Callable[[int], Batch]
    calls: int = 24
    answer: Callable[[nn.Module, Callable[..., Any], Batch], Any] = field(
        default=lambda _, forward, batch: forward(**batch)
    )


class NotSmall(Exception):
    """It cannot be built small, or takes other batches."""


class OutOfTimeError(BaseException):
    """No code of a library catches it."""


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors in a nested value."""
    if isinstance(value, torch.Tensor):
        return [value.detach().clone()]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in tensors_of(item)]


def outcome(call: Callable[[], Any]) -> tuple[list[torch.Tensor], str, torch.Tensor, float]:
    """What a call gives or raises, where the random stream is then, and the seconds."""
    start, found, raised = time.thread_time(), None, ""
    try:
        found = call()
    except Exception as error:
        raised = repr(error)
    spent = time.thread_time() - start
    return tensors_of(found), raised, torch.get_rng_state(), spent


def training(subject: Subject, model: nn.Module) -> Callable[[Batch], torch.Tensor]:
    """A step with AdamW and clipping."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step(batch: Batch) -> torch.Tensor:
        optimizer.zero_grad()
        out = subject.answer(model, model, batch)
        logits = getattr(out, "logits", None)
        first = logits if logits is not None else out if isinstance(out, torch.Tensor) else out[0]
        loss = first.float().pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


def twins(
    subject: Subject, kind: str
) -> tuple[Any, Callable[[Batch], Any], Callable[[Batch], Any], nn.Module]:
    """What was traced, the plain and the traced call, and the traced one's model."""
    model, twin = subject.model, copy.deepcopy(subject.model)
    if kind == "training":
        if not any(True for _ in model.parameters()):
            raise NotSmall("it has no parameters")
        traced = lazytrace.traced(training(subject, twin.train()))
        return traced, training(subject, model.train()), traced, twin
    if kind == "generate":
        traced = lazytrace.traced(twin.forward)
        twin.forward = traced
        return traced, lambda b: model.generate(**b), lambda b: twin.generate(**b), twin
    traced = lazytrace.traced(twin)
    return (
        traced,
        lambda batch: subject.answer(model, model, batch),
        lambda batch: subject.answer(twin, traced, batch),
        twin,
    )


@dataclass
class Row:
    """What came of one architecture in one kind of use."""

    name: str
    kind: str
    wrong: str
    hits: int
    recordings: int
    eager: int
    ratio: float
    why: list[str]

    def __str__(self) -> str:
        verdict = f"DIFFERS: {self.wrong}" if self.wrong else "equal"
        counts = f"{self.hits:3} | {self.recordings:2} | {self.eager:2}"
        return f"| {self.name:24} | {self.kind:8} | {verdict} | {counts} | {self.ratio:.2f} |"


def compare(name: str, subject: Subject, kind: str) -> Row:
    """Call both twins with the same batches."""
    traced, plain, other, twin = twins(subject, kind)
    wrong, spent = "", [0.0, 0.0]
    with contextlib.nullcontext() if kind == "training" else torch.no_grad():
        for i in range(subject.calls):
            torch.manual_seed(i)
            batch = subject.batch(i)
            random.seed(i)
            torch.manual_seed(i)
            expected, error, stream, seconds = outcome(lambda: plain(copy.copy(batch)))  # noqa: B023
            if error and not i:
                raise NotSmall(error)
            random.seed(i)
            torch.manual_seed(i)
            found, raised, after, more = outcome(lambda: other(copy.copy(batch)))  # noqa: B023
            if i >= subject.calls // 2:
                spent = [spent[0] + seconds, spent[1] + more]
            if not wrong and raised != error:
                wrong = f"call {i} raised {raised or 'nothing'} for {error or 'nothing'}"
            if not wrong and not (same(expected, found) and torch.equal(stream, after)):
                wrong = f"call {i}"
    state = [
        [value for value in model.state_dict().values() if isinstance(value, torch.Tensor)]
        for model in (subject.model, twin)
    ]
    if not wrong and not same(*state):
        wrong = "parameters"
    stats = (lazytrace.handle(traced) if isinstance(traced, nn.Module) else traced).stats()
    why = [f"{n} eager: {reason}" for reason, n in collections.Counter(dict(stats.eager)).most_common(2)]
    why += [
        f"{r.count} recorded: {r.text}" for r in sorted(stats.retrace_reasons, key=lambda r: -r.count)[:4]
    ]
    ratio = spent[1] / max(spent[0], 1e-9)
    return Row(name, kind, wrong, stats.hits, stats.recordings, stats.eager_calls, ratio, why)


# ---------------------------------------------------------------- transformers
def small(configuration: type, sizes: dict[str, Any]) -> Any:
    """A configuration of a small model."""
    known = configuration()
    given = {name: value for name, value in sizes.items() if hasattr(known, name)}
    refused: Exception | None = None
    for names in LEFT_OUT:
        try:
            return configuration(**{name: value for name, value in given.items() if name not in names})
        except Exception as error:
            refused = error
    raise NotSmall(repr(refused))


def model_of(configuration: Any, auto: Any) -> nn.Module:
    """The model in eval mode, if it is small."""
    torch.manual_seed(0)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in auto.from_config(configuration).parameters())
    if size > MOST_PARAMETERS:
        raise NotSmall(f"{size} parameters")
    return auto.from_config(configuration).eval()


def text_batch(configuration: Any, i: int) -> Batch:
    """Rows of one length, some of them padded."""
    rows, length = 2 + (i % 5 == 4), LENGTHS[i % len(LENGTHS)]
    ids = torch.randint(3, 100, (rows, length))
    mask = torch.ones_like(ids)
    if i % 3 == 1 and length > 3:
        mask[0, -2:] = 0
    batch = {"input_ids": ids, "attention_mask": mask}
    if getattr(configuration, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = torch.randint(3, 100, (rows, length))
    return batch


def prompt(i: int) -> Batch:
    """A prompt and how to go on: greedy, sampled, with beams."""
    rows, length = ((1, 5), (2, 7), (1, 4), (2, 5))[i % 4]
    ids = torch.randint(3, 100, (rows, length))
    options = {"max_new_tokens": 10, "pad_token_id": 0, "do_sample": i % 3 == 2}
    beams = {"num_beams": 2} if i == 5 else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **options, **beams}


def texts(kinds: tuple[str, ...]) -> Iterator[tuple[str, str, Callable[[], Subject]]]:
    """Models of text."""
    import transformers.models.auto.modeling_auto as auto
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    causal = set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

    def build(name: str, kind: str) -> Subject:
        configuration = small(CONFIG_MAPPING[name], SMALL_TEXTS)
        model = model_of(configuration, AutoModelForCausalLM if name in causal else AutoModel)
        if kind == "generate":
            return Subject(model, prompt, 8)
        return Subject(model, lambda i: text_batch(configuration, i), 32)

    names = causal if kinds == ("generate",) else causal | set(auto.MODEL_MAPPING_NAMES)
    for name in sorted(names):
        for kind in kinds:
            yield name, kind, lambda name=name, kind=kind: build(name, kind)  # type: ignore[misc]


def images(table: str, auto: str, batch: Callable[[Any, int], Batch]) -> Iterator[tuple[str, str, Any]]:
    """Models of images or of sounds."""
    import transformers
    import transformers.models.auto.modeling_auto as known
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    def build(name: str) -> Subject:
        configuration = small(CONFIG_MAPPING[name], SMALL_IMAGES)
        model = model_of(configuration, getattr(transformers, auto))
        return Subject(model, lambda i: batch(configuration, i), 18)

    for name in sorted(getattr(known, table)):
        for kind in ("forward", "training"):
            yield name, kind, lambda name=name: build(name)


def pixels(configuration: Any, i: int) -> Batch:
    """Images, of as many as the batch has."""
    size = getattr(configuration, "image_size", 32)
    size = size if isinstance(size, int) else 32
    return {"pixel_values": torch.randn((2, 2, 3, 2, 1, 4)[i % 6], 3, size, size)}


def waves(_: Any, i: int) -> Batch:
    """Sounds of some lengths."""
    return {"input_values": torch.randn((2, 2, 3, 2, 1, 4)[i % 6], (800, 1000, 900, 800, 1111, 640)[i % 6])}


# ---------------------------------------------------------------- graphs
def graph_batch(i: int) -> tuple[Any, ...]:
    """Nodes, edges, features and types of edges; each sixth batch has no edges."""
    nodes, edges = ((6, 14), (9, 20), (7, 0), (6, 14), (12, 30), (5, 9))[i % 6]
    index = torch.randint(0, nodes, (2, edges))
    return torch.randn(nodes, 8), index, torch.randn(edges, 8), torch.randint(0, 3, (edges,))


def layers_of(cls: type[nn.Module]) -> nn.Module:
    """A layer of 8 features, by whichever arguments it takes."""
    positional = ((8, 8), (8,), (), (8, 8, 2), (8, 8, 8), (nn.Linear(8, 8),), (8, 8, 1, 2), (8, 2))
    named: tuple[dict[str, Any], ...] = (
        {"in_channels": 8, "out_channels": 8, "dim": 1, "kernel_size": 2},
        {"in_channels": 8, "out_channels": 8, "num_relations": 3},
        {"in_channels": 8, "out_channels": 8, "K": 2},
        {"in_channels": 8, "hidden_channels": 8, "num_layers": 2, "out_channels": 8},
        {"K": 2, "alpha": 0.1},
    )
    torch.manual_seed(0)
    for args, kwargs in (*((args, {}) for args in positional), *(((), kwargs) for kwargs in named)):
        with contextlib.suppress(Exception):
            return cls(*args, **kwargs).eval()
    raise NotSmall("other arguments")


def graphs() -> Iterator[tuple[str, str, Callable[[], Subject]]]:
    """The layers of PyTorch Geometric."""
    import torch_geometric.nn as geometric

    choices: tuple[Callable[..., tuple[Any, ...]], ...] = (
        lambda x, index, *_: (x, index),
        lambda x, index, features, _: (x, index, features),
        lambda x, index, _, types: (x, index, types),
        lambda x, *_: (x,),
        lambda x, *_: (x, torch.zeros(len(x), dtype=torch.long)),
    )

    def build(cls: type[nn.Module]) -> Subject:
        model = layers_of(cls)
        for choice in choices:
            with contextlib.suppress(Exception):
                copy.deepcopy(model)(*choice(*graph_batch(0)))
                return Subject(
                    model,
                    lambda i, choice=choice: {"args": choice(*graph_batch(i))},  # type: ignore[misc]
                    answer=lambda _, forward, batch: forward(*batch["args"]),
                )
        raise NotSmall("other batches")

    for name, cls in sorted(vars(geometric).items()):
        if inspect.isclass(cls) and issubclass(cls, nn.Module):
            for kind in ("forward", "training"):
                yield name, kind, lambda cls=cls: build(cls)  # type: ignore[misc]


# ---------------------------------------------------------------- diffusion
def diffusion() -> Iterator[tuple[str, str, Callable[[], Subject]]]:
    """Networks of diffusers, at several sizes of images."""
    import diffusers

    heads = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2}
    blocks = {"block_out_channels": (16, 32), "norm_num_groups": 4}

    def steps(rows: int) -> torch.Tensor:
        return torch.randint(0, 100, (rows,))

    known: dict[str, tuple[dict[str, Any], Callable[[int, int], Batch]]] = {
        "UNet2DModel": (
            {**blocks, "sample_size": 16, "layers_per_block": 1, "attention_head_dim": 8}
            | {"down_block_types": ("DownBlock2D", "AttnDownBlock2D")}
            | {"up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
            lambda n, size: {"sample": torch.randn(n, 3, size, size), "timestep": steps(n)},
        ),
        "UNet2DConditionModel": (
            {**blocks, "sample_size": 16, "layers_per_block": 1, "attention_head_dim": 4}
            | {"cross_attention_dim": 16, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")}
            | {"up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
            lambda n, size: {
                "sample": torch.randn(n, 4, size, size),
                "timestep": steps(n),
                "encoder_hidden_states": torch.randn(n, 7, 16),
            },
        ),
        "AutoencoderKL": (
            {**blocks, "down_block_types": ("DownEncoderBlock2D",) * 2}
            | {"up_block_types": ("UpDecoderBlock2D",) * 2},
            lambda n, size: {"sample": torch.randn(n, 3, size, size), "sample_posterior": True},
        ),
        "VQModel": (
            {"block_out_channels": (16,), "norm_num_groups": 4, "num_vq_embeddings": 16},
            lambda n, size: {"sample": torch.randn(n, 3, size, size)},
        ),
        "DiTTransformer2DModel": (
            {**heads, "in_channels": 4, "sample_size": 8, "num_embeds_ada_norm": 10, "norm_num_groups": 4},
            lambda n, _: {
                "hidden_states": torch.randn(n, 4, 8, 8),
                "timestep": steps(n),
                "class_labels": torch.randint(0, 10, (n,)),
            },
        ),
        "SD3Transformer2DModel": (
            {**heads, "sample_size": 16, "in_channels": 4, "out_channels": 4, "joint_attention_dim": 16}
            | {"caption_projection_dim": 16, "pooled_projection_dim": 8, "pos_embed_max_size": 16},
            lambda n, size: {
                "hidden_states": torch.randn(n, 4, size, size),
                "encoder_hidden_states": torch.randn(n, 6, 16),
                "pooled_projections": torch.randn(n, 8),
                "timestep": torch.rand(n) * 100,
            },
        ),
    }  # fmt: skip

    def build(name: str) -> Subject:
        options, batch = known[name]
        torch.manual_seed(0)
        model = getattr(diffusers, name)(**options).eval()
        sizes = ((2, 16), (2, 24), (1, 16), (3, 16), (2, 32), (2, 16))
        return Subject(model, lambda i: batch(*sizes[i % len(sizes)]), 18)

    for name in known:
        for kind in ("forward", "training"):
            yield name, kind, lambda name=name: build(name)  # type: ignore[misc]


SECTIONS: dict[str, Callable[[], Iterator[tuple[str, str, Callable[[], Subject]]]]] = {
    "texts": lambda: texts(("forward", "training")),
    "generate": lambda: texts(("generate",)),
    "images": lambda: images(
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "AutoModelForImageClassification", pixels
    ),
    "sounds": lambda: images(
        "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES", "AutoModelForAudioClassification", waves
    ),
    "graphs": graphs,
    "diffusion": diffusion,
}


# ---------------------------------------------------------------- running
def expire(*_: Any) -> None:
    """Ends what takes too long: a model that cannot be built small."""
    raise OutOfTimeError


def run(section: str, names: list[str], limit: int, *, verbose: bool) -> bool:
    """Print the rows of a section; whether all are equal."""
    print(f"\n## {section}\n\n| architecture | use | verdict | hits | recorded | eager | over plain |")
    print("|---|---|---|---:|---:|---:|---:|")
    rows: list[Row] = []
    left: collections.Counter[str] = collections.Counter()
    for name, kind, build in SECTIONS[section]():
        if names and name not in names:
            continue
        signal.alarm(limit)
        try:
            rows.append(compare(name, build(), kind))
        except OutOfTimeError:
            left["takes too long"] += 1
            continue
        except Exception as error:  # of a model's own, before anything was traced
            left["cannot be built small"] += 1
            if verbose or not isinstance(error, NotSmall):
                print(f"<!-- {name} {kind}: {error!r:.160} -->".replace("\n", " "))
            continue
        finally:
            signal.alarm(0)
        print(rows[-1], flush=True)
        for line in rows[-1].why if verbose else ():
            print(f"<!-- {line} -->")
    mostly = sum(2 * row.hits > row.hits + row.recordings + row.eager for row in rows)
    equal = sum(not row.wrong for row in rows)
    print(f"\n{len(rows)} compared, {equal} equal, {mostly} mostly hits; left: {dict(left)}")
    return equal == len(rows)


def main() -> int:
    """Print the sections; 1 where one differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--names", nargs="*", default=[], help="only these architectures")
    parser.add_argument("--limit", type=int, default=60, help="seconds for one row")
    parser.add_argument("--verbose", action="store_true", help="why calls were recorded or ran eagerly")
    options = parser.parse_args()
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, expire)
    equal = True
    for section in options.sections or SECTIONS:
        equal &= run(section, options.names, options.limit, verbose=options.verbose)
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
