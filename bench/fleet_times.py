"""When the pods of a fleet are made, bound and Running, as one watch of the API tells it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from urllib3.exceptions import HTTPError

from tests.live.support.cluster import Cluster, Object
from tests.live.support.fleet import is_bound, is_running
from tests.live.support.gang import INSTANCE

STAGES = ("made", "bound", "running", "ready")
"""The first three are of pods, the last one is of RayClusters."""
WATCH_S = 900


class FleetError(Exception):
    """The fleet did not get where it should in time."""


@dataclass
class Timeline:
    """Seconds since the clock's start, by stage and by (release, object)."""

    started: float = field(default_factory=time.monotonic)
    seen: dict[str, dict[tuple[str, str], float]] = field(default_factory=lambda: {stage: {} for stage in STAGES})
    lock: threading.Lock = field(default_factory=threading.Lock)
    errors: list[str] = field(default_factory=list)

    def mark(self, stage: str, one: Object) -> None:
        key = (one["metadata"]["labels"].get(INSTANCE, ""), one["metadata"]["name"])
        with self.lock:
            self.seen[stage].setdefault(key, time.monotonic() - self.started)

    def pod(self, pod: Object) -> None:
        self.mark("made", pod)
        if is_bound(pod):
            self.mark("bound", pod)
        if is_running(pod):
            self.mark("running", pod)

    def ray_cluster(self, one: Object) -> None:
        if (one.get("status") or {}).get("state") == "ready":
            self.mark("ready", one)

    def count(self, stage: str) -> int:
        with self.lock:
            return len(self.seen[stage])

    def wait(self, stage: str, wanted: int, seconds: float) -> None:
        """Raises FleetError, also when a watch has ended."""
        deadline = time.monotonic() + seconds
        while self.count(stage) < wanted:
            if self.errors or time.monotonic() > deadline:
                counts = {one: self.count(one) for one in STAGES}
                raise FleetError(f"not {wanted} {stage} within {seconds:g} s: {counts} {' '.join(self.errors)}")
            time.sleep(0.1)

    def figures(self) -> dict[str, float]:
        """When the last one of each stage was there, and how long each gang took from its first pod to its last."""
        ends = {stage: max(self.seen[stage].values()) for stage in STAGES}
        waits = [last - first for first, last in self._gangs()]
        return {**ends, "gang_median": median(waits), "gang_longest": max(waits)}

    def _gangs(self) -> list[tuple[float, float]]:
        """(first pod made, last pod bound) of each release."""
        releases = {release for release, _ in self.seen["made"]}
        found = []
        for release in sorted(releases):
            made, bound = ([t for (name, _), t in self.seen[stage].items() if name == release] for stage in STAGES[:2])
            found.append((min(made), max(bound)))
        return found


@contextmanager
def timeline(cluster: Cluster, namespace: str) -> Iterator[Timeline]:
    """The clock starts with this. It costs the API two requests, each of which lasts until the end."""
    found = Timeline()
    pods = _watch(cluster, f"/api/v1/namespaces/{namespace}/pods")
    rays = _watch(cluster, f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters")
    pairs = ((pods, found.pod), (rays, found.ray_cluster))
    is_over = threading.Event()

    def follow(stream: Any, tell: Any) -> None:
        with contextlib.suppress(HTTPError, OSError):
            rest = b""
            for block in stream.stream(amt=None):
                *lines, rest = (rest + block).split(b"\n")
                for event in map(json.loads, filter(None, lines)):
                    if event["type"] in ("ADDED", "MODIFIED"):
                        tell(event["object"])
        if not is_over.is_set():
            found.errors.append("a watch has ended")

    threads = [threading.Thread(target=follow, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        is_over.set()
        for stream, _ in pairs:
            stream.shutdown()
        for thread in threads:
            thread.join(10)


def _watch(cluster: Cluster, path: str) -> Any:
    query = [("watch", "true"), ("timeoutSeconds", str(WATCH_S))]
    return cluster.dynamic.request("GET", path, query_params=query, serialize=False)
