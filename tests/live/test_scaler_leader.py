"""Who leads of several scalers, and what becomes of a RayService's successor, on the real KubeRay with fake nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.support.cluster import Cluster
from tests.live.support.fake_nodes import FakeNodes, pool
from tests.live.support.scaler import (
    LEASE,
    LEASE_S,
    Scaler,
    Target,
    cluster_spec,
    install_crd,
    ray_cluster,
    running,
    worker_group_scale,
)  # fmt: skip
from tests.live.support.upgrades import RAY_SERVICE
from tests.live.support.waiting import Waiter

pytestmark = [pytest.mark.live, pytest.mark.needs("kuberay", "kwok")]

SOON_S = 60
ELSEWHERE = "kueue.x-k8s.io/multikueue"


@pytest.fixture(scope="module", autouse=True)
def _crd(cluster: Cluster) -> None:
    install_crd(cluster)


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[FakeNodes]:
    with pool(cluster) as made:
        made.add()
        yield made


@pytest.fixture
def scaler(nodes: FakeNodes, cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Scaler]:
    """The nodes come before the namespace, and so go after it."""
    with running(cluster, namespace, tmp_path) as made:
        yield made


def scaled(target: Target, wait: Waiter, count: int) -> None:
    def is_scaled() -> bool:
        return target.ready()[0] == "Scaled" and len(target.gangs()) == count

    wait(f"{count} gangs of {target.name}", is_scaled, SOON_S, last_seen=target.ready)


def lease_holder(cluster: Cluster, namespace: str) -> str:
    found = cluster.get("Lease", LEASE, namespace) or {"spec": {}}
    return str(found["spec"].get("holderIdentity") or "")


def test_of_two_scalers_one_leads_and_the_other_takes_over(
    nodes: FakeNodes, cluster: Cluster, namespace: str, tmp_path: Path, wait: Waiter
) -> None:
    cluster.create(ray_cluster("rc", cluster_spec(nodes, 2)), namespace)
    cluster.create(worker_group_scale("rc", replicas=2), namespace)
    target = Target(cluster, namespace, "rc", 2)
    with running(cluster, namespace, tmp_path) as one:
        wait("the first leads", lambda: one.identity, SOON_S)
        scaled(target, wait, 2)
        other = Scaler(namespace, one.kubeconfig, tmp_path / "other.log")
        other.start()
        try:
            wait("the second waits", lambda: "event=start" in other.text(), SOON_S)
            target.ask(3)
            scaled(target, wait, 3)
            assert not other.identity

            one.kill()
            target.ask(1)
            wait("the second leads", lambda: other.identity, LEASE_S * 6)
            scaled(target, wait, 1)
            assert lease_holder(cluster, namespace) == other.identity

            one.start()
            wait("the first is back", lambda: one.text().count("event=start") == 2, SOON_S)
            before = one.identity
            assert other.stop() == 0
            assert "event=lease_released ok=True" in other.text()
            wait("the first leads again", lambda: one.identity != before, SOON_S)
            target.ask(2)
            scaled(target, wait, 2)
        finally:
            other.kill()


def test_a_scaler_that_is_stopped_gives_the_lease_back(
    cluster: Cluster, namespace: str, scaler: Scaler, wait: Waiter
) -> None:
    wait("it leads", lambda: scaler.identity and lease_holder(cluster, namespace) == scaler.identity, SOON_S)
    assert scaler.stop() == 0
    assert lease_holder(cluster, namespace) == ""


def test_a_successor_of_a_rayservice_gets_the_live_count_and_no_other_change(
    cluster: Cluster, nodes: FakeNodes, namespace: str, scaler: Scaler, wait: Waiter
) -> None:
    """The RayService's status is the test's to write: its pods are fake, and KubeRay would wait for Serve for ever."""
    spec = {"serveConfigV2": "applications: []\n", "rayClusterConfig": cluster_spec(nodes, 2), "managedBy": ELSEWHERE}
    body = {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "svc"}, "spec": spec}
    cluster.create(body, namespace)
    cluster.create(worker_group_scale("svc", kind="RayService", replicas=3), namespace)
    target = Target(cluster, namespace, "svc", 2)
    wait("ClusterNotReady", lambda: target.ready()[0] == "ClusterNotReady", SOON_S, last_seen=target.ready)
    assert "no RayCluster yet" in target.ready()[1]

    labels = {"ray.io/originated-from-cr-name": "svc", "ray.io/originated-from-crd": "RayService"}
    old, new = (Target(cluster, namespace, name, 2) for name in ("svc-aaaaa", "svc-bbbbb"))
    cluster.create(ray_cluster(old.name, cluster_spec(nodes, 2), labels=labels), namespace)
    write_status(cluster, namespace, activeServiceStatus={"rayClusterName": old.name})
    wait("three gangs", lambda: len(old.gangs()) == 3, SOON_S, last_seen=target.ready)

    cluster.create(ray_cluster(new.name, cluster_spec(nodes, 2), labels=labels), namespace)
    write_status(cluster, namespace, pendingServiceStatus={"rayClusterName": new.name})
    wait("three in the successor", lambda: len(new.gangs()) == 3, SOON_S, last_seen=target.ready)
    wait("Scaled", lambda: target.ready()[0] == "Scaled", SOON_S, last_seen=target.ready)
    assert target.scale()["status"]["selector"] == f"ray.io/cluster={old.name},ray.io/group=gpu"
    assert len(old.gangs()) == 3

    write_status(cluster, namespace, activeServiceStatus={"rayClusterName": new.name}, pendingServiceStatus=None)
    selector = f"ray.io/cluster={new.name},ray.io/group=gpu"
    wait("followed", lambda: target.scale()["status"]["selector"] == selector, SOON_S, last_seen=target.scale)
    target.ask(1)
    wait("one gang", lambda: len(new.gangs()) == 1, SOON_S, last_seen=target.ready)
    assert len(old.gangs()) == 3, "the old cluster is KubeRay's to remove"


def write_status(cluster: Cluster, namespace: str, **status: Any) -> None:
    cluster.patch(RAY_SERVICE, "svc", namespace, {"status": status}, "status")
