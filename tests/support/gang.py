"""Values with a gang, and what the chart makes of them, for tests of the chart."""

from __future__ import annotations

from typing import Any

from tests.support import kuberay
from tests.support.chart import Objects

TWO_NODES = {"engine": {"tensorParallelSize": 16}, "workers": {"gpu": {"gpusPerNode": 8, "replicas": 2}}}


def gang(provider: str, **keys: Any) -> dict[str, Any]:
    return {"gang": {"provider": provider, **keys}}


def owner(objects: Objects) -> dict[str, Any]:
    """The RayCluster or RayService."""
    [found] = [o for o in objects if o["kind"] in ("RayCluster", "RayService")]
    return found


def templates(objects: Objects) -> dict[str, dict[str, Any]]:
    """Pod templates by group name."""
    spec = kuberay.cluster_spec(owner(objects))
    groups = {g["groupName"]: g["template"] for g in spec["workerGroupSpecs"]}
    return {"headgroup": spec["headGroupSpec"]["template"], **groups}
