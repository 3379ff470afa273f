"""What is not served is refused before anything is loaded, by name and with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_ray.config import EngineConfig
from llm_ray.errors import ConfigError, UnsupportedModelError
from llm_ray.worker import architectures
from llm_ray.worker.model_loader import max_model_len, read_config

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}


def checkpoint(directory: Path, **values: Any) -> EngineConfig:
    (directory / "config.json").write_text(json.dumps({**LLAMA, **values}))
    return EngineConfig(model=str(directory))


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("phi3", "fused qkv_proj"),
        ("olmo2", "q_norm and k_norm run over all heads"),
        ("bloom", "ALiBi"),
        ("gpt2", "DeepSpeed refuses"),
        ("mixtral", "experts are fused parameters"),
        ("glm4", "fused gate_up_proj"),
        ("gemma3", "multimodal"),
        ("mamba", "not on the list of tested architectures"),
    ],
)
def test_an_architecture_that_is_not_served_is_refused_by_name(tmp_path: Path, model_type: str, reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"model_type '{model_type}' is not supported: .*{reason}"):
        read_config(checkpoint(tmp_path, model_type=model_type))


def test_nothing_is_both_served_and_refused() -> None:
    assert not set(architectures.ARCHITECTURES) & set(architectures.REFUSED)


def test_a_quantized_checkpoint_is_refused_by_its_method(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="'llama' is quantized \\(quant_method 'gptq'\\)"):
        read_config(checkpoint(tmp_path, quantization_config={"quant_method": "gptq"}))


def test_frequencies_that_depend_on_the_batch_are_refused(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    with pytest.raises(UnsupportedModelError, match="'llama' with rope_type 'dynamic'"):
        read_config(checkpoint(tmp_path, rope_parameters=rope))


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"model_type": "cohere", "use_qk_norm": True}, "use_qk_norm"),
        ({"model_type": "stablelm", "qk_layernorm": True}, "qk_layernorm"),
    ],
)
def test_norms_with_weights_per_head_are_refused_on_two_ranks(tmp_path: Path, values: dict[str, Any], key: str) -> None:
    model = checkpoint(tmp_path, **values).model
    read_config(EngineConfig(model=model))
    with pytest.raises(ConfigError, match=rf"tensor_parallel_size \(2\) must be 1 for model_type .* with {key}"):
        read_config(EngineConfig(model=model, tensor_parallel_size=2))


def test_a_path_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be a local directory with a config\.json"):
        read_config(EngineConfig(model=str(tmp_path / "missing")))


@pytest.mark.parametrize(("text", "told"), [("{", "is not JSON"), ("[]", "must be a JSON object")])
def test_a_broken_config_is_told_by_its_path(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=rf"model \({tmp_path}\): its config\.json {told}"):
        architectures.read_checkpoint_config(str(tmp_path))


def test_a_quantization_config_of_null_is_none(tmp_path: Path) -> None:
    read_config(checkpoint(tmp_path, quantization_config=None))


def test_a_length_beyond_the_models_own_is_refused(tmp_path: Path) -> None:
    config = checkpoint(tmp_path)
    _, hf_config = read_config(config)
    assert max_model_len(config, hf_config) == 128
    with pytest.raises(ConfigError, match=r"max_model_len \(129\) must be at most the model's own limit \(128\)"):
        max_model_len(EngineConfig(model=config.model, max_model_len=129), hf_config)
