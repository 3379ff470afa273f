"""What the routes stand on: one engine, its tokenizer, the settings and the keys. Built once per process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llm_ray.api.auth import KeyRing
from llm_ray.api.errors import ModelNotFoundError
from llm_ray.config import EngineConfig, ServerConfig
from llm_ray.engine.async_engine import AsyncEngine
from llm_ray.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Service:
    """created: Unix time at which this model began to be served, seconds. node, replica: where and which this is."""

    engine: AsyncEngine
    tokenizer: Tokenizer
    engine_config: EngineConfig
    server_config: ServerConfig
    keys: KeyRing | None
    created: int
    node: str = ""
    replica: str = ""

    @property
    def model_name(self) -> str:
        return self.server_config.model_name or Path(self.engine_config.model).name

    def check_model(self, name: str | None) -> None:
        """Raises ModelNotFoundError unless the name is that of the served model, or there is none."""
        if name is not None and name != self.model_name:
            raise ModelNotFoundError(f"the model {name[:200]!r} is not served here: use {self.model_name!r}")


GetService = Callable[[], Service]
"""Raises EngineUnavailableError while there is none yet: the app is built before its engine."""


def build_service(
    engine: AsyncEngine,
    tokenizer: Tokenizer,
    engine_config: EngineConfig,
    server_config: ServerConfig,
    *,
    node: str = "",
    replica: str = "",
) -> Service:
    """Raises ConfigError when the key file is unusable."""
    keys = KeyRing(server_config.api_keys_file) if server_config.api_keys_file else None
    return Service(engine, tokenizer, engine_config, server_config, keys, int(time.time()), node, replica)
