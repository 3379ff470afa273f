"""`llm-ray scaler` as a process of the test, with its own service account, and Ray clusters of fake nodes for it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import AuthenticationV1TokenRequest, V1TokenRequestSpec
from kubernetes.dynamic.exceptions import NotFoundError

from tests.live.support.cluster import Cluster, Object
from tests.live.support.fake_nodes import FakeNodes
from tests.live.support.upgrades import RAY_CLUSTER

ROOT = Path(__file__).parents[3]
CRD = ROOT / "charts" / "llm-ray-scaler" / "files" / "crds" / "llm-ray.io_workergroupscales.yaml"
SCALE = "WorkerGroupScale.llm-ray.io"
HPA = "HorizontalPodAutoscaler.autoscaling"
IDLE = "llm-ray.io/idle-since"
GANG = "ray.io/worker-group-replica-name"
GROUP = "gpu"
LEASE_S = 5
LEASE = "llm-ray-scaler"

RULES: dict[str, Object] = {
    "scales": {"apiGroups": ["llm-ray.io"], "resources": ["workergroupscales"], "verbs": ["get", "list", "watch"]},
    "status": {"apiGroups": ["llm-ray.io"], "resources": ["workergroupscales/status"], "verbs": ["patch"]},
    "rayclusters": {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["get", "list", "watch", "patch"]},
    "rayservices": {"apiGroups": ["ray.io"], "resources": ["rayservices"], "verbs": ["get", "list", "watch"]},
    "pods": {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    "events": {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    "hpas": {
        "apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": ["get", "list", "watch"],
    },
    "leases": {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
}  # fmt: skip
"""All that the scaler needs, as in its chart."""


def install_crd(cluster: Cluster) -> None:
    if cluster.get("CustomResourceDefinition", "workergroupscales.llm-ray.io") is None:
        cluster.apply(yaml.safe_load(CRD.read_text()))
    deadline = time.monotonic() + 30
    while not _is_established(cluster):
        assert time.monotonic() < deadline, "the API server does not serve workergroupscales"
        time.sleep(0.2)
    cluster.dynamic.resources.invalidate_cache()


def _is_established(cluster: Cluster) -> bool:
    found = cluster.get("CustomResourceDefinition", "workergroupscales.llm-ray.io") or {}
    conditions = (found.get("status") or {}).get("conditions") or []
    return any((one["type"], one["status"]) == ("Established", "True") for one in conditions)


def kubeconfig_for(
    cluster: Cluster, namespace: str, folder: Path, rules: Sequence[Object], name: str = "scaler"
) -> Path:
    """Of a service account that may do what the rules say in its namespace, and nothing else."""
    metadata = {"name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    rbac = "rbac.authorization.k8s.io/v1"
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": rbac, "kind": "Role", "metadata": metadata, "rules": list(rules)},
        {"apiVersion": rbac, "kind": "RoleBinding", "metadata": metadata, "subjects": [subject], "roleRef": reference},
        namespace=namespace,
    )
    request = AuthenticationV1TokenRequest(spec=V1TokenRequestSpec(audiences=[], expiration_seconds=7200))
    token = cluster.core.create_namespaced_service_account_token(name, namespace, request).status.token
    made = yaml.safe_load(cluster.kubeconfig.read_text())
    made["users"] = [{"name": name, "user": {"token": token}}]
    for context in made["contexts"]:
        context["context"]["user"] = name
    path = folder / f"{namespace}-{name}.kubeconfig"
    path.write_text(yaml.safe_dump(made))
    return path


@dataclass
class Scaler:
    """One process. Its log goes on in the same file when it is started again."""

    namespace: str
    kubeconfig: Path
    log: Path
    flags: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        words = ["scaler", "--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace, *self.flags]
        lease = ["--lease-namespace", self.namespace, "--lease-name", LEASE, "--lease-s", str(LEASE_S)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "llm_ray.cli", *words, *lease],
                stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT / "app")},
            )  # fmt: skip

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, signum: int) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(signum)
        status = self.process.wait(30)
        self.process = None
        return status

    def keep_alive(self) -> None:
        """As Kubernetes does: a process that has ended is started again."""
        if self.process is None or self.process.poll() is not None:
            self.start()

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def identity(self) -> str:
        """As which it leads, or led last."""
        found = re.findall(r"event=leading identity=(\S+)", self.text())
        return found[-1] if found else ""


@contextmanager
def running(cluster: Cluster, namespace: str, folder: Path, **missing: bool) -> Iterator[Scaler]:
    """With the rights of RULES, without those that are named False."""
    rules = [rule for name, rule in RULES.items() if missing.get(name, True)]
    scaler = Scaler(namespace, kubeconfig_for(cluster, namespace, folder, rules), folder / f"{namespace}.log")
    scaler.start()
    try:
        yield scaler
    finally:
        with contextlib.suppress(ProcessLookupError):
            scaler.kill()


def template(nodes: FakeNodes) -> Object:
    container = {
        "name": "ray",
        "image": "localhost/never-started:1",
        "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}},
    }
    return {"spec": {**nodes.placement, "containers": [container]}}


def cluster_spec(nodes: FakeNodes, hosts: int, replicas: int = 1, **group: Any) -> Object:
    return {
        "rayVersion": "2.60.0",
        "headGroupSpec": {"rayStartParams": {}, "template": template(nodes)},
        "workerGroupSpecs": [
            {
                "groupName": GROUP,
                "replicas": replicas,
                "minReplicas": 0,
                "maxReplicas": 8,
                "numOfHosts": hosts,
                "rayStartParams": {},
                "template": template(nodes),
                **group,
            }
        ],
    }


def ray_cluster(name: str, spec: Object, **metadata: Any) -> Object:
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name, **metadata}, "spec": spec}


def worker_group_scale(name: str, target: str = "", kind: str = "RayCluster", **spec: Any) -> Object:
    reference = {"apiVersion": "ray.io/v1", "kind": kind, "name": target or name}
    return {
        "apiVersion": "llm-ray.io/v1alpha1",
        "kind": "WorkerGroupScale",
        "metadata": {"name": name},
        "spec": {"target": reference, "groupName": GROUP, **spec},
    }


@dataclass(frozen=True)
class Target:
    """A WorkerGroupScale and the RayCluster that it scales, both of one name, seen through the API."""

    cluster: Cluster
    namespace: str
    name: str
    hosts: int

    def scale(self) -> Object:
        found = self.cluster.get(SCALE, self.name, self.namespace)
        assert found is not None
        return found

    def ask(self, replicas: int) -> None:
        """As an HPA does."""
        self.cluster.patch(SCALE, self.name, self.namespace, {"spec": {"replicas": replicas}}, "scale")

    def group(self) -> Object:
        found = self.cluster.get(RAY_CLUSTER, self.name, self.namespace)
        assert found is not None
        group: Object = found["spec"]["workerGroupSpecs"][0]
        return group

    def rewrite(self, replicas: int) -> None:
        """As the operator does, or a person."""
        path = "/spec/workerGroupSpecs/0/replicas"
        self.cluster.patch(RAY_CLUSTER, self.name, self.namespace, [{"op": "add", "path": path, "value": replicas}])

    def pods(self) -> list[Object]:
        return self.cluster.pods(self.namespace, f"ray.io/cluster={self.name},ray.io/group={GROUP}")

    def gangs(self) -> dict[str, list[Object]]:
        """All pods, also those that end."""
        found: dict[str, list[Object]] = {}
        for pod in self.pods():
            found.setdefault(gang_of(pod, self.hosts), []).append(pod)
        return found

    def set_idle(self, gang: str, since: str | None) -> None:
        """As the deployer does. A pod may be gone by now."""
        for pod in self.gangs().get(gang, []):
            body = {"metadata": {"annotations": {IDLE: since}}}
            with contextlib.suppress(NotFoundError):
                self.cluster.patch("Pod", pod["metadata"]["name"], self.namespace, body)

    def conditions(self) -> dict[str, Object]:
        found = (self.scale().get("status") or {}).get("conditions") or []
        return {one["type"]: one for one in found}

    def ready(self) -> tuple[str, str]:
        """Reason and message of the condition Ready."""
        found: Mapping[str, str] = self.conditions().get("Ready") or {}
        return found.get("reason", ""), found.get("message", "")

    def events(self) -> list[Object]:
        found = self.cluster.events(self.namespace)
        own = {"kind": "WorkerGroupScale", "name": self.name}
        return [one for one in found if own.items() <= one["involvedObject"].items()]


def gang_of(pod: Mapping[str, Any], hosts: int) -> str:
    name: str = pod["metadata"]["labels"][GANG] if hosts > 1 else pod["metadata"]["name"]
    return name
