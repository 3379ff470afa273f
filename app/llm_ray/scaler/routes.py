"""Which WorkerGroupScales an event concerns. What it misses, the resync mends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llm_ray.naming import GROUP_LABEL
from llm_ray.scaler import model
from llm_ray.scaler.model import OWNER_LABEL, Key, Scale


class Routes:
    """The WorkerGroupScales that are known, by events and by lists."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scales: dict[Key, Scale] = {}

    def seen(self, scale: Scale) -> Key:
        with self._lock:
            self._scales[scale.key] = scale
        return scale.key

    def gone(self, key: Key) -> None:
        with self._lock:
            self._scales.pop(key, None)

    def only(self, scales: Iterable[Scale]) -> list[Key]:
        """These exist, and no others."""
        with self._lock:
            self._scales = {scale.key: scale for scale in scales}
            return sorted(self._scales)

    def of_cluster(self, body: Mapping[str, Any]) -> list[Key]:
        metadata = body["metadata"]
        names = {
            ("RayCluster", metadata["name"]),
            ("RayService", (metadata.get("labels") or {}).get(OWNER_LABEL)),
        }
        return self._matching(metadata["namespace"], lambda scale: (scale.target_kind, scale.target) in names)

    def of_service(self, body: Mapping[str, Any]) -> list[Key]:
        name = ("RayService", body["metadata"]["name"])
        return self._matching(body["metadata"]["namespace"], lambda scale: (scale.target_kind, scale.target) == name)

    def of_pod(self, body: Mapping[str, Any]) -> list[Key]:
        group = (body["metadata"].get("labels") or {}).get(GROUP_LABEL)
        return self._matching(body["metadata"]["namespace"], lambda scale: scale.group == group)

    def of_autoscaler(self, body: Mapping[str, Any]) -> list[Key]:
        name = model.parse_autoscaler(body).scale
        return self._matching(body["metadata"]["namespace"], lambda scale: scale.key.name == name)

    def _matching(self, namespace: str, fits: Callable[[Scale], bool]) -> list[Key]:
        with self._lock:
            return [key for key, scale in self._scales.items() if key.namespace == namespace and fits(scale)]
