"""Options of the whole cluster: tokens, fault tolerance, upgrades; rendered as each KubeRay version has them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chart import render
from tests.support.kuberay import cluster_spec, containers
from tests.support.validate import KUBERAY, validate

TOKEN = {"auth": {"rayToken": {"enabled": True}}}


def owner(values: dict[str, Any]) -> dict[str, Any]:
    """The RayCluster or RayService; KubeRay 1.7's own schema is not among ours, so its fields go unchecked."""
    [obj] = [obj for obj in render(values) if obj["kind"] in ("RayCluster", "RayService")]
    version = values.get("kuberay", {}).get("version", "1.6")
    if version in KUBERAY:
        assert validate(obj, kuberay=version) == []
    return dict(obj)


def deployer(obj: dict[str, Any]) -> dict[str, Any]:
    pod = cluster_spec(obj)["headGroupSpec"]["template"]["spec"]
    [found] = [container for container in containers(pod) if container["name"] == "deployer"]
    return found


def token_secret(obj: dict[str, Any]) -> str | None:
    env = {entry["name"]: entry for entry in deployer(obj)["env"]}
    if "RAY_AUTH_TOKEN" not in env:
        assert "RAY_AUTH_MODE" not in env
        return None
    assert env["RAY_AUTH_MODE"]["value"] == "token"
    reference = env["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert reference["key"] == "auth_token"
    return str(reference["name"])


def test_without_a_token_nothing_asks_for_one():
    obj = owner({})
    assert "authOptions" not in obj["spec"]
    assert token_secret(obj) is None


@pytest.mark.parametrize("version", KUBERAY)
def test_the_deployer_reads_the_token_that_the_operator_makes(version):
    obj = owner(TOKEN | {"kuberay": {"version": version}})
    assert obj["spec"]["authOptions"] == {"mode": "token"}
    assert token_secret(obj) == obj["metadata"]["name"], "the operator names the Secret after the cluster"


@pytest.mark.parametrize("kind", ["RayCluster", "RayService"])
def test_a_secret_by_name_is_given_to_ray_and_to_the_deployer(kind):
    obj = owner({"kind": kind, "auth": {"rayToken": {"enabled": True, "existingSecret": "ours"}}})
    assert cluster_spec(obj)["authOptions"] == {"mode": "token", "secretName": "ours"}
    assert token_secret(obj) == "ours"


def test_redis_keeps_ray_s_state_with_its_password_from_a_secret():
    redis = {
        "address": "redis:6379",
        "username": "ray",
        "existingSecret": "redis",
        "key": "pw",
        "externalStorageNamespace": "ns",
    }
    assert owner({"faultTolerance": {"gcs": {"type": "redis", "redis": redis}}})["spec"][
        "gcsFaultToleranceOptions"
    ] == {
        "redisAddress": "redis:6379",
        "redisUsername": {"value": "ray"},
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "pw"}}},
        "externalStorageNamespace": "ns",
    }
    bare = {"faultTolerance": {"gcs": {"type": "redis", "redis": {"address": "redis:6379"}}}}
    assert owner(bare)["spec"]["gcsFaultToleranceOptions"] == {"redisAddress": "redis:6379"}
    assert "gcsFaultToleranceOptions" not in owner({})["spec"]


def test_rocksdb_keeps_ray_s_state_on_a_claim_of_the_operator():
    values = {
        "kuberay": {"version": "1.7", "featureGates": ["GCSFaultToleranceEmbeddedStorage"]},
        "faultTolerance": {"gcs": {"type": "rocksdb", "rocksdb": {"size": "3Gi", "storageClassName": "fast"}}},
    }
    options = owner(values)["spec"]["gcsFaultToleranceOptions"]
    assert options == {"backend": "rocksdb", "storage": {"size": "3Gi", "storageClassName": "fast"}}


@pytest.mark.parametrize(
    ("values", "strategy"),
    [
        ({}, {"type": "Recreate"}),
        ({"rollout": {"strategy": "none"}}, {"type": "None"}),
        ({"kuberay": {"version": "1.5"}}, None),
        ({"kind": "RayService"}, {"type": "NewCluster"}),
        ({"kind": "RayService", "kuberay": {"version": "1.5"}}, {"type": "NewCluster"}),
        ({"kind": "RayService", "rollout": {"strategy": "none"}}, {"type": "None"}),
    ],
)
def test_the_rollout_strategy_is_the_operator_s_own(values, strategy):
    obj = owner(values)
    assert obj["spec"].get("upgradeStrategy") == strategy
    assert "upgradeStrategy" not in obj["spec"].get("rayClusterConfig", {}), "KubeRay refuses it there"
    assert "--incremental" not in deployer(obj)["args"]


def test_an_incremental_upgrade_has_all_its_options_and_the_deployer_knows():
    incremental = {"gatewayClassName": "istio", "stepSizePercent": 25}
    values = {
        "autoscaling": {"mode": "serve"},
        "kuberay": {"featureGates": ["RayServiceIncrementalUpgrade"]},
        "rollout": {"strategy": "incremental", "deletionDelaySeconds": 0, "incremental": incremental},
    }
    obj = owner(values)
    options = {"maxSurgePercent": 100, "stepSizePercent": 25, "intervalSeconds": 30, "gatewayClassName": "istio"}
    strategy = {"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": options}
    assert obj["spec"]["upgradeStrategy"] == strategy
    assert obj["spec"]["rayClusterDeletionDelaySeconds"] == 0
    assert "--incremental" in deployer(obj)["args"]


@pytest.mark.parametrize("exclude", [True, False])
def test_the_operator_s_own_service_leaves_the_head_out_as_ours_does(exclude):
    values = {"kind": "RayService", "serve": {"excludeHead": exclude}}
    assert owner(values)["spec"].get("excludeHeadPodFromServeSvc", False) is exclude


def test_the_head_s_service_is_shaped_by_the_values():
    spec = owner({"head": {"service": {"type": "LoadBalancer", "annotations": {"a": "b"}}}})["spec"]
    assert spec["headGroupSpec"]["serviceType"] == "LoadBalancer"
    assert spec["headServiceAnnotations"] == {"a": "b"}


def test_ray_s_autoscaler_is_bounded_like_every_container():
    serve = {"idleTimeoutSeconds": 90, "upscalingMode": "Conservative", "resources": {"limits": {"memory": "2Gi"}}}
    options = cluster_spec(owner({"autoscaling": {"mode": "serve", "serve": serve}}))["autoscalerOptions"]
    assert (options["idleTimeoutSeconds"], options["upscalingMode"]) == (90, "Conservative")
    assert options["resources"] == {
        "requests": {"cpu": "200m", "memory": "512Mi"},
        "limits": {"cpu": "500m", "memory": "2Gi"},
    }
    assert options["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
