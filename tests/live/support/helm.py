"""Helm 3 or 4 against a cluster, with homes of its own: nothing of the user's plugins, repositories or settings."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.helm import CHART
from ci.tools import binary

from tests.support.chart import HelmError

__all__ = ["CHART", "Helm", "HelmError", "Output", "Values"]

Values = Path | Mapping[str, Any]
TIMEOUT_S = 300.0
HOMES = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")


@dataclass(frozen=True)
class Output:
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Helm:
    """`name` is helm3 or helm4. Every method raises HelmError, whose message is what Helm says."""

    name: str
    kubeconfig: Path
    home: Path

    def run(self, *words: str, timeout_s: float = TIMEOUT_S) -> Output:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HELM_", "KUBE"))}
        own = {key: str(self.home / self.name / key.lower()) for key in HOMES}
        environment = inherited | own | {"KUBECONFIG": str(self.kubeconfig), "HOME": str(self.home)}
        done = subprocess.run(
            [str(binary(self.name)), *words], env=environment, capture_output=True, text=True, timeout=timeout_s
        )
        if done.returncode:
            raise HelmError(f"{done.stderr.strip()}\n{done.stdout.strip()}".strip())
        return Output(done.stdout, done.stderr)

    def install(
        self, release: str, namespace: str, *values: Values, set_: Sequence[str] = (), extra: Sequence[str] = (),
        chart: Path = CHART, timeout_s: float = TIMEOUT_S,
    ) -> Output:  # fmt: skip
        """Values in the order of precedence: files and maps, then `set_` (KEY=VALUE). `extra` are further flags."""
        return self._release("install", release, namespace, values, set_, extra, chart, timeout_s)

    def upgrade(
        self, release: str, namespace: str, *values: Values, set_: Sequence[str] = (), extra: Sequence[str] = (),
        chart: Path = CHART, timeout_s: float = TIMEOUT_S,
    ) -> Output:  # fmt: skip
        return self._release("upgrade", release, namespace, values, set_, extra, chart, timeout_s)

    def _release(
        self, action: str, release: str, namespace: str, values: Sequence[Values], set_: Sequence[str],
        extra: Sequence[str], chart: Path, timeout_s: float,
    ) -> Output:  # fmt: skip
        self.home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.home, prefix="values-") as folder:
            words = [action, release, str(chart), "--namespace", namespace]
            for number, given in enumerate(values):
                words += ["-f", str(given if isinstance(given, Path) else _written(Path(folder), number, given))]
            words += [word for pair in set_ for word in ("--set", pair)]
            return self.run(*words, *extra, timeout_s=timeout_s)

    def rollback(self, release: str, namespace: str, revision: int = 0, extra: Sequence[str] = ()) -> Output:
        """To the revision before when none is given."""
        return self.run("rollback", release, str(revision), "--namespace", namespace, *extra)

    def test(self, release: str, namespace: str, timeout_s: float = TIMEOUT_S) -> Output:
        words = ("test", release, "--namespace", namespace, "--timeout", f"{timeout_s:g}s", "--logs")
        return self.run(*words, timeout_s=timeout_s + 30)

    def uninstall(self, release: str, namespace: str, extra: Sequence[str] = ()) -> Output:
        return self.run("uninstall", release, "--namespace", namespace, *extra)

    def get(self, what: str, release: str, namespace: str) -> str:
        """what: manifest, values, notes, hooks or all."""
        return self.run("get", what, release, "--namespace", namespace).stdout

    def status(self, release: str, namespace: str) -> Any:
        return json.loads(self.run("status", release, "--namespace", namespace, "--output", "json").stdout)

    def history(self, release: str, namespace: str) -> Any:
        """Revisions, oldest first, each with revision, status and description."""
        return json.loads(self.run("history", release, "--namespace", namespace, "--output", "json").stdout)

    def releases(self, namespace: str) -> list[str]:
        return self.run("list", "--short", "--namespace", namespace).stdout.split()


def _written(folder: Path, number: int, values: Mapping[str, Any]) -> Path:
    path = folder / f"{number}.json"  # which is YAML as well
    path.write_text(json.dumps(values))
    return path
