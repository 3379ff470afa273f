"""Every value is documented, typed, used and exercised; unknown keys and wrong types are refused everywhere."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ci.chart import schema
from ci.chart.values import Value

from tests.support.chart import CHART, HELMS, HelmError, render
from tests.support.values import Data, ci_values, leaves, outcome, put, root, settings_of, without

OPEN = ("global", "specOverrides", "extraObjects")
"""Sections that take any key."""

CHANGES: dict[str, tuple[str, Any]] = {
    "autoscaling.allowReplicaReset": (
        "",
        {"kind": "RayCluster", "autoscaling": {"mode": "serve", "allowReplicaReset": True}},
    ),
    "autoscaling.hpa.metricName": ("hpa", "requests"),
    "autoscaling.hpa.metricType": ("hpa", "Value"),
    "engine.attentionBackend": ("", "torch_cpu"),
    "engine.numGpusPerRank": ("", 0.5),
    "engine.prefixCaching": ("", False),
    "engine.useLayerWalk": ("", False),
    "expose.httpRoute.path": ("everything", "/llm"),
    "expose.mesh.istio.mtls": ("istio", "PERMISSIVE"),
    "expose.service.grpcPort": ("", 9443),
    "fabric.controlInterface": ("tp16-two-nodes-sriov", "eth1"),
    "fabric.networkDefaults.mode": (
        "storage-network-macvlan",
        {"fabric": {"networks": {"storage": {"mode": "private"}}}},
    ),
    "gang.checkQueue": ("everything", False),
    "gang.scheduler": ("tp8-pp4-four-nodes-ib", "yunikorn"),
    "global.imageRegistry": ("", "registry.example.com"),
    "head.dnsPolicy": ("", "ClusterFirstWithHostNet"),
    "head.hostNetwork": ("", True),
    "head.numCpus": ("", 2),
    "head.service.type": ("", "NodePort"),
    "model.cache.existingClaim": ("", {"model": {"cache": {"type": "pvc", "existingClaim": "shared"}}}),
    "monitoring.dashboards.labels": ("everything", {"dashboards": "yes"}),
    "monitoring.logs.collector.image.digest": ("everything", f"sha256:{'0' * 64}"),
    "monitoring.logs.collector.image.repository": ("everything", "otel/other"),
    "monitoring.logs.collector.image.tag": ("everything", "0.1.0"),
    "monitoring.rules.disabled": ("everything", ["LlmRayLatencyHigh"]),
    "networkPolicy.dns.ports": ("", [5353]),
    "networkPolicy.enabled": ("", False),
    "networkPolicy.operatorLabels": ("", {"app": "operator"}),
    "security.containerSecurityContext": ("", {"runAsUser": 1234}),
    "serve.deployment.autoscalingPolicy": ("hpa", "requests"),
    "serve.deployment.maxReplicas": ("hpa", 4),
    "serve.deployment.minReplicas": ("", 0),
    "serve.excludeHead": ("", False),
    "serve.proxyLocation": ("", "HeadOnly"),
    "tests.enabled": ("", False),
    "workerDefaults.dnsPolicy": ("", "ClusterFirstWithHostNet"),
    "workerDefaults.gpuResourceName": ("tp8-one-node", "amd.com/gpu"),
    "workerDefaults.hostNetwork": ("", True),
    "workerDefaults.numOfHosts": ("", 2),
    "workerDefaults.pdb.enabled": ("rayservice-bluegreen", False),
    "workerDefaults.ranksPerNode": ("", 2),
}
"""Keys that the files in ci/ set to what they are anyway: another value, over the defaults ("") or one of the files."""


@pytest.mark.parametrize("value", leaves(), ids=lambda value: value.name)
def test_every_value_says_what_it_does(value: Value):
    assert schema.describe(value, schema.load_defs())


def test_every_section_of_the_file_says_what_it_is_for():
    assert not [
        section.name for section in root().children if not (section.intro or section.doc or not section.children)
    ]


def test_every_value_is_set_in_a_file_of_ci():
    assert [value.name for value in leaves() if not list(settings_of(value))] == []


def has_effect(value: Value) -> bool:
    """Whether rendering differs by CHANGES, or where the key is left out of its section, or else of a file in ci/."""
    if value.name in CHANGES:
        name, change = CHANGES[value.name]
        before = ci_values().get(name, {})
        return outcome(before) != outcome(changed(before, value, change))
    places = [(ci_values()[name], path) for name, path in settings_of(value)]
    for data, path in places:
        section = {path[0]: data[path[0]]}
        outcomes = {outcome(section), outcome(without(section, path))}
        if len(outcomes) == 2 and all(isinstance(rendered, bytes) for rendered in outcomes):
            return True
    return any(outcome(data) != outcome(without(data, path)) for data, path in places)


def changed(before: Data, value: Value, change: Any) -> Data:
    """The key set to `change`, or values laid over all where `change` begins at the top, as the key does."""
    if not (isinstance(change, dict) and value.path[0] in change):
        return put(before, value.path, change)
    after = copy.deepcopy(before)
    _lay_over(after, change)
    return after


@functools.cache
def effects() -> dict[str, bool]:
    with ThreadPoolExecutor(2) as pool:
        return dict(zip((v.name for v in leaves()), pool.map(has_effect, leaves()), strict=True))


@pytest.mark.parametrize("value", leaves(), ids=lambda value: value.name)
def test_every_value_changes_what_is_rendered(value: Value):
    assert effects()[value.name], "set it in a file of ci/ to something that its section does not have by default"


def test_the_changes_of_this_file_are_of_values_that_exist():
    assert CHANGES.keys() <= {value.name for value in leaves()}


def everything() -> Data:
    """The defaults with all of ci/ over them: every object that a user may write. It need not make sense."""
    defaults = json.loads(json.dumps(_defaults(root())))
    for data in ci_values().values():
        _lay_over(defaults, data)
    return defaults


def _defaults(value: Value) -> Any:
    if not value.children:
        return value.default
    return {child.path[-1]: _defaults(child) for child in value.children}


def _lay_over(below: Any, above: Any) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _lay_over(below[key], value)
        else:
            below[key] = copy.deepcopy(value)


def with_typos(data: Any, typos: list[str], place: str = "") -> Any:
    """Every map with a key that nobody knows."""
    if place.strip("/") in OPEN:
        return data
    if isinstance(data, list):
        return [with_typos(item, typos, f"{place}/{index}") for index, item in enumerate(data)]
    if not isinstance(data, dict):
        return data
    typos.append(f"typo{len(typos)}x")
    mine = typos[-1]
    return {**{key: with_typos(item, typos, f"{place}/{key}") for key, item in data.items()}, mine: 1}


@pytest.mark.parametrize("helm", HELMS)
def test_an_unknown_key_is_refused_at_every_level(helm: str):
    typos: list[str] = []
    with pytest.raises(HelmError) as refused:
        render(with_typos(everything(), typos), helm=helm)
    assert len(typos) > 200
    assert [typo for typo in typos if typo not in refused.value.message] == []


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize(
    ("values", "place", "right"),
    [
        ({"engine": {"tensorParalelSize": 2}}, "/engine/tensorParalelSize", "tensorParallelSize"),
        ({"workers": {"a": {"gpuPerNode": 2}}}, "/workers/a/gpuPerNode", "gpusPerNode"),
        ({"workers": {"a": {"tolerations": [{"kye": "x"}]}}}, "/workers/a/tolerations/0/kye", "key"),
        ({"enigne": {}}, "/enigne", "engine"),
    ],
)
def test_a_typo_is_told_where_it_is_and_which_keys_there_are(helm: str, values: Data, place: str, right: str):
    with pytest.raises(HelmError) as refused:
        render(values, helm=helm)
    [line] = [line for line in refused.value.message.splitlines() if f"at '{place}'" in line]
    assert re.search(rf"there is no such key here; correct it to one of .*\b{right}\b.*, or take it away", line)


@pytest.mark.parametrize("helm", HELMS)
def test_only_global_and_overrides_are_open(helm: str):
    given = {"global": {"other": {"chart": True}}, "specOverrides": {"headGroup": {"enableIngress": False}}}
    assert render(given, helm=helm)
    assert render({"enabled": True}, helm=helm), "an umbrella's condition"


def wrong(value: Value) -> Any:
    return "wrong" if isinstance(value.default, dict | list) or value.name == "workers" else {"wrong": []}


@pytest.mark.parametrize("helm", HELMS)
def test_a_wrong_type_is_refused_by_the_place_of_the_key(helm: str):
    data: Data = {}
    typed = [value for value in leaves() if value.path[0] not in OPEN]
    for value in typed:
        data = put(data, value.path, wrong(value))
    with pytest.raises(HelmError) as refused:
        render(data, helm=helm)
    places = ["/" + "/".join(value.path) for value in typed]
    assert [place for place in places if f"at '{place}'" not in refused.value.message] == []


WRONG = {
    "a number for a string": ("image.tag", 1.5),
    "a string for a number": ("engine.tensorParallelSize", "8"),
    "a fraction for a count": ("workerDefaults.gpusPerNode", 0.5),
    "a number below the limit": ("engine.maxNumSeqs", 0),
    "a word that is no option": ("autoscaling.mode", "auto"),
    "no quantity": ("model.cache.size", "20 GB"),
    "no resource": ("head.resources", {"limits": {"cpu": "1", "mem": "4Gi"}}),
    "no duration": ("monitoring.podMonitor.interval", "15"),
    "a toleration with a typo": ("workerDefaults.tolerations", [{"key": "gpu", "efect": "NoSchedule"}]),
    "an effect that there is not": ("head.tolerations", [{"key": "gpu", "effect": "NoShedule"}]),
    "a security context with a typo": ("security.podSecurityContext", {"runAsNonroot": True}),
    "a variable without a value": ("serve.env", {"A": {"value": "b"}}),
    "a value of a group": ("workers", {"gpu": {"gpuPerNode": 8}}),
    "a null where something must be": ("engine.dtype", None),
    "a section that is null": ("gang", None),
}


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_value_is_refused_by_name(case: str, helm: str):
    key, given = WRONG[case]
    with pytest.raises(HelmError) as refused:
        render(put({}, tuple(key.split(".")), given), helm=helm)
    assert key.split(".")[-1] in refused.value.message


def test_the_schema_is_small_enough_for_a_release():
    assert (CHART / "values.schema.json").stat().st_size < 250_000


def documents() -> Iterator[str]:
    yield (CHART / "README.md").read_text()
    yield (CHART.parents[1] / "docs" / "values.md").read_text()


@pytest.mark.parametrize("text", tuple(documents()), ids=["README", "docs"])
def test_the_documents_have_every_key(text: str):
    assert [value.name for value in leaves() if f"| `{value.name}` |" not in text] == []
