"""A real Kubernetes on this machine: control plane, nodes with their own containerd and kubelet, KubeRay and more.

Settings come from the environment: LLM_RAY_LAB (directory), LAB_NAME, LAB_NET (first two octets), LAB_NODES.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.lab import host, status
from ci.lab.addons import DEFAULT, PROFILES
from ci.lab.cluster import environment
from ci.lab.down import down, left
from ci.lab.errors import LabError
from ci.lab.log import Say, timed
from ci.lab.programs import program
from ci.lab.settings import Settings, settings
from ci.lab.up import load, up
from ci.tools import ToolError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ci.lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("up", help="bring the lab up, or add to it what the profile has more")
    start.add_argument("--profile", default=DEFAULT, help=f"one of {', '.join(PROFILES)} (default {DEFAULT})")
    end = commands.add_parser("down", help="take it down; programs and image stores stay")
    end.add_argument("--purge", action="store_true", help="remove the nodes' image stores as well")
    commands.add_parser("status", help="what runs; exit status 1 when the lab is not up")
    commands.add_parser("load", help="load an image archive into every node").add_argument("archive", type=Path)
    commands.add_parser("check", help="whether the lab can run on this machine")
    commands.add_parser("packages", help="print the Debian packages that are missing here")
    commands.add_parser("kubeconfig", help="print the path of the administrator's kubeconfig")
    commands.add_parser("env", help="print shell commands that point kubectl and helm at this lab")
    inner = commands.add_parser("kubectl", help="kubectl on this lab")
    inner.add_argument("words", nargs=argparse.REMAINDER)
    return parser


def main(arguments: list[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        return _run(chosen, settings())
    except (LabError, ToolError, ValueError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2


def _run(chosen: argparse.Namespace, lab: Settings) -> int:
    say = timed()
    if chosen.command == "kubeconfig":
        print(lab.kubeconfig)
    elif chosen.command == "packages":
        print(" ".join(host.missing_packages()))
    elif chosen.command == "env":
        print("\n".join(f"export {key}={shlex.quote(value)}" for key, value in environment(lab).items()))
    elif chosen.command == "kubectl":
        os.execve(program("kubectl"), ["kubectl", *chosen.words], os.environ | environment(lab))
    elif chosen.command == "status":
        ready, lines = status.report(lab)
        print(lines)
        return 0 if ready else 1
    elif chosen.command == "check":
        host.check()
        say("the lab can run here")
    else:
        host.check()
        with _alone(lab):
            return _change(chosen, lab, say)
    return 0


def _change(chosen: argparse.Namespace, lab: Settings, say: Say) -> int:
    if chosen.command == "up":
        up(lab, chosen.profile, say)
        print('eval "$(.venv/bin/python -m ci.lab env)" points kubectl and helm at it')
    elif chosen.command == "load":
        load(lab, chosen.archive.resolve(), say)
    else:
        down(lab, chosen.purge)
        remaining = left(lab)
        if remaining:
            raise LabError("these are still there after `down`:\n" + "\n".join(f"  - {name}" for name in remaining))
        say("down")
    return 0


@contextmanager
def _alone(lab: Settings) -> Iterator[None]:
    """One command changes a lab at a time; the kernel frees the lock when its holder dies."""
    lab.home.mkdir(parents=True, exist_ok=True)
    with (lab.home / f"lock-{lab.name}").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"lab: waiting for another command on lab {lab.name}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
