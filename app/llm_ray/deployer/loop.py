"""The loop: look, decide, act, every two seconds, from whatever state things are in. Keeps nothing on disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from llm_ray.deployer import idle, labels, puts
from llm_ray.deployer.ask import Round
from llm_ray.deployer.kube import Kubernetes, KubernetesError, NotFoundError
from llm_ray.deployer.report import Health, Log
from llm_ray.deployer.serve_api import DashboardError, RejectedError, ServeAPI
from llm_ray.deployer.state import Pod, Role, Serve
from llm_ray.errors import ConfigError

LONGEST_WAIT_S = 8.0
LARGEST_SHARE = 0.1
"""Of a core: with thousands of pods the ticks get rarer instead of busier."""


@dataclass(frozen=True)
class IdleReport:
    """Keep the idle annotation of the worker pods, by what their proxies answer on this port."""

    port: int = 8000
    period_s: float = 5.0
    grace_s: float = labels.DEFAULT_GRACE_S


@dataclass(frozen=True)
class Settings:
    kind: Literal["RayCluster", "RayService"]
    cluster: str
    config: Path | None = None
    service: str = ""
    incremental: bool = False
    period_s: float = 2.0
    rule: labels.Rule = field(default_factory=labels.Rule)
    idle: IdleReport | None = None


@dataclass
class Put:
    """One PUT under way in a thread of its own: starting Serve takes longer than a tick."""

    wanted: puts.Wanted
    serve: Serve
    result: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def run(self, api: ServeAPI) -> None:
        try:
            api.put(self.wanted.body)
        except (DashboardError, RejectedError) as error:
            self.result = error
        finally:
            self.done.set()


class Deployer:
    """`tick` looks once and acts; `run` does so until it is stopped."""

    def __init__(
        self,
        settings: Settings,
        api: ServeAPI,
        kubernetes: Kubernetes,
        log: Log,
        health: Health | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._api, self._kubernetes = settings, api, kubernetes
        self._log, self._health, self._clock = log, health, clock
        self._labels, self._puts = labels.Memory(), puts.Memory()
        self._put: Put | None = None
        self._idle = idle.Memory()
        self._round: Round | None = None
        self._round_at = 0.0
        self._pods: list[Pod] = []
        self._labelled: list[str] = []
        self._apps: dict[str, str] = {}

    def run(self, stop: threading.Event) -> None:
        failures = 0
        while not stop.is_set():
            began = time.process_time()
            failures = 0 if self.tick() else failures + 1
            wait = self._settings.period_s * 2.0 ** min(failures, 8)
            stop.wait(min(LONGEST_WAIT_S, max(wait, (time.process_time() - began) / LARGEST_SHARE)))

    def tick(self) -> bool:
        """Whether both the dashboard and the API server answered."""
        self._finish_put()
        serve = self._read_serve()
        self._moved()
        if self._settings.kind == "RayCluster" and serve is not None and self._put is None:
            self._put_if_needed(serve)
        is_labelled = self._label(serve)
        self._moved()
        if self._settings.idle is not None and is_labelled:
            is_labelled = self._report_idle(self._settings.idle, serve)
        return serve is not None and is_labelled

    def wait_for_put(self, timeout_s: float) -> None:
        """For a caller that ticks by hand."""
        if self._put is not None:
            self._put.done.wait(timeout_s)

    def wait_for_round(self, timeout_s: float) -> None:
        """For a caller that ticks by hand."""
        if self._round is not None:
            self._round.done.wait(timeout_s)

    def _read_serve(self) -> Serve | None:
        try:
            serve = self._api.get()
        except DashboardError as error:
            self._log.trouble("dashboard", error)
            return None
        except RejectedError as error:
            self._log.trouble("dashboard", f"GET gave HTTP 400: {error}")
            return None
        if "dashboard" in self._log.troubles:
            self._puts = puts.dashboard_is_back(self._puts)
        self._log.fine("dashboard")
        self._tell_apps(serve)
        return serve

    def _tell_apps(self, serve: Serve) -> None:
        apps = {name: app.status for name, app in (serve.apps or {}).items()}
        for name in apps.keys() | self._apps.keys():
            status = apps.get(name, "absent")
            if status != self._apps.get(name, "absent"):
                message = serve.apps[name].message if serve.apps and name in serve.apps else ""
                self._log.event("application", name=name, status=status, **({"message": message} if message else {}))
        self._apps = apps

    def _put_if_needed(self, serve: Serve) -> None:
        assert self._settings.config is not None
        try:
            wanted = puts.read_config(self._settings.config)
        except ConfigError as error:
            self._log.trouble("config", error)
            return
        self._log.fine("config")
        waiting = puts.waits_for_restart(wanted, serve)
        if waiting:
            self._log.trouble("options", f"a new head is needed for {', '.join(waiting)}: delete the head pod")
        else:
            self._log.fine("options")
        self._puts, reason = puts.decide(self._puts, wanted, serve, self._clock())
        if self._puts.is_settled:
            self._log.fine("put")
        if reason:
            self._log.event("put", reason=reason, digest=wanted.digest[:12])
            self._put = Put(wanted, serve)
            threading.Thread(target=self._put.run, args=(self._api,), name="put", daemon=True).start()

    def _finish_put(self) -> None:
        put = self._put
        if put is None or not put.done.is_set():
            return
        self._put = None
        if put.result is None:
            self._puts = puts.put_accepted(self._puts, put.wanted, put.serve, self._clock())
            self._log.event("put_accepted", digest=put.wanted.digest[:12])
            self._log.fine("put")
            return
        if isinstance(put.result, RejectedError):
            self._puts = puts.put_rejected(self._puts, put.wanted, put.serve, self._clock())
            self._log.trouble("put", f"Serve refuses the config, correct it: {put.result}")
            return
        self._puts = puts.put_failed(self._puts, put.wanted, self._clock())
        self._log.trouble("put", put.result)

    def _label(self, serve: Serve | None) -> bool:
        try:
            role = self._role()
            pods = self._pods = self._kubernetes.pods(self._settings.cluster)
            successor_serves = role.is_active is False and self._kubernetes.serves(role.successor)
            self._moved()
            seen = labels.Seen(serve, pods, role, successor_serves)
            self._labels, wanted = labels.decide(self._settings.rule, self._labels, seen, self._clock())
            for pod in pods:
                if wanted[pod.name] != pod.is_labelled or pod.is_stale:
                    self._set_label(pod, wanted[pod.name])
        except KubernetesError as error:
            self._log.trouble("kubernetes", error)
            return False
        self._log.fine("kubernetes")
        self._labelled = sorted(name for name, is_wanted in wanted.items() if is_wanted)
        return True

    def _role(self) -> Role:
        if not self._settings.service:
            return Role()
        try:
            role = self._kubernetes.role(self._settings.service, self._settings.cluster, self._settings.incremental)
        except NotFoundError as error:
            self._log.trouble("rayservice", error)
            return Role(None)
        self._log.fine("rayservice")
        return role

    def _set_label(self, pod: Pod, wanted: bool) -> None:
        try:
            self._kubernetes.set_label(pod, wanted)
        except NotFoundError:
            return
        self._log.event("label" if wanted else "unlabel", pod=pod.name)
        self._moved()

    def _report_idle(self, report: IdleReport, serve: Serve | None) -> bool:
        """Whether the API server answered. Acts on a round that is over, and begins the next when it is time."""
        done, now = self._round, self._clock()
        if done is not None and done.done.is_set():
            self._round = None
            seen = idle.Seen(serve, self._pods, done.answers)
            self._idle, changes = idle.decide(report.grace_s, self._idle, seen, now)
            if not self._set_idle({pod.name: pod for pod in self._pods}, changes):
                return False
        if self._round is None and now - self._round_at >= report.period_s:
            self._round, self._round_at = Round(report.port, idle.asks(serve, self._pods)).start(), now
        return True

    def _set_idle(self, pods: dict[str, Pod], changes: dict[str, bool]) -> bool:
        since = idle.timestamp(datetime.now(UTC))
        for name, is_idle in changes.items():
            try:
                self._kubernetes.set_idle(pods[name], since if is_idle else None)
            except NotFoundError:
                continue
            except KubernetesError as error:
                self._log.trouble("kubernetes", error)
                return False
            self._log.event("idle" if is_idle else "busy", pod=name)
            self._moved()
        return True

    def _moved(self) -> None:
        if self._health is not None:
            self._health.beat()
            self._health.state = self.state()

    def state(self) -> dict[str, Any]:
        return {
            "kind": self._settings.kind,
            "cluster": self._settings.cluster,
            "applications": dict(self._apps),
            "labelled": list(self._labelled),
            "troubles": dict(self._log.troubles),
            "config": self._puts.accepted[0] if self._puts.accepted else None,
        }
