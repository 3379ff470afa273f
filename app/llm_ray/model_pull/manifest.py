"""The manifest of a model in a bucket: each file's size and SHA-256. Made by `llm-ray model manifest`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_ray.errors import ConfigError
from llm_ray.model_pull.directory import CLAIM
from llm_ray.model_store import MANIFEST

OWN_FILES = frozenset({MANIFEST, CLAIM, "manifest.json"})
SHA256 = re.compile(r"[0-9a-f]{64}")
NAME_PART = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*")
KEYS = {"size", "sha256", "versionId"}
HASHING_THREADS = 4


@dataclass(frozen=True)
class File:
    name: str
    size: int
    sha256: str
    version_id: str = ""


def parse_manifest(text: bytes, where: str) -> list[File]:
    """Raises ConfigError for anything that is not exactly a manifest, or whose names would leave the directory."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"manifest ({where}) is no JSON: {error}: make one with llm-ray model manifest") from error
    files = body.get("files") if isinstance(body, dict) else None
    if not isinstance(files, dict) or not files:
        raise ConfigError(f"manifest ({where}) has no object `files`: make one with llm-ray model manifest")
    return [_parse_file(name, entry, where) for name, entry in files.items()]


def _parse_file(name: str, entry: Any, where: str) -> File:
    if not all(NAME_PART.fullmatch(part) for part in name.split("/")) or name in OWN_FILES:
        raise ConfigError(
            f"manifest ({where}) names {name!r}: names must be relative, without parts that begin with a dot, "
            f"and not {', '.join(sorted(OWN_FILES))}"
        )
    fits = (
        isinstance(entry, dict)
        and entry.keys() <= KEYS
        and type(entry.get("size")) is int
        and entry["size"] >= 0
        and isinstance(entry.get("sha256"), str)
        and SHA256.fullmatch(entry["sha256"])
        and isinstance(entry.get("versionId", ""), str)
    )
    if not fits:
        raise ConfigError(f"manifest ({where}): {name!r} must have size, sha256 (64 hex digits) and maybe versionId")
    return File(name, entry["size"], entry["sha256"], entry.get("versionId", ""))


def target(home: Path, name: str) -> Path:
    """Where the file goes. Raises ConfigError when a link in the directory leads out of it."""
    path = home / name
    if not path.parent.resolve().is_relative_to(home.resolve()):
        raise ConfigError(f"directory ({home}): {name} leads out of it through a link: remove the link")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def is_whole(path: Path, file: File) -> bool:
    return path.is_file() and path.stat().st_size == file.size and sha256_of(path) == file.sha256


def sha256_of(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def make_manifest(home: Path) -> Mapping[str, Any]:
    """Of every file in the directory, hidden ones and our own excepted. Raises ConfigError when it is no checkpoint."""
    names = sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())
    names = [n for n in names if n not in OWN_FILES and not any(part.startswith(".") for part in n.split("/"))]
    if "config.json" not in names:
        raise ConfigError(f"directory ({home}) has no config.json: give the directory of a Hugging Face checkpoint")
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        digests = list(pool.map(lambda name: sha256_of(home / name), names))
    sizes = [(home / name).stat().st_size for name in names]
    return {
        "files": {name: {"size": size, "sha256": sha} for name, size, sha in zip(names, sizes, digests, strict=True)}
    }
