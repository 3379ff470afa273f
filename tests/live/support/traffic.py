"""What a pod's interfaces carry: byte counters, addresses, and which address each TCP connection uses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.live.support.cluster import Cluster

READ = r"""
import fcntl, json, os, socket, struct
SIOCGIFADDR = 0x8915
def own(name):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            return socket.inet_ntoa(fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()))[20:24])
        except OSError:
            return ""  # it has none
def address(word):
    host, port = word.split(":")
    return socket.inet_ntoa(struct.pack("<I", int(host[-8:], 16))), int(port, 16)  # of IPv4, mapped into IPv6 as well
counted = {}
for name in os.listdir("/sys/class/net"):
    path = f"/sys/class/net/{name}/statistics"
    counted[name] = sum(int(open(f"{path}/{way}_bytes").read()) for way in ("rx", "tx"))
connections = []
for table in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{table}").read().splitlines()[1:]:
        words = line.split()
        if words[3] == "01":
            connections.append([*address(words[1]), *address(words[2])])
addresses = {name: own(name) for name in counted}
print(json.dumps({"bytes": counted, "addresses": addresses, "connections": connections}))
"""


@dataclass(frozen=True)
class Traffic:
    """bytes (received and sent) and addresses: by interface. connections: (own address, own port, peer's, its port)."""

    bytes: dict[str, int]
    addresses: dict[str, str]
    connections: list[tuple[str, int, str, int]]

    def addresses_towards(self, peer: str) -> set[str]:
        """Own addresses of the connections with an address."""
        return {own for own, _, other, _ in self.connections if other == peer}


def traffic(cluster: Cluster, pod: dict[str, Any], container: str = "ray-worker") -> Traffic:
    meta = pod["metadata"]
    ran = cluster.exec(meta["namespace"], meta["name"], ["python", "-c", READ], container)
    assert ran.status == 0, ran.stderr
    told = json.loads(ran.stdout)
    return Traffic(told["bytes"], told["addresses"], [tuple(one) for one in told["connections"]])


def networks(pod: dict[str, Any]) -> dict[str, list[str]]:
    """Addresses by interface, as Multus has written them on the pod."""
    told = json.loads(pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"])
    return {one["interface"]: one.get("ips", []) for one in told}
