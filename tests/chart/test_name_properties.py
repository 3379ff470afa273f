"""Random release, override and group names: refused by name, or no object's name and no label is over its limit."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import kuberay
from tests.support.random_values import ray_owner, rendered, steady

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ALPHANUMERIC = LETTERS + "0123456789"


@st.composite
def release_names(draw: st.DrawFn) -> str:
    """What Helm takes: 1 to 53 characters, dots included."""
    length = draw(st.sampled_from([1, 2, 10, 30, 38, 39, 40, 46, 47, 48, 52, 53]))
    middle = draw(st.text(ALPHANUMERIC + "-.", min_size=max(0, length - 2), max_size=max(0, length - 2)))
    name = draw(st.sampled_from(ALPHANUMERIC)) + middle + (draw(st.sampled_from(ALPHANUMERIC)) if length > 1 else "")
    return re.sub(r"[-.]{2,}", lambda run: "x" * len(run[0]), name)


FULLNAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?", fullmatch=True)


@st.composite
def group_names(draw: st.DrawFn) -> str:
    return draw(st.sampled_from(LETTERS)) + draw(
        st.text(ALPHANUMERIC, max_size=draw(st.sampled_from([0, 5, 20, 40, 60])))
    )


def everything_on() -> dict[str, Any]:
    """Every kind that the chart can put beside a RayCluster, so that all names are seen."""
    return {
        "gang": {"provider": "podgroup"},
        "model": {"cache": {"type": "pvc"}},
        "expose": {
            "ingress": {"enabled": True, "hosts": ["llm.example.com"]},
            "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["a.example.com"]},
            "grpcRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["b.example.com"]},
            "mesh": {"type": "istio"},
        },
        "monitoring": {
            part: {"enabled": True} for part in ("podMonitor", "serviceMonitor", "rules", "dashboards")
        } | {"logs": {"collector": {"enabled": True, "lokiEndpoint": "http://loki.logging.svc/otlp"}}},
        "head": {"pdb": {"enabled": True}},
    }  # fmt: skip


def test_no_name_is_over_its_limit():
    seen: Counter[str] = Counter()

    @settings(steady, max_examples=80)
    @given(
        release_names(),
        st.one_of(st.just(""), FULLNAMES),
        st.lists(group_names(), max_size=2, unique=True),
        st.booleans(),
    )
    def fit(release: str, fullname: str, group_names: list[str], service: bool) -> None:
        values = everything_on() | {"fullnameOverride": fullname, "workers": {n: {"replicas": 2} for n in group_names}}
        values |= {"kind": "RayService", "rollout": {"strategy": "none"}} if service else {}
        objects = rendered(values, seen, release=release)
        for obj in objects or []:
            check_name(obj)
        for pod in kuberay.pods(ray_owner(objects)) if objects else []:
            check_labels(pod.labels)

    fit()
    assert seen["rendered"] >= 35, seen


LIMITS = {"RayService": 47, "RayCluster": 53}
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
LABEL_KEY = re.compile(r"([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def check_name(obj: dict[str, Any]) -> None:
    name, kind = obj["metadata"]["name"], obj["kind"]
    assert len(name) <= LIMITS.get(kind, 63), f"{kind}/{name}: {len(name)} characters"
    shape = DNS_1035 if kind in ("RayCluster", "RayService", "Service") else DNS_1123
    assert shape.fullmatch(name), f"{kind}/{name}"
    check_labels(obj["metadata"]["labels"])


def check_labels(labels: dict[str, str]) -> None:
    for key, value in labels.items():
        assert len(value) <= 63, f"label {key}: {value}"
        assert LABEL_VALUE.fullmatch(value), f"label {key}: {value}"
        assert LABEL_KEY.fullmatch(key), f"label {key}"
