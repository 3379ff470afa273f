"""The part of the Dockerfile language that app/Dockerfile uses, parsed into plain data. Anything else is an error."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Mount:
    """A folder or file that a RUN step sees and its layer does not hold. source is set for kind "bind" only."""

    kind: str
    target: str
    source: str = ""


@dataclass(frozen=True)
class Run:
    """A shell command that makes one layer."""

    command: str
    mounts: tuple[Mount, ...]


@dataclass
class Dockerfile:
    """base image, the steps in order, and the container's settings in OCI's words. args holds the values in force."""

    base: str = ""
    args: dict[str, str] = field(default_factory=dict)
    steps: list[Run] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    ports: list[str] = field(default_factory=list)
    user: str = ""
    workdir: str = "/"
    entrypoint: list[str] = field(default_factory=list)


class DockerfileError(Exception):
    """The file uses what this parser does not know."""


def instructions(text: str) -> list[tuple[str, str]]:
    """(keyword, rest) of each instruction, continuation lines joined, comments dropped."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    parts = (line.strip().split(None, 1) for line in joined.splitlines() if line.strip())
    return [(part[0].upper(), part[1] if len(part) > 1 else "") for part in parts]


def parse(path: Path, args: dict[str, str]) -> Dockerfile:
    """Parse the file; args override the defaults of its ARG lines."""
    made = Dockerfile()
    for keyword, rest in instructions(path.read_text()):
        match keyword:
            case "ARG" if made.base:  # before FROM, builders would not show it to RUN
                name, _, default = rest.partition("=")
                made.args[name] = args.get(name, default)
            case "FROM" if not made.base:
                made.base = rest
            case "RUN":
                made.steps.append(_run(rest))
            case "ENV" | "LABEL":
                settings = dict(word.split("=", 1) for word in shlex.split(rest))
                (made.env if keyword == "ENV" else made.labels).update(settings)
            case "EXPOSE":
                made.ports += [f"{port}/tcp" for port in rest.split()]
            case "WORKDIR":
                made.workdir = rest
            case "USER":
                made.user = rest
            case "ENTRYPOINT":
                made.entrypoint = json.loads(rest)
            case _:
                raise DockerfileError(
                    f"{path}: {keyword} {rest[:60]!r} is not supported here: add it to ci/dockerfile.py"
                )
    unknown = args.keys() - made.args.keys()
    if unknown:
        raise DockerfileError(f"{path}: no ARG named {', '.join(sorted(unknown))}")
    return made


def _run(rest: str) -> Run:
    mounts = []
    while match := re.match(r"--mount=(\S+)\s+", rest):
        options = dict(option.split("=", 1) for option in match[1].split(","))
        if options.keys() - {"type", "target", "source"} or options["type"] not in ("bind", "cache"):
            raise DockerfileError(f"--mount={match[1]} is not supported here")
        mounts.append(Mount(options["type"], options["target"], options.get("source", "")))
        rest = rest[match.end() :]
    return Run(rest.strip(), tuple(mounts))
