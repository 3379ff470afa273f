"""How clients reach the app: Service, Ingress, routes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import kuberay
from tests.support.chart import HELMS, Objects, render
from tests.support.validate import KUBERNETES, validate

GATEWAY = [{"name": "public", "namespace": "gateways", "sectionName": "https"}]
EVERYTHING: dict[str, Any] = {
    "expose": {
        "service": {
            "type": "LoadBalancer",
            "httpPort": 80,
            "grpcPort": 90,
            "loadBalancerClass": "example.com/nlb",
            "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "externalTrafficPolicy": "Local",
            "annotations": {"example.com/idle-timeout": "3600"},
        },
        "ingress": {
            "enabled": True,
            "className": "traefik",
            "hosts": ["a.example.com", "*.b.example.com"],
            "path": "/llm",
            "tlsSecret": "cert",
            "annotations": {"example.com/read-timeout": "600"},
        },
        "httpRoute": {"enabled": True, "parentRefs": GATEWAY, "hostnames": ["a.example.com"]},
        "grpcRoute": {"enabled": True, "parentRefs": GATEWAY, "hostnames": ["grpc.example.com"]},
        "mesh": {"type": "istio"},
    }
}
KINDS = ("Service", "Ingress", "HTTPRoute", "GRPCRoute", "PeerAuthentication", "DestinationRule", "AuthorizationPolicy")


def made(values: dict[str, Any] | None = None, **options: Any) -> Objects:
    objects = render(values, **options)
    return Objects([o for o in objects if o["metadata"]["labels"].get("app.kubernetes.io/component") == "serve"])


def ray_labels(objects: Objects, serving: bool) -> list[dict[str, str]]:
    owner = next(o for o in objects if o["kind"] in ("RayCluster", "RayService"))
    label = {"llm-ray.io/serving": "true"} if serving else {}
    return [pod.labels | label for pod in kuberay.pods(owner)]


def test_the_service_selects_exactly_the_release_s_pods_that_serve():
    for kind in ("RayCluster", "RayService"):
        objects = render({"kind": kind, "workers": {"a": {}, "b": {"replicas": 2}}})
        selector = {"matchLabels": objects.find("Service")["spec"]["selector"]}
        serving = ray_labels(objects, serving=True)
        assert len(serving) == 4
        assert all(kuberay.matches(selector, labels) for labels in serving)
        assert not any(kuberay.matches(selector, labels) for labels in ray_labels(objects, serving=False))
        assert not kuberay.matches(selector, objects.find("Pod")["metadata"]["labels"])
        other = render({"kind": kind}, release="second")
        assert not any(kuberay.matches(selector, labels) for labels in ray_labels(other, serving=True))


def test_the_service_leads_to_the_ports_that_serve_has():
    values = {"serve": {"httpPort": 8123, "grpcPort": 9123}, "expose": {"service": {"httpPort": 80, "grpcPort": 90}}}
    ports = {port["name"]: port for port in render(values).find("Service")["spec"]["ports"]}
    assert {name: (port["port"], port["targetPort"]) for name, port in ports.items()} == {
        "http": (80, 8123),
        "grpc": (90, 9123),
    }
    assert ports["grpc"]["appProtocol"] == "kubernetes.io/h2c"
    assert ports["http"]["appProtocol"] == "http"


def test_a_stream_is_not_tied_to_a_client_s_address():
    assert render().find("Service")["spec"]["sessionAffinity"] == "None"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("ClusterIP", set()),
        ("NodePort", {"externalTrafficPolicy"}),
        ("LoadBalancer", {"externalTrafficPolicy", "loadBalancerClass", "loadBalancerSourceRanges"}),
    ],
)
def test_only_a_load_balancer_has_its_fields(kind, fields):
    service = {"type": kind}
    if kind == "LoadBalancer":
        service = EVERYTHING["expose"]["service"]
    spec = render({"expose": {"service": service}}).find("Service")["spec"]
    assert set(spec) == {"type", "sessionAffinity", "selector", "ports"} | fields


def test_nothing_but_the_service_is_rendered_by_default():
    assert {kind for kind, _ in made().inventory() if kind in KINDS} == {"Service"}


def test_the_ingress_has_a_rule_and_a_certificate_for_each_host():
    spec = render(EVERYTHING).find("Ingress")["spec"]
    assert spec["ingressClassName"] == "traefik"
    assert spec["tls"] == [{"secretName": "cert", "hosts": ["a.example.com", "*.b.example.com"]}]
    assert [rule["host"] for rule in spec["rules"]] == ["a.example.com", "*.b.example.com"]
    for rule in spec["rules"]:
        [path] = rule["http"]["paths"]
        assert (path["path"], path["pathType"]) == ("/llm", "Prefix")
        assert path["backend"]["service"] == {"name": "demo-llm-ray-serve", "port": {"name": "http"}}


def test_routes_write_out_what_the_api_would_add():
    """Argo CD compares lists of custom resources as they are: a default in the live object alone is a difference."""
    for kind, port in (("HTTPRoute", 80), ("GRPCRoute", 90)):
        spec = render(EVERYTHING).find(kind)["spec"]
        assert spec["parentRefs"] == [{"group": "gateway.networking.k8s.io", "kind": "Gateway"} | GATEWAY[0]]
        [rule] = spec["rules"]
        assert rule["backendRefs"] == [
            {"group": "", "kind": "Service", "name": "demo-llm-ray-serve", "port": port, "weight": 1}
        ]


def test_a_parent_s_own_kind_wins_over_the_default():
    values = {"expose": {"httpRoute": {"enabled": True, "parentRefs": [{"group": "", "kind": "Service", "name": "x"}]}}}
    [parent] = render(values).find("HTTPRoute")["spec"]["parentRefs"]
    assert parent == {"group": "", "kind": "Service", "name": "x"}


@pytest.mark.parametrize(("timeout", "rendered"), [("0s", "0s"), ("1h30m", "1h30m"), ("", None)])
def test_a_route_s_deadline_covers_the_whole_stream(timeout, rendered):
    values = {"expose": {"httpRoute": {"enabled": True, "parentRefs": GATEWAY, "requestTimeout": timeout}}}
    [rule] = render(values).find("HTTPRoute")["spec"]["rules"]
    assert rule.get("timeouts") == (rendered and {"request": rendered, "backendRequest": rendered})


def test_a_route_takes_away_the_headers_that_overrule_serve():
    [rule] = render(EVERYTHING).find("HTTPRoute")["spec"]["rules"]
    [filter_] = rule["filters"]
    assert filter_["requestHeaderModifier"]["remove"] == ["x-request-timeout-seconds", "x-request-disconnect-disabled"]


@pytest.mark.parametrize("release", ["demo", "r" * 53])
def test_objects_are_valid_named_in_bounds_and_the_same_from_both_helms(release):
    first, second = (made(EVERYTHING, release=release, helm=helm) for helm in HELMS)
    assert first == second
    assert {kind for kind, _ in first.inventory()} >= set(KINDS)
    for obj in first:
        assert len(obj["metadata"]["name"]) <= 63
        assert [validate(obj, kubernetes=minor) for minor in KUBERNETES] == [[]] * len(KUBERNETES), obj["kind"]


def test_a_release_name_that_reads_as_a_number_stays_text():
    objects = render({"fullnameOverride": "llm"}, release="12e4", namespace="0x10")
    assert objects.find("Service")["spec"]["selector"]["app.kubernetes.io/instance"] == "12e4"
    policies = [o for o in objects if o["kind"] in ("NetworkPolicy", "Service", "PodDisruptionBudget")]
    assert [validate(policy) for policy in policies] == [[]] * len(policies)


def test_an_annotation_that_is_null_is_left_out():
    values = {"expose": {"service": {"annotations": {"a": None, "b": "1"}}}}
    for helm in HELMS:
        assert render(values, helm=helm).find("Service")["metadata"]["annotations"] == {"b": "1"}
