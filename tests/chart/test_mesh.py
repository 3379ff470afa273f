"""Service meshes: clients' traffic passes the proxy, and nothing else does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import kuberay
from tests.support.chart import HELMS, render

MARKS = ("istio.io", "linkerd.io")


def mesh(kind: str, **more: Any) -> dict[str, Any]:
    return {"expose": {"mesh": {"type": kind} | more}}


def ray_metadata(values: dict[str, Any]) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Labels and annotations of the head and of each group, as far as a mesh reads them."""
    objects = render(values)
    owner = next(o for o in objects if o["kind"] in ("RayCluster", "RayService"))
    return [(only_mesh(pod.labels), only_mesh(pod.annotations)) for pod in kuberay.pods(owner)]


def only_mesh(mapping: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in mapping.items() if any(mark in key for mark in MARKS)}


def test_without_a_mesh_no_object_mentions_one():
    for helm in HELMS:
        assert not any(mark in render(helm=helm).text.decode() for mark in MARKS)


def test_istio_redirects_the_serving_ports_inwards_and_nothing_outwards():
    values = mesh("istio") | {"serve": {"httpPort": 8123, "grpcPort": 9123}, "workers": {"a": {}, "b": {}}}
    found = ray_metadata(values)
    assert len(found) == 3
    for labels, notes in found:
        assert labels == {"sidecar.istio.io/inject": "true"}
        assert notes["traffic.sidecar.istio.io/includeInboundPorts"] == "8123,9123"
        assert notes["traffic.sidecar.istio.io/includeOutboundIPRanges"] == ""
        proxy = json.loads(notes["proxy.istio.io/config"])
        assert proxy["proxyMetadata"] == {"ISTIO_META_DNS_CAPTURE": "false"}


def test_the_ray_container_stays_first_in_the_live_pod():
    """KubeRay looks at the first container; a native sidecar is an init container, and so not in the list."""
    for _, notes in ray_metadata(mesh("istio")):
        assert notes["sidecar.istio.io/nativeSidecar"] == "true"
        assert json.loads(notes["proxy.istio.io/config"])["holdApplicationUntilProxyStarts"] is False
    for _, notes in ray_metadata(mesh("linkerd")):
        assert notes["config.linkerd.io/proxy-enable-native-sidecar"] == "true"
        assert notes["config.linkerd.io/proxy-await"] == "disabled"


@settings(deadline=None, max_examples=25)
@given(st.sets(st.integers(20000, 22999), min_size=2, max_size=2))
def test_linkerd_skips_every_port_but_those_of_clients_and_its_own(serving):
    http, grpc = serving
    values = mesh("linkerd") | {"serve": {"httpPort": http, "grpcPort": grpc}}
    for _, notes in ray_metadata(values):
        assert ports(notes["config.linkerd.io/skip-inbound-ports"]) == set(range(1, 65536)) - {http, grpc, 4143}
        assert ports(notes["config.linkerd.io/skip-outbound-ports"]) == set(range(1, 65536))


def ports(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_ports_side_by_side_leave_no_empty_range():
    values = mesh("linkerd") | {"serve": {"httpPort": 4142, "grpcPort": 4144}}
    [(_, notes), *_] = ray_metadata(values)
    assert notes["config.linkerd.io/skip-inbound-ports"] == "1-4141,4145-65535"
    values["serve"] = {"httpPort": 4145, "grpcPort": 9000}
    [(_, notes), *_] = ray_metadata(values)
    assert notes["config.linkerd.io/skip-inbound-ports"] == "1-4142,4144,4146-8999,9001-65535"


def test_an_annotation_of_the_user_wins():
    values = mesh("istio") | {"head": {"podAnnotations": {"sidecar.istio.io/nativeSidecar": "false"}}}
    [(_, head), (_, worker)] = ray_metadata(values)
    assert head["sidecar.istio.io/nativeSidecar"] == "false"
    assert worker["sidecar.istio.io/nativeSidecar"] == "true"


@pytest.mark.parametrize("mode", ["STRICT", "PERMISSIVE"])
def test_istio_expects_mtls_on_the_serving_ports_alone(mode):
    """A client with a proxy would else speak mTLS to the dashboard, which no sidecar decrypts."""
    values = mesh("istio", istio={"mtls": mode}) | {"serve": {"httpPort": 8123, "grpcPort": 9123}}
    objects = render(values)
    spec = objects.find("PeerAuthentication")["spec"]
    assert spec["mtls"] == {"mode": "DISABLE"}
    assert spec["portLevelMtls"] == {"8123": {"mode": mode}, "9123": {"mode": mode}}
    owner = objects.find("RayCluster")
    assert all(kuberay.matches(spec["selector"], pod.labels) for pod in kuberay.pods(owner))


SELF = {"source": {"principals": ["*/ns/serving/sa/demo-llm-ray-worker"]}}


@pytest.mark.parametrize(
    ("istio", "sources"),
    [
        ({}, [{"source": {"principals": ["*"]}}]),
        ({"mtls": "PERMISSIVE"}, None),
        ({"allowedNamespaces": ["chat"]}, [{"source": {"namespaces": ["chat"]}}, SELF]),
        ({"mtls": "PERMISSIVE", "allowedNamespaces": ["chat"]}, [{"source": {"namespaces": ["chat"]}}, SELF]),
        (
            {"allowedPrincipals": ["c/ns/x/sa/y"]},
            [{"source": {"principals": ["c/ns/x/sa/y", SELF["source"]["principals"][0]]}}],
        ),
    ],
)
def test_istio_lets_in_whom_the_values_name_and_the_test_pod(istio, sources):
    objects = render(mesh("istio", istio=istio))
    assert objects.find("Pod")["spec"]["serviceAccountName"] == "demo-llm-ray-worker"
    if sources is None:
        assert not objects.all("AuthorizationPolicy")
        return
    spec = objects.find("AuthorizationPolicy")["spec"]
    assert spec["action"] == "ALLOW"
    assert spec["rules"] == [{"from": sources, "to": [{"operation": {"ports": ["8000", "9000"]}}]}]


@pytest.mark.parametrize(
    "values", [{"tests": {"enabled": False}}, {"security": {"serviceAccount": {"create": False, "name": "default"}}}]
)
def test_without_an_account_of_its_own_the_test_pod_is_not_let_in(values):
    [rule] = render(mesh("istio", istio={"allowedNamespaces": ["chat"]}) | values).find("AuthorizationPolicy")["spec"][
        "rules"
    ]
    assert rule["from"] == [{"source": {"namespaces": ["chat"]}}]


@pytest.mark.parametrize(("keep_alive", "idle"), [(90, "85s"), (600, "595s"), (3, "1s")])
def test_proxies_give_idle_connections_up_before_serve_does(keep_alive, idle):
    values = mesh("istio") | {"serve": {"keepAliveTimeoutSeconds": keep_alive}}
    spec = render(values).find("DestinationRule")["spec"]
    assert spec["host"] == "demo-llm-ray-serve"
    assert spec["trafficPolicy"]["connectionPool"]["http"]["idleTimeout"] == idle
    assert "tls" not in spec["trafficPolicy"], "it would switch automatic mTLS off"


@pytest.mark.parametrize("kind", ["istio", "linkerd"])
def test_the_test_pod_joins_the_mesh_and_ends(kind):
    metadata = render(mesh(kind)).find("Pod")["metadata"]
    found = only_mesh(metadata["labels"]) | only_mesh(metadata["annotations"])
    native = {"istio": "sidecar.istio.io/nativeSidecar", "linkerd": "config.linkerd.io/proxy-enable-native-sidecar"}
    assert found[native[kind]] == "true"
    assert {"sidecar.istio.io/inject": "true", "linkerd.io/inject": "enabled"}.items() & found.items()
    assert metadata["annotations"]["helm.sh/hook"] == "test"
