"""Monitors find the right pods and ports, and give every series the labels that alerts and dashboards select by."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import kuberay
from tests.support.chart import HELMS, Manifest, Objects, render
from tests.support.validate import KUBERAY, KUBERNETES, validate

ALL = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "serviceMonitor": {"enabled": True},
    "rules": {"enabled": True},
    "dashboards": {"enabled": True},
    "logs": {"collector": {"enabled": True, "lokiEndpoint": "http://loki.logging.svc/otlp"}},
}
KINDS = ({}, {"autoscaling": {"mode": "serve"}})
WORKERS = {"workers": {"a": {}, "b": {"replicas": 2}}}
OWN_KINDS = ("PodMonitor", "ServiceMonitor", "PrometheusRule", "ConfigMap")


def monitored(**monitoring: Any) -> Objects:
    return render(WORKERS | {"monitoring": monitoring})


def owner(objects: Objects) -> Manifest:
    return next(item for item in objects if item["kind"] in ("RayCluster", "RayService"))


def endpoints(monitor: Manifest) -> list[Manifest]:
    spec = monitor["spec"]
    found: list[Manifest] = spec.get("podMetricsEndpoints") or spec["endpoints"]
    return found


def test_the_default_release_has_no_object_of_the_prometheus_operator():
    objects = render()
    assert {item["kind"] for item in objects}.isdisjoint({"PodMonitor", "ServiceMonitor", "PrometheusRule"})
    assert not [item for item in objects.all("ConfigMap") if "dashboard" in item["metadata"]["name"]]


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("values", KINDS, ids=("RayCluster", "RayService"))
def test_every_monitoring_object_is_valid(values: Any, helm: str):
    objects = render(values | {"monitoring": ALL}, helm=helm)
    ours = [item for item in objects if item["kind"] in OWN_KINDS]
    assert len(ours) > len(OWN_KINDS)
    for item in ours:
        for kubernetes in KUBERNETES:
            assert validate(item, KUBERAY[-1], kubernetes) == []


@pytest.mark.parametrize("values", KINDS, ids=("RayCluster", "RayService"))
def test_two_pod_monitors_select_the_head_and_every_worker_once(values: Any):
    objects = render(WORKERS | values | {"monitoring": {"podMonitor": {"enabled": True}}})
    pods = kuberay.kinds_of_pods(owner(objects))
    assert {pod.group for pod in pods} == {"headgroup", "a", "b"}
    for pod in pods:
        chosen = [m for m in objects.all("PodMonitor") if kuberay.matches(m["spec"]["selector"], pod.labels)]
        assert len(chosen) == 1, pod.group
        ports = {port["name"] for container in kuberay.containers(pod.spec) for port in container.get("ports", ())}
        scraped = [endpoint["port"] for endpoint in endpoints(chosen[0])]
        head = pod.group == "headgroup"
        assert scraped == (["metrics", "as-metrics", "dash-metrics"] if head else ["metrics"])
        assert set(scraped) <= ports, f"{pod.group} has the ports {ports}"


def test_a_monitor_looks_for_nothing_outside_the_release_s_namespace():
    objects = render({"monitoring": ALL}, namespace="team-a")
    for kind in ("PodMonitor", "ServiceMonitor"):
        for monitor in objects.all(kind):
            assert monitor["metadata"]["namespace"] == "team-a"
            assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["team-a"]}


@pytest.mark.parametrize("values", KINDS, ids=("RayCluster", "RayService"))
def test_the_service_monitor_finds_the_head_service_that_the_operator_makes_for_this_release_only(values: Any):
    objects = render(values | {"monitoring": {"serviceMonitor": {"enabled": True}}})
    selector = objects.find("ServiceMonitor")["spec"]["selector"]
    release = owner(objects)
    name = release["metadata"]["name"]
    assert kuberay.matches(selector, kuberay.head_service_labels(release, name))
    other = {"kind": release["kind"], "metadata": {"name": "other"}}
    assert not kuberay.matches(selector, kuberay.head_service_labels(other, "other"))


def test_a_service_monitor_takes_the_head_over_so_that_it_is_scraped_once():
    objects = monitored(podMonitor={"enabled": True}, serviceMonitor={"enabled": True})
    head = next(pod for pod in kuberay.kinds_of_pods(owner(objects)) if pod.group == "headgroup")
    assert not [m for m in objects.all("PodMonitor") if kuberay.matches(m["spec"]["selector"], head.labels)]
    assert len(objects.all("PodMonitor")) == 1
    scraped = [endpoint["port"] for endpoint in endpoints(objects.find("ServiceMonitor"))]
    assert scraped == ["metrics", "as-metrics", "dash-metrics"]


def test_series_carry_the_cluster_the_release_the_group_the_pod_and_the_node():
    for monitor in monitored(**ALL).all("PodMonitor") + monitored(**ALL).all("ServiceMonitor"):
        for endpoint in endpoints(monitor):
            made = {
                rule["targetLabel"]: rule["sourceLabels"]
                for rule in endpoint["relabelings"]
                if rule["action"] == "replace"
            }
            assert made == {
                "ray_io_cluster": ["__meta_kubernetes_pod_label_ray_io_cluster"],
                "llm_ray_name": ["__meta_kubernetes_pod_label_llm_ray_io_name"],
                "llm_ray_group": ["__meta_kubernetes_pod_label_llm_ray_io_group"],
                "pod": ["__meta_kubernetes_pod_name"],
                "node": ["__meta_kubernetes_pod_node_name"],
            }


def test_the_labels_that_become_series_labels_are_on_the_pods():
    for pod in kuberay.kinds_of_pods(owner(monitored(podMonitor={"enabled": True}))):
        assert pod.labels["llm-ray.io/name"] == "demo-llm-ray"
        assert pod.labels.get("llm-ray.io/group") == (None if pod.group == "headgroup" else pod.group)


def test_a_pod_that_still_downloads_its_model_is_no_target():
    for endpoint in endpoints(monitored(podMonitor={"enabled": True}).find("PodMonitor", "demo-llm-ray-worker")):
        drops = [rule for rule in endpoint["relabelings"] if rule.get("action") == "drop"]
        assert drops == [{"action": "drop", "sourceLabels": ["__meta_kubernetes_pod_phase"], "regex": "Pending"}]


def test_constant_labels_are_dropped_and_relabelings_of_the_user_follow():
    mine = {"action": "drop", "sourceLabels": ["__name__"], "regex": "ray_grpc_.*"}
    objects = monitored(podMonitor={"enabled": True, "interval": "30s", "metricRelabelings": [mine]})
    for monitor in objects.all("PodMonitor"):
        for endpoint in endpoints(monitor):
            assert endpoint["metricRelabelings"] == [{"action": "labeldrop", "regex": "otel_scope_.*"}, mine]
            assert (endpoint["interval"], endpoint["scrapeTimeout"]) == ("30s", "10s")


def test_monitors_carry_the_labels_that_prometheus_selects_by():
    labels = {"release": "kube-prometheus-stack"}
    switched = {"enabled": True, "labels": labels}
    objects = monitored(podMonitor=switched, serviceMonitor=switched, rules=switched)
    ours = [item for item in objects if item["kind"] in ("PodMonitor", "ServiceMonitor", "PrometheusRule")]
    assert len(ours) == 3
    for item in ours:
        assert labels.items() <= item["metadata"]["labels"].items()
