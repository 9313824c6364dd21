"""Text generation that `shapes.py` measures: models of transformers, and ways to generate with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

PROMPTS = (8, 5, 11, 9, 8)  # lengths; the first one is cold
ROOM = 560  # tokens that a model has positions for
WIDTHS: dict[str, Any] = {"vocab_size": 100, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
SMALL: dict[str, Any] = {
    **WIDTHS, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


def gpt2() -> nn.Module:
    """GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**WIDTHS, n_positions=ROOM, n_embd=64, n_layer=4, n_head=4))


def llama() -> nn.Module:
    """Llama with grouped attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SMALL))


def qwen2() -> nn.Module:
    """Qwen2 with grouped attention."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**SMALL))


def t5() -> nn.Module:
    """T5: the prompt goes to the encoder."""
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(**WIDTHS, d_model=64, d_kv=16, d_ff=128, num_layers=4, num_heads=4, decoder_start_token_id=0)
    )


def whisper() -> nn.Module:
    """Whisper: a spectrogram goes to the encoder."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    return WhisperForConditionalGeneration(
        WhisperConfig(
            **WIDTHS, num_mel_bins=8, d_model=64, encoder_layers=2, decoder_layers=4,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128,
            max_source_positions=64, max_target_positions=ROOM, decoder_start_token_id=2,
            suppress_tokens=None, begin_suppress_tokens=None,
        )
    )  # fmt: skip


def prompt(length: int) -> dict[str, torch.Tensor]:
    """Token ids of a length."""
    ids = torch.randint(2, 100, (1, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def spectrogram(_: int) -> dict[str, torch.Tensor]:
    """One that is as long as Whisper wants it."""
    return {"input_features": torch.randn(1, 8, 128), "attention_mask": torch.ones(1, 128, dtype=torch.long)}


TEXTS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], dict[str, torch.Tensor]]]] = {
    "GPT-2": (gpt2, prompt),
    "Llama": (llama, prompt),
    "Qwen2": (qwen2, prompt),
    "T5": (t5, prompt),
    "Whisper": (whisper, spectrogram),
}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True},
    "beam": {"do_sample": False, "num_beams": 3},
}
CACHES: dict[str, dict[str, Any]] = {"dynamic": {}, "static": {"cache_implementation": "static"}}


def generate(
    given: dict[str, torch.Tensor], tokens: int, options: dict[str, Any], model: nn.Module
) -> torch.Tensor:
    """Token ids, the prompt's first."""
    torch.manual_seed(0)
    return model.generate(**given, max_new_tokens=tokens, min_new_tokens=tokens, **options)
