"""Pods that play a client: they sleep, and what a test runs in them reports as JSON. Pod Security restricted fits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.live.support.cluster import Cluster, Object
from tests.live.support.waiting import Waiter

READY_S = 60

SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
POD_SECURITY = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}

STREAM = """
import http.client, json, sys, time
host, port, body = sys.argv[1], int(sys.argv[2]), sys.argv[3]
connection = http.client.HTTPConnection(host, port, timeout=120)
began = time.monotonic()
connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
answer = connection.getresponse()
events = []
if answer.status == 200:
    for line in answer:
        if line.startswith(b"data: "):
            events.append([round(time.monotonic() - began, 4), line[6:].decode().strip()])
text = "" if answer.status == 200 else answer.read().decode()
print(json.dumps({"status": answer.status, "type": answer.getheader("Content-Type"), "events": events, "text": text}))
"""

CONNECT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def outcome(target):
    host, port = target
    try:
        socket.create_connection((host, port), timeout=float(sys.argv[1])).close()
        return "open"
    except TimeoutError:
        return "dropped"
    except OSError as error:
        return f"refused ({error})"
targets = json.loads(sys.argv[2])
with ThreadPoolExecutor(len(targets)) as pool:
    print(json.dumps(list(pool.map(outcome, targets))))
"""


@dataclass(frozen=True)
class Answer:
    """A streamed chat answer: its text, the tokens it was made of, and when each piece came (seconds)."""

    text: str
    tokens: list[str]
    piece_times: list[float]
    finish_reason: str
    is_done: bool


@dataclass(frozen=True)
class Client:
    cluster: Cluster
    namespace: str
    name: str

    def run_json(self, script: str, *arguments: str, timeout_s: float = 150) -> Any:
        command = ["python", "-c", script, *arguments]
        ran = self.cluster.exec(self.namespace, self.name, command, timeout_s=timeout_s)
        assert ran.status == 0, f"in pod {self.name}: {ran.stderr[-2000:]}"
        return json.loads(ran.stdout)

    def chat(self, host: str, port: int, **request: Any) -> Answer:
        """Stream one answer with the token of each piece."""
        body = {"stream": True, "logprobs": True, "temperature": 0} | request
        told = self.run_json(STREAM, host, str(port), json.dumps(body))
        assert told["status"] == 200, f"http://{host}:{port} answers {told['status']}: {told['text'][:1000]}"
        assert told["type"].startswith("text/event-stream")
        return parse_stream(told["events"])

    def reach(self, *targets: tuple[str, int], timeout_s: float = 4) -> list[str]:
        """Of each (address, port): `open`, `dropped` (no answer), or `refused (why)`."""
        outcomes: list[str] = self.run_json(CONNECT, str(timeout_s), json.dumps(targets), timeout_s=timeout_s + 30)
        return outcomes


def parse_stream(events: Sequence[tuple[float, str]]) -> Answer:
    text, tokens, times, reason, is_done = "", [], [], "", False
    for when, data in events:
        assert not is_done, f"an event after [DONE]: {data}"
        if data == "[DONE]":
            is_done = True
            continue
        event = json.loads(data)
        assert "error" not in event, event
        for choice in event["choices"]:
            piece = choice["delta"].get("content") or ""
            entries = (choice.get("logprobs") or {}).get("content") or []
            text, tokens = text + piece, tokens + [entry["token"] for entry in entries]
            times += [when] if piece else []
            reason = choice.get("finish_reason") or reason
    return Answer(text, tokens, times, reason, is_done)


def client_pod(name: str, image: str, labels: Mapping[str, str] | None = None) -> Object:
    container = {
        "name": "client",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": SECURITY,
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": POD_SECURITY,
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec}


def start_client(
    cluster: Cluster, wait: Waiter, namespace: str, image: str, labels: Mapping[str, str] | None = None,
    name: str = "client",
) -> Client:  # fmt: skip
    cluster.create(client_pod(name, image, labels), namespace)
    wait(f"client pod {name}", lambda: is_ready(cluster.get("Pod", name, namespace)), READY_S, watching=namespace)
    return Client(cluster, namespace, name)


def is_ready(pod: Mapping[str, Any] | None) -> bool:
    conditions = ((pod or {}).get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
