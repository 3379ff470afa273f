"""Wait with a deadline, and no longer than there is hope: a pod that cannot start ends the wait with what it says."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.live.support.cluster import Cluster, Object

T = TypeVar("T")

HOPELESS_WAITS = frozenset(
    {
        "CrashLoopBackOff", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError",
        "CreateContainerError", "RunContainerError",
    }
)  # fmt: skip
HOPELESS_EVENTS = frozenset(
    {"InvalidRayClusterSpec", "InvalidRayClusterMetadata", "InvalidRayServiceSpec", "InvalidRayServiceMetadata"}
)
REFUSED = ("violates PodSecurity", "exceeded quota", "admission webhook")
POLL_S = 0.5
LOG_LINES = 25


class WaitError(AssertionError):
    """It did not come in time, or cannot come any more; the message has the evidence."""


@dataclass(frozen=True)
class Waiter:
    """Waits on one cluster; looks at the pods and events of a namespace while it does."""

    cluster: Cluster

    def __call__(
        self,
        what: str,
        probe: Callable[[], T],
        seconds: float,
        *,
        watching: str = "",
        tolerate: Collection[str] = (),
        last_seen: Callable[[], object] | None = None,
    ) -> T:
        """The probe's first true answer. WaitError after `seconds`, or once a pod of `watching` cannot start.

        tolerate: words (a reason, a pod's or container's name) of troubles that are expected.
        """
        deadline = time.monotonic() + seconds
        while True:
            found = probe()
            if found:
                return found
            hopeless = self._troubles(watching, tolerate) if watching else []
            if hopeless:
                raise WaitError(f"{what}: will not come, because\n" + "\n".join(hopeless))
            if time.monotonic() > deadline:
                seen = f"; last seen: {last_seen()}" if last_seen else ""
                raise WaitError(f"{what}: not within {seconds:g} s{seen}\n{self._state_of(watching)}")
            time.sleep(POLL_S)

    def _troubles(self, namespace: str, tolerate: Collection[str]) -> list[str]:
        pods, events = self.cluster.pods(namespace), self.cluster.events(namespace)
        found = [*pod_troubles(pods), *event_troubles(events)]
        told = []
        for trouble in found:
            if not any(word in trouble.text for word in tolerate):
                told.append(f"- {trouble.text}{self._log_of(namespace, trouble)}")
        return told

    def _log_of(self, namespace: str, trouble: Trouble) -> str:
        if not trouble.container:
            return ""
        lines = ""
        for is_previous in (False, True):
            lines = lines or self.cluster.logs(namespace, trouble.pod, trouble.container, is_previous, LOG_LINES)
        return f"; its log ends:\n{lines}" if lines else ""

    def _state_of(self, namespace: str) -> str:
        if not namespace:
            return ""
        pods = [f"  {describe_pod(pod)}" for pod in self.cluster.pods(namespace)]
        warnings = [event for event in self.cluster.events(namespace) if event.get("type") == "Warning"]
        return "\n".join(["pods:", *pods, "warnings:", *(f"  {describe_event(event)}" for event in warnings[-10:])])


@dataclass(frozen=True)
class Trouble:
    text: str
    pod: str = ""
    container: str = ""


def pod_troubles(pods: Collection[Mapping[str, Any]]) -> list[Trouble]:
    """Why pods cannot come up: containers that cannot start, were killed for memory, or have failed for good."""
    found = []
    for pod in pods:
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        if status.get("phase") == "Failed":
            reason = f"{status.get('reason') or ''} {status.get('message') or ''}".strip()
            names = [one["name"] for one in status.get("containerStatuses") or [] if _exit_code(one)]
            found.append(Trouble(f"pod {name} has failed {reason}".rstrip(), name, (names or [""])[0]))
        for container in containers_of(pod):
            trouble = _container_trouble(container)
            if trouble:
                where = f"pod {name}, container {container['name']}"
                found.append(Trouble(f"{where}: {trouble}", name, container["name"]))
    return found


def containers_of(pod: Mapping[str, Any]) -> list[Object]:
    """Statuses, init containers first."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _container_trouble(container: Mapping[str, Any]) -> str:
    waiting = (container.get("state") or {}).get("waiting") or {}
    if waiting.get("reason") in HOPELESS_WAITS:
        code = _exit_code(container)
        return f"{waiting['reason']} {waiting.get('message') or ''}".strip() + (f" (exit code {code})" if code else "")
    for key in ("state", "lastState"):
        if ((container.get(key) or {}).get("terminated") or {}).get("reason") == "OOMKilled":
            return "OOMKilled: it needs more memory than its limit"
    return ""


def _exit_code(container: Mapping[str, Any]) -> int:
    for key in ("state", "lastState"):
        ended = (container.get(key) or {}).get("terminated") or {}
        if ended.get("exitCode"):
            return int(ended["exitCode"])
    return 0


def event_troubles(events: Collection[Mapping[str, Any]]) -> list[Trouble]:
    """Events after which nothing changes by itself: an object that the operator or an admission plugin refuses."""
    found = []
    for event in events:
        message = event.get("message") or ""
        if event.get("reason") in HOPELESS_EVENTS or any(words in message for words in REFUSED):
            found.append(Trouble(describe_event(event)))
    return found


def describe_event(event: Mapping[str, Any]) -> str:
    subject = event.get("involvedObject") or {}
    count = f" (x{event['count']})" if (event.get("count") or 1) > 1 else ""
    return f"{subject.get('kind')}/{subject.get('name')}: {event.get('reason')}: {event.get('message')}{count}"


def describe_pod(pod: Mapping[str, Any]) -> str:
    """One line: phase, node, and what each container is doing."""
    status = pod.get("status") or {}
    parts = []
    for container in containers_of(pod):
        state = container.get("state") or {}
        kind = next(iter(state), "none")
        reason = (state.get(kind) or {}).get("reason") or ""
        ready = " ready" if container.get("ready") else ""
        restarts = f" restarts={container['restartCount']}" if container.get("restartCount") else ""
        parts.append(f"{container['name']}={kind}{' ' + reason if reason else ''}{ready}{restarts}")
    node = (pod.get("spec") or {}).get("nodeName") or "no node"
    ending = " terminating" if pod["metadata"].get("deletionTimestamp") else ""
    return (
        f"{pod['metadata']['name']} {status.get('phase')}{ending} on {node}: {', '.join(parts) or 'no container yet'}"
    )
