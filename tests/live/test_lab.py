"""The lab itself: up, up again, and up after a kill at any moment; nothing is left after down.

In a lab of its own beside the one that the other tests use.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ci.lab import down
from ci.lab.cluster import Cluster, condition
from ci.lab.processes import Processes
from ci.lab.settings import Settings, settings

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
KILLS = 10
NAME, NET = "labkill", "10.250"
LAB = [sys.executable, "-m", "ci.lab"]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("LAB_NAME", NAME)
    monkeypatch.setenv("LAB_NET", NET)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "app"))
    own = settings()
    command("down")
    yield own
    command("down", "--purge")


def command(*words: str) -> str:
    done = subprocess.run([*LAB, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def kill_at(lab: Settings, moment: float, dice: random.Random) -> str:
    """Start `up`, and at the moment kill it and some of the daemons that run by then; what was killed, in words."""
    child = subprocess.Popen(
        [*LAB, "up"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(moment)
    daemons = Processes(lab)
    running = {name: pid for name in daemons.names() if (pid := daemons.pid(name))}
    chosen = dice.sample(sorted(running), dice.randint(0, len(running)))
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for name in chosen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(running[name], signal.SIGKILL)
    return f"after {moment:.1f} s: up and {', '.join(chosen) or 'no daemon'} of {len(running)}"


def assert_usable(lab: Settings) -> None:
    cluster = Cluster(lab)
    for n in lab.numbers:
        node = cluster.get(f"/api/v1/nodes/{lab.node(n)}")
        assert condition(node, "Ready") == "True"
    operator = cluster.get("/apis/apps/v1/namespaces/kuberay-system/deployments/kuberay-operator")
    assert condition(operator, "Available") == "True"


@pytest.mark.timeout(1200)
def test_the_lab_comes_up_after_a_kill_at_any_moment_and_leaves_nothing(lab: Settings) -> None:
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    print(f"seed {seed}")
    began = time.monotonic()
    command("up")
    took = time.monotonic() - began
    assert "already up" in command("up")
    assert_usable(lab)
    for _ in range(KILLS):
        command("down")
        print(kill_at(lab, dice.uniform(0, took), dice))
        command("down")
        assert not down.left(lab)
        command("up")
        assert_usable(lab)


@pytest.mark.timeout(300)
def test_up_repairs_a_lab_whose_daemons_were_killed(lab: Settings) -> None:
    command("up", "--profile", "nodes")
    daemons = Processes(lab)
    for name in ("kube-apiserver", f"containerd-{lab.node(2)}"):
        os.kill(daemons.running(name), signal.SIGKILL)
    broken = subprocess.run([*LAB, "status"], cwd=ROOT, capture_output=True, text=True)
    assert broken.returncode == 1
    assert "kube-apiserver" in broken.stdout
    command("up", "--profile", "nodes")
    assert "Ready=True" in command("status")
