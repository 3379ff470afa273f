"""GGUF file → Hugging Face safetensors directories, one per dtype, all with the same numbers (rounded).

Run as a program: python -m llm_ray.worker.convert_gguf FILE.gguf OUT NAME DTYPE... writes OUT/DTYPE/NAME.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

# Keys of a config that describe the GGUF file, not the model.
FOREIGN = ("quantization_config", "_name_or_path", "_model_name_or_path", "dtype")


def convert(gguf: Path, out: Path, name: str, dtypes: list[str]) -> None:
    """Write out/<dtype>/<name> for each dtype. Only Llama-shaped models: their weights are dense after loading."""
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # transformers refuses to save a model that came from GGUF, though its weights are dense: move them to a fresh one
    config = {key: value for key, value in loaded.config.to_dict().items() if key not in FOREIGN}
    config["rms_norm_eps"] = round(config["rms_norm_eps"], 9)  # GGUF keeps 1e-5 in float32: 9.9999997e-06
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.generation_config = loaded.generation_config
    for dtype in sorted(dtypes, key=lambda d: -torch.finfo(getattr(torch, d)).bits):  # widest first: rounding is final
        folder = out / dtype / name
        model.to(getattr(torch, dtype)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
