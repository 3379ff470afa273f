"""What a simulation says, as numbers for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from llm_ray.simulate.curve import COLUMNS, curve_of
from llm_ray.simulate.settings import Fleet
from llm_ray.simulate.simulator import Result

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class Slo:
    """Seconds that a request may take; 0 is no limit."""

    ttft_s: float = 0.0
    latency_s: float = 0.0


@dataclass(frozen=True)
class Summary:
    """All that is printed. A rejected request misses every objective."""

    requests: int
    finished: int
    rejected: int
    duration_s: float
    ttft_s: dict[str, float]
    latency_s: dict[str, float]
    ttft_misses: int | None
    latency_misses: int | None
    peak_waiting: int
    replica_seconds: float
    ready_replica_seconds: float
    peak_replicas: int
    scale_ups: int
    scale_downs: int
    gpu_hours: float
    longest_drain_s: float


def summarize(result: Result, fleet: Fleet, slo: Slo) -> Summary:
    pods, ready = (curve_of(result.curve, column, result.end) for column in (COLUMNS[1], COLUMNS[2]))
    wanted = [point.wanted for point in result.curve]
    pod_seconds = pods.integral(0.0, result.end)
    return Summary(
        requests=len(result.latency),
        finished=len(result.latency) - result.rejected,
        rejected=result.rejected,
        duration_s=result.end,
        ttft_s=quantiles(result.ttft),
        latency_s=quantiles(result.latency),
        ttft_misses=misses(result.ttft, slo.ttft_s),
        latency_misses=misses(result.latency, slo.latency_s),
        peak_waiting=result.peak_waiting,
        replica_seconds=pod_seconds,
        ready_replica_seconds=ready.integral(0.0, result.end),
        peak_replicas=max(point.pods for point in result.curve),
        scale_ups=sum(b > a for a, b in pairwise(wanted)),
        scale_downs=sum(b < a for a, b in pairwise(wanted)),
        gpu_hours=pod_seconds * fleet.gpus / 3600,
        longest_drain_s=result.longest_drain_s,
    )


def quantiles(times: Sequence[float]) -> dict[str, float]:
    """Nearest rank, over what finished; empty when nothing did."""
    done = sorted(t for t in times if not math.isnan(t))
    if not done:
        return {}
    return {name: done[max(0, math.ceil(q * len(done)) - 1)] for name, q in QUANTILES.items()}


def misses(times: Sequence[float], limit: float) -> int | None:
    """None without a limit."""
    return sum(not t <= limit for t in times) if limit else None


def as_dict(summary: Summary) -> dict[str, object]:
    return asdict(summary)


def as_text(summary: Summary, slo: Slo) -> str:
    def times(values: dict[str, float]) -> str:
        return "  ".join(f"{name} {value:.3f} s" for name, value in values.items()) or "none finished"

    def objective(name: str, limit: float, missed: int | None) -> list[tuple[str, str]]:
        if missed is None:
            return []
        return [(f"{name} over {limit:g} s", f"{missed} ({missed / summary.requests:.2%}, rejected ones included)")]

    rows = [
        ("requests", f"{summary.requests}: {summary.finished} finished, {summary.rejected} rejected"),
        ("duration", f"{summary.duration_s:.1f} s"),
        ("time to first token", times(summary.ttft_s)),
        ("latency", times(summary.latency_s)),
        *objective("time to first token", slo.ttft_s, summary.ttft_misses),
        *objective("latency", slo.latency_s, summary.latency_misses),
        ("most waiting at once", str(summary.peak_waiting)),
        ("replicas", f"at most {summary.peak_replicas}; {summary.scale_ups} times up, {summary.scale_downs} down"),
        ("replica-seconds", f"{summary.replica_seconds:.0f} with pods, {summary.ready_replica_seconds:.0f} serving"),
        ("GPU hours", f"{summary.gpu_hours:.3f}"),
        ("longest drain", f"{summary.longest_drain_s:.1f} s"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)
