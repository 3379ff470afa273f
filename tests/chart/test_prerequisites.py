"""What a user is told when the cluster lacks something: by the check of the queue, NOTES, `helm test`, the README."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.support.chart import CHART, CI_VALUES, Objects, render, run_helm
from tests.support.readme import advice
from tests.support.validate import validate

BUILT_IN = re.compile(r"^v1$|^(apps|autoscaling|batch|policy)/|\.k8s\.io/v\d+$")
"""API versions of Kubernetes itself; the Gateway API and Multus have the domain and are none."""
ADDED = ("gateway.networking.k8s.io", "k8s.cni.cncf.io")
GANG = {"provider": "kuberay", "scheduler": "volcano", "queue": "team"}


def checks(objects: Objects) -> list[Any]:
    return [one for one in objects.all("PodGroup") if "helm.sh/hook" in one["metadata"].get("annotations", {})]


def notes(values: dict[str, Any]) -> str:
    command = ["install", "demo", str(CHART), "--namespace", "serving", "--dry-run=client", "-f", "-"]
    done = run_helm("helm4", command, json.dumps(values))
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().partition("\nNOTES:\n")[2]


# ---- the queue


def test_volcano_is_asked_for_the_queue_before_anything_is_made() -> None:
    [check] = checks(render({"gang": GANG}))
    assert validate(check) == []
    assert check["spec"] == {"minMember": 1, "queue": "team"}
    annotations = check["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"


@pytest.mark.parametrize(
    "gang",
    [
        {"provider": "none"},
        {"provider": "kuberay"},
        GANG | {"scheduler": "yunikorn"},
        GANG | {"provider": "podgroup"},
        GANG | {"provider": "kueue"},
        GANG | {"checkQueue": False},
    ],
    ids=lambda gang: "-".join(map(str, gang.values())),
)
def test_nobody_is_asked_for_a_queue_that_nobody_named_or_that_is_not_volcanos(gang: dict[str, Any]) -> None:
    assert not checks(render({"gang": gang}))


# ---- kinds that the cluster may not have


def added_kinds() -> set[str]:
    """Of all situations: kinds that something beside Kubernetes brings."""
    objects = [one for path in CI_VALUES for one in render(path)]
    return {
        one["kind"] for one in objects if not BUILT_IN.search(one["apiVersion"]) or one["apiVersion"].startswith(ADDED)
    }


def test_the_readme_says_what_brings_each_kind() -> None:
    kinds = added_kinds()
    assert {"RayCluster", "PodGroup", "NetworkAttachmentDefinition", "HTTPRoute", "PodMonitor"} <= kinds
    cures = advice()
    assert {kind for kind in kinds if not cures.get(kind)} == set()


# ---- where to look


@pytest.mark.parametrize("kind", ["RayCluster", "RayService"])
def test_the_notes_say_where_to_look_when_nothing_serves(kind: str) -> None:
    text = notes({"kind": kind})
    assert "\n  kubectl -n serving events\n" in text
    assert "\n  kubectl get pods -A -l app.kubernetes.io/component=kuberay-operator\n" in text
    assert f"{kind.lower()}/demo-llm-ray" in text


def test_the_operator_is_looked_for_by_the_labels_that_the_values_give() -> None:
    named = {"networkPolicy": {"operatorLabels": {"app.kubernetes.io/component": None, "app": "ray", "tier": "ops"}}}
    assert "-l app=ray,tier=ops\n" in notes(named)
    nameless = {"networkPolicy": {"operatorLabels": {"app.kubernetes.io/component": None}}}
    assert "kubectl get pods -A" not in notes(nameless)


@pytest.mark.parametrize("cache", ["pvc", "ephemeral"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            None,
            "model.cache.storageClassName (null): claims stay Pending unless the cluster has a default storage class",
        ),
        ("fast", "model.cache.storageClassName (fast): claims stay Pending unless the cluster has that storage class"),
    ],
)
def test_the_notes_name_the_storage_class_that_is_needed(cache: str, given: str | None, words: str) -> None:
    text = notes({"model": {"cache": {"type": cache, "storageClassName": given}}})
    assert words in text.partition("\nMind:\n")[2]


@pytest.mark.parametrize(
    "model",
    [
        {"cache": {"type": "emptyDir"}},
        {"cache": {"type": "pvc", "existingClaim": "mine"}},
        {"cache": {"type": "pvc", "storageClassName": ""}},
        {"cache": {"type": "pvc"}, "source": "pvc://mine/model"},
    ],
    ids=["emptyDir", "existing", "without", "not fetched"],
)
def test_no_storage_class_is_named_where_none_is_needed(model: dict[str, Any]) -> None:
    assert "storageClassName" not in notes({"model": model})


def test_the_test_pod_is_told_where_to_look() -> None:
    [container] = render({"kind": "RayService"}, namespace="serving").find("Pod")["spec"]["containers"]
    [told] = [entry["value"] for entry in container["env"] if entry["name"] == "HELP"]
    assert "kubectl -n serving events" in told
    assert "rayservice/demo-llm-ray" in told
