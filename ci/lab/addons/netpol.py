"""Rights of the nodes' policy controllers."""

from __future__ import annotations

from ci.lab.addons.addon import Addon
from ci.lab.cluster import Cluster

GROUP = "rbac.authorization.k8s.io"
NAME = "kube-netpol"


def install(cluster: Cluster) -> None:
    rules = [
        {"apiGroups": [""], "resources": ["pods", "namespaces", "nodes"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"]},
    ]
    cluster.apply(
        [
            {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": rules},
            {
                "apiVersion": f"{GROUP}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": NAME},
                "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": NAME},
                "subjects": [{"kind": "User", "apiGroup": GROUP, "name": NAME}],
            },
        ]
    )


ADDON = Addon("netpol", install)
