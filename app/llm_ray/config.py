"""Settings as frozen dataclasses, parsed and checked once. Imports nothing heavy.

Each field's metadata carries its help text: the command line and, later, the chart's values are generated from it.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from llm_ray.errors import ConfigError

DType = Literal["auto", "float32", "bfloat16", "float16"]
AttentionBackendName = Literal["auto", "torch_cpu"]
LinearBackendName = Literal["auto", "packed", "plain"]


def setting(default: Any, help: str) -> Any:
    """A dataclass field with its one-line help."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class EngineConfig:
    """How the model is loaded, sharded and scheduled."""

    model: str = setting(
        "", "directory of a Hugging Face checkpoint; the command line also takes smollm2 and ids like owner/name"
    )
    dtype: DType = setting("auto", "weights and activations; auto is the checkpoint's own")
    tensor_parallel_size: int = setting(1, "ranks that share each layer")
    pipeline_parallel_size: int = setting(1, "stages the layers are cut into; only 1 in this version")
    max_model_len: int = setting(0, "longest prompt plus answer, tokens; 0 is the model's own limit")
    max_num_seqs: int = setting(64, "sequences that run at once")
    max_num_batched_tokens: int = setting(512, "tokens in one step")
    long_prefill_token_threshold: int = setting(
        64, "largest prefill chunk of one sequence in one step: small keeps short requests quick; raise it on a GPU"
    )
    block_size: int = setting(16, "tokens in one KV block")
    num_blocks: int = setting(0, "KV blocks per rank; 0 sizes the cache from kv_cache_bytes")
    kv_cache_bytes: int = setting(1 << 30, "bytes of KV cache over all ranks when num_blocks is 0")
    prefix_caching: bool = setting(True, "reuse the KV blocks of equal prompt prefixes")
    attention_backend: AttentionBackendName = setting("auto", "attention implementation")
    linear_backend: LinearBackendName = setting("auto", "packed repacks weights once for the CPU; plain does not")
    use_layer_walk: bool = setting(True, "our own layers; without it Hugging Face's forward runs (slower; the oracle)")
    seed: int = setting(0, "base seed for requests that bring none")
    num_cpus_per_rank: float = setting(1.0, "Ray CPUs reserved for each rank")
    num_gpus_per_rank: float = setting(0.0, "Ray GPUs reserved for each rank")
    start_timeout_s: float = setting(600.0, "deadline for loading weights and warm-up")
    step_timeout_s: float = setting(30.0, "a step longer than this means a rank hangs")
    heartbeat_interval_s: float = setting(1.0, "how often idle ranks are checked")

    def __post_init__(self) -> None:
        check_at_least(self, 1, "tensor_parallel_size", "pipeline_parallel_size", "max_num_seqs", "block_size")
        check_at_least(self, 1, "max_num_batched_tokens", "long_prefill_token_threshold", "kv_cache_bytes")
        check_at_least(self, 0, "max_model_len", "num_blocks", "num_cpus_per_rank", "num_gpus_per_rank")
        check_above(self, 0, "start_timeout_s", "step_timeout_s", "heartbeat_interval_s")
        if self.pipeline_parallel_size != 1:
            raise ConfigError(
                f"pipeline_parallel_size ({self.pipeline_parallel_size}) must be 1 in this version: "
                "raise tensor_parallel_size instead"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), so that every running sequence fits one step: raise it or lower max_num_seqs"
            )

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True)
class ServerConfig:
    """What the front accepts, and from whom."""

    model_name: str = setting("", "name that clients use; empty is the checkpoint directory's name")
    max_queue_len: int = setting(256, "requests that may wait beyond max_num_seqs; more get 429")
    max_body_bytes: int = setting(1 << 20, "largest request body")
    max_choices: int = setting(16, "largest n of one request")
    request_timeout_s: float = setting(600.0, "deadline of one request, waiting included")
    api_keys_file: str = setting("", "YAML file of hashed API keys, reloaded when it changes; empty lets everyone in")

    def __post_init__(self) -> None:
        check_at_least(self, 0, "max_queue_len")
        check_at_least(self, 1, "max_body_bytes", "max_choices")
        check_above(self, 0, "request_timeout_s")


PlacementStrategy = Literal["PACK", "STRICT_PACK", "GANG"]
AutoscalingPolicyName = Literal["requests", "capacity"]


@dataclass(frozen=True)
class DeploymentConfig:
    """How Ray Serve runs the replicas.

    All of it is always passed on: a key that Serve sees for the first time restarts every replica.
    """

    min_replicas: int = setting(1, "replicas, each with its own ranks, that always run")
    max_replicas: int = setting(1, "replicas at the highest load; equal to min_replicas is a fixed number")
    target_ongoing_requests: float = setting(32.0, "requests per replica that autoscaling aims at")
    upscale_delay_s: float = setting(30.0, "how long load must be high before a replica is added")
    downscale_delay_s: float = setting(600.0, "how long load must be low before a replica is removed")
    replica_num_cpus: float = setting(1.0, "Ray CPUs reserved for the replica's own process")
    placement_strategy: PlacementStrategy = setting(
        "PACK",
        "STRICT_PACK keeps all ranks of a replica on one node; GANG within the nodes that share its front's label "
        "llm-ray.io/gang",
    )
    autoscaling_policy: AutoscalingPolicyName = setting(
        "requests",
        "what sets the number of replicas: requests is Serve's own policy; capacity runs as many as the nodes hold, "
        "for an autoscaler that adds and removes whole groups of nodes",
    )
    max_start_attempts: int = setting(3, "starts of a replica that may fail before the deployment counts as failed")
    drain_timeout_s: float = setting(60.0, "how long a stopping replica may finish its open requests")
    health_check_period_s: float = setting(5.0, "how often Serve asks the replica whether its engine is alive")
    health_check_timeout_s: float = setting(30.0, "a health check longer than this counts as failed")

    def __post_init__(self) -> None:
        check_at_least(self, 0, "min_replicas", "replica_num_cpus", "drain_timeout_s", "upscale_delay_s")
        check_at_least(self, 0, "downscale_delay_s")
        check_at_least(self, 1, "max_start_attempts")
        check_at_least(self, max(1, self.min_replicas), "max_replicas")
        check_above(self, 0, "target_ongoing_requests", "health_check_period_s", "health_check_timeout_s")
        if self.autoscaling_policy == "capacity" and self.placement_strategy == "PACK":
            raise ConfigError(
                "autoscaling_policy (capacity) needs placement_strategy GANG or STRICT_PACK, not PACK: "
                "a replica whose ranks may be anywhere has no nodes of its own to count"
            )


def check_at_least(config: Any, limit: float, *keys: str) -> None:
    for key in keys:
        if not getattr(config, key) >= limit:  # so that NaN is refused too
            raise ConfigError(f"{key} ({getattr(config, key)}) must be at least {limit}")


def check_above(config: Any, limit: float, *keys: str) -> None:
    for key in keys:
        if not limit < getattr(config, key) < math.inf:
            raise ConfigError(f"{key} ({getattr(config, key)}) must be above {limit} and finite")


C = TypeVar("C", EngineConfig, ServerConfig, DeploymentConfig)


def parse(cls: type[C], values: Mapping[str, Any]) -> C:
    """Build a config from plain data (YAML, JSON, command line). Unknown keys and wrong types are errors by name."""
    types_of = get_type_hints(cls)
    known = {f.name for f in fields(cls)}
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown setting {key!r}; known: {', '.join(sorted(known))}")
    return cls(**{key: _coerce(key, value, types_of[key]) for key, value in values.items()})


def _coerce(key: str, value: Any, wanted: Any) -> Any:
    if get_origin(wanted) is Literal:
        if value not in get_args(wanted):
            raise ConfigError(f"{key} ({value!r}) must be one of {', '.join(map(str, get_args(wanted)))}")
        return value
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(wanted, types.UnionType) or wanted is typing.Any:
        return value
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise ConfigError(f"{key} ({value!r}) must be of type {wanted.__name__}")
    return value
