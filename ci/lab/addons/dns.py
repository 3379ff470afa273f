"""CoreDNS as cluster DNS. It listens on 53 itself: NetworkPolicies match the pod's port."""

from __future__ import annotations

from ci.lab.addons.addon import Addon
from ci.lab.cluster import Cluster, Object

NAME, NAMESPACE = "coredns", "kube-system"
LABELS = {"k8s-app": "kube-dns"}
META = {"name": NAME, "namespace": NAMESPACE}
COREFILE = """.:53 {
    errors
    health :8080
    ready :8181
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        ttl 5
    }
    prometheus :9153
    cache 5
    loadbalance
}
"""


def install(cluster: Cluster) -> None:
    cluster.apply([*_rights(), *_service(cluster.lab.dns_ip), _deployment()])


def _rights() -> list[Object]:
    group = "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "system:coredns"}
    watched = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": META},
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": role["name"]}, "rules": watched},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role["name"]},
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", **META}],
        },
    ]


def _service(address: str) -> list[Object]:
    ports = [
        {"name": "dns", "protocol": "UDP", "port": 53, "targetPort": 53},
        {"name": "dns-tcp", "protocol": "TCP", "port": 53, "targetPort": 53},
    ]
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": META, "data": {"Corefile": COREFILE}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": NAMESPACE, "labels": LABELS},
            "spec": {"clusterIP": address, "selector": LABELS, "ports": ports},
        },
    ]


def _deployment() -> Object:
    container = {
        "name": NAME,
        "image": "localhost/lab/coredns:1",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "resources": {"requests": {"cpu": "50m", "memory": "40Mi"}, "limits": {"memory": "170Mi"}},
        "livenessProbe": {**_probe("/health", 8080), "failureThreshold": 15},
        "readinessProbe": _probe("/ready", 8181),
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
    }
    pod = {
        "serviceAccountName": NAME,
        "priorityClassName": "system-cluster-critical",
        "dnsPolicy": "Default",
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


def _probe(path: str, port: int) -> Object:
    return {"httpGet": {"path": path, "port": port}, "periodSeconds": 1}


ADDON = Addon("dns", install, images=("coredns",), deployments=((NAMESPACE, NAME),))
