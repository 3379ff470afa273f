"""Build a tool once and keep it in the user's cache, under a name made from all that decides what is in it.

Knows Go and the file system; what the tools are is in spec.py.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.tools.spec import TOOLS, Tool

KEPT_BUILDS = 2  # of each tool: this checkout's and one other's


class ToolError(Exception):
    """A tool cannot be had; the message says why and what to do."""


def binary(name: str) -> Path:
    """The tool's program, built if it is not there yet (minutes for Helm, once per version). Raises ToolError."""
    tool = TOOLS.get(name)
    if tool is None:
        raise ToolError(f"no tool is called {name!r}: choose one of {', '.join(TOOLS)}")
    go = _go_settings(tool)
    path = _home() / f"{tool.name}-{_key(tool, go)}" / tool.name
    if not path.is_file():
        with _locked():
            if not path.is_file():
                _build(tool, path, go)
    return path


def _home() -> Path:
    """`tools` in the directory that the app's model store uses: $LLM_RAY_CACHE, or llm-ray in the user's cache."""
    own = os.environ.get("LLM_RAY_CACHE")
    if own:
        return Path(own).expanduser().resolve() / "tools"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "llm-ray" / "tools"


def _environment() -> dict[str, str]:
    """The caller's, less what would change the result: its own flags, a workspace, a newer toolchain by download."""
    return os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOWORK": "off"}


@functools.cache
def _go_env() -> dict[str, str] | None:
    names = ("GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOCACHE")
    try:
        # from a directory without go.mod, so that an old Go answers instead of refusing the module
        done = subprocess.run(
            ["go", "env", "-json", *names],
            cwd=tempfile.gettempdir(), env=_environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    settings: dict[str, str] = json.loads(done.stdout)
    return settings


def _go_settings(tool: Tool) -> dict[str, str]:
    settings = _go_env()
    fix = f"install Go {tool.go_version} or later and put its bin directory on PATH"
    if settings is None:
        raise ToolError(f"{tool.name} {tool.version} is built with Go, and `go` does not run here: {fix}")
    if _numbers(settings["GOVERSION"]) < _numbers(tool.go_version):
        raise ToolError(
            f"{tool.name} {tool.version} needs Go {tool.go_version}, here is {settings['GOVERSION']}: {fix}"
        )
    return settings


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _key(tool: Tool, go: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for source in tool.sources:
        digest.update(f"{source.name} {hashlib.sha256(source.read_bytes()).hexdigest()}\n".encode())
    target = {name: value for name, value in go.items() if name != "GOCACHE"}
    digest.update(json.dumps([tool.package, tool.flags, target], sort_keys=True).encode())
    return digest.hexdigest()[:12]


@contextmanager
def _locked() -> Iterator[None]:
    """One build at a time on this machine; the kernel frees the lock when its holder dies."""
    home = _home()
    home.mkdir(parents=True, exist_ok=True)
    with (home / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("tools: waiting for another build to end", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(tool: Tool, path: Path, go: dict[str, str]) -> None:
    """Make `path`; a reader sees the whole program or none."""
    _sweep(tool)
    print(f"tools: building {tool.name} {tool.version} with {go['GOVERSION']}", file=sys.stderr)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=path.parent.parent, prefix=f"{tool.name}-new.") as scratch:
        made = Path(scratch) / tool.name
        command = ["go", "build", "-mod=readonly", "-buildvcs=false", "-p", "2", *tool.flags, "-o", str(made)]
        command.append(tool.package)
        done = subprocess.run(command, cwd=tool.home, env=_environment(), capture_output=True, text=True)
        if done.returncode != 0:
            tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-15:])
            raise ToolError(
                f"{tool.name} {tool.version} does not build ({' '.join(command)}, in ci/tools/{tool.name}):\n{tail}"
            )
        path.parent.mkdir(exist_ok=True)
        os.replace(made, path)
    took = time.monotonic() - started
    print(f"tools: built {tool.name} in {took:.0f} s; {_sizes(path, Path(go['GOCACHE']))}", file=sys.stderr)


def _sweep(tool: Tool) -> None:
    """Remove what killed builds left and all but the newest other build of this tool."""
    builds = sorted(_home().glob(f"{tool.name}-*/"), key=lambda path: path.stat().st_mtime, reverse=True)
    whole = [path for path in builds if re.fullmatch(rf"{tool.name}-[0-9a-f]{{12}}", path.name)]
    for path in (set(builds) - set(whole)) | set(whole[KEPT_BUILDS - 1 :]):
        shutil.rmtree(path, ignore_errors=True)


def _sizes(path: Path, go_cache: Path) -> str:
    all_tools = path.parent.parent
    return (
        f"{_megabytes(path.parent)} MB, all tools {_megabytes(all_tools)} MB,"
        f" Go's build cache {_megabytes(go_cache)} MB (`go clean -cache` empties it, the tools stay)"
    )


def _megabytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // 1_000_000
