"""Prometheus and the metrics APIs, and pods that play Ray to them: labels and ports are those that KubeRay makes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes.dynamic.exceptions import NotFoundError

from tests.live.support.clients import client_pod
from tests.live.support.cluster import Cluster, Object
from tests.support.chart import Objects
from tests.support.operator import judge

PROMETHEUS = "app.kubernetes.io/name=prometheus"
METRICS_PORT = 8080
RUNNING, WAITING = "ray_serve_replica_processing_queries", "ray_serve_deployment_queued_queries"

EXPORTER = f"""
import http.server
waiting = "0"
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        lines = [f'{RUNNING}{{{{application="llm"}}}} 1', f'{WAITING}{{{{application="llm"}}}} {{waiting}}']
        body = ("\\n".join(lines) + "\\n").encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
    def do_PUT(self):
        global waiting
        waiting = self.path.strip("/")
        self.send_response(204)
        self.end_headers()
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("", {METRICS_PORT}), Handler).serve_forever()
"""
SET = f"""
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", {METRICS_PORT}, timeout=10)
connection.request("PUT", "/" + sys.argv[1])
assert connection.getresponse().status == 204
"""


@dataclass(frozen=True)
class Metrics:
    """What the cluster's Prometheus and the APIs behind it know."""

    cluster: Cluster

    def query(self, promql: str) -> list[Object]:
        """Labels and value of each series."""
        [service] = self.cluster.list("Service", labels=PROMETHEUS)
        where, port = service["metadata"], service["spec"]["ports"][0]["port"]
        base = f"/api/v1/namespaces/{where['namespace']}/services/{where['name']}:{port}/proxy"
        answer = self._get(f"{base}/api/v1/query", {"query": promql})
        found: list[Object] = (answer or {"data": {"result": []}})["data"]["result"]
        return found

    def external(self, namespace: str, name: str, labels: Mapping[str, str]) -> list[str]:
        """Values of an external metric."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{name}"
        return [one["value"] for one in (self._get(path, {"labelSelector": selector}) or {"items": []})["items"]]

    def of_pods(self, namespace: str, name: str) -> dict[str, str]:
        """A custom metric: value by pod."""
        answer = self._get(f"/apis/custom.metrics.k8s.io/v1beta1/namespaces/{namespace}/pods/*/{name}", {})
        return {one["describedObject"]["name"]: one["value"] for one in (answer or {"items": []})["items"]}

    def _get(self, path: str, query: Mapping[str, str]) -> Any:
        """None while there is nothing of that name."""
        try:
            answer = self.cluster.dynamic.request("GET", path, query_params=list(query.items()), serialize=False)
        except NotFoundError:
            return None
        return json.loads(answer.data)


def stand_ins(objects: Objects, image: str) -> dict[str, Object]:
    """By worker group: the pod that the operator makes for the rendered release, with an exporter in it for Ray."""
    [owner] = [one for one in objects if one["kind"] in ("RayCluster", "RayService")]
    made = {}
    for pod in judge([owner])[0].pods:
        labels = pod["metadata"]["labels"]
        group = labels["ray.io/group"]
        stand_in = client_pod(f"exporter-{group}", image, labels)
        [container] = stand_in["spec"]["containers"]
        container["command"] = ["python", "-c", EXPORTER]
        container["ports"] = pod["spec"]["containers"][0]["ports"]
        container["readinessProbe"] = {"tcpSocket": {"port": METRICS_PORT}, "periodSeconds": 1}
        made[group] = stand_in
    return made


def set_waiting(cluster: Cluster, namespace: str, group: str, count: int) -> None:
    ran = cluster.exec(namespace, f"exporter-{group}", ["python", "-c", SET, str(count)])
    assert ran.status == 0, ran.stderr


def sleepers(name: str, image: str) -> Object:
    """A Deployment of one pod that does nothing, to be scaled."""
    labels = {"app": name}
    pod = client_pod(name, image, labels)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
        },
    }
