"""From a checkpoint directory to this rank's shard of a Hugging Face model, cut by DeepSpeed's AutoTP.

Weights are mapped from the files, not read: a rank's own memory grows by its shard only.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from llm_ray.config import EngineConfig
from llm_ray.errors import ConfigError
from llm_ray.worker import architectures
from llm_ray.worker.architectures import Architecture
from llm_ray.worker.parallel import Rank, TensorParallel

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

HEAD_NAMES = ("lm_head", "embed_out")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's part of the model. The output head is whole still; its owner cuts it over the vocabulary.

    num_parameters and weight_bytes count what the rank will hold, the cut head included.
    """

    model: PreTrainedModel
    architecture: Architecture
    num_parameters: int
    weight_bytes: int


def read_config(config: EngineConfig) -> tuple[Architecture, PretrainedConfig]:
    """Check the checkpoint before anything is loaded. Raises ConfigError or UnsupportedModelError."""
    from transformers import AutoConfig

    raw = architectures.read_checkpoint_config(config.model)
    architecture = architectures.find(raw)
    architectures.check_limits(raw, config.tensor_parallel_size, config.max_model_len)
    hf_config = AutoConfig.from_pretrained(config.model, local_files_only=True)
    uses_walk = config.use_layer_walk and architecture.walk is not None
    architectures.check(architecture, hf_config, config.tensor_parallel_size, uses_walk=uses_walk)
    return architecture, hf_config


def max_model_len(config: EngineConfig, hf_config: PretrainedConfig) -> int:
    """Longest sequence in tokens. Raises ConfigError when the setting exceeds the model's limit."""
    limit = int(hf_config.max_position_embeddings)
    if config.max_model_len > limit:
        raise ConfigError(f"max_model_len ({config.max_model_len}) must be at most the model's own limit ({limit})")
    return config.max_model_len or limit


def load_shard(config: EngineConfig, rank: Rank, tp: TensorParallel) -> Shard:
    """Map the checkpoint and cut it for `rank`. All ranks of a stage call this together."""
    from transformers import AutoModelForCausalLM

    architecture, _ = read_config(config)
    with _no_progress_bar():  # in the files' dtype, or all of the model would be copied
        model = AutoModelForCausalLM.from_pretrained(config.model, dtype="auto", local_files_only=True).eval()
    model.requires_grad_(False)
    if rank.tp_size > 1:
        shard_in_place(model, architecture, tp)
    if config.dtype != "auto":
        for parameter in model.parameters():  # not model.to: rotary frequencies must stay float32
            parameter.data = parameter.data.to(DTYPES[config.dtype])
    num_parameters, weight_bytes = _count(model, tp)
    return Shard(model, architecture, num_parameters, weight_bytes)


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


def shard_in_place(model: PreTrainedModel, architecture: Architecture, tp: TensorParallel) -> None:
    """Replace the linear layers by DeepSpeed's sharded ones. Embeddings and the output head stay whole.

    Drives AutoTP's class itself, because init_inference knows neither plans nor process groups. Parts of this are not
    DeepSpeed's public interface; its version is pinned and the parity tests watch it.
    """
    from deepspeed.module_inject.auto_tp import AutoTP
    from deepspeed.module_inject.autotp_config import AutoTPConfig

    auto_tp = AutoTP(
        module=model,
        all_reduce_linears=(),
        prefix="",
        state_dict=None,
        linear_layer_setting=(nn.Linear, nn.Embedding),
        orig_layer_impl=None,
        partition_config=AutoTPConfig(tp_size=tp.size, layer_specs=_layer_specs(model, architecture)),
        vocab_parallel_lm_head=False,
        model_config=model.config,
        training_mode=False,
    )
    auto_tp.set_tensor_parallel_config(tp.size, tp.group)
    auto_tp.update_linear_policies()
    with contextlib.redirect_stdout(io.StringIO()):  # AutoTP prints its policy
        auto_tp._replace_module(model)
    _check_sharded(model, tp)


def _layer_specs(model: PreTrainedModel, architecture: Architecture) -> list[Any]:
    """AutoTP's specs, from the architecture's own plan or from the one in the Hugging Face class."""
    from deepspeed.module_inject.autotp_config import PartitionType, TPLayerSpec
    from deepspeed.module_inject.tp_plan_converter import TPPlanConverter
    from deepspeed.runtime.tensor_parallel.config import _get_hf_tp_plan

    if architecture.tp_plan:
        return [
            TPLayerSpec(patterns=[rf".*{pattern}\.weight$"], partition_type=PartitionType(kind))
            for pattern, kind in architecture.tp_plan
        ]
    plan = _get_hf_tp_plan(model)
    # Some classes list a layer twice, with and without its parent's name; the output head is not AutoTP's business.
    names = {name for name in plan if name not in HEAD_NAMES and not any(name.endswith(f".{other}") for other in plan)}
    specs: list[Any] = TPPlanConverter.convert({name: plan[name] for name in sorted(names)})
    return specs


def is_column(module: nn.Module) -> bool:
    """Whether AutoTP made this a column-parallel layer: its output features are cut."""
    return type(module).__name__ == "LinearLayer"


def is_row(module: nn.Module) -> bool:
    """Whether AutoTP made this a row-parallel layer: its input features are cut, its output must be summed."""
    return type(module).__name__ == "LinearAllreduce"


def _check_sharded(model: PreTrainedModel, tp: TensorParallel) -> None:
    """A plan whose patterns match nothing would leave every rank with the whole model, and right answers."""
    rows = sum(map(is_row, model.modules()))
    layers = model.config.num_hidden_layers
    if rows != 2 * layers:
        raise ConfigError(
            f"AutoTP made {rows} row-parallel layers of {type(model).__name__}, not 2 for each of its {layers} layers: "
            f"it cannot run at tensor_parallel_size {tp.size}; use 1"
        )


def _count(model: PreTrainedModel, tp: TensorParallel) -> tuple[int, int]:
    head = model.get_output_embeddings().weight
    numbers = {id(p): (p.numel(), p.element_size()) for p in model.parameters()}
    is_tied = head is model.get_input_embeddings().weight
    if not is_tied:
        numbers.pop(id(head))
    own_rows = head.shape[0] * (tp.rank + 1) // tp.size - head.shape[0] * tp.rank // tp.size
    total = [
        *numbers.values(),
        *([] if is_tied and tp.size == 1 else [(own_rows * head.shape[1], head.element_size())]),
    ]
    return sum(n for n, _ in total), sum(n * size for n, size in total)
