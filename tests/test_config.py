"""Settings that can never work are refused before anything starts."""

from __future__ import annotations

import pytest

from llm_ray.config import EngineConfig
from llm_ray.errors import ConfigError


@pytest.mark.parametrize("key", ["num_cpus_per_rank", "step_timeout_s"])
def test_a_number_that_is_none_is_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key} \(nan\) must be"):
        EngineConfig(**{key: float("nan")})
