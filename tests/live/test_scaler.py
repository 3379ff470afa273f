"""The scaler on a real API server with the real KubeRay, on nodes that KWOK plays: whole gangs, whatever happens."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.live.support import scaler_judge
from tests.live.support.cluster import Cluster
from tests.live.support.fake_nodes import FakeNodes, pool
from tests.live.support.scaler import (
    GROUP,
    SCALE,
    Scaler,
    Target,
    cluster_spec,
    install_crd,
    ray_cluster,
    running,
    worker_group_scale,
)  # fmt: skip
from tests.live.support.upgrades import RAY_CLUSTER
from tests.live.support.waiting import Waiter

pytestmark = [pytest.mark.live, pytest.mark.needs("kuberay", "kwok")]

SOON_S, SETTLED_S = 60, 120
OPERATIONS, ROUNDS = 1000, 20
WEIGHTS = {"ask": 30, "idle": 30, "delete": 15, "rewrite": 12, "bounds": 8, "kill": 1}
HOSTS = {"single-a": 1, "single-b": 1, "gang-a": 2, "gang-b": 2}
HOLD = "llm-ray.io/hold"


@pytest.fixture(scope="module", autouse=True)
def _crd(cluster: Cluster) -> None:
    install_crd(cluster)


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[FakeNodes]:
    with pool(cluster) as made:
        made.add(2)
        yield made


@pytest.fixture
def scaler(nodes: FakeNodes, cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Scaler]:
    """The nodes come before the namespace, and so go after it."""
    with running(cluster, namespace, tmp_path) as made:
        yield made


def make(cluster: Cluster, nodes: FakeNodes, namespace: str, name: str, hosts: int, replicas: int) -> Target:
    cluster.create(ray_cluster(name, cluster_spec(nodes, hosts)), namespace)
    cluster.create(worker_group_scale(name, replicas=replicas), namespace)
    return Target(cluster, namespace, name, hosts)


def effective(target: Target) -> int:
    spec = target.scale()["spec"]
    count = min(max(spec["replicas"], spec.get("minReplicas", 0)), spec.get("maxReplicas", 8))
    return int(min(count, 8))


def unsettled(target: Target) -> str:
    """What is not yet as it is to be; empty when all is."""
    wanted, gangs, group = effective(target), target.gangs(), target.group()
    status = target.scale().get("status") or {}
    halves = {name: len(pods) for name, pods in gangs.items() if len(pods) != target.hosts}
    ending = [name for name, pods in gangs.items() if any(pod["metadata"].get("deletionTimestamp") for pod in pods)]
    named = set((group.get("scaleStrategy") or {}).get("workersToDelete") or [])
    existing = {pod["metadata"]["name"] for pods in gangs.values() for pod in pods}
    checks = {
        f"halves {halves}": not halves,
        f"ending {ending}": not ending,
        f"{len(gangs)} gangs": len(gangs) == wanted,
        f"spec.replicas {group['replicas']}": group["replicas"] == wanted,
        f"named {named & existing}": not named & existing,
        f"status {status.get('replicas')}": status.get("replicas") == wanted,
        f"{target.ready()}": target.ready()[0] == "Scaled",
    }
    wrong = [text for text, is_fine in checks.items() if not is_fine]
    return f"{target.name}, {wanted} wanted: {', '.join(wrong)}" if wrong else ""


def settle(wait: Waiter, *targets: Target, scaler: Scaler | None = None) -> None:
    """`scaler`: one that may end by itself, when the machine is too busy to renew its short Lease."""

    def is_settled(target: Target) -> bool:
        if scaler is not None:
            scaler.keep_alive()
        return not unsettled(target)

    for target in targets:
        what = f"{target.name} as wanted"
        wait(what, partial(is_settled, target), SETTLED_S, last_seen=partial(unsettled, target))


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_count_becomes_whole_gangs_and_the_idle_ones_go_first(
    hosts: int, cluster: Cluster, nodes: FakeNodes, namespace: str, scaler: Scaler, wait: Waiter
) -> None:
    target = make(cluster, nodes, namespace, "rc", hosts, 4)
    settle(wait, target)
    status = target.scale()["status"]
    assert status["selector"] == f"ray.io/cluster=rc,ray.io/group={GROUP}"
    assert len(cluster.pods(namespace, status["selector"])) == 4 * hosts

    before = target.gangs()
    idle = sorted(before)[1:3]
    target.set_idle(idle[0], "2026-01-01T01:00:00Z")
    target.set_idle(idle[1], "2026-01-01T00:00:00Z")  # for longer
    target.ask(3)
    settle(wait, target)
    assert before.keys() - target.gangs().keys() == {idle[1]}
    target.ask(2)
    settle(wait, target)
    assert before.keys() - target.gangs().keys() == set(idle)
    assert {pod["metadata"]["name"] for pods in target.gangs().values() for pod in pods} <= {
        pod["metadata"]["name"] for pods in before.values() for pod in pods
    }

    told = [one["message"] for one in target.events() if one["reason"] == "ScalingDown"]
    assert len(told) == 2
    for gang, hour in zip(idle, (1, 0), strict=True):
        assert any(f"removes {gang} (idle since 2026-01-01T{hour:02}:00:00Z)" in text for text in told)
    objects = [target.scale(), cluster.get(RAY_CLUSTER, "rc", namespace) or {}, *target.pods()]
    assert [one["metadata"].get("finalizers") for one in objects] == [None] * len(objects)
    assert not any("kopf" in str(one["metadata"].get("annotations")) for one in objects)


def test_a_scaler_that_is_gone_keeps_nothing_from_being_deleted(
    cluster: Cluster, nodes: FakeNodes, namespace: str, scaler: Scaler, wait: Waiter
) -> None:
    target = make(cluster, nodes, namespace, "rc", 1, 2)
    settle(wait, target)
    scaler.kill()
    cluster.delete(SCALE, "rc", namespace)
    assert cluster.get(SCALE, "rc", namespace) is None
    cluster.delete(RAY_CLUSTER, "rc", namespace)
    wait("the pods are gone", lambda: not target.pods(), SOON_S)


@pytest.mark.parametrize("hosts", [1, 2])
def test_while_a_gang_takes_its_time_to_end_no_other_goes_with_the_next(
    hosts: int, cluster: Cluster, nodes: FakeNodes, namespace: str, scaler: Scaler, wait: Waiter
) -> None:
    target = make(cluster, nodes, namespace, "rc", hosts, 4)
    settle(wait, target)
    before = target.gangs()
    slow, next_one = sorted(before)[:2]
    for pod in before[slow]:
        body = {"metadata": {"finalizers": [HOLD]}}
        cluster.patch("Pod", pod["metadata"]["name"], namespace, body)
    target.set_idle(slow, "2026-01-01T00:00:00Z")
    target.ask(3)

    def ending() -> set[str]:
        gone = {
            name for name, pods in target.gangs().items() if any(p["metadata"].get("deletionTimestamp") for p in pods)
        }
        return gone | (before.keys() - target.gangs().keys())

    wait(f"{slow} ends", lambda: ending() == {slow}, SOON_S)
    wait("told", lambda: target.ready()[0] == "ScalingDown", SOON_S, last_seen=target.ready)
    assert slow in target.ready()[1]
    assert target.scale()["status"]["replicas"] == 3
    target.set_idle(next_one, "2026-01-01T00:00:00Z")
    target.ask(2)
    names = {pod["metadata"]["name"] for gang in (slow, next_one) for pod in before[gang]}
    wait(
        "both named",
        lambda: set(target.group()["scaleStrategy"]["workersToDelete"]) == names,
        SOON_S,
        last_seen=target.group,
    )
    for pod in before[slow]:
        cluster.patch("Pod", pod["metadata"]["name"], namespace, {"metadata": {"finalizers": None}})
    settle(wait, target)
    assert before.keys() - target.gangs().keys() == {slow, next_one}


def test_a_rewrite_by_someone_else_is_mended(
    cluster: Cluster, nodes: FakeNodes, namespace: str, scaler: Scaler, wait: Waiter
) -> None:
    target = make(cluster, nodes, namespace, "rc", 2, 3)
    settle(wait, target)
    for count in (1, 5, 0):
        target.rewrite(count)
        wait("noticed", lambda: target.group()["replicas"] == 3, SOON_S, last_seen=target.group)
        settle(wait, target)


def act(operation: str, chance: random.Random, target: Target, scaler: Scaler) -> None:
    gangs = target.gangs() if operation in ("idle", "delete") else {}
    if operation == "ask":
        target.ask(chance.randrange(6))
    elif operation == "rewrite":
        target.rewrite(chance.randrange(6))
    elif operation == "bounds":
        low, high = sorted((chance.randrange(4), chance.randrange(1, 7)))
        body = {"spec": {"minReplicas": low, "maxReplicas": high}}
        target.cluster.patch(SCALE, target.name, target.namespace, body)
    elif operation == "kill":
        scaler.kill()
        scaler.start()
    elif gangs and operation == "idle":
        since = f"2026-01-01T{chance.randrange(24):02}:00:00Z" if chance.random() < 0.6 else None
        target.set_idle(chance.choice(sorted(gangs)), since)
    elif gangs:
        pod = chance.choice(gangs[chance.choice(sorted(gangs))])
        target.cluster.delete("Pod", pod["metadata"]["name"], target.namespace, grace_s=0)


@pytest.mark.timeout(900)
def test_after_a_thousand_random_operations_and_deaths_every_count_is_right_and_no_busy_gang_went_before_an_idle_one(
    cluster: Cluster, nodes: FakeNodes, namespace: str, scaler: Scaler, wait: Waiter
) -> None:
    chance = random.Random(6)
    watcher = scaler_judge.Watcher(cluster, namespace, HOSTS)
    targets = [make(cluster, nodes, namespace, name, hosts, 2) for name, hosts in HOSTS.items()]
    settle(wait, *targets)
    deaths, began = 0, time.monotonic()
    for number in range(ROUNDS):
        for operation in chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=OPERATIONS // ROUNDS):
            deaths += operation == "kill"
            act(operation, chance, chance.choice(targets), scaler)
            scaler.keep_alive()
        settle(wait, *targets, scaler=scaler)
        print(f"round {number}: {time.monotonic() - began:.0f} s, {deaths} deaths")
    watcher.catch_up(targets[0].name)
    judged = [scaler_judge.faults(watcher.history, one) for one in scaler_judge.decisions(scaler.text())]
    watcher.stop()
    assert [fault for found, _ in judged for fault in found] == []
    print(f"{len(judged)} decisions, {sum(busy for _, busy in judged)} busy gangs chosen, {deaths} deaths")
    assert len(judged) >= 100
    assert deaths >= 5
    assert "Traceback" not in scaler.text()
