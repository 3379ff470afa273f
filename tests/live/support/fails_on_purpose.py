"""Run by test_harness.py alone, to see what a failed test leaves. Its name keeps pytest from finding it."""

from __future__ import annotations

import pytest

from tests.live.support.clients import client_pod
from tests.live.support.cluster import Cluster
from tests.live.support.waiting import Waiter

pytestmark = pytest.mark.live


def test_a_pod_says_why_it_fails(cluster: Cluster, wait: Waiter, namespace: str, image: str) -> None:
    pod = client_pod("breaks", image)
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", "echo the disk is on fire; exit 3"]
    cluster.create(pod, namespace)
    wait("a pod that never is ready", lambda: False, 120, watching=namespace)
