"""Go as the tools are built with it: its settings, what it needs on this machine, and one build into a folder."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ci.tools.spec import Tool

REPO = Path(__file__).resolve().parents[2]


class ToolError(Exception):
    """A tool cannot be had; the message says why and what to do."""


@dataclass(frozen=True)
class Caches:
    """Folders of Go's own; the user's where none is named."""

    build: Path | None = None
    modules: Path | None = None

    def environment(self, tool: Tool | None = None) -> dict[str, str]:
        """The caller's, less what would change the result: own flags, a workspace, a newer toolchain by download."""
        cgo = "1" if tool and tool.c_libraries else "0"
        own = {"GOCACHE": self.build, "GOMODCACHE": self.modules}
        return (
            os.environ
            | {"CGO_ENABLED": cgo, "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOWORK": "off"}
            | {name: str(folder) for name, folder in own.items() if folder}
        )

    def prune(self) -> None:
        """Remove them, where they are not the user's; the modules in them are read-only, which Go knows how to undo."""
        if self.modules and self.modules.is_dir():
            words = ["go", "clean", "-modcache"]
            subprocess.run(words, cwd=tempfile.gettempdir(), env=self.environment(), check=True)
        for folder in (self.build, self.modules):
            if folder:
                shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _go_env() -> dict[str, str] | None:
    names = ("GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOCACHE")
    try:
        # from a directory without go.mod, so that an old Go answers instead of refusing the module
        done = subprocess.run(
            ["go", "env", "-json", *names],
            cwd=tempfile.gettempdir(), env=Caches().environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    settings: dict[str, str] = json.loads(done.stdout)
    return settings


def go_settings(tool: Tool) -> dict[str, str]:
    """What `go env` says. Raises ToolError when there is no Go, or one too old for the tool."""
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


def check_c(tool: Tool) -> None:
    """Raises ToolError when the tool links C libraries and something for that is missing."""
    compiler = os.environ.get("CC", "gcc").split()[0]
    missing = [name for name in (compiler, "pkg-config") if tool.c_libraries and not shutil.which(name)]
    if "pkg-config" not in missing:
        missing += [f"{name}'s headers" for name in tool.c_libraries if not _has_library(name)]
    if missing:
        packages = ["gcc", "libc6-dev", "pkg-config", *(f"{name}-dev" for name in tool.c_libraries)]
        raise ToolError(
            f"{tool.name} {tool.version} is built with a C compiler and {', '.join(tool.c_libraries)}, and here is no"
            f" {', no '.join(missing)}: apt-get install --no-install-recommends {' '.join(packages)}"
        )


def _has_library(name: str) -> bool:
    return subprocess.run(["pkg-config", "--exists", name], capture_output=True).returncode == 0


def compile_into(tool: Tool, made: Path, scratch: Path, caches: Caches) -> None:
    """Fill the folder `made` with the tool's programs, links and manifests. Raises ToolError."""
    environment = caches.environment(tool)
    home = _with_additions(tool, scratch, environment) if tool.additions else tool.home
    mains = tool.mains
    target = f"{made}/" if len(mains) > 1 else str(made / next(iter(mains)))
    _go(tool, home, environment, "build", "-buildvcs=false", "-p", "2", *tool.flags, "-o", target, *mains.values())
    if len(mains) > 1:  # each has the name of its package
        for program, package in mains.items():
            os.replace(made / package.rpartition("/")[2], made / program)
    for link in tool.links:
        (made / link).symlink_to(next(iter(mains)))
    for copied in tool.manifests:
        source = _module(tool, home, environment, copied.module) / copied.source
        copy_tree(source, made / "manifests" / copied.into)


def _with_additions(tool: Tool, scratch: Path, environment: dict[str, str]) -> Path:
    """A copy of the tool's folder in which the modules to be changed are folders. A module cannot be changed in place,
    nor by `-overlay`, which is for files outside Go's cache."""
    home = scratch / "source"
    shutil.copytree(tool.home, home)
    for module in tool.additions:
        changed = scratch / "changed" / module
        _go(tool, home, environment, "mod", "download", module)  # which checks it against go.sum
        copy_tree(_module(tool, home, environment, module), changed)
        copy_tree(tool.home / "additions" / module, changed)
        _go(tool, home, environment, "mod", "edit", "-replace", f"{module}={changed}")
    return home


def _module(tool: Tool, home: Path, environment: dict[str, str], module: str) -> Path:
    """The folder of a module that the tool requires."""
    return Path(_go(tool, home, environment, "list", "-m", "-f", "{{.Dir}}", module).strip())


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder's content, or a file into a folder. What is in Go's cache is read-only, the copies are not."""
    target.mkdir(parents=True, exist_ok=True)
    if source.is_file():
        shutil.copyfile(source, target / source.name)
        return
    shutil.copytree(source, target, copy_function=shutil.copyfile, dirs_exist_ok=True)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        folder.chmod(0o755)


def _go(tool: Tool, home: Path, environment: dict[str, str], *words: str) -> str:
    command = ["go", words[0], "-mod=readonly", *words[1:]] if words[0] in ("build", "list") else ["go", *words]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-15:])
        where = os.path.relpath(tool.home, REPO)
        raise ToolError(f"{tool.name} {tool.version} does not build ({' '.join(command)}, in {where}):\n{tail}")
    return done.stdout
