"""Where Serve's spans go: an OTLP collector over HTTP. For Serve, `exporter_import_path: llm_ray.tracing:exporter`.

Every option is one of OpenTelemetry's own variables: OTEL_EXPORTER_OTLP_*, OTEL_BSP_*, OTEL_SERVICE_NAME and so on.
"""

from __future__ import annotations

import logging
import os

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor

log = logging.getLogger("ray.serve")

PROTOCOL = "http/protobuf"
PROTOCOL_KEYS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def exporter() -> list[SpanProcessor]:
    """Called by Serve in each proxy and replica. What cannot be exported is told once in its log; requests go on."""
    for key in PROTOCOL_KEYS:
        protocol = os.environ.get(key, "")
        if protocol not in ("", PROTOCOL):
            log.error(
                "no spans: %s (%s) must be %s: give OTEL_EXPORTER_OTLP_ENDPOINT the collector's HTTP port (4318)",
                key,
                protocol,
                PROTOCOL,
            )
            return []
    return [BatchSpanProcessor(OTLPSpanExporter())]
