"""Who decides: nobody, a HorizontalPodAutoscaler, KEDA or Ray Serve. Each sees the load as late as its metrics come."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from llm_ray.simulate.hpa import Hpa, HpaSpec
from llm_ray.simulate.settings import MetricPath, above, at_least, setting

TICK_S = 1.0  # Serve decides every 0.1 s; on numbers that change every push, once a second is as good


@dataclass(frozen=True)
class State:
    """What a scaler may look at: open requests; groups wanted and existing; engines wanted and serving."""

    open: int
    wanted: int
    existing: int
    engines: int
    running: int


@dataclass(frozen=True)
class Timer:
    """Something that happens every `period` from `first` on; the answer is a new count, or None."""

    first: float
    period: float
    run: Callable[[float, State], int | None]


class Scaler(Protocol):
    """`idle_timeout_s` None: counts are groups; else they are engines, and an empty group waits that long to go."""

    @property
    def idle_timeout_s(self) -> float | None: ...

    def timers(self) -> tuple[Timer, ...]: ...


class FixedScaler:
    """Leaves the groups as they are."""

    idle_timeout_s: float | None = None

    def timers(self) -> tuple[Timer, ...]:
        return ()


class _Prometheus:
    """Open requests as Prometheus knows them."""

    def __init__(self, path: MetricPath) -> None:
        self._path = path
        self._pushed = 0
        self._samples: deque[tuple[float, int]] = deque()

    def timers(self) -> tuple[Timer, ...]:
        """Each step of the path is shifted by half a period of the one before: the mean of what clocks do by chance."""
        return Timer(0.0, self._path.push_s, self._push), Timer(
            self._path.push_s / 2, self._path.scrape_s, self._scrape
        )

    def first_look(self) -> float:
        return (self._path.push_s + self._path.scrape_s) / 2

    def query(self, now: float) -> float | None:
        """None while nothing was scraped: nobody scales on a missing metric."""
        if not self._samples:
            return None
        if not self._path.window_s:
            return self._samples[-1][1]
        recent = [value for t, value in self._samples if t > now - self._path.window_s]
        return sum(recent) / len(recent) if recent else None

    def _push(self, now: float, state: State) -> None:
        self._pushed = state.open

    def _scrape(self, now: float, state: State) -> None:
        self._samples.append((now, self._pushed))
        while len(self._samples) > 1 and self._samples[0][0] <= now - self._path.window_s:
            self._samples.popleft()


class HpaScaler:
    """An HPA on the external metric of open requests."""

    idle_timeout_s: float | None = None

    def __init__(self, spec: HpaSpec, path: MetricPath) -> None:
        self._hpa = Hpa(spec)
        self._path = path
        self._metric = _Prometheus(path)

    def timers(self) -> tuple[Timer, ...]:
        return *self._metric.timers(), Timer(self._metric.first_look(), self._path.sync_s, self._sync)

    def _sync(self, now: float, state: State) -> int | None:
        metric = self._metric.query(now)
        return None if metric is None else self._hpa.sync(now, state.wanted, state.existing, metric)


class KedaScaler:
    """KEDA: its HPA from 1 up; between 0 and 1 KEDA itself, which asks the same query every polling interval."""

    idle_timeout_s: float | None = None

    def __init__(self, spec: HpaSpec, path: MetricPath, polling_s: float, cooldown_s: float, min_replicas: int) -> None:
        self._hpa = Hpa(spec)
        self._path = path
        self._metric = _Prometheus(path)
        self._polling_s = polling_s
        self._cooldown_s = cooldown_s
        self._min = min_replicas
        self._active = 0.0

    def timers(self) -> tuple[Timer, ...]:
        look = self._metric.first_look()
        return (
            *self._metric.timers(),
            Timer(look, self._polling_s, self._poll),
            Timer(look, self._path.sync_s, self._sync),
        )

    def _poll(self, now: float, state: State) -> int | None:
        if self._metric.query(now):
            self._active = now
            return max(1, self._min) if state.wanted == 0 else None
        if not self._min and state.wanted and now - self._active > self._cooldown_s:
            return 0
        return None

    def _sync(self, now: float, state: State) -> int | None:
        metric = self._metric.query(now)
        return None if metric is None else self._hpa.sync(now, state.wanted, state.existing, metric)


@dataclass(frozen=True)
class ServeSpec:
    """Serve's autoscaling of engines, and KubeRay's of the groups below them."""

    min_engines: int = setting(1, "engines: fewest")
    max_engines: int = setting(1, "engines: most")
    target_ongoing_requests: float = setting(32.0, "requests: per engine to aim at")
    upscale_delay_s: float = setting(30.0, "s: how long load must be high before an engine is added")
    downscale_delay_s: float = setting(600.0, "s: how long load must be low before an engine is removed")
    look_back_period_s: float = setting(30.0, "s: over which Serve averages")
    metric_push_s: float = setting(10.0, "s: between two reports to Serve's controller")
    idle_timeout_s: float = setting(300.0, "s: before an empty group is taken away")

    def __post_init__(self) -> None:
        at_least(self, 0, "min_engines", "upscale_delay_s", "downscale_delay_s", "idle_timeout_s")
        at_least(self, max(1, self.min_engines), "max_engines")
        above(self, 0, "target_ongoing_requests", "look_back_period_s", "metric_push_s")


@dataclass
class ServeScaler:
    """Ray Serve's policy: ceil(open requests / target), after the load was high or low for long enough."""

    spec: ServeSpec
    reported: float = 0.0
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    since: float | None = None
    direction: int = 0

    @property
    def idle_timeout_s(self) -> float | None:
        return self.spec.idle_timeout_s

    def timers(self) -> tuple[Timer, ...]:
        record_s = self.spec.look_back_period_s / 5
        return (
            Timer(0.0, record_s, self._record),
            Timer(self.spec.metric_push_s / 2, self.spec.metric_push_s, self._push),
            Timer(TICK_S, TICK_S, lambda now, state: self.decide(now, state)),
        )

    def decide(self, now: float, state: State) -> int:
        """The count of engines, within its bounds."""
        wanted = self._decide(now, state)
        return min(max(wanted, self.spec.min_engines), self.spec.max_engines)

    def _decide(self, now: float, state: State) -> int:
        if not state.running:  # a request that finds no engine is reported at once
            return max(1, state.engines) if state.open else state.engines
        desired = math.ceil(self.reported / self.spec.target_ongoing_requests - 1e-9)
        if desired == state.engines:
            self.since, self.direction = None, 0
            return state.engines
        direction = 1 if desired > state.engines else -1
        if direction != self.direction:
            self.since, self.direction = now, direction
        delay = self.spec.upscale_delay_s if direction > 0 else self.spec.downscale_delay_s
        if now - (self.since or 0.0) + 1e-6 < delay:
            return state.engines
        self.since, self.direction = None, 0
        return max(desired, 1) if state.engines > 1 else desired

    def _record(self, now: float, state: State) -> None:
        self.samples.append((now, state.open))
        while self.samples[0][0] < now - self.spec.look_back_period_s:
            self.samples.popleft()

    def _push(self, now: float, state: State) -> None:
        recent = [value for t, value in self.samples if t >= now - self.spec.look_back_period_s]
        self.reported = sum(recent) / len(recent) if recent else float(state.open)
