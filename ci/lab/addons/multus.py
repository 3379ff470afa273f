"""Multus: further interfaces for pods, by NetworkAttachmentDefinitions; whereabouts numbers them across nodes.

Both are plugins that the container runtimes call, without a daemon. Multus becomes the first configuration in each
node's directory and hands the pod's own network on to the one that was there.
"""

from __future__ import annotations

import json

from ci.lab import keys, node
from ci.lab.addons.addon import Addon
from ci.lab.cluster import Cluster, Object
from ci.lab.programs import manifests
from ci.lab.settings import Settings

NAME = "multus"
CONFIG = "00-multus.conf"
GROUP = "rbac.authorization.k8s.io"
POOLS = "whereabouts.cni.cncf.io"
CRDS = ("ippools", "overlappingrangeipreservations", "nodeslicepools")
RULES = [  # what the two plugins call, no more
    {"apiGroups": ["k8s.cni.cncf.io"], "resources": ["network-attachment-definitions"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["update"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    {"apiGroups": [POOLS], "resources": ["ippools"], "verbs": ["get", "list", "create", "patch"]},
    {"apiGroups": [POOLS], "resources": ["overlappingrangeipreservations"], "verbs": ["get", "create", "delete"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
]


def install(cluster: Cluster) -> None:
    networks = manifests("multus") / "networks-crd.yaml"
    pools = [manifests("whereabouts") / f"{POOLS}_{name}.yaml" for name in CRDS]
    cluster.apply_files(networks, *pools)
    cluster.apply(_rights())
    lab = cluster.lab
    config = lab.pki / f"{NAME}.kubeconfig"
    if not config.exists():
        keys.certificate(lab.pki, NAME, f"/CN={NAME}", "ca")
        keys.kubeconfig(lab, NAME, config)
    for n in lab.numbers:
        _configure(lab, n)


def _rights() -> list[Object]:
    role = {"apiGroup": GROUP, "kind": "ClusterRole", "name": NAME}
    return [
        {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": RULES},
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": role,
            "subjects": [{"kind": "User", "apiGroup": GROUP, "name": NAME}],
        },
    ]


def _configure(lab: Settings, n: int) -> None:
    """Files in the node's directory; the runtime takes a new one at once, so it appears as a whole."""
    folder = lab.node_home(n) / node.CNI_CONFIG
    kubeconfig = str(lab.pki / f"{NAME}.kubeconfig")
    ours = {"datastore": "kubernetes", "kubernetes": {"kubeconfig": kubeconfig}, "log_level": "error"}
    (folder / "whereabouts.d").mkdir(exist_ok=True)
    (folder / "whereabouts.d" / "whereabouts.conf").write_text(json.dumps(ours))
    config = {
        "cniVersion": "1.0.0",
        "name": "multus-cni-network",
        "type": "multus",
        "kubeconfig": kubeconfig,
        "confDir": f"/{node.CNI_CONFIG}",
        "cniDir": "/var/lib/cni/multus",
        "binDir": str(lab.plugins),
        "logLevel": "error",
        "logToStderr": True,
        "capabilities": {"portMappings": True},
        "delegates": [json.loads((folder / node.POD_NETWORK).read_text())],
    }
    partial = folder / "multus.partial"
    partial.write_text(json.dumps(config))
    partial.rename(folder / CONFIG)


ADDON = Addon("multus", install, cni_parts=("multus", "whereabouts"))
