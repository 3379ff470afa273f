"""Which fields of KubeRay's kinds ordinary values set, as a table in docs/values.md.

`python -m ci.chart.coverage` writes it, `--check` compares.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ci.chart.crd import KUBERAY, CrdField, crd_fields, present
from ci.helm import CHART, run_helm
from ci.manifests import Manifest, load_all

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "values.md"
BEGIN, END = "<!-- crd-coverage -->", "<!-- /crd-coverage -->"
PASSED_THROUGH = ("specOverrides", "extraObjects", "extraContainers", "extraInitContainers")
"""Values that hold Kubernetes objects as they are: what they set is not the chart's doing."""
CLUSTER = "rayClusterConfig."
REFUSED_IN_A_RAYSERVICE = (
    f"{CLUSTER}upgradeStrategy.type",
    f"{CLUSTER}headGroupSpec.headService.metadata.name",
    f"{CLUSTER}authOptions.enableK8sTokenAuth",
)
"""By KubeRay's reconciler, and so by the chart."""
NOBODYS_SITUATION = {"head": {"hostNetwork": True}, "workerDefaults": {"hostNetwork": True}}
"""Values that work and that no file in ci recommends."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ci.chart.coverage", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the table is out of date")
    options = parser.parse_args(arguments)
    text = DOCS.read_text()
    wanted = updated(text)
    if options.check:
        if text != wanted:
            print("docs/values.md: the table of CRD fields is out of date: run `make fix`", file=sys.stderr)
        return int(text != wanted)
    DOCS.write_text(wanted)
    return 0


def updated(text: str) -> str:
    """The text of docs/values.md with the table anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"docs/values.md: put {BEGIN} and {END} on lines of their own where the table belongs")
    return f"{before}{begin}\n{section()}{end}{after}"


def section() -> str:
    """What stands between the marks."""
    fields = crd_fields("RayService")
    cluster = [f for f in fields if f.path.startswith(CLUSTER)]
    service = [f for f in fields if not f.path.startswith(CLUSTER)]
    ours = first_class()
    lines = [
        f"KubeRay {KUBERAY} has {len(cluster)} fields in `RayCluster.spec` and {len(service)} more in",
        "`RayService.spec`, if each field of a pod, a container or a Service counts as one. Ordinary values",
        f"set {len(ours)} of them; `specOverrides` sets all, less the three that KubeRay refuses in a",
        "RayService: the cluster's own `upgradeStrategy`, a fixed name of the head's Service, `enableK8sTokenAuth`.",
        "",
        "| part | by ordinary values | by `specOverrides` alone |",
        "| --- | --- | --- |",
        *_rows("RayCluster", cluster, ours),
        *_rows("RayService", service, ours),
    ]
    return "\n".join(lines) + "\n"


def first_class() -> set[str]:
    """Paths in a RayService that a file in charts/llm-ray/ci, or the defaults, set without passing objects through."""
    objects = [obj for values in _values() for obj in _render(values)]
    specs = [obj["spec"] for obj in objects if obj["kind"] == "RayService"]
    specs += [{CLUSTER[:-1]: obj["spec"]} for obj in objects if obj["kind"] == "RayCluster"]
    return {f.path for f in crd_fields("RayService") if any(present(spec, f.path) for spec in specs)}


def _values() -> Iterator[Any]:
    yield {}
    yield NOBODYS_SITUATION
    for path in sorted((CHART / "ci").glob("*.yaml")):
        yield _without(yaml.safe_load(path.read_text()))


def _without(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    return {key: _without(value) for key, value in values.items() if key not in PASSED_THROUGH}


def _render(values: Any) -> list[Manifest]:
    done = run_helm("helm4", ["template", "release", str(CHART), "-f", "-"], yaml.safe_dump(values))
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    return list(load_all(done.stdout))


def _rows(kind: str, fields: list[CrdField], ours: set[str]) -> Iterator[str]:
    parts: dict[str, tuple[list[str], list[str]]] = {}
    for f in fields:
        parent, _, name = f.path.removeprefix(CLUSTER).rpartition(".")
        parts.setdefault(parent, ([], []))[f.path not in ours].append(f"`{name}`")
    for parent, (named, rest) in sorted(parts.items()):
        yield f"| `{kind}.spec{f'.{parent}' if parent else ''}` | {', '.join(named)} | {', '.join(rest)} |"


if __name__ == "__main__":
    sys.exit(main())
