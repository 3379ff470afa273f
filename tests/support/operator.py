"""The KubeRay operator's own code, asked without a cluster: does it take an object, which pods does it make of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ci.tools.build import binary


@dataclass(frozen=True)
class Verdict:
    """error: why reconcile would refuse the object, or empty; pods: head first, then each worker group's.

    written: the spec as the operator writes it back, for instance when it adds its finalizer.
    """

    error: str
    pods: list[dict[str, Any]] = field(repr=False)
    written: dict[str, Any] = field(repr=False)


def judge(objects: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """One verdict for each RayCluster or RayService, by KubeRay 1.6."""
    done = subprocess.run(
        [str(binary("kuberay"))],
        input=json.dumps(list(objects)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Verdict(v["error"], v["pods"], v["written"]) for v in json.loads(done.stdout)]
