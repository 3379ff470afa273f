"""Write the JSON schemas of tests/schemas from the CRDs that sources.yaml names, or with --check compare them.

--check compares with what Go's module cache holds (nothing is fetched) and says which sources it could not compare;
--check --fetch gets the modules first. Writing always fetches what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ci.crd_schema import crd_schema

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "tests" / "schemas"


class SchemaError(Exception):
    """A source cannot be had or holds something else than sources.yaml says."""


class NotCached(SchemaError):
    """The module is not on this machine and was not to be fetched."""


@dataclass(frozen=True)
class Source:
    """One entry of sources.yaml: a module of the Go proxy, or this repository when `module` is empty."""

    files: list[str]
    kinds: dict[str, str]
    folder: str = ""
    module: str = ""
    version: str = ""
    sum: str = ""

    @property
    def name(self) -> str:
        return f"{self.module}@{self.version}" if self.module else "this repository"


@dataclass
class Comparison:
    """What --check found; paths are relative to tests/schemas."""

    stale: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)


def sources(home: Path = HOME) -> list[Source]:
    entries = yaml.load((home / "sources.yaml").read_text(), yaml.CSafeLoader)
    return [Source(**entry) for entry in entries]


def schemas(source: Source, *, fetch: bool) -> Iterator[tuple[str, bytes]]:
    """Relative path and content of each schema of the source."""
    base = module_dir(source, fetch=fetch) if source.module else ROOT
    missing = set(source.kinds)
    for file in source.files:
        for crd in yaml.load_all((base / file).read_text(), yaml.CSafeLoader):
            if not crd or crd.get("kind") != "CustomResourceDefinition":
                continue
            kind = crd["spec"]["names"]["kind"]
            if kind in missing:
                missing.discard(kind)
                version = source.kinds[kind]
                yield schema_path(source, crd["spec"]["group"], kind), encode(crd_schema(crd, version))
    if missing:
        raise SchemaError(f"{source.name} has no CRD for {', '.join(sorted(missing))} in {', '.join(source.files)}")


def schema_path(source: Source, group: str, kind: str) -> str:
    return str(Path(source.folder) / group / f"{kind.lower()}_{source.kinds[kind]}.json")


def encode(schema: dict[str, Any]) -> bytes:
    """One line per definition and per top-level key: compact, and a diff still shows what changed."""
    lines = []
    for key, value in sorted(schema.items()):
        if key == "definitions":
            inner = ",\n".join(f"{json.dumps(name)}:{_compact(part)}" for name, part in sorted(value.items()))
            lines.append(f'"definitions":{{\n{inner}\n}}')
        else:
            lines.append(f"{json.dumps(key)}:{_compact(value)}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def module_dir(source: Source, *, fetch: bool) -> Path:
    """Where the module lies, its content checked against `sum`."""
    environment = os.environ | {"GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    if not fetch:
        environment["GOPROXY"] = "off"
    try:
        with tempfile.TemporaryDirectory() as nowhere:  # no go.mod: the answer must not depend on one
            done = subprocess.run(
                ["go", "mod", "download", "-json", f"{source.module}@{source.version}"],
                cwd=nowhere, env=environment, capture_output=True, text=True,
            )  # fmt: skip
    except FileNotFoundError:
        raise NotCached(f"{source.name}: `go` is not on PATH; install Go to regenerate schemas") from None
    answer: dict[str, str] = json.loads(done.stdout) if done.stdout.strip() else {}
    if done.returncode != 0 or "Dir" not in answer:
        problem = answer.get("Error") or done.stderr.strip()
        raise (SchemaError if fetch else NotCached)(f"{source.name}: {problem}")
    if source.sum != answer["Sum"]:
        raise SchemaError(f"{source.name} has sum {answer['Sum']}; sources.yaml says {source.sum or 'nothing'}")
    return Path(answer["Dir"])


def write() -> int:
    for source in sources():
        for path, content in schemas(source, fetch=True):
            (HOME / path).parent.mkdir(parents=True, exist_ok=True)
            (HOME / path).write_bytes(content)
    return 0


def compare(home: Path = HOME, *, fetch: bool = False) -> Comparison:
    found = Comparison()
    for source in sources(home):
        try:
            for path, content in schemas(source, fetch=fetch):
                found.known.add(path)
                if not (home / path).is_file() or (home / path).read_bytes() != content:
                    found.stale.append(path)
        except NotCached:
            found.left_out.append(source.name)
            found.known |= set(_present(source, home))
    here = {str(path.relative_to(home)) for path in home.rglob("*.json")}
    found.stale += sorted(here - found.known)
    return found


def _present(source: Source, home: Path) -> Iterator[str]:
    """The source's files that are there; one that is not would be a kind without a schema."""
    for kind, version in source.kinds.items():
        paths = list((home / source.folder).glob(f"*/{kind.lower()}_{version}.json"))
        if not paths:
            raise SchemaError(f"{source.name}: no schema of {kind} {version} in {home}: run `python -m ci.schemas`")
        yield from (str(path.relative_to(home)) for path in paths)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ci.schemas", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="compare instead of writing; exit 1 when something differs"
    )
    parser.add_argument("--fetch", action="store_true", help="with --check: get modules that are not on this machine")
    chosen = parser.parse_args(arguments)
    try:
        if not chosen.check:
            return write()
        found = compare(fetch=chosen.fetch)
    except SchemaError as error:
        print(f"schemas: {error}", file=sys.stderr)
        return 2
    for path in found.stale:
        print(f"tests/schemas/{path} is out of date or has no source: run `python -m ci.schemas`", file=sys.stderr)
    if found.left_out:
        print(f"schemas: not compared, module not on this machine: {', '.join(found.left_out)}", file=sys.stderr)
    return 1 if found.stale else 0


if __name__ == "__main__":
    sys.exit(main())
