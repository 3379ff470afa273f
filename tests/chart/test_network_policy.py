"""The chart's network policies in a namespace that denies everything by default: what flows, and what does not."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import kuberay
from tests.support.chart import HELMS, Objects, render
from tests.support.network_policy import Endpoint, Network
from tests.support.validate import KUBERNETES, validate

NAMESPACE = "serving"


def policy(selector: dict[str, Any], *types: str, **rules: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": NAMESPACE}, "spec": {"podSelector": selector, "policyTypes": [*types]} | rules}


DENY_ALL = policy({}, "Ingress", "Egress")
OPEN_NEIGHBOUR = policy({"matchLabels": {"app": "neighbour"}}, "Egress", egress=[{}])
OTHERS = {
    "operator": Endpoint("10.0.9.1", "kuberay", {"app.kubernetes.io/component": "kuberay-operator"}),
    "prometheus": Endpoint("10.0.9.2", "monitoring", {"app.kubernetes.io/name": "prometheus"}),
    "gateway": Endpoint("10.0.9.3", "gateways", {"app": "envoy"}),
    "notebook": Endpoint("10.0.9.4", "data", {"app": "notebook"}),
    "dns": Endpoint("10.0.9.5", "kube-system", {"k8s-app": "kube-dns"}),
    "stranger": Endpoint("10.0.9.6", "other", {"app": "stranger"}),
    "neighbour": Endpoint("10.0.9.7", NAMESPACE, {"app": "neighbour"}),
    "mesh": Endpoint("10.0.9.8", "mesh-system", {"app": "control-plane"}),
    "api server": Endpoint("172.16.0.1"),
    "internet": Endpoint("93.184.216.34"),
}


def space(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


RESTRICTED: dict[str, Any] = {
    "networkPolicy": {
        "clients": [space("gateways")],
        "prometheus": [
            space("monitoring") | {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}}
        ],
        "dashboardClients": [space("data")],
        "dns": {"peers": [space("kube-system")]},
        "apiServer": {"peers": [{"ipBlock": {"cidr": "172.16.0.0/30"}}], "ports": [6443]},
        "egress": [],
    }
}


def ray_pods(objects: Objects, release: str) -> dict[str, Endpoint]:
    """The head and one worker of each group, by the labels that KubeRay gives them."""
    owner = next(o for o in objects if o["kind"] in ("RayCluster", "RayService"))
    made = {}
    for index, pod in enumerate(kuberay.pods(owner)):
        name = "head" if pod.group == "headgroup" else pod.group
        ports = {p["name"]: p["containerPort"] for c in kuberay.containers(pod.spec) for p in c.get("ports", [])}
        made[name] = Endpoint(f"10.0.{len(release)}.{index}", NAMESPACE, pod.labels, ports)
    return made


def make_network(values: dict[str, Any] | None = None) -> tuple[Network, dict[str, Endpoint]]:
    """Release `demo` in a namespace that denies by default, beside release `second`, and everyone else by name."""
    objects = render(values, namespace=NAMESPACE)
    second = render(values, release="second", namespace=NAMESPACE)
    policies = (DENY_ALL, OPEN_NEIGHBOUR, *objects.all("NetworkPolicy"), *second.all("NetworkPolicy"))
    endpoints = OTHERS | ray_pods(objects, "demo")
    endpoints |= {f"second {name}": pod for name, pod in ray_pods(second, "second").items()}
    [test] = objects.all("Pod")
    endpoints["test"] = Endpoint("10.0.9.9", NAMESPACE, test["metadata"]["labels"])
    spaces = {e.namespace: {"kubernetes.io/metadata.name": e.namespace} for e in endpoints.values()}
    return Network(policies, spaces), endpoints


Flow = tuple[str, str, int]
"""Source, target, port."""


def flows(*rows: str) -> list[Flow]:
    """`worker > head: 6379 8265` as one each."""
    made: list[Flow] = []
    for row in rows:
        ends, _, ports = row.partition(":")
        source, target = (end.strip() for end in ends.split(">"))
        made += [(source, target, int(port)) for port in ports.split()]
    return made


ALWAYS = flows(
    "worker > head: 6379 8265 10001 8080 52365 12345 40123",
    "head > worker: 52365 12345 30500 40500 8000",
    "worker > worker: 12345 30500 40500",
    "operator > head: 8265 52365 8000",
    "prometheus > head: 8080 44217 44227",
    "prometheus > worker: 8080",
    "gateway > worker: 8000 9000",
    "test > worker: 8000 9000",
    "head > api server: 6443",
    "head > dns: 53",
    "worker > dns: 53",
    "test > dns: 53",
)
NEVER = flows(
    "stranger > head: 6379 8265 10001 52365 8000 8099 12345",
    "stranger > worker: 6379 8265 10001 52365 12345 30500 40500",
    "neighbour > head: 6379 8265 10001 52365 12345",
    "neighbour > worker: 52365 30500 12345",
    "second worker > head: 6379 8265 10001 12345",
    "second head > worker: 12345 52365 30500",
    "head > second worker: 12345 30500",
    "gateway > head: 8000 9000 8265 10001",
    "gateway > worker: 52365 8265 30500 40500",
    "prometheus > head: 8265 6379 10001",
    "prometheus > worker: 44217 52365",
    "operator > worker: 8265 52365",
    "operator > head: 6379 10001",
    "test > head: 8265 6379 10001",
    "test > worker: 52365",
    "test > internet: 443 80",
    "test > api server: 6443",
    "worker > test: 80 8000",
    "stranger > test: 80",
    "worker > stranger: 80 8000",
    "worker > neighbour: 8000",
    "head > stranger: 80 8265",
    "worker > internet: 80 25",
    "worker > api server: 6443",
    "internet > head: 8265 6379 10001",
    "internet > worker: 52365 30500",
)
BY_DEFAULT = flows(
    "stranger > worker: 8000 9000 8080",
    "neighbour > worker: 8000 8080",
    "internet > worker: 8000 9000",
    "worker > internet: 443",
    "head > internet: 443",
    "head > api server: 443",
)
WHEN_RESTRICTED = flows("notebook > head: 8265 10001")
DENIED_WHEN_RESTRICTED = flows(
    "stranger > worker: 8000 9000 8080",
    "neighbour > worker: 8000 9000 8080",
    "second worker > worker: 8000 8080",
    "internet > worker: 8000 9000",
    "notebook > worker: 8000",
    "notebook > head: 6379 52365",
    "worker > internet: 443 53",
    "head > internet: 443 53 6443",
    "head > api server: 443",
    "stranger > head: 8080",
)


def flowing(values: dict[str, Any], rows: Iterable[Flow]) -> list[Flow]:
    network, at = make_network(values)
    return [(source, target, port) for source, target, port in rows if network.connects(at[source], at[target], port)]


@pytest.mark.parametrize(
    ("values", "more"), [({}, BY_DEFAULT), (RESTRICTED, WHEN_RESTRICTED)], ids=["default", "named"]
)
def test_what_the_release_needs_flows(values, more):
    assert flowing(values, ALWAYS + more) == ALWAYS + more


@pytest.mark.parametrize(
    ("values", "more"), [({}, WHEN_RESTRICTED), (RESTRICTED, DENIED_WHEN_RESTRICTED)], ids=["default", "named"]
)
def test_nothing_else_flows(values, more):
    assert flowing(values, NEVER + more) == []


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 65535), st.sampled_from(["TCP", "UDP", "SCTP"]))
def test_the_cluster_s_own_pods_reach_each_other_on_every_port(port, protocol):
    groups = {"workers": {"a": {}, "b": {}}}
    network, at = make_network(RESTRICTED | groups)
    for source, target in itertools.permutations(["head", "a", "b"], 2):
        assert network.connects(at[source], at[target], port, protocol), f"{source} > {target}"


@pytest.mark.parametrize("source", ["head", "worker", "test"])
def test_dns_goes_by_udp_and_by_the_port_that_openshift_has(source):
    network, at = make_network()
    assert network.connects(at[source], at["dns"], 53, "UDP")
    assert not network.connects(at[source], at["dns"], 5353, "UDP")
    network, at = make_network({"networkPolicy": {"dns": {"ports": [53, 5353]}}})
    assert all(network.connects(at[source], at["dns"], port, "UDP") for port in (53, 5353))


def test_a_head_that_serves_is_reached_by_clients():
    network, at = make_network({"serve": {"excludeHead": False, "httpPort": 8123, "grpcPort": 9123}})
    assert all(network.connects(at[s], at["head"], port) for s in ("gateway", "test") for port in (8123, 9123))
    assert not network.connects(at["gateway"], at["head"], 8000)


def test_no_operator_labels_let_no_operator_in():
    network, at = make_network({"networkPolicy": {"operatorLabels": {"app.kubernetes.io/component": None}}})
    assert not network.connects(at["operator"], at["head"], 8265)
    assert not network.connects(at["stranger"], at["head"], 8265)


REDIS: dict[str, Any] = {"faultTolerance": {"gcs": {"type": "redis", "redis": {"address": "redis.data.svc:6380"}}}}
S3 = {"versionId": "1", "sha256": "0" * 64, "endpoint": "http://minio.data.svc:9001"}
TRACES = {"monitoring": {"tracing": {"enabled": True, "endpoint": "http://otel.o11y.svc:4318/v1"}}}


def logs(**endpoints: str) -> dict[str, Any]:
    return {"monitoring": {"logs": {"collector": {"enabled": True} | endpoints}}}


@pytest.mark.parametrize(
    ("values", "source", "port"),
    [
        (REDIS, "head", 6380),
        ({"model": {"source": "s3://bucket/manifest.json", "s3": S3}}, "worker", 9001),
        ({"model": {"source": "s3://bucket/manifest.json", "s3": S3}, "head": {"numCpus": 2}}, "head", 9001),
        (TRACES, "head", 4318),
        (TRACES, "worker", 4318),
        (logs(lokiEndpoint="http://loki.svc:3100/otlp"), "worker", 3100),
        (logs(elasticsearchEndpoint="https://e.svc:9200"), "head", 9200),
    ],
)
def test_ports_that_other_values_name_are_open_outwards(values, source, port):
    network, at = make_network(values)
    assert not network.connects(at["worker"], at["internet"], 6380), "Redis is for the head alone"
    assert network.connects(at[source], at["internet"], port)
    assert network.connects(at[source], at["internet"], 443)
    network, at = make_network()
    assert not network.connects(at[source], at["internet"], port)
    network, at = make_network(values | {"networkPolicy": {"egress": []}})
    assert not network.connects(at[source], at["internet"], port)


@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("redis.data.svc:6380", 6380),
        ("redis.data.svc", 6379),
        ("redis://redis.data.svc", 6379),
        ("rediss://user:p@ss:word@redis.data.svc:6390/0", 6390),
        ("[2001:db8::1]:6391", 6391),
        ("[2001:db8::1]", 6379),
        ("https://redis.example.com", 443),
        ("http://redis.example.com/a:99", 80),
    ],
)
def test_the_port_is_found_in_an_address(address, port):
    objects = render({"faultTolerance": {"gcs": {"type": "redis", "redis": {"address": address}}}})
    rules = objects.find("NetworkPolicy", "demo-llm-ray-head")["spec"]["egress"]
    assert [entry["port"] for entry in rules[-1]["ports"]] == sorted({443, port})


def test_an_egress_rule_of_the_user_replaces_the_open_ports():
    rule = {"to": [{"ipBlock": {"cidr": "93.184.216.0/24"}}], "ports": [{"protocol": "TCP", "port": 8443}]}
    network, at = make_network({"networkPolicy": {"egress": [rule]}})
    assert network.connects(at["worker"], at["internet"], 8443)
    assert not network.connects(at["worker"], at["internet"], 443)
    assert not network.connects(at["worker"], at["stranger"], 8443)


@pytest.mark.parametrize(("mesh", "port", "telemetry"), [("istio", 15012, 15090), ("linkerd", 8086, 4191)])
def test_a_mesh_s_proxies_reach_their_control_plane_and_are_scraped(mesh, port, telemetry):
    network, at = make_network(RESTRICTED | {"expose": {"mesh": {"type": mesh}}})
    assert all(network.connects(at[source], at["mesh"], port) for source in ("head", "worker", "test"))
    assert network.connects(at["prometheus"], at["worker"], telemetry)
    assert network.connects(at["gateway"], at["worker"], 4143) == (mesh == "linkerd")


def test_every_port_that_a_monitor_scrapes_is_open_to_prometheus():
    values = RESTRICTED | {"monitoring": {"podMonitor": {"enabled": True}}}
    network, at = make_network(values)
    monitors = render(values, namespace=NAMESPACE).all("PodMonitor")
    assert monitors
    for monitor, name in itertools.product(monitors, ["head", "worker"]):
        if kuberay.matches(monitor["spec"]["selector"], at[name].labels):
            names = [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]]
            assert names
            assert all(network.connects(at["prometheus"], at[name], at[name].ports[n]) for n in names)


def test_switched_off_there_is_no_policy():
    assert not render({"networkPolicy": {"enabled": False}}).all("NetworkPolicy")
    assert len(render({"tests": {"enabled": False}}).all("NetworkPolicy")) == 2


@pytest.mark.parametrize("values", [{}, RESTRICTED, REDIS, {"expose": {"mesh": {"type": "linkerd"}}}])
def test_policies_are_valid_and_the_same_from_both_helms(values):
    made = [render(values, helm=helm).all("NetworkPolicy") for helm in HELMS]
    assert made[0] == made[1]
    assert len(made[0]) == 3
    assert not [finding for policy in made[0] for minor in KUBERNETES for finding in validate(policy, kubernetes=minor)]
