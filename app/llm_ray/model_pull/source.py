"""SOURCE of `llm-ray model pull`. Everything that can move is refused: a pulled model is the same everywhere."""

from __future__ import annotations

import re

from llm_ray.errors import ConfigError
from llm_ray.model_pull.directory import Source
from llm_ray.model_store import DEMO, DEMO_DTYPES

FORMS = f"hf://OWNER/NAME@COMMIT, s3://BUCKET/PREFIX/manifest.json, or {DEMO}[:DTYPE]"
HUB = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
S3 = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(.+)")
SHA256 = re.compile(r"[0-9a-f]{64}")


def parse_source(text: str, version_id: str = "", sha256: str = "") -> Source:
    """Raises ConfigError when it is no source, or not pinned."""
    if text.startswith("s3://"):
        return _s3(text, version_id, sha256)
    if version_id or sha256:
        raise ConfigError(f"--version-id and --sha256 are for s3:// sources, and source is {text}: leave them out")
    if text.startswith("hf://"):
        return _hub(text)
    name, _, dtype = text.partition(":")
    if name != DEMO:
        raise ConfigError(f"source ({text!r}) must be one of {FORMS}")
    if dtype and dtype not in DEMO_DTYPES:
        raise ConfigError(f"dtype of {DEMO} ({dtype!r}) must be one of {', '.join(DEMO_DTYPES)}")
    from llm_ray.model_pull.hub import DemoSource

    return DemoSource(dtype or DEMO_DTYPES[0])


def _hub(text: str) -> Source:
    from llm_ray.model_pull.hub import HubSource

    match = HUB.fullmatch(text)
    if match is None:
        raise ConfigError(f"source ({text!r}) must have the form hf://OWNER/NAME@COMMIT")
    if match[2] is None:
        raise ConfigError(f"source ({text}) has no revision: add @ and a commit or tag, so that all pods get the same")
    return HubSource(match[1], match[2])


def _s3(text: str, version_id: str, sha256: str) -> Source:
    match = S3.fullmatch(text)
    if match is None or not match[2].endswith(".json"):
        raise ConfigError(f"source ({text!r}) must name a manifest, like s3://BUCKET/PREFIX/manifest.json")
    if not version_id or not sha256:
        raise ConfigError(f"source ({text}) needs --version-id and --sha256 of the manifest, so that it cannot change")
    if not SHA256.fullmatch(sha256.lower()):
        raise ConfigError(f"--sha256 ({sha256}) must have 64 hex digits")
    from llm_ray.model_pull.s3 import S3Source

    return S3Source(match[1], match[2], version_id, sha256.lower())
