"""`llm-ray simulate`: files and flags to settings, a run, and what it prints and writes."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from llm_ray.errors import ConfigError
from llm_ray.simulate import report
from llm_ray.simulate.curve import write_csv
from llm_ray.simulate.hpa import HpaSpec
from llm_ray.simulate.plot import require_matplotlib, write_png
from llm_ray.simulate.scalers import FixedScaler, HpaScaler, KedaScaler, Scaler, ServeScaler, ServeSpec
from llm_ray.simulate.settings import Fleet, MetricPath, Rates, build
from llm_ray.simulate.shape import shape_trace, write_trace
from llm_ray.simulate.simulator import simulate
from llm_ray.simulate.trace import Trace, read_trace
from llm_ray.simulate.values import Plan, overlay, plan_of, read_yaml, rules_of

SECTIONS: dict[str, type[Any]] = {"rates": Rates, "fleet": Fleet, "metrics": MetricPath, "serve": ServeSpec}
MODES = ("fixed", "hpa", "keda", "serve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--trace", type=Path, metavar="FILE",
                      help="CSV, or JSON Lines in a .jsonl file, with arrival_s, prompt_tokens, output_tokens, or with "
                      "TIMESTAMP, ContextTokens, GeneratedTokens")  # fmt: skip
    load.add_argument(
        "--shape", metavar="S:R,…", help="make a trace: seconds:requests per second, e.g. 60:1,180:3,120:1"
    )
    parser.add_argument(
        "--prompt-tokens", type=int, default=128, metavar="N", help="with --shape (default: %(default)s)"
    )
    parser.add_argument(
        "--output-tokens", type=int, default=64, metavar="N", help="with --shape (default: %(default)s)"
    )
    parser.add_argument(
        "--save-trace", type=Path, metavar="FILE", help="write the trace as CSV, to replay it as a load"
    )
    parser.add_argument("--values", action="append", default=[], type=Path, metavar="FILE",
                        help="values of the chart; again for more, the last wins")  # fmt: skip
    parser.add_argument("--group", default="", metavar="NAME", help="worker group, where values have several")
    parser.add_argument("--rates", type=Path, metavar="FILE", help="YAML or JSON with rates: and metrics:")
    parser.add_argument("--mode", choices=MODES, help="instead of autoscaling.mode of the values")
    parser.add_argument("--average-value", type=float, metavar="N", help="requests: per group, that an HPA aims at")
    parser.add_argument(
        "--behavior", metavar="YAML", help="of the HPA, instead of the values': {scaleUp: …, scaleDown: …}"
    )
    parser.add_argument(
        "--ttft-slo", type=float, default=0.0, metavar="S", help="count requests without a token by then"
    )
    parser.add_argument(
        "--latency-slo", type=float, default=0.0, metavar="S", help="count requests not finished by then"
    )
    parser.add_argument("--until", type=float, default=0.0, metavar="S", help="go on at least until then")
    parser.add_argument("--output", choices=("text", "json"), default="text", help="default: %(default)s")
    parser.add_argument("--curve", type=Path, metavar="FILE", help="write replicas over time as CSV")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write replicas and requests over time as PNG")
    for name, cls in SECTIONS.items():
        group = parser.add_argument_group(name, (cls.__doc__ or "").splitlines()[0])
        types = get_type_hints(cls)
        for f in fields(cls):
            help = f"{f.metadata['help']} (default: {f.default:g})".replace("%", "%%")
            group.add_argument("--" + f.name.replace("_", "-"), dest=f"{name}.{f.name}", type=types[f.name],
                               default=argparse.SUPPRESS, metavar="N", help=help)  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    for name in ("ttft_slo", "latency_slo", "until"):
        if not 0 <= getattr(args, name) < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} ({getattr(args, name)}) must be 0 or more seconds")
    if args.plot:
        require_matplotlib()
    plan = _plan(args)
    rates, fleet = build(Rates, plan.rates, "rates: "), build(Fleet, plan.fleet, "fleet: ")
    scaler = make_scaler(plan, fleet)
    trace = _trace(args)
    result = simulate(trace, rates, fleet, scaler, until=args.until)
    slo = report.Slo(args.ttft_slo, args.latency_slo)
    summary = report.summarize(result, fleet, slo)
    if args.curve:
        write_csv(args.curve, result.curve, result.end)
    if args.plot:
        write_png(args.plot, result)
    print(json.dumps(report.as_dict(summary), indent=2) if args.output == "json" else report.as_text(summary, slo))


def _trace(args: argparse.Namespace) -> Trace:
    if args.trace:
        trace = read_trace(args.trace)
    else:
        for name in ("prompt_tokens", "output_tokens"):
            if getattr(args, name) < 0:
                raise ConfigError(f"--{name.replace('_', '-')} ({getattr(args, name)}) must be at least 0")
        trace = shape_trace(args.shape, args.prompt_tokens, args.output_tokens)
    if args.save_trace:
        write_trace(args.save_trace, trace)
    return trace


def make_scaler(plan: Plan, fleet: Fleet) -> Scaler:
    """Refuses what could never serve a request."""
    path = build(MetricPath, plan.metrics, "metrics: ")
    if plan.mode == "serve":
        return ServeScaler(build(ServeSpec, plan.serve, "serve: "))
    if plan.mode == "fixed":
        if not fleet.initial_replicas:
            raise ConfigError("initial_replicas (0) must be at least 1 with mode fixed: nobody would ever raise it")
        return FixedScaler()
    if plan.mode not in ("hpa", "keda"):
        raise ConfigError(f"mode ({plan.mode!r}) must be one of {', '.join(MODES)}")
    keda = plan.mode == "keda" or plan.provider == "keda"
    if not keda and not min(fleet.min_replicas, fleet.initial_replicas):
        raise ConfigError(
            f"min_replicas ({fleet.min_replicas}) and initial_replicas ({fleet.initial_replicas}) must be at least 1 "
            "with mode hpa, which never leaves 0 by itself: raise them, or take mode keda"
        )
    up, down = rules_of(plan.behavior, "scaleUp"), rules_of(plan.behavior, "scaleDown")
    spec = HpaSpec(plan.average, max(1, fleet.min_replicas), fleet.max_replicas, up, down)
    if keda:
        return KedaScaler(spec, path, plan.polling_s, plan.cooldown_s, fleet.min_replicas)
    return HpaScaler(spec, path)


def _plan(args: argparse.Namespace) -> Plan:
    """Defaults, then the values, then the rates file, then flags."""
    values: dict[str, Any] = {}
    for path in args.values:
        values = overlay(values, read_yaml(path, "--values"))
    plan = plan_of(values, args.group)
    given = read_yaml(args.rates, "--rates") if args.rates else {}
    for key in given:
        if key not in ("rates", "metrics"):
            raise ConfigError(f"--rates {args.rates}: unknown key {key!r}; known: rates, metrics")
    for name in SECTIONS:
        section = given.get(name) or {}
        if not isinstance(section, dict):
            raise ConfigError(f"--rates {args.rates}: {name} ({section!r}) must be a mapping")
        flags = {key.partition(".")[2]: value for key, value in vars(args).items() if key.startswith(f"{name}.")}
        getattr(plan, name).update(section | flags)
    _bounds(plan, args)
    plan.mode = args.mode or plan.mode
    if args.mode in ("hpa", "keda"):
        plan.provider = args.mode
    if args.average_value is not None:
        plan.average = args.average_value
    if args.behavior is not None:
        plan.behavior = _inline(args.behavior)
    return plan


def _bounds(plan: Plan, args: argparse.Namespace) -> None:
    """Bounds that were not given follow those that were."""
    given = vars(args)
    fleet = plan.fleet
    if "fleet.min_replicas" in given and "fleet.max_replicas" not in given:
        fleet["max_replicas"] = max(fleet["max_replicas"], fleet["min_replicas"])
    if "fleet.initial_replicas" in given and not {"fleet.min_replicas", "fleet.max_replicas"} & given.keys():
        fleet["max_replicas"] = max(fleet["max_replicas"], fleet["initial_replicas"])
    if "fleet.initial_replicas" not in given:
        fleet["initial_replicas"] = min(max(fleet["initial_replicas"], fleet["min_replicas"]), fleet["max_replicas"])
    for end in ("min", "max"):
        if f"fleet.{end}_replicas" in given and f"serve.{end}_engines" not in given:
            plan.serve[f"{end}_engines"] = fleet[f"{end}_replicas"] * fleet["engines"]


def _inline(text: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--behavior is not YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"--behavior ({text!r}) must be a mapping with scaleUp and scaleDown")
    return data
