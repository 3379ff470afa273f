"""The pods of the cluster: what they may do, what is in them, and the deployer beside the head."""

from __future__ import annotations

import argparse

import pytest
import yaml

from llm_ray.deployer import command
from tests.support.chart import pod_templates, render
from tests.support.cluster import cluster, env, head, named, owner, pod_of, ray, worker
from tests.support.kuberay import cluster_spec, containers
from tests.support.validate import pod_security

SERVE = {"autoscaling": {"mode": "serve"}}
GPUS = {
    "engine": {"tensorParallelSize": 16},
    "workers": {"gpu": {"gpusPerNode": 8, "resources": {"limits": {"memory": "64Gi"}}}},
}
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


def test_only_the_deployer_and_the_autoscaler_hold_a_token_of_the_api_server():
    for values in ({}, SERVE):
        spec = cluster(values)
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            assert pod_of(group)["automountServiceAccountToken"] is False
        holders = {
            container["name"]
            for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])
            for container in containers(pod_of(group))
            if any(mount["mountPath"] == TOKEN_PATH for mount in container["volumeMounts"])
        }
        assert holders == {"deployer"}
    assert [mount["mountPath"] for mount in spec["autoscalerOptions"]["volumeMounts"]] == [
        "/tmp",
        "/tmp/ray",
        TOKEN_PATH,
    ]


def test_the_logs_of_the_head_and_its_autoscaler_stay_on_the_volume_that_the_collector_reads():
    """KubeRay mounts a volume of its own at /tmp/ray in both, unless something is mounted there."""
    spec = cluster(SERVE)
    logs = {"name": "tmp", "mountPath": "/tmp/ray", "subPath": "ray"}
    assert logs in ray(spec["headGroupSpec"])["volumeMounts"]
    assert logs in spec["autoscalerOptions"]["volumeMounts"]
    assert logs not in ray(head())["volumeMounts"]


def test_with_ray_s_autoscaler_pods_never_restart_but_sidecars_do():
    spec = cluster(SERVE)
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert pod_of(group)["restartPolicy"] == "Never"
    assert named(pod_of(spec["headGroupSpec"]), "deployer")["restartPolicy"] == "Always"
    assert spec["enableInTreeAutoscaling"] is True
    assert (spec["autoscalerOptions"]["version"], spec["autoscalerOptions"]["idleTimeoutSeconds"]) == ("v2", 300)
    assert "restartPolicy" not in pod_of(head())
    assert "autoscalerOptions" not in cluster({"autoscaling": {"mode": "hpa"}})


def test_a_group_may_have_its_own_idle_timeout():
    assert worker(SERVE | {"workerDefaults": {"idleTimeoutSeconds": 77}})["idleTimeoutSeconds"] == 77
    assert "idleTimeoutSeconds" not in worker(SERVE)


def test_the_grace_period_outlasts_the_drain_time():
    assert pod_of(worker())["terminationGracePeriodSeconds"] == 90
    assert pod_of(worker({"serve": {"deployment": {"drainTimeoutS": 0.5}}}))["terminationGracePeriodSeconds"] == 31
    at_once = {"serve": {"deployment": {"drainTimeoutS": 0}}, "workerDefaults": {"terminationGracePeriodSeconds": 0}}
    assert pod_of(worker(at_once))["terminationGracePeriodSeconds"] == 0


def test_ray_drains_a_pod_that_is_told_to_stop_for_as_long_as_a_replica_may_take():
    for pod, container in ((pod_of(worker()), "ray-worker"), (pod_of(head()), "ray-head")):
        got = env(named(pod, container))
        assert got["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "60"
        assert int(got["RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S"]) < 30
    short = pod_of(worker({"serve": {"deployment": {"drainTimeoutS": 0.5}}}))
    assert env(named(short, "ray-worker"))["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "0.5"


def test_the_host_network_brings_the_dns_policy_that_works_there():
    assert pod_of(worker())["dnsPolicy"] == "ClusterFirst"
    pod = pod_of(worker({"workerDefaults": {"hostNetwork": True}}))
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_tmp_and_shared_memory_are_bounded_volumes():
    pod = pod_of(worker({"workerDefaults": {"tmpSize": "3Gi", "shmSize": "2Gi"}}))
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["tmp"]["emptyDir"] == {"sizeLimit": "3Gi"}
    assert volumes["dshm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert (mounts["/tmp"], mounts["/dev/shm"]) == ("tmp", "dshm")


def test_pods_take_what_the_values_add():
    more = {
        "extraVolumes": {"data": {"emptyDir": {}}},
        "extraVolumeMounts": {"/data": {"name": "data", "readOnly": True}},
        "extraContainers": {"side": {"image": "busybox:1.36"}},
        "extraInitContainers": {"first": {"image": "busybox:1.36"}},
        "podLabels": {"team": "nlp", "app.kubernetes.io/component": "other"},
        "podAnnotations": {"note": "x"},
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "nodeSelector": {"disk": "fast"},
        "rayLabels": {"rack": "a"},
    }
    for group, role in ((head({"head": more}), "head"), (worker({"workerDefaults": more}), "worker")):
        pod, metadata = pod_of(group), group["template"]["metadata"]
        assert {"name": "data", "emptyDir": {}} in pod["volumes"]
        assert {"name": "data", "mountPath": "/data", "readOnly": True} in pod["containers"][0]["volumeMounts"]
        assert pod["containers"][-1] == {"name": "side", "image": "busybox:1.36", "resources": {}}
        assert pod["initContainers"][0] == {"name": "first", "image": "busybox:1.36", "resources": {}}
        assert (metadata["labels"]["team"], metadata["labels"]["app.kubernetes.io/component"]) == ("nlp", role)
        assert metadata["annotations"]["note"] == "x"
        assert (pod["priorityClassName"], pod["runtimeClassName"]) == ("high", "nvidia")
        assert (pod["nodeSelector"], group["labels"]) == ({"disk": "fast"}, {"rack": "a"})


def test_pull_secrets_of_the_umbrella_and_of_the_image_add_up():
    values = {"global": {"imagePullSecrets": ["a", "b"]}, "image": {"pullSecrets": ["b", "c"]}}
    assert pod_of(worker(values))["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}, {"name": "c"}]


def test_the_pods_pass_pod_security_restricted():
    for values in ({}, SERVE, GPUS):
        assert pod_security(pod_templates(render(values))) == []


# ---- the deployer


@pytest.mark.parametrize("kind", ["RayCluster", "RayService"])
@pytest.mark.parametrize("exclude_head", [True, False])
def test_the_app_takes_the_deployer_s_flags(kind, exclude_head):
    container = named(pod_of(head({"kind": kind, "serve": {"excludeHead": exclude_head}})), "deployer")
    assert container["command"][-2:] == ["llm-ray", "deployer"]
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(container["args"])
    assert (args.kind, args.health_port, args.exclude_head) == (kind, 8099, exclude_head)
    assert args.incremental is False
    assert str(args.config) == ("/etc/llm-ray/serve/config.yaml" if kind == "RayCluster" else "None")
    assert {"POD_NAMESPACE", "RAY_CLUSTER"} <= env(container).keys()
    assert env(container).get("RAY_SERVICE") == ("demo-llm-ray" if kind == "RayService" else None)


def test_the_deployer_may_do_what_it_does_and_no_more():
    assert render().find("Role")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch"]}
    ]
    rules = render(SERVE).find("Role")["rules"]
    assert rules[1] == {
        "apiGroups": ["ray.io"], "resources": ["rayservices"], "resourceNames": ["demo-llm-ray"], "verbs": ["get"]
    }  # fmt: skip
    [subject] = render().find("RoleBinding")["subjects"]
    assert subject["name"] == pod_of(head())["serviceAccountName"] == "demo-llm-ray-head"
    assert subject["namespace"] == "serving"


def test_accounts_fit_the_50_characters_that_kuberay_leaves_of_a_name():
    objects = render(SERVE | {"fullnameOverride": "x" * 47})
    accounts = {obj["metadata"]["name"] for obj in objects.all("ServiceAccount")}
    assert pod_of(cluster_spec(owner(objects))["headGroupSpec"])["serviceAccountName"] in accounts
    assert len(accounts) == 2
    assert max(map(len, accounts)) <= 50


def test_an_existing_account_is_used_and_none_is_made():
    objects = render({"security": {"serviceAccount": {"create": False, "name": "mine"}}})
    assert not {"ServiceAccount", "Role", "RoleBinding"} & {kind for kind, _ in objects.inventory()}
    assert pod_of(cluster_spec(owner(objects))["headGroupSpec"])["serviceAccountName"] == "mine"


def test_extra_objects_are_maps_or_template_strings():
    name = '{{ include "llm-ray.fullname" . }}'
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-b"}})
    values = {"extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-a"}}, text]}
    names = {name for kind, name in render(values).inventory() if kind == "ConfigMap"}
    assert {"demo-llm-ray-a", "demo-llm-ray-b"} <= names
