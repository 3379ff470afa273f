"""KWOK: nodes without a kubelet, whose pods are Running without a container. It manages the nodes that carry its
annotation and no others; such a node should carry the taint too, so that pods that have to run stay away."""

from __future__ import annotations

import json

import yaml

from ci.lab.addons.addon import Addon
from ci.lab.cluster import Cluster, Object
from ci.lab.programs import manifests

NAME, NAMESPACE = "kwok-controller", "kube-system"
ANNOTATION = ("kwok.x-k8s.io/node", "fake")
PORT = 10247
STAGES = (  # since 0.8 it has none built in
    "node/fast/node-initialize",
    "node/heartbeat-with-lease/node-heartbeat-with-lease",
    "pod/fast/pod-ready",
    "pod/fast/pod-complete",
    "pod/fast/pod-delete",
)
LABELS = {"app": NAME}
META = {"name": NAME, "namespace": NAMESPACE}


def install(cluster: Cluster) -> None:
    cluster.kustomize("kwok", "rbac", NAMESPACE, [], {"patches": []})
    config = "\n---\n".join([json.dumps(_options(cluster)), *map(_stage, STAGES)])
    data = {"kwok.yaml": config}
    cluster.apply([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": META, "data": data}, _deployment()])


def _options(cluster: Cluster) -> Object:
    """Those that its own manifests ship, without the CRDs that would bring further stages and logs of fake pods."""
    config: Object = yaml.safe_load((manifests("kwok") / "kwok/kwok.yaml").read_text())
    config["options"] |= {
        "cidr": cluster.lab.fake_pod_cidr,
        "enableCRDs": [],
        "manageAllNodes": False,
        "manageNodesWithAnnotationSelector": "=".join(ANNOTATION),
        "nodePort": PORT,
    }
    return config


def _stage(name: str) -> str:
    """As it stands, but for the path of its file; a file that is no stage would be passed over in silence."""
    text = (manifests("kwok") / "stage" / f"{name}.yaml").read_text()
    assert yaml.safe_load(text)["kind"] == "Stage", name
    return text


def _deployment() -> Object:
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {
        "name": NAME,
        "image": "localhost/lab/kwok:1",
        "args": ["--config=/config/kwok.yaml", "--node-ip=$(POD_IP)", f"--server-address=0.0.0.0:{PORT}"],
        "env": [address],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": PORT}, "periodSeconds": 1},
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "config", "mountPath": "/config"}],
    }
    pod = {
        "serviceAccountName": NAME,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": NAME}}],
    }
    template = {"metadata": {"labels": LABELS}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**META, "labels": LABELS},
        "spec": {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template},
    }


ADDON = Addon("kwok", install, images=("kwok",), deployments=((NAMESPACE, NAME),))
