"""Hold every values file in ci/ of our charts against the linters: helm lint with both Helms, kubeconform, kube-score.

Offline. Prints one line per finding and exits 1 when there is one.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from ci.core_schemas import MINORS, oldest_minor, write_for_kubeconform
from ci.helm import CHARTS, HELMS, ROOT, run_helm
from ci.kube_score import ACCEPTED, RAY_KINDS, Accepted, Finding, accepted, findings
from ci.manifests import load_all
from ci.tools import ToolError, binary

SCHEMAS = ROOT / "tests" / "schemas"
KUBERAY_VALUE = "kuberay.version"
"""The value that tells a chart which operator it is for, if it has one."""

PARALLEL = 2


@dataclass(frozen=True)
class Cluster:
    """Versions to render for and to hold the objects against; the oldest and the newest, the tests try all of them."""

    kubernetes: str
    kuberay: str

    def __str__(self) -> str:
        return f"Kubernetes {self.kubernetes}, KubeRay {self.kuberay}"


NEWEST = Cluster(MINORS[-1], "1.6")
OLDEST = Cluster(MINORS[0], "1.5")
LATER = Cluster(MINORS[-1], "of another version")
"""For a file that no vendored KubeRay can run: its Ray objects are held against no schema, and a line says so."""


@dataclass
class Report:
    """Of one values file: problems to print, what kube-score found, what was rendered for which cluster."""

    problems: list[str] = field(default_factory=list)
    scores: list[Finding] = field(default_factory=list)
    rendered: dict[Cluster, bytes] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)


def lint(chart: Path, values: Path) -> Report:
    report = Report()
    for helm in HELMS:
        done = run_helm(helm, ["lint", "--strict", str(chart), "-f", str(values)])
        if done.returncode != 0:
            report.problems.append(f"{helm} lint --strict:\n{_indented(done.stdout + done.stderr)}")
    template = ["template", "lint", str(chart), "-n", "lint", "--include-crds", "-f", str(values)]
    done = run_helm("helm4", template)
    if done.returncode != 0:
        report.problems.append(f"helm4 template:\n{_indented(done.stderr)}")
        return report
    for cluster in (NEWEST, OLDEST):
        if cluster.kubernetes < oldest_minor(values):
            continue
        told = run_helm("helm4", [*template, *_told(chart, cluster)])
        if told.returncode == 0:
            report.rendered[cluster] = told.stdout
        elif KUBERAY_VALUE not in told.stderr.decode():
            report.problems.append(f"helm4 template, {cluster}:\n{_indented(told.stderr)}")
    if not report.rendered:
        report.rendered[LATER] = done.stdout
    try:
        documents = list(load_all(done.stdout))
        report.kinds = {str(document.get("kind")) for document in documents}
        report.scores = findings(documents, NEWEST.kubernetes)
    except (ValueError, yaml.YAMLError) as error:
        report.problems.append(str(error))
    return report


def _told(chart: Path, cluster: Cluster) -> list[str]:
    section = KUBERAY_VALUE.partition(".")[0]
    known = yaml.safe_load((chart / "values.yaml").read_text())
    return ["--set-string", f"{KUBERAY_VALUE}={cluster.kuberay}"] if section in known else []


def conform(cluster: Cluster, reports: dict[Path, Report], scratch: Path) -> Iterator[str]:
    """What kubeconform says against what was rendered for the cluster."""
    folder = scratch / "rendered"
    folder.mkdir(parents=True)
    for file, report in reports.items():
        (folder / file.name).write_bytes(report.rendered.get(cluster, b""))
    kinds = set().union(*(report.kinds for report in reports.values()))
    crds = "{{ .Group }}/{{ .ResourceKind }}_{{ .ResourceAPIVersion }}.json"
    # ours first: Kubernetes' own are named by the group's first part, which Volcano's PodGroup shares with a core kind
    locations = (
        f"{SCHEMAS}/{crds}",
        f"{SCHEMAS}/kuberay-{cluster.kuberay}/{crds}",
        write_for_kubeconform(cluster.kubernetes, scratch / "core", kinds),
    )
    command = [
        str(binary("kubeconform")),
        "-strict",
        "-output",
        "json",
        "-kubernetes-version",
        f"{cluster.kubernetes}.0",
    ]
    command += [part for location in locations for part in ("-schema-location", location)]
    command += ["-skip", ",".join(f"ray.io/v1/{kind}" for kind in RAY_KINDS)] if cluster is LATER else []
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=120)
    if not done.stdout.strip():
        yield f"kubeconform failed: {done.stderr.strip()}"
        return
    for problem in json.loads(done.stdout)["resources"]:
        where = f"{Path(problem['filename']).name}: {problem['kind']}/{problem['name']}"
        yield f"{where}: kubeconform, {cluster}: {_essence(problem['msg'])}"


def _essence(message: str) -> str:
    """kubeconform's words without its frame, which names the schema's file."""
    return re.sub(r"^.*jsonschema validation failed with '[^']*'[\s-]*", "", message.strip(), flags=re.DOTALL)


def judge_scores(found: dict[str, list[Finding]], entries: list[Accepted]) -> Iterator[str]:
    """Findings that nobody accepted, and accepted ones that are there no more."""
    files: dict[Finding, list[str]] = {}
    for name, list_ in found.items():
        for finding in dict.fromkeys(list_):
            files.setdefault(finding, []).append(name)
    for finding, names in files.items():
        if not any(entry.covers(finding) for entry in entries):
            fix = f"fix it, or accept it with a reason in ci/{ACCEPTED.name}"
            yield f"{', '.join(names)}: kube-score: {finding}: {fix}"
    for entry in entries:
        if not any(entry.covers(finding) for finding in files):
            yield f"ci/{ACCEPTED.name}: nothing is found any more for {entry.check} in {entry.object}: remove the entry"


def run(charts: Sequence[Path], accepted_file: Path) -> list[str]:
    """Every problem of the charts."""
    for name in (*HELMS, "kubeconform", "kube-score"):
        binary(name)
    problems: list[str] = []
    scores: dict[str, list[Finding]] = {}
    for chart in charts:
        found, of_chart = _run_one(chart)
        problems += found
        for name, list_ in of_chart.items():
            scores[name] = [*scores.get(name, []), *list_]
    return problems + list(judge_scores(scores, accepted(accepted_file)))


def _run_one(chart: Path) -> tuple[list[str], dict[str, list[Finding]]]:
    """Problems, and what kube-score found by values file. No values files, nothing to lint: a problem too."""
    files = values_files(chart)
    if not files:
        return [f"{chart}/ci has no *.yaml: a chart is linted with the values files there"], {}
    with ThreadPoolExecutor(PARALLEL) as pool:
        reports = dict(zip(files, pool.map(lambda file: lint(chart, file), files), strict=True))
    problems = [f"{file.name}: {problem}" for file, report in reports.items() for problem in report.problems]
    with tempfile.TemporaryDirectory(prefix="chart-lint-") as scratch:
        for cluster in (NEWEST, OLDEST, LATER):
            problems += conform(cluster, reports, Path(scratch) / cluster.kuberay.replace(" ", "-"))
    for name in (file.name for file, report in reports.items() if LATER in report.rendered):
        print(
            f"{name}: for a KubeRay without vendored schemas; its Ray objects were held against none", file=sys.stderr
        )
    return problems, {file.name: report.scores for file, report in reports.items()}


def values_files(chart: Path) -> list[Path]:
    return sorted((chart / "ci").glob("*.yaml"))


def _indented(output: bytes) -> str:
    return "\n".join(f"    {line}" for line in output.decode().strip().splitlines())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ci.chart_lint", description=__doc__)
    parser.add_argument("--chart", type=Path, action="append", metavar="DIR", help="other charts than ours")
    parser.add_argument("--accepted", type=Path, default=ACCEPTED, metavar="FILE", help="findings that are accepted")
    chosen = parser.parse_args(arguments)
    started = time.monotonic()
    charts = chosen.chart or CHARTS
    try:
        problems = run(charts, chosen.accepted)
    except ToolError as error:
        print(f"chart lint: {error}", file=sys.stderr)
        return 2
    for problem in problems:
        print(problem, file=sys.stderr)
    count = sum(len(values_files(chart)) for chart in charts)
    print(f"chart lint: {count} values files, {len(problems)} problems, {time.monotonic() - started:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
