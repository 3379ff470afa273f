"""Every field of KubeRay's kinds can be set through specOverrides; docs/values.md lists what ordinary values set."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest
from ci.chart import coverage
from ci.chart.crd import CrdField, crd_fields, sample, schema_of, values_at

from tests.support.chart import HelmError, Objects, render
from tests.support.random_values import ray_owner

KINDS = ("RayCluster", "RayService")
GROUP = "worker"
PLACES = (
    ("headGroupSpec.", "headGroup"),
    ("workerGroupSpecs[].", "workerGroups"),
    ("", "rayCluster"),
)  # fmt: skip
"""Which key of specOverrides lays values over which part of the cluster's spec."""


def test_the_count_covers_both_kinds():
    cluster, service = (crd_fields(kind) for kind in KINDS)
    inner = {f.path.removeprefix(coverage.CLUSTER) for f in service if f.path.startswith(coverage.CLUSTER)}
    assert inner == {f.path for f in cluster}
    assert len(cluster) > 200
    for known in (
        "autoscalerOptions.version",
        "gcsFaultToleranceOptions.redisAddress",
        "headGroupSpec.template.spec.containers[].env",
        "workerGroupSpecs[].template.spec.tolerations",
        "workerGroupSpecs[].scaleStrategy.workersToDelete",
        "upgradeStrategy.type",
    ):
        assert known in inner


APART = ("enableInTreeAutoscaling", ".name", "groupName", "workerGroupSpecs[].idleTimeoutSeconds", "enableK8sTokenAuth")
"""Not with others: autoscaling and tokens forbid some, and containers and groups are told apart by their names."""


@pytest.mark.parametrize("path", coverage.REFUSED_IN_A_RAYSERVICE)
def test_what_kuberay_refuses_in_a_rayservice_is_refused_by_name(path):
    assert path in {f.path for f in crd_fields("RayService")}
    value = True if path.endswith("enableK8sTokenAuth") else "Recreate"
    key = path.removeprefix(coverage.CLUSTER).removesuffix(".type").removeprefix("headGroupSpec.")
    with pytest.raises(HelmError, match=rf"{re.escape(key)} .* must be (left out|false) with kind RayService"):
        render({"kind": "RayService", "specOverrides": overrides("RayService", {path: value})})


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_can_be_set_through_spec_overrides(kind):
    before = render({"kind": kind})
    missing = []
    for fields in batches([f for f in crd_fields(kind) if f.path not in coverage.REFUSED_IN_A_RAYSERVICE]):
        wanted = {f.path: sample(f.schema, schema_of(kind), *current(before, f)) for f in fields}
        wanted |= companions(kind, wanted)
        spec = ray_owner(render({"kind": kind, "specOverrides": overrides(kind, wanted)}))["spec"]
        missing += [path for path, value in wanted.items() if not any(holds(v, value) for v in values_at(spec, path))]
    assert missing == []


def companions(kind: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """What KubeRay asks for beside a field."""
    needed: dict[str, Any] = {}
    if any(path.endswith(("enableInTreeAutoscaling", "workerGroupSpecs[].idleTimeoutSeconds")) for path in wanted):
        needed |= {"spec.restartPolicy": "Never", "enableInTreeAutoscaling": True, "autoscalerOptions.version": "v2"}
    if any(path.endswith("enableK8sTokenAuth") for path in wanted):
        needed |= {"authOptions.mode": "token"}
    return {f.path: value for f in crd_fields(kind) for end, value in needed.items() if f.path.endswith(end)}


def batches(fields: list[CrdField]) -> list[list[CrdField]]:
    """Fields that may be set together."""
    alone = [f for f in fields if f.path.endswith(APART)]
    return [[f for f in fields if f not in alone], *([f] for f in alone)]


def current(objects: Objects, f: CrdField) -> list[Any]:
    return values_at(ray_owner(objects)["spec"], f.path)[:1]


def holds(got: Any, wanted: Any) -> bool:
    """Maps merge, so that `got` may hold more."""
    if isinstance(wanted, dict):
        return isinstance(got, dict) and all(holds(got.get(key), value) for key, value in wanted.items())
    return bool(got == wanted)


def overrides(kind: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """The values under specOverrides that set these paths."""
    result: dict[str, Any] = defaultdict(dict)
    for path, value in wanted.items():
        if kind == "RayService" and not path.startswith(coverage.CLUSTER):
            put(result["rayService"], path, value)
            continue
        below = path.removeprefix(coverage.CLUSTER)
        prefix, key = next((prefix, key) for prefix, key in PLACES if below.startswith(prefix))
        part = result[key].setdefault(GROUP, {}) if key == "workerGroups" else result[key]
        put(part, below.removeprefix(prefix), value)
    return dict(result)


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at the path; a list on the way has one item, a container the name of the chart's own."""
    *above, last = path.split(".")
    for key in above:
        name = key.removesuffix("[]")
        below = tree.setdefault(name, [{}] if key.endswith("[]") else {})
        tree = below[0] if key.endswith("[]") else below
        if name in ("containers", "initContainers"):
            tree.setdefault("name", "overridden")
    tree[last] = value


def test_the_table_in_the_documentation_is_up_to_date():
    text = coverage.DOCS.read_text()
    assert coverage.updated(text) == text, "run `make fix`"
    assert len(coverage.first_class()) >= 70
