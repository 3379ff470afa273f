"""metrics-server: `kubectl top`, and CPU metrics of HPAs.

While its API is announced and not available, deleting a namespace hangs.
"""

from __future__ import annotations

from ci.lab.addons.addon import Addon
from ci.lab.cluster import Cluster

NAMESPACE = "kube-system"


def install(cluster: Cluster) -> None:
    authority = {"name": "ca", "configMap": {"name": "kube-root-ca.crt"}}
    cluster.kustomize(
        "metrics-server",
        "base",
        NAMESPACE,
        [
            ("replace", "containers/0/image", "localhost/lab/metrics-server:1"),
            # the kubelets' certificates are signed by the cluster's authority, which every namespace has
            ("add", "containers/0/args/-", "--kubelet-certificate-authority=/ca/ca.crt"),
            ("add", "containers/0/volumeMounts/-", {"name": "ca", "mountPath": "/ca"}),
            ("add", "volumes/-", authority),
            # 10 s is the least that it takes, and the timeout of a request must be shorter
            ("add", "containers/0/args/-", "--metric-resolution=10s"),
            ("add", "containers/0/args/-", "--kubelet-request-timeout=5s"),
            ("replace", "containers/0/readinessProbe/initialDelaySeconds", 1),
            ("replace", "containers/0/readinessProbe/periodSeconds", 1),
        ],
    )


ADDON = Addon("metrics-server", install, images=("metrics-server",), deployments=((NAMESPACE, "metrics-server"),))
