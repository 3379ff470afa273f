"""The algorithm of the HorizontalPodAutoscaler (autoscaling/v2) for one external metric with a target average.

Follows Kubernetes 1.37's controller to the rounding; the clock is the caller's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from llm_ray.errors import ConfigError

MAX_WINDOW_S, MAX_PERIOD_S = 3600, 1800
INT32_MAX = 2**31 - 1

PolicyType = Literal["Pods", "Percent"]
Select = Literal["Max", "Min", "Disabled"]


@dataclass(frozen=True)
class ScalingPolicy:
    """How much may change within a period."""

    type: PolicyType
    value: int
    period_s: int

    def __post_init__(self) -> None:
        if self.type not in ("Pods", "Percent"):
            raise ConfigError(f"type ({self.type!r}) must be Pods or Percent")
        if self.value < 1:
            raise ConfigError(f"value ({self.value}) must be at least 1; selectPolicy Disabled forbids a direction")
        if not 1 <= self.period_s <= MAX_PERIOD_S:
            raise ConfigError(f"periodSeconds ({self.period_s}) must be 1 to {MAX_PERIOD_S}")


@dataclass(frozen=True)
class Rules:
    """scaleUp or scaleDown of an HPA's behavior."""

    window_s: int
    policies: tuple[ScalingPolicy, ...]
    select: Select = "Max"
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.window_s <= MAX_WINDOW_S:
            raise ConfigError(f"stabilizationWindowSeconds ({self.window_s}) must be 0 to {MAX_WINDOW_S}")
        if self.select not in ("Max", "Min", "Disabled"):
            raise ConfigError(f"selectPolicy ({self.select!r}) must be Max, Min or Disabled")
        if not self.policies:
            raise ConfigError("policies is empty: name one, or leave the key out for the default")
        if not self.tolerance >= 0:
            raise ConfigError(f"tolerance ({self.tolerance}) must be at least 0")


DEFAULT_UP = Rules(0, (ScalingPolicy("Pods", 4, 15), ScalingPolicy("Percent", 100, 15)))
DEFAULT_DOWN = Rules(300, (ScalingPolicy("Percent", 100, 15),))


@dataclass(frozen=True)
class HpaSpec:
    """What an HPA asks for."""

    average: float
    min_replicas: int
    max_replicas: int
    up: Rules = DEFAULT_UP
    down: Rules = DEFAULT_DOWN

    def __post_init__(self) -> None:
        if not 0.001 <= self.average < math.inf:
            raise ConfigError(f"averageValue ({self.average}) must be at least 0.001 requests and finite")


@dataclass
class Hpa:
    """One HPA with what its controller remembers: recommendations, and what it changed lately."""

    spec: HpaSpec
    recommendations: list[tuple[float, int]] = field(default_factory=list)
    ups: list[tuple[float, int]] = field(default_factory=list)
    downs: list[tuple[float, int]] = field(default_factory=list)

    def sync(self, now: float, current: int, existing: int, metric: float) -> int:
        """What spec.replicas of the target becomes. `current` is the target's spec, `existing` its status."""
        if not self.recommendations:
            self.recommendations.append((now, current))
        if current == 0:
            return 0  # without the feature gate for zero, an HPA leaves a target alone that stands at 0
        if current > self.spec.max_replicas:
            wanted = self.spec.max_replicas
        elif current < self.spec.min_replicas:
            wanted = self.spec.min_replicas
        else:
            wanted = self.stabilize(now, current, self.propose(existing, metric))
            wanted = self.limit(now, current, wanted)
        self._remember(now, current, wanted)
        return wanted

    def propose(self, existing: int, metric: float) -> int:
        """ceil(metric / average), or what exists already where the difference is within the tolerance."""
        # Both are milli-units in the API: the metric is cut, the quantity of the spec is rounded up.
        usage, average = math.floor(metric * 1000 + 1e-6), math.ceil(self.spec.average * 1000 - 1e-6)
        if existing:
            ratio = usage / (average * existing)
            if 1.0 - self.spec.down.tolerance <= ratio <= 1.0 + self.spec.up.tolerance:
                return existing
        return min(math.ceil(usage / average), INT32_MAX)

    def stabilize(self, now: float, current: int, proposal: int) -> int:
        """The lowest recent recommendation on the way up, the highest on the way down."""
        up_after, down_after = now - self.spec.up.window_s, now - self.spec.down.window_s
        low = min([proposal, *(r for t, r in self.recommendations if t > up_after)])
        high = max([proposal, *(r for t, r in self.recommendations if t > down_after)])
        _store(self.recommendations, min(up_after, down_after), (now, proposal))
        return min(max(current, low), high)

    def limit(self, now: float, current: int, wanted: int) -> int:
        """What the policies and the bounds let through."""
        if wanted > current:
            allowed = min(self.spec.max_replicas, max(self._up_limit(now, current), current))
            return min(wanted, allowed)
        if wanted < current:
            allowed = max(self.spec.min_replicas, min(self._down_limit(now, current), current))
            return max(wanted, allowed)
        return wanted

    def _up_limit(self, now: float, current: int) -> int:
        rules = self.spec.up
        if rules.select == "Disabled":
            return current
        limits = []
        for policy in rules.policies:
            start = self._period_start(now, current, policy.period_s)
            grown = start + policy.value if policy.type == "Pods" else math.ceil(start * (1 + policy.value / 100))
            limits.append(grown)
        return min(limits) if rules.select == "Min" else max(limits)

    def _down_limit(self, now: float, current: int) -> int:
        rules = self.spec.down
        if rules.select == "Disabled":
            return current
        limits = []
        for policy in rules.policies:
            start = self._period_start(now, current, policy.period_s)
            shrunk = start - policy.value if policy.type == "Pods" else int(start * (1 - policy.value / 100))
            limits.append(shrunk)
        return max(limits) if rules.select == "Min" else min(limits)

    def _period_start(self, now: float, current: int, period_s: int) -> int:
        """The replicas of period_s ago, from the changes since."""
        since = now - period_s
        return current - sum(n for t, n in self.ups if t > since) + sum(n for t, n in self.downs if t > since)

    def _remember(self, now: float, current: int, wanted: int) -> None:
        rules, events = (self.spec.up, self.ups) if wanted > current else (self.spec.down, self.downs)
        if wanted != current:
            longest = max(policy.period_s for policy in rules.policies)
            _store(events, now - longest, (now, abs(wanted - current)))


def _store(entries: list[tuple[float, int]], outdated_before: float, entry: tuple[float, int]) -> None:
    """In place of an outdated entry, as the controller does: others of them stay, and count for a longer period."""
    outdated = [i for i, (t, _) in enumerate(entries) if t < outdated_before]
    if outdated:
        entries[outdated[-1]] = entry
    else:
        entries.append(entry)
