"""Which pods get the serving label. Pure: what was seen and remembered in, what is wanted and to be remembered out.

The rule. Traffic starts when all is well, and stops only on proof that it cannot be answered:

- A pod gets the label when the proxy on its node is HEALTHY and the cluster serves. The cluster begins to serve when
  every application is RUNNING, and goes on while at least one of them can still answer: an update in place, a failed
  redeploy with the old replicas, one sick application of two. It ends when no replica of any is left.
- A proxy that is UNHEALTHY, DRAINING or DRAINED, or was replaced by another, costs the label at once; open requests
  go on. One that is only missing, or STARTING after the controller came back, has the grace time.
- Serve without applications has the grace time too: it answers so for a moment while its state is being recovered.
  Another controller than before means that the old replicas are gone.
- No answer from the dashboard says nothing about the proxies on other nodes, which serve on without a head: labels
  stay, for as long as it takes. After the grace time a pod that the kubelet finds unready loses its label, so that it
  does not come back into service before its proxy was seen again.
- A pod that ends never has the label; nor the head's, if excluded. The label of a container that was restarted since
  counts as none: its proxy went with it.
- In a RayService only the active cluster gets labels. Another keeps what it has until its successor has a pod that
  serves, so that the Service is never empty. Before KubeRay says which is active, nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from llm_ray.deployer.state import Pod, Role, Serve

STOPPED_PROXIES = frozenset({"UNHEALTHY", "DRAINING", "DRAINED"})
DEFAULT_GRACE_S = 30.0


@dataclass(frozen=True)
class Rule:
    grace_s: float = DEFAULT_GRACE_S
    exclude_head: bool = False


@dataclass(frozen=True)
class Memory:
    """`is_serving` is None until Serve was seen with applications. Times are of the caller's monotonic clock."""

    is_serving: bool | None = None
    controller: str | None = None
    silent_since: float | None = None
    empty_since: float | None = None
    proxy_of: Mapping[str, str] = field(default_factory=dict)
    """Pod uid → id of the proxy for which it was labelled."""
    missing_since: Mapping[str, float] = field(default_factory=dict)
    """Pod uid → since when its proxy has not been there."""


@dataclass(frozen=True)
class Seen:
    """What one tick saw. `serve` is None when the dashboard did not answer."""

    serve: Serve | None
    pods: Sequence[Pod]
    role: Role = field(default_factory=Role)
    successor_serves: bool = False


def decide(rule: Rule, memory: Memory, seen: Seen, now: float) -> tuple[Memory, dict[str, bool]]:
    """What to remember, and pod name → whether it is to carry the label, for every pod seen."""
    memory = _remember_cluster(rule, memory, seen, now)
    memory = _remember_proxies(memory, seen, now)
    return memory, {pod.name: _wanted(rule, memory, seen, pod, now) for pod in seen.pods}


def _remember_cluster(rule: Rule, memory: Memory, seen: Seen, now: float) -> Memory:
    if seen.serve is None:
        silent_since = now if memory.silent_since is None else memory.silent_since
        return replace(memory, silent_since=silent_since)
    memory = replace(memory, silent_since=None)
    apps = seen.serve.live_apps.values()
    if not apps:
        empty_since = now if memory.empty_since is None else memory.empty_since
        is_over = now - empty_since >= rule.grace_s
        return replace(memory, empty_since=empty_since, is_serving=False if is_over else memory.is_serving)
    # A Serve that was empty when first seen and has a controller now is a new one as well.
    known = memory.controller is not None or memory.empty_since is not None
    is_new = known and seen.serve.controller != memory.controller
    is_serving = False if is_new else memory.is_serving
    if all(app.status == "RUNNING" for app in apps):
        is_serving = True
    elif not any(app.can_answer for app in apps):
        is_serving = False
    elif is_serving is None and seen.pods:  # this process is new: the labels tell what the one before it knew
        is_serving = any(pod.is_labelled for pod in seen.pods)
    return replace(memory, controller=seen.serve.controller, empty_since=None, is_serving=is_serving)


def _remember_proxies(memory: Memory, seen: Seen, now: float) -> Memory:
    if seen.serve is None:
        return memory
    proxy_of: dict[str, str] = {}
    missing_since: dict[str, float] = {}
    for pod in seen.pods:
        proxy = seen.serve.proxy_at(pod.ips)
        if proxy is not None and proxy.status == "HEALTHY":
            proxy_of[pod.uid] = proxy.actor_id
        else:
            missing_since[pod.uid] = memory.missing_since.get(pod.uid, now)
            if pod.uid in memory.proxy_of:
                proxy_of[pod.uid] = memory.proxy_of[pod.uid]
    return replace(memory, proxy_of=proxy_of, missing_since=missing_since)


def _wanted(rule: Rule, memory: Memory, seen: Seen, pod: Pod, now: float) -> bool:
    if pod.is_ending or (pod.is_head and rule.exclude_head):
        return False
    if seen.role.is_active is None:
        return pod.is_labelled
    if seen.role.is_active is False and (seen.successor_serves or not pod.is_labelled):
        return False
    if seen.serve is None:
        is_over = memory.silent_since is not None and now - memory.silent_since >= rule.grace_s
        return pod.is_labelled and (pod.is_ready or not is_over)
    if memory.is_serving is False:
        return False
    return _proxy_serves(rule, memory, seen.serve, pod, now)


def _proxy_serves(rule: Rule, memory: Memory, serve: Serve, pod: Pod, now: float) -> bool:
    proxy = serve.proxy_at(pod.ips)
    if proxy is not None and proxy.status == "HEALTHY":
        return pod.is_labelled or bool(memory.is_serving and serve.live_apps)
    if proxy is not None:
        known = memory.proxy_of.get(pod.uid, proxy.actor_id)
        if proxy.status in STOPPED_PROXIES or proxy.actor_id != known:
            return False
    return pod.is_labelled and now - memory.missing_since[pod.uid] < rule.grace_s
