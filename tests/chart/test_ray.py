"""The cluster that the chart asks KubeRay for: kind, Ray's start parameters, ports, probes, resources, replicas."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.support.chart import CHART, render
from tests.support.cluster import cluster, env, head, owner, pod_of, ray, worker

SERVE = {"autoscaling": {"mode": "serve"}}
GPUS = {
    "engine": {"tensorParallelSize": 16},
    "workers": {"gpu": {"gpusPerNode": 8, "resources": {"limits": {"memory": "64Gi"}}}},
}
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


# ---- kind and replica counts


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({}, "RayCluster"),
        ({"kind": "RayService"}, "RayService"),
        (SERVE, "RayService"),
        ({"autoscaling": {"mode": "hpa"}}, "RayService"),
    ],
)
def test_the_kind_follows_from_who_writes_the_replica_count(values, kind):
    assert owner(render(values))["kind"] == kind


@pytest.mark.parametrize("kind", ["RayCluster", "RayService"])
def test_replicas_are_rendered_where_helm_alone_writes_them(kind):
    group = worker({"kind": kind, "workerDefaults": {"replicas": 3}})
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3)


@pytest.mark.parametrize("mode", ["serve", "hpa"])
@pytest.mark.parametrize(("kind", "replicas"), [("RayCluster", None), ("RayService", 2)])
def test_replicas_are_left_out_only_of_an_object_that_somebody_else_writes(mode, kind, replicas):
    defaults = {"minReplicas": 2, "maxReplicas": 5, "replicas": 2}
    values = {"kind": kind, "autoscaling": {"mode": mode, "allowReplicaReset": True}, "workerDefaults": defaults}
    group = worker(values)
    assert group.get("replicas") == replicas, "KubeRay copies a RayService's count once, nobody writes it there"
    assert (group["minReplicas"], group["maxReplicas"]) == (2, 5)


def test_a_suspended_group_says_so_and_others_do_not():
    spec = cluster({"workers": {"a": {"suspend": True}, "b": {}}})
    assert [group.get("suspend") for group in spec["workerGroupSpecs"]] == [True, None]


# ---- Ray


def test_the_ray_version_is_the_one_that_the_app_is_pinned_to():
    project = tomllib.loads((CHART.parents[1] / "pyproject.toml").read_text())
    [pinned] = [
        match[1] for d in project["project"]["dependencies"] if (match := re.match(r"ray\[\w+\]==([\d.]+)$", d))
    ]
    assert cluster()["rayVersion"] == pinned


def test_the_ray_container_comes_first_and_kuberay_writes_its_command():
    for group, name in ((head(), "ray-head"), (worker(), "ray-worker")):
        assert ray(group)["name"] == name
        assert not {"command", "args"} & ray(group).keys()


def test_start_parameters_are_strings_and_the_values_add_more():
    values = {
        "head": {"rayStartParams": {"log-color": "false"}},
        "workerDefaults": {"rayStartParams": {"labels-file": "x"}},
    }
    assert head(values)["rayStartParams"] == {"log-color": "false", "num-cpus": "0", "object-store-memory": "134217728"}
    assert worker(values)["rayStartParams"] == {"labels-file": "x", "object-store-memory": "134217728"}


def test_ray_is_told_of_gpus_that_no_limit_shows():
    claims = [{"name": "gpus", "resourceClaimTemplateName": "eight"}]
    values = {
        "engine": {"tensorParallelSize": 8},
        "workerDefaults": {"gpusPerNode": 8, "numGpus": 8, "resourceClaims": claims},
    }
    group = worker(values)
    assert group["rayStartParams"]["num-gpus"] == "8"
    assert pod_of(group)["resourceClaims"] == claims
    assert ray(group)["resources"]["claims"] == [{"name": "gpus"}]
    assert "nvidia.com/gpu" not in ray(group)["resources"]["limits"]


def test_ports_are_those_of_ray_and_of_the_values():
    values = {"serve": {"httpPort": 8001, "grpcPort": 9001}}
    node = {"metrics": 8080, "agent": 52365, "serve": 8001, "serve-grpc": 9001}
    control = {"gcs-server": 6379, "dashboard": 8265, "client": 10001, "as-metrics": 44217, "dash-metrics": 44227}
    for group, ports in ((head(values), node | control), (worker(values), node)):
        assert {port["name"]: port["containerPort"] for port in ray(group)["ports"]} == ports


@pytest.mark.parametrize("values", [{}, SERVE])
def test_probes_ask_ray_and_never_the_serve_proxy(values):
    """A pod of a gang without a replica has no proxy, and would never be ready."""
    for group in (head(values), worker(values)):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert ray(group)[probe]["httpGet"]["port"] in ("agent", "dashboard")
        assert ray(group)["livenessProbe"]["httpGet"] == {"path": "/api/healthz", "port": "agent"}


def test_gpu_pods_ask_for_gpus_and_for_one_cpu_per_rank_and_replica():
    resources = ray(worker(GPUS))["resources"]
    assert resources["limits"] == {"cpu": "9", "memory": "64Gi", "nvidia.com/gpu": "8"}
    assert resources["requests"] == resources["limits"]
    assert env(ray(worker(GPUS)))["DS_ACCELERATOR"] == "cuda"
    assert env(ray(head(GPUS)))["DS_ACCELERATOR"] == "cpu"


def test_a_group_overrides_the_environment_that_serve_sets_and_both_the_chart_s():
    secret = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    field = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    values = {
        "serve": {"env": {"A": "serve", "B": "serve", "C": field, "OMP_NUM_THREADS": "2"}},
        "workerDefaults": {"env": {"B": "group", "C": secret, "D": secret}},
    }
    got = env(ray(worker(values)))
    assert (got["A"], got["B"], got["OMP_NUM_THREADS"]) == ("serve", "group", "2")
    assert got["C"] == got["D"] == secret["valueFrom"]
    assert env(ray(head(values)))["B"] == "serve"
