"""How much memory a process has for itself alone."""

from __future__ import annotations

from pathlib import Path


def private_bytes() -> int:
    """Private dirty memory of this process: what it allocated, without the mapped pages of the checkpoint's files."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no Private_Dirty in /proc/self/smaps_rollup")
