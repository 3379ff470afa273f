"""Take a lab down, in whatever state it is: daemons, pods, namespaces, cgroups, files. Programs, image archives and the
nodes' image stores stay, unless `purge`. Only recorded processes and those in the lab's own cgroup are ended."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ci.lab import cgroups, network, node
from ci.lab.processes import Processes, Word, command
from ci.lab.programs import program
from ci.lab.settings import Settings

LAST = ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")  # each waits for the next one otherwise


def down(lab: Settings, purge: bool = False) -> None:
    """End the lab and remove what it made."""
    daemons = Processes(lab)
    runtimes = daemons.names("containerd-")
    daemons.stop([name for name in daemons.names() if name not in (*runtimes, *LAST)])
    for name in runtimes:
        _remove_pods(daemons, name)
    for name in LAST:
        daemons.stop([name])
    daemons.stop(runtimes)
    cgroups.kill(lab.cgroup)
    network.remove(lab)
    cgroups.remove(lab.cgroup)
    for folder in _made_for_mounts():
        with contextlib.suppress(OSError):  # it is somebody's, unless it is empty
            os.rmdir(folder)
    if lab.logs.is_dir():
        shutil.rmtree(lab.last_logs, ignore_errors=True)
        shutil.move(lab.logs, lab.last_logs)
    shutil.rmtree(lab.run, ignore_errors=True)
    if purge:
        for home in lab.nodes_home.glob(f"{lab.name}-n*"):
            shutil.rmtree(home)


def left(lab: Settings) -> list[str]:
    """What is still there of a lab that is down: processes, namespaces, links, cgroups, mounts, files."""
    found = [f"process {pid}" for pid in sorted(cgroups.processes(lab.cgroup))]
    found += [f"network {name}" for name in network.left(lab)]
    found += [f"cgroup {tree / lab.cgroup}" for tree in cgroups.hierarchies() if (tree / lab.cgroup).exists()]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line.split()[4]}" for line in mounts if str(lab.nodes_home / f"{lab.name}-n") in line]
    return found + ([f"folder {lab.run}"] if lab.run.exists() else [])


def _remove_pods(daemons: Processes, runtime: str) -> None:
    """Through the runtime, so that mounts, shims and cgroups go in good order."""
    pid = daemons.pid(runtime)
    if pid is None:
        return
    socket = "unix:///run/containerd/containerd.sock"
    crictl: list[Word] = ["nsenter", "-t", str(pid), "-m", "-n", "--", program("crictl"), "-r", socket]
    pods = command(*crictl, "pods", "-q", check=False).stdout.split()
    if pods:
        command(*crictl, "stopp", *pods, check=False)
        command(*crictl, "rmp", "-f", *pods, check=False)


def _made_for_mounts() -> Iterator[str]:
    """Mount points and their parents, the deepest first."""
    folders = {str(path) for name in node.OWN for path in [Path("/", name), *Path("/", name).parents]}
    yield from sorted(folders - {"/", "/var", "/var/lib", "/var/log", "/etc"}, key=len, reverse=True)
