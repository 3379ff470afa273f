"""`python -m ci.chart`: regenerate what is made from other files; with --check compare and exit 1 where they differ."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ci.chart import docs, schema, settings, values
from ci.chart.values import ChartError, Value

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "llm-ray"
SCALER = ROOT / "charts" / "llm-ray-scaler"
SCHEMA_LIMIT = 250_000
"""Bytes. The chart goes into every release's Secret, which Kubernetes limits to 1 MB."""


def generate() -> dict[Path, str]:
    """Every generated file and the text it should have."""
    text = settings.updated((CHART / "values.yaml").read_text())
    root, files = _of_chart(CHART, text, "README.tmpl.md")
    reference = ROOT / "docs" / "values.md"
    present = reference.read_text() if reference.exists() else ""
    files |= {CHART / "values.yaml": text, reference: docs.reference(root, schema.load_defs(), present)}
    _, of_scaler = _of_chart(SCALER, (SCALER / "values.yaml").read_text(), "README.scaler.tmpl.md")
    return files | of_scaler


def _of_chart(chart: Path, text: str, frame: str) -> tuple[Value, dict[Path, str]]:
    """The values as a tree; schema and README made from it."""
    root, defs = values.parse(text), schema.load_defs()
    compact = json.dumps(schema.build(root, defs, chart.name), ensure_ascii=False, separators=(",", ":")) + "\n"
    if len(compact.encode()) > SCHEMA_LIMIT:
        raise ChartError(f"values.schema.json ({len(compact.encode())} bytes) must stay below {SCHEMA_LIMIT}")
    return root, {chart / "values.schema.json": compact, chart / "README.md": docs.readme(root, defs, frame)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ci.chart", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    args = parser.parse_args()
    try:
        files = generate()
    except ChartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if args.check:
            print(f"error: {path.relative_to(ROOT)} is out of date: run `make fix`", file=sys.stderr)
        else:
            path.write_text(files[path])
            print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
