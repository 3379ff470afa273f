"""Small HTTP servers for the deployer's tests: three calls of the Kubernetes API, and Serve's REST API."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "service-account-token"
NAMESPACE = "team-a"
SERVING = "llm-ray.io/serving"


@dataclass
class Server:
    """A handler's answers and what it saw. `is_down`: it answers 503 to everything."""

    port: int = 0
    is_down: bool = False
    requests: list[tuple[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, method: str, path: str, query: dict[str, str], headers: Any, body: bytes) -> tuple[int, Any]:
        raise NotImplementedError


@contextmanager
def listening(server: Server, port: int = 0) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet, or the client waits 40 ms for the second

        def handle_any(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server.requests.append((self.command, url.path))
            answer = (
                (503, "down") if server.is_down else server.answer(self.command, url.path, query, self.headers, body)
            )
            content = (answer[1] if isinstance(answer[1], str) else json.dumps(answer[1])).encode()
            self.send_response(answer[0])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_PATCH = handle_any

        def log_message(self, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    http.daemon_threads = True
    server.port = http.server_address[1]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def pod(name: str, ip: str, cluster: str = "ray-1", node_type: str = "worker", ready: bool = True) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "labels": {"ray.io/cluster": cluster, "ray.io/node-type": node_type, "app": "kept"},
        },
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


@dataclass
class KubernetesAPI(Server):
    """Pods by label, merge patches of one pod, and RayServices; with the checks that a real one makes."""

    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    services: dict[str, dict[str, Any]] = field(default_factory=dict)
    patches: list[tuple[str, Any]] = field(default_factory=list)
    forbids: str = ""

    def add(self, *pods: dict[str, Any]) -> None:
        self.pods |= {pod["metadata"]["name"]: pod for pod in pods}

    def labelled(self) -> set[str]:
        return {name for name, pod in self.pods.items() if pod["metadata"]["labels"].get(SERVING) == "true"}

    def label(self, name: str) -> None:
        self.pods[name]["metadata"]["labels"][SERVING] = "true"

    def answer(self, method: str, path: str, query: dict[str, str], headers: Any, body: bytes) -> tuple[int, Any]:
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"kind": "Status", "message": "Unauthorized"}
        if method == self.forbids:
            return 403, {"kind": "Status", "message": f"cannot {method}"}
        match path.strip("/").split("/"):
            case ["api", "v1", "namespaces", namespace, "pods"] if method == "GET" and namespace == NAMESPACE:
                wanted = dict(term.split("=") for term in query.get("labelSelector", "").split(",") if term)
                found = [pod for pod in self.pods.values() if wanted.items() <= pod["metadata"]["labels"].items()]
                return 200, {"kind": "PodList", "items": found}
            case ["api", "v1", "namespaces", namespace, "pods", name] if method == "PATCH" and namespace == NAMESPACE:
                return self._patch(name, headers, json.loads(body))
            case ["apis", "ray.io", "v1", "namespaces", namespace, "rayservices", name] if namespace == NAMESPACE:
                return (200, self.services[name]) if name in self.services else (404, {"message": "not found"})
        return 404, {"message": "not found"}

    def _patch(self, name: str, headers: Any, patch: Any) -> tuple[int, Any]:
        if headers.get("Content-Type") != "application/merge-patch+json":
            return 415, {"message": "unsupported media type"}
        if name not in self.pods:
            return 404, {"message": "not found"}
        self.patches.append((name, patch))
        self.pods[name] = merged(self.pods[name], patch)
        return 200, self.pods[name]


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


@contextmanager
def kubernetes_api(folder: Path) -> Iterator[tuple[KubernetesAPI, Path]]:
    """The server, and a kubeconfig that leads to it."""
    api = KubernetesAPI()
    with listening(api):
        path = folder / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": api.url}}],
                    "users": [{"name": "u", "user": {"token": TOKEN}}],
                }
            )
        )
        yield api, path


@dataclass
class Dashboard(Server):
    """Serve's REST API without Serve: applications as the test sets them, PUTs kept, proxies by address."""

    controller: str | None = None
    apps: dict[str, dict[str, Any]] = field(default_factory=dict)
    proxies: dict[str, str] = field(default_factory=dict)
    puts: list[Any] = field(default_factory=list)
    refusal: tuple[int, str] | None = None
    token: str = ""
    new_status: str = "RUNNING"
    starts: Iterator[int] = field(default_factory=itertools.count)

    def answer(self, method: str, path: str, query: dict[str, str], headers: Any, body: bytes) -> tuple[int, Any]:
        if self.token and headers.get("Authorization") != f"Bearer {self.token}":
            return 401, "Unauthorized: missing token"
        assert path == "/api/serve/applications/"
        if method == "PUT":
            self.puts.append(json.loads(body))
            if self.refusal is not None:
                return self.refusal
            self.controller = self.controller or f"controller-{next(self.starts)}"
            self.apps = {app["name"]: deployed(app, self.new_status) for app in self.puts[-1]["applications"]}
            return 200, ""
        if self.controller is None:
            return 200, {"controller_info": {}, "proxies": {}, "applications": {}, "target_capacity": None}
        proxies = {
            f"node-{ip}": {"node_ip": ip, "status": status, "actor_id": f"proxy-{ip}"}
            for ip, status in self.proxies.items()
        }
        return 200, {"controller_info": {"actor_id": self.controller}, "proxies": proxies, "applications": self.apps}

    def restart(self) -> None:
        """A new head: Serve is gone."""
        self.controller, self.apps, self.proxies = None, {}, {}


def deployed(config: dict[str, Any], status: str = "RUNNING") -> dict[str, Any]:
    """What Serve tells of an application: its deployments only once it is built."""
    deployment = {"target_num_replicas": 1, "replicas": [{"state": "RUNNING"}]}
    deployments = {"D": deployment} if status == "RUNNING" else {}
    return {"status": status, "message": "", "deployed_app_config": config, "deployments": deployments}
