"""The placement group of an engine's ranks within its front's gang of nodes. Ray removes it with the front's actor."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from llm_ray.config import EngineConfig
from llm_ray.errors import ExecutorError
from llm_ray.executor.gang import hosts_of, own_gang
from llm_ray.executor.ray_group import bundle

POLL_S = 0.2


def gang_placement(config: EngineConfig, front: Mapping[str, float]) -> PlacementGroup:
    """A bundle for each rank, on the hosts of this node's gang. front: what the caller, an actor, takes on this node.

    Waits up to start_timeout_s for hosts that have not joined yet. Raises ConfigError where there is no gang, else
    ExecutorError.
    """
    deadline = time.monotonic() + config.start_timeout_s
    labels: dict[str, str] = ray.get_runtime_context().get_node_labels()  # type: ignore[assignment]
    gang, rank, ranks = own_gang(labels, front), bundle(config), config.world_size
    while True:
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        hosts = hosts_of(gang.name, [(node["Labels"], node["Resources"]) for node in nodes if node["Alive"]])
        if labels_of_bundles := gang.bundle_labels(hosts, rank, ranks):
            break
        if time.monotonic() > deadline:
            raise ExecutorError(
                f"gang {gang.name} does not hold {ranks} ranks of {rank} within start_timeout_s "
                f"({config.start_timeout_s:g}); its hosts are {', '.join(sorted(hosts))}: see why others did not join, "
                "or lower tensor_parallel_size"
            )
        time.sleep(POLL_S)
    placement: PlacementGroup = ray.util.placement_group(
        [rank] * ranks, strategy="PACK", bundle_label_selector=labels_of_bundles
    )
    return placement
