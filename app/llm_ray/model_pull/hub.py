"""A model on a Hugging Face hub, pinned by commit or tag, and the packaged demo model."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from llm_ray.errors import ConfigError
from llm_ray.model_pull.directory import Fetched, FreeBytes, PullError, check_names, check_space, gib, settle
from llm_ray.model_pull.manifest import HASHING_THREADS, sha256_of
from llm_ray.model_store import HUB_FILES, Log, demo_model

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubSource:
    repo: str
    revision: str

    @property
    def identity(self) -> Mapping[str, str]:
        return {"source": f"hf://{self.repo}@{self.revision}"}

    def fetch(self, home: Path, log: Log, free: FreeBytes) -> Fetched:
        os.environ.setdefault("HF_XET_CHUNK_CACHE_SIZE_BYTES", "0")  # it would fill /tmp with what is not read again
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

        try:
            return self._fetch(home, log, free)
        except (OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
            raise PullError(f"{self._name}: the hub cannot be reached ({_first_line(error)}): connect") from error
        except HfHubHTTPError as error:
            raise ConfigError(
                f"{self._name}: the hub refused it ({_first_line(error)}); check name and revision, "
                "or set HF_TOKEN for a gated or private model"
            ) from error
        except httpx2.HTTPError as error:
            raise PullError(f"{self._name}: the download failed ({_first_line(error)}): try again") from error

    @property
    def _name(self) -> str:
        return self.identity["source"]

    def _fetch(self, home: Path, log: Log, free: FreeBytes) -> Fetched:
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        api = HfApi()
        info = api.model_info(self.repo, revision=self.revision, files_metadata=True)
        commit = str(info.sha)
        if not COMMIT.fullmatch(self.revision):
            branches = {branch.name for branch in api.list_repo_refs(self.repo).branches}
            if self.revision in branches:
                raise ConfigError(
                    f"source ({self._name}): {self.revision} is a branch, which moves: "
                    f"give hf://{self.repo}@{commit}, which it is now, or a tag"
                )
        files = [f for f in info.siblings or [] if any(fnmatch(f.rfilename, pattern) for pattern in HUB_FILES)]
        sizes = {file.rfilename: int(file.size or 0) for file in files}
        check_names(sizes, self._name)
        missing = {name: size for name, size in sizes.items() if not _has_size(home / name, size)}
        check_space(home, sum(missing.values()), free)
        log(f"{len(missing)} of {len(sizes)} files of {self.repo} at {commit} to fetch, {gib(sum(missing.values()))}")
        snapshot_download(self.repo, revision=commit, local_dir=home, allow_patterns=HUB_FILES)
        self._check(home, files)
        return Fetched(sizes, commit)

    def _check(self, home: Path, files: list[Any]) -> None:
        """Sizes of all; and the large ones by the SHA-256 that the hub keeps of them."""
        with ThreadPoolExecutor(HASHING_THREADS) as pool:
            faults = [fault for fault in pool.map(lambda file: _fault(home, file), files) if fault]
        if faults:
            raise PullError(f"{self._name}: {'; '.join(faults)}: removed; try again")


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _fault(home: Path, file: Any) -> str:
    path = home / file.rfilename
    fault = ""
    if not _has_size(path, int(file.size or 0)):
        fault = f"{file.rfilename} has not the size {file.size} that the hub says"
    elif file.lfs is not None and sha256_of(path) != file.lfs.sha256:
        fault = f"{file.rfilename} has not the sha256 {file.lfs.sha256} that the hub says"
    if fault:
        path.unlink(missing_ok=True)
    return fault


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@dataclass(frozen=True)
class DemoSource:
    dtype: str

    @property
    def identity(self) -> Mapping[str, str]:
        return {"source": f"smollm2:{self.dtype}"}

    def fetch(self, home: Path, log: Log, free: FreeBytes) -> Fetched:
        made = demo_model(self.dtype, log=log)
        sizes = {path.name: path.stat().st_size for path in made.iterdir()}
        check_space(home, sum(size for name, size in sizes.items() if not _has_size(home / name, size)), free)
        for name in sizes:
            temporary = home / f".{name}.part"
            shutil.copyfile(made / name, temporary)
            settle(temporary, home / name)
        return Fetched(sizes, self.dtype)
