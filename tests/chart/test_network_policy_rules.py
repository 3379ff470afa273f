"""The evaluator of network policies itself, by the cases that the Kubernetes documentation settles."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.network_policy import Endpoint, Network

SPACES = {"a": {"team": "red"}, "b": {"team": "blue"}}
WEB = Endpoint("10.0.0.1", "a", {"app": "web"}, {"http": 8080})
DB = Endpoint("10.0.0.2", "a", {"app": "db"})
FAR_DB = Endpoint("10.0.0.3", "b", {"app": "db"})
HOST = Endpoint("192.0.2.7")


def network(*specs: dict[str, Any]) -> Network:
    return Network(tuple({"metadata": {"namespace": "a"}, "spec": spec} for spec in specs), SPACES)


def ingress(*rules: dict[str, Any]) -> Network:
    return network({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], "ingress": list(rules)})


def test_a_pod_that_no_policy_selects_is_open():
    assert ingress().connects(WEB, DB, 5432)
    assert not ingress().connects(DB, WEB, 8080)


def test_both_ends_must_agree():
    closed = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    into = {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], "ingress": [{}]}
    out = {"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Egress"], "egress": [{}]}
    assert not network(closed, into).connects(DB, WEB, 8080)
    assert not network(closed, out).connects(DB, WEB, 8080)
    assert network(closed, into, out).connects(DB, WEB, 8080)
    assert network(closed, into).connects(FAR_DB, WEB, 8080), "another namespace has no policy for the way out"


@pytest.mark.parametrize(
    ("peer", "near", "far", "host"),
    [
        ({"podSelector": {}}, True, False, False),
        ({"namespaceSelector": {}}, True, True, False),
        ({"namespaceSelector": {"matchLabels": {"team": "blue"}}}, False, True, False),
        ({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "cache"}}}, False, False, False),
        ({"ipBlock": {"cidr": "192.0.2.0/24"}}, False, False, True),
        ({"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.7/32"]}}, False, False, False),
    ],
)
def test_a_peer_is_who_it_says(peer, near, far, host):
    allowed = ingress({"from": [peer]})
    assert [allowed.connects(source, WEB, 8080) for source in (DB, FAR_DB, HOST)] == [near, far, host]


@pytest.mark.parametrize(
    ("entry", "port", "protocol", "flows"),
    [
        ({"port": 8080}, 8080, "TCP", True),
        ({"port": 8080}, 8080, "UDP", False),
        ({"port": 8080}, 8081, "TCP", False),
        ({"port": 8080, "endPort": 8090}, 8090, "TCP", True),
        ({"port": 8080, "endPort": 8090}, 8091, "TCP", False),
        ({"port": "http"}, 8080, "TCP", True),
        ({"port": "grpc"}, 8080, "TCP", False),
        ({"protocol": "UDP"}, 1, "UDP", True),
    ],
)
def test_a_port_is_what_it_says(entry, port, protocol, flows):
    assert ingress({"ports": [entry]}).connects(DB, WEB, port, protocol) is flows
