"""The parts of the RayCluster that the chart renders for some values, for tests that look at one of them."""

from __future__ import annotations

from typing import Any

from tests.support.chart import Objects, render
from tests.support.kuberay import cluster_spec, containers
from tests.support.validate import KUBERAY, validate


def owner(objects: Objects) -> dict[str, Any]:
    [found] = [obj for obj in objects if obj["kind"] in ("RayCluster", "RayService")]
    return found


def cluster(values: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """The RayClusterSpec, valid for the KubeRay that the values name."""
    obj = owner(render(values, **options))
    version = (values or {}).get("kuberay", {}).get("version", "1.6")
    if version in KUBERAY:
        assert validate(obj, kuberay=version) == []
    return cluster_spec(obj)


def head(values: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return dict(cluster(values, **options)["headGroupSpec"])


def worker(values: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    [group] = cluster(values, **options)["workerGroupSpecs"]
    return dict(group)


def pod_of(group: dict[str, Any]) -> dict[str, Any]:
    return dict(group["template"]["spec"])


def ray(group: dict[str, Any]) -> dict[str, Any]:
    return dict(pod_of(group)["containers"][0])


def named(pod: dict[str, Any], name: str) -> dict[str, Any]:
    [found] = [container for container in containers(pod) if container["name"] == name]
    return found


def env(container: dict[str, Any]) -> dict[str, Any]:
    names = [entry["name"] for entry in container.get("env", [])]
    assert names == sorted(set(names))
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container.get("env", [])}
