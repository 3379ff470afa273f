"""Cgroups of the lab in every hierarchy that this machine has: v1 (a folder per controller) or v2 (one tree)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
FILLED_BEFORE_USE = ("cpuset.cpus", "cpuset.mems")  # a v1 group takes no process while these are empty


def hierarchies() -> list[Path]:
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    return [tree for tree in sorted(ROOT.iterdir()) if tree.is_dir() and (tree / "cgroup.procs").exists()]


def controllers() -> set[str]:
    """Names of the controllers that can be used, such as cpu and memory."""
    if (ROOT / "cgroup.controllers").exists():
        return set((ROOT / "cgroup.controllers").read_text().split())
    mounted = {name for tree in hierarchies() for name in tree.name.split(",")}
    known = {line.split()[0] for line in Path("/proc/cgroups").read_text().splitlines() if not line.startswith("#")}
    return mounted & known


def make(path: str, shares: int | None = None) -> None:
    """Make the group `path`, such as lab/n1, and its parents."""
    for tree in hierarchies():
        here = tree
        for part in Path(path).parts:
            parent, here = here, here / part
            here.mkdir(exist_ok=True)
            _hand_down(parent, here)
        if shares is not None and (here / "cpu.shares").exists():
            (here / "cpu.shares").write_text(str(shares))


def _hand_down(parent: Path, child: Path) -> None:
    if (parent / "cgroup.subtree_control").exists() and (parent / "cgroup.controllers").exists():
        wanted = " ".join(f"+{name}" for name in (parent / "cgroup.controllers").read_text().split())
        with contextlib.suppress(OSError):  # a parent with processes of its own may not delegate
            (parent / "cgroup.subtree_control").write_text(wanted)
    for key in FILLED_BEFORE_USE:
        mine = child / key
        if mine.exists() and (parent / key).exists() and not mine.read_text().strip():
            value = (parent / key).read_text().strip()
            if value:
                mine.write_text(value)


def join(path: str) -> None:
    """Move the calling process into the group."""
    for tree in hierarchies():
        (tree / path / "cgroup.procs").write_text(str(os.getpid()))


def processes(path: str) -> set[int]:
    """Every process in the group and below it."""
    found: set[int] = set()
    for tree in hierarchies():
        for file in (tree / path).rglob("cgroup.procs"):
            with contextlib.suppress(FileNotFoundError, OSError):
                found.update(int(pid) for pid in file.read_text().split())
    return found - {0, os.getpid()}


def kill(path: str, seconds: float = 10) -> None:
    """End everything in the group: what a runtime that died has left."""
    end = time.monotonic() + seconds
    while (left := processes(path)) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def remove(path: str) -> None:
    """Remove the group and all below it."""
    for tree in hierarchies():
        for folder, _, _ in os.walk(tree / path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
