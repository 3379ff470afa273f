"""Write Chart.lock of the umbrella without reaching the chart repositories: every version in Chart.yaml is exact.

Same digest as `helm dependency update`: SHA-256 over the JSON of both dependency lists (internal/resolver of Helm 4).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENT_KEYS = ("name", "version", "repository", "condition", "tags", "import-values", "alias")
LOCK_KEYS = ("name", "version", "repository")
GENERATED = "2026-11-30T00:00:00Z"


def digest(requirements: list[dict[str, Any]]) -> str:
    """`sha256:…` over [requirements, locked], each object with its keys in the order of Helm's struct."""
    pair = [[{k: d[k] for k in keys if k in d} for d in requirements] for keys in (REQUIREMENT_KEYS, LOCK_KEYS)]
    # Go's encoding/json escapes these three inside strings
    text = json.dumps(pair, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def lock(chart: dict[str, Any]) -> str:
    """The text of Chart.lock."""
    dependencies = chart["dependencies"]
    for dependency in dependencies:
        if not dependency["version"][0].isdigit():
            raise SystemExit(f"{dependency['name']}: version ({dependency['version']}) must be exact to be locked")
    document = {
        "dependencies": [{k: d[k] for k in LOCK_KEYS} for d in dependencies],
        "digest": digest(dependencies),
        "generated": GENERATED,
    }
    return yaml.safe_dump(document, sort_keys=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether Chart.lock is up to date")
    options = parser.parse_args()
    wanted = lock(yaml.safe_load((ROOT / "Chart.yaml").read_text()))
    target = ROOT / "Chart.lock"
    if options.check:
        if target.read_text() != wanted:
            print("Chart.lock is out of date: run `make fix`", file=sys.stderr)
            return 1
        return 0
    target.write_text(wanted)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
