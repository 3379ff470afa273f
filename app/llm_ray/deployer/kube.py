"""The calls to the Kubernetes API: list pods, label or annotate one, read the RayService.

Through the official client's transport, without its generated classes: these cost a second and 90 MB per process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from urllib3.exceptions import HTTPError

from llm_ray.deployer.state import CONTAINER_ANNOTATION, SERVING_LABEL, Pod, Role, parse_pod, parse_role
from llm_ray.errors import ConfigError, LLMRayError
from llm_ray.naming import CLUSTER_LABEL, IDLE_ANNOTATION

TIMEOUT_S = 5.0
PODS = "/api/v1/namespaces/{namespace}/pods"
RAY_SERVICE = "/apis/ray.io/v1/namespaces/{namespace}/rayservices/{name}"
MERGE_PATCH = "application/merge-patch+json"
NEEDED = "the Role of this pod's service account needs pods: get, list, patch, and rayservices.ray.io: get"


class KubernetesError(LLMRayError):
    """The API server does not answer, or refuses."""


class NotFoundError(KubernetesError):
    """The object is gone."""


class Kubernetes:
    """One namespace's API. The service account's token is read again when it rotates."""

    def __init__(self, namespace: str, kubeconfig: Path | None = None) -> None:
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
        self._client = ApiClient(configuration)
        self._namespace = namespace

    def pods(self, cluster: str) -> list[Pod]:
        selector = f"{CLUSTER_LABEL}={cluster}"
        # resourceVersion 0 lets the API server answer from its cache: a moment old is good enough here.
        answer = self._call("GET", PODS, {}, [("labelSelector", selector), ("resourceVersion", "0")])
        return [parse_pod(item) for item in answer.get("items") or []]

    def serves(self, cluster: str) -> bool:
        """Whether a pod of that cluster carries the label."""
        selector = f"{CLUSTER_LABEL}={cluster},{SERVING_LABEL}=true"
        answer = self._call("GET", PODS, {}, [("labelSelector", selector), ("resourceVersion", "0")])
        pods = [parse_pod(item) for item in answer.get("items") or []]
        return any(pod.is_labelled and not pod.is_ending for pod in pods)

    def set_label(self, pod: Pod, wanted: bool) -> None:
        metadata: dict[str, Any] = {"labels": {SERVING_LABEL: "true" if wanted else None}}
        if pod.container:
            metadata["annotations"] = {CONTAINER_ANNOTATION: pod.container if wanted else None}
        self._call("PATCH", PODS + "/{name}", {"name": pod.name}, [], {"metadata": metadata})

    def set_idle(self, pod: Pod, since: str | None) -> None:
        """None takes the annotation away."""
        metadata = {"annotations": {IDLE_ANNOTATION: since}}
        self._call("PATCH", PODS + "/{name}", {"name": pod.name}, [], {"metadata": metadata})

    def role(self, service: str, cluster: str, incremental: bool) -> Role:
        return parse_role(cluster, self._call("GET", RAY_SERVICE, {"name": service}, []), incremental)

    def _call(
        self,
        method: str,
        path: str,
        names: Mapping[str, str],
        query: list[tuple[str, str]],
        patch: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        headers = {"Accept": "application/json"} | ({"Content-Type": MERGE_PATCH} if patch is not None else {})
        what = f"{method} {path.format(namespace=self._namespace, **names)}"
        try:
            request = self._client.param_serialize(
                method,
                path,
                {"namespace": self._namespace, **names},
                query,
                headers,
                body=patch,
                auth_settings=["BearerToken"],
            )
            response = self._client.call_api(*request, _request_timeout=TIMEOUT_S)
            content = response.read()  # type: ignore[no-untyped-call]
        except (ApiException, HTTPError, OSError) as error:
            raise KubernetesError(f"{what}: the API server does not answer: {error}") from error
        return _checked(what, response.status, content)


def _checked(what: str, status: int, content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except ValueError:
        answer = {}
    if 200 <= status < 300 and isinstance(answer, dict):
        return answer
    message = answer.get("message", "") if isinstance(answer, dict) else ""
    if status == 404:
        raise NotFoundError(f"{what}: not found")
    hint = f": {NEEDED}" if status in (401, 403) else ""
    raise KubernetesError(f"{what}: HTTP {status} {message}{hint}")
