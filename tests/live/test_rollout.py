"""A RayService that serves through its rollouts: without room for the new version, back again, and over to the new one.

One engine of one pod answers. What is scaled is a second worker group whose pods are on KWOK's nodes: KubeRay, Helm and
the scalers treat it as any other, and it costs nothing. In mode serve Ray's autoscaler writes its count; in mode hpa
the test does, for the scaler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from tests.live.conftest import ModelFor
from tests.live.support.clients import client_pod
from tests.live.support.cluster import Cluster
from tests.live.support.fake_nodes import FakeNodes, pool
from tests.live.support.gang import unplaced
from tests.live.support.helm import CHART, Helm
from tests.live.support.release import Release as Serving
from tests.live.support.rollout import SEAT, Asker, ByRay, ByTest, Seats, asker, cluster_of, condition, seats
from tests.live.support.upgrades import RAY_CLUSTER, WAYS, ByHelm, Release, Way, merged
from tests.live.support.waiting import Waiter

pytestmark = [pytest.mark.live, pytest.mark.needs("nodes", "image", "kuberay", "kwok"), pytest.mark.timeout(900)]

LAPTOP = yaml.safe_load((CHART / "ci" / "laptop-cpu.yaml").read_text())
CRD = CHART.parent / "llm-ray-scaler" / "files" / "crds" / "llm-ray.io_workergroupscales.yaml"
MODEL = "smollm2-135m-instruct"
LIVE = 4
CPUS = 16
SOON_S, SWITCH_S = 90, 300
DELETION_DELAY_S = 10
NEW_PODS = {"serve": {"env": {"VERSION": "2"}}}


def serving_values(mode: str, nodes: FakeNodes, model: Mapping[str, Any]) -> dict[str, Any]:
    own = {
        "autoscaling": {"mode": mode},
        "engine": {"tensorParallelSize": 1, "numCpusPerRank": 1, "maxModelLen": 256, "kvCacheBytes": 33554432},
        "serve": {"deployment": {"minReplicas": 1, "maxReplicas": 1}},
        "rollout": {"deletionDelaySeconds": DELETION_DELAY_S},
        "workerDefaults": {"numOfHosts": 1, "topologySpreadConstraints": []},
        "workers": {
            "real": {
                "minReplicas": 1,
                "maxReplicas": 1,
                # Two of them, and two heads, beside whatever the cluster's two nodes run.
                "resources": {"requests": {"cpu": "200m"}, "limits": {SEAT: 1}},
            },
            "scaled": {
                "minReplicas": 1,
                "maxReplicas": 8,
                "resources": {"requests": {"cpu": CPUS}, "limits": {"cpu": CPUS}},
                **nodes.placement,
            },
        },
    }
    return merged(merged(LAPTOP, own), model)


@dataclass(frozen=True)
class Rollout:
    """The release that all of this is about, and what it is watched and moved with."""

    release: Release
    values: dict[str, Any]
    scaler: ByTest | ByRay
    seats: Seats
    asker: Asker

    @property
    def active(self) -> str:
        return cluster_of(self.release.service(), "active")

    @property
    def pending(self) -> str:
        return cluster_of(self.release.service(), "pending")

    def wait(self, what: str, probe: Any, seconds: float = SOON_S) -> Any:
        return self.release.wait(what, probe, seconds, last_seen=lambda: self.release.service().get("status"))

    def observed(self) -> None:
        """The operator has seen the RayService as it is now. It says so in the conditions alone."""

        def is_seen() -> bool:
            service = self.release.service()
            return (
                condition(service, "UpgradeInProgress").get("observedGeneration") == service["metadata"]["generation"]
            )

        self.wait("the operator sees the change", is_seen)

    def new_pending(self, *known: str) -> str:
        """A cluster that has just been made for the next version, scaled as the scaler would at once."""
        self.wait(
            "a cluster for the new version", lambda: self.pending not in ("", *known) and self._exists(self.pending)
        )
        name = self.pending
        self.scaler.scale(self.release, LIVE, name)
        return name

    def _exists(self, name: str) -> bool:
        return name in self.release.generated()

    def answers_go_on(self, count: int = 3) -> None:
        before = self.asker.answers()
        self.wait(f"{count} more answers", lambda: self.asker.answers() >= before + count, SWITCH_S)
        assert self.asker.failures() == []


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[FakeNodes]:
    """They come before the namespace of the pods, and so go after it; as do the seats."""
    with pool(cluster) as made:
        made.add(3)
        yield made


@pytest.fixture
def places(cluster: Cluster) -> Iterator[Seats]:
    with seats(cluster) as made:
        made.offer(1)
        yield made


@pytest.fixture(params=["hpa", "serve"])
def rollout(
    request: pytest.FixtureRequest, cluster: Cluster, wait: Waiter, helm: Helm, nodes: FakeNodes, places: Seats,
    namespace: str, model_for: ModelFor, image: str,
) -> Rollout:  # fmt: skip
    """A release that serves, with a count that is its scaler's, and a client that asks it."""
    cluster.apply(yaml.safe_load(CRD.read_text()))
    values = serving_values(request.param, nodes, model_for(namespace))
    release = Release(cluster, wait, namespace, group="scaled")
    ByHelm(helm).install(release, values)
    serving = Serving(cluster, namespace)
    serving.wait_until_it_serves(wait, SWITCH_S)
    cluster.create(asker(client_pod("client", image), serving.host, MODEL), namespace)
    scaler = ByTest() if request.param == "hpa" else ByRay(CPUS)
    made = Rollout(release, values, scaler, places, Asker(cluster, namespace, "client"))
    made.wait("an active cluster", lambda: made.active)
    scaler.scale(release, LIVE, made.active)
    release.wait_for_pods(LIVE, made.active)
    return made


def test_a_rollout_waits_for_room_can_be_taken_back_and_moves_over_without_a_failed_request(
    rollout: Rollout, helms: Mapping[str, Helm]
) -> None:
    release, values, helm = rollout.release, rollout.values, ByHelm(helms["helm4"])
    old = rollout.active
    rollout.answers_go_on()
    for name in ("helm4", "helm4-client-side", "helm3"):
        leaves_the_running_cluster_alone(rollout, WAYS[name](helms), name)
    server_side = ByHelm(helms["helm4"], ("--server-side=true",))
    leaves_the_running_cluster_alone(rollout, server_side, "again")

    before = helm.helm.history(release.name, release.namespace)[-1]["revision"]
    helm.upgrade(release, merged(values, NEW_PODS))
    second = rollout.new_pending()
    says_what_it_waits_for(rollout, old, second)
    leaves_the_running_cluster_alone(rollout, helm, "rollout", NEW_PODS)
    assert (rollout.active, rollout.pending) == (old, second)
    assert release.count(second) == LIVE
    rollout.answers_go_on()

    helm.rollback(release, before)
    third = rollout.new_pending(second)
    rollout.wait("the cluster that was given up is gone", lambda: second not in release.generated())
    assert release.generated() == [old, third]
    rollout.answers_go_on()

    rollout.seats.offer(2)
    rollout.wait("the switch", lambda: rollout.active == third, SWITCH_S)
    leaves_the_running_cluster_alone(rollout, helm, "switched")
    rollout.wait("the old cluster is gone", lambda: release.generated() == [third])
    assert release.count(third) == LIVE
    assert len(release.pods(third)) == LIVE
    rollout.answers_go_on()
    if isinstance(rollout.scaler, ByTest):
        a_new_operator_resets_the_count(rollout, third)


def leaves_the_running_cluster_alone(
    rollout: Rollout, way: Way, label: str, below: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Upgrades with nothing, something unrelated, and limits of the group itself that have changed."""
    release, active, clusters = rollout.release, rollout.active, rollout.release.generated()
    values = merged(rollout.values, below)
    unrelated = merged(values, {"commonLabels": {"upgraded-by": label}})
    same_group = merged(unrelated, {"workers": {"scaled": {"maxReplicas": 8 + len(label)}}})
    for changed in (values, unrelated, same_group):
        way.upgrade(release, changed)
        rollout.observed()
        assert rollout.active == active
        assert set(release.generated()) <= set(clusters), "no other cluster is started"
        assert release.count(active) == LIVE


def a_new_operator_resets_the_count(rollout: Rollout, name: str) -> None:
    """By an annotation it sees that another version wrote a cluster, and writes it anew, as docs/upgrading.md warns."""
    release = rollout.release
    older = {"metadata": {"annotations": {"ray.io/kuberay-version": "v1.5.0"}}}
    release.cluster.patch(RAY_CLUSTER, name, release.namespace, older)
    rollout.wait("the count that the chart says", lambda: release.count(name) == 1)


def says_what_it_waits_for(rollout: Rollout, old: str, new: str) -> None:
    """As docs/upgrading.md says how to look: the RayService names the cluster, whose pods name the resource."""
    service = rollout.release.service()
    assert (cluster_of(service, "active"), cluster_of(service, "pending")) == (old, new)
    assert condition(service, "Ready")["status"] == "True"
    upgrading = condition(service, "UpgradeInProgress")
    assert (upgrading["status"], upgrading["reason"]) == ("True", "BothActivePendingClustersExist")
    labels = f"ray.io/cluster={new},ray.io/group=real"
    release = rollout.release

    def reasons() -> list[str]:
        return unplaced(release.cluster.pods(release.namespace, labels))

    [reason] = rollout.wait("a pod that says what it lacks", reasons)
    assert reason.startswith("Unschedulable: ")
    assert f" Insufficient {SEAT}" in reason
