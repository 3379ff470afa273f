"""Ten upgrades of a release that the scaler scales: neither Helm nor a GitOps tool's apply moves a pod of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.live.support.cluster import Cluster
from tests.live.support.helm import Helm
from tests.live.support.scaler import SCALE, install_crd, running
from tests.live.support.upgrades import WAYS, Release, waiting_values
from tests.live.support.waiting import Waiter

pytestmark = [pytest.mark.live, pytest.mark.needs("kuberay")]

LIVE = 4
UPGRADES = 10


@pytest.mark.parametrize("way", ["helm4", "kubectl-server-side"])
def test_ten_upgrades_leave_the_replicas_where_the_scaler_put_them(
    way: str, helms: Mapping[str, Helm], cluster: Cluster, wait: Waiter, namespace: str, tmp_path: Path
) -> None:
    install_crd(cluster)
    release, applied = Release(cluster, wait, namespace), WAYS[way](helms)
    scale = f"{release.fullname}-{release.group}"
    with running(cluster, namespace, tmp_path):
        applied.install(release, waiting_values("hpa"))
        name = release.first_generated()
        cluster.patch(SCALE, scale, namespace, {"spec": {"replicas": LIVE}}, subresource="scale")
        pods = release.wait_for_pods(LIVE, name)
        for number in range(UPGRADES):
            unrelated = {"commonLabels": {"upgrade": str(number)}}
            same_group = {"workers": {"worker": {"maxReplicas": 8 + number}}}
            applied.upgrade(release, waiting_values("hpa", ({}, unrelated, same_group)[number % 3]))
            assert (release.count(name), release.pods(name)) == (LIVE, pods)
        release.let_the_operator_look_again()
        assert release.generated() == [name]
        assert (release.count(name), release.pods(name)) == (LIVE, pods)
    assert (cluster.get(SCALE, scale, namespace) or {})["spec"]["replicas"] == LIVE
