"""The lab's network: one namespace per node, a switch between them, and one link to this machine.

Addresses of nodes, pods and services answer from this machine by three kinds of routes; its packet filter and its
ip_forward stay as they are. Each node has a second link, fabric0, to a second switch, for pods with a second network,
and vf0, a link to it that a pod can take over as it would a virtual function.
"""

from __future__ import annotations

from ci.lab.processes import command
from ci.lab.settings import Settings

FABRIC = "fabric0"
FUNCTION = "vf0"
NODE_SYSCTLS = ("net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0")


def make(lab: Settings) -> None:
    """All namespaces, links and routes."""
    for line in [*_switch(lab), *(line for n in _members(lab) for line in _member(lab, n))]:
        command("ip", *line.split())
    for n in _members(lab):
        command("nsenter", f"--net=/run/netns/{lab.node(n)}", "sysctl", "-qw", *NODE_SYSCTLS)


def remove(lab: Settings) -> None:
    """Everything that make made, whatever is left of it."""
    command("ip", "link", "del", f"{lab.name}-host", check=False)
    for line in command("ip", "netns", "list").stdout.splitlines():
        name = line.split()[0]
        if name == lab.switch or name.startswith(f"{lab.name}-n"):
            command("ip", "netns", "del", name, check=False)


def left(lab: Settings) -> list[str]:
    """Names of the namespaces and links that are there."""
    names = [line.split()[0] for line in command("ip", "netns", "list").stdout.splitlines()]
    found = [name for name in names if name == lab.switch or name.startswith(f"{lab.name}-n")]
    link = f"{lab.name}-host"
    return found + ([link] if command("ip", "link", "show", link, check=False).returncode == 0 else [])


def _members(lab: Settings) -> list[int]:
    """The nodes; 0 stands for the control plane where there are none."""
    return list(lab.numbers) or [0]


def _switch(lab: Settings) -> list[str]:
    return [
        f"netns add {lab.switch}",
        f"-n {lab.switch} link add br0 type bridge",
        f"-n {lab.switch} link set br0 up",
        f"-n {lab.switch} link add br1 type bridge",
        f"-n {lab.switch} link set br1 up",
        f"link add {lab.name}-host type veth peer name host netns {lab.switch}",
        f"-n {lab.switch} link set host master br0 up",
        f"addr add {lab.host_ip}/24 dev {lab.name}-host",
        f"link set {lab.name}-host up",
    ]


def _member(lab: Settings, n: int) -> list[str]:
    here = lab.node(n)
    lines = [
        f"netns add {here}",
        f"-n {here} link set lo up",
        f"link add eth0 netns {here} type veth peer name n{n} netns {lab.switch}",
        f"-n {lab.switch} link set n{n} master br0 up",
        f"-n {here} addr add {lab.node_ip(n)}/24 dev eth0",
        f"-n {here} link set eth0 up",
        # the API server and the kubelet look for a default route; this machine is reached by it, too
        f"-n {here} route add default via {lab.host_ip}",
    ]
    if n <= 1:
        lines.append(f"route add {lab.service_cidr} via {lab.node_ip(n)}")
    if n:
        for link in (FABRIC, FUNCTION):
            lines += [
                f"link add {link} netns {here} type veth peer name {link}-n{n} netns {lab.switch}",
                f"-n {lab.switch} link set {link}-n{n} master br1 up",
                f"-n {here} link set {link} up",
            ]
        lines.append(f"route add {lab.pod_net(n)} via {lab.node_ip(n)}")
        others = [m for m in lab.numbers if m != n]
        lines += [f"-n {here} route add {lab.pod_net(m)} via {lab.node_ip(m)}" for m in others]
    return lines
