"""Images of the lab's own programs, as OCI archives: a program, what it links, and next to nothing else.

Kept under a name made from what is in them, so that a changed program is another archive.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ci import prometheus
from ci.lab import programs
from ci.oci import Layer, measure, write_archive
from ci.tools import ToolError
from ci.tools.build import locked
from llm_ray.model_store import cache_dir

USER = 65532
PAUSE_USER = 65535
CATATONIT = Path("/usr/bin/catatonit")
KEPT_ARCHIVES = 2  # of each image: this checkout's and one other's


@dataclass(frozen=True)
class Image:
    """The image localhost/lab/<name>:1 of one program, which it starts."""

    name: str
    path: str = ""
    """Of the program in the image, where it is not /<name>: upstream's manifests name it."""
    arguments: tuple[str, ...] = ()
    user: int = USER


IMAGES = {
    image.name: image
    for image in (
        Image("pause", arguments=("-P",), user=PAUSE_USER),
        Image("coredns"),
        Image("kuberay-operator", path="/manager"),
        Image("metrics-server"),
        Image("vc-scheduler"),
        Image("vc-controller-manager"),
        Image("vc-webhook-manager"),
        Image("kwok"),
        Image("prometheus"),
        Image("prometheus-adapter"),
    )
}


def archive(name: str) -> Path:
    """The archive of the image localhost/lab/<name>:1, made if it is missing. Raises ToolError."""
    if name not in IMAGES:
        raise ToolError(f"the lab has no image {name!r}: choose one of {', '.join(IMAGES)}")
    image = IMAGES[name]
    program = _program(name)
    home = cache_dir() / "lab" / "images"
    path = home / f"{name}-{_key(image, program)}.tar"
    if not path.is_file():
        with locked(home, "another image"):
            if not path.is_file():
                _make(image, program, path)
                _sweep(name, home)
    return path


def _program(name: str) -> Path:
    if name == "pause":
        if not CATATONIT.is_file():
            raise ToolError(f"{CATATONIT} is missing, which keeps a pod's namespaces: apt-get install catatonit")
        return CATATONIT
    return prometheus.binary(name) if name in prometheus.NAMES else programs.program(name)


def _key(image: Image, program: Path) -> str:
    """A program of the lab is in a folder whose name is made from what is in it, and links nothing."""
    content = [program.parent.name]
    if not program.is_relative_to(programs.home()):
        content = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (program, *_libraries(program))]
    return hashlib.sha256(f"{image} {program.name} {content}".encode()).hexdigest()[:12]


def _make(image: Image, program: Path, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="new.") as scratch:
        root = Path(scratch)
        inside = image.path or f"/{image.name}"
        _add(program, root, inside, 0o755)
        for library in _libraries(program):
            _add(library, root, str(library), 0o755)
        (root / "etc").mkdir(exist_ok=True)
        (root / "etc" / "passwd").write_text(f"lab:x:{image.user}:{image.user}::/:/sbin/nologin\n")
        (root / "tmp").mkdir()
        (root / "tmp").chmod(0o1777)
        for folder in (root, *(path for path in root.rglob("*") if path.is_dir() and path.name != "tmp")):
            folder.chmod(0o755)
        config = {
            "User": f"{image.user}:{image.user}",
            "Entrypoint": [inside, *image.arguments],
            "WorkingDir": "/",
            "Env": ["PATH=/"],
        }
        layer = Layer(root, *measure(root), created_by=f"{image.name} for the lab")
        write_archive(path, f"localhost/lab/{image.name}:1", [layer], config)


def _add(source: Path, root: Path, inside: str, mode: int) -> None:
    target = root / inside.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _libraries(program: Path) -> list[Path]:
    """What the program is linked with, by the names at which the loader looks; none for a static program."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"})
    if listed.returncode != 0:
        if "not a dynamic executable" in listed.stdout + listed.stderr:
            return []
        raise ToolError(f"ldd {program} failed: {listed.stderr.strip()}")
    return [Path(name) for name in re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", listed.stdout, re.MULTILINE)]


def _sweep(name: str, home: Path) -> None:
    whole = [path for path in home.glob(f"{name}-*.tar") if re.fullmatch(rf"{name}-[0-9a-f]{{12}}\.tar", path.name)]
    for path in sorted(whole, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT_ARCHIVES:]:
        path.unlink(missing_ok=True)
