"""`llm-ray scaler`: flags, or the environment variables that the chart sets, leadership and signals."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from llm_ray.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")
DEFAULT_LEASE, DEFAULT_LEASE_S, SHORTEST_LEASE_S, LONGEST_LEASE_S = "llm-ray-scaler", 15, 5, 3600
FORMAT = "time=%(asctime)s.%(msecs)03dZ level=%(levelname)s logger=%(name)s %(message)s"
STOP_S = 5.0


class _Stop(BaseException):
    """SIGTERM or SIGINT came."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every flag has an environment variable, LLM_RAY_SCALER_ and its name, or the one that its help names."""
    own = "LLM_RAY_SCALER_"
    namespaces = os.environ.get(own + "NAMESPACES", "")
    parser.add_argument(
        "--namespace",
        action="append",
        default=None,
        help=f"scale in this namespace; may be given several times (default: ${own}NAMESPACES by comma, or all)",
    )
    _add(parser, "--kubeconfig", "KUBECONFIG", None, Path, "instead of the pod's service account")
    _add(parser, "--log-level", own + "LOG_LEVEL", "info", str, ", ".join(LEVELS))
    _add(parser, "--health-port", own + "HEALTH_PORT", "0", int, "/healthz and /readyz; 0 is none")
    _add(parser, "--lease-namespace", "POD_NAMESPACE", None, str, "namespace of the Lease, by which one leads")
    _add(parser, "--lease-name", own + "LEASE_NAME", DEFAULT_LEASE, str, "name of the Lease")
    _add(parser, "--lease-s", own + "LEASE_S", str(DEFAULT_LEASE_S), int, "how long a leader that died is waited for")
    parser.set_defaults(run=run, default_namespaces=[name.strip() for name in namespaces.split(",") if name.strip()])


def _add(parser: argparse.ArgumentParser, flag: str, variable: str, default: str | None, type: type, help: str) -> None:
    # A default that is a string goes through `type`, like one from the command line.
    tail = f"${variable}" if default is None else f"${variable} or {default}"
    parser.add_argument(flag, default=os.environ.get(variable) or default, type=type, help=f"{help} (default: {tail})")


def run(args: argparse.Namespace) -> None:
    namespaces = args.namespace if args.namespace is not None else args.default_namespaces
    _check(args)
    _set_up_logs(args.log_level)
    # Here and not above: kopf and the Kubernetes client cost a second, which no other command needs.
    from llm_ray.scaler.controller import Controller
    from llm_ray.scaler.election import Election, Lease
    from llm_ray.scaler.health import Health
    from llm_ray.scaler.kube import connect

    log = logging.getLogger(__name__)
    configuration = connect(args.kubeconfig)
    health = Health(args.health_port) if args.health_port else None
    controller = Controller(configuration, namespaces, health.beat if health is not None else lambda: None)
    lease = Lease(args.lease_namespace, args.lease_name, args.lease_s)

    def lead() -> None:
        log.info("event=leading identity=%s", election.identity)
        controller.start()

    election = Election(configuration, lease, lead)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, _stop)
    log.info("event=start namespaces=%s lease=%s/%s", ",".join(namespaces) or "all", lease.namespace, lease.name)
    try:
        election.run()
    except _Stop:
        is_clean = controller.stop(STOP_S)
        election.release()
        log.info("event=stop clean=%s", is_clean)
        return
    log.error("event=lease_lost")
    _leave()


def _stop(*_: object) -> NoReturn:
    for signum in (signal.SIGTERM, signal.SIGINT):  # one is enough; the Lease is to be given back
        signal.signal(signum, signal.SIG_IGN)
    raise _Stop


def _leave() -> NoReturn:
    """At once, whatever threads do: another may lead by now."""
    sys.stderr.flush()
    os._exit(1)


def _set_up_logs(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("llm_ray").setLevel(level.upper())
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # it is in a thread on purpose
    if level == "debug":
        logging.getLogger("kopf").setLevel(logging.DEBUG)


def _check(args: argparse.Namespace) -> None:
    if args.log_level not in LEVELS:
        raise ConfigError(f"log-level ({args.log_level}) must be one of {', '.join(LEVELS)}: correct it")
    if not 0 <= args.health_port <= 65535:
        raise ConfigError(f"health-port ({args.health_port}) must be between 0 and 65535: correct it")
    if not args.lease_namespace:
        raise ConfigError("lease-namespace is not set: give --lease-namespace, or the pod POD_NAMESPACE")
    if not SHORTEST_LEASE_S <= args.lease_s <= LONGEST_LEASE_S:
        raise ConfigError(f"lease-s ({args.lease_s}) must be between {SHORTEST_LEASE_S} and {LONGEST_LEASE_S}")
