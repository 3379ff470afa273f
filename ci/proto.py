"""Regenerate the gRPC code from its .proto files, or with --check fail when what is committed differs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

APP = Path(__file__).resolve().parent.parent / "app"
PROTO_DIR = APP / "llm_ray" / "api" / "proto"


def generate(target: Path) -> list[Path]:
    """Write the code below `target`, as the package's own tree. Returns the files, relative to it."""
    sources = [str(path.relative_to(APP)) for path in sorted(PROTO_DIR.rglob("*.proto"))]
    outputs = [f"--{kind}={target}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    if protoc.main(["protoc", f"-I{APP}", *outputs, *sources]) != 0:
        raise SystemExit(2)
    return sorted(path.relative_to(target) for path in target.rglob("*_pb2*") if path.suffix in (".py", ".pyi"))


def main() -> int:
    if "--check" not in sys.argv[1:]:
        generate(APP)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch)
        stale = [
            path
            for path in generate(target)
            if not (APP / path).is_file() or (APP / path).read_bytes() != (target / path).read_bytes()
        ]
    for path in stale:
        print(f"app/{path} is out of date: run `make proto`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
