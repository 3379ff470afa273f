"""Values with a second network, for tests of the chart."""

from __future__ import annotations

from typing import Any

NETWORKS = "k8s.v1.cni.cncf.io/networks"
RANGE = {"range": "10.64.0.0/16"}
VF = "nvidia.com/rail0"


def fabric(kind: str, groups: dict[str, Any] | None = None, **networks: dict[str, Any]) -> dict[str, Any]:
    """Two hosts of eight GPUs on the networks."""
    workers = groups or {"gpu": {"gpusPerNode": 8}}
    return {"engine": {"tensorParallelSize": 16}, "workers": workers, "fabric": {"type": kind, "networks": networks}}


def with_fabric(values: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return values | {"fabric": values["fabric"] | keys}
