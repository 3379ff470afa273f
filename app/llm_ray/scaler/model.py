"""What the Kubernetes API says of the objects that matter here, as plain values. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from llm_ray.naming import IDLE_ANNOTATION, REPLICA_NAME_LABEL

GROUP, VERSION, PLURAL, KIND = "llm-ray.io", "v1alpha1", "workergroupscales", "WorkerGroupScale"
API_VERSION = f"{GROUP}/{VERSION}"
OWNER_LABEL = "ray.io/originated-from-cr-name"
"""KubeRay's, on a generated RayCluster: the RayService that it belongs to."""
MOST_REPLICAS = 2**31 - 1
FINISHED_PHASES = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, order=True)
class Key:
    """Which WorkerGroupScale."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Condition:
    """`since` is lastTransitionTime."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: str = ""


@dataclass(frozen=True)
class Scale:
    """A WorkerGroupScale. `status` is as the API server has it."""

    key: Key
    uid: str
    generation: int
    target_kind: str
    target: str
    group: str
    replicas: int
    min_replicas: int = 0
    max_replicas: int = MOST_REPLICAS
    created: str = ""
    is_ending: bool = False
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def conditions(self) -> dict[str, Condition]:
        return {found.type: found for found in _conditions(self.status)}

    @property
    def what(self) -> str:
        """Its target, for messages."""
        return f"{self.target_kind} {self.target}"


@dataclass(frozen=True)
class Service:
    """A RayService: its RayClusters by name, empty when there is none."""

    name: str
    active: str = ""
    pending: str = ""
    is_ending: bool = False


@dataclass(frozen=True)
class Group:
    """An entry of workerGroupSpecs. `named` is its workersToDelete; `has_strategy`: the map that holds it exists."""

    index: int
    name: str
    replicas: int
    min_replicas: int = 0
    max_replicas: int = MOST_REPLICAS
    hosts: int = 1
    is_suspended: bool = False
    named: tuple[str, ...] = ()
    has_strategy: bool = False

    @property
    def kuberay_count(self) -> int:
        """The gangs that KubeRay makes of it."""
        return min(max(self.replicas, self.min_replicas), self.max_replicas)


@dataclass(frozen=True)
class Cluster:
    """A RayCluster. `could_not_create`: KubeRay says that pods were refused."""

    name: str
    uid: str
    generation: int
    groups: tuple[Group, ...]
    has_autoscaler: bool = False
    is_suspended: bool = False
    is_ending: bool = False
    could_not_create: bool = False

    def group(self, name: str) -> Group | None:
        return next((group for group in self.groups if group.name == name), None)


@dataclass(frozen=True)
class Pod:
    """A worker pod. `is_ending`: terminating or finished; `gang` is empty where KubeRay gave no label."""

    name: str
    gang: str = ""
    is_ending: bool = False
    is_ready: bool = True
    idle_since: datetime | None = None
    created: str = ""


@dataclass(frozen=True)
class Autoscaler:
    """A HorizontalPodAutoscaler and the WorkerGroupScale that it scales, if it scales one."""

    name: str
    scale: str
    conditions: tuple[Condition, ...] = ()

    def condition(self, type: str) -> Condition | None:
        return next((found for found in self.conditions if found.type == type), None)


def parse_scale(body: Mapping[str, Any]) -> Scale:
    metadata, spec = body["metadata"], body["spec"]
    return Scale(
        key=Key(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        generation=metadata.get("generation") or 0,
        target_kind=spec["target"]["kind"],
        target=spec["target"]["name"],
        group=spec["groupName"],
        replicas=_int(spec.get("replicas"), 1),
        min_replicas=_int(spec.get("minReplicas"), 0),
        max_replicas=_int(spec.get("maxReplicas"), MOST_REPLICAS),
        created=metadata.get("creationTimestamp") or "",
        is_ending=bool(metadata.get("deletionTimestamp")),
        status=body.get("status") or {},
    )


def parse_service(body: Mapping[str, Any]) -> Service:
    status = body.get("status") or {}
    return Service(
        name=body["metadata"]["name"],
        active=(status.get("activeServiceStatus") or {}).get("rayClusterName") or "",
        pending=(status.get("pendingServiceStatus") or {}).get("rayClusterName") or "",
        is_ending=bool(body["metadata"].get("deletionTimestamp")),
    )


def parse_cluster(body: Mapping[str, Any]) -> Cluster:
    metadata, spec = body["metadata"], body["spec"]
    failures = [found for found in _conditions(body.get("status") or {}) if found.type == "ReplicaFailure"]
    return Cluster(
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        groups=tuple(_parse_group(index, one) for index, one in enumerate(spec.get("workerGroupSpecs") or [])),
        has_autoscaler=bool(spec.get("enableInTreeAutoscaling")),
        is_suspended=bool(spec.get("suspend")),
        is_ending=bool(metadata.get("deletionTimestamp")),
        could_not_create=any(found.status == "True" for found in failures),
    )


def _parse_group(index: int, one: Mapping[str, Any]) -> Group:
    return Group(
        index=index,
        name=one["groupName"],
        replicas=_int(one.get("replicas"), 0),
        min_replicas=_int(one.get("minReplicas"), 0),
        max_replicas=_int(one.get("maxReplicas"), MOST_REPLICAS),
        hosts=max(1, _int(one.get("numOfHosts"), 1)),
        is_suspended=bool(one.get("suspend")),
        named=tuple((one.get("scaleStrategy") or {}).get("workersToDelete") or ()),
        has_strategy=isinstance(one.get("scaleStrategy"), Mapping),
    )


def parse_pod(body: Mapping[str, Any]) -> Pod:
    metadata, status = body["metadata"], body.get("status") or {}
    ready = [found for found in _conditions(status) if found.type == "Ready"]
    return Pod(
        name=metadata["name"],
        gang=(metadata.get("labels") or {}).get(REPLICA_NAME_LABEL) or "",
        is_ending=bool(metadata.get("deletionTimestamp")) or status.get("phase") in FINISHED_PHASES,
        is_ready=any(found.status == "True" for found in ready),
        idle_since=parse_time((metadata.get("annotations") or {}).get(IDLE_ANNOTATION)),
        created=metadata.get("creationTimestamp") or "",
    )


def parse_autoscaler(body: Mapping[str, Any]) -> Autoscaler:
    reference = body["spec"].get("scaleTargetRef") or {}
    is_ours = reference.get("kind") == KIND and str(reference.get("apiVersion") or "").startswith(f"{GROUP}/")
    conditions = tuple(_conditions(body.get("status") or {}))
    return Autoscaler(body["metadata"]["name"], reference["name"] if is_ours else "", conditions)


def parse_time(text: object) -> datetime | None:
    """None for what is no time: a gang of which nobody knows that it is idle counts as busy."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _conditions(status: Mapping[str, Any]) -> list[Condition]:
    return [
        Condition(
            type=one["type"],
            status=one["status"],
            reason=one.get("reason") or "",
            message=one.get("message") or "",
            since=one.get("lastTransitionTime") or "",
        )
        for one in status.get("conditions") or []
    ]


def _int(value: object, default: int) -> int:
    return value if isinstance(value, int) else default
