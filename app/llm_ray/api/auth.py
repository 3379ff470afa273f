"""API keys: many hashed keys from one YAML file, reloaded when it changes, each with its own budgets.

Knows neither HTTP nor gRPC; both ask `KeyRing.enter` and report the tokens they used on the `Lease`.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from llm_ray.api.errors import AuthenticationError, RateLimitError
from llm_ray.errors import ConfigError

log = logging.getLogger(__name__)

KEY_PREFIX = "sk-llm-ray-"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHECK_EVERY_S = 1.0
_MINUTE_S = 60.0


def new_key() -> str:
    """A fresh secret of 256 random bits. Show it once and store only its hash."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_key(secret: str) -> str:
    """What the key file holds. Plain SHA-256 is enough: the secret is random, there is nothing to guess."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One entry of the file. A limit of None is no limit; tokens are those of prompt and answer together."""

    name: str
    sha256: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrency: int | None = None


class Bucket:
    """A token bucket that holds one minute's worth and fills evenly. `spend` may overdraw it; `wait_s` tells when
    it is positive again, so that a long answer is paid for by the requests after it."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def wait_s(self, amount: float, now: float) -> float:
        self._fill(now)
        return max(0.0, (min(amount, self.per_minute) - self._level) * _MINUTE_S / self.per_minute)

    def spend(self, amount: float, now: float) -> None:
        self._fill(now)
        self._level -= amount

    def resize(self, per_minute: int) -> None:
        """A new limit from the file: what was used stays used."""
        self._level += per_minute - self.per_minute
        self.per_minute = per_minute

    def _fill(self, now: float) -> None:
        earned = (now - self._at) * self.per_minute / _MINUTE_S
        self._level = min(float(self.per_minute), self._level + max(0.0, earned))
        self._at = now


@dataclass(slots=True)
class _Account:
    """A key and what it has used; survives reloads under the same name."""

    key: ApiKey
    requests: Bucket | None = None
    tokens: Bucket | None = None
    num_open: int = 0

    def update(self, key: ApiKey, now: float) -> None:
        self.key = key
        self.requests = _resized(self.requests, key.requests_per_minute, now)
        self.tokens = _resized(self.tokens, key.tokens_per_minute, now)


@dataclass(slots=True)
class Lease:
    """One request's permission. Close it when the request has ended, however it ended."""

    name: str
    _account: _Account
    _clock: Callable[[], float]
    _closed: bool = field(default=False)

    def charge(self, num_tokens: int) -> None:
        if self._account.tokens is not None:
            self._account.tokens.spend(num_tokens, self._clock())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._account.num_open -= 1


class KeyRing:
    """The keys of one file. Not thread safe: it belongs to the event loop.

    Raises ConfigError when the file is unusable at start; later a broken file is logged and the old keys stay.
    """

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path)
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._by_hash: dict[str, _Account] = {}
        self._signature = _signature(self._path)
        self._next_check = clock() + _CHECK_EVERY_S
        self._use(load_keys(self._path))

    def enter(self, secret: str | None) -> Lease:
        """Admit one request. Raises AuthenticationError, or RateLimitError with the time to wait."""
        self._reload_if_changed()
        if not secret:
            raise AuthenticationError("no API key: send the header 'Authorization: Bearer <key>'")
        digest = hash_key(secret)
        # Found by its hash, which a client cannot steer; the comparison itself takes the same time for all.
        account = self._by_hash.get(digest)
        if not hmac.compare_digest(account.key.sha256 if account else "0" * 64, digest) or account is None:
            raise AuthenticationError("the API key is not valid: check it, or ask the operator for a new one")
        now = self._clock()
        _check_budgets(account, now)
        if account.requests is not None:
            account.requests.spend(1, now)
        account.num_open += 1
        return Lease(account.key.name, account, self._clock)

    def _reload_if_changed(self) -> None:
        now = self._clock()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_EVERY_S
        signature = _signature(self._path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._use(load_keys(self._path))
        except ConfigError as error:
            log.error("event=api_keys_kept num_keys=%d error=%s", len(self._accounts), error)
        else:
            log.info("event=api_keys_reloaded num_keys=%d", len(self._accounts))

    def _use(self, keys: list[ApiKey]) -> None:
        now = self._clock()
        accounts = {key.name: self._accounts.get(key.name) or _Account(key) for key in keys}
        for key in keys:
            accounts[key.name].update(key, now)
        self._accounts = accounts
        self._by_hash = {key.sha256: accounts[key.name] for key in keys}


def load_keys(path: Path) -> list[ApiKey]:
    """Parse a key file. Raises ConfigError that names the entry and what is wrong, never a hash."""
    try:
        # the C loader: ten thousand keys take the pure Python one seconds
        data = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        # not the error's own text: it may quote the file
        at = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError(
            f"api_keys_file ({path}) cannot be read: {type(error).__name__}{at}: "
            "give a YAML file as `llm-ray key new` describes it"
        ) from error
    if not isinstance(data, dict) or set(data) != {"keys"} or not isinstance(data["keys"], list):
        raise ConfigError(f"api_keys_file ({path}) must hold one list named keys: keys: [{{name: …, sha256: …}}]")
    keys = [_parse_key(entry, f"api_keys_file keys[{i}]") for i, entry in enumerate(data["keys"])]
    for noun, values in (("name", [key.name for key in keys]), ("sha256", [key.sha256 for key in keys])):
        if len(set(values)) != len(values):
            raise ConfigError(f"api_keys_file ({path}) has two keys of the same {noun}")
    return keys


def _parse_key(entry: Any, where: str) -> ApiKey:
    known = {f.name for f in fields(ApiKey)}
    if not isinstance(entry, dict) or not set(entry) <= known:
        raise ConfigError(f"{where} must be a mapping of {', '.join(sorted(known))}")
    name, sha256 = entry.get("name"), entry.get("sha256")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}.name must be a non-empty string")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256.lower()):
        raise ConfigError(f"{where}.sha256 must be 64 hexadecimal digits: the SHA-256 of the secret")
    limits: dict[str, int | None] = {}
    for key in ("requests_per_minute", "tokens_per_minute", "max_concurrency"):
        value = entry.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(f"{where}.{key} ({value!r}) must be a whole number of at least 1, or absent")
        limits[key] = value
    return ApiKey(name, sha256.lower(), **limits)


def _check_budgets(account: _Account, now: float) -> None:
    key = account.key
    if key.max_concurrency is not None and account.num_open >= key.max_concurrency:
        raise RateLimitError(
            f"key {key.name!r} has max_concurrency ({key.max_concurrency}) requests open: wait for one"
        )
    for bucket, limit in ((account.requests, "requests_per_minute"), (account.tokens, "tokens_per_minute")):
        wait_s = bucket.wait_s(1, now) if bucket is not None else 0.0
        if bucket is not None and wait_s > 0:
            raise RateLimitError(
                f"key {key.name!r} has used its {limit} ({bucket.per_minute}): retry in {wait_s:.0f} s",
                retry_after_s=wait_s,
            )


def _resized(bucket: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return Bucket(per_minute, now)
    bucket.resize(per_minute)
    return bucket


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file does, also by the symlink swap with which Kubernetes updates a mounted Secret."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
