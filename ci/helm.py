"""Run one of the two Helms with nothing of this machine's: no cluster, no plugins, no repositories, empty caches."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ci.tools import binary

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "llm-ray"
SCALER_CHART = ROOT / "charts" / "llm-ray-scaler"
CHARTS = (CHART, SCALER_CHART)
HELMS = ("helm3", "helm4")
TIMEOUT_S = 60


def run_helm(
    helm: str, arguments: Sequence[str], stdin: str = "", *, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """The finished process, whatever its exit status. ToolError when that Helm cannot be had."""
    program = binary(helm)
    with tempfile.TemporaryDirectory(prefix="helm-") as home:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
        places = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
        own = {name: f"{home}/{name.lower()}" for name in places} | {"KUBECONFIG": os.devnull, "HOME": home}
        command = [str(program), *arguments]
        return subprocess.run(
            command, input=stdin.encode(), env=inherited | own, cwd=cwd, capture_output=True, timeout=TIMEOUT_S
        )
