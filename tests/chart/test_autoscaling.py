"""autoscaling.mode hpa: a scale target per group that nothing but the autoscaler writes, and one autoscaler for it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support import kuberay
from tests.support.chart import HelmError, Objects, render
from tests.support.validate import KUBERNETES, validate

QUERY_METRICS = ("ray_serve_replica_processing_queries", "ray_serve_deployment_queued_queries")
SCALERS = {"hpa": "HorizontalPodAutoscaler", "keda": "ScaledObject"}
GROUP = {"gpusPerNode": 2, "replicas": 2, "minReplicas": 1, "maxReplicas": 8}
TWO_GROUPS = {"a": GROUP, "b": GROUP | {"maxReplicas": 3}}

by_each = pytest.mark.parametrize("provider", SCALERS)


def scaled(provider: str = "hpa", workers: dict[str, Any] | None = None, **hpa: Any) -> dict[str, Any]:
    """Gangs of two hosts that an autoscaler sizes."""
    return {
        "engine": {"tensorParallelSize": 4},
        "workers": workers or {"gpu": GROUP},
        "autoscaling": {"mode": "hpa", "hpa": {"provider": provider, **hpa}},
    }


def scalers(objects: Objects) -> list[dict[str, Any]]:
    return [o for o in objects if o["kind"] in SCALERS.values()]


def prometheus(objects: Objects) -> dict[str, str]:
    """The metadata of the only trigger."""
    [trigger] = objects.find("ScaledObject")["spec"]["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
    metadata: dict[str, str] = trigger["metadata"]
    return metadata


@by_each
def test_every_group_has_one_target_and_one_autoscaler(provider: str) -> None:
    objects = render(scaled(provider, TWO_GROUPS))
    targets = {o["spec"]["groupName"]: o for o in objects.all("WorkerGroupScale")}
    assert set(targets) == {"a", "b"}
    assert [o["kind"] for o in scalers(objects)] == [SCALERS[provider]] * 2
    for scaler in scalers(objects):
        reference = scaler["spec"]["scaleTargetRef"]
        assert (reference["apiVersion"], reference["kind"]) == ("llm-ray.io/v1alpha1", "WorkerGroupScale")
    assert sorted(s["spec"]["scaleTargetRef"]["name"] for s in scalers(objects)) == sorted(
        t["metadata"]["name"] for t in targets.values()
    )


@by_each
@pytest.mark.parametrize("kubernetes", KUBERNETES)
def test_the_objects_are_valid(provider: str, kubernetes: str) -> None:
    objects = render(scaled(provider, keda={"authenticationRef": "bearer", "fallbackReplicas": 2}))
    for made in [*objects.all("WorkerGroupScale"), *scalers(objects)]:
        assert validate(made, kubernetes=kubernetes) == []


@pytest.mark.parametrize("mode", ["fixed", "serve"])
def test_without_an_autoscaler_of_kubernetes_there_is_no_target_either(mode: str) -> None:
    group = {"gpusPerNode": 2} if mode == "fixed" else GROUP
    objects = render(scaled(workers={"gpu": group}) | {"autoscaling": {"mode": mode}})
    assert not objects.all("WorkerGroupScale")
    assert not scalers(objects)


def test_the_target_is_the_service_and_its_count_is_left_to_the_autoscaler() -> None:
    objects = render(scaled())
    spec = objects.find("WorkerGroupScale")["spec"]
    assert spec == {
        "target": {
            "apiVersion": "ray.io/v1",
            "kind": "RayService",
            "name": objects.find("RayService")["metadata"]["name"],
        },
        "groupName": "gpu",
        "minReplicas": 1,
        "maxReplicas": 8,
    }
    [group] = kuberay.cluster_spec(objects.find("RayService"))["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (1, 1, 8), "KubeRay starts at the minimum"


def test_the_hpa_aims_at_requests_per_gang() -> None:
    spec = render(scaled(averageValue=24, metricName="llm_requests")).find("HorizontalPodAutoscaler")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 8)
    assert spec["metrics"] == [
        {
            "type": "External",
            "external": {
                "metric": {"name": "llm_requests", "selector": {"matchLabels": {"llm_ray_name": "demo-llm-ray"}}},
                "target": {"type": "AverageValue", "averageValue": "24"},
            },
        }
    ]


def test_the_default_target_is_thirty_requests_up_at_once_and_down_slowly() -> None:
    spec = render(scaled()).find("HorizontalPodAutoscaler")["spec"]
    assert spec["metrics"][0]["external"]["target"]["averageValue"] == "30"
    assert spec["behavior"]["scaleUp"] == {
        "stabilizationWindowSeconds": 0,
        "policies": [
            {"type": "Percent", "value": 100, "periodSeconds": 60},
            {"type": "Pods", "value": 2, "periodSeconds": 60},
        ],
    }
    assert spec["behavior"]["scaleDown"] == {
        "stabilizationWindowSeconds": 600,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}],
    }


@by_each
def test_several_groups_are_each_sized_by_their_own_load(provider: str) -> None:
    objects = render(scaled(provider, TWO_GROUPS))
    for scaler in scalers(objects):
        group = scaler["spec"]["scaleTargetRef"]["name"].removeprefix("demo-llm-ray-")
        if provider == "hpa":
            selector = scaler["spec"]["metrics"][0]["external"]["metric"]["selector"]["matchLabels"]
            assert selector == {"llm_ray_name": "demo-llm-ray", "llm_ray_group": group}
        else:
            assert f'llm_ray_group="{group}"' in scaler["spec"]["triggers"][0]["metadata"]["query"]


@pytest.mark.parametrize(("tolerance", "written"), [(0.05, "50m"), (0, "0"), (1, "1")])
@by_each
def test_tolerance_goes_to_both_directions(provider: str, tolerance: float, written: str) -> None:
    [scaler] = scalers(render(scaled(provider, tolerance=tolerance)))
    spec = scaler["spec"]
    behavior = spec["behavior"] if provider == "hpa" else spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert [behavior[way]["tolerance"] for way in ("scaleUp", "scaleDown")] == [written, written]
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0


@by_each
def test_a_metric_that_does_not_add_up_is_compared_as_it_is(provider: str) -> None:
    workers = {"gpu": GROUP | {"gpusPerNode": 4}}
    [scaler] = scalers(render(scaled(provider, workers, metricType="Value", averageValue=0.8)))
    if provider == "hpa":
        [metric] = scaler["spec"]["metrics"]
        assert metric["external"]["target"] == {"type": "Value", "value": "800m"}
    else:
        [trigger] = scaler["spec"]["triggers"]
        assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("Value", "0.8")
    assert validate(scaler) == []


@pytest.mark.parametrize(("value", "written"), [(0.5, "500m"), (2.25, "2250m"), (1000000, "1000000")])
def test_numbers_are_written_as_the_api_server_writes_them(value: float, written: str) -> None:
    [metric] = render(scaled(averageValue=value)).find("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["external"]["target"]["averageValue"] == written


def test_keda_asks_prometheus_for_the_requests_of_this_release() -> None:
    objects = render(scaled("keda", averageValue=20), namespace="team-a")
    metadata = prometheus(objects)
    assert metadata["serverAddress"] == "http://prometheus-operated.monitoring.svc:9090"
    assert metadata["threshold"] == "20"
    assert metadata["ignoreNullValues"] == "false"
    name = objects.find("RayService")["metadata"]["name"]
    assert metadata["query"] == (
        f'sum({{__name__=~"{"|".join(QUERY_METRICS)}",application="llm",namespace="team-a",llm_ray_name="{name}"}})'
    )


@pytest.mark.parametrize(("value", "written"), [(30, "30"), (2.5, "2.5"), (0.001, "0.001")])
def test_keda_s_threshold_is_a_plain_number_since_keda_knows_no_quantities(value: float, written: str) -> None:
    assert prometheus(render(scaled("keda", averageValue=value)))["threshold"] == written


def test_the_query_asks_for_the_application_that_is_deployed() -> None:
    objects = render(scaled("keda"))
    [application] = kuberay.serve_config(objects.find("RayService"), [])["applications"]
    assert f'application="{application["name"]}"' in prometheus(objects)["query"]


def test_the_podmonitor_puts_the_labels_on_series_that_the_query_selects_by() -> None:
    objects = render(scaled("keda", TWO_GROUPS) | {"monitoring": {"podMonitor": {"enabled": True}}})
    wanted = set(re.findall(r"llm_ray_\w+", objects.all("ScaledObject")[0]["spec"]["triggers"][0]["metadata"]["query"]))
    endpoints = [
        e for m in objects.all("PodMonitor") for e in m["spec"]["podMetricsEndpoints"] if e["port"] == "metrics"
    ]
    assert endpoints
    for endpoint in endpoints:
        assert wanted <= {rule.get("targetLabel") for rule in endpoint["relabelings"]}


def test_a_query_of_ones_own_replaces_ours() -> None:
    query = 'sum(rate(x{route="/a"}[1m]))'
    assert prometheus(render(scaled("keda", keda={"query": query})))["query"] == query


def test_keda_falls_back_only_when_told_to() -> None:
    assert "fallback" not in render(scaled("keda")).find("ScaledObject")["spec"]
    told = render(scaled("keda", keda={"fallbackReplicas": 3, "authenticationRef": "bearer"})).find("ScaledObject")[
        "spec"
    ]
    assert told["fallback"] == {"failureThreshold": 3, "replicas": 3}
    assert told["triggers"][0]["authenticationRef"] == {"name": "bearer"}


def test_keda_may_go_down_to_nothing_where_the_head_still_takes_requests() -> None:
    values = scaled("keda", {"gpu": GROUP | {"minReplicas": 0}}) | {"serve": {"excludeHead": False}}
    spec = render(values).find("ScaledObject")["spec"]
    assert spec["minReplicaCount"] == 0


@by_each
def test_names_stay_within_their_limit_with_the_longest_release(provider: str) -> None:
    group = "g" * 30
    objects = render(scaled(provider, {group: GROUP, "g" * 29: GROUP}), release="r" * 53)
    names = [o["metadata"]["name"] for o in objects.all("WorkerGroupScale")]
    assert len(set(names)) == 2
    assert max(map(len, names)) <= 63


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more at least than at most": (
        scaled(workers={"gpu": GROUP | {"minReplicas": 9}}),
        "workers.gpu.minReplicas (9) must be at most maxReplicas (8)",
    ),
    "limits that nobody reads": (
        {"workers": {"gpu": {"maxReplicas": 3}}},
        "workers.gpu.maxReplicas (3) must be null, as minReplicas, with autoscaling.mode fixed",
    ),
    "an HPA at nothing": (
        scaled(workers={"gpu": GROUP | {"minReplicas": 0}}),
        "workers.gpu.minReplicas (0) must be at least 1 with autoscaling.hpa.provider hpa",
    ),
    "nobody left to take a request": (
        scaled("keda", {"gpu": GROUP | {"minReplicas": 0}}),
        "serve.excludeHead (true) must be false where all worker groups may go down to 0",
    ),
    "no Prometheus": (scaled("keda", keda={"serverAddress": ""}), 'autoscaling.hpa.keda.serverAddress ("") must be'),
    "no metric": (scaled(metricName=""), 'autoscaling.hpa.metricName ("") must name'),
    "a fallback above the limit": (
        scaled("keda", keda={"fallbackReplicas": 9}),
        "autoscaling.hpa.keda.fallbackReplicas (9) must be at most workers.gpu.maxReplicas (8)",
    ),
    "a metric that is multiplied by pods": (
        scaled(metricType="Value"),
        "autoscaling.hpa.metricType (Value) must be AverageValue while workers.gpu has 2 pods per group",
    ),
    "a RayCluster that Helm owns": (scaled() | {"kind": "RayCluster"}, "kind (RayCluster) must be RayService"),
    "a suspended group": (
        scaled(workers={"gpu": GROUP | {"suspend": True}}),
        "workers.gpu.suspend (true) must be false with autoscaling.mode hpa",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_scaling_that_nothing_would_carry_out_is_refused(case: str) -> None:
    values, message = REFUSED[case]
    with pytest.raises(HelmError) as refusal:
        render(values)
    assert message in refusal.value.message


def test_the_metrics_of_the_query_are_those_that_ray_exports() -> None:
    """Ray's own source names them without the prefix that its exporter puts before."""
    spec = find_spec("ray")
    assert spec is not None
    [home] = spec.submodule_search_locations or []
    source = "\n".join(p.read_text() for p in (Path(home) / "serve" / "_private").rglob("*.py"))
    for metric in QUERY_METRICS:
        assert f'"{metric.removeprefix("ray_")}"' in source
