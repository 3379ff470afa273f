"""prometheus-adapter: Prometheus' series as the metrics that HPAs read, external and of pods.

While its APIs are announced and not available, deleting a namespace hangs.
"""

from __future__ import annotations

import base64
import json

from ci.lab import keys
from ci.lab.addons import prometheus
from ci.lab.addons.addon import Addon
from ci.lab.cluster import Cluster, Object, condition

NAME, NAMESPACE, PORT = "prometheus-adapter", prometheus.NAMESPACE, 6443
LABELS = {"app.kubernetes.io/name": NAME}
META = {"name": NAME, "namespace": NAMESPACE, "labels": LABELS}
GROUP = "rbac.authorization.k8s.io"
APIS = ("external.metrics.k8s.io", "custom.metrics.k8s.io")
RELIST = f"{prometheus.INTERVAL_S}s"
MAX_AGE = "1m"
REQUESTS = ("ray_serve_replica_processing_queries", "ray_serve_deployment_queued_queries")
"""Requests that run or wait; the chart's query for KEDA sums the same."""
METRIC = "llm_ray_requests"


def install(cluster: Cluster) -> None:
    pki = cluster.lab.pki
    keys.certificate(pki, NAME, f"/CN={NAME}", "ca", [f"{NAME}.{NAMESPACE}.svc"])
    cluster.apply([*_rights(), *_files(cluster), _service(), _deployment()])
    cluster.apply([_api(cluster, group) for group in APIS])


def rules() -> Object:
    """The chart's metric: external, for a release or one group of it by labels; custom, for each pod."""
    in_namespace = {"overrides": {"namespace": {"resource": "namespace"}}}
    of_pods = {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}}
    names = "|".join(REQUESTS)
    query = f'sum({{__name__=~"{names}",application="llm",<<.LabelMatchers>>}})'
    series = f'{REQUESTS[0]}{{namespace!="",pod!="",llm_ray_name!=""}}'
    return {
        "externalRules": [
            {"seriesQuery": series, "resources": in_namespace, "name": {"as": METRIC}, "metricsQuery": query},
        ],
        "rules": [
            {
                "seriesQuery": series,
                "resources": of_pods,
                "name": {"as": METRIC},
                "metricsQuery": f"{query} by (<<.GroupBy>>)",
            }
        ],
    }


def _rights() -> list[Object]:
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    watched = {
        "apiGroups": [""],
        "resources": ["nodes", "namespaces", "pods", "services"],
        "verbs": ["get", "list", "watch"],
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": META},
        {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": [watched]},
        _binding("ClusterRoleBinding", {"name": NAME}, "ClusterRole", NAME, subject),
        # who asks, and whether they may, are the API server's to say
        _binding("ClusterRoleBinding", {"name": f"{NAME}-delegator"}, "ClusterRole", "system:auth-delegator", subject),
        _binding(
            "RoleBinding",
            {"name": NAME, "namespace": "kube-system"},
            "Role",
            "extension-apiserver-authentication-reader",
            subject,
        ),
    ]


def _binding(kind: str, metadata: Object, role_kind: str, role: str, subject: Object) -> Object:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": GROUP, "kind": role_kind, "name": role},
        "subjects": [subject],
    }


def _files(cluster: Cluster) -> list[Object]:
    pki = cluster.lab.pki
    data = {
        key: _encoded((pki / f"{NAME}.{end}").read_bytes()) for key, end in (("tls.crt", "crt"), ("tls.key", "key"))
    }
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": META, "type": "kubernetes.io/tls", "data": data},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": META,
            "data": {"config.yaml": json.dumps(rules(), indent=1)},
        },
    ]


def _service() -> Object:
    ports = [{"name": "https", "port": 443, "targetPort": PORT}]
    return {"apiVersion": "v1", "kind": "Service", "metadata": META, "spec": {"selector": LABELS, "ports": ports}}


def _deployment() -> Object:
    container = {
        "name": NAME,
        "image": "localhost/lab/prometheus-adapter:1",
        "args": [
            f"--secure-port={PORT}",
            "--tls-cert-file=/keys/tls.crt",
            "--tls-private-key-file=/keys/tls.key",
            "--config=/config/config.yaml",
            f"--prometheus-url=http://{prometheus.NAME}.{prometheus.NAMESPACE}.svc:{prometheus.PORT}/",
            f"--metrics-relist-interval={RELIST}",
            f"--metrics-max-age={MAX_AGE}",
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": PORT, "scheme": "HTTPS"}, "periodSeconds": 1},
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "keys", "mountPath": "/keys"},
            {"name": "config", "mountPath": "/config"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    pod = {
        "serviceAccountName": NAME,
        "containers": [container],
        "volumes": [
            {"name": "keys", "secret": {"secretName": NAME}},
            {"name": "config", "configMap": {"name": NAME}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": META,
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        },
    }


def _api(cluster: Cluster, group: str) -> Object:
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": _api_name(group)},
        "spec": {
            "group": group,
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": _encoded((cluster.lab.pki / "ca.crt").read_bytes()),
            "service": {"name": NAME, "namespace": NAMESPACE, "port": 443},
        },
    }


def _api_name(group: str) -> str:
    return f"v1beta1.{group}"


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def settle(cluster: Cluster) -> None:
    for group in APIS:
        path = f"/apis/apiregistration.k8s.io/v1/apiservices/{_api_name(group)}"
        cluster.wait(f"the API {group}", path, lambda found: condition(found, "Available") == "True")


ADDON = Addon(NAME, install, images=(NAME,), deployments=((NAMESPACE, NAME),), settle=settle, needs=(prometheus.NAME,))
