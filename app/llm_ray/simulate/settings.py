"""What a simulation is told, as frozen dataclasses: how fast an engine is, how pods start, how the load is seen.

Every field's metadata holds its help with the unit; the command line and the documentation are made from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

from llm_ray.errors import ConfigError

MEASURED = 1.1  # two measurements that contradict each other by less are as good as equal


def setting(default: Any, help: str) -> Any:
    """A dataclass field with its one-line help."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Rates:
    """How one engine serves and how long a pod needs: measured, or typed in a rates file."""

    decode_step_s: float = setting(0.02, "s: time of a decode step with no sequence in it (the fixed part)")
    decode_seq_s: float = setting(0.0005, "s: what each running sequence adds to a decode step")
    prefill_tokens_per_s: float = setting(
        2000.0, "tokens/s: prompt length over time to first token, of a long prompt on an idle engine"
    )
    prefill_chunk_tokens: int = setting(64, "tokens: of one prompt in one step")
    prefill_sequences: int = setting(8, "sequences: prompts that share one step")
    max_num_seqs: int = setting(64, "sequences: that one engine runs at once")
    max_queue_len: int = setting(256, "requests: that may wait in one engine beyond max_num_seqs; more are rejected")
    overhead_s: float = setting(0.0, "s: added to every request by network, routing and tokenizing")
    scale_delay_s: float = setting(2.0, "s: from the autoscaler's decision until the pods exist")
    pod_start_s: float = setting(30.0, "s: from there until the pods have joined Ray (scheduling, image, Ray)")
    load_s: float = setting(60.0, "s: from there until an engine takes requests (weights, warm-up)")
    stop_s: float = setting(5.0, "s: from the end of its last request until a stopping pod is gone")

    def __post_init__(self) -> None:
        at_least(self, 0, "decode_step_s", "decode_seq_s", "max_queue_len", "overhead_s")
        at_least(self, 0, "scale_delay_s", "pod_start_s", "load_s", "stop_s")
        at_least(self, 1, "prefill_chunk_tokens", "prefill_sequences", "max_num_seqs")
        above(self, 0, "prefill_tokens_per_s")
        if not self.decode_step_s + self.decode_seq_s > 0:
            raise ConfigError("decode_step_s and decode_seq_s are both 0: a step takes time, set one of them")
        limit = self.prefill_chunk_tokens / self.decode_step_s if self.decode_step_s else math.inf
        if self.prefill_tokens_per_s > limit * MEASURED:
            raise ConfigError(
                f"prefill_tokens_per_s ({self.prefill_tokens_per_s:g}) must be at most prefill_chunk_tokens over "
                f"decode_step_s ({limit:g}), which steps without any cost per token would reach: "
                "raise prefill_chunk_tokens to the engine's, or measure again"
            )

    @property
    def prefill_token_s(self) -> float:
        """Seconds that one prompt token adds to a step, without the step's fixed part."""
        return max(0.0, 1 / self.prefill_tokens_per_s - self.decode_step_s / self.prefill_chunk_tokens)


@dataclass(frozen=True)
class Fleet:
    """The worker groups: how many, and what each holds."""

    min_replicas: int = setting(1, "groups: fewest")
    max_replicas: int = setting(1, "groups: most")
    initial_replicas: int = setting(1, "groups: that serve when the trace begins")
    engines: int = setting(1, "engines: in one group")
    gpus: int = setting(0, "GPUs: of one group, all its pods together")

    def __post_init__(self) -> None:
        at_least(self, 0, "min_replicas", "gpus", "initial_replicas")
        at_least(self, 1, "engines")
        if self.max_replicas < max(1, self.min_replicas):
            raise ConfigError(
                f"max_replicas ({self.max_replicas}) must be at least 1 and min_replicas ({self.min_replicas}): "
                "raise it"
            )
        if self.initial_replicas > self.max_replicas:
            raise ConfigError(
                f"initial_replicas ({self.initial_replicas}) must be at most max_replicas "
                f"({self.max_replicas}): lower it"
            )


@dataclass(frozen=True)
class MetricPath:
    """How the number of open requests gets to the autoscaler. Each period delays it by half of itself on average."""

    push_s: float = setting(10.0, "s: between two reports of a Ray process to its node's metrics endpoint")
    scrape_s: float = setting(15.0, "s: between two scrapes by Prometheus")
    sync_s: float = setting(15.0, "s: between two looks of the HorizontalPodAutoscaler")
    window_s: float = setting(0.0, "s: over which the query averages; 0 takes the newest sample")

    def __post_init__(self) -> None:
        above(self, 0, "push_s", "scrape_s", "sync_s")
        at_least(self, 0, "window_s")


def at_least(config: Any, limit: float, *keys: str) -> None:
    for key in keys:
        if not limit <= getattr(config, key) < math.inf:  # so that NaN is refused too
            raise ConfigError(f"{key} ({getattr(config, key)}) must be at least {limit} and finite")


def above(config: Any, limit: float, *keys: str) -> None:
    for key in keys:
        if not limit < getattr(config, key) < math.inf:
            raise ConfigError(f"{key} ({getattr(config, key)}) must be above {limit} and finite")


C = TypeVar("C")


def build(cls: type[C], values: Mapping[str, Any], where: str = "") -> C:
    """Make a config of plain data; unknown keys and wrong types are errors that say where."""
    wanted = get_type_hints(cls)
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{where}unknown key {key!r}; known: {', '.join(sorted(known))}")
        kinds = (int, float) if wanted[key] is float else (wanted[key],)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ConfigError(f"{where}{key} ({value!r}) must be of type {wanted[key].__name__}")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None
