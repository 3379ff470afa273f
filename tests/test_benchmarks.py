"""The benchmarks' own arithmetic: sections of the report, counts out of the API server's metrics, times of a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.fleet_meters import by_client, by_kind, spent
from bench.fleet_times import FleetError, Timeline
from bench.sections import write_section

METRICS = """
# TYPE apiserver_flowcontrol_dispatched_requests_total counter
apiserver_flowcontrol_dispatched_requests_total{flow_schema="exempt",priority_level="exempt"} 743
apiserver_flowcontrol_dispatched_requests_total{flow_schema="fleet-installer",priority_level="global-default"} 32
apiserver_flowcontrol_dispatched_requests_total{flow_schema="kube-controller-manager",priority_level="workload-high"} 5
apiserver_flowcontrol_dispatched_requests_total{flow_schema="kube-system-service-accounts",priority_level="x"} 1.2e+01
apiserver_request_total{code="200",component="apiserver",resource="",scope="",subresource="/healthz",verb="GET"} 1
apiserver_request_total{code="201",component="apiserver",resource="pods",scope="x",subresource="binding",verb="POST"} 3
apiserver_request_total{code="409",component="apiserver",resource="pods",scope="x",subresource="binding",verb="POST"} 1
apiserver_request_total{code="200",component="apiserver",resource="pods",scope="x",subresource="",verb="WATCH"} 9
"""


def pod(release: str, name: str, node: str = "", phase: str = "Pending") -> dict[str, object]:
    labels = {"app.kubernetes.io/instance": release}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": node}, "status": {"phase": phase}}


def test_each_benchmark_writes_its_section_and_leaves_the_other(tmp_path: Path) -> None:
    report = tmp_path / "benchmarks.md"
    write_section("fleet", "## Fleet\n\nold", report)
    write_section("engine", "## Engine\n\nfast", report)
    write_section("fleet", "## Fleet\n\nnew", report)
    write_section("engine", "## Engine\n\nfaster", report)
    lines = [line for line in report.read_text().splitlines() if line and not line.startswith("<!--")]
    assert lines == ["# Benchmarks", "Generated; do not edit.", "## Engine", "faster", "## Fleet", "new"]


def test_requests_are_counted_by_the_flow_schema_of_a_client_and_by_kind() -> None:
    assert by_client(METRICS) == {"installer": 32, "kube-controller-manager": 17}
    assert by_kind(METRICS) == {"POST pods/binding": 4}


def test_what_was_spent_includes_what_was_not_there_before() -> None:
    assert spent({"cpu": {"etcd": 1.5}}, {"cpu": {"etcd": 2.0, "kwok": 1.0}}) == {"cpu": {"etcd": 0.5, "kwok": 1.0}}


def test_a_gang_waits_from_its_first_pod_to_the_binding_of_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([1.0, 2.0, 3.0, 3.0, 7.0, 7.0, 7.5, 8.0])
    monkeypatch.setattr("bench.fleet_times.time.monotonic", lambda: next(now))
    times = Timeline(started=0.0)
    times.pod(pod("a", "a-head"))
    times.pod(pod("a", "a-worker"))
    times.pod(pod("a", "a-head", "n1"))
    times.pod(pod("a", "a-worker", "n2", "Running"))
    times.ray_cluster(
        {"metadata": {"name": "a", "labels": {"app.kubernetes.io/instance": "a"}}, "status": {"state": "ready"}}
    )
    assert times.figures() == {
        "made": 2.0, "bound": 7.0, "running": 7.5, "ready": 8.0, "gang_median": 6.0, "gang_longest": 6.0,
    }  # fmt: skip


def test_a_fleet_that_does_not_come_is_an_error_with_how_far_it_came() -> None:
    times = Timeline()
    times.pod(pod("a", "a-head", "n1"))
    with pytest.raises(FleetError, match=r"not 2 running within 0 s: .*'bound': 1, 'running': 0"):
        times.wait("running", 2, 0)
