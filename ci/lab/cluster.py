"""The lab's API server as its administrator sees it: objects go in by server-side apply, answers come as JSON."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.lab.processes import Word, command, wait_for
from ci.lab.programs import manifests, program
from ci.lab.settings import Settings
from ci.tools import binary

Object = dict[str, Any]
Patch = tuple[str, str, object]  # operation, path below the Deployment's pod spec, value
MANAGER = "lab"


@dataclass(frozen=True)
class Cluster:
    """What add-ons are installed into."""

    lab: Settings

    def kubectl(self, *words: Word, check: bool = True, text: str | None = None) -> str:
        return command(program("kubectl"), "--kubeconfig", self.lab.kubeconfig, *words, check=check, text=text).stdout

    def apply(self, objects: Iterable[Object]) -> None:
        """Server-side, since the big CRDs do not fit the annotation that a client-side apply writes."""
        content = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self._apply("-f", "-", text=content)

    def apply_files(self, *paths: Path) -> None:
        self._apply(*(word for path in paths for word in ("-f", path)))

    def kustomize(
        self, part: str, resource: str, namespace: str, patches: Iterable[Patch], extra: Object | None = None
    ) -> None:
        """Apply the manifests that the Go module of a part carries; the patches go to the one Deployment in them."""
        home = self.lab.run / "kustomize" / part
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(manifests(part), home / "base")
        in_pod = [{"op": op, "path": f"/spec/template/spec/{path}", "value": value} for op, path, value in patches]
        described = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": namespace,
            "resources": [f"base/{resource}"],
            "patches": [{"target": {"kind": "Deployment"}, "patch": json.dumps(in_pod)}],
            **(extra or {}),
        }
        (home / "kustomization.yaml").write_text(json.dumps(described))
        self._apply("-k", home)

    def _apply(self, *words: Word, text: str | None = None) -> None:
        self.kubectl("apply", "--server-side", "--force-conflicts", f"--field-manager={MANAGER}", *words, text=text)

    def get(self, path: str) -> Any:
        """The JSON at an API path; None when it is not there or nothing answers."""
        status, body = self._request(path)
        return json.loads(body) if status == 200 else None

    def ready(self) -> bool:
        return self._request("/readyz")[0] == 200

    def wait(self, what: str, path: str, accept: Any, seconds: float = 120) -> None:
        """Return once `accept` says true of the object at an API path. Raises LabError after `seconds`."""

        def probe() -> bool:
            found = self.get(path)
            return found is not None and bool(accept(found))

        wait_for(what, probe, seconds, self.lab.logs)

    def wait_for_deployment(self, namespace: str, name: str, seconds: float = 180) -> None:
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
        self.wait(f"Deployment {namespace}/{name}", path, _is_available, seconds)

    def _request(self, path: str) -> tuple[int, bytes]:
        pki = self.lab.pki
        try:
            context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
            context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
            connection = http.client.HTTPSConnection(self.lab.api_ip, 6443, timeout=10, context=context)
            try:
                connection.request("GET", path, headers={"Accept": "application/json"})
                answer = connection.getresponse()
                return answer.status, answer.read()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException):
            return 0, b""


def condition(found: Object, kind: str) -> str:
    """Status of an object's condition: True, False, Unknown; empty where there is none."""
    conditions = found.get("status", {}).get("conditions", [])
    return next((str(one["status"]) for one in conditions if one["type"] == kind), "")


def _is_available(deployment: Object) -> bool:
    seen = deployment.get("status", {}).get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    return seen and condition(deployment, "Available") == "True"


def environment(lab: Settings) -> dict[str, str]:
    """For commands that talk to this lab: KUBECONFIG, and a PATH with this lab's kubectl and Helm 4."""
    tools = lab.run / "bin"
    tools.mkdir(parents=True, exist_ok=True)
    for name, source in {"kubectl": program("kubectl"), "helm": binary("helm4")}.items():
        if not (tools / name).is_symlink():
            (tools / name).symlink_to(source)
    path = os.environ.get("PATH", "/usr/bin:/bin")
    return {
        "KUBECONFIG": str(lab.kubeconfig),
        "PATH": path if str(tools) in path.split(":") else f"{tools}:{path}",
    }
