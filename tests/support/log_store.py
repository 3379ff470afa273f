"""A log store on loopback that takes OTLP over HTTP and keeps what it was sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse


@dataclass(frozen=True)
class Line:
    """One log record as it arrived."""

    body: str
    time_ns: int
    severity: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    tenant: str


@dataclass(frozen=True)
class Store:
    port: int
    paths: set[str] = field(default_factory=set)
    lines: list[Line] = field(default_factory=list)


@contextmanager
def log_store(port: int) -> Iterator[Store]:
    """A store that listens on 127.0.0.1:port until the block ends."""
    store, lock = Store(port), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            text = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            with lock:
                store.paths.add(self.path)
                store.lines.extend(_lines(text, self.headers.get("x-scope-orgid", "")))
            answer = ExportLogsServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


def _lines(body: bytes, tenant: str) -> Iterator[Line]:
    request = ExportLogsServiceRequest()
    request.ParseFromString(body)
    for group in request.resource_logs:
        resource = _values(group.resource.attributes)
        for record in (record for scope in group.scope_logs for record in scope.log_records):
            attributes = _values(record.attributes)
            yield Line(
                record.body.string_value, record.time_unix_nano, record.severity_text, attributes, resource, tenant
            )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in pairs}
