"""What the live suite itself promises: early stops with evidence, a folder for each failure, errors and never skips."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pykube
import pytest

from tests.live.conftest import EVIDENCE, ROOT
from tests.live.support.clients import client_pod
from tests.live.support.cluster import Cluster
from tests.live.support.namespaces import Namespaces
from tests.live.support.waiting import Waiter, WaitError

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

NEVER_S = 150
ON_PURPOSE = "tests/live/support/fails_on_purpose.py"


def run_pytest(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run(command, cwd=ROOT, env=inherited, capture_output=True, text=True, timeout=240)


def test_without_a_cluster_tests_fail_and_say_how_to_get_one(tmp_path: Path) -> None:
    done = run_pytest(ON_PURPOSE, f"--kube-config={tmp_path}/none")
    assert done.returncode == 1
    assert "start the lab with `make lab-up`" in done.stdout
    assert "1 error in" in done.stdout
    assert "skipped" not in done.stdout


def test_a_test_that_lacks_something_names_the_profile_that_has_it(cluster: Cluster, image: str) -> None:
    from tests.live.support import needs

    with pytest.raises(needs.NeedError, match=r"localhost/nowhere:1 is not on .*: `make image`"):
        needs.check(cluster, ("nodes", "image"), "localhost/nowhere:1", image_list_s=0)
    with pytest.raises(ValueError, match="unknown need 'kubray'"):
        needs.check(cluster, ("kubray",), image)


def test_pytest_helm_charts_sees_the_same_cluster(kube_cluster: Any, cluster: Cluster) -> None:
    theirs = {node.name for node in pykube.Node.objects(kube_cluster.kube_client)}
    assert theirs == {node["metadata"]["name"] for node in cluster.list("Node")}


def test_a_wait_ends_when_the_image_is_not_there(cluster: Cluster, wait: Waiter, namespace: str) -> None:
    pod = client_pod("client", "localhost/nowhere:1")
    pod["spec"]["containers"][0]["imagePullPolicy"] = "Never"
    cluster.create(pod, namespace)
    with pytest.raises(WaitError, match=r"(?s)will not come.*ErrImageNeverPull"):
        wait("the pod", lambda: False, NEVER_S, watching=namespace)


def test_a_wait_ends_when_the_operator_refuses_the_cluster(cluster: Cluster, wait: Waiter, namespace: str) -> None:
    container = {"name": "ray", "image": "localhost/nowhere:1"}
    group = {"rayStartParams": {}, "template": {"spec": {"containers": [container]}}}
    workers = {"groupName": "a", "replicas": 1, "minReplicas": 3, "maxReplicas": 2} | group
    spec = {"headGroupSpec": group, "workerGroupSpecs": [workers, workers]}
    one = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "wrong"}, "spec": spec}
    cluster.create(one, namespace)
    with pytest.raises(WaitError, match=r"(?s)will not come.*InvalidRayClusterSpec"):
        wait("the pods", lambda: False, NEVER_S, watching=namespace)


def test_a_wait_that_is_over_says_what_it_saw(wait: Waiter, namespace: str) -> None:
    with pytest.raises(WaitError, match=r"rain: not within 0 s; last seen: sun"):
        wait("rain", lambda: False, 0, watching=namespace, last_seen=lambda: "sun")


def test_a_namespace_that_stays_is_reported_with_what_holds_it(cluster: Cluster, namespaces: Namespaces) -> None:
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "finalizers": ["llm-ray.io/test"]}}
    why = r"(?s)is not gone 2 s after .*configmaps\.core/held"
    with pytest.raises(WaitError, match=why), namespaces.make("held", gone_s=2) as name:
        cluster.create(held, name)
    cluster.patch("ConfigMap", "held", name, {"metadata": {"finalizers": None}})
    namespaces.wait_until_gone(name, 60)
    assert name not in [*namespaces.open, *namespaces.ending]


@pytest.mark.needs("image")
def test_a_failed_test_leaves_a_folder_with_the_evidence(kube_config: str, image: str) -> None:
    folder = EVIDENCE / "fails_on_purpose.test_a_pod_says_why_it_fails-call"
    shutil.rmtree(folder, ignore_errors=True)
    done = run_pytest(ON_PURPOSE, f"--kube-config={kube_config}", f"--image={image}")
    assert done.returncode == 1
    assert "the disk is on fire" in done.stdout
    assert str(folder.relative_to(ROOT)) in done.stdout
    assert "the disk is on fire" in (folder / "failure.txt").read_text()
    (home,) = [path for path in folder.iterdir() if path.is_dir()]
    assert "breaks" in (home / "pods.txt").read_text()
    assert "BackOff" in (home / "events.txt").read_text()
    assert "the disk is on fire" in (home / "logs" / "breaks.client.log").read_text()
    assert "the disk is on fire" in (home / "objects" / "pods.core.yaml").read_text()
    assert not list(folder.rglob("*not-collected*"))
    shutil.rmtree(folder)
