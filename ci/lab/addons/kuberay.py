"""The KubeRay operator with its CRDs and rights, from the manifests of its own module."""

from __future__ import annotations

from ci.lab.addons.addon import Addon
from ci.lab.cluster import Cluster

NAMESPACE = "kuberay-system"
DEPLOYMENT = "kuberay-operator"
IMAGE = "localhost/lab/kuberay-operator:1"


def install(cluster: Cluster) -> None:
    cluster.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
    cluster.kustomize(
        "kuberay",
        "default",
        NAMESPACE,
        [
            ("replace", "containers/0/image", IMAGE),
            # one replica, replaced by recreation: a new one would wait 15 s for the lease of the old one
            ("add", "containers/0/args/-", "--enable-leader-election=false"),
            ("replace", "containers/0/resources/limits/cpu", "1"),
            ("replace", "containers/0/readinessProbe/initialDelaySeconds", 1),
            ("replace", "containers/0/readinessProbe/periodSeconds", 1),
        ],
    )


ADDON = Addon("kuberay", install, images=("kuberay-operator",), deployments=((NAMESPACE, DEPLOYMENT),))
