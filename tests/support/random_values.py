"""For property tests of the chart: render random values, or see them refused in words that name a key."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, note, settings

from tests.support.chart import HelmError, Manifest, Objects, render

steady = settings(
    derandomize=True, deadline=None, database=None, print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip

KEYS = (
    "kind", "engine", "serve", "head", "workers", "workerDefaults", "model", "autoscaling", "gang", "rollout",
    "fullnameOverride", "nameOverride", "release name",
)  # fmt: skip


def rendered(values: dict[str, Any], seen: Counter[str], **options: Any) -> Objects | None:
    """What the chart makes of the values, or None where it refuses them, which it may do only by naming a key."""
    note(f"{json.dumps(values)} {options}")
    try:
        # the schema knows nothing of combinations, and takes a third of the time
        objects = render(values, extra_args=["--skip-schema-validation"], **options)
    except HelmError as error:
        if not names_a_key(error.message):
            raise
        seen["refused"] += 1
        return None
    seen["rendered"] += 1
    return objects


def names_a_key(message: str) -> bool:
    return re.search(rf"(^|[^\w.])({'|'.join(KEYS)})\b", message) is not None


def ray_owner(objects: Objects) -> Manifest:
    """The RayCluster or RayService; there is always exactly one."""
    [owner] = [obj for obj in objects if obj["kind"] in ("RayCluster", "RayService")]
    return owner
