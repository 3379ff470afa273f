"""Render a chart with a real Helm, offline and cached; find objects in the result."""

from __future__ import annotations

import functools
import hashlib
import json
import pickle
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex, overload

from ci.helm import CHART, HELMS, run_helm
from ci.manifests import Manifest, Pod, load_all, pod_templates

__all__ = [
    "CHART", "CI_VALUES", "HELMS", "HelmError", "Manifest", "Objects", "Pod", "lint", "pod_templates", "render",
    "run_helm",
]  # fmt: skip

CI_VALUES = tuple(sorted((CHART / "ci").glob("*.yaml")))
"""One values file per situation. Give pytest `ids=lambda path: path.stem`."""

Values = Mapping[str, Any] | Path | None


class HelmError(Exception):
    """Helm refused. `stderr` is all it said, `message` that without Helm's own frame."""

    def __init__(self, stderr: str) -> None:
        self.stderr = stderr
        text = "\n".join(line for line in stderr.splitlines() if not line.startswith("Use --debug flag"))
        text = text.strip().removeprefix("Error: ")
        self.message = re.sub(r"^execution error at \([^)]*\): ", "", text).strip()
        super().__init__(self.message)


class Objects(list[Manifest]):
    """What a chart rendered, in Helm's order."""

    def __init__(self, documents: Sequence[Manifest], text: bytes = b"", warnings: str = "") -> None:
        super().__init__(documents)
        self.text = text
        self.warnings = warnings

    def all(self, kind: str) -> Objects:
        return Objects([document for document in self if document.get("kind") == kind])

    def find(self, kind: str, name: str | None = None) -> Manifest:
        """The only object of that kind (and name). LookupError says what there is instead."""
        found = [document for document in self.all(kind) if name in (None, document["metadata"]["name"])]
        if len(found) != 1:
            wanted = f"{kind}/{name}" if name else kind
            there = ", ".join(f"{kind}/{name}" for kind, name in self.inventory())
            raise LookupError(f"{len(found)} objects {wanted}, wanted one; rendered: {there or 'nothing'}")
        return found[0]

    def inventory(self) -> list[tuple[str, str]]:
        """Sorted (kind, name) of every object, each once however often it was rendered."""
        return sorted({(document["kind"], document["metadata"]["name"]) for document in self})

    @overload
    def __getitem__(self, index: SupportsIndex) -> Manifest: ...
    @overload
    def __getitem__(self, index: slice) -> list[Manifest]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Manifest | list[Manifest]:
        return super().__getitem__(index)


def render(
    values: Values = None,
    *,
    release: str = "demo",
    namespace: str = "serving",
    helm: str = "helm4",
    chart: Path = CHART,
    set_: Sequence[str] = (),
    files: Sequence[Path] = (),
    extra_args: Sequence[str] = (),
    chart_version: str | None = None,
) -> Objects:
    """`helm template` of the chart, as Argo CD calls it: no cluster, CRDs and hooks included.

    `files` come first, `values` over them, `set_` (KEY=VALUE) over both. `chart_version`: a copy of that version.
    Every call returns objects of its own, to be changed at will. Raises HelmError.
    """
    command = [release, "--namespace", namespace, "--include-crds"]
    command += [part for file in files for part in ("-f", str(file))]
    command += ["-f", str(values)] if isinstance(values, Path) else []
    command += [part for pair in set_ for part in ("--set", pair)]
    command += extra_args
    read = [*files, *([values] if isinstance(values, Path) else [])]
    inputs = _values_text(values), *(hashlib.sha256(file.read_bytes()).hexdigest() for file in read)
    outcome = _template(helm, str(chart), _digest(chart), chart_version, tuple(command), inputs)
    if isinstance(outcome, str):
        raise HelmError(outcome)
    made: Objects = Objects(*pickle.loads(outcome))
    return made


def lint(values: Values = None, *, helm: str = "helm4", chart: Path = CHART, extra_args: Sequence[str] = ()) -> str:
    """`helm lint --strict`; its output. HelmError when it fails; a template's `fail` it only lists."""
    chosen = ["-f", str(values)] if isinstance(values, Path) else []
    done = run_helm(helm, ["lint", "--strict", str(chart), "-f", "-", *chosen, *extra_args], _values_text(values))
    output = (done.stdout + done.stderr).decode()
    if done.returncode != 0:
        raise HelmError(output)
    return output


def _values_text(values: Values) -> str:
    return json.dumps(values, sort_keys=True) if isinstance(values, Mapping) else "{}"


def _digest(chart: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in chart.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(chart)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@functools.lru_cache(maxsize=1024)
def _template(
    helm: str, chart: str, digest: str, version: str | None, command: tuple[str, ...], inputs: tuple[str, ...]
) -> bytes | str:
    """What Objects is made from, pickled, or what Helm said when it refused. All arguments decide the outcome."""
    del digest  # only part of the key
    with tempfile.TemporaryDirectory(prefix="chart-") as scratch:
        place = chart if version is None else str(_with_version(Path(chart), Path(scratch), version))
        release, *options = command
        # standard input is the last values file, so that it wins over `files`
        done = run_helm(helm, ["template", release, place, *options, "-f", "-"], inputs[0])
    said = done.stderr.decode()
    if done.returncode != 0:
        return said
    return pickle.dumps((list(load_all(done.stdout)), done.stdout, said))


def _with_version(chart: Path, scratch: Path, version: str) -> Path:
    copy = Path(shutil.copytree(chart, scratch / chart.name))
    about = copy / "Chart.yaml"
    changed, count = re.subn(r"^version: .*$", f"version: {version}", about.read_text(), flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{chart}/Chart.yaml has {count} lines `version:`, wanted one")
    about.write_text(changed)
    return copy
