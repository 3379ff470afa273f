"""The batch scheduler of the KubeRay operator: one for the whole cluster, set by a flag of its Deployment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.live.support.cluster import Cluster, Object
from tests.live.support.waiting import Waiter

LABELS = "app.kubernetes.io/name=kuberay"
FLAG = "--batch-scheduler="
ARGS = "/spec/template/spec/containers/0/args"
ROLLOUT_S = 90


@contextmanager
def batch_scheduler(cluster: Cluster, wait: Waiter, name: str) -> Iterator[None]:
    """The operator with this one, or with none for an empty name; at the end as it was before."""
    operator = _operator(cluster)
    before: list[str] = operator["spec"]["template"]["spec"]["containers"][0].get("args") or []
    wanted = [word for word in before if not word.startswith(FLAG)] + ([f"{FLAG}{name}"] if name else [])
    if wanted == before:
        yield
        return
    _start_with(cluster, wait, operator, wanted)
    try:
        yield
    finally:
        _start_with(cluster, wait, operator, before)


def _operator(cluster: Cluster) -> Object:
    found = cluster.list("Deployment", labels=LABELS)
    assert len(found) == 1, f"{len(found)} Deployments have the label {LABELS}, wanted one KubeRay operator"
    return found[0]


def _start_with(cluster: Cluster, wait: Waiter, operator: Object, words: list[str]) -> None:
    name, namespace = operator["metadata"]["name"], operator["metadata"]["namespace"]
    cluster.patch("Deployment", name, namespace, [{"op": "add", "path": ARGS, "value": words}])

    def is_replaced() -> bool:
        seen = cluster.get("Deployment", name, namespace) or {}
        status, wanted = seen["status"], seen["spec"]["replicas"]
        is_seen = status.get("observedGeneration", 0) >= seen["metadata"]["generation"]
        counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")]
        return is_seen and counts == [wanted] * 3 and not status.get("terminatingReplicas")

    wait(f"the operator with {' '.join(words)}", is_replaced, ROLLOUT_S, watching=namespace)
