"""An OTLP receiver over HTTP that decodes what it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.app.stand_ins import Server, listening


@dataclass
class Collector(Server):
    spans: list[Any] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    def answer(self, method: str, path: str, query: dict[str, str], headers: Any, body: bytes) -> tuple[int, Any]:
        if (method, path, headers.get("Content-Type")) != ("POST", "/v1/traces", "application/x-protobuf"):
            return 404, "no such signal"
        self.headers = dict(headers.items())
        request = ExportTraceServiceRequest.FromString(body)
        for group in request.resource_spans:
            self.resources.append({pair.key: pair.value.string_value for pair in group.resource.attributes})
            for scope in group.scope_spans:
                self.spans.extend(scope.spans)
        return 200, ""

    def names(self, trace_id: str) -> set[str]:
        return {span.name for span in self.spans if span.trace_id.hex() == trace_id}


@contextmanager
def collector() -> Iterator[Collector]:
    made = Collector()
    with listening(made):
        yield made
