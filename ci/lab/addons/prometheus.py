"""Prometheus, and the CRDs of its operator, so that the chart's monitors and rules can be installed.

There is no operator: the scrape job is what one would make of the chart's monitors, for every release at once.
tests/test_lab_metrics.py holds the two together.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from ci import schemas
from ci.lab.addons.addon import Addon
from ci.lab.cluster import Cluster, Object
from ci.lab.errors import LabError

NAME, NAMESPACE, PORT = "prometheus", "monitoring", 9090
LABELS = {"app.kubernetes.io/name": NAME}
META = {"name": NAME, "namespace": NAMESPACE, "labels": LABELS}
GROUP = "rbac.authorization.k8s.io"
OPERATOR = "github.com/prometheus-operator/prometheus-operator"
INTERVAL_S = 3
RELEASE, COMPONENT = "llm-ray.io/name", "app.kubernetes.io/component"
PORTS = ("metrics", "as-metrics", "dash-metrics")
"""Names of the ports that the chart's monitors scrape."""
COPIED = {  # label of a series: the pod's label or other property
    "ray_io_cluster": "label_ray_io_cluster",
    "llm_ray_name": "label_llm_ray_io_name",
    "llm_ray_group": "label_llm_ray_io_group",
    "pod": "name",
    "node": "node_name",
}
OF_POD = "__meta_kubernetes_pod_"


def install(cluster: Cluster) -> None:
    cluster.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
    cluster.apply_files(*_crds())
    cluster.apply([*_rights(), *_service(), _deployment()])


def _crds() -> list[Path]:
    """The files whose schemas judge the chart's monitors offline, at the same pinned version."""
    [source] = [one for one in schemas.sources() if one.module == OPERATOR]
    try:
        home = schemas.module_dir(source, fetch=True)
    except schemas.SchemaError as error:
        raise LabError(f"the CRDs of the Prometheus operator cannot be had: {error}") from error
    return [home / name for name in source.files]


def config() -> Object:
    """Prometheus' configuration: every release of the chart, and itself."""
    return {
        "global": {
            "scrape_interval": f"{INTERVAL_S}s",
            "scrape_timeout": f"{INTERVAL_S}s",
            "evaluation_interval": f"{INTERVAL_S}s",
        },
        "scrape_configs": [
            {
                "job_name": "llm-ray",
                "kubernetes_sd_configs": [{"role": "pod"}],
                "relabel_configs": [_copy("namespace", "__meta_kubernetes_namespace"), *releases()],
                "metric_relabel_configs": [{"action": "labeldrop", "regex": "otel_scope_.*"}],
                "fallback_scrape_protocol": "PrometheusText0.0.4",  # for an answer without a content type
            },
            {"job_name": NAME, "static_configs": [{"targets": [f"127.0.0.1:{PORT}"]}]},
        ],
    }


def releases() -> list[Object]:
    """Which pods of the chart are scraped, on which ports, and the labels of their series."""
    return [
        _keep(f"label_{_key(RELEASE)}", ".+"),
        _keep(f"label_{_key(COMPONENT)}", "head|worker"),
        _keep("container_port_name", "|".join(PORTS)),
        {"action": "drop", "source_labels": [f"{OF_POD}phase"], "regex": "Pending|Succeeded|Failed"},
        *(_copy(name, f"{OF_POD}{source}") for name, source in COPIED.items()),
        _copy("endpoint", f"{OF_POD}container_port_name"),
    ]


def _keep(source: str, regex: str) -> Object:
    return {"action": "keep", "source_labels": [f"{OF_POD}{source}"], "regex": regex}


def _copy(name: str, source: str) -> Object:
    return {"action": "replace", "source_labels": [source], "target_label": name}


def _key(label: str) -> str:
    """A label's key as service discovery writes it."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


def _rights() -> list[Object]:
    role = {"apiGroup": GROUP, "kind": "ClusterRole", "name": NAME}
    watched = {
        "apiGroups": [""],
        "resources": ["pods", "services", "endpoints", "nodes", "namespaces"],
        "verbs": ["get", "list", "watch"],
    }
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": META},
        {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": [watched]},
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": role,
            "subjects": [subject],
        },
    ]


def _service() -> list[Object]:
    ports = [{"name": "http", "port": PORT, "targetPort": PORT}]
    data = {"prometheus.yml": json.dumps(config(), indent=1)}  # which is YAML as well
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": META, "data": data},
        {"apiVersion": "v1", "kind": "Service", "metadata": META, "spec": {"selector": LABELS, "ports": ports}},
    ]


def _deployment() -> Object:
    container = {
        "name": NAME,
        "image": "localhost/lab/prometheus:1",
        "args": [
            "--config.file=/config/prometheus.yml",
            "--storage.tsdb.path=/data",
            "--storage.tsdb.retention.time=1d",
            "--log.level=warn",
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": PORT}, "periodSeconds": 1},
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "config", "mountPath": "/config"}, {"name": "data", "mountPath": "/data"}],
    }
    pod = {
        "serviceAccountName": NAME,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": NAME}}, {"name": "data", "emptyDir": {}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": META,
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        },
    }


ADDON = Addon(NAME, install, images=(NAME,), deployments=((NAMESPACE, NAME),))
