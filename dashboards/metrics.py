"""The series that dashboards and alerts may use, with the labels they may name. Knows nothing of what draws them.

Every name was seen in a scrape, or (GPU) is what the exporter's own table declares.
"""

from __future__ import annotations

from dataclasses import dataclass

SCRAPE_LABELS = frozenset(
    {"namespace", "pod", "node", "endpoint", "instance", "job", "llm_ray_name", "llm_ray_group", "ray_io_cluster"}
)
"""Labels that the chart's monitors put on every series of a release."""


@dataclass(frozen=True)
class Metric:
    """One family; a histogram is named without its _bucket suffix."""

    name: str
    labels: frozenset[str]
    kind: str

    @property
    def series(self) -> str:
        """The name to query."""
        return f"{self.name}_bucket" if self.kind == "histogram" else self.name


def _metric(name: str, kind: str, labels: str = "", scraped_by_us: bool = True) -> Metric:
    own = frozenset(labels.split()) | ({"le"} if kind == "histogram" else set())
    return Metric(name, own | (SCRAPE_LABELS if scraped_by_us else frozenset()), kind)


UP = _metric("up", "gauge")
HTTP_REQUESTS = _metric("ray_serve_num_http_requests_total", "counter", "application route method status_code")
GRPC_REQUESTS = _metric("ray_serve_num_grpc_requests_total", "counter", "application route method status_code")
HTTP_ERRORS = _metric("ray_serve_num_http_error_requests_total", "counter", "application route method error_code")
HTTP_LATENCY_MS = _metric("ray_serve_http_request_latency_ms", "histogram", "application route method status_code")
GRPC_LATENCY_MS = _metric("ray_serve_grpc_request_latency_ms", "histogram", "application route method status_code")
ONGOING_HTTP = _metric("ray_serve_num_ongoing_http_requests", "gauge", "node_id node_ip_address")
ROUTER_WAIT_MS = _metric("ray_serve_request_router_fulfillment_time_ms", "histogram", "application deployment")
PROCESSING = _metric("ray_serve_replica_processing_queries", "gauge", "application deployment replica")
QUEUED = _metric("ray_serve_deployment_queued_queries", "gauge", "application deployment handle")
REPLICAS = _metric("ray_serve_deployment_replica_healthy", "gauge", "application deployment replica")
TARGET_REPLICAS = _metric("ray_serve_autoscaling_target_replicas", "gauge", "application deployment")
REPLICA_STARTS = _metric("ray_serve_deployment_replica_starts_total", "counter", "application deployment replica")
EXCEPTIONS = _metric(
    "ray_serve_deployment_error_counter_total", "counter", "application deployment replica route exception_type"
)
APP_STATUS = _metric("ray_serve_application_status", "gauge", "application")
MEMORY_USED = _metric("ray_node_mem_used", "gauge", "RayNodeType IsHeadNode ip")
MEMORY_TOTAL = _metric("ray_node_mem_total", "gauge", "RayNodeType IsHeadNode ip")

# DCGM's exporter: its pod and namespace are those that hold the GPU, called exported_* where Prometheus sets its own.
_GPU_LABELS = "gpu UUID modelName Hostname namespace pod exported_namespace exported_pod"
GPU_MEMORY_USED = _metric("DCGM_FI_DEV_FB_USED", "gauge", _GPU_LABELS, scraped_by_us=False)
GPU_MEMORY_FREE = _metric("DCGM_FI_DEV_FB_FREE", "gauge", _GPU_LABELS, scraped_by_us=False)
GPU_UTILISATION = _metric("DCGM_FI_DEV_GPU_UTIL", "gauge", _GPU_LABELS, scraped_by_us=False)

METRICS = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
