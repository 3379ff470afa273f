"""Installs that lack something where KubeRay and Volcano run: a queue, a storage class, a claim, pods that serve.

What Helm, an event, a condition or `helm test` says must lead to what to do: by itself, or by the chart's README.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.live.support.cluster import Cluster, Object
from tests.live.support.helm import Helm, HelmError
from tests.live.support.waiting import Waiter
from tests.support.readme import advice_for

pytestmark = [pytest.mark.live, pytest.mark.needs("kuberay", "volcano"), pytest.mark.timeout(240)]

SOON_S = 60
WRONG, RIGHT = "no-such-queue", "default"
NOWHERE = {"nodeSelector": {"llm-ray.io/no-such-node": "true"}}
POD_GROUP, RAY_CLUSTER = "PodGroup.scheduling.volcano.sh", "RayCluster.ray.io"
both_helms = pytest.mark.parametrize("version", ["helm3", "helm4"])


def waiting(provider: str = "none", queue: str = "") -> dict[str, Any]:
    """A release whose pods no node takes."""
    return {
        "image": {"registry": "", "repository": "never-started", "tag": "1"},
        "head": NOWHERE,
        "workerDefaults": NOWHERE,
        "gang": {"provider": provider, "queue": queue},
    }


@both_helms
def test_a_wrong_queue_of_the_operators_gang_is_refused_before_anything_is_made(
    version: str, helms: Mapping[str, Helm], cluster: Cluster, namespace: str
) -> None:
    helm, before = helms[version], cluster.inventory(namespace)
    with pytest.raises(HelmError, match=f'unable to find queue: .*"{WRONG}" not found') as refused:
        helm.install("llm", namespace, waiting("kuberay", WRONG))
    assert "gang.queue" in advice_for(str(refused.value))
    left = cluster.inventory(namespace) - before
    assert {name.partition("/")[0] for name in left} == {"secrets.core"}  # Helm's note of the attempt

    helm.upgrade("llm", namespace, waiting("kuberay", RIGHT))
    assert cluster.get(RAY_CLUSTER, "llm-llm-ray", namespace) is not None
    assert cluster.get(POD_GROUP, "llm-llm-ray-queue-check", namespace) is None


@both_helms
def test_a_wrong_queue_of_our_own_pod_group_is_refused_and_an_upgrade_mends_it(
    version: str, helms: Mapping[str, Helm], cluster: Cluster, namespace: str
) -> None:
    helm = helms[version]
    with pytest.raises(HelmError, match=f'unable to find queue: .*"{WRONG}" not found') as refused:
        helm.install("llm", namespace, waiting("podgroup", WRONG))
    assert "gang.queue" in advice_for(str(refused.value))
    assert cluster.get(POD_GROUP, "llm-llm-ray-gang", namespace) is None

    helm.upgrade("llm", namespace, waiting("podgroup", RIGHT))
    group = cluster.get(POD_GROUP, "llm-llm-ray-gang", namespace)
    assert group is not None
    assert group["spec"]["queue"] == RIGHT
    assert cluster.get(RAY_CLUSTER, "llm-llm-ray", namespace) is not None


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"cache": {"type": "ephemeral", "storageClassName": "fast"}}, 'storageclass.storage.k8s.io "fast" not found'),
        ({"cache": {"type": "pvc", "existingClaim": "mine"}}, 'persistentvolumeclaim "mine" not found'),
        ({"source": "pvc://mine/model"}, 'persistentvolumeclaim "mine" not found'),
    ],
    ids=["no such class", "no such claim", "no such model"],
)
def test_a_worker_whose_volume_is_not_there_says_so_in_the_events(
    model: dict[str, Any], told: str, helm: Helm, cluster: Cluster, wait: Waiter, namespace: str
) -> None:
    values = waiting() | {"model": model}
    values.pop("workerDefaults")
    helm.install("llm", namespace, values)

    def said() -> list[str]:
        return [event["message"] for event in cluster.events(namespace) if told in event["message"]]

    [message, *_] = wait(f"an event with {told}", said, SOON_S, watching=namespace)
    assert "model." in advice_for(message)
    [worker] = wait("a worker that is refused", lambda: refused_workers(cluster, namespace), SOON_S)
    assert "persistentvolumeclaim" in worker.lower()


def refused_workers(cluster: Cluster, namespace: str) -> list[str]:
    """Why the scheduler finds no place for the worker pods."""
    found: list[Object] = cluster.pods(namespace, "app.kubernetes.io/component=worker")
    conditions = [one for pod in found for one in pod["status"].get("conditions") or []]
    return [one["message"] for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False"]


@pytest.mark.needs("image")
@both_helms
def test_helm_test_says_where_to_look_when_nothing_serves(
    version: str, helms: Mapping[str, Helm], image: str, namespace: str
) -> None:
    helm = helms[version]
    name, _, tag = image.rpartition(":")
    registry, _, repository = name.rpartition("/")
    own = {
        "image": {"registry": registry, "repository": repository, "tag": tag, "pullPolicy": "Never"},
        "tests": {"timeoutSeconds": 1},
    }
    helm.install("llm", namespace, waiting() | own)
    with pytest.raises(HelmError) as failed:
        helm.test("llm", namespace, timeout_s=120)
    said = str(failed.value)
    assert "No pod serves." in said
    assert f"`kubectl -n {namespace} events`" in said
    assert "if it says nothing of raycluster/llm-llm-ray, the KubeRay operator does not act on it" in said
