"""NOTES.txt: what the user reads after an install."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.support.chart import CHART, run_helm

FABRIC = {
    "fabric": {
        "type": "macvlan",
        "networks": {"a": {"resourceName": "rdma/a", "master": "eth1", "ipam": {"range": "10.0.0.0/16"}}},
    }
}
TIMES = "\N{MULTIPLICATION SIGN}"


def notes(values: dict[str, Any]) -> str:
    command = ["install", "demo", str(CHART), "--namespace", "serving", "--dry-run=client", "-f", "-"]
    done = run_helm("helm4", command, json.dumps(values))
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().partition("\nNOTES:\n")[2]


def test_a_default_install_says_what_it_is_and_how_to_ask():
    text = notes({})
    assert text.startswith("RayCluster demo-llm-ray in namespace serving: smollm2-135m-instruct\n")
    assert f"1 (tensor) {TIMES} 1 (pipeline) = 1 rank per engine replica" in text
    assert f"worker: 1 {TIMES} 1 pod, 1 engine replica in each" in text
    assert "1 head, 1 worker, 0 GPUs at first" in text
    assert "none: pods are placed one by one" in text
    assert "port-forward service/demo-llm-ray-serve 8000:8000\n" in text
    assert "curl http://127.0.0.1:8000/v1/completions" in text
    assert "Bearer" not in text
    assert "helm -n serving test demo" in text
    assert "Mind:" not in text


def test_the_topology_is_counted():
    values = {
        "engine": {"tensorParallelSize": 16},
        "autoscaling": {"mode": "serve"},
        "gang": {"provider": "kuberay"},
        "workers": {"gpu": {"gpusPerNode": 8, "replicas": 2, "maxReplicas": 3}},
    }
    text = notes(values)
    assert f"16 (tensor) {TIMES} 1 (pipeline) = 16 ranks per engine replica" in text
    assert f"gpu: 2 to 3 {TIMES} 2 pods with 8 GPUs each, 1 engine replica in each" in text
    assert "1 head, 4 workers, 32 GPUs at first" in text
    assert "5 pods, all or none (kuberay)" in text


def test_with_api_keys_the_first_request_carries_one():
    assert '-H "Authorization: Bearer $API_KEY"' in notes({"auth": {"apiKeys": {"existingSecret": "keys"}}})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "recreate: what changes pods stops all of them"),
        ({"kuberay": {"version": "1.5"}}, "none: KubeRay 1.5 keeps running pods"),
        ({"rollout": {"strategy": "none"}}, "none: running pods stay as they are"),
        ({"kind": "RayService"}, "blueGreen: what changes pods starts a second cluster"),
    ],
)
def test_an_upgrade_is_announced(values, words):
    assert words in notes(values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"engine": {"pipelineParallelSize": 2}}, "engine.pipelineParallelSize (2): app version"),
        ({"workers": {"a": {"gpusPerNode": 1}}}, "workers.a.gpusPerNode (1): app version 0.1.0 computes on CPUs"),
        (
            {"engine": {"tensorParallelSize": 2}, "workers": {"a": {"numOfHosts": 2}}},
            "workers.a: Ray sees 2 CPUs in a pod and may give it more than 1 rank of engine.numCpusPerRank 1",
        ),
        (
            {"workers": {"a": {"shmSize": "8Gi"}}},
            "workers.a.resources.limits.memory (4Gi): its /dev/shm may grow to 8Gi",
        ),
        ({"workers": {"a": {"ranksPerNode": 1}}, "engine": {"tensorParallelSize": 2}}, "one engine spans 2 pods"),
        ({"autoscaling": {"mode": "hpa"}}, "needs the chart llm-ray-scaler"),
        ({"autoscaling": {"mode": "hpa"}}, "an adapter that serves llm_ray_requests"),
        (FABRIC, "a capability has no effect for user 1000"),
        ({"model": {"cache": {"type": "hostPath"}}}, "/var/cache/llm-ray must be writable for user 1000"),
        ({"gang": {"provider": "podgroup"}}, "must run without --batch-scheduler"),
        ({"gang": {"provider": "kuberay", "scheduler": "volcano"}}, "must run with --batch-scheduler=volcano"),
        ({"autoscaling": {"mode": "serve"}}, "not to the one that runs"),
        ({"auth": {"rayToken": {"enabled": True}}}, "the operator makes the Secret demo-llm-ray"),
        ({"model": {"source": f"oci://r.io/m@sha256:{'0' * 64}"}}, "image volumes need Kubernetes 1.35"),
        (
            {"autoscaling": {"mode": "serve", "allowReplicaReset": True}, "kind": "RayCluster"},
            "sets the number of worker groups back",
        ),
    ],
)
def test_what_bites_is_said(values, words):
    assert words in notes(values).partition("\nMind:\n")[2]


def test_host_networks_are_said_to_be_outside_the_policies():
    workers = {"workers": {"a": {"hostNetwork": True}, "b": {}}}
    assert "hostNetwork (a): network policies do not apply" in notes(workers)
    assert "hostNetwork" not in notes(workers | {"networkPolicy": {"enabled": False}})


def test_ranks_that_cannot_share_a_pod_are_not_warned_of():
    assert "CPUs in a pod" not in notes({"engine": {"tensorParallelSize": 2}})
    assert "CPUs in a pod" not in notes(yaml.safe_load((CHART / "ci" / "laptop-cpu.yaml").read_text()))
