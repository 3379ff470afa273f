"""Volcano: gang scheduling. The objects are its own chart's, with the lab's images, certificate and smaller logs.

The CRDs of jobflow belong to it: without them the controllers never finish their start, no queue gets a state, and
nothing is scheduled.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import yaml

from ci.lab import keys
from ci.lab.addons import kuberay
from ci.lab.addons.addon import Addon
from ci.lab.cluster import Cluster, Object
from ci.lab.processes import command
from ci.lab.programs import manifests
from ci.tools import binary

NAME = "volcano"
NAMESPACE = "volcano-system"
TEMPLATES = ("scheduler", "controllers", "admission", "webhooks")
DEPLOYMENTS = ("volcano-admission", "volcano-controllers", "volcano-scheduler")
WEBHOOK = "volcano-admission-service"
SECRET = "volcano-admission-secret"
PROGRAMS = ("vc-scheduler", "vc-controller-manager", "vc-webhook-manager")
DEFAULT_QUEUE = "/apis/scheduling.volcano.sh/v1beta1/queues/default"
HEALTH_PORT = 11251
GROUP = "rbac.authorization.k8s.io"


def install(cluster: Cluster) -> None:
    chart = manifests(NAME) / "chart"
    cluster.apply_files(chart / "crd/bases", chart / "charts/jobflow/crd/bases")
    cluster.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, _certificate(cluster)])
    cluster.apply([*_rendered(cluster), *_rights_of_kuberay()])


def _certificate(cluster: Cluster) -> Object:
    """Of the webhooks, signed by the cluster's authority; the webhook manager writes that into its configurations."""
    pki = cluster.lab.pki
    keys.certificate(pki, WEBHOOK, f"/CN={WEBHOOK}", "ca", [f"{WEBHOOK}.{NAMESPACE}.svc"])
    files = {"ca.crt": "ca.crt", "tls.crt": f"{WEBHOOK}.crt", "tls.key": f"{WEBHOOK}.key"}
    data = {key: base64.b64encode((pki / name).read_bytes()).decode() for key, name in files.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": NAMESPACE},
        "type": "Opaque",
        "data": data,
    }


def _rendered(cluster: Cluster) -> Iterator[Object]:
    scheduler, controllers, admission = PROGRAMS
    images = {
        "image_registry": "localhost/lab",
        "image_tag_version": "1",
        "image_pull_policy": "IfNotPresent",
        "scheduler_image_name": scheduler,
        "controller_image_name": controllers,
        "admission_image_name": admission,
    }
    quiet = {f"{part}_log_level": 2 for part in ("scheduler", "controller", "admission")}
    chosen = [word for name in TEMPLATES for word in ("--show-only", f"templates/{name}.yaml")]
    chart = manifests(NAME) / "chart"
    rendered = command(
        binary("helm4"), "template", NAME, chart, "--namespace", NAMESPACE, *chosen, "--values", "-",
        text=json.dumps({"basic": images, "custom": quiet}),
    )  # fmt: skip
    for found in yaml.safe_load_all(rendered.stdout):
        if found:
            if found["kind"] == "Deployment":
                _add_probe(found)
            yield found


def _add_probe(deployment: Object) -> None:
    """The chart has none, and a rollout that is done should mean that the program answers."""
    scheme = "HTTPS" if deployment["metadata"]["name"] == "volcano-admission" else "HTTP"
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["readinessProbe"] = {
        "httpGet": {"path": "/healthz", "port": HEALTH_PORT, "scheme": scheme},
        "periodSeconds": 1,
    }


def _rights_of_kuberay() -> list[Object]:
    """What the KubeRay operator needs to make PodGroups (--batch-scheduler=volcano); its own manifests lack it."""
    role = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "kuberay-operator-volcano"}
    rule = {
        "apiGroups": ["scheduling.volcano.sh"],
        "resources": ["podgroups"],
        "verbs": ["create", "delete", "get", "list", "update", "watch"],
    }
    metadata = {"name": role["name"]}
    operator = {"kind": "ServiceAccount", "name": kuberay.DEPLOYMENT, "namespace": kuberay.NAMESPACE}
    return [
        {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": role,
            "subjects": [operator],
        },
    ]


def settle(cluster: Cluster) -> None:
    """The scheduler makes the queue, through the webhooks, and the controllers open it."""
    cluster.wait("Volcano's default queue", DEFAULT_QUEUE, lambda queue: queue.get("status", {}).get("state") == "Open")


ADDON = Addon(
    NAME,
    install,
    images=PROGRAMS,
    deployments=tuple((NAMESPACE, name) for name in DEPLOYMENTS),
    settle=settle,
)
