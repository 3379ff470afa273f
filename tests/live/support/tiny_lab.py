"""A second lab for one file of tests, beside the cluster under test: an API server and its controllers, no more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from ci.lab.programs import manifests
from ci.lab.settings import LONGEST_NAME, settings
from kubernetes.dynamic.exceptions import NotFoundError

from tests.live.support.cluster import Cluster, Object, connect
from tests.live.support.helm import Helm
from tests.live.support.namespaces import unique_name
from tests.live.support.waiting import Waiter

ROOT = Path(__file__).parents[3]
UP_S = 240
CRD, KIND = "rayclusters.ray.io", "CustomResourceDefinition"
PUBLISHED = "/openapi/v3/apis/ray.io/v1"


@dataclass(frozen=True)
class TinyLab:
    """Namespaces stay: they go with the lab. A Helm with its own home remembers no kinds of another moment."""

    cluster: Cluster
    home: Path

    @property
    def wait(self) -> Waiter:
        return Waiter(self.cluster)

    def helm(self, version: str) -> Helm:
        return Helm(version, self.cluster.kubeconfig, self.home / unique_name(version))

    def namespace(self) -> str:
        name = unique_name("bad-input")
        self.cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.wait("what every namespace has", lambda: len(self.cluster.inventory(name)) >= 2, 30)
        return name


@contextmanager
def tiny_lab(home: Path) -> Iterator[TinyLab]:
    """Down at the end, whatever happened; one that an earlier run left is taken down first."""
    _command("down")
    try:
        _command("up", "--profile", "api")
        yield TinyLab(connect(Path(_command("kubeconfig").strip())), home)
    finally:
        _command("down", "--purge")


def _command(*words: str) -> str:
    environment = os.environ | _own() | {"PYTHONPATH": str(ROOT / "app")}
    command = [sys.executable, "-m", "ci.lab", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=UP_S)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def _own() -> dict[str, str]:
    """A name and a net that follow from those of the lab under test, of which there may be several on this machine."""
    lab = settings()
    octet = int(lab.net.partition(".")[2])
    return {"LAB_NAME": f"{lab.name[: LONGEST_NAME - 3]}api", "LAB_NET": f"10.{150 + octet % 50}", "LAB_NODES": "0"}


@contextmanager
def ray_cluster_kind(lab: TinyLab, without: str = "") -> Iterator[None]:
    """The cluster knows RayClusters, and nothing acts on them; a CRD of an older operator lacks a field of the spec."""
    lab.cluster.apply(_crd(without))
    lab.wait("the kind RayCluster", lambda: _is_served(lab.cluster, without), 60)
    try:
        yield
    finally:
        lab.cluster.delete(KIND, CRD)
        lab.wait("no kind RayCluster", lambda: lab.cluster.get(KIND, CRD) is None, 60)


def _crd(without: str) -> Object:
    path = manifests("kuberay") / "crd" / "bases" / "ray.io_rayclusters.yaml"
    crd: Object = yaml.load(path.read_text(), yaml.CSafeLoader)
    if without:
        [version] = [one for one in crd["spec"]["versions"] if one["name"] == "v1"]
        del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][without]
    return crd


def _is_served(cluster: Cluster, without: str) -> bool:
    """By what the API server publishes, which is the last to follow a change."""
    try:
        published = cluster.dynamic.request("GET", PUBLISHED, serialize=False).data.decode()
    except NotFoundError:
        return False
    return '"RayCluster"' in published and not (without and f'"{without}"' in published)
