"""Installs that cannot work where the cluster has nothing but Kubernetes: an API server of its own, without any CRD.

What Helm or the cluster says must lead to what to do: by itself, or by the chart's README.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.support.cluster import Cluster
from tests.live.support.helm import CHART, HelmError
from tests.live.support.tiny_lab import TinyLab, ray_cluster_kind, tiny_lab
from tests.support.readme import advice, advice_for

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

EVENT_S = 40
OLDER_OPERATOR = {"kuberay": {"version": "1.5"}}  # whose RayCluster has no upgradeStrategy
both_helms = pytest.mark.parametrize("version", ["helm3", "helm4"])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyLab]:
    with tiny_lab(tmp_path_factory.mktemp("helm")) as lab:
        yield lab


def refusal(lab: TinyLab, version: str, *values: Any) -> str:
    """What Helm says when it refuses; that nothing is left of the attempt is checked."""
    helm, namespace = lab.helm(version), lab.namespace()
    before = lab.cluster.inventory(namespace)
    with pytest.raises(HelmError) as refused:
        helm.install("llm", namespace, *values)
    assert lab.cluster.inventory(namespace) == before
    return str(refused.value)


@both_helms
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"engine": {"tensorParallelSize": 0}}, ("tensorParallelSize", "minimum", "1")),
        ({"engine": {"dtype": "int3"}}, ("dtype", "bfloat16")),
        ({"engine": {"tensorParalelSize": 2}}, ("tensorParalelSize",)),
        ({"gang": {"queue": "team"}}, ("gang.queue (team) must be empty", "set gang.provider to")),
        (
            {"model": {"source": "hf://owner/name@main"}},
            ("model.source (hf://owner/name@main) must pin one commit", "40 hexadecimal digits"),
        ),
    ],
    ids=["too small", "no such choice", "no such key", "no such combination", "a branch"],
)
def test_an_impossible_value_is_refused_with_what_is_possible(
    values: dict[str, Any], words: tuple[str, ...], version: str, lab: TinyLab
) -> None:
    said = refusal(lab, version, values)
    assert [word for word in words if word not in said] == []


@both_helms
@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ({}, {"RayCluster"}),
        ({"autoscaling": {"mode": "serve"}}, {"RayService"}),
        ({"gang": {"provider": "podgroup", "queue": "team"}}, {"RayCluster", "PodGroup"}),
        (CHART / "ci" / "hpa.yaml", {"RayService", "WorkerGroupScale", "PodMonitor"}),
    ],
    ids=["ray", "ray service", "volcano", "scaler and monitors"],
)
def test_kinds_that_the_cluster_lacks_are_named_and_the_readme_says_what_brings_them(
    values: Any, kinds: set[str], version: str, lab: TinyLab
) -> None:
    said = refusal(lab, version, values)
    assert "ensure CRDs are installed first" in said
    named = set(re.findall(r'no matches for kind "(\w+)"', said))
    assert named == kinds
    assert {kind for kind in named if not advice().get(kind)} == set()


@pytest.fixture(scope="module")
def with_kind(lab: TinyLab) -> Iterator[TinyLab]:
    """After the tests above, in which the cluster knows no RayCluster."""
    with ray_cluster_kind(lab):
        yield lab


def test_where_no_operator_runs_the_notes_say_how_to_tell(with_kind: TinyLab) -> None:
    namespace = with_kind.namespace()
    notes = with_kind.helm("helm4").install("llm", namespace).stdout
    owner = "raycluster/llm-llm-ray"
    assert f"If they say nothing of {owner}, the\nKubeRay operator does not act on it" in notes
    assert about(with_kind.cluster, namespace, "RayCluster") == []
    [labels] = re.findall(r"kubectl get pods -A -l (\S+)", notes)
    assert with_kind.cluster.list("Pod", labels=labels) == []


@pytest.mark.parametrize(
    ("storage_class", "told", "hint"),
    [
        (None, "no storage class is set", "model.cache.storageClassName (null): claims stay Pending unless"),
        ("fast", 'storageclass.storage.k8s.io "fast" not found', "model.cache.storageClassName (fast): claims stay"),
    ],
    ids=["no default", "no such class"],
)
def test_a_claim_without_its_storage_class_says_so_in_its_events(
    storage_class: str | None, told: str, hint: str, with_kind: TinyLab
) -> None:
    namespace = with_kind.namespace()
    cache = {"type": "pvc", "storageClassName": storage_class}
    notes = with_kind.helm("helm4").install("llm", namespace, {"model": {"cache": cache}}).stdout
    assert hint in notes

    def events() -> list[str]:
        return [said for said in about(with_kind.cluster, namespace, "PersistentVolumeClaim") if told in said]

    [said, *_] = with_kind.wait("an event of the claim", events, EVENT_S)
    assert "model.cache.storageClassName" in advice_for(said)


def about(cluster: Cluster, namespace: str, kind: str) -> list[str]:
    """Messages of the events of objects of a kind."""
    return [one["message"] for one in cluster.events(namespace) if one["involvedObject"]["kind"] == kind]


@pytest.fixture(scope="module")
def with_older_kind(lab: TinyLab) -> Iterator[TinyLab]:
    """After the tests that use the current one."""
    with ray_cluster_kind(lab, without="upgradeStrategy"):
        yield lab


def test_helm_4_refuses_fields_that_an_older_crd_lacks(with_older_kind: TinyLab) -> None:
    helm, namespace = with_older_kind.helm("helm4"), with_older_kind.namespace()
    with pytest.raises(HelmError, match=r"\.spec\.upgradeStrategy: field not declared in schema") as refused:
        helm.install("llm", namespace)
    assert "kuberay.version" in advice_for(str(refused.value))
    assert helm.upgrade("llm", namespace, OLDER_OPERATOR)


def test_helm_3_warns_of_fields_that_an_older_crd_lacks(with_older_kind: TinyLab) -> None:
    helm, namespace = with_older_kind.helm("helm3"), with_older_kind.namespace()
    said = helm.install("llm", namespace).stderr
    assert 'unknown field \\"spec.upgradeStrategy\\"' in said
    assert "kuberay.version" in advice_for(said)
    assert "unknown field" not in helm.upgrade("llm", namespace, OLDER_OPERATOR).stderr
