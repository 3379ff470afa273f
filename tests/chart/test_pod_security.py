"""Pod Security as Kubernetes' own admission code judges it. What KubeRay injects is the operator's to answer for."""

from __future__ import annotations

import copy

import pytest

from tests.support.chart import Pod, pod_templates, render
from tests.support.situations import SITUATIONS, rendered
from tests.support.validate import pod_security

UNRESTRICTED = {"everything", "tp16-two-nodes-sriov", "tp8-pp4-four-nodes-ib", "tp8-one-node"}
"""RDMA needs IPC_LOCK; a cache on the node needs a hostPath."""


def without_ipc_lock(pod: Pod) -> Pod:
    spec = copy.deepcopy(pod.spec)
    removed = 0
    for container in spec["containers"]:
        capabilities = container["securityContext"]["capabilities"]
        removed += capabilities.pop("add", []) == ["IPC_LOCK"]
    assert removed == (1 if "/workers/" in pod.name else 0), f"{pod.name}: IPC_LOCK is for the Ray container of workers"
    return Pod(pod.name, pod.metadata, spec)


def test_the_default_install_may_run_in_a_restricted_namespace():
    pods = pod_templates(render())
    assert {pod.name.partition("/")[0] for pod in pods} == {"RayCluster", "Pod"}
    assert pod_security(pods) == []


@pytest.mark.parametrize("situation", sorted(SITUATIONS.keys() - UNRESTRICTED))
def test_every_situation_without_rdma_or_a_cache_on_the_node_may_too(situation):
    assert pod_security(pod_templates(rendered(situation))) == []


def test_rdma_differs_from_restricted_by_ipc_lock_alone():
    pods = pod_templates(rendered("tp16-two-nodes-sriov"))
    refused = pod_security(pods)
    assert len(refused) == sum("/workers/" in pod.name for pod in pods) > 0, (
        "one reason for each worker pod, none for others"
    )
    for reason in refused:
        assert "/workers/" in reason
        assert "unrestricted capabilities" in reason
        assert '"IPC_LOCK"' in reason
    assert pod_security(without_ipc_lock(pod) for pod in pods) == []


def test_a_cache_on_the_node_is_what_baseline_forbids():
    refused = pod_security(pod_templates(render({"model": {"cache": {"type": "hostPath"}}})), level="baseline")
    assert refused
    assert all("hostPath" in reason for reason in refused)


def test_the_judge_sees_a_container_that_may_run_as_root():
    [head, *_] = pod_templates(render())
    spec = copy.deepcopy(head.spec)
    spec["securityContext"]["runAsNonRoot"] = False
    assert any("runAsNonRoot" in reason for reason in pod_security([Pod("head", head.metadata, spec)]))
