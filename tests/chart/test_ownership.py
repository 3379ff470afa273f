"""What the operator writes back is what Helm applied, to the letter.

KubeRay adds a finalizer to a RayService by writing the whole object. A field that this write changes, if only from 2 to
"2", is the operator's from then on, and the next server-side upgrade fails with a conflict.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chart import Manifest, render
from tests.support.operator import judge
from tests.support.random_values import ray_owner
from tests.support.situations import SITUATIONS, every_situation, rendered

KINDS = ("RayCluster", "RayService")


def changes(before: Any, after: Any, path: str = "spec") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from changes(before.get(key, "nothing"), after.get(key, "nothing"), f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (was, now) in enumerate(zip(before, after, strict=True)):
            yield from changes(was, now, f"{path}[{index}]")
    elif before != after or type(before) is not type(after):
        yield f"{path}: {before!r} becomes {after!r}"


def changed_by_the_operator(owner: Manifest) -> list[str]:
    [verdict] = judge([owner])
    assert verdict.error == ""
    return list(changes(owner["spec"], verdict.written))


UNKNOWN_TO_1_6 = "spec.rayClusterConfig.gcsFaultToleranceOptions."
"""Embedded storage comes with KubeRay 1.7; the code that judges here is 1.6's."""


@every_situation
def test_the_operator_changes_nothing_when_it_writes_the_object_back(situation):
    found = changed_by_the_operator(ray_owner(rendered(situation)))
    assert [change for change in found if not change.startswith(UNKNOWN_TO_1_6)] == []
    assert bool(found) == (situation == "kuberay-1.7-elastic")


def test_every_kind_and_both_ways_of_counting_are_among_the_situations():
    kinds = {ray_owner(rendered(situation))["kind"] for situation in SITUATIONS}
    assert kinds == set(KINDS)


AMOUNTS = [1, 2, "2", 0.5, "0.5", "500m", "1000m", "1500m", "1.5", "1.250", 0]
SIZES = [
    "4Gi", "4096Mi", "1536Mi", "1.5Gi", "0.5Gi", "1024Ki", "4G", "4000M", "4e9", "4E9", "4294967296", 4294967296,
    "1000", "100k", "1500k", "0.1Gi", "5000m", "1Ti", "3e3",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("amount", AMOUNTS, ids=repr)
def test_cpus_are_written_as_the_api_writes_them(kind, amount):
    values = {"kind": kind, "head": {"resources": {"requests": {"cpu": amount}}}}
    values["workerDefaults"] = {"resources": {"requests": {"cpu": amount}}}
    values["deployer"] = {"resources": {"requests": {"cpu": amount}}}
    assert changed_by_the_operator(ray_owner(render(values))) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES, ids=repr)
def test_sizes_are_written_as_the_api_writes_them(kind, size):
    values = {
        "kind": kind,
        "head": {"tmpSize": size, "resources": {"limits": {"ephemeral-storage": size}}},
        "workerDefaults": {"shmSize": size, "resources": {"limits": {"memory": "8Gi", "ephemeral-storage": size}}},
        "model": {"cache": {"type": "ephemeral", "size": size}},
    }
    assert changed_by_the_operator(ray_owner(render(values))) == []


ODD = {
    "empty environment variable": {"serve": {"env": {"EMPTY": ""}}},
    "divisor": {"serve": {"env": {"CPUS": {"valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}}}},
    "container": {"head": {"extraContainers": {"proxy": {"image": "proxy:1"}}}},
    "init container": {"workerDefaults": {"extraInitContainers": {"wait": {"image": "wait:1"}}}},
    "container with all": {
        "head": {
            "extraContainers": {
                "proxy": {
                    "image": "proxy:1", "command": [], "args": [], "env": [{"name": "A", "value": ""}], "ports": [],
                    "resources": {"limits": {"cpu": 1, "memory": "1024Mi"}}, "stdin": False, "tty": False,
                    "securityContext": {"privileged": False, "capabilities": {"drop": ["ALL"], "add": []}},
                }
            }
        }
    },
    "mount": {
        "head": {
            "extraVolumes": {"data": {"emptyDir": {"medium": "", "sizeLimit": "1024Mi"}}, "more": {"emptyDir": {}}},
            "extraVolumeMounts": {"/data": {"name": "data", "readOnly": False, "subPath": ""}},
        }
    },
    "claim": {
        "workerDefaults": {
            "extraVolumes": {
                "scratch": {
                    "ephemeral": {
                        "volumeClaimTemplate": {
                            "spec": {
                                "accessModes": ["ReadWriteOnce"],
                                "storageClassName": "",
                                "resources": {"requests": {"storage": "2048Mi"}},
                            }
                        }
                    }
                },
                "shared": {"persistentVolumeClaim": {"claimName": "shared", "readOnly": False}},
            }
        }
    },
    "placement": {
        "workerDefaults": {
            "tolerations": [],
            "affinity": {"podAffinity": {}, "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
            ],
        }
    },
    "overrides": {
        "specOverrides": {
            "workerGroups": {
                "worker": {"template": {"spec": {"containers": [{"name": "proxy", "image": "proxy:1", "args": []}]}}}
            }
        }
    },
    "head that serves": {"kind": "RayService", "serve": {"excludeHead": False}},
    "autoscaler": {
        "kind": "RayService",
        "autoscaling": {"mode": "serve", "serve": {"resources": {"limits": {"cpu": 1, "memory": "1024Mi"}}}},
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("values", ODD.values(), ids=ODD)
def test_what_users_may_write_in_more_than_one_way_is_written_as_the_api_writes_it(kind, values):
    assert changed_by_the_operator(ray_owner(render({"kind": kind} | values))) == []
