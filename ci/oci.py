"""Folders as OCI layers, and layers as an OCI archive that podman, skopeo, ctr and docker load. No compression.

The same folders give the same bytes: names are sorted, times are fixed, owners are numbers.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

EPOCH = 315532800  # 1980-01-01, the first time that a zip file can hold
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MEDIA = "application/vnd.oci.image"


@dataclass(frozen=True)
class Layer:
    """An unpacked layer: the upper folder of an overlay mount (or a whole root), and its tar's digest and size."""

    folder: Path
    digest: str
    size: int
    created_by: str


class Meter:
    """Hashes and counts what is written, and passes it on to out when there is one."""

    def __init__(self, out: Any = None) -> None:
        self.out, self.hash, self.size = out, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        self.size += len(data)
        if self.out is not None:
            self.out.write(data)
        return len(data)


def entries(folder: Path) -> Iterator[Path]:
    """Everything below folder, parents first, in the order of names."""
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from entries(path)


def write_layer(folder: Path, out: Meter) -> None:
    """Write folder as a layer's tar. Overlay marks become OCI's: .wh.NAME for a removed name, .wh..wh..opq for a
    folder that hides the one below it."""
    sink: Any = out  # all that a stream tar asks of it is write()
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for path in entries(folder):
            name = str(path.relative_to(folder))
            status = path.lstat()
            if stat.S_ISSOCK(status.st_mode):
                continue
            if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
                tar.addfile(_whiteout(str(Path(name).parent / f".wh.{path.name}")))
                continue
            info = tar.gettarinfo(path, name)
            info.mtime, info.uname, info.gname = EPOCH, "", ""
            if info.isreg():
                with path.open("rb") as f:
                    tar.addfile(info, f)
            else:
                tar.addfile(info)
            if info.isdir() and _is_opaque(path):
                tar.addfile(_whiteout(f"{name}/.wh..wh..opq"))


def _whiteout(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mtime = EPOCH
    return info


def _is_opaque(path: Path) -> bool:
    try:
        return os.getxattr(path, "trusted.overlay.opaque") == b"y"
    except OSError:
        return False


def measure(folder: Path) -> tuple[str, int]:
    """(sha256, size) of the folder's layer."""
    meter = Meter()
    write_layer(folder, meter)
    return meter.hash.hexdigest(), meter.size


def write_archive(target: Path, ref: str, layers: list[Layer], config: dict[str, Any]) -> str:
    """Write the image; answers with its manifest's digest. target appears as a whole or not at all."""
    partial = target.with_suffix(".partial")
    with tarfile.open(partial, "w") as tar:
        for layer in layers:
            _add_layer(tar, layer)
        image = {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "created": "1980-01-01T00:00:00Z",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
            "history": [{"created_by": layer.created_by} for layer in layers],
        }
        described = [
            {"mediaType": f"{MEDIA}.layer.v1.tar", "digest": f"sha256:{layer.digest}", "size": layer.size}
            for layer in layers
        ]
        manifest = _add_json(
            tar,
            f"{MEDIA}.manifest.v1+json",
            {
                "schemaVersion": 2,
                "mediaType": f"{MEDIA}.manifest.v1+json",
                "config": _add_json(tar, f"{MEDIA}.config.v1+json", image),
                "layers": described,
            },
        )
        names = {"io.containerd.image.name": ref, "org.opencontainers.image.ref.name": ref.rsplit(":", 1)[-1]}
        _add(
            tar,
            "index.json",
            json.dumps({"schemaVersion": 2, "manifests": [{**manifest, "annotations": names}]}).encode(),
        )
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
    partial.rename(target)
    return str(manifest["digest"])


def unpack(archive: Path, root: Path) -> dict[str, Any]:
    """Unpack an archive that write_archive made into the folder root; answers with the image's config."""
    with tarfile.open(archive) as tar:
        index = json.load(_member(tar, "index.json"))
        manifest = json.load(_blob(tar, index["manifests"][0]))
        for described in manifest["layers"]:
            apply_layer(_blob(tar, described), root)
        config: dict[str, Any] = json.load(_blob(tar, manifest["config"]))["config"]
        return config


def identify(archive: Path) -> tuple[str, str]:
    """(name, digest) of the image in an OCI archive. Raises ValueError for another file, or an image without a name."""
    try:
        with tarfile.open(archive) as tar:
            image = json.load(_member(tar, "index.json"))["manifests"][0]
    except (tarfile.TarError, KeyError, IndexError) as error:
        raise ValueError(
            f"{archive} is not an OCI archive ({error}): make one with `make image`, or skopeo copy"
        ) from error
    names = image.get("annotations", {})
    ref = names.get("io.containerd.image.name") or names.get("org.opencontainers.image.ref.name", "")
    if ":" not in ref:
        raise ValueError(f"{archive} does not say its image's name: add the annotation io.containerd.image.name")
    return ref, image["digest"]


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    found = tar.extractfile(name)
    assert found is not None
    return found


def _blob(tar: tarfile.TarFile, described: dict[str, Any]) -> IO[bytes]:
    """A blob whose bytes are what its descriptor says."""
    blob = _member(tar, f"blobs/sha256/{described['digest'].removeprefix('sha256:')}")
    digest = hashlib.file_digest(blob, "sha256").hexdigest()  # type: ignore[arg-type]
    if described["digest"] != f"sha256:{digest}":
        raise ValueError(f"blob {described['digest']} has the digest sha256:{digest}: the archive is damaged")
    blob.seek(0)
    return blob


def apply_layer(blob: IO[bytes], root: Path) -> None:
    with tarfile.open(fileobj=blob) as layer:
        for info in layer:
            name = Path(info.name)
            if name.name == ".wh..wh..opq":
                for child in (root / name).parent.iterdir():
                    _remove(child)
            elif name.name.startswith(".wh."):
                _remove(root / name.parent / name.name.removeprefix(".wh."))
            else:
                if not info.isdir():
                    _remove(root / name)
                layer.extract(info, root, numeric_owner=True, filter="fully_trusted")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _add_json(tar: tarfile.TarFile, media_type: str, content: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(content, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    _add(tar, f"blobs/sha256/{digest}", data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _add_layer(tar: tarfile.TarFile, layer: Layer) -> None:
    """Stream a layer into the archive: header first (the size is known), then the tar itself, then padding."""
    info = tarfile.TarInfo(f"blobs/sha256/{layer.digest}")
    info.size = layer.size
    tar.addfile(info)
    assert tar.fileobj is not None
    meter = Meter(tar.fileobj)
    write_layer(layer.folder, meter)
    if (meter.hash.hexdigest(), meter.size) != (layer.digest, layer.size):
        raise RuntimeError(f"{layer.folder} changed while it was packed: run make image again")
    tar.offset += layer.size  # always whole blocks: the inner tar is padded to its record size
