"""GPU nodes that KWOK plays: pods bound to them are Running at once, and nothing runs.

The nodes of one pool are for the pods that ask for that pool, so that tests do not take each other's.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.live.support.cluster import Cluster, Object

GPU = "nvidia.com/gpu"
VF = "example.com/vf"
POOL = "llm-ray.io/fake-pool"
TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
ANNOTATIONS = {"kwok.x-k8s.io/node": "fake"}
DEVICES = 8


@dataclass
class FakeNodes:
    """One pool."""

    cluster: Cluster
    pool: str
    names: list[str] = field(default_factory=list)

    @property
    def placement(self) -> dict[str, Any]:
        """Of a pod that may run on these nodes, and must."""
        return {"nodeSelector": {POOL: self.pool}, "tolerations": [TAINT]}

    def add(self, count: int = 1, gpus: int = DEVICES, vfs: int = DEVICES) -> None:
        """Nodes with 64 CPUs, 512 GiB, GPUs and virtual functions."""
        for _ in range(count):
            name = f"{self.pool}-{len(self.names)}"
            self.cluster.create(self._node(name, gpus, vfs))
            self.names.append(name)

    def _node(self, name: str, gpus: int, vfs: int) -> Object:
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: str(gpus), VF: str(vfs)}
        labels = {"type": "kwok", "kubernetes.io/hostname": name, POOL: self.pool}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "annotations": ANNOTATIONS, "labels": labels},
            "spec": {"taints": [TAINT]},
            "status": {"allocatable": amounts, "capacity": amounts},
        }

    def remove(self) -> None:
        """Pods that are left on them go first: without its node, nobody confirms the end of one."""
        for name in self.names:
            for pod in self.cluster.list("Pod", fields=f"spec.nodeName={name}"):
                metadata = pod["metadata"]
                self.cluster.delete("Pod", metadata["name"], metadata["namespace"], grace_s=0)
            self.cluster.delete("Node", name)
        self.names.clear()


@contextmanager
def pool(cluster: Cluster) -> Iterator[FakeNodes]:
    """An empty pool of its own, whose nodes go at the end. Enter it before the namespace of the pods."""
    nodes = FakeNodes(cluster, f"fake-{uuid.uuid4().hex[:6]}")
    try:
        yield nodes
    finally:
        nodes.remove()
