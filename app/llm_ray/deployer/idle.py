"""Which worker pods carry the idle annotation. Pure: what was seen and remembered in, what is to be written out.

The rule. A pod is idle only on proof, and busy as soon as there is doubt:

- It is idle when every replica that Serve lists on it has answered, itself, that nothing runs or waits; or when Serve
  lists none on it. One that starts or stops has not answered, so its pod is not idle.
- While Serve does not answer, lists no application, or builds one and lists no replicas of it, a pod keeps what it has
  for the grace time, unless one of its replicas says that it is busy.
- The head has no annotation, and that of a pod that ends stays: it is of no use to anyone any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from llm_ray.deployer.state import Pod, Replica, Serve

ASKS_PER_REPLICA = 4
"""Of several replicas on a node the proxy chooses by chance, and prefers the idle one."""


@dataclass(frozen=True)
class Answer:
    """What a replica said at /stats."""

    replica: str
    node: str
    is_busy: bool


@dataclass(frozen=True)
class Memory:
    """Since when, on the caller's monotonic clock, Serve has not told where its replicas are."""

    untold_since: float | None = None


@dataclass(frozen=True)
class Seen:
    serve: Serve | None
    pods: Sequence[Pod]
    answers: Mapping[str, Answer] = field(default_factory=dict)
    """By replica."""


def decide(grace_s: float, memory: Memory, seen: Seen, now: float) -> tuple[Memory, dict[str, bool]]:
    """What to remember, and pod name → whether it is idle, for those pods whose annotation must change."""
    by_ip = replicas_by_ip(seen.serve)
    if by_ip is None:
        since = now if memory.untold_since is None else memory.untold_since
        memory, is_over = Memory(since), now - since >= grace_s
        wanted = {pod.name: _unless_busy(seen, pod) and not is_over for pod in seen.pods}
    else:
        memory = Memory()
        wanted = {pod.name: _is_idle(seen, replicas_on(pod, by_ip)) for pod in seen.pods}
    return memory, {
        pod.name: wanted[pod.name] for pod in workers(seen.pods) if wanted[pod.name] != bool(pod.idle_since)
    }


def asks(serve: Serve | None, pods: Sequence[Pod]) -> dict[str, int]:
    """Pod address → how many times to ask it at most. Where Serve lists nothing there is nobody to answer."""
    by_ip = replicas_by_ip(serve)
    if by_ip is None:
        return {pod.ips[0]: 1 for pod in workers(pods) if pod.ips}
    counts = {pod.ips[0]: len(replicas_on(pod, by_ip)) for pod in workers(pods) if pod.ips}
    return {ip: count * ASKS_PER_REPLICA for ip, count in counts.items() if count}


def workers(pods: Sequence[Pod]) -> list[Pod]:
    return [pod for pod in pods if not pod.is_head and not pod.is_ending]


def replicas_by_ip(serve: Serve | None) -> dict[str, list[Replica]] | None:
    """None while Serve does not tell: an application without deployments may have replicas all the same."""
    if serve is None or not serve.apps or not all(app.deployments for app in serve.apps.values()):
        return None
    found: dict[str, list[Replica]] = {}
    for app in serve.apps.values():
        for replica in app.replicas:
            found.setdefault(replica.ip, []).append(replica)
    return found


def replicas_on(pod: Pod, by_ip: Mapping[str, Sequence[Replica]]) -> list[Replica]:
    return [replica for ip in pod.ips for replica in by_ip.get(ip, ())]


def timestamp(now: datetime) -> str:
    """RFC 3339, in whole seconds of UTC."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_idle(seen: Seen, replicas: Sequence[Replica]) -> bool:
    answers = [seen.answers.get(replica.id) for replica in replicas]
    return all(answer is not None and not answer.is_busy for answer in answers)


def _unless_busy(seen: Seen, pod: Pod) -> bool:
    is_busy = any(answer.is_busy and answer.node in pod.ips for answer in seen.answers.values())
    return bool(pod.idle_since) and not is_busy
