"""The schemas of Kubernetes' own kinds, out of the package kubernetes-validate, and a copy that kubeconform can use."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Iterable
from pathlib import Path

MINORS = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
"""The minors that the chart supports."""

DEFINITIONS = "_definitions.json"
PUBLISHED_AT = "/api/_definitions.json"  # how the schemas refer to DEFINITIONS; no such path on a disk


def folder(minor: str) -> Path:
    """The strict schemas of one minor."""
    if minor not in MINORS:
        raise ValueError(f"no schemas of Kubernetes {minor}: there are {', '.join(MINORS)}")
    data = Path(str(importlib.resources.files("kubernetes_validate"))) / "kubernetes-json-schema"
    return data / f"v{minor}.0-local-strict"


def oldest_minor(values_file: Path) -> str:
    """The oldest minor that an example is for: its comments may say `needs Kubernetes 1.35`."""
    found = re.search(r"^#.*\bneeds Kubernetes (1\.\d+)", values_file.read_text(), re.MULTILINE)
    return found[1] if found else MINORS[0]


def write_for_kubeconform(minor: str, target: Path, kinds: Iterable[str]) -> str:
    """Copy these kinds' schemas so that references lead from file to file. Returns kubeconform's -schema-location."""
    target.mkdir(parents=True)
    names = [DEFINITIONS, *(f"{kind.lower()}-*.json" for kind in sorted(kinds))]
    for source in (path for name in names for path in folder(minor).glob(name)):
        schema = json.loads(source.read_text().replace(PUBLISHED_AT, DEFINITIONS))
        schema.pop("$id", None)  # an address on the web, from which references would be looked up
        (target / source.name).write_text(json.dumps(schema))
    return f"{target}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
