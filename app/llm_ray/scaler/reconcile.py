"""One WorkerGroupScale at a time: read all, decide, write. Keeps nothing that the API does not have."""

from __future__ import annotations

import hashlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from llm_ray.scaler import build, model, report
from llm_ray.scaler.build import Decision, Seen, State
from llm_ray.scaler.kube import MANAGER, ConflictError, ForbiddenError, Kubernetes, NotFoundError
from llm_ray.scaler.model import Key, Scale
from llm_ray.scaler.report import Notice, Trouble

ATTEMPTS = 5
PATIENCE_S = 15.0
AGAIN_S = 0.5
"""While KubeRay makes pods, between looks."""
LATE_S, LOOK_S = 35.0, 5.0
"""After so long KubeRay is woken: it has forgotten by then what it waited for. And between looks until then."""

log = logging.getLogger(__name__)


class Reconciler:
    """`reconcile` may be called by several threads, for different keys at a time."""

    def __init__(self, kubernetes: Kubernetes, clock: Callable[[], float] = time.monotonic) -> None:
        self._kubernetes, self._clock = kubernetes, clock
        self._waits: dict[Key, tuple[str, float]] = {}
        """How long KubeRay has been waited for, by the state that it is in. A new process waits anew, no more."""

    def reconcile(self, key: Key) -> float | None:
        """Seconds after which to come again; None: when something happens. Raises KubernetesError."""
        for attempt in range(ATTEMPTS):
            state = self._look(key)
            if state is None:
                self._waits.pop(key, None)
                return None
            age_s = self._age(key, state)
            decision = build.decide(state, age_s < PATIENCE_S)
            trouble = self._carry_out(state, decision)
            if trouble is None:
                self._tell(state.scale, decision)
                return AGAIN_S if decision.must_wait else self._wake(state.scale, decision, age_s)
            log.info(
                "key=%s event=refused attempt=%d reason=%s error=%r", key, attempt, trouble.reason, trouble.message
            )
            if trouble.reason != "Conflict" or attempt == ATTEMPTS - 1:
                self._tell(state.scale, replace(decision, ready=report.refusal(trouble)))
                break
        raise RetryError(f"{key} is tried again")

    def _look(self, key: Key) -> State | None:
        """None: there is no such object any more."""
        scales = self._kubernetes.scales(key.namespace)
        scale = next((one for one in scales if one.key == key), None)
        if scale is None or scale.is_ending:
            return None
        try:
            state = self._look_at_target(scale)
        except ForbiddenError as error:
            state = State(scale, trouble=Trouble("Forbidden", str(error)))
        state = replace(state, rival=_rival(scale, scales))
        try:
            return replace(state, autoscalers=tuple(self._kubernetes.autoscalers(key.namespace)))
        except ForbiddenError as error:
            return replace(state, autoscalers_trouble=Trouble("Forbidden", str(error)))

    def _look_at_target(self, scale: Scale) -> State:
        if scale.target_kind == "RayCluster":
            seen = self._look_at_cluster(scale, scale.target)
            return State(scale, clusters=(seen,) if seen else ())
        try:
            service = self._kubernetes.service(scale.key.namespace, scale.target)
        except NotFoundError:
            return State(scale)
        names = [name for name in (service.active, service.pending) if name]
        found = [self._look_at_cluster(scale, name) for name in dict.fromkeys(names)]
        return State(scale, service, tuple(one for one in found if one is not None))

    def _look_at_cluster(self, scale: Scale, name: str) -> Seen | None:
        """The cluster first: what is decided from the pods is written only if the cluster is still this one."""
        try:
            cluster = self._kubernetes.cluster(scale.key.namespace, name)
        except NotFoundError:
            return None
        pods, pods_at = self._kubernetes.pods(scale.key.namespace, name, scale.group)
        return Seen(cluster, tuple(pods), pods_at)

    def _age(self, key: Key, state: State) -> float:
        """For how long KubeRay has left the clusters as they are."""
        shape = " ".join(f"{seen.cluster.uid}/{seen.cluster.generation}/{len(seen.pods)}" for seen in state.clusters)
        before, since = self._waits.get(key, ("", 0.0))
        if shape != before:
            since = self._clock()
            self._waits[key] = (shape, since)
        return self._clock() - since

    def _wake(self, scale: Scale, decision: Decision, age_s: float) -> float | None:
        """When to look again; None: nothing is left to be done."""
        late = [plan.cluster.name for plan in decision.plans if plan.is_late]
        if late and age_s >= LATE_S:
            del self._waits[scale.key]
            for name in late:
                log.info("key=%s event=wake cluster=%s late_s=%.0f", scale.key, name, age_s)
                self._kubernetes.wake(scale.key.namespace, name, _now())
        return LOOK_S if late else None

    def _carry_out(self, state: State, decision: Decision) -> Trouble | None:
        """Why a RayCluster could not be written; a Conflict is to be answered by another look."""
        scale, pods_at = state.scale, {seen.cluster.name: seen.pods_at for seen in state.clusters}
        for plan in decision.plans:
            if not plan.patch:
                continue
            try:
                self._kubernetes.patch_cluster(scale.key.namespace, plan.cluster.name, plan.patch)
            except ForbiddenError as error:
                return Trouble("Forbidden", str(error))
            except (ConflictError, NotFoundError) as error:
                return Trouble("Conflict", f"the RayCluster could not be written {ATTEMPTS} times: {error}")
            log.info(
                "key=%s event=scaled cluster=%s group=%s generation=%d from=%d to=%d pods_at=%s workers_to_delete=%s",
                scale.key, plan.cluster.name, plan.group.name, plan.cluster.generation, plan.group.replicas,
                plan.wanted, pods_at[plan.cluster.name], ",".join(plan.names),
            )  # fmt: skip
            notice = report.told(plan)
            if notice is not None:
                self._post(scale, notice)
        return None

    def _tell(self, scale: Scale, decision: Decision) -> None:
        """Events first: after a crash in between they are posted again, under the same names."""
        new = (decision.ready, decision.metrics)
        for notice in report.complaints(scale, new):
            log.warning("key=%s event=trouble reason=%s message=%r", scale.key, notice.reason, notice.message)
            self._post(scale, notice)
        status = report.status(scale, new, decision.replicas, decision.selector, _now())
        if status is None:
            return
        try:
            self._kubernetes.patch_status(scale.key, status)
        except NotFoundError:
            log.info("key=%s event=gone", scale.key)

    def _post(self, scale: Scale, notice: Notice) -> None:
        try:
            self._kubernetes.post_event(event_of(scale, notice, _now()))
        except ConflictError:
            log.debug("key=%s event=posted_before reason=%s", scale.key, notice.reason)
        except (ForbiddenError, NotFoundError) as error:  # a namespace that ends takes no events
            log.warning("key=%s event=no_event reason=%s error=%r", scale.key, notice.reason, str(error))


class RetryError(Exception):
    """It was told and is to be tried again."""


def _rival(scale: Scale, scales: list[Scale]) -> str:
    """The oldest other one of the same group, if that is older."""

    def same(one: Scale) -> bool:
        return (one.target_kind, one.target, one.group) == (scale.target_kind, scale.target, scale.group)

    oldest = min((one for one in scales if same(one) and not one.is_ending), key=lambda one: (one.created, one.key))
    return "" if oldest.key == scale.key else oldest.key.name


def event_of(scale: Scale, notice: Notice, now: str) -> dict[str, Any]:
    """Named after what it says and when, so that it is not posted twice."""
    text = "\n".join((scale.uid, notice.reason, notice.occasion))
    reference = {
        "apiVersion": model.API_VERSION, "kind": model.KIND, "namespace": scale.key.namespace,
        "name": scale.key.name, "uid": scale.uid,
    }  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{scale.key.name[:200]}.{hashlib.sha256(text.encode()).hexdigest()[:16]}",
            "namespace": scale.key.namespace,
        },
        "involvedObject": reference,
        "reason": notice.reason,
        "message": notice.message[:1024],
        "type": "Warning" if notice.is_warning else "Normal",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "reportingInstance": socket.gethostname()[:128],
    }


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
