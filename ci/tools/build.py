"""Build a tool once and keep it in the user's cache, under a name made from all that decides what is in it.

Knows the file system; what Go does is in go.py, what the tools are in spec.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.tools.go import Caches, ToolError, check_c, compile_into, go_settings
from ci.tools.spec import TOOLS, Tool
from llm_ray.model_store import cache_dir

KEPT_BUILDS = 2  # of each tool: this checkout's and one other's


def binary(name: str) -> Path:
    """The tool's program, built if it is not there yet (minutes for Helm, once per version). Raises ToolError."""
    tool = TOOLS.get(name)
    if tool is None:
        raise ToolError(f"no tool is called {name!r}: choose one of {', '.join(TOOLS)}")
    return built(tool, cache_dir() / "tools", Caches()) / tool.name


def built(tool: Tool, home: Path, caches: Caches) -> Path:
    """The folder of the tool's programs below `home`; they are built if any is missing. Raises ToolError."""
    go = go_settings(tool)
    folder = _folder(tool, home, go)
    if not _is_whole(tool, folder):
        with locked(home, "another build"):
            if not _is_whole(tool, folder):
                _build(tool, folder, go, caches)
    return folder


def is_built(tool: Tool, home: Path) -> bool:
    """Whether `built` would find it."""
    return _is_whole(tool, _folder(tool, home, go_settings(tool)))


def _folder(tool: Tool, home: Path, go: dict[str, str]) -> Path:
    return home / f"{tool.name}-{_key(tool, go)}"


def _is_whole(tool: Tool, folder: Path) -> bool:
    return all((folder / name).is_file() for name in tool.names)


def _key(tool: Tool, go: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for source in tool.sources:
        name = source.relative_to(tool.home)
        digest.update(f"{name} {hashlib.sha256(source.read_bytes()).hexdigest()}\n".encode())
    target = {name: value for name, value in go.items() if name != "GOCACHE"}
    digest.update(json.dumps([tool.package, tool.flags, target, *tool.extras], sort_keys=True).encode())
    return digest.hexdigest()[:12]


@contextmanager
def locked(home: Path, other: str) -> Iterator[None]:
    """One at a time below `home` on this machine; the kernel frees the lock when its holder dies."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"tools: waiting for {other} to end", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(tool: Tool, folder: Path, go: dict[str, str], caches: Caches) -> None:
    """Make `folder`; a reader sees the whole of it or nothing."""
    _sweep(tool, folder.parent)
    check_c(tool)
    print(f"tools: building {tool.name} {tool.version} with {go['GOVERSION']}", file=sys.stderr)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{tool.name}-new.") as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        compile_into(tool, made, Path(scratch), caches)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(made, folder)
    took = time.monotonic() - started
    go_cache = caches.build or Path(go["GOCACHE"])
    how = "it is removed at the end" if caches.build else "`go clean -cache` empties it, the tools stay"
    print(
        f"tools: built {tool.name} in {took:.0f} s; {megabytes(folder)} MB, all tools {megabytes(folder.parent)} MB,"
        f" Go's build cache {megabytes(go_cache)} MB ({how})",
        file=sys.stderr,
    )


def _sweep(tool: Tool, home: Path) -> None:
    """Remove what killed builds left and all but the newest other build of this tool."""
    for leftover in home.glob(f"{tool.name}-new.*/"):
        shutil.rmtree(leftover, ignore_errors=True)
    whole = [path for path in home.glob(f"{tool.name}-*/") if re.fullmatch(rf"{tool.name}-[0-9a-f]{{12}}", path.name)]
    for path in sorted(whole, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT_BUILDS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def megabytes(folder: Path) -> int:
    """Links are not followed: they lead to what is counted already."""
    files = (path.lstat() for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(status.st_size for status in files) // 1_000_000
