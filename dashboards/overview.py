"""The overview: is a release serving, how fast, and what is full. Made of what Ray and DCGM export."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, timeseries
from grafana_foundation_sdk.models import units

from dashboards import metrics as m
from dashboards.lib import RELEASE, Query, board, panel, per_second, quantile

APP = ',application!=""'
"""Leaves out requests that match no app: health probes and wrong addresses."""


def build() -> dashboard.Dashboard:
    return (
        board("llm-ray-overview", "LLM Ray / Overview", "Traffic, errors, latency and saturation of each release.")
        .with_row(dashboard.Row("Traffic and errors"))
        .with_panel(requests())
        .with_panel(server_errors())
        .with_panel(exceptions())
        .with_row(dashboard.Row("Latency"))
        .with_panel(latency())
        .with_panel(latency_by_route())
        .with_panel(router_wait())
        .with_row(dashboard.Row("Saturation"))
        .with_panel(ongoing())
        .with_panel(queued())
        .with_panel(replicas())
        .with_row(dashboard.Row("Resources"))
        .with_panel(gpu_memory())
        .with_panel(gpu_utilisation())
        .with_panel(memory())
    )


def requests() -> timeseries.Panel:
    return panel(
        "Requests",
        "Finished HTTP and gRPC requests per second, by status. A gap means that nothing was asked or nothing answers: "
        "look at Replicas next.",
        units.RequestsPerSecond,
        Query(per_second(m.HTTP_REQUESTS, APP, "llm_ray_name, status_code"), "{{llm_ray_name}} HTTP {{status_code}}"),
        Query(per_second(m.GRPC_REQUESTS, APP, "llm_ray_name, status_code"), "{{llm_ray_name}} gRPC {{status_code}}"),
    )


def server_errors() -> timeseries.Panel:
    errors = per_second(m.HTTP_ERRORS, APP + ',error_code=~"5.."', "llm_ray_name")
    # a release without an error has no error series: it is shown as 0
    zero = f"0 * {per_second(m.HTTP_REQUESTS, APP, 'llm_ray_name')}"
    return panel(
        "Failed requests",
        "Share of HTTP requests answered with 5xx. Normal is 0. Short peaks while replicas are replaced point at a "
        "drain time that is too short; a lasting share at a replica that cannot start.",
        units.PercentUnit,
        Query(f"({errors} or {zero}) / {per_second(m.HTTP_REQUESTS, APP, 'llm_ray_name')}", "{{llm_ray_name}}"),
    )


def exceptions() -> timeseries.Panel:
    return panel(
        "Exceptions in replicas",
        "Exceptions per second that left the app's code, by type. Normal is none; the replica's log has the traceback.",
        units.CountsPerSecond,
        Query(per_second(m.EXCEPTIONS, "", "llm_ray_name, exception_type"), "{{llm_ray_name}} {{exception_type}}"),
    )


def latency() -> timeseries.Panel:
    return panel(
        "Request latency",
        "Time from the request to the last byte of the answer, so it grows with the answer's length. Quantiles are "
        "interpolated within Ray's buckets, which are wide above 10 s. Ray exports no usable average.",
        units.Milliseconds,
        *(
            Query(quantile(share, m.HTTP_LATENCY_MS, APP, "llm_ray_name"), f"{{{{llm_ray_name}}}} p{share * 100:g}")
            for share in (0.5, 0.95, 0.99)
        ),
    )


def latency_by_route() -> timeseries.Panel:
    return panel(
        "p95 latency by route",
        "The slowest 5 % of requests take longer than this. A single slow route is a kind of request; all routes slow "
        "together are a queue or a slow engine.",
        units.Milliseconds,
        Query(quantile(0.95, m.HTTP_LATENCY_MS, APP, "llm_ray_name, route"), "{{llm_ray_name}} {{route}}"),
        Query(quantile(0.95, m.GRPC_LATENCY_MS, APP, "llm_ray_name, method"), "{{llm_ray_name}} gRPC {{method}}"),
    )


def router_wait() -> timeseries.Panel:
    return panel(
        "p95 wait for a replica",
        "Time a request waits before a replica takes it. Normal is a few milliseconds; more means that every replica "
        "has all the requests it accepts.",
        units.Milliseconds,
        Query(quantile(0.95, m.ROUTER_WAIT_MS, "", "llm_ray_name, deployment"), "{{llm_ray_name}} {{deployment}}"),
    )


def ongoing() -> timeseries.Panel:
    return panel(
        "Ongoing requests",
        "Requests inside the replicas, and at the proxies, where those that wait are counted too. Ray reports every "
        "10 s: the highest value of a minute is drawn.",
        units.Short,
        Query(_highest(m.PROCESSING), "{{llm_ray_name}} in replicas"),
        Query(_highest(m.ONGOING_HTTP), "{{llm_ray_name}} at proxies (HTTP)"),
    )


def queued() -> timeseries.Panel:
    return panel(
        "Queued requests",
        "Requests that no replica has taken yet; the highest value of a minute. It should return to 0. If it stays up, "
        "add replicas; beyond serve.server.maxQueueLen clients get 429.",
        units.Short,
        Query(_highest(m.QUEUED), "{{llm_ray_name}}"),
    )


def replicas() -> timeseries.Panel:
    return panel(
        "Replicas",
        "Healthy replicas beside the number that Serve aims at. Apart for longer than a model takes to load: look for "
        "pods without a node, or for replicas that fail to start.",
        units.Short,
        Query(f"sum by (llm_ray_name, deployment) ({_of(m.REPLICAS)})", "{{llm_ray_name}} {{deployment}} healthy"),
        Query(
            f"max by (llm_ray_name, deployment) ({_of(m.TARGET_REPLICAS)})", "{{llm_ray_name}} {{deployment}} target"
        ),
    )


def gpu_memory() -> timeseries.Panel:
    used, free = m.GPU_MEMORY_USED.series, m.GPU_MEMORY_FREE.series
    return panel(
        "GPU memory",
        "Share of each GPU's memory in use, from the DCGM exporter. The KV cache is taken at start, so a flat line is "
        "normal at any height; a rising one ends in an out-of-memory error. Empty without GPUs or without DCGM.",
        units.PercentUnit,
        Query(_of_our_pods(f"{used} / ({used} + {free})"), "{{pod}} GPU {{gpu}}"),
    )


def gpu_utilisation() -> timeseries.Panel:
    return panel(
        "GPU utilisation",
        "Share of time in which any kernel ran, from the DCGM exporter. Low while requests are queued means that the "
        "engine waits for something else. Empty without GPUs or without DCGM.",
        units.Percent,
        Query(_of_our_pods(m.GPU_UTILISATION.series), "{{pod}} GPU {{gpu}}"),
    )


def memory() -> timeseries.Panel:
    ratio = f"{_of(m.MEMORY_USED)} / {_of(m.MEMORY_TOTAL)}"
    return panel(
        "Pod memory",
        "Share of the pod's memory limit in use. At 95 % Ray kills the actor that uses most, at 100 % the kernel kills "
        "one of the pod's processes.",
        units.PercentUnit,
        Query(f"max by (pod) ({ratio})", "{{pod}}"),
    )


def _of(metric: m.Metric) -> str:
    return f"{metric.series}{{{RELEASE}}}"


def _highest(gauge: m.Metric) -> str:
    return f"sum by (llm_ray_name) (max_over_time({_of(gauge)}[1m]))"


def _of_our_pods(expr: str) -> str:
    """DCGM knows pods, not releases: keep what belongs to a pod that the release's monitors scrape."""
    pods = f"group by (namespace, pod) ({_of(m.UP)})"
    named = f'label_replace({expr}, "pod", "$1", "exported_pod", "(.+)")'
    named = f'label_replace({named}, "namespace", "$1", "exported_namespace", "(.+)")'
    return f"max by (namespace, pod, gpu) ({named}) * on (namespace, pod) group_left () {pods}"
