"""`llm-ray deployer`: flags, or the environment variables that the chart sets, and signals."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from pathlib import Path

from llm_ray.deployer.labels import DEFAULT_GRACE_S, Rule
from llm_ray.errors import ConfigError

DEFAULT_DASHBOARD = "http://127.0.0.1:8265"
KINDS = ("RayCluster", "RayService")
DEFAULT_PERIOD_S = 2.0
DEFAULT_SERVE_PORT = 8000
DEFAULT_IDLE_PERIOD_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every flag has an environment variable, LLM_RAY_DEPLOYER_ and its name, or the one that its help names."""
    own = "LLM_RAY_DEPLOYER_"
    _add(parser, "--kind", own + "KIND", choices=KINDS, help="what owns the pods; a RayService's config is KubeRay's")
    _add(parser, "--config", own + "CONFIG", type=Path, help="Serve config file, for RayCluster; edits are noticed")
    _add(parser, "--namespace", "POD_NAMESPACE", help="namespace of the pods")
    _add(parser, "--cluster", "RAY_CLUSTER", help="name of this pod's RayCluster")
    _add(parser, "--service", "RAY_SERVICE", help="name of the RayService, for kind RayService")
    _add(parser, "--dashboard", own + "DASHBOARD", default=DEFAULT_DASHBOARD, help="Ray's dashboard")
    _add(parser, "--health-port", own + "HEALTH_PORT", type=int, default=0, help="/healthz; 0 is none")
    _add(parser, "--period-s", own + "PERIOD_S", type=float, default=DEFAULT_PERIOD_S, help="time between looks")
    _add(
        parser,
        "--grace-s",
        own + "GRACE_S",
        type=float,
        default=DEFAULT_GRACE_S,
        help="how long a proxy, the applications or the dashboard may be missing before it counts",
    )
    _add(
        parser,
        "--serve-port",
        own + "SERVE_PORT",
        type=int,
        default=DEFAULT_SERVE_PORT,
        help="HTTP port of Serve's proxies, for report-idle",
    )
    _add(
        parser,
        "--idle-period-s",
        own + "IDLE_PERIOD_S",
        type=float,
        default=DEFAULT_IDLE_PERIOD_S,
        help="time between two questions to every worker, for report-idle",
    )
    _add(parser, "--kubeconfig", "KUBECONFIG", type=Path, help="instead of the pod's service account")
    for name, help in (
        ("exclude-head", "the head pod gets no traffic"),
        ("incremental", "incremental upgrade: the pending cluster gets traffic too"),
        ("report-idle", "annotate the workers that have no request, for the scaler"),
    ):
        variable = own + name.upper().replace("-", "_")
        parser.add_argument(
            f"--{name}",
            action=argparse.BooleanOptionalAction,
            default=_is_true(variable),
            help=f"{help} (default: ${variable} or no)",
        )
    parser.set_defaults(run=run)


def _add(
    parser: argparse.ArgumentParser,
    flag: str,
    variable: str,
    *,
    help: str,
    default: object = None,
    type: type = str,
    choices: tuple[str, ...] | None = None,
) -> None:
    # A default that is a string goes through `type`, like one from the command line.
    value = os.environ.get(variable) or default
    tail = f"${variable}" if default is None else f"${variable} or {default}"
    parser.add_argument(flag, default=value, type=type, choices=choices, help=f"{help} (default: {tail})")


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes")


def run(args: argparse.Namespace) -> None:
    _check(args)
    # Here and not above: the Kubernetes client costs half a second, which no other command needs.
    from llm_ray.deployer.kube import Kubernetes
    from llm_ray.deployer.loop import Deployer, IdleReport, Settings
    from llm_ray.deployer.report import Health, Log
    from llm_ray.deployer.serve_api import ServeAPI, check_url

    api = ServeAPI(check_url(args.dashboard), os.environ.get("RAY_AUTH_TOKEN", ""))
    kubernetes = Kubernetes(args.namespace, args.kubeconfig)
    settings = Settings(
        kind=args.kind,
        cluster=args.cluster,
        config=args.config,
        service=args.service or "",
        incremental=args.incremental,
        period_s=args.period_s,
        rule=Rule(args.grace_s, args.exclude_head),
        idle=IdleReport(args.serve_port, args.idle_period_s, args.grace_s) if args.report_idle else None,
    )
    log = Log()
    health = Health(args.health_port) if args.health_port else None
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    log.event("start", kind=args.kind, cluster=args.cluster, namespace=args.namespace, dashboard=api.url)
    Deployer(settings, api, kubernetes, log, health).run(stop)
    if health is not None:
        health.close()
    log.event("stop")


def _check(args: argparse.Namespace) -> None:
    if args.kind not in KINDS:
        raise ConfigError(f"kind ({args.kind}) must be one of {', '.join(KINDS)}: give --kind")
    for name, variable in (("namespace", "POD_NAMESPACE"), ("cluster", "RAY_CLUSTER")):
        if not getattr(args, name):
            raise ConfigError(f"{name} is not set: give --{name}, or the pod {variable} by the downward API")
    if args.kind == "RayCluster" and args.config is None:
        raise ConfigError("config is not set: kind RayCluster needs --config, the mounted Serve config")
    if args.kind == "RayService" and args.config is not None:
        raise ConfigError(f"config ({args.config}) is of no use: KubeRay puts a RayService's config: leave it out")
    if args.kind == "RayService" and not args.service:
        raise ConfigError("service is not set: kind RayService needs --service, or RAY_SERVICE in the pod")
    if args.kind == "RayCluster" and (args.service or args.incremental):
        raise ConfigError("service and incremental are a RayService's: leave them out, or give --kind RayService")
    for name, limit in (("period_s", 0.05), ("grace_s", 0.0), ("idle_period_s", 0.05)):
        if not limit <= getattr(args, name) < 86400:
            raise ConfigError(f"{name} ({getattr(args, name)}) must be between {limit} and 86400")
    if not 1 <= args.serve_port <= 65535:
        raise ConfigError(f"serve-port ({args.serve_port}) must be between 1 and 65535")
    if not 0 <= args.health_port <= 65535:
        raise ConfigError(f"health-port ({args.health_port}) must be between 0 and 65535")
