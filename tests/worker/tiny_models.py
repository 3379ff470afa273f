"""A tiny random checkpoint of every architecture that is served, odd in every way that its family allows.

Heads that two ranks cannot share evenly, windows and softcaps small enough to matter, uneven MLPs, norm weights and
biases away from their neutral values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

VOCAB_SIZE = 160
HIDDEN_SIZE = 96
NUM_LAYERS = 3
MAX_POSITIONS = 256

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "num_hidden_layers": NUM_LAYERS,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
# 6 query heads on 3 KV heads: a rank of two gets 4 on 2, the other 2 on 1.
_GQA: dict[str, Any] = {
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "intermediate_size": 91,
}
_MHA: dict[str, Any] = {"num_attention_heads": 3, "intermediate_size": 91}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 128}

# name -> (model_type, config values). A name may add a variant of a type.
TINY_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _GQA),
    "llama-tied": ("llama", {**_GQA, "tie_word_embeddings": True}),
    "llama-bias": ("llama", {**_GQA, "attention_bias": True, "mlp_bias": True}),
    "llama-yarn": ("llama", {**_GQA, "rope_parameters": _YARN}),
    "llama-one-kv-head": ("llama", {**_GQA, "num_key_value_heads": 1}),
    "mistral": ("mistral", {**_GQA, "sliding_window": 8}),
    "qwen2": ("qwen2", {**_GQA, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": ("qwen3", _GQA),
    "granite": (
        "granite",
        {
            **_GQA,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.15,
            "logits_scaling": 2.0,
        },
    ),
    "gemma": ("gemma", _GQA),
    "gemma-tied": ("gemma", {**_GQA, "tie_word_embeddings": True}),
    "gemma2": (
        "gemma2",
        {
            **_GQA,
            "sliding_window": 8,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "query_pre_attn_scalar": 24,
        },
    ),
    "gemma3_text": (
        "gemma3_text",
        {
            **_GQA,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 24,
        },
    ),
    "arcee": ("arcee", _GQA),
    "cohere": ("cohere", {**_GQA, "logit_scale": 0.5}),
    "cohere2": (
        "cohere2",
        {
            **_GQA,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gpt_neox": ("gpt_neox", {**_MHA, "rotary_pct": 0.5}),
    "gpt_neox-sequential": ("gpt_neox", {**_MHA, "use_parallel_residual": False}),
    "gptj": (
        "gptj",
        {
            "n_embd": HIDDEN_SIZE,
            "n_layer": NUM_LAYERS,
            "n_head": 3,
            "n_positions": MAX_POSITIONS,
            "rotary_dim": 16,
            "n_inner": 91,
        },
    ),
    "helium": ("helium", _GQA),
    "nemotron": ("nemotron", {**_GQA, "partial_rotary_factor": 0.5}),
    "olmo": ("olmo", {**_GQA, "clip_qkv": 1.5}),
    "opt": ("opt", {"num_attention_heads": 3, "ffn_dim": 90, "word_embed_proj_dim": HIDDEN_SIZE}),
    "phi": ("phi", {**_MHA, "num_key_value_heads": 3, "partial_rotary_factor": 0.5}),
    "phi-qk-norm": ("phi", {**_MHA, "num_key_value_heads": 3, "qk_layernorm": True}),
    "smollm3": ("smollm3", {**_GQA, "no_rope_layers": [1, 0, 1]}),
    "stablelm": (
        "stablelm",
        {
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "intermediate_size": 91,
            "use_qkv_bias": True,
            "partial_rotary_factor": 0.5,
        },
    ),
    "starcoder2": ("starcoder2", {**_MHA, "num_key_value_heads": 3, "sliding_window": 8, "use_bias": True}),
}


def build(name: str, directory: Path) -> Any:
    """Write the checkpoint into `directory` and return the model, unsharded, with Hugging Face's eager attention."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, values = TINY_MODELS[name]
    config = AutoConfig.for_model(model_type, **{**_COMMON, **values})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            _fill(key, parameter, generator)
    model.tie_weights()
    model.save_pretrained(directory)
    return model


def _fill(key: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    """Values that make each part matter: activations near 1, logits that differ from token to token."""
    noise = torch.randn(parameter.shape, generator=generator)
    if parameter.dim() == 2:
        is_table = "embed" in key or "wte" in key
        # Small embeddings keep the current token from deciding alone what comes next.
        parameter.copy_(noise * (0.03 if is_table else 1.2 * parameter.shape[1] ** -0.5))
    elif key.endswith("bias"):
        parameter.copy_(noise * 0.2)
    else:  # norms; Gemma's are around 0
        parameter.add_(noise * 0.2)


def prompts() -> list[list[int]]:
    """Mixed lengths; three share a prefix of 40 tokens."""
    generator = torch.Generator().manual_seed(1)
    lengths = (1, 7, 16, 33, 64)
    drawn = [torch.randint(VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]
    prefix = torch.randint(VOCAB_SIZE, (40,), generator=generator).tolist()
    return [*drawn, prefix + drawn[1], prefix + drawn[2], prefix + drawn[3]]


def directories(root: Path) -> Iterator[tuple[str, Path]]:
    for name in TINY_MODELS:
        path = root / name
        os.makedirs(path, exist_ok=True)
        yield name, path
