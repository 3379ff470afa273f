"""The directory that a model is pulled into: one downloader at a time, and a marker when all of it is there.

.lock          held (flock) by the one that downloads; the kernel frees it when that process dies
source.json    what the directory is for, written before the first file
complete.json  file → size, written last, as model_store has it
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from llm_ray.errors import ConfigError, LLMRayError
from llm_ray.model_store import MANIFEST, Log, is_complete

LOCK = ".lock"
CLAIM = "source.json"
CONFIG = "config.json"
REPORT_S = 30.0
GIB = 1 << 30

FreeBytes = Callable[[Path], int]


class PullError(LLMRayError):
    """The model cannot be had as asked; what was fetched so far is kept for the next attempt."""


@dataclass(frozen=True)
class Fetched:
    """What a source has put into the directory: name → size, and the revision that it was."""

    sizes: Mapping[str, int]
    revision: str


class Source(Protocol):
    @property
    def identity(self) -> Mapping[str, str]:
        """Equal for two sources exactly when they mean the same files."""

    def fetch(self, home: Path, log: Log, free: FreeBytes) -> Fetched:
        """Bring every file, whole and checked. Files that are there already are not fetched again."""


def free_bytes(home: Path) -> int:
    return shutil.disk_usage(home).free


def pull(source: Source, home: Path, *, log: Log, free: FreeBytes = free_bytes, report_s: float = REPORT_S) -> None:
    """Return when the directory holds the model. Any number of processes, on any nodes that share it, may call this.

    Raises ConfigError when the directory is for another model or the source cannot be what it says; PullError when
    the download failed and may be tried again.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        if _is_done(home, source):
            log(f"{home} holds the model already")
            return
        with locked(home, log, report_s):
            if _is_done(home, source):
                log(f"{home} holds the model now")
                return
            _claim(home, source, log)
            with _progress(home, log, report_s):
                fetched = source.fetch(home, log, free)
            _finish(home, source, fetched)
            log(f"{home} is complete: {len(fetched.sizes)} files, {gib(sum(fetched.sizes.values()))}")
    except OSError as error:
        raise PullError(
            f"directory ({home}): {error}: it must be writable and large enough for the model; what is there is kept"
        ) from error


def _is_done(home: Path, source: Source) -> bool:
    if not is_complete(home):
        return False
    held = _read_claim(home)
    if held != dict(source.identity):
        raise ConfigError(
            f"directory ({home}) holds {_text(held)}, not {_text(source.identity)}: "
            "give each model and revision a directory of its own, or delete this one when nothing uses it any more"
        )
    return True


def _text(identity: Mapping[str, str]) -> str:
    return " ".join(identity.values()) or "a model of unknown source"


def _read_claim(home: Path) -> dict[str, str]:
    try:
        claim = json.loads((home / CLAIM).read_text())
        return {key: str(value) for key, value in claim.items() if key != "revision"}
    except (OSError, ValueError, AttributeError):
        return {}


def _claim(home: Path, source: Source, log: Log) -> None:
    """Say what the directory is for. Leftovers of another pull that never ended would only be in the way."""
    held = _read_claim(home)
    if held and held != dict(source.identity):
        log(f"{home} holds an unfinished pull of {_text(held)}: clearing it away")
        for path in home.iterdir():
            if path.name == LOCK:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    write_atomically(home / CLAIM, json.dumps(dict(source.identity)))


def _finish(home: Path, source: Source, fetched: Fetched) -> None:
    claim = json.dumps(dict(source.identity) | {"revision": fetched.revision})
    write_atomically(home / CLAIM, claim)
    sizes = dict(fetched.sizes) | {CLAIM: len(claim)}
    write_atomically(home / MANIFEST, json.dumps(sizes, indent=1, sort_keys=True))
    if not is_complete(home):
        raise PullError(f"directory ({home}): files are missing or changed size while they were pulled: try again")


def write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("w") as file:
        file.write(text)
    settle(temporary, path)


def settle(temporary: Path, path: Path) -> None:
    """Give a finished file its name; after a power cut it has its content or is not there."""
    temporary.chmod(0o644)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def locked(home: Path, log: Log, report_s: float = REPORT_S) -> Iterator[None]:
    """Hold the directory's lock, waiting for it as long as it takes and saying so every `report_s`."""
    me = f"{socket.gethostname()} (pid {os.getpid()})"
    with (home / LOCK).open("a+") as lock:
        began = told = time.monotonic()
        while not _try_lock(lock.fileno()):
            now = time.monotonic()
            if told == began or now - told >= report_s:
                lock.seek(0)
                holder = lock.read().strip() or "another process"
                log(f"{me} waits for {holder}, which pulls into {home}; {now - began:.0f} s so far")
                told = now
            time.sleep(min(0.5, report_s))
        lock.truncate(0)
        lock.write(me)
        lock.flush()
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


@contextmanager
def _progress(home: Path, log: Log, report_s: float) -> Iterator[None]:
    over = threading.Event()

    def report() -> None:
        while not over.wait(report_s):
            log(f"{gib(_bytes_in(home))} in {home} so far")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _bytes_in(home: Path) -> int:
    total = 0
    for path in home.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def check_names(names: Collection[str], source: str) -> None:
    if CONFIG not in names:
        raise ConfigError(f"source ({source}) has no {CONFIG}: it is no Hugging Face checkpoint")


def check_space(home: Path, needed: int, free: FreeBytes) -> None:
    """Before the first byte: a volume that is too small fails now and not after an hour."""
    available = free(home)
    if needed > available:
        raise PullError(
            f"directory ({home}) has {gib(available)} free, and {gib(needed)} are still to come: "
            "use a larger volume, or delete models that are not used"
        )


def gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
