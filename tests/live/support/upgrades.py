"""The ways in which people bring the chart to a cluster, and what upgrades are judged by: who wrote which count."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import yaml
from ci.lab.programs import program

from tests.live.support.cluster import Cluster, Object
from tests.live.support.helm import Helm, HelmError
from tests.live.support.waiting import Waiter
from tests.support.chart import render

RAY_CLUSTER, RAY_SERVICE = "RayCluster.ray.io", "RayService.ray.io"
OWNER = "ray.io/originated-from-cr-name"
HOOK = "helm.sh/hook"
AUTOSCALER, SCALER = "ray-autoscaler", "llm-ray-scaler"
NOWHERE = {"nodeSelector": {"llm-ray.io/no-such-node": "true"}}
SOON_S = 60

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Release:
    """A release, whatever applies it, seen through the API; `group` is the worker group whose count is looked at.

    Methods that take the name of a RayCluster mean the chart's own when they are given none.
    """

    cluster: Cluster
    wait: Waiter
    namespace: str
    name: str = "llm"
    group: str = "worker"

    @property
    def fullname(self) -> str:
        return f"{self.name}-llm-ray"

    def service(self) -> Object:
        return self._object(RAY_SERVICE, self.fullname)

    def ray_cluster(self, name: str = "") -> Object:
        return self._object(RAY_CLUSTER, name or self.fullname)

    def _object(self, kind: str, name: str) -> Object:
        found = self.cluster.get(kind, name, self.namespace)
        assert found is not None, f"no {kind} {name}"
        return found

    def generated(self) -> list[str]:
        """Names of the RayClusters that the RayService has now, oldest first."""
        found = self.cluster.list(RAY_CLUSTER, self.namespace, f"{OWNER}={self.fullname}")
        alive = [one["metadata"] for one in found if not one["metadata"].get("deletionTimestamp")]
        return [one["name"] for one in sorted(alive, key=lambda one: one["creationTimestamp"])]

    def first_generated(self) -> str:
        what = f"a cluster of {self.fullname}"
        return self.wait(what, self.generated, SOON_S, watching=self.namespace, last_seen=self.service)[0]

    def count(self, name: str = "") -> int:
        """What spec.replicas of the group says in the API server."""
        groups = self.ray_cluster(name)["spec"]["workerGroupSpecs"]
        [found] = [one for one in groups if one["groupName"] == self.group]
        return int(found["replicas"])

    def scale(self, count: int, name: str = "", manager: str = SCALER) -> None:
        """Play the scaler: one number by JSON patch. Under test is what Helm and KubeRay make of it."""
        groups = self.ray_cluster(name)["spec"]["workerGroupSpecs"]
        [index] = [number for number, one in enumerate(groups) if one["groupName"] == self.group]
        self.cluster.resource(RAY_CLUSTER).patch(
            body=[{"op": "add", "path": f"/spec/workerGroupSpecs/{index}/replicas", "value": count}],
            name=name or self.fullname, namespace=self.namespace, field_manager=manager,
            content_type="application/json-patch+json",
        )  # fmt: skip

    def pods(self, name: str = "") -> dict[str, str]:
        """The group's pods that are not on their way out, each with the image of its Ray container."""
        labels = f"ray.io/cluster={name or self.fullname},ray.io/group={self.group}"
        alive = [
            one for one in self.cluster.pods(self.namespace, labels) if not one["metadata"].get("deletionTimestamp")
        ]
        return {one["metadata"]["name"]: one["spec"]["containers"][0]["image"] for one in alive}

    def wait_for_pods(self, count: int, name: str = "", image: str = "") -> dict[str, str]:
        """Until there are so many, all of that image if one is given."""

        def fit() -> bool:
            found = self.pods(name)
            return len(found) == count and (not image or set(found.values()) == {image})

        what = f"{count} pods {image} of {self.name}, group {self.group}"
        self.wait(what, fit, SOON_S, watching=self.namespace, last_seen=lambda: self.pods(name))
        return self.pods(name)

    def let_the_operator_look_again(self) -> None:
        """A RayService that comes now and gets its cluster shows that everything before it has been considered."""
        metadata = {"generateName": f"later-{self.name}-"}
        later = {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": metadata, "spec": self.service()["spec"]}
        name = self.cluster.create(later, self.namespace)["metadata"]["name"]

        def has_cluster() -> bool:
            return bool(self.cluster.list(RAY_CLUSTER, self.namespace, f"{OWNER}={name}"))

        self.wait(f"a cluster of {name}", has_cluster, SOON_S, watching=self.namespace)
        self.cluster.delete(RAY_SERVICE, name, self.namespace)


class ApplyError(Exception):
    """The tool failed; the message is what it says."""


class Way(Protocol):
    """One way of applying the chart. Raises ApplyError."""

    def install(self, release: Release, values: Values) -> None: ...
    def upgrade(self, release: Release, values: Values, *, force: bool = False) -> None: ...


@dataclass(frozen=True)
class ByHelm:
    helm: Helm
    flags: tuple[str, ...] = ()

    def install(self, release: Release, values: Values) -> None:
        self._try(lambda: self.helm.install(release.name, release.namespace, values, extra=self.flags))

    def upgrade(self, release: Release, values: Values, *, force: bool = False) -> None:
        flags = (*self.flags, "--force-conflicts") if force else self.flags
        self._try(lambda: self.helm.upgrade(release.name, release.namespace, values, extra=flags))

    def rollback(self, release: Release, revision: int) -> None:
        self._try(lambda: self.helm.rollback(release.name, release.namespace, revision, self.flags))

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except HelmError as error:
            raise ApplyError(str(error)) from error


@dataclass(frozen=True)
class ByKubectl:
    """`helm template`, then `kubectl apply`, as GitOps tools do."""

    helm: Helm
    flags: tuple[str, ...] = ()

    def install(self, release: Release, values: Values) -> None:
        self.upgrade(release, values)

    def upgrade(self, release: Release, values: Values, *, force: bool = False) -> None:
        rendered = render(values, release=release.name, namespace=release.namespace, helm=self.helm.name)
        objects = [one for one in rendered if HOOK not in (one["metadata"].get("annotations") or {})]
        words = ["apply", *self.flags, *(["--force-conflicts"] if force else []), "-f", "-"]
        kubectl = shutil.which("kubectl") or str(program("kubectl"))
        done = subprocess.run(
            [kubectl, "--kubeconfig", str(self.helm.kubeconfig), *words],
            input=yaml.safe_dump_all(objects), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        if done.returncode:
            raise ApplyError(done.stderr.strip())


WAYS: dict[str, Callable[[Mapping[str, Helm]], Way]] = {
    "helm3": lambda helms: ByHelm(helms["helm3"]),
    "helm4": lambda helms: ByHelm(helms["helm4"]),
    "helm4-client-side": lambda helms: ByHelm(helms["helm4"], ("--server-side=false",)),
    "kubectl": lambda helms: ByKubectl(helms["helm4"]),
    "kubectl-server-side": lambda helms: ByKubectl(helms["helm4"], ("--server-side",)),
}


def waiting_values(mode: str, *changes: Values) -> dict[str, Any]:
    """Of a release whose pods are objects only: no node takes them, so no image is needed."""
    count = {"replicas": 1} if mode == "fixed" else {"minReplicas": 1, "maxReplicas": 8}
    made: dict[str, Any] = {
        "image": {"registry": "localhost", "repository": "never-started", "tag": "1"},
        "autoscaling": {"mode": mode},
        "head": NOWHERE,
        "workers": {"worker": {**NOWHERE, **count}},
    }
    for change in changes:
        made = merged(made, change)
    return made


def merged(below: Any, above: Any) -> Any:
    """As Helm lays one values file over another."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}
