"""Upgrades by Helm 3, Helm 4 and kubectl, client- and server-side, on the real API server with the real operator.

What counts here is who owns which replica count, so the pods are objects that no node takes; test_rollout.py has the
same with Ray that serves. The scalers are the test's own writes, JSON patches of one number as theirs are: Ray's
autoscaler needs a Ray that runs, and the scaler of mode hpa is a chart of its own.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

import pytest
import yaml

from tests.live.conftest import MakeNamespace
from tests.live.support.cluster import Cluster
from tests.live.support.helm import Helm, HelmError
from tests.live.support.upgrades import (
    AUTOSCALER,
    NOWHERE,
    RAY_CLUSTER,
    SCALER,
    SOON_S,
    WAYS,
    ApplyError,
    ByHelm,
    Release,
    Way,
    merged,
    waiting_values,
)
from tests.live.support.waiting import Waiter
from tests.support.chart import CHART

pytestmark = [pytest.mark.live, pytest.mark.needs("kuberay")]

CRD = CHART.parent / "llm-ray-scaler" / "files" / "crds" / "llm-ray.io_workergroupscales.yaml"
SCALERS = {"serve": AUTOSCALER, "hpa": SCALER}
LIVE = 4
"""What the scaler wrote."""

UNCHANGED: dict[str, object] = {}
UNRELATED = {"commonLabels": {"team": "nlp"}, "engine": {"maxNumSeqs": 32}, "networkPolicy": {"enabled": False}}
SAME_GROUP = {"workers": {"worker": {"minReplicas": 2, "maxReplicas": 6}}}
NEW_IMAGE = {"image": {"tag": "2"}}
THREE = {"workers": {"worker": {"replicas": 3}}}
IMAGE_1, IMAGE_2 = "localhost/never-started:1", "localhost/never-started:2"


@pytest.fixture(scope="module", autouse=True)
def _scaler_crd(cluster: Cluster) -> None:
    cluster.apply(yaml.safe_load(CRD.read_text()))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, helms: Mapping[str, Helm]) -> Way:
    return WAYS[request.param](helms)


@pytest.fixture(scope="module")
def shared_namespace(make_module_namespace: MakeNamespace) -> str:
    """Of all releases of this module: a namespace takes longer to go than a test to run."""
    return make_module_namespace()


@pytest.fixture
def release(cluster: Cluster, wait: Waiter, shared_namespace: str) -> Release:
    return Release(cluster, wait, shared_namespace, f"r{uuid.uuid4().hex[:6]}")


@pytest.mark.parametrize("mode", SCALERS)
def test_upgrades_of_a_rayservice_leave_the_scalers_count_alone(mode: str, way: Way, release: Release) -> None:
    way.install(release, waiting_values(mode))
    name = release.first_generated()
    release.scale(LIVE, name, SCALERS[mode])
    pods = release.wait_for_pods(LIVE, name)
    for change in (UNCHANGED, UNRELATED, SAME_GROUP):
        way.upgrade(release, waiting_values(mode, change))
        assert release.count(name) == LIVE
    if isinstance(way, ByHelm):
        way.rollback(release, 1)
    release.let_the_operator_look_again()
    assert release.generated() == [name]
    assert release.count(name) == LIVE
    assert release.pods(name) == pods


def test_upgrades_of_a_raycluster_pass_and_the_count_is_helms(way: Way, release: Release) -> None:
    way.install(release, waiting_values("fixed"))
    first = release.wait_for_pods(1)
    for change in (UNCHANGED, UNRELATED):
        way.upgrade(release, waiting_values("fixed", change))
        assert release.count() == 1
        assert release.pods() == first
    way.upgrade(release, waiting_values("fixed", THREE))
    assert release.count() == 3
    assert first.items() < release.wait_for_pods(3).items()

    way.upgrade(release, waiting_values("fixed", THREE, NEW_IMAGE))
    assert release.count() == 3
    release.wait_for_pods(3, image=IMAGE_2)
    if isinstance(way, ByHelm):
        way.rollback(release, 1)
        assert release.count() == 1
        release.wait_for_pods(1, image=IMAGE_1)


@pytest.mark.parametrize("mode", ["fixed", "hpa"])
def test_a_release_may_change_between_helm_3_and_helm_4_and_between_client_and_server_side(
    mode: str, helms: Mapping[str, Helm], release: Release
) -> None:
    """Each upgrade changes the worker group, so that any other owner of it would be a conflict."""
    three, four = ByHelm(helms["helm3"]), ByHelm(helms["helm4"])
    four_server_side = ByHelm(helms["helm4"], ("--server-side=true",))
    three.install(release, waiting_values(mode))
    name = release.first_generated() if mode == "hpa" else release.fullname
    for number, way in enumerate((four, four_server_side, three, four_server_side), start=2):
        size = {"replicas": number} if mode == "fixed" else {"maxReplicas": 8 + number}
        way.upgrade(release, waiting_values(mode, {"workers": {"worker": size}}))
        if mode == "hpa":
            release.scale(LIVE + number, name)
        assert release.count(name) == (number if mode == "fixed" else LIVE + number)


KEPT, RESET, CONFLICT = "kept", "reset", "conflict"
OUTCOMES = {
    "helm3": (KEPT, RESET),
    "helm4": (CONFLICT, CONFLICT),
    "helm4-client-side": (KEPT, RESET),
    "kubectl": (RESET, RESET),
    "kubectl-server-side": (CONFLICT, CONFLICT),
}
"""Of an upgrade that changes nothing, and of one that changes the image: the table in docs/upgrading.md."""

AUTOSCALED = {"kind": "RayCluster", "autoscaling": {"allowReplicaReset": True}}
CHART_SAYS = {"nothing": (waiting_values("serve", AUTOSCALED), 0), "one": (waiting_values("fixed"), 1)}


def test_a_raycluster_with_an_autoscaler_is_refused(way: Way, release: Release) -> None:
    refused = waiting_values("serve", AUTOSCALED, {"autoscaling": {"allowReplicaReset": False}})
    with pytest.raises((ApplyError, HelmError), match=r"autoscaling\.allowReplicaReset"):
        way.install(release, refused)
    assert release.cluster.get(RAY_CLUSTER, release.fullname, release.namespace) is None


@pytest.mark.parametrize("said", CHART_SAYS)
@pytest.mark.parametrize("name", WAYS)
def test_an_upgrade_of_a_raycluster_that_another_scales_resets_the_count_or_fails(
    name: str, said: str, helms: Mapping[str, Helm], release: Release
) -> None:
    way, (values, reset) = WAYS[name](helms), CHART_SAYS[said]
    way.install(release, values)
    release.scale(LIVE, manager=AUTOSCALER)
    for change, outcome in zip((UNCHANGED, NEW_IMAGE), OUTCOMES[name], strict=True):
        assert upgraded(way, release, merged(values, change)) == outcome
        assert release.count() == (reset if outcome == RESET else LIVE)
        release.scale(LIVE, manager=AUTOSCALER)
    if CONFLICT in OUTCOMES[name]:
        way.upgrade(release, merged(values, NEW_IMAGE), force=True)
        assert release.count() == reset
    elif isinstance(way, ByHelm):
        way.rollback(release, 1)
        assert release.count() == reset


def upgraded(way: Way, release: Release, values: Mapping[str, object]) -> str:
    """What became of the count that the scaler wrote."""
    try:
        way.upgrade(release, values)
    except ApplyError as error:
        if re.search(rf'conflict with "{AUTOSCALER}".*: \.spec\.workerGroupSpecs', str(error)):
            return CONFLICT
        raise
    return KEPT if release.count() == LIVE else RESET


def test_a_group_that_is_added_last_resets_the_counts_and_any_other_starts_a_new_cluster(
    helm: Helm, release: Release
) -> None:
    """KubeRay's doing, which docs/upgrading.md warns of: the scalers have to write their counts again."""
    way, zone_b, first = ByHelm(helm), {"workers": {"zone-b": NOWHERE}}, {"workers": {"first": NOWHERE}}
    way.install(release, waiting_values("hpa"))
    name = release.first_generated()
    release.scale(LIVE, name)
    way.upgrade(release, waiting_values("hpa", zone_b))
    release.wait("the second group", lambda: len(release.ray_cluster(name)["spec"]["workerGroupSpecs"]) == 2, SOON_S)
    assert release.generated() == [name]
    assert release.count(name) == 1

    way.upgrade(release, waiting_values("hpa", zone_b, first))
    release.wait("another cluster", lambda: release.generated()[-1] != name, SOON_S, last_seen=release.generated)
