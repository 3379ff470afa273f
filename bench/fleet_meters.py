"""What a fleet costs: API requests of each client, and CPU seconds of each program.

The API server counts requests by flow schema. A schema for each client, with the priority that the client has anyway,
makes that a count by client.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.lab import cgroups, control_plane
from ci.lab.processes import Processes
from ci.lab.settings import Settings

from tests.live.support.cluster import Cluster, Object

GROUP = "flowcontrol.apiserver.k8s.io"
RBAC = "rbac.authorization.k8s.io"
PREFIX = "fleet-"
INSTALLER = "fleet-installer"
"""The user as whom releases are installed: an administrator by a role, as administrators by group are not counted."""

Meters = dict[str, dict[str, float]]
Account = tuple[str, str]
CLIENTS: dict[str, tuple[str, list[str | Account]]] = {
    "installer": ("global-default", [INSTALLER]),
    "kuberay-operator": ("workload-low", [("kuberay-system", "kuberay-operator")]),
    "volcano-scheduler": ("workload-low", [("volcano-system", "volcano-scheduler")]),
    "volcano-controllers": ("workload-low", [("volcano-system", "volcano-controllers")]),
    "volcano-admission": ("workload-low", [("volcano-system", "volcano-admission")]),
    "kube-scheduler": ("workload-high", ["system:kube-scheduler"]),
    "kwok": ("workload-high", [("kube-system", "kwok-controller")]),
}
"""Priority level and subjects: users, and service accounts as (namespace, name)."""
OTHER_SCHEMAS = {
    "kube-controller-manager": "kube-controller-manager",
    "kube-system-service-accounts": "kube-controller-manager",
}
"""Kubernetes' own schemas that stand for one client; its controllers have an account each in kube-system."""

PODS = {
    "kuberay-operator": ("kuberay-system", "kuberay-operator"),
    "volcano-scheduler": ("volcano-system", "volcano-scheduler"),
    "volcano-controllers": ("volcano-system", "volcano-controllers"),
    "volcano-admission": ("volcano-system", "volcano-admission"),
    "kwok": ("kube-system", "kwok-controller"),
}
"""Namespace and beginning of the name of what runs in pods."""

QUIET_S = 2
QUIET_REQUESTS = 12

DISPATCHED = re.compile(r'^apiserver_flowcontrol_dispatched_requests_total\{flow_schema="([^"]*)".* (\S+)$', re.M)
REQUESTS = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.M)
LABEL = re.compile(r'(\w+)="([^"]*)"')


@contextmanager
def client_counters(cluster: Cluster) -> Iterator[None]:
    """The flow schemas and the installer's role, for as long as this is open."""
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"apiGroup": RBAC, "kind": "User", "name": INSTALLER}
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": INSTALLER},
        "roleRef": role,
        "subjects": [subject],
    }
    schemas = [_schema(name, *CLIENTS[name]) for name in CLIENTS]
    try:
        cluster.apply(binding, *schemas)
        yield
    finally:
        for one in (*schemas, binding):
            cluster.delete(one["kind"], one["metadata"]["name"])


def _schema(client: str, level: str, subjects: list[str | Account]) -> Object:
    everything = {
        "subjects": [_subject(one) for one in subjects],
        "resourceRules": [
            {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True, "namespaces": ["*"]}
        ],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    }
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "FlowSchema",
        "metadata": {"name": PREFIX + client},
        "spec": {
            "matchingPrecedence": 50,  # before Kubernetes' own for leases and service accounts
            "priorityLevelConfiguration": {"name": level},
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [everything],
        },
    }


def _subject(one: str | Account) -> Object:
    if isinstance(one, str):
        return {"kind": "User", "user": {"name": one}}
    return {"kind": "ServiceAccount", "serviceAccount": {"namespace": one[0], "name": one[1]}}


def read(cluster: Cluster, lab: Settings) -> Meters:
    """All meters now; `spent` takes the difference of two readings."""
    text = _metrics(cluster)
    return {"requests": by_client(text), "kinds": by_kind(text), "cpu": cpu_seconds(cluster, lab)}


def wait_until_quiet(cluster: Cluster, seconds: float = 180) -> None:
    """Until the clients have settled whatever there was to do. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    seen = _but_kwok(cluster)
    while time.monotonic() < deadline:
        time.sleep(QUIET_S)
        before, seen = seen, _but_kwok(cluster)
        if seen - before <= QUIET_REQUESTS:
            return
    raise TimeoutError(
        f"more than {QUIET_REQUESTS} requests in {QUIET_S} s, still after {seconds:g} s: is it all ours?"
    )


def _but_kwok(cluster: Cluster) -> float:
    """Requests of all clients but KWOK, which renews the leases of all its nodes for ever."""
    return sum(count for name, count in by_client(_metrics(cluster)).items() if name != "kwok")


def _metrics(cluster: Cluster) -> str:
    text: str = cluster.dynamic.request("GET", "/metrics", serialize=False).data.decode()
    return text


def spent(before: Meters, after: Meters) -> Meters:
    return {meter: {key: value - before[meter].get(key, 0.0) for key, value in after[meter].items()} for meter in after}


def by_client(metrics: str) -> dict[str, float]:
    """Requests of each client; those of nodes, of the API server itself and of this program are left out."""
    found: dict[str, float] = {}
    for schema, value in DISPATCHED.findall(metrics):
        client = schema.removeprefix(PREFIX) if schema.startswith(PREFIX) else OTHER_SCHEMAS.get(schema)
        if client:
            found[client] = found.get(client, 0.0) + float(value)
    return found


def by_kind(metrics: str) -> dict[str, float]:
    """Requests by verb and resource, of all clients; a watch counts when it ends, and is left out."""
    found: dict[str, float] = {}
    for text, value in REQUESTS.findall(metrics):
        labels = dict(LABEL.findall(text))
        if labels["resource"] and labels["verb"] not in ("WATCH", "CONNECT"):
            key = f"{labels['verb']} {labels['resource']}/{labels['subresource']}".rstrip("/")
            found[key] = found.get(key, 0.0) + float(value)
    return found


def cpu_seconds(cluster: Cluster, lab: Settings) -> dict[str, float]:
    """Of the control plane's processes, of pods, and of the Helms that this process has run."""
    daemons = Processes(lab)
    found = {name: _of_process(daemons.running(name)) for name in control_plane.NAMES}
    for name, (namespace, prefix) in PODS.items():
        uids = [pod["metadata"]["uid"] for pod in cluster.pods(namespace) if pod["metadata"]["name"].startswith(prefix)]
        found[name] = sum(_of_pod(lab, uid) for uid in uids)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found | {"installer": children.ru_utime + children.ru_stime}


def _of_process(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _of_pod(lab: Settings, uid: str) -> float:
    """Raises LookupError when the lab has no cgroup of that pod."""
    is_v2 = (cgroups.ROOT / "cgroup.controllers").exists()
    file = "cpu.stat" if is_v2 else "cpuacct.usage"
    for tree in cgroups.hierarchies():
        for found in (tree / lab.cgroup).rglob(f"pod{uid}/{file}"):
            words = found.read_text().split()
            return int(words[1]) / 1e6 if is_v2 else int(words[0]) / 1e9
    raise LookupError(f"pod {uid} has no cgroup below {lab.cgroup}: this benchmark measures the lab of this machine")
