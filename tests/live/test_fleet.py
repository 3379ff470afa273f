"""A fleet at the size of a large cluster: 64 releases, each a gang of four pods, on 256 GPU nodes that KWOK plays.

What it costs, and what the same costs without our gangs, is in docs/benchmarks.md (`python -m bench.fleet`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.live.support.batch_scheduler import batch_scheduler
from tests.live.support.cluster import Cluster, Object
from tests.live.support.fake_nodes import GPU, FakeNodes, pool
from tests.live.support.fleet import MEMBERS, NODES, RELEASES, WORKERS, Fleet, fleet_values, is_bound, names, sizes
from tests.live.support.gang import POD_GROUP
from tests.live.support.helm import Helm
from tests.live.support.namespaces import Namespaces
from tests.live.support.waiting import Waiter

pytestmark = [pytest.mark.live, pytest.mark.needs("kuberay", "volcano", "kwok"), pytest.mark.timeout(900)]

BOUND_S = 120
GONE_S = 150


@pytest.fixture
def nodes(cluster: Cluster, wait: Waiter) -> Iterator[FakeNodes]:
    with batch_scheduler(cluster, wait, ""), pool(cluster) as made:
        made.add(NODES)
        yield made


@pytest.fixture
def fleet(nodes: FakeNodes, namespaces: Namespaces, helm: Helm) -> Iterator[Fleet]:
    """The namespace goes before the nodes, since without its node nobody confirms the end of a pod."""
    with namespaces.make("fleet", gone_s=GONE_S) as namespace:
        yield Fleet(helm, namespace, fleet_values(nodes, "podgroup"), names())


def test_64_gangs_of_four_pods_are_all_bound_on_256_nodes(fleet: Fleet, cluster: Cluster, wait: Waiter) -> None:
    fleet.install()

    def bound() -> list[Object]:
        found = [pod for pod in cluster.pods(fleet.namespace) if is_bound(pod)]
        return found if len(found) == RELEASES * MEMBERS else []

    def so_far() -> str:
        pods = cluster.pods(fleet.namespace)
        return f"{len(pods)} pods, bound of each release: {sizes(filter(is_bound, pods))}"

    pods = wait(f"{RELEASES * MEMBERS} bound pods", bound, BOUND_S, last_seen=so_far)
    assert sizes(pods) == Counter(dict.fromkeys(fleet.names, MEMBERS))
    workers = [pod["spec"]["nodeName"] for pod in pods if asks_for_gpus(pod)]
    assert len(workers) == len(set(workers)) == RELEASES * WORKERS

    def running() -> list[Object]:
        groups = cluster.list(POD_GROUP, fleet.namespace)
        return groups if all(one["status"].get("phase") == "Running" for one in groups) else []

    groups = wait("every gang runs", running, BOUND_S)
    assert [one["spec"]["minMember"] for one in groups] == [MEMBERS] * RELEASES


def asks_for_gpus(pod: Object) -> bool:
    return any(GPU in (one["resources"].get("limits") or {}) for one in pod["spec"]["containers"])
