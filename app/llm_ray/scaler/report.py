"""What people read: conditions, events and their messages, which name what, the limit and the fix. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_ray.scaler.gangs import Gang, Plan
from llm_ray.scaler.model import Autoscaler, Condition, Scale

READY, METRICS = "Ready", "MetricsAvailable"
SCALING = frozenset({"ScalingUp", "ScalingDown"})
MOST_NAMES = 5


@dataclass(frozen=True)
class Trouble:
    """Why a WorkerGroupScale cannot be carried out."""

    reason: str
    message: str


@dataclass(frozen=True)
class Notice:
    """An Event to be posted. `occasion` tells one from another of the same text."""

    reason: str
    message: str
    is_warning: bool
    occasion: str


def names_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def refusal(trouble: Trouble, plans: Sequence[Plan] = ()) -> Condition:
    """`plans`: what is carried out all the same, of another cluster of the same target."""
    tail = f"; RayCluster {plans[0].cluster.name} is scaled" if plans else "; nothing is scaled"
    return Condition(READY, "False", trouble.reason, trouble.message + tail)


def progress(scale: Scale, plans: Sequence[Plan]) -> Condition:
    """Of the first cluster that is not as wanted; a successor's count matters as much."""
    found = [_progress_of(scale, one) for one in plans]
    return next((one for one in found if one.status == "False"), found[0])


def _progress_of(scale: Scale, one: Plan) -> Condition:
    where = f"group {one.group.name} of RayCluster {one.cluster.name}"
    limited = _limited(scale, one)
    if one.must_wait:
        text = f"{where}: {one.group.kuberay_count} → {one.wanted} as soon as KubeRay has made the pods of the first"
        return Condition(READY, "False", "ScalingDown", text + limited)
    if len(one.whole) < one.wanted:
        ending = f", {len(one.ending)} end" if one.ending else ""
        text = f"{where}: {len(one.whole)} of {one.wanted} gangs exist{ending}{limited}"
        return Condition(READY, "False", "ScalingUp", text)
    leaving = [*one.ending, *one.chosen]
    if leaving:
        return Condition(READY, "False", "ScalingDown", f"{where}: {_count_of(leaving)}{limited}")
    ready = sum(gang.is_ready for gang in one.whole)
    return Condition(READY, "True", "Scaled", f"{where}: {one.wanted} gangs, {ready} of them ready{limited}")


def _count_of(leaving: Sequence[Gang]) -> str:
    return f"waits for the end of {len(leaving)}: {names_of([gang.name for gang in leaving])}"


def _limited(scale: Scale, one: Plan) -> str:
    if scale.replicas == one.wanted:
        return ""
    return f"; spec.replicas ({scale.replicas}) is outside the limits of this object or of the group"


def told(one: Plan) -> Notice | None:
    """The event of a plan that was written; none where only the list of names changes."""
    where = f"group {one.group.name} of RayCluster {one.cluster.name}: {one.group.replicas} → {one.wanted} gangs"
    occasion = f"{one.cluster.uid} {one.cluster.generation}"
    if one.chosen:
        going = names_of([f"{gang.name} ({gang.why})" for gang in one.chosen])
        return Notice("ScalingDown", f"{where}, removes {going}", False, occasion)
    if one.wanted != one.group.replicas:
        reason = "ScalingUp" if one.wanted > one.group.replicas else "ScalingDown"
        return Notice(reason, where, False, occasion)
    return None


def metrics(name: str, autoscalers: Sequence[Autoscaler], trouble: Trouble | None) -> Condition:
    """Whether the HorizontalPodAutoscaler of the WorkerGroupScale `name` gets its metrics."""
    if trouble is not None:
        return Condition(METRICS, "Unknown", trouble.reason, trouble.message)
    own = sorted((one for one in autoscalers if one.scale == name), key=lambda one: one.name)
    if not own:
        return Condition(METRICS, "Unknown", "NoAutoscaler", "no HorizontalPodAutoscaler targets this WorkerGroupScale")
    found = [_metrics_of(one) for one in own]
    order = {"False": 0, "Unknown": 1, "True": 2}
    return min(found, key=lambda one: order[one.status])


def _metrics_of(autoscaler: Autoscaler) -> Condition:
    where = f"HorizontalPodAutoscaler {autoscaler.name}"
    active, able = autoscaler.condition("ScalingActive"), autoscaler.condition("AbleToScale")
    if active is None:
        why = f": {able.reason}: {able.message}" if able is not None and able.status == "False" else ""
        return Condition(METRICS, "Unknown", "NotReported", f"{where} has said nothing of its metrics yet{why}")
    if active.status == "True":
        return Condition(METRICS, "True", active.reason or "ValidMetricFound", f"{where}: {active.message}")
    if active.reason == "ScalingDisabled":
        return Condition(METRICS, "Unknown", active.reason, f"{where} rests at 0 replicas: {active.message}")
    return Condition(
        METRICS,
        "False" if active.status == "False" else "Unknown",
        active.reason or "FailedGetMetrics",
        f"{where}: {active.message}; replicas stay as they are: check that the metrics API serves the metric "
        f"(kubectl get apiservices | grep metrics, kubectl describe hpa {autoscaler.name}), and that pods are scraped",
    )


def conditions(scale: Scale, new: Sequence[Condition], now: str) -> list[Condition]:
    """As they are to be stored: the time of the last change of a status is kept; conditions of others stay."""
    before = scale.conditions
    made = []
    for one in new:
        old = before.get(one.type)
        since = old.since if old is not None and old.status == one.status and old.since else now
        made.append(Condition(one.type, one.status, one.reason, one.message, since))
    types = {one.type for one in made}
    return [*made, *(old for old in before.values() if old.type not in types)]


def status(scale: Scale, new: Sequence[Condition], replicas: int, selector: str, now: str) -> dict[str, Any] | None:
    """The status to write, or None when it is so already."""
    stored = [
        {
            "type": one.type,
            "status": one.status,
            "reason": one.reason or "Unknown",
            "message": one.message,
            "lastTransitionTime": one.since,
            "observedGeneration": scale.generation,
        }
        for one in conditions(scale, new, now)
    ]
    made: dict[str, Any] = {"replicas": replicas, "observedGeneration": scale.generation, "conditions": stored}
    if selector:
        made["selector"] = selector
    return None if _is_stored(made, scale.status) else made


def _is_stored(made: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    return all(stored.get(key) == value for key, value in made.items())


def complaints(scale: Scale, new: Sequence[Condition]) -> list[Notice]:
    """An event for each condition that turns False, or stays so for another reason."""
    before = scale.conditions
    found = []
    for one in new:
        old = before.get(one.type)
        is_new = old is None or (old.status, old.reason) != ("False", one.reason)
        if one.status == "False" and one.reason not in SCALING and is_new:
            occasion = f"{one.type} {old.status} {old.reason} {old.since}" if old is not None else one.type
            found.append(Notice(one.reason, one.message, True, occasion))
    return found
