"""From what was read to what is to be done: plans, or the reason why there are none. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_ray.naming import CLUSTER_LABEL, GROUP_LABEL
from llm_ray.scaler import report
from llm_ray.scaler.gangs import Plan, plan
from llm_ray.scaler.model import MOST_REPLICAS, Autoscaler, Cluster, Condition, Group, Pod, Scale, Service
from llm_ray.scaler.report import METRICS, READY, Trouble, names_of


@dataclass(frozen=True)
class Seen:
    """A RayCluster and the pods of the group, read in this order."""

    cluster: Cluster
    pods: tuple[Pod, ...] = ()
    pods_at: str = ""
    """The resource version of the pods, for the log."""


@dataclass(frozen=True)
class State:
    """All that one look found. `clusters`: first the one that serves, then its successor."""

    scale: Scale
    service: Service | None = None
    clusters: tuple[Seen, ...] = ()
    autoscalers: tuple[Autoscaler, ...] = ()
    rival: str = ""
    """Another WorkerGroupScale of the same group, which is older."""
    trouble: Trouble | None = None
    """Something that could not be read."""
    autoscalers_trouble: Trouble | None = None


@dataclass(frozen=True)
class Decision:
    """`plans` to carry out, and the conditions if that succeeds."""

    plans: tuple[Plan, ...] = ()
    replicas: int = 0
    selector: str = ""
    ready: Condition = field(default_factory=lambda: Condition(READY, "Unknown"))
    metrics: Condition = field(default_factory=lambda: Condition(METRICS, "Unknown"))

    @property
    def must_wait(self) -> bool:
        return any(one.must_wait for one in self.plans)


def decide(state: State, is_patient: bool = True) -> Decision:
    scale = state.scale
    metrics = report.metrics(scale.key.name, state.autoscalers, state.autoscalers_trouble)
    spec_trouble = trouble = state.trouble or _spec_trouble(state)
    if not state.clusters:
        trouble = trouble or Trouble("TargetNotFound", f"{scale.what} does not exist")
        return Decision(selector=scale.status.get("selector") or "", ready=report.refusal(trouble), metrics=metrics)
    plans = []
    for seen in state.clusters:
        group = seen.cluster.group(scale.group)
        found = spec_trouble or _cluster_trouble(scale, seen, group)
        if found is None and group is not None:
            plans.append(plan(seen.cluster, group, seen.pods, wanted_count(scale, group), is_patient))
        trouble = trouble or found
    first = state.clusters[0]
    counted = _count(first, first.cluster.group(scale.group))
    return Decision(
        plans=tuple(plans),
        replicas=counted,
        selector=f"{CLUSTER_LABEL}={first.cluster.name},{GROUP_LABEL}={scale.group}",
        ready=report.refusal(trouble, plans) if trouble else report.progress(scale, plans),
        metrics=metrics,
    )


def wanted_count(scale: Scale, group: Group) -> int:
    count = min(max(scale.replicas, scale.min_replicas), scale.max_replicas)
    return min(max(count, group.min_replicas), group.max_replicas)


def _count(seen: Seen, group: Group | None) -> int:
    return len(plan(seen.cluster, group, seen.pods, 0).whole) if group else 0


def _spec_trouble(state: State) -> Trouble | None:
    scale, service = state.scale, state.service
    if scale.min_replicas > scale.max_replicas:
        return Trouble(
            "InvalidBounds",
            f"spec.minReplicas ({scale.min_replicas}) must not be greater than spec.maxReplicas "
            f"({scale.max_replicas}): lower the one or raise the other",
        )
    if state.rival:
        return Trouble(
            "Conflict",
            f"WorkerGroupScale {state.rival} scales group {scale.group} of {scale.what} already: delete one of them",
        )
    if service is not None and service.is_ending:
        return Trouble("TargetNotFound", f"{scale.what} is being deleted: delete this WorkerGroupScale as well")
    if service is not None and not state.clusters:
        name = service.active or service.pending
        missing = f"its RayCluster {name} does not exist" if name else "it has no RayCluster yet"
        return Trouble("ClusterNotReady", f"{scale.what}: {missing}: see the RayService's events if it stays so")
    return None


def _cluster_trouble(scale: Scale, seen: Seen, group: Group | None) -> Trouble | None:
    cluster = seen.cluster
    where = f"RayCluster {cluster.name}"
    if cluster.is_ending:
        return Trouble("TargetNotFound", f"{where} is being deleted")
    if cluster.has_autoscaler:
        return Trouble(
            "InTreeAutoscalerEnabled",
            f"{where} has enableInTreeAutoscaling true: Ray's autoscaler writes the same count: turn it off, or delete "
            "this WorkerGroupScale",
        )
    if group is None:
        known = ", ".join(found.name for found in cluster.groups) or "none"
        return Trouble(
            "GroupNotFound", f"spec.groupName ({scale.group}) must be a worker group of {where}, which has {known}"
        )
    if cluster.is_suspended or group.is_suspended:
        what = where if cluster.is_suspended else f"group {group.name} of {where}"
        return Trouble("GroupSuspended", f"{what} is suspended: set suspend to false")
    return _bounds_trouble(scale, group, where) or _label_trouble(seen, group, where)


def _bounds_trouble(scale: Scale, group: Group, where: str) -> Trouble | None:
    bounds = f"{group.min_replicas} to {_limit(group.max_replicas)}"
    if group.min_replicas > group.max_replicas:
        text = f"group {group.name} of {where} has minReplicas greater than maxReplicas ({bounds}): correct it there"
        return Trouble("InvalidBounds", text)
    if scale.min_replicas > group.max_replicas or scale.max_replicas < group.min_replicas:
        return Trouble(
            "InvalidBounds",
            f"spec.minReplicas to maxReplicas ({scale.min_replicas} to {_limit(scale.max_replicas)}) must have a count "
            f"in common with those of group {group.name} of {where} ({bounds}): change either",
        )
    return None


def _label_trouble(seen: Seen, group: Group, where: str) -> Trouble | None:
    unlabelled = [pod.name for pod in seen.pods if group.hosts > 1 and not pod.gang and not pod.is_ending]
    if not unlabelled:
        return None
    return Trouble(
        "HostsUnlabelled",
        f"group {group.name} of {where} has numOfHosts {group.hosts}, and {names_of(unlabelled)} lack the label that "
        "tells which pods belong together: use KubeRay 1.6 or newer with RayMultiHostIndexing on, and recreate them",
    )


def _limit(count: int) -> str:
    return "no limit" if count >= MOST_REPLICAS else str(count)
