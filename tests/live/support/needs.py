"""What a test needs of its cluster, checked before it starts: a failure with the way to get it, never a skip."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.live.support.cluster import Cluster

IMAGE_LIST_S = 60


class NeedError(AssertionError):
    """The cluster lacks what the test needs."""


def check(cluster: Cluster, needs: tuple[str, ...], image: str, image_list_s: float = IMAGE_LIST_S) -> None:
    """Raises NeedError, or ValueError for a need that nobody knows."""
    for need in needs:
        if need not in NEEDS and need != "image":
            raise ValueError(f"unknown need {need!r}: one of image, {', '.join(NEEDS)}")
        lacking = _image(cluster, image, image_list_s) if need == "image" else NEEDS[need][1](cluster)
        if lacking:
            fix = "`make image`, then `make lab-load IMAGE=build/llm-ray.tar`" if need == "image" else NEEDS[need][0]
            raise NeedError(f"this test needs {need}, and {lacking}: {fix}")


def _crd(name: str) -> Callable[[Cluster], str]:
    def lacks(cluster: Cluster) -> str:
        found = cluster.get("CustomResourceDefinition", name)
        return "" if found else f"the cluster has no CustomResourceDefinition {name}"

    return lacks


def _deployment(labels: str) -> Callable[[Cluster], str]:
    def lacks(cluster: Cluster) -> str:
        found = cluster.list("Deployment", labels=labels)
        ready = [one for one in found if (one.get("status") or {}).get("readyReplicas")]
        return "" if ready else f"no Deployment with {labels} has a ready pod ({len(found)} found)"

    return lacks


def _nodes(wanted: int) -> Callable[[Cluster], str]:
    def lacks(cluster: Cluster) -> str:
        ready = 0
        for node in cluster.list("Node", labels="type!=kwok"):
            conditions = {one["type"]: one["status"] for one in node["status"].get("conditions") or []}
            ready += conditions.get("Ready") == "True" and not node["spec"].get("unschedulable", False)
        return "" if ready >= wanted else f"{ready} nodes are ready"

    return lacks


def _image(cluster: Cluster, image: str, seconds: float) -> str:
    """A kubelet tells of a new image with its next status."""
    deadline = time.monotonic() + seconds
    while True:
        nodes = cluster.list("Node", labels="type!=kwok")
        without = [node["metadata"]["name"] for node in nodes if image not in images_of(node)]
        if not without or time.monotonic() > deadline:
            return f"{image} is not on {', '.join(without)}" if without else ""
        time.sleep(1)


def images_of(node: dict[str, object]) -> set[str]:
    status = node.get("status")
    images = status.get("images") or [] if isinstance(status, dict) else []
    return {name for image in images for name in image.get("names") or []}


def _all(*checks: Callable[[Cluster], str]) -> Callable[[Cluster], str]:
    def lacks(cluster: Cluster) -> str:
        return next((lacking for one in checks if (lacking := one(cluster))), "")

    return lacks


def _up(profile: str) -> str:
    return f"`python -m ci.lab up --profile {profile}` brings it"


NEEDS: dict[str, tuple[str, Callable[[Cluster], str]]] = {
    "nodes": (_up("core"), _nodes(2)),
    "kuberay": (
        _up("core"),
        _all(_crd("rayclusters.ray.io"), _crd("rayservices.ray.io"), _deployment("app.kubernetes.io/name=kuberay")),
    ),
    "volcano": (_up("gang"), _crd("podgroups.scheduling.volcano.sh")),
    "kwok": (_up("gang"), _deployment("app=kwok-controller")),
    "multus": (_up("fabric"), _crd("network-attachment-definitions.k8s.cni.cncf.io")),
    "external-metrics": (
        _up("metrics"),
        lambda cluster: (
            "" if cluster.get("APIService", "v1beta1.external.metrics.k8s.io") else "no API serves external metrics"
        ),
    ),
}
