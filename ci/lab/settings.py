"""Where a lab keeps things and which names and addresses it uses; several labs can run side by side."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ci.lab.errors import LabError
from llm_ray.model_store import cache_dir

LONGEST_NAME = 10  # a link is called <name>-host, and Linux allows 15 characters
MOST_NODES = 9


@dataclass(frozen=True)
class Settings:
    """One lab. `home` is shared by all labs: programs, image archives, the nodes' image stores."""

    home: Path
    name: str
    net: str
    nodes: int

    @property
    def run(self) -> Path:
        """Keys, logs, records of processes and etcd's data of the running lab; removed with it."""
        return self.home / f"run-{self.name}"

    @property
    def pki(self) -> Path:
        return self.run / "pki"

    @property
    def logs(self) -> Path:
        return self.run / "logs"

    @property
    def last_logs(self) -> Path:
        """The logs of the lab that ran before."""
        return self.home / f"last-logs-{self.name}"

    @property
    def kubeconfig(self) -> Path:
        return self.run / "admin.kubeconfig"

    @property
    def plugins(self) -> Path:
        """The CNI plugins of all nodes."""
        return self.run / "cni"

    @property
    def nodes_home(self) -> Path:
        return self.home / "nodes"

    def node_home(self, node: int) -> Path:
        """What the node sees at /var/lib/containerd and such; its image store outlives the lab."""
        return self.nodes_home / self.node(node)

    @property
    def numbers(self) -> range:
        return range(1, self.nodes + 1)

    def node(self, node: int) -> str:
        return f"{self.name}-n{node}"

    @property
    def switch(self) -> str:
        """The network namespace with the bridges between the nodes."""
        return f"{self.name}-switch"

    @property
    def control_namespace(self) -> str:
        """The control plane shares the network of the first node, and has one of its own where there is no node."""
        return self.node(1) if self.nodes else f"{self.name}-n0"

    @property
    def api_ip(self) -> str:
        return self.node_ip(1 if self.nodes else 0)

    @property
    def api(self) -> str:
        return f"https://{self.api_ip}:6443"

    @property
    def host_ip(self) -> str:
        return f"{self.net}.0.1"

    def node_ip(self, node: int) -> str:
        return f"{self.net}.0.{10 + node}"

    def pod_net(self, node: int) -> str:
        return f"{self.net}.{128 + node}.0/24"

    @property
    def pod_cidr(self) -> str:
        return f"{self.net}.128.0/17"

    @property
    def fake_pod_cidr(self) -> str:
        """Pods of nodes that have no kubelet (KWOK): addresses that nothing answers."""
        return f"{self.net}.192.0/18"

    @property
    def service_cidr(self) -> str:
        return f"{self.net}.64.0/18"

    @property
    def kubernetes_ip(self) -> str:
        return f"{self.net}.64.1"

    @property
    def dns_ip(self) -> str:
        return f"{self.net}.64.10"

    @property
    def cgroup(self) -> str:
        return self.name

    @property
    def system_cgroup(self) -> str:
        """Of the control plane and the nodes' daemons."""
        return f"{self.name}/system"

    def node_cgroup(self, node: int) -> str:
        return f"{self.name}/{self.node(node)}"


def settings() -> Settings:
    """The lab that the environment names: LLM_RAY_LAB (directory), LAB_NAME, LAB_NET, LAB_NODES. Raises LabError."""
    home = os.environ.get("LLM_RAY_LAB")
    return Settings(
        home=Path(home).expanduser().resolve() if home else cache_dir() / "lab",
        name=_checked("LAB_NAME", "lab", rf"[a-z][a-z0-9]{{0,{LONGEST_NAME - 1}}}", f"1 to {LONGEST_NAME} of a-z, 0-9"),
        net=_checked("LAB_NET", "10.241", r"10\.(\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])", "10.0 to 10.255"),
        nodes=int(_checked("LAB_NODES", "2", rf"[0-{MOST_NODES}]", f"0 to {MOST_NODES}")),
    )


def _checked(key: str, default: str, pattern: str, limit: str) -> str:
    value = os.environ.get(key, default)
    if not re.fullmatch(pattern, value):
        raise LabError(f"{key} is {value!r}, and may be {limit}: set it to such a value, or leave it out for {default}")
    return value
