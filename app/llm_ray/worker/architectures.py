"""The architectures served here, each held to Hugging Face's own tokens by a test. All others are refused by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from llm_ray.errors import ConfigError, UnsupportedModelError


@dataclass(frozen=True, slots=True)
class Walk:
    """What the layer walk must know of a decoder beyond what its modules and config tell."""

    norm_offset: float = 0.0
    """Added to a norm's weight; such norms compute in float32."""
    has_post_norms: bool = False
    """Attention's and the MLP's outputs are normed before they join the residual."""
    window: Literal["none", "everywhere", "by_layer_type"] = "none"
    """Where the config's sliding_window holds. Some configs carry one that their model never reads."""
    has_attention_softcap: bool = False


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model type. Without `walk`, Hugging Face's own forward runs.

    tp_plan: (module pattern, "column" or "row"), for types whose Hugging Face class brings no plan.
    tp1_keys: config keys that switch on norms with weights per head; these stay whole, so only one rank can run them.
    """

    model_type: str
    walk: Walk | None = None
    tp_plan: tuple[tuple[str, str], ...] = ()
    tp1_keys: tuple[str, ...] = ()


_STABLELM_PLAN = (
    (r"self_attn\.[qkv]_proj", "column"),
    (r"self_attn\.o_proj", "row"),
    (r"mlp\.(gate|up)_proj", "column"),
    (r"mlp\.down_proj", "row"),
)
_OPT_PLAN = (
    (r"self_attn\.[qkv]_proj", "column"),
    (r"self_attn\.out_proj", "row"),
    (r"\.fc1", "column"),
    (r"\.fc2", "row"),
)

_ALL = (
    Architecture("llama", Walk()),
    Architecture("mistral", Walk(window="everywhere")),
    Architecture("qwen2", Walk(window="by_layer_type")),
    Architecture("qwen3", Walk(window="by_layer_type")),
    Architecture("granite", Walk()),
    Architecture("gemma", Walk(1.0)),
    Architecture("gemma2", Walk(1.0, has_post_norms=True, window="by_layer_type", has_attention_softcap=True)),
    Architecture("gemma3_text", Walk(1.0, has_post_norms=True, window="by_layer_type")),
    Architecture("arcee"),
    Architecture("cohere", tp1_keys=("use_qk_norm",)),
    Architecture("cohere2"),
    Architecture("gpt_neox"),
    Architecture("gptj"),
    Architecture("helium"),
    Architecture("nemotron"),
    Architecture("olmo"),
    Architecture("opt", tp_plan=_OPT_PLAN),
    Architecture("phi"),
    Architecture("smollm3"),
    Architecture("stablelm", tp_plan=_STABLELM_PLAN, tp1_keys=("qk_layernorm",)),
    Architecture("starcoder2"),
)
ARCHITECTURES = {architecture.model_type: architecture for architecture in _ALL}

_MOE = "its experts are fused parameters, which AutoTP leaves whole on every rank"
_FUSED_GATE = "its fused gate_up_proj cannot be cut by rows without separating its halves"
REFUSED = {
    "phi3": "its fused qkv_proj and gate_up_proj cannot be cut by rows without separating their parts",
    "glm": _FUSED_GATE,
    "glm4": _FUSED_GATE,
    "olmo2": "its q_norm and k_norm run over all heads at once, which a rank with a part of the heads cannot compute",
    "olmo3": "its q_norm and k_norm run over all heads at once, which a rank with a part of the heads cannot compute",
    "bloom": "its ALiBi positions are not in the paged attention, and AutoTP's hook for them is broken",
    "mpt": "its ALiBi positions are not in the paged attention",
    "falcon": "its attention cannot be replaced by the paged one",
    "gpt2": "DeepSpeed refuses its transposed Conv1D weights",
    "gpt_bigcode": "its fused multi-query c_attn cannot be cut by heads",
    "gemma3": "it is the multimodal model; export its text part (model type gemma3_text)",
    "mixtral": _MOE,
    "qwen2_moe": _MOE,
    "qwen3_moe": _MOE,
    "olmoe": _MOE,
    "phimoe": _MOE,
    "deepseek_v2": _MOE,
    "deepseek_v3": _MOE,
    "gpt_oss": _MOE + ", and its attention sinks are not in the paged attention",
}
# Frequencies of these depend on the longest sequence of a call, which means nothing when sequences share a call.
_REFUSED_ROPE = ("dynamic", "longrope")


def read_checkpoint_config(model: str) -> dict[str, Any]:
    """config.json of a local checkpoint. Raises ConfigError when there is none, or when it is no JSON object."""
    path = Path(model) / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"model ({model}) must be a local directory with a config.json: download the checkpoint first"
        )
    try:
        raw = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"model ({model}): its config.json is not JSON ({error}): download it again") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"model ({model}): its config.json must be a JSON object: download it again")
    return raw


def find(raw: dict[str, Any]) -> Architecture:
    """The checkpoint's architecture. Raises UnsupportedModelError, by name and with the reason."""
    model_type = raw.get("model_type", "")
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise UnsupportedModelError(
            f"model_type {model_type!r} is quantized (quant_method {method!r}), which this version does not load: "
            "use the dense checkpoint"
        )
    architecture = ARCHITECTURES.get(model_type)
    if architecture is None:
        reason = REFUSED.get(model_type, "it is not on the list of tested architectures")
        raise UnsupportedModelError(
            f"model_type {model_type!r} is not supported: {reason}. Use one of {', '.join(sorted(ARCHITECTURES))}"
        )
    return architecture


def check_limits(raw: dict[str, Any], tp_size: int, max_model_len: int) -> None:
    """What config.json alone tells to be too much; a key that it leaves out is not checked. Raises ConfigError."""
    for name, value, key in (
        ("tensor_parallel_size", tp_size, "num_attention_heads"),
        ("max_model_len", max_model_len, "max_position_embeddings"),
    ):
        limit = raw.get(key)
        if isinstance(limit, int) and value > limit:
            raise ConfigError(f"{name} ({value}) must be at most the model's {key} ({limit}): lower it")


def check(architecture: Architecture, config: Any, tp_size: int, *, uses_walk: bool) -> None:
    """Refuse what the loaded Hugging Face config asks for but cannot have. Raises ConfigError."""
    name = f"model_type {architecture.model_type!r}"
    for rope_type in _rope_types(config):
        if rope_type in _REFUSED_ROPE:
            raise UnsupportedModelError(
                f"{name} with rope_type {rope_type!r} is not supported: its frequencies depend on what else is in the "
                "step. Remove rope_type from the checkpoint's config and keep max_model_len at the original length"
            )
    layer_types = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if layer_types:
        raise UnsupportedModelError(
            f"{name} with layer_types {sorted(layer_types)} is not supported: use full attention"
        )
    if tp_size == 1:
        return
    for key in architecture.tp1_keys:
        if getattr(config, key, False):
            raise ConfigError(
                f"tensor_parallel_size ({tp_size}) must be 1 for {name} with {key}: "
                "each head has norm weights of its own, which are not cut"
            )
    key, limit = _num_kv_heads(config)
    if tp_size > limit and not uses_walk:
        raise ConfigError(
            f"tensor_parallel_size ({tp_size}) must be at most {key} ({limit}) for {name} in Hugging Face's forward: "
            "it cannot run a rank without heads"
        )


def _rope_types(config: Any) -> set[str]:
    parameters = getattr(config, "rope_parameters", None) or {}
    per_layer_type = [value for value in parameters.values() if isinstance(value, dict)]
    return {str(value.get("rope_type", "default")) for value in per_layer_type or [parameters]}


def _num_kv_heads(config: Any) -> tuple[str, int]:
    for key in ("num_key_value_heads", "num_attention_heads"):
        value = getattr(config, key, None)
        if value is not None:
            return key, int(value)
    raise UnsupportedModelError("the checkpoint's config names neither num_key_value_heads nor num_attention_heads")
