"""The lab says why it cannot run, all at once and before it does anything."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ci.lab import host
from ci.lab.errors import LabError
from ci.lab.settings import settings

ROOT = Path(__file__).parents[1]
UP = [sys.executable, "-m", "ci.lab", "up"]


def refusal(*before: str, home: Path, **environment: str) -> str:
    """What `up` says on standard error when a command before it has taken something away."""
    clean = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "app"), "LLM_RAY_LAB": str(home)}
    done = subprocess.run([*before, *UP], cwd=ROOT, env=clean | environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done
    assert not list(home.glob("run-*")), "something was begun"
    return done.stderr


def test_another_uid_is_told_to_use_root(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    said = refusal("setpriv", "--reuid=65534", "--clear-groups", home=tmp_path)
    assert "uid 65534" in said
    assert "sudo make lab-up" in said


def test_missing_programs_are_named_with_their_packages(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "ip").symlink_to("/usr/sbin/ip")
    said = refusal(home=tmp_path, PATH=str(tools))
    line = next(line for line in said.splitlines() if "apt-get install" in line)
    assert {"nftables", "ipset", "openssl", "catatonit", "util-linux"} <= set(line.split())
    assert "iproute2" not in line


@pytest.mark.parametrize(
    ("hide", "named"),
    [
        ("mount -t tmpfs none /sys/fs/cgroup", "no cgroups are mounted"),
        (
            "mount -t tmpfs none /sys/fs/cgroup; for c in cpu cpuset pids cpuacct devices freezer;"
            " do mkdir /sys/fs/cgroup/$c; touch /sys/fs/cgroup/$c/cgroup.procs; done",
            "cgroup controllers memory,",
        ),
        (
            "mount -t tmpfs none /sys/fs/cgroup; echo cpu memory > /sys/fs/cgroup/cgroup.controllers",
            "cgroup controllers cpuset, pids,",
        ),
    ],
    ids=["none", "v1 without memory", "v2 without cpuset and pids"],
)
def test_missing_cgroup_controllers_are_named(tmp_path: Path, hide: str, named: str) -> None:
    said = refusal("unshare", "--mount", "--", "sh", "-euc", f'{hide}; exec "$@"', "sh", home=tmp_path)
    assert named in said
    assert "container" in said, "no remedy"


def test_another_system_is_sent_to_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(LabError, match=r"this is Darwin.*kind"):
        host.check()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("LAB_NAME", "much-too-long-a-name"),
        ("LAB_NAME", "Lab"),
        ("LAB_NET", "10.300"),
        ("LAB_NET", "192.168"),
        ("LAB_NODES", "12"),
    ],
)
def test_a_setting_out_of_range_is_named_with_its_limit(monkeypatch: pytest.MonkeyPatch, key: str, value: str) -> None:
    monkeypatch.setenv(key, value)
    with pytest.raises(LabError, match=rf"{key} is {re.escape(repr(value))}, and may be .*: set it to"):
        settings()
