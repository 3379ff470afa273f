"""A fleet: many releases of the chart at once, each a gang of a head and three GPU workers on nodes of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.live.support.cluster import Object
from tests.live.support.fake_nodes import FakeNodes
from tests.live.support.gang import GPUS_PER_NODE, INSTANCE, gang_values
from tests.live.support.helm import CHART, Helm

NODES = 256
RELEASES = 64
WORKERS = 3
MEMBERS = 1 + WORKERS
AT_ONCE = 2
"""Helms that run side by side; more only wait for each other on a small machine."""


def fleet_values(nodes: FakeNodes, provider: str) -> dict[str, Any]:
    """One engine over three whole nodes, and a head without a GPU."""
    return gang_values(nodes, provider, replicas=1, engine={"tensorParallelSize": WORKERS * GPUS_PER_NODE})


def names(releases: int = RELEASES) -> list[str]:
    return [f"r{number:03}" for number in range(releases)]


@dataclass(frozen=True)
class Fleet:
    """The releases of one namespace. `extra` are further flags of every Helm."""

    helm: Helm
    namespace: str
    values: dict[str, Any]
    names: Sequence[str]
    extra: Sequence[str] = ()
    chart: Path = CHART

    def install(self) -> None:
        """Every release by a Helm of its own."""

        def one(name: str) -> None:
            self.helm.install(name, self.namespace, self.values, extra=self.extra, chart=self.chart)

        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(one, self.names))

    def pods(self, found: Iterable[Object]) -> list[Object]:
        """Those of its releases."""
        return [pod for pod in found if pod["metadata"]["labels"].get(INSTANCE) in self.names]


def is_bound(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName"))


def is_running(pod: Object) -> bool:
    return bool((pod.get("status") or {}).get("phase") == "Running")


def sizes(pods: Iterable[Object]) -> Counter[str]:
    """Pods of each release."""
    return Counter(pod["metadata"]["labels"][INSTANCE] for pod in pods)
