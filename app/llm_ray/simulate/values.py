"""The chart's values as settings of a simulation: only the keys that matter to it, with the chart's own defaults."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from llm_ray.errors import ConfigError
from llm_ray.simulate.defaults import Values, default_values
from llm_ray.simulate.hpa import DEFAULT_DOWN, DEFAULT_UP, Rules, ScalingPolicy


@dataclass
class Plan:
    """Plain settings by section, before flags are laid over them and they are checked."""

    mode: str = "fixed"
    provider: str = "hpa"
    average: float = 30.0
    behavior: Values = field(default_factory=dict)
    polling_s: float = 15.0
    cooldown_s: float = 600.0
    rates: Values = field(default_factory=dict)
    fleet: Values = field(default_factory=dict)
    metrics: Values = field(default_factory=dict)
    serve: Values = field(default_factory=dict)


def read_yaml(path: Path, what: str) -> Values:
    """A mapping; JSON is YAML too."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {what} {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} {path} is not YAML: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{what} {path} must be a mapping of keys, not {type(data).__name__}")
    return data


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> Values:
    """As Helm merges values: maps by key, anything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = overlay(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def plan_of(given: Mapping[str, Any], group: str = "") -> Plan:
    """Of values for charts/llm-ray, or for the umbrella, where they stand under llm-ray."""
    inner = given.get("llm-ray")
    values = _Reader(overlay(default_values(), inner if isinstance(inner, dict) else given))
    worker = _worker(values, group)
    world = values.whole("engine.tensorParallelSize", 1) * values.whole("engine.pipelineParallelSize", 1)
    hosts, engines = _shape(values, worker, world)
    mode, replicas = str(values.get("autoscaling.mode")), worker.whole("replicas", 0)
    low = high = replicas
    if mode != "fixed":
        low = worker.whole("minReplicas", 0, replicas)
        high = worker.whole("maxReplicas", 0, max(replicas, low))
    gpus = worker.whole("numGpus", 0, worker.whole("gpusPerNode", 0))
    threshold, budget = (
        values.whole("engine.longPrefillTokenThreshold", 1),
        values.whole("engine.maxNumBatchedTokens", 1),
    )
    chunk = min(threshold, budget)
    if mode == "hpa" and values.get("autoscaling.hpa.metricType") != "AverageValue":
        raise ConfigError(
            f"autoscaling.hpa.metricType ({values.get('autoscaling.hpa.metricType')}) must be AverageValue for a "
            "simulation, which knows the open requests and no other metric: set it so, with averageValue in requests"
        )
    return Plan(
        mode=mode,
        provider=str(values.get("autoscaling.hpa.provider")),
        average=values.number("autoscaling.hpa.averageValue"),
        behavior=_behavior(values),
        polling_s=values.number("autoscaling.hpa.keda.pollingInterval"),
        cooldown_s=values.number("autoscaling.hpa.keda.cooldownPeriod"),
        rates={
            "max_num_seqs": values.whole("engine.maxNumSeqs", 1),
            "max_queue_len": values.whole("serve.server.maxQueueLen", 0),
            "prefill_chunk_tokens": chunk,
            "prefill_sequences": budget // chunk,
        },
        fleet={
            "min_replicas": low,
            "max_replicas": max(high, 1),
            "initial_replicas": low,
            "engines": engines,
            "gpus": gpus * hosts,
        },
        metrics={"scrape_s": _duration("monitoring.podMonitor.interval", values)},
        serve=_serve(values, worker, low * engines, max(high, 1) * engines),
    )


def _behavior(values: _Reader) -> Values:
    """autoscaling.hpa.behavior, with autoscaling.hpa.tolerance below it in both directions."""
    tolerance = values.get("autoscaling.hpa.tolerance")
    behavior: Values = values.get("autoscaling.hpa.behavior") or {}
    if tolerance is None:
        return behavior
    both = {"tolerance": tolerance}
    return overlay({"scaleUp": both, "scaleDown": both}, behavior)


def _serve(values: _Reader, worker: _Reader, least: int, most: int) -> Values:
    """What Ray Serve and Ray's autoscaler are told; least and most: engines that the groups hold."""
    return {
        "min_engines": values.whole("serve.deployment.minReplicas", 0, least),
        "max_engines": values.whole("serve.deployment.maxReplicas", 1, most),
        "target_ongoing_requests": values.number("serve.deployment.targetOngoingRequests"),
        "upscale_delay_s": values.number("serve.deployment.upscaleDelayS"),
        "downscale_delay_s": values.number("serve.deployment.downscaleDelayS"),
        "idle_timeout_s": worker.number("idleTimeoutSeconds", values.number("autoscaling.serve.idleTimeoutSeconds")),
    }


def rules_of(behavior: Mapping[str, Any], side: str) -> Rules:
    """scaleUp or scaleDown of an HPA's behavior; what is left out has Kubernetes' defaults."""
    default = DEFAULT_UP if side == "scaleUp" else DEFAULT_DOWN
    where = f"behavior.{side}"
    _known("behavior", behavior, {"scaleUp", "scaleDown"})
    given = behavior.get(side) or {}
    _known(where, given, {"stabilizationWindowSeconds", "policies", "selectPolicy", "tolerance"})
    reader = _Reader(given, f"{where}.")
    policies = default.policies
    if given.get("policies") is not None:
        policies = tuple(_policy(f"{where}.policies[{i}]", entry) for i, entry in enumerate(given["policies"]))
    try:
        return Rules(
            reader.whole("stabilizationWindowSeconds", 0, default.window_s),
            policies,
            given.get("selectPolicy") or default.select,
            reader.number("tolerance", default.tolerance),
        )
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None


def _policy(where: str, entry: Any) -> ScalingPolicy:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} ({entry!r}) must be a mapping with type, value and periodSeconds")
    _known(where, entry, {"type", "value", "periodSeconds"})
    reader = _Reader(entry, f"{where}.")
    try:
        return ScalingPolicy(reader.get("type"), reader.whole("value", 0), reader.whole("periodSeconds", 0))
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(where) else f"{where}.{text}") from None


def _known(where: str, given: Any, known: set[str]) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} ({given!r}) must be a mapping of {', '.join(sorted(known))}")
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}; known: {', '.join(sorted(known))}")


class _Reader:
    """Values by dotted key, checked as they are read."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._values = values
        self._where = where

    def get(self, key: str) -> Any:
        value: Any = self._values
        for part in key.split("."):
            if value is not None and not isinstance(value, Mapping):
                raise ConfigError(f"{self._where}{key}: {part} stands in {value!r}, which is not a mapping")
            value = (value or {}).get(part)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ConfigError(f"{self._where}{key} ({value!r}) must be a number of at least 0")
        return float(value)

    def whole(self, key: str, least: int, default: int | None = None) -> int:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < least:
            raise ConfigError(f"{self._where}{key} ({value!r}) must be a whole number of at least {least}")
        return int(value)


def _worker(values: _Reader, group: str) -> _Reader:
    workers = values.get("workers") or {"worker": {}}
    _known("workers", workers, set(workers))
    if group and group not in workers:
        raise ConfigError(f"--group ({group}) must be one of workers: {', '.join(sorted(workers))}")
    if not group and len(workers) > 1:
        raise ConfigError(
            f"workers has {len(workers)} groups ({', '.join(sorted(workers))}), each scaled by its own load: "
            "name one with --group, and give the trace of its requests"
        )
    name = group or next(iter(workers))
    return _Reader(overlay(values.get("workerDefaults") or {}, workers[name] or {}), f"workers.{name}.")


def _shape(values: _Reader, worker: _Reader, world: int) -> tuple[int, int]:
    """Hosts of a group and engines in it, as the chart derives them."""
    gpus = worker.whole("numGpus", 0, worker.whole("gpusPerNode", 0))
    per_rank = values.number("engine.numGpusPerRank", 1.0)
    ranks = world
    if worker.get("ranksPerNode"):
        ranks = worker.whole("ranksPerNode", 1)
    elif gpus and per_rank:
        ranks = math.floor(gpus / per_rank)
    elif worker.get("numOfHosts"):
        ranks = math.ceil(world / worker.whole("numOfHosts", 1))
    hosts = worker.whole("numOfHosts", 1, math.ceil(world / max(ranks, 1)))
    engines = ranks * hosts // world
    if engines < 1:
        raise ConfigError(
            f"a group of {hosts} hosts with {ranks} ranks each holds no engine of {world} ranks: raise numOfHosts, "
            "ranksPerNode or gpusPerNode"
        )
    return hosts, engines


def _duration(key: str, values: _Reader) -> float:
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    text = str(values.get(key))
    parts = re.findall(r"(\d+)(ms|[smhd])", text)
    if not parts or "".join(n + unit for n, unit in parts) != text:
        raise ConfigError(f"{key} ({text}) must be a duration like 15s")
    return sum(int(n) * units[unit] for n, unit in parts)
