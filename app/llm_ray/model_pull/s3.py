"""A model in a bucket, pinned: the manifest by version and SHA-256, each file by the manifest. Any S3 API.

Credentials, region and endpoint come from the environment: AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL and so on.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError

from llm_ray.errors import ConfigError
from llm_ray.model_pull.directory import Fetched, FreeBytes, PullError, check_names, check_space, gib, settle
from llm_ray.model_pull.manifest import HASHING_THREADS, File, is_whole, parse_manifest, target
from llm_ray.model_store import Log

CHUNK = 1 << 20
LARGEST_MANIFEST = 16 << 20
THREADS = 8
ATTEMPTS = 3
BROKEN_OFF = (HTTPClientError, IncompleteReadError)
ENDPOINT_KEYS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


@dataclass(frozen=True)
class S3Source:
    bucket: str
    key: str
    version_id: str
    sha256: str

    @property
    def identity(self) -> Mapping[str, str]:
        return {"source": f"s3://{self.bucket}/{self.key}", "versionId": self.version_id, "sha256": self.sha256}

    def fetch(self, home: Path, log: Log, free: FreeBytes) -> Fetched:
        client = _client()
        files = self._manifest(client)
        check_names([file.name for file in files], self.identity["source"])
        paths = [target(home, file.name) for file in files]
        with ThreadPoolExecutor(HASHING_THREADS) as pool:
            whole = list(pool.map(is_whole, paths, files))
        missing = [file for file, is_there in zip(files, whole, strict=True) if not is_there]
        check_space(home, sum(file.size for file in missing), free)
        log(f"{len(missing)} of {len(files)} files to fetch, {gib(sum(file.size for file in missing))}")
        self._fetch_all(client, home, missing, log)
        return Fetched({file.name: file.size for file in files}, self.version_id)

    def _manifest(self, client: Any) -> list[File]:
        where = f"s3://{self.bucket}/{self.key}"
        try:
            with _told(where):
                answer = client.get_object(Bucket=self.bucket, Key=self.key, VersionId=self.version_id)
                text = answer["Body"].read(LARGEST_MANIFEST + 1)
        except BROKEN_OFF as error:
            raise PullError(f"{where} broke off ({error}): try again") from error
        digest = hashlib.sha256(text).hexdigest()
        if digest != self.sha256:
            raise ConfigError(
                f"manifest ({where}, version {self.version_id}) has sha256 {digest}, expected {self.sha256}: "
                "it is another manifest; give --version-id and --sha256 of the same upload"
            )
        return parse_manifest(text, where)

    def _fetch_all(self, client: Any, home: Path, files: list[File], log: Log) -> None:
        stop = threading.Event()
        with ThreadPoolExecutor(THREADS) as pool:
            work = [pool.submit(self._fetch, client, home, file, stop, log) for file in files]
            wait(work, return_when=FIRST_EXCEPTION)
            if any(done.done() and done.exception() for done in work):
                stop.set()
                pool.shutdown(cancel_futures=True)
        # The first failure is the cause; what stopped because of it comes after.
        failures = [done.exception() for done in work if not done.cancelled() and done.exception() is not None]
        cause = next((error for error in failures if not isinstance(error, _Stopped)), None)
        if cause is not None:
            raise cause

    def _fetch(self, client: Any, home: Path, file: File, stop: threading.Event, log: Log) -> None:
        path = target(home, file.name)
        temporary = path.with_name(f".{path.name}.part")
        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    self._stream(client, file, temporary, stop)
                    break
                except BROKEN_OFF as error:
                    if attempt == ATTEMPTS or stop.is_set():
                        raise PullError(f"{self._url(file)} broke off {ATTEMPTS} times ({error}): try again") from error
            settle(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        log(f"fetched {file.name}, {gib(file.size)}")

    def _stream(self, client: Any, file: File, temporary: Path, stop: threading.Event) -> None:
        """To the temporary file, hashed on the way. Only what is exactly as the manifest says is left there."""
        version = {"VersionId": file.version_id} if file.version_id else {}
        digest, size = hashlib.sha256(), 0
        with _told(self._url(file)), temporary.open("wb") as out:
            body = client.get_object(Bucket=self.bucket, Key=self._key(file), **version)["Body"]
            for chunk in body.iter_chunks(CHUNK):
                if stop.is_set():
                    raise _Stopped
                size += len(chunk)
                if size > file.size:
                    break
                digest.update(chunk)
                out.write(chunk)
        if size != file.size or digest.hexdigest() != file.sha256:
            got = f"more than {file.size} bytes" if size > file.size else f"{size} bytes, sha256 {digest.hexdigest()}"
            raise ConfigError(
                f"{self._url(file)} has {got}; the manifest says {file.size} bytes, sha256 {file.sha256}: "
                "the object was changed after the manifest was made; upload both again, or pin its versionId"
            )

    def _key(self, file: File) -> str:
        folder = self.key.rpartition("/")[0]
        return f"{folder}/{file.name}" if folder else file.name

    def _url(self, file: File) -> str:
        return f"s3://{self.bucket}/{self._key(file)}"


class _Stopped(Exception):
    """Another file has failed."""


class _told:
    """Turns what the S3 client says into one line with the object and the fix. Broken connections pass."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ClientError):
            told = error.response.get("Error", {})
            raise ConfigError(
                f"{self._where}: the store refused it ({told.get('Code')}: {told.get('Message')}); "
                "check the address, the version and the credentials' right to s3:GetObject and s3:GetObjectVersion"
            ) from error
        if isinstance(error, BotoCoreError) and not isinstance(error, BROKEN_OFF):
            raise ConfigError(
                f"{self._where}: {error}: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, "
                "and AWS_ENDPOINT_URL for another store than AWS"
            ) from error


def _client() -> Any:
    # A store of one's own rarely has a host name per bucket.
    is_own = any(os.environ.get(key) for key in ENDPOINT_KEYS)
    config = Config(
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=THREADS,
        retries={"mode": "standard", "max_attempts": 5},
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if is_own else "auto"},
    )
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    try:
        return boto3.client("s3", region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"S3 client: {error}: correct AWS_ENDPOINT_URL or AWS_REGION") from error
