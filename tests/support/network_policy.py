"""Which connections NetworkPolicies let through, by the rules of networking.k8s.io/v1.

A connection needs the consent of both ends: of the policies that select the source for egress, and of those that select
the destination for ingress. A pod that no policy selects for a direction is open in it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.kuberay import matches

Policy = Mapping[str, Any]


@dataclass(frozen=True)
class Endpoint:
    """A pod, or with an empty namespace a host outside the cluster. `ports`: container ports by name."""

    ip: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    policies: tuple[Policy, ...]
    namespaces: Mapping[str, Mapping[str, str]]
    """Labels of the namespaces, by name."""

    def connects(self, source: Endpoint, target: Endpoint, port: int, protocol: str = "TCP") -> bool:
        way_out = self._allows("Egress", source, target, target, port, protocol)
        return way_out and self._allows("Ingress", target, source, target, port, protocol)

    def _allows(
        self, direction: str, own: Endpoint, other: Endpoint, target: Endpoint, port: int, protocol: str
    ) -> bool:
        policies = [policy for policy in self.policies if self._selects(policy, direction, own)]
        if not policies:
            return True
        rules = [rule for policy in policies for rule in policy["spec"].get(direction.lower()) or []]
        peers = "from" if direction == "Ingress" else "to"
        return any(
            self._has_peer(own.namespace, rule.get(peers), other)
            and _has_port(rule.get("ports"), target, port, protocol)
            for rule in rules
        )

    def _selects(self, policy: Policy, direction: str, pod: Endpoint) -> bool:
        spec = policy["spec"]
        default = ["Ingress", "Egress"] if "egress" in spec else ["Ingress"]
        return (
            bool(pod.namespace)
            and policy["metadata"]["namespace"] == pod.namespace
            and direction in spec.get("policyTypes", default)
            and matches(spec["podSelector"], pod.labels)
        )

    def _has_peer(self, namespace: str, peers: Iterable[Mapping[str, Any]] | None, other: Endpoint) -> bool:
        if not peers:  # left out or empty: everyone
            return True
        return any(self._is_peer(namespace, peer, other) for peer in peers)

    def _is_peer(self, namespace: str, peer: Mapping[str, Any], other: Endpoint) -> bool:
        if "ipBlock" in peer:
            address = ipaddress.ip_address(other.ip)
            excluded = peer["ipBlock"].get("except", [])
            inside = address in ipaddress.ip_network(peer["ipBlock"]["cidr"])
            return inside and not any(address in ipaddress.ip_network(block) for block in excluded)
        if not other.namespace:
            return False
        if "namespaceSelector" in peer:
            if not matches(peer["namespaceSelector"], self.namespaces[other.namespace]):
                return False
        elif other.namespace != namespace:
            return False
        return matches(peer.get("podSelector", {}), other.labels)


def _has_port(ports: Iterable[Mapping[str, Any]] | None, target: Endpoint, port: int, protocol: str) -> bool:
    if not ports:  # left out or empty: every port and protocol
        return True
    return any(_is_port(entry, target, port) for entry in ports if entry.get("protocol", "TCP") == protocol)


def _is_port(entry: Mapping[str, Any], target: Endpoint, port: int) -> bool:
    wanted = entry.get("port")
    if wanted is None:
        return True
    if isinstance(wanted, str):
        return target.ports.get(wanted) == port
    return int(wanted) <= port <= int(entry.get("endPort", wanted))
