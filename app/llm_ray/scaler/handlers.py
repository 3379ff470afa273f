"""kopf watches; an event becomes the keys that it concerns. Only `on.event`: kopf marks no object by that."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import kopf
from kubernetes.client import Configuration

from llm_ray.naming import NODE_TYPE_LABEL
from llm_ray.scaler import model
from llm_ray.scaler.model import Key
from llm_ray.scaler.routes import Routes

RESTART_S = 5.0
WORKERS = {NODE_TYPE_LABEL: "worker"}
log = logging.getLogger(__name__)

Add = Callable[[Key], None]


def registry(configuration: Configuration, namespaces: Sequence[str], routes: Routes, add: Add) -> Any:
    made = kopf.OperatorRegistry()

    @kopf.on.startup(registry=made)
    def settle(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.peering.standalone = True
        settings.scanning.disabled = bool(namespaces)  # which needs rights for the whole cluster
        settings.watching.label_selectors["pods"] = f"{NODE_TYPE_LABEL}=worker"
        settings.watching.server_timeout = 300
        settings.networking.request_timeout = 30

    @kopf.on.login(registry=made)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return connection(configuration)

    @kopf.on.event(model.GROUP, model.VERSION, model.PLURAL, registry=made)
    def scale(event: Mapping[str, Any], body: Mapping[str, Any], **_: Any) -> None:
        seen = model.parse_scale(body)
        if event["type"] == "DELETED":
            routes.gone(seen.key)
        else:
            routes.seen(seen)
        add(seen.key)

    def watch(find: Callable[[Mapping[str, Any]], Iterable[Key]], *resource: str, **options: Any) -> None:
        @kopf.on.event(*resource, registry=made, id=resource[-1], **options)
        def seen(body: Mapping[str, Any], **_: Any) -> None:
            for key in find(body):
                add(key)

    watch(routes.of_cluster, "ray.io", "v1", "rayclusters")
    watch(routes.of_service, "ray.io", "v1", "rayservices")
    watch(routes.of_autoscaler, "autoscaling", "v2", "horizontalpodautoscalers")
    watch(routes.of_pod, "", "v1", "pods", labels=WORKERS)
    return made


def connection(configuration: Configuration) -> kopf.ConnectionInfo:
    """kopf asks again when the API server refuses the token."""
    header = str(configuration.get_api_key_with_prefix("BearerToken") or "")
    scheme, _, token = header.rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )


def watch(made: Any, namespaces: Sequence[str], stop: threading.Event) -> None:
    """Until `stop`. kopf gives up when a right is missing: it is started again, and meanwhile there is the resync."""
    while not stop.is_set():
        try:
            asyncio.run(
                kopf.operator(
                    registry=made,
                    clusterwide=not namespaces,
                    namespaces=list(namespaces),
                    standalone=True,
                    stop_flag=stop,
                )
            )
        except (Exception, asyncio.CancelledError) as error:
            log.warning("event=watch_ended error=%r", str(error))
        stop.wait(RESTART_S)
