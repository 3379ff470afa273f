"""An installed release of the chart, seen through the API: its names, its pods, whether it serves."""

from __future__ import annotations

from dataclasses import dataclass

from tests.live.support.clients import is_ready
from tests.live.support.cluster import Cluster, Object
from tests.live.support.waiting import Waiter

SERVES_S = 240


@dataclass(frozen=True)
class Release:
    cluster: Cluster
    namespace: str
    name: str = "llm"

    @property
    def fullname(self) -> str:
        return f"{self.name}-llm-ray"

    @property
    def host(self) -> str:
        """The DNS name of the clients' Service, from any namespace."""
        return f"{self.fullname}-serve.{self.namespace}.svc"

    def pods(self, component: str = "") -> list[Object]:
        labels = f"llm-ray.io/name={self.fullname}" + (f",app.kubernetes.io/component={component}" if component else "")
        return [
            pod for pod in self.cluster.pods(self.namespace, labels) if not pod["metadata"].get("deletionTimestamp")
        ]

    def endpoints(self) -> list[str]:
        """Addresses that the clients' Service sends requests to."""
        labels = f"kubernetes.io/service-name={self.fullname}-serve"
        slices = self.cluster.list("EndpointSlice.discovery.k8s.io", self.namespace, labels)
        ready = [one for found in slices for one in found.get("endpoints") or [] if one["conditions"].get("ready")]
        return [address for one in ready for address in one["addresses"]]

    def wait_until_it_serves(self, wait: Waiter, seconds: float = SERVES_S) -> None:
        wait(f"an endpoint of {self.host}", self.endpoints, seconds, watching=self.namespace)
        wait("every pod ready", lambda: all(map(is_ready, self.pods())), 60, watching=self.namespace)
