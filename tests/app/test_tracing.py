"""The span processors that Serve is given: what they send, where to, and what they refuse."""

from __future__ import annotations

import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider

from llm_ray.tracing import exporter
from tests.app.otlp_collector import collector


def test_spans_go_where_the_standard_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=team-a")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "chat")
        provider = TracerProvider()
        for processor in exporter():
            provider.add_span_processor(processor)
        with provider.get_tracer("test").start_as_current_span("hello") as span:
            span.set_attribute("request_id", "r-1")
        provider.shutdown()
    assert [span.name for span in receiver.spans] == ["hello"]
    assert receiver.spans[0].attributes[0].value.string_value == "r-1"
    assert receiver.resources[0]["service.name"] == "chat"
    assert receiver.headers["x-tenant"] == "team-a"


@pytest.mark.parametrize("key", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_another_protocol_costs_the_spans_and_not_the_requests(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    monkeypatch.setenv(key, "grpc")
    monkeypatch.setattr(logging.getLogger("ray.serve"), "propagate", True)
    assert exporter() == []
    assert f"{key} (grpc) must be http/protobuf: give OTEL_EXPORTER_OTLP_ENDPOINT" in caplog.text
