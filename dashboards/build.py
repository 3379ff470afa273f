"""`python -m dashboards.build`: write the JSON that the chart ships; with --check exit 1 where it differs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import overview

ROOT = Path(__file__).parents[1]
OUT = ROOT / "charts" / "llm-ray" / "files" / "dashboards"


def generate() -> dict[Path, str]:
    """Every dashboard file and the text it should have."""
    built = {"overview": overview.build().build()}
    files = {}
    for name, board in built.items():
        for number, panel in enumerate(board.panels or [], start=1):
            panel.id_val = number
        text = json.dumps(board, cls=JSONEncoder, sort_keys=True, indent=1, ensure_ascii=False)
        files[OUT / f"{name}.json"] = text + "\n"
    return files


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dashboards.build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    args = parser.parse_args()
    files = generate()
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    stale += [path for path in OUT.glob("*.json") if path not in files]
    for path in stale:
        if args.check:
            print(f"error: {path.relative_to(ROOT)} is out of date: run `make fix`", file=sys.stderr)
        elif path in files:
            OUT.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path])
            print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)
        else:
            path.unlink()
            print(f"removed {path.relative_to(ROOT)}", file=sys.stderr)
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
