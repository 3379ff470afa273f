"""What Serve is told of the deployment, for each way to place and to scale it."""

from __future__ import annotations

from typing import Any

import pytest
from ray.serve.config import AutoscalingConfig

from llm_ray.capacity import CapacityPolicy
from llm_ray.config import DeploymentConfig, EngineConfig, ServerConfig
from llm_ray.errors import ConfigError
from llm_ray.serve import LLM, options

ENGINE = EngineConfig(model="m", tensor_parallel_size=2, num_cpus_per_rank=0.5, num_gpus_per_rank=1.0)


def told(**deployment: Any) -> dict[str, Any]:
    config = DeploymentConfig(**{"min_replicas": 1, "max_replicas": 4, **deployment})
    found = options(ENGINE, ServerConfig(), config)
    LLM.options(**found)  # type: ignore[attr-defined]  # Serve takes them together
    return found


def test_a_replica_and_its_ranks_are_one_placement_group() -> None:
    found = told(placement_strategy="STRICT_PACK", replica_num_cpus=2.0)
    rank = {"CPU": 0.5, "GPU": 1.0}
    assert found["placement_group_bundles"] == [{"CPU": 2.0}, rank, rank]
    assert found["placement_group_strategy"] == "STRICT_PACK"
    assert found["ray_actor_options"] == {"num_cpus": 2.0}
    assert "max_replicas_per_node" not in found


def test_in_a_gang_the_front_is_alone_on_the_first_host() -> None:
    found = told(placement_strategy="GANG")
    assert found["ray_actor_options"] == {"num_cpus": 1.0, "label_selector": {"llm-ray.io/host": "0"}}
    assert found["max_replicas_per_node"] == 1
    assert not [key for key in found if key.startswith("placement_group")]


def test_serves_own_policy_keeps_its_delays() -> None:
    scaling = AutoscalingConfig(**told(upscale_delay_s=3.0, downscale_delay_s=4.0)["autoscaling_config"])
    assert scaling.policy.is_default_policy_function()
    assert (scaling.upscale_delay_s, scaling.downscale_delay_s) == (3.0, 4.0)


def test_the_capacity_policy_is_told_what_an_engine_takes_and_never_waits() -> None:
    found = told(placement_strategy="GANG", autoscaling_policy="capacity", upscale_delay_s=3.0)
    scaling = AutoscalingConfig(**found["autoscaling_config"])
    assert (scaling.min_replicas, scaling.max_replicas) == (1, 4)
    assert (scaling.upscale_delay_s, scaling.downscale_delay_s) == (0.0, 0.0)
    policy = scaling.policy.get_policy()(**scaling.policy.policy_kwargs)
    assert type(policy).__name__ == CapacityPolicy.__name__
    assert scaling.policy.policy_kwargs == {
        "placement": "GANG",
        "front": {"CPU": 1.0},
        "rank": {"CPU": 0.5, "GPU": 1.0},
        "ranks": 2,
    }


def test_capacity_needs_engines_with_nodes_of_their_own() -> None:
    with pytest.raises(ConfigError, match=r"autoscaling_policy \(capacity\) needs placement_strategy GANG"):
        DeploymentConfig(autoscaling_policy="capacity")
