"""The generated parts of docs/benchmarks.md: each benchmark writes its own between two marks and leaves the others."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from bench.paths import REPORT

ORDER = ("engine", "fleet")
"""Of the sections in the file."""


def write_section(name: str, text: str, report: Path = REPORT) -> None:
    """Replace the section, or add it in its place."""
    found = report.read_text() if report.exists() else ""
    sections = {other: _between(found, other) for other in ORDER} | {name: text.strip()}
    parts = [f"{_mark('begin', one)}\n\n{sections[one]}\n\n{_mark('end', one)}" for one in ORDER if sections[one]]
    report.write_text("# Benchmarks\n\nGenerated; do not edit.\n\n" + "\n\n".join(parts) + "\n")


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    kernel = platform.release().split("-")[0]
    return f"{cpu}, {os.cpu_count()} cores, Linux {kernel}, Python {platform.python_version()}"


def _between(text: str, name: str) -> str:
    return text.partition(_mark("begin", name))[2].partition(_mark("end", name))[0].strip()


def _mark(edge: str, name: str) -> str:
    return f"<!-- {edge} {name} -->"
