"""Run tests/live: on a lab that is brought up here with everything in it, or on the cluster of --kube-config FILE.

Other arguments are pytest's. Tests that start Ray run one at a time, beside those that only need objects.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ci import image
from ci.lab.cluster import environment
from ci.lab.errors import LabError
from ci.lab.log import timed
from ci.lab.settings import settings
from ci.lab.up import load, up
from ci.tools import ToolError

ROOT = Path(__file__).resolve().parents[1]
ARCHIVE = ROOT / "build" / "llm-ray.tar"
PROFILE = "all"


def main(arguments: list[str]) -> int:
    words = [sys.executable, "-m", "pytest", "tests/live", "-n", "2", "--dist", "loadgroup", *arguments]
    if any(argument.split("=")[0] == "--kube-config" for argument in arguments):
        return subprocess.run(words, cwd=ROOT).returncode
    lab, say = settings(), timed()
    try:
        image.build("cpu", "localhost/llm-ray:dev", ARCHIVE)
        up(lab, PROFILE, say)
        load(lab, ARCHIVE, say)
        return subprocess.run(words, cwd=ROOT, env=os.environ | environment(lab)).returncode
    except (LabError, ToolError) as error:
        print(f"live: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
