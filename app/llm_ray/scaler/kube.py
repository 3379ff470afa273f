"""The calls to the Kubernetes API, each answered by the API server itself and not by a cache.

Through the official client's transport, without its generated classes: these cost a second and 90 MB per process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from urllib3.exceptions import HTTPError

from llm_ray.errors import ConfigError, LLMRayError
from llm_ray.naming import CLUSTER_LABEL, GROUP_LABEL, NODE_TYPE_LABEL
from llm_ray.scaler import model
from llm_ray.scaler.model import Autoscaler, Cluster, Key, Pod, Scale, Service

TIMEOUT_S = 10.0
MANAGER = "llm-ray-scaler"
WOKEN_ANNOTATION = "llm-ray.io/scaler-woke-kuberay"
SCALES = f"/apis/{model.API_VERSION}/namespaces/{{namespace}}/{model.PLURAL}"
ALL_SCALES = f"/apis/{model.API_VERSION}/{model.PLURAL}"
CLUSTER = "/apis/ray.io/v1/namespaces/{namespace}/rayclusters/{name}"
SERVICE = "/apis/ray.io/v1/namespaces/{namespace}/rayservices/{name}"
PODS = "/api/v1/namespaces/{namespace}/pods"
EVENTS = "/api/v1/namespaces/{namespace}/events"
AUTOSCALERS = "/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"


class KubernetesError(LLMRayError):
    """The API server does not answer, or refuses."""


class NotFoundError(KubernetesError):
    """The object is gone, or its kind is unknown."""


class ForbiddenError(KubernetesError):
    """The service account lacks a right."""


class ConflictError(KubernetesError):
    """The object is not what it was when it was read, or exists already."""


def connect(kubeconfig: Path | None) -> Configuration:
    """How to reach the API server. The service account's token is read again when it rotates."""
    configuration = Configuration()
    try:
        if kubeconfig is not None:
            load_kube_config(str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError) as error:
        raise ConfigError(
            f"no access to Kubernetes ({error}): run inside a pod with a service account, or give --kubeconfig"
        ) from error
    configuration.retries = 1  # a connection that was kept alive may be closed by now
    return configuration


class Kubernetes:
    """May be used by several threads."""

    def __init__(self, configuration: Configuration) -> None:
        self._client = ApiClient(configuration)

    def scales(self, namespace: str) -> list[Scale]:
        path, names = (SCALES, {"namespace": namespace}) if namespace else (ALL_SCALES, {})
        return [model.parse_scale(one) for one in self._items("list", model.PLURAL, path, names)]

    def service(self, namespace: str, name: str) -> Service:
        names = {"namespace": namespace, "name": name}
        return model.parse_service(self._call("get", "rayservices.ray.io", SERVICE, names))

    def cluster(self, namespace: str, name: str) -> Cluster:
        names = {"namespace": namespace, "name": name}
        return model.parse_cluster(self._call("get", "rayclusters.ray.io", CLUSTER, names))

    def pods(self, namespace: str, cluster: str, group: str) -> tuple[list[Pod], str]:
        """And the resource version of the list."""
        selector = f"{CLUSTER_LABEL}={cluster},{GROUP_LABEL}={group},{NODE_TYPE_LABEL}=worker"
        answer = self._call("list", "pods", PODS, {"namespace": namespace}, [("labelSelector", selector)])
        found = [model.parse_pod(one) for one in answer.get("items") or []]
        return found, str(answer["metadata"]["resourceVersion"])

    def autoscalers(self, namespace: str) -> list[Autoscaler]:
        kind = "horizontalpodautoscalers.autoscaling"
        found = self._items("list", kind, AUTOSCALERS, {"namespace": namespace})
        return [model.parse_autoscaler(one) for one in found]

    def patch_cluster(self, namespace: str, name: str, operations: Sequence[Mapping[str, Any]]) -> None:
        """Raises ConflictError when a test of the patch fails."""
        names = {"namespace": namespace, "name": name}
        self._call("patch", "rayclusters.ray.io", CLUSTER, names, body=list(operations), content_type=JSON_PATCH)

    def wake(self, namespace: str, name: str, now: str) -> None:
        """A new annotation is what KubeRay looks at the cluster for."""
        names, body = {"namespace": namespace, "name": name}, {"metadata": {"annotations": {WOKEN_ANNOTATION: now}}}
        self._call("patch", "rayclusters.ray.io", CLUSTER, names, body=body, content_type=MERGE_PATCH)

    def patch_status(self, key: Key, status: Mapping[str, Any]) -> None:
        names = {"namespace": key.namespace, "name": key.name}
        self._call(
            "patch", f"{model.PLURAL}.{model.GROUP}/status", SCALES + "/{name}/status", names,
            body={"status": status}, content_type=MERGE_PATCH,
        )  # fmt: skip

    def post_event(self, event: Mapping[str, Any]) -> None:
        """Raises ConflictError when an event of that name exists."""
        names = {"namespace": event["metadata"]["namespace"]}
        self._call("create", "events", EVENTS, names, body=event, content_type="application/json")

    def _items(
        self, verb: str, resource: str, path: str, names: Mapping[str, str], query: Sequence[tuple[str, str]] = ()
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call(verb, resource, path, names, query).get("items") or []
        return found

    def _call(
        self,
        verb: str,
        resource: str,
        path: str,
        names: Mapping[str, str],
        query: Sequence[tuple[str, str]] = (),
        body: Any = None,
        content_type: str = "",
    ) -> dict[str, Any]:
        method = {"patch": "PATCH", "create": "POST"}.get(verb, "GET")
        headers = {"Accept": "application/json"} | ({"Content-Type": content_type} if content_type else {})
        own = [] if method == "GET" else [("fieldManager", MANAGER)]
        what = f"{method} {path.format(**names)}"
        try:
            request = self._client.param_serialize(
                method, path, dict(names), [*query, *own], headers, body=body, auth_settings=["BearerToken"]
            )
            response = self._client.call_api(*request, _request_timeout=TIMEOUT_S)
            content = response.read()  # type: ignore[no-untyped-call]
        except (ApiException, HTTPError, OSError) as error:
            raise KubernetesError(f"{what}: the API server does not answer: {error}") from error
        return _checked(what, f"{verb} {resource}", response.status, content)


def _checked(what: str, right: str, status: int, content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except ValueError:
        answer = {}
    if 200 <= status < 300 and isinstance(answer, dict):
        return answer
    message = answer.get("message", "") if isinstance(answer, dict) else ""
    text = f"{what}: HTTP {status} {message}"
    if status == 404:
        raise NotFoundError(text)
    if status in (401, 403):
        raise ForbiddenError(f"{text}: the scaler's service account must be allowed to {right}: add it to its Role")
    if status in (409, 422):  # the API server has 422 for a failed test of a JSON patch
        raise ConflictError(text)
    raise KubernetesError(text)
