"""Chooses an attention backend. `auto` takes the first candidate that passes its self-test and logs why."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence

import torch

from llm_ray.errors import ConfigError
from llm_ray.worker.attention.base import AttentionBackend, AttentionStep, LayerAttention, kv_bytes_per_block
from llm_ray.worker.attention.self_test import BackendFactory, self_test
from llm_ray.worker.attention.torch_cpu import TorchCpuAttention

__all__ = ["AttentionBackend", "AttentionStep", "LayerAttention", "kv_bytes_per_block", "make_backend", "self_test"]

CANDIDATES = (("torch_cpu", TorchCpuAttention),)
"""Fastest first. Each is called with layers, num_blocks, dtype=, block_size=, device=."""

logger = logging.getLogger(__name__)


def make_backend(
    name: str,
    *,
    layers: Sequence[LayerAttention],
    num_blocks: int,
    dtype: torch.dtype,
    block_size: int,
    device: torch.device | str,
) -> AttentionBackend:
    """A backend with an empty KV pool of num_blocks blocks for these layers (local head counts).

    Raises ConfigError when the name is unknown, or when it, or with `auto` every candidate, cannot run here.
    """
    known = [candidate for candidate, _ in CANDIDATES]
    if name != "auto" and name not in known:
        raise ConfigError(f"attention_backend ({name!r}) must be one of auto, {', '.join(known)}")
    failures = []
    for candidate, backend_class in CANDIDATES:
        if name not in ("auto", candidate):
            continue
        factory: BackendFactory = functools.partial(backend_class, dtype=dtype, block_size=block_size, device=device)
        started = time.perf_counter()
        try:
            self_test(factory, layers, dtype)
        except (ConfigError, RuntimeError, ValueError) as error:
            failures.append(f"{candidate}: {error}")
            logger.warning("attention_backend_refused name=%s reason=%r", candidate, str(error))
            continue
        logger.info(
            "attention_backend name=%s asked=%s reason=self_test_passed self_test_ms=%.1f num_blocks=%d block_size=%d",
            *(candidate, name, (time.perf_counter() - started) * 1e3, num_blocks, block_size),
        )
        return factory(layers, num_blocks)
    raise ConfigError(f"no attention backend runs here; {'; '.join(failures)}")
