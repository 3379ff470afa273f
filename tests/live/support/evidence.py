"""What a failed test leaves: one folder with events, objects, logs of pods and of Ray, and what Helm knows."""

from __future__ import annotations

import base64
import binascii
import io
import re
import shutil
import tarfile
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.live.support.cluster import Cluster, event_time
from tests.live.support.helm import Helm, HelmError
from tests.live.support.waiting import containers_of, describe_event, describe_pod

RAY_POD = "ray.io/cluster"
RAY_LOGS = "cd /tmp/ray/session_latest/ && tar cz --ignore-failed-read logs 2>/dev/null | base64 -w0"
RAY_LOGS_S = 60
SECRET_KINDS = ("secrets.core",)


@dataclass(frozen=True)
class Collector:
    cluster: Cluster
    helm: Helm
    root: Path

    def collect(self, test: str, report: str, namespaces: Iterable[str]) -> Path:
        """Everything that can still be had; what fails is noted beside the rest and stops nothing."""
        folder = self.root / folder_name(test)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "failure.txt").write_text(report)
        self._note(folder, "nodes.yaml", lambda: _yaml(self.cluster.list("Node")))
        for namespace in list(namespaces):
            home = folder / namespace
            home.mkdir(exist_ok=True)
            self._note(home, "events.txt", lambda name=namespace: self._events(name))
            self._note(home, "pods.txt", lambda name=namespace: self._pods(name))
            self._note(home, "objects", lambda name=namespace, to=home: self._objects(name, to / "objects"))
            self._note(home, "logs", lambda name=namespace, to=home: self._logs(name, to / "logs"))
            self._note(home, "ray", lambda name=namespace, to=home: self._ray_logs(name, to / "ray"))
            self._note(home, "helm", lambda name=namespace, to=home: self._helm(name, to / "helm"))
        return folder

    def _note(self, folder: Path, name: str, make: Callable[[], str | None]) -> None:
        try:
            text = make()
        except Exception:  # evidence of the failure must not hide the failure
            text, name = traceback.format_exc(), f"{name}-not-collected.txt"
        if text is not None:
            (folder / name).write_text(text)

    def _events(self, namespace: str) -> str:
        events = self.cluster.events(namespace)
        return "\n".join(f"{event_time(event)} {event.get('type')} {describe_event(event)}" for event in events)

    def _pods(self, namespace: str) -> str:
        return "\n".join(describe_pod(pod) for pod in self.cluster.pods(namespace))

    def _objects(self, namespace: str, folder: Path) -> None:
        """A file per kind. Of Secrets only the names."""
        folder.mkdir(exist_ok=True)
        for kind, objects in self.cluster.objects(namespace).items():
            for one in objects:
                one["metadata"].pop("managedFields", None)
            names = [one["metadata"]["name"] for one in objects]
            (folder / f"{kind}.yaml").write_text(_yaml(names if kind in SECRET_KINDS else objects))

    def _logs(self, namespace: str, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        for pod in self.cluster.pods(namespace):
            for container in containers_of(pod):
                name = f"{pod['metadata']['name']}.{container['name']}"
                for is_previous, suffix in ((False, "log"), (True, "previous.log")):
                    if is_previous and not container.get("restartCount"):
                        continue
                    text = self.cluster.logs(namespace, pod["metadata"]["name"], container["name"], is_previous)
                    (folder / f"{name}.{suffix}").write_text(text)

    def _ray_logs(self, namespace: str, folder: Path) -> None:
        for pod in self.cluster.pods(namespace, RAY_POD):
            name = pod["metadata"]["name"]
            container = pod["spec"]["containers"][0]["name"]
            running = [one for one in containers_of(pod) if one["name"] == container and "running" in one["state"]]
            if running:
                ran = self.cluster.exec(namespace, name, ["sh", "-c", RAY_LOGS], container, RAY_LOGS_S)
                unpack(ran.stdout, folder / name)

    def _helm(self, namespace: str, folder: Path) -> None:
        for release in self.helm.releases(namespace):
            folder.mkdir(exist_ok=True)
            for what in ("manifest", "values", "notes"):
                (folder / f"{release}.{what}").write_text(self.helm.get(what, release, namespace))
            try:
                (folder / f"{release}.status").write_text(_yaml(self.helm.status(release, namespace)))
                (folder / f"{release}.history").write_text(_yaml(self.helm.history(release, namespace)))
            except HelmError as error:
                (folder / f"{release}.status").write_text(str(error))


def folder_name(test: str) -> str:
    """`tests/live/test_a.py::test_b[c d]` → `test_a.test_b-c-d`."""
    path, _, name = test.partition(".py::")
    short = f"{path.rpartition('/')[2]}.{name}" if name else path
    return re.sub(r"[^A-Za-z0-9._]+", "-", short).strip("-")[:150]


def unpack(encoded: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(encoded)), mode="r:gz") as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, binascii.Error, EOFError, OSError) as error:
        (folder / "incomplete.txt").write_text(f"{error}: {len(encoded)} characters of base64 came")


def _yaml(content: object) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=140)
