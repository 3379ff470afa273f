"""Whether the Serve config must be put. Pure: the file, what Serve has and what was put before in, a reason out.

Serve's answer is no mirror of what was put (it fills in, renames and drops), so the two are compared only once, when
this process is new. Later the question is whether Serve still has what it had right after our PUT.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from llm_ray.deployer.state import Serve
from llm_ray.errors import ConfigError

FIRST_DELAY_S = 2.0
LONGEST_DELAY_S = 60.0
QUIET_S = 120.0
"""After so long without a reason to put, the next one is a fresh event and not the same quarrel going on."""


@dataclass(frozen=True)
class Wanted:
    """The file's content. The digest ignores comments and order."""

    body: Mapping[str, Any]
    digest: str

    @property
    def apps(self) -> dict[str, Mapping[str, Any]]:
        return {app.get("name", "default"): app for app in self.body["applications"]}


@dataclass(frozen=True)
class Memory:
    """Of the PUTs so far. `accepted`: digest and controller of the last that Serve took; `held`: what it had then.

    `attempts` of the digest `tried`, since it was last quiet, set the time to the next. `is_settled`: Serve
    has what the file says.
    """

    accepted: tuple[str, str | None] | None = None
    held: Mapping[str, Any] | None = None
    rejected: tuple[str, str | None, int] | None = None
    is_settled: bool = False
    outages: int = 0
    tried: str = ""
    attempts: int = 0
    not_before: float = 0.0
    last_put: float = field(default=float("-inf"))


def read_config(path: Path) -> Wanted:
    """The Serve config in the file. Raises ConfigError when it is missing or cannot be one."""
    try:
        body = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"config ({path}) cannot be read: {error.strerror}: mount the Serve config there") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"config ({path}) is no YAML: {' '.join(str(error).split())}: correct the file") from error
    apps = body.get("applications") if isinstance(body, dict) else None
    if not isinstance(apps, list) or not all(isinstance(app, dict) for app in apps):
        raise ConfigError(f"config ({path}) has no list `applications`: give a Serve config of several applications")
    try:
        text = json.dumps(body, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"config ({path}) holds a value that JSON does not know ({error}): quote it") from error
    return Wanted(json.loads(text), hashlib.sha256(text.encode()).hexdigest())


def decide(memory: Memory, wanted: Wanted, serve: Serve, now: float) -> tuple[Memory, str]:
    """What to remember, and why to put the config now; an empty reason is not to."""
    memory = replace(memory, is_settled=False)
    if memory.rejected == _rejection(memory, wanted, serve):
        return memory, ""
    reason = _difference(memory, wanted, serve)
    if not reason:
        attempts = 0 if now - memory.last_put > QUIET_S else memory.attempts
        # Bound to the controller that is there now: before the first PUT there was none.
        bound = (wanted.digest, serve.controller)
        return replace(memory, is_settled=True, accepted=bound, held=held(serve), attempts=attempts), ""
    if memory.tried != wanted.digest:
        return replace(memory, attempts=0, not_before=0.0), reason
    return memory, reason if now >= memory.not_before else ""


def _difference(memory: Memory, wanted: Wanted, serve: Serve) -> str:
    if serve.controller is None:
        return "Serve is not running"
    if memory.accepted is None:
        return "" if _has(serve, wanted) else "Serve has another config"
    digest, controller = memory.accepted
    if digest != wanted.digest:
        return "the config file has changed"
    if controller not in (None, serve.controller):
        return "Serve was restarted"
    missing = sorted(wanted.apps.keys() - held(serve).keys())
    if missing:
        return f"applications are missing: {', '.join(missing)}"
    if memory.held is not None and memory.held != held(serve):
        return "someone else has changed the applications"
    return ""


def put_accepted(memory: Memory, wanted: Wanted, serve: Serve, now: float) -> Memory:
    return replace(
        _put_tried(memory, wanted, now),
        accepted=(wanted.digest, serve.controller),
        held=None,
        rejected=None,
        last_put=now,
    )


def put_rejected(memory: Memory, wanted: Wanted, serve: Serve, now: float) -> Memory:
    """Serve will say the same again, until the file or Serve is another."""
    return replace(_put_tried(memory, wanted, now), rejected=_rejection(memory, wanted, serve))


def put_failed(memory: Memory, wanted: Wanted, now: float) -> Memory:
    """Nobody knows whether Serve took it."""
    return _put_tried(memory, wanted, now)


def dashboard_is_back(memory: Memory) -> Memory:
    return replace(memory, outages=memory.outages + 1)


def _put_tried(memory: Memory, wanted: Wanted, now: float) -> Memory:
    delay = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(memory.attempts, 10))
    return replace(memory, tried=wanted.digest, attempts=memory.attempts + 1, not_before=now + delay)


def _rejection(memory: Memory, wanted: Wanted, serve: Serve) -> tuple[str, str | None, int]:
    return wanted.digest, serve.controller, memory.outages


def held(serve: Serve) -> dict[str, Any]:
    """Application → its config, of those that were put; ones that a driver deployed by itself are not ours."""
    return {name: app.config for name, app in serve.live_apps.items() if app.config is not None}


def _has(serve: Serve, wanted: Wanted) -> bool:
    logging = wanted.body.get("logging_config")
    filled = {
        name: {**app, "logging_config": app["logging_config"] if app.get("logging_config") else logging}
        if logging
        else dict(app)
        for name, app in wanted.apps.items()
    }
    return held(serve) == filled


def waits_for_restart(wanted: Wanted, serve: Serve) -> list[str]:
    """Options that Serve fixed when it started and that the file wants otherwise."""
    if serve.controller is None:
        return []
    sections = {"http_options": serve.http_options, "grpc_options": serve.grpc_options}
    return [
        f"{section}.{key} (has {options[key]!r}, wanted {value!r})"
        for section, options in sections.items()
        if options is not None
        for key, value in (wanted.body.get(section) or {}).items()
        if key in options and options[key] != value
    ]
