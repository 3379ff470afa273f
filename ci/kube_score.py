"""Judge rendered objects with kube-score, and hold the findings against a list of those accepted with a reason.

kube-score does not know Ray's kinds, so each pod template of theirs is shown to it as a pod.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

from ci.manifests import Manifest, load, pod_templates
from ci.tools import binary

ACCEPTED = Path(__file__).resolve().parent / "kube-score-accepted.yaml"
OK_GRADE = 7  # kube-score: 1 critical, 5 warning, 7 almost ok, 10 ok
RAY_KINDS = ("RayCluster", "RayService")


@dataclass(frozen=True)
class Finding:
    """What is wrong with which object; `place` is mostly a container."""

    check: str
    object: str
    place: str
    summary: str

    def __str__(self) -> str:
        return f"{self.object}: {self.check}: {self.place or '-'}: {self.summary}"


@dataclass(frozen=True)
class Accepted:
    """Findings of one check, in objects and places that match the patterns, and why they stay."""

    check: str
    reason: str
    object: str = "*"
    place: str = "*"

    def covers(self, finding: Finding) -> bool:
        return (
            self.check == finding.check
            and fnmatchcase(finding.object, self.object)
            and fnmatchcase(finding.place, self.place)
        )


def accepted(path: Path = ACCEPTED) -> list[Accepted]:
    """The list. ValueError for an entry without a reason."""
    entries = [Accepted(**entry) for entry in load(path.read_bytes()) or []]
    for entry in entries:
        if not entry.reason.strip():
            raise ValueError(f"{path.name}: the entry of {entry.check} has no reason")
    return entries


def findings(objects: Iterable[Manifest], kubernetes: str) -> list[Finding]:
    """Everything below "almost ok" that kube-score finds, optional checks left out."""
    manifest = yaml.safe_dump_all(list(scored(objects)), sort_keys=False)
    done = subprocess.run(
        [str(binary("kube-score")), "score", "--output-format", "json", "--kubernetes-version", f"v{kubernetes}", "-"],
        input=manifest, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        raise ValueError(f"kube-score failed: {done.stderr.strip()}")
    return list(_read(done.stdout))


def scored(objects: Iterable[Manifest]) -> Iterator[Manifest]:
    """The objects as kube-score sees them."""
    for document in objects:
        yield document
        if document["kind"] in RAY_KINDS:
            for pod in pod_templates([document]):
                # names like a path say in the report where the template stands
                about = pod.metadata | {"name": pod.name, "namespace": document["metadata"].get("namespace", "default")}
                yield {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": pod.spec}


def _read(report: str) -> Iterator[Finding]:
    for entry in json.loads(report) or []:
        kind, name = entry["type_meta"]["kind"], entry["object_meta"]["name"]
        where = name if kind == "Pod" and "/" in name else f"{kind}/{name}"
        for check in entry["checks"]:
            if check["skipped"] or check["grade"] >= OK_GRADE:
                continue
            for comment in check["comments"] or [{"path": "", "summary": check["check"]["comment"]}]:
                yield Finding(check["check"]["id"], where, comment["path"], comment["summary"])
