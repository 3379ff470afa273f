"""What Serve's REST API and the Kubernetes API say, as plain values. Knows nothing of labels or decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_ray.naming import IDLE_ANNOTATION, NODE_TYPE_LABEL

SERVING_LABEL = "llm-ray.io/serving"
CONTAINER_ANNOTATION = "llm-ray.io/serving-container"
"""The container that the label was given to. A restarted one has the pod's label and no proxy."""

ALIVE_REPLICAS = frozenset({"RUNNING", "UPDATING", "RECOVERING", "PENDING_MIGRATION"})
"""States of a replica that answers, or is about to go on answering as the same process."""

FINISHED_PHASES = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True)
class Proxy:
    """One of Serve's proxies: one per node that has replicas, and one on the head."""

    ip: str
    status: str
    actor_id: str


@dataclass(frozen=True)
class Replica:
    """A replica by Serve's id of it, and the address of its node: empty until it is placed."""

    id: str
    ip: str
    state: str


@dataclass(frozen=True)
class App:
    """One Serve application. `deployments` holds (replicas wanted, replicas alive) of each; empty while it is built."""

    status: str
    deployments: tuple[tuple[int, int], ...] = ()
    config: Mapping[str, Any] | None = None
    message: str = ""
    replicas: tuple[Replica, ...] = ()

    @property
    def can_answer(self) -> bool:
        """Whether requests still reach replicas, if they ever did.

        While Serve builds a new version, and after a build that failed, it lists no deployments at all; the old ones
        go on running unlisted.
        """
        return self.status == "RUNNING" or all(alive or not wanted for wanted, alive in self.deployments)


@dataclass(frozen=True)
class Serve:
    """One answer of GET /api/serve/applications/. Without a controller, Serve is not running."""

    controller: str | None = None
    apps: Mapping[str, App] | None = None
    proxies: tuple[Proxy, ...] = ()
    http_options: Mapping[str, Any] | None = None
    grpc_options: Mapping[str, Any] | None = None

    @property
    def live_apps(self) -> dict[str, App]:
        return {name: app for name, app in (self.apps or {}).items() if app.status != "DELETING"}

    def proxy_at(self, ips: tuple[str, ...]) -> Proxy | None:
        """The proxy on the node with one of these addresses; a healthy one, should Serve still list a dead one too."""
        found = [proxy for proxy in self.proxies if proxy.ip in ips]
        return next((proxy for proxy in found if proxy.status == "HEALTHY"), found[0] if found else None)


@dataclass(frozen=True)
class Pod:
    """A pod of the Ray cluster. `is_ending`: terminating, or its containers have finished.

    `is_labelled`: the Ray container that runs now got the label; `is_stale`: one before it did. `idle_since`: the
    annotation's text.
    """

    name: str
    uid: str
    ips: tuple[str, ...]
    is_labelled: bool = False
    is_head: bool = False
    is_ready: bool = True
    is_ending: bool = False
    is_stale: bool = False
    container: str = ""
    idle_since: str = ""


@dataclass(frozen=True)
class Role:
    """Whether this Ray cluster may get traffic. None: not known yet. `successor`: the cluster that gets it instead."""

    is_active: bool | None = True
    successor: str = ""


def parse_serve(answer: Mapping[str, Any]) -> Serve:
    apps = {name: _parse_app(app) for name, app in (answer.get("applications") or {}).items()}
    proxies = tuple(
        Proxy(proxy.get("node_ip") or "", proxy.get("status") or "", proxy.get("actor_id") or "")
        for proxy in (answer.get("proxies") or {}).values()
    )
    controller = (answer.get("controller_info") or {}).get("actor_id") or None
    return Serve(controller, apps, proxies, answer.get("http_options"), answer.get("grpc_options"))


def _parse_app(app: Mapping[str, Any]) -> App:
    deployments = tuple(
        (
            int(deployment.get("target_num_replicas") or 0),
            sum(replica.get("state") in ALIVE_REPLICAS for replica in deployment.get("replicas") or []),
        )
        for deployment in (app.get("deployments") or {}).values()
    )
    replicas = tuple(
        Replica(replica.get("replica_id") or "", replica.get("node_ip") or "", replica.get("state") or "")
        for deployment in (app.get("deployments") or {}).values()
        for replica in deployment.get("replicas") or []
    )
    config, message = app.get("deployed_app_config"), app.get("message") or ""
    return App(app.get("status") or "", deployments, config, message, replicas)


def parse_pod(pod: Mapping[str, Any]) -> Pod:
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    ips = [status.get("podIP"), *(entry.get("ip") for entry in status.get("podIPs") or [])]
    conditions = {entry["type"]: entry["status"] for entry in status.get("conditions") or []}
    has_label = labels.get(SERVING_LABEL) == "true"
    container = _ray_container(pod)
    is_stale = has_label and (metadata.get("annotations") or {}).get(CONTAINER_ANNOTATION, container) != container
    return Pod(
        name=metadata["name"],
        uid=metadata.get("uid") or metadata["name"],
        ips=tuple(dict.fromkeys(ip for ip in ips if ip)),
        is_labelled=has_label and not is_stale,
        is_head=labels.get(NODE_TYPE_LABEL) == "head",
        is_ready=conditions.get("Ready") == "True",
        is_ending=bool(metadata.get("deletionTimestamp")) or status.get("phase") in FINISHED_PHASES,
        is_stale=is_stale,
        container=container,
        idle_since=(metadata.get("annotations") or {}).get(IDLE_ANNOTATION) or "",
    )


def _ray_container(pod: Mapping[str, Any]) -> str:
    """Id of the Ray container, which is the first of the spec; the statuses are in another order."""
    containers = (pod.get("spec") or {}).get("containers") or [{}]
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    ids = [status.get("containerID") for status in statuses if status.get("name") == containers[0].get("name")]
    return (ids or [""])[0] or ""


def parse_role(cluster: str, service: Mapping[str, Any], incremental: bool) -> Role:
    """From a RayService: the active cluster gets traffic; in an incremental upgrade the pending one as well."""
    status = service.get("status") or {}
    active = (status.get("activeServiceStatus") or {}).get("rayClusterName") or ""
    pending = (status.get("pendingServiceStatus") or {}).get("rayClusterName") or ""
    if cluster == active or (incremental and cluster == pending):
        return Role(True)
    if not active:
        return Role(None)
    return Role(False, active)
