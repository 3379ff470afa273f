"""The API of any cluster: objects as plain maps, kinds by their kubectl names, commands in containers."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import config
from kubernetes.client import ApiClient, ApiException, Configuration, CoreV1Api, VersionApi
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import NotFoundError, ResourceNotFoundError
from kubernetes.stream import stream
from kubernetes.stream.ws_client import STDERR_CHANNEL, STDOUT_CHANNEL
from urllib3.exceptions import HTTPError

Object = dict[str, Any]
MANAGER = "live-tests"
UNREACHABLE_S = 5


class NoClusterError(Exception):
    """Nothing answers at the address of the kubeconfig, or there is none."""


@dataclass(frozen=True)
class Ran:
    """A command that has ended in a container."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Cluster:
    """Objects are given and returned as maps. A kind is `Pod`, or `PodGroup.scheduling.volcano.sh` with its group."""

    kubeconfig: Path
    configuration: Configuration
    version: str
    dynamic: DynamicClient

    @property
    def core(self) -> CoreV1Api:
        return CoreV1Api(self.dynamic.client)

    def resource(self, kind: str) -> Any:
        """The API of a kind. LookupError when the cluster has none of that name."""
        name, _, group = kind.partition(".")
        for is_fresh in (False, True):
            found = self.dynamic.resources.search(kind=name, **({"group": group} if group else {}))
            plain = [one for one in found if not one.kind.endswith("List") and one.kind == name]
            if plain:
                return min(plain, key=lambda one: (one.group != "", not one.preferred))
            if not is_fresh:
                self.dynamic.resources.invalidate_cache()
        raise LookupError(f"this cluster knows no kind {kind}")

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        try:
            made: Object = self.resource(kind).get(name=name, namespace=namespace).to_dict()
        except NotFoundError:
            return None
        return made

    def list(self, kind: str, namespace: str | None = None, labels: str = "", fields: str = "") -> list[Object]:
        options = {"label_selector": labels, "field_selector": fields}
        chosen = {key: value for key, value in options.items() if value}
        items: list[Object] = self.resource(kind).get(namespace=namespace, **chosen).to_dict()["items"]
        return items

    def apply(self, *objects: Mapping[str, Any], namespace: str | None = None) -> None:
        """Server-side apply, as the owner of every field that is given."""
        for one in objects:
            self.resource(_kind_of(one)).server_side_apply(
                body=dict(one), name=one["metadata"]["name"], namespace=one["metadata"].get("namespace", namespace),
                field_manager=MANAGER, force_conflicts=True,
            )  # fmt: skip

    def create(self, one: Mapping[str, Any], namespace: str | None = None) -> Object:
        """Raises ApiException (of kubernetes.client) with what the API server says."""
        made: Object = self.resource(_kind_of(one)).create(body=dict(one), namespace=namespace).to_dict()
        return made

    def patch(self, kind: str, name: str, namespace: str | None, body: Any, subresource: str = "") -> Object:
        """A merge patch for a map, a JSON patch for a list."""
        resource = self.resource(kind)
        content = f"application/{'json' if isinstance(body, list) else 'merge'}-patch+json"
        if subresource:
            resource = resource.subresources[subresource]
        made: Object = resource.patch(body=body, name=name, namespace=namespace, content_type=content).to_dict()
        return made

    def delete(self, kind: str, name: str, namespace: str | None = None, grace_s: int | None = None) -> None:
        """Ask for it; that it is gone already is fine."""
        options = {} if grace_s is None else {"grace_period_seconds": grace_s}
        with contextlib.suppress(NotFoundError):
            self.resource(kind).delete(name=name, namespace=namespace, **options)

    def delete_all(self, kind: str, namespace: str, grace_s: int) -> None:
        chosen = f"metadata.namespace={namespace}"  # the client wants a selector
        self.resource(kind).delete(namespace=namespace, field_selector=chosen, grace_period_seconds=grace_s)

    def pods(self, namespace: str, labels: str = "") -> list[Object]:
        return self.list("Pod", namespace, labels)

    def events(self, namespace: str) -> list[Object]:
        """Oldest first."""
        return sorted(self.list("Event", namespace), key=event_time)

    def exec(self, namespace: str, pod: str, command: Sequence[str], container: str = "", timeout_s: float = 60) -> Ran:
        """Run a command. Raises TimeoutError with its output so far."""
        chosen = {"container": container} if container else {}
        # Its own client: a stream changes the client that it runs on.
        connection = stream(
            CoreV1Api(ApiClient(self.configuration)).connect_get_namespaced_pod_exec,
            pod, namespace, command=list(command), stdout=True, stderr=True, stdin=False, tty=False,
            binary=True, _preload_content=False, **chosen,
        )  # fmt: skip
        try:
            connection.run_forever(timeout=timeout_s)
            outputs = (connection.read_channel(STDOUT_CHANNEL), connection.read_channel(STDERR_CHANNEL))
            stdout, stderr = (output.decode(errors="replace") for output in outputs)
            if connection.is_open():
                raise TimeoutError(
                    f"{command[0]} in {pod} still runs after {timeout_s:g} s; so far: {stdout[-1000:]} {stderr[-1000:]}"
                )
            return Ran(connection.returncode, stdout, stderr)
        finally:
            connection.close()

    def logs(self, namespace: str, pod: str, container: str, previous: bool = False, tail: int | None = None) -> str:
        """Empty when there are none."""
        options = {"tail_lines": tail} if tail else {}
        try:
            answer = self.core.read_namespaced_pod_log(
                pod, namespace, container=container, previous=previous, _preload_content=False, **options
            )
        except ApiException:
            return ""
        text: str = answer.data.decode(errors="replace")
        return text

    def objects(self, namespace: str) -> dict[str, list[Object]]:
        """Every object of every kind that a namespace can hold, by `plural.group`; events and metrics are none."""
        found = {}
        for resource in self.dynamic.resources.search(namespaced=True):
            is_object = "list" in resource.verbs and "create" in resource.verbs and "/" not in resource.name
            if not is_object or resource.kind.endswith("List") or resource.kind == "Event":
                continue
            with contextlib.suppress(NotFoundError, ResourceNotFoundError):
                items = resource.get(namespace=namespace).to_dict()["items"]
                if items:
                    found[f"{resource.name}.{resource.group or 'core'}"] = items
        return found

    def inventory(self, namespace: str) -> set[str]:
        """The same as `plural.group/name`."""
        found = self.objects(namespace)
        return {f"{kind}/{one['metadata']['name']}" for kind, objects in found.items() for one in objects}


def connect(kubeconfig: Path) -> Cluster:
    """Raises NoClusterError when nothing answers."""
    configuration = Configuration()
    try:
        config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        client = ApiClient(configuration)
        version = VersionApi(client).get_code(_request_timeout=UNREACHABLE_S).git_version
    except (config.ConfigException, ApiException, HTTPError, OSError) as error:
        raise NoClusterError(f"no cluster answers by {kubeconfig} ({error})") from error
    cache = tempfile.mktemp(prefix="live-discovery-")  # nothing of another cluster that had this address
    return Cluster(kubeconfig, configuration, version, DynamicClient(client, cache_file=cache))


def _kind_of(one: Mapping[str, Any]) -> str:
    group = one["apiVersion"].rpartition("/")[0]
    return f"{one['kind']}.{group}" if group else str(one["kind"])


def event_time(event: Mapping[str, Any]) -> str:
    series = event.get("series") or {}
    times = (event.get("lastTimestamp"), series.get("lastObservedTime"), event.get("eventTime"))
    return next((str(time) for time in times if time), str(event["metadata"].get("creationTimestamp") or ""))
