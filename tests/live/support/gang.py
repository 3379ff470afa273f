"""Releases of the chart whose pods are a gang of four GPU workers and a head, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.live.support.cluster import Cluster, Object
from tests.live.support.fake_nodes import VF, FakeNodes
from tests.live.support.helm import Helm

POD_GROUP = "PodGroup.scheduling.volcano.sh"
GROUP_NAME = "scheduling.k8s.io/group-name"
INSTANCE = "app.kubernetes.io/instance"
GPUS_PER_NODE = 8
HOSTS = 2
"""Pods that hold one engine: tensor parallelism 16 on nodes of 8 GPUs."""


def gang_values(nodes: FakeNodes, provider: str, replicas: int = 2, **more: Any) -> dict[str, Any]:
    """`replicas` engines of two pods, each with all GPUs and virtual functions of its node."""
    gpu = {
        "gpusPerNode": GPUS_PER_NODE,
        "replicas": replicas,
        "resources": {"limits": {"cpu": "16", "memory": "64Gi"}},
        **nodes.placement,
    }
    # no network is created: there is no Multus on nodes without a kubelet, but the device plugin's resource counts
    network = {"resourceName": VF, "count": GPUS_PER_NODE, "existing": "rails"}
    return {
        "image": {"registry": "localhost", "repository": "never-started", "tag": "1"},
        "engine": {"tensorParallelSize": HOSTS * GPUS_PER_NODE},
        "head": nodes.placement,
        "workers": {"gpu": gpu},
        "fabric": {"type": "sriov", "networks": {"rail": network}},
        "gang": {"provider": provider},
        **more,
    }


@dataclass(frozen=True)
class Release:
    """One release of the chart in a namespace."""

    cluster: Cluster
    helm: Helm
    namespace: str
    name: str = "demo"

    def install(self, values: dict[str, Any]) -> None:
        self.helm.install(self.name, self.namespace, values)

    def upgrade(self, values: dict[str, Any]) -> None:
        self.helm.upgrade(self.name, self.namespace, values)

    def uninstall(self) -> None:
        self.helm.uninstall(self.name, self.namespace)

    def pods(self) -> list[Object]:
        """Those that are not on their way out."""
        found = self.cluster.pods(self.namespace, f"{INSTANCE}={self.name}")
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def bound(self) -> list[str]:
        """Nodes of the pods that have one."""
        return [pod["spec"]["nodeName"] for pod in self.pods() if pod["spec"].get("nodeName")]

    def groups(self) -> list[Object]:
        """The PodGroups that its pods name."""
        names = {(pod["metadata"].get("annotations") or {}).get(GROUP_NAME) for pod in self.pods()}
        found = self.cluster.list(POD_GROUP, self.namespace)
        return [group for group in found if group["metadata"]["name"] in names]

    def group(self) -> Object:
        """Its only PodGroup."""
        found = self.groups()
        assert len(found) == 1, f"the pods of {self.name} name {len(found)} PodGroups that exist, wanted one"
        return found[0]

    def complaint(self) -> str:
        """Why its PodGroup is not placed; empty when it is. A condition stays when what it says is over."""
        status = self.group().get("status") or {}
        told = [one for one in status.get("conditions") or [] if one["type"] == "Unschedulable"]
        return f"{told[-1]['reason']}: {told[-1]['message']}" if told and status["phase"] != "Running" else ""

    def events_of_group(self) -> list[str]:
        """Messages about its PodGroup, oldest first."""
        name = self.group()["metadata"]["name"]
        return [e["message"] for e in self.cluster.events(self.namespace) if e["involvedObject"]["name"] == name]


def unplaced(pods: list[Object]) -> list[str]:
    """What the scheduler says of pods that it found no node for."""
    told = []
    for pod in pods:
        for one in pod["status"].get("conditions") or []:
            if one["type"] == "PodScheduled" and one["status"] == "False":
                told.append(f"{one.get('reason')}: {one.get('message', '')}")
    return told
