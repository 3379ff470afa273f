"""Gangs by the real Volcano, KubeRay and Kubernetes' own scheduler, on GPU nodes that KWOK plays: all pods or none.

The operator has one batch scheduler for the whole cluster: volcano for gang.provider kuberay, none for podgroup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.live.support.batch_scheduler import batch_scheduler
from tests.live.support.cluster import Cluster, Object
from tests.live.support.fake_nodes import GPU, VF, FakeNodes, pool
from tests.live.support.gang import GROUP_NAME, HOSTS, INSTANCE, Release, gang_values, unplaced
from tests.live.support.helm import Helm
from tests.live.support.waiting import Waiter

pytestmark = [pytest.mark.live, pytest.mark.needs("kuberay", "volcano", "kwok")]

HEAD = 1
MEMBERS = HEAD + 4
BOUND_S = 30
SOON_S = 60

MakeRelease = Callable[..., Release]


@pytest.fixture(scope="module", params=["podgroup", "kuberay"])
def provider(request: pytest.FixtureRequest, cluster: Cluster, wait: Waiter) -> Iterator[str]:
    """gang.provider, with the operator as it has to be for it."""
    with batch_scheduler(cluster, wait, "volcano" if request.param == "kuberay" else ""):
        yield request.param


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[FakeNodes]:
    with pool(cluster) as made:
        yield made


@pytest.fixture
def release(
    nodes: FakeNodes, cluster: Cluster, helm: Helm, namespace: str, wait: Waiter
) -> Iterator[Callable[..., Release]]:
    """Makes releases, uninstalled at the end. The nodes come before the namespace, and so go after it."""

    def make(name: str = "demo", by: Helm = helm) -> Release:
        return Release(cluster, by, namespace, name)

    yield make
    for name in helm.releases(namespace):
        helm.uninstall(name, namespace)
    wait("the pods are gone", lambda: not cluster.pods(namespace, INSTANCE), SOON_S)


def wait_for_pods(wait: Waiter, one: Release, count: int) -> list[Object]:
    def there() -> list[Object]:
        found = one.pods()
        return found if len(found) == count else []

    return wait(f"{count} pods of {one.name}", there, SOON_S, watching=one.namespace, last_seen=lambda: one.pods())


def wait_until_bound(wait: Waiter, one: Release, count: int = MEMBERS, seconds: float = BOUND_S) -> None:
    what = f"{count} pods of {one.name} bound"
    wait(what, lambda: len(one.bound()) == count, seconds, watching=one.namespace, last_seen=one.bound)


def wait_for_complaint(wait: Waiter, one: Release, pattern: str) -> None:
    what = f"a PodGroup that says {pattern!r}"
    wait(what, lambda: re.search(pattern, one.complaint()), SOON_S, last_seen=one.complaint)


def wait_for_event(wait: Waiter, one: Release, *resources: str) -> None:
    """What the cluster as a whole has too little of, and that it is nothing else."""
    wanted = sorted(f"overused {name}" for name in resources)

    def said() -> bool:
        lists = [text.partition("resource in cluster is overused: ")[2] for text in one.events_of_group()]
        return any(sorted(text.split(", ")) == wanted for text in lists if text)

    what = f"an event of the PodGroup that says {wanted}"
    wait(what, said, SOON_S, last_seen=one.events_of_group)


def let_the_scheduler_look_again(wait: Waiter, cluster: Cluster, nodes: FakeNodes, namespace: str) -> None:
    """A pod that comes now and is placed shows that everything before it has been considered."""
    container = {"name": "never-started", "image": "localhost/never-started:1"}
    spec = {"schedulerName": "volcano", "containers": [container], **nodes.placement}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "later-"}, "spec": spec}
    name = cluster.create(pod, namespace)["metadata"]["name"]

    def is_bound() -> bool:
        return bool((cluster.get("Pod", name, namespace) or {"spec": {}})["spec"].get("nodeName"))

    wait(f"a place for {name}", is_bound, SOON_S)


def assert_nothing_is_bound(one: Release) -> None:
    assert len(one.pods()) == MEMBERS
    assert one.bound() == []


@pytest.mark.parametrize(
    ("provider", "kind"),
    [("podgroup", "RayCluster"), ("kuberay", "RayCluster"), ("kuberay", "RayService")],
    indirect=["provider"],
)
def test_nothing_is_bound_until_all_fits_and_the_pod_group_says_why(
    kind: str, provider: str, nodes: FakeNodes, release: MakeRelease, wait: Waiter
) -> None:
    demo = release()
    nodes.add(3)
    demo.install(gang_values(nodes, provider, kind=kind))
    wait_for_pods(wait, demo, MEMBERS)
    wait_for_complaint(wait, demo, f"NotEnoughResources: {MEMBERS}/{MEMBERS} tasks in gang unschedulable")
    wait_for_event(wait, demo, GPU, VF)
    assert_nothing_is_bound(demo)
    assert demo.group()["spec"]["minMember"] == MEMBERS
    assert {one["metadata"]["annotations"][GROUP_NAME] for one in demo.pods()} == {demo.group()["metadata"]["name"]}

    nodes.add(1, vfs=0)  # the GPUs of a fourth node, without its virtual functions
    wait_for_event(wait, demo, VF)
    assert_nothing_is_bound(demo)

    nodes.add(2, gpus=4, vfs=4)  # enough of everything, in pieces that are too small
    wait_for_complaint(wait, demo, "[34] Schedulable")  # three workers; the head is not tried after a worker has failed
    assert_nothing_is_bound(demo)

    nodes.add()
    wait_until_bound(wait, demo)
    wait("the PodGroup runs", lambda: demo.group()["status"]["phase"] == "Running", SOON_S)
    assert demo.complaint() == ""


@pytest.mark.parametrize("provider", ["podgroup"], indirect=True)
def test_without_a_gang_the_pods_that_fit_are_bound_and_hold_their_nodes(
    provider: str, nodes: FakeNodes, release: MakeRelease, wait: Waiter
) -> None:
    demo = release()
    nodes.add(3)
    demo.install(gang_values(nodes, "none"))
    wait_for_pods(wait, demo, MEMBERS)
    wait_until_bound(wait, demo, MEMBERS - 1)
    [reason] = wait("the last pod is refused", lambda: unplaced(demo.pods()), SOON_S)
    assert f"Insufficient {GPU}" in reason
    assert f"Insufficient {VF}" in reason
    assert demo.groups() == []


def test_two_releases_that_race_for_room_for_one_do_not_block_each_other(
    provider: str, nodes: FakeNodes, release: MakeRelease, wait: Waiter, cluster: Cluster, namespace: str
) -> None:
    racers = [release("one"), release("two")]
    values = gang_values(nodes, provider)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda racer: racer.install(values), racers))
    for racer in racers:
        wait_for_pods(wait, racer, MEMBERS)
        wait_for_complaint(wait, racer, "NotEnoughResources")
    nodes.add(4)

    def winners() -> list[Release]:
        return [racer for racer in racers if len(racer.bound()) == MEMBERS]

    wait("one of them has all its nodes", winners, BOUND_S, last_seen=lambda: [racer.bound() for racer in racers])
    let_the_scheduler_look_again(wait, cluster, nodes, namespace)
    [winner] = winners()
    [loser] = [racer for racer in racers if racer is not winner]
    assert_nothing_is_bound(loser)
    assert loser.complaint().startswith("NotEnoughResources")

    winner.uninstall()
    wait_until_bound(wait, loser)


@pytest.mark.parametrize(
    ("provider", "version"), [("podgroup", "helm3"), ("podgroup", "helm4"), ("kuberay", "helm4")], indirect=["provider"]
)
def test_the_gang_is_as_large_as_the_release_after_every_upgrade(
    provider: str, version: str, nodes: FakeNodes, release: MakeRelease, helms: Mapping[str, Helm], wait: Waiter
) -> None:
    demo = release(by=helms[version])
    nodes.add(6)
    demo.install(gang_values(nodes, provider, replicas=2))
    wait_until_bound(wait, demo)
    assert demo.group()["spec"]["minMember"] == MEMBERS
    for replicas in (3, 1, 0):
        members = HEAD + HOSTS * replicas
        demo.upgrade(gang_values(nodes, provider, replicas=replicas))
        wait_for_pods(wait, demo, members)
        wait_until_bound(wait, demo, members)
        wait(
            f"a gang of {members}",
            lambda members=members: demo.group()["spec"]["minMember"] == members == len(demo.pods()),
            SOON_S,
            last_seen=demo.groups,
        )
        wait("the gang runs", lambda: demo.group()["status"]["phase"] == "Running", SOON_S, last_seen=demo.groups)
