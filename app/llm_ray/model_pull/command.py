"""`llm-ray model pull` and `llm-ray model manifest`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llm_ray.errors import ConfigError


def add_commands(commands: Any) -> None:
    pull = commands.add_parser("pull", help="pull a pinned model into a directory, once for all pods that share it")
    pull.add_argument("source", metavar="SOURCE", help="hf://OWNER/NAME@COMMIT or s3://BUCKET/PREFIX/manifest.json")
    pull.add_argument("directory", metavar="DIRECTORY", type=Path, help="where config.json and the weights go")
    pull.add_argument("--version-id", default="", metavar="ID", help="of the manifest, for s3://")
    pull.add_argument("--sha256", default="", metavar="HEX", help="of the manifest, for s3://")
    pull.add_argument("--timeout", type=float, default=0.0, metavar="S", help="give up after S seconds; 0 is never")
    pull.set_defaults(run=_pull)
    manifest = commands.add_parser("manifest", help="print the manifest of a checkpoint, to upload beside its files")
    manifest.add_argument("directory", metavar="DIRECTORY", type=Path)
    manifest.set_defaults(run=_manifest)


def _pull(args: argparse.Namespace) -> None:
    if not 0 <= args.timeout < threading.TIMEOUT_MAX:
        raise ConfigError(f"--timeout ({args.timeout}) must be 0 or more seconds; 0 is never")
    from llm_ray.model_pull.directory import pull
    from llm_ray.model_pull.source import parse_source

    source = parse_source(args.source, args.version_id, args.sha256)
    watchdog = _watch(args)
    try:
        pull(source, args.directory, log=_say)
    finally:
        watchdog()
    print(args.directory)


def _watch(args: argparse.Namespace) -> Callable[[], None]:
    """End the process after the timeout, whatever it waits in. Returns how to call that off."""

    def give_up() -> None:
        _say(
            f"llm-ray: {args.source} was not in {args.directory} within --timeout ({args.timeout:g} s): "
            "raise it; complete files are kept"
        )
        os._exit(1)

    if not args.timeout:
        return lambda: None
    timer = threading.Timer(args.timeout, give_up)
    timer.daemon = True
    timer.start()
    return timer.cancel


def _manifest(args: argparse.Namespace) -> None:
    from llm_ray.model_pull.manifest import make_manifest

    print(json.dumps(make_manifest(args.directory), indent=1))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
