"""What the lab needs of the machine; everything that is missing is named at once, with how to get it."""

from __future__ import annotations

import os
import platform
import shutil

from ci.lab import cgroups
from ci.lab.errors import LabError

CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
V1_CONTROLLERS = (*CONTROLLERS, "cpuacct", "devices", "freezer")
PACKAGE_OF = {  # command -> Debian package
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "sysctl": "procps",
    "openssl": "openssl",
    "nft": "nftables",
    "iptables": "iptables",
    "ipset": "ipset",
    "catatonit": "catatonit",
    "mount": "mount",
    "gcc": "gcc",
    "pkg-config": "pkg-config",
}
HEADER_OF = {"/usr/include/seccomp.h": "libseccomp-dev"}  # runc is compiled with it, and loads its library


def problems() -> list[str]:
    """Why the lab cannot run here, each with the remedy; empty where it can."""
    if platform.system() != "Linux":
        return [
            f"this is {platform.system()}, and nodes are Linux namespaces: use a Linux machine, or kind"
            " (README, On Kubernetes)"
        ]
    found = []
    if os.geteuid() != 0:
        found.append(f"uid {os.geteuid()} may not make namespaces and cgroups: run it as root (sudo make lab-up)")
    found += _cgroup_problems()
    missing = missing_packages()
    if missing:
        found.append(f"programs are missing: apt-get install --no-install-recommends {' '.join(missing)}")
    return found


def missing_packages() -> list[str]:
    """Debian packages of the programs that are not there."""
    programs = {package for name, package in PACKAGE_OF.items() if not shutil.which(name)}
    return sorted(programs | {package for path, package in HEADER_OF.items() if not os.path.exists(path)})


def _cgroup_problems() -> list[str]:
    if not cgroups.ROOT.is_dir() or not cgroups.hierarchies():
        return [f"no cgroups are mounted at {cgroups.ROOT}: mount cgroup2 there, or run outside of a container"]
    unified = (cgroups.ROOT / "cgroup.controllers").exists()
    missing = sorted(set(CONTROLLERS if unified else V1_CONTROLLERS) - cgroups.controllers())
    if not missing:
        return []
    return [
        f"the kubelet needs the cgroup controllers {', '.join(missing)}, which are not mounted below {cgroups.ROOT}:"
        " take cgroup_disable out of the kernel's command line, or run outside of a container that lacks them"
    ]


def check() -> None:
    """Raises LabError with every problem."""
    found = problems()
    if found:
        raise LabError("the lab cannot run here:\n" + "\n".join(f"  - {problem}" for problem in found))
