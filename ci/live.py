"""Run tests/live on two labs that are brought up here, or on the cluster of --kube-config FILE.

Tests that need the llm-ray image run one by one in the first lab, beside all others in the second. Other arguments are
pytest's; each lab has a JUnit file of its own, by the name of the given one and the lane's.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ci import image
from ci.lab.cluster import environment
from ci.lab.down import down
from ci.lab.errors import LabError
from ci.lab.log import Say, timed
from ci.lab.settings import Settings, settings
from ci.lab.up import load, up
from ci.tools import ToolError

ROOT = Path(__file__).resolve().parents[1]
ARCHIVE = ROOT / "build" / "llm-ray.tar"
IMAGE = "localhost/llm-ray:dev"
PROFILE = "all"
OTHER_NAME, OTHER_NET = "lab2", "10.251"
NO_TESTS = 5  # pytest's exit status when a selection is empty


@dataclass(frozen=True)
class Lane:
    """Tests that run one after another in a lab of their own."""

    name: str
    marks: str
    lab: Settings
    has_image: bool


def main(arguments: list[str]) -> int:
    if any(argument.split("=")[0] == "--kube-config" for argument in arguments):
        return subprocess.run(_pytest(arguments), cwd=ROOT).returncode
    say, first = timed(), settings()
    other = dataclasses.replace(first, name=OTHER_NAME, net=OTHER_NET)
    lanes = [Lane("image", "image", first, True), Lane("objects", "not image", other, False)]
    try:
        image.build("cpu", IMAGE, ARCHIVE)
        down(other)
        for lane in lanes:
            up(lane.lab, PROFILE, say)
            if lane.has_image:
                load(lane.lab, ARCHIVE, say)
        return _run(lanes, arguments, say)
    except (LabError, ToolError) as error:
        print(f"live: {error}", file=sys.stderr)
        return 2
    finally:
        down(other)


def _run(lanes: list[Lane], arguments: list[str], say: Say) -> int:
    """All lanes at once; the output of each as a whole, and the worst exit status."""
    logs = {lane.name: ROOT / "build" / f"live-{lane.name}.log" for lane in lanes}
    children = {lane.name: _start(lane, arguments, logs[lane.name]) for lane in lanes}
    statuses = []
    for name, child in children.items():
        statuses.append(child.wait())
        say(f"lane {name} ended with {statuses[-1]}")
        print(logs[name].read_text(errors="replace"), flush=True)
    ran = [status for status in statuses if status != NO_TESTS]
    return max(ran) if ran else NO_TESTS


def _start(lane: Lane, arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    named = {"LAB_NAME": lane.lab.name, "LAB_NET": lane.lab.net}
    words = [*_pytest([_own_report(word, lane.name) for word in arguments]), "-m", lane.marks]
    with log.open("wb") as out:
        return subprocess.Popen(
            words, cwd=ROOT, env=os.environ | environment(lane.lab) | named, stdout=out, stderr=subprocess.STDOUT
        )


def _pytest(arguments: list[str]) -> list[str]:
    chosen = [word for word in arguments if word.startswith("tests/live")]
    return [sys.executable, "-m", "pytest", *(["tests/live"] if not chosen else []), *arguments]


def _own_report(word: str, lane: str) -> str:
    """--junitxml=build/junit-live.xml → --junitxml=build/junit-live-image.xml"""
    return f"{word.removesuffix('.xml')}-{lane}.xml" if word.startswith("--junitxml=") else word


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
