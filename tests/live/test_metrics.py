"""From a pod of the chart to a scaled Deployment: Prometheus, the adapter and the HorizontalPodAutoscaler are real.

What the pods report is the test's own, so that a load can be set; Ray itself is scraped where it serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.live.conftest import MakeNamespace
from tests.live.support.clients import is_ready
from tests.live.support.cluster import Cluster, Object
from tests.live.support.helm import Helm
from tests.live.support.metrics import RUNNING, Metrics, set_waiting, sleepers, stand_ins
from tests.live.support.waiting import Waiter
from tests.support.chart import Objects, render

pytestmark = [pytest.mark.live, pytest.mark.needs("image", "kuberay", "external-metrics"), pytest.mark.timeout(240)]

SCRAPED_S = 60
SCALED_S = 60
GROUPS = ("busy", "idle")
NOWHERE = {"nodeSelector": {"llm-ray.io/no-such-node": "true"}}
MONITORS = ("PodMonitor", "ServiceMonitor", "PrometheusRule")
AT_ONCE = {
    "scaleUp": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}
}
SCALED = {
    "workers": {group: {"maxReplicas": 4} for group in GROUPS},
    "autoscaling": {"mode": "hpa", "hpa": {"averageValue": 10, "behavior": AT_ONCE}},
    "monitoring": {"podMonitor": {"enabled": True}},
}


@pytest.fixture(scope="module")
def namespace(make_module_namespace: MakeNamespace) -> str:
    return make_module_namespace()


@pytest.fixture(scope="module")
def release(namespace: str) -> Objects:
    return render(SCALED, release="llm", namespace=namespace)


@pytest.fixture(scope="module")
def metrics(cluster: Cluster, wait: Waiter, namespace: str, release: Objects, image: str) -> Metrics:
    """With a pod for the head and for each of two groups, all of which Prometheus has found."""
    cluster.apply(*release.all("PodMonitor"))
    for pod in stand_ins(release, image).values():
        cluster.create(pod, namespace)
    wait("the exporters", lambda: all(map(is_ready, cluster.pods(namespace))), SCRAPED_S, watching=namespace)
    known = Metrics(cluster)
    query = f'{RUNNING}{{namespace="{namespace}"}}'
    wait(
        "their series",
        lambda: len(known.query(query)) == 1 + len(GROUPS),
        SCRAPED_S,
        last_seen=lambda: known.query("up"),
    )
    return known


def autoscaler(release: Objects, group: str) -> Object:
    return release.find("HorizontalPodAutoscaler", f"llm-llm-ray-{group}")


def external_metric(release: Objects, group: str) -> Any:
    [metric] = autoscaler(release, group)["spec"]["metrics"]
    return metric["external"]["metric"]


def test_a_pod_of_the_chart_is_found_and_its_series_carry_the_release_and_the_group(
    metrics: Metrics, namespace: str
) -> None:
    series = metrics.query(f'{RUNNING}{{namespace="{namespace}",llm_ray_name="llm-llm-ray"}}')
    found = {one["metric"]["pod"]: one["metric"].get("llm_ray_group", "") for one in series}
    assert found == {"exporter-headgroup": "", "exporter-busy": "busy", "exporter-idle": "idle"}
    assert {one["metric"]["endpoint"] for one in series} == {"metrics"}
    assert all(one["metric"]["node"] and one["metric"]["ray_io_cluster"] for one in series)


def test_an_autoscaler_follows_the_load_of_its_own_group(
    metrics: Metrics, cluster: Cluster, wait: Waiter, namespace: str, release: Objects, image: str
) -> None:
    for group in GROUPS:
        scaler = autoscaler(release, group)
        scaler["spec"]["scaleTargetRef"] = {"apiVersion": "apps/v1", "kind": "Deployment", "name": group}
        cluster.apply(sleepers(group, image), scaler, namespace=namespace)
    set_waiting(cluster, namespace, "busy", 24)
    labels = external_metric(release, "busy")["selector"]["matchLabels"]
    name = external_metric(release, "busy")["name"]
    wait("the load", lambda: metrics.external(namespace, name, labels) == ["25"], SCRAPED_S)

    def replicas(group: str) -> int:
        return int((cluster.get("Deployment", group, namespace) or {})["spec"]["replicas"])

    wait(
        "three for 25 requests, 10 each",
        lambda: replicas("busy") == 3,
        SCALED_S,
        last_seen=lambda: status(cluster, namespace),
    )
    wait("an idle group that is read", lambda: active(cluster, namespace, "idle"), SCALED_S)
    assert active(cluster, namespace, "busy")
    assert replicas("idle") == 1
    assert metrics.of_pods(namespace, name) == {"exporter-headgroup": "1", "exporter-busy": "25", "exporter-idle": "1"}


def active(cluster: Cluster, namespace: str, group: str) -> bool:
    """Whether the autoscaler could read its metric."""
    found = status(cluster, namespace).get(f"llm-llm-ray-{group}", {})
    return {one["type"]: one["status"] for one in found.get("conditions", [])}.get("ScalingActive") == "True"


def status(cluster: Cluster, namespace: str) -> Mapping[str, Any]:
    found = cluster.list("HorizontalPodAutoscaler", namespace)
    return {one["metadata"]["name"]: one.get("status", {}) for one in found}


@pytest.mark.parametrize("version", ["helm3", "helm4"])
def test_the_monitors_and_alerts_are_stored_as_they_were_written(
    version: str, helms: Mapping[str, Helm], cluster: Cluster, make_namespace: MakeNamespace
) -> None:
    namespace = make_namespace()
    values = {
        "head": NOWHERE,
        "workerDefaults": NOWHERE,
        "monitoring": {name: {"enabled": True} for name in ("podMonitor", "serviceMonitor", "rules")},
    }
    helms[version].install("llm", namespace, values)
    wanted = [one for one in render(values, release="llm", namespace=namespace) if one["kind"] in MONITORS]
    assert {one["kind"] for one in wanted} == set(MONITORS)
    for one in wanted:
        kind = f"{one['kind']}.monitoring.coreos.com"
        stored = cluster.get(kind, one["metadata"]["name"], namespace)
        assert stored is not None
        assert stored["spec"] == one["spec"]
