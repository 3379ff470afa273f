"""Values that are right but unusual: words that YAML takes for something else, empty classes, odd resource names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chart import HELMS, HelmError, Objects, render
from tests.support.operator import judge
from tests.support.validate import validate

WORDS = ("true", "null", "yes", "e1")
NUMBERS = ("123", "1e3", "0x1")
EVERYTHING_NAMED = {
    "kind": "RayService",
    "monitoring": {
        "serviceMonitor": {"enabled": True},
        "podMonitor": {"enabled": True},
        "logs": {"collector": {"enabled": True, "lokiEndpoint": "http://loki/otlp"}},
    },
    "expose": {"mesh": {"type": "istio"}},
}


def faults(objects: Objects) -> list[str]:
    return [fault for obj in objects for fault in validate(obj)]


def start_command(objects: Objects) -> str:
    [verdict] = judge([objects.find("RayCluster")])
    assert not verdict.error
    return str(verdict.pods[1]["spec"]["containers"][0]["args"])


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("word", WORDS)
def test_a_base_name_may_be_a_word_of_yaml(word: str, helm: str):
    assert faults(render({**EVERYTHING_NAMED, "fullnameOverride": word}, helm=helm)) == []


@pytest.mark.parametrize("word", [*WORDS, *NUMBERS])
def test_a_chart_name_may_be_a_word_or_a_number_of_yaml(word: str):
    objects = render({"nameOverride": word})
    assert faults(objects) == []
    assert {obj["metadata"]["labels"]["app.kubernetes.io/name"] for obj in objects} == {word}


@pytest.mark.parametrize("word", [*WORDS, *NUMBERS])
def test_names_of_other_objects_may_be_words_or_numbers_of_yaml(word: str):
    ingress = {"enabled": True, "hosts": ["llm.example.com"], "className": word, "tlsSecret": word, "path": "/v1: x"}
    service = {"type": "LoadBalancer", "loadBalancerClass": word}
    account = {"create": False, "name": word}
    objects = render({"expose": {"ingress": ingress, "service": service}, "security": {"serviceAccount": account}})
    assert faults(objects) == []
    spec = objects.find("Ingress")["spec"]
    assert (spec["ingressClassName"], spec["tls"][0]["secretName"]) == (word, word)
    assert spec["rules"][0]["http"]["paths"][0]["path"] == "/v1: x"
    assert objects.find("Service")["spec"]["loadBalancerClass"] == word
    assert objects.find("Pod")["spec"]["serviceAccountName"] == word


@pytest.mark.parametrize("helm", HELMS)
def test_an_empty_storage_class_is_said_and_null_is_left_to_the_cluster(helm: str):
    def spec(name: str | None) -> dict[str, Any]:
        cache = {"type": "pvc", "storageClassName": name}
        return dict(render({"model": {"cache": cache}}, helm=helm).find("PersistentVolumeClaim")["spec"])

    assert spec("")["storageClassName"] == ""
    assert "storageClassName" not in spec(None)


@pytest.mark.parametrize("key", ["global=null", "global.imagePullSecrets=null", "global.imageRegistry=null"])
@pytest.mark.parametrize("helm", HELMS)
def test_an_umbrella_may_null_what_it_shares(key: str, helm: str):
    assert list(render({}, set_=[key], helm=helm)) == list(render({}, helm=helm))


@pytest.mark.parametrize("name", ["nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb.shared", "gpu.intel.com/i915"])
def test_ray_is_told_of_gpus_whose_name_kuberay_does_not_count(name: str):
    group = {"gpusPerNode": 1, "gpuResourceName": name}
    assert "--num-gpus=1 " in start_command(render({"workers": {"gpu": group}}))


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb"])
def test_gpus_that_kuberay_counts_are_left_to_it(name: str):
    objects = render({"workers": {"gpu": {"gpusPerNode": 1, "gpuResourceName": name}}})
    [group] = objects.find("RayCluster")["spec"]["workerGroupSpecs"]
    assert "num-gpus" not in group["rayStartParams"]
    assert "--num-gpus=1 " in start_command(objects)


REFUSED = {
    "s3 endpoint": {"model": {"s3": {"endpoint": "minio:9000"}}},
    "repository with tag": {"image": {"repository": "llm-ray/llm-ray:1.0"}},
    "repository in capitals": {"image": {"repository": "LLM/Ray"}},
    "no repository": {"image": {"repository": ""}},
    "registry with a slash": {"image": {"registry": "registry.example.com/"}},
    "tag with a digest": {"image": {"tag": f"v1@sha256:{'a' * 64}"}},
    "tag with a space": {"image": {"tag": "a b"}},
    "key file": {"auth": {"apiKeys": {"existingSecret": "keys", "key": "../keys.yaml"}}},
    "trace endpoint": {"monitoring": {"tracing": {"enabled": True, "endpoint": "collector:4318"}}},
    "log endpoint": {"monitoring": {"logs": {"collector": {"enabled": True, "lokiEndpoint": "loki #x"}}}},
    "source range": {"expose": {"service": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0"]}}},
    "range": {"fabric": {"networkDefaults": {"ipam": {"range": "banana"}}}},
    "address": {"fabric": {"networkDefaults": {"ipam": {"addresses": ["10.0.0.5"]}}}},
    "variable": {"serve": {"env": {"A=B": "x"}}},
    "label of pods": {"head": {"podLabels": {"team": "blue and green"}}},
    "label of objects": {"commonLabels": {"a b": "c"}},
    "node selector": {"head": {"nodeSelector": {"zone": "-a"}}},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_kubernetes_or_the_app_would_refuse_later_is_refused_by_its_place(case: str):
    with pytest.raises(HelmError, match=r"does not match pattern|propertyNames|invalid propertyName"):
        render(REFUSED[case])


TAKEN = {
    "port of a registry": {"image": {"registry": "registry.example.com:5000/team"}},
    "registry in the repository": {"image": {"repository": "localhost:5000/llm-ray/llm__ray-x.y"}},
    "tag": {"image": {"tag": "1.0.0-rc.1_Build"}},
    "hf": {"model": {"source": f"hf://Own-er.x/na_me-1.5@{'a' * 40}"}},
    "range with ends": {"fabric": {"networkDefaults": {"ipam": {"range": "10.0.0.1-10.0.0.9/16"}}}},
    "range 6": {"fabric": {"networkDefaults": {"ipam": {"range": "fd00::/64"}}}},
    "source ranges": {
        "expose": {"service": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8", "::/0"]}}
    },
    "labels": {"commonLabels": {"example.com/team": "", "a.b_c": "X.y-z"}},
    "variables": {"serve": {"env": {"_A.b-c1": "x"}}},
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_right_is_not_refused_by_its_form(case: str):
    values = TAKEN[case]
    if "fabric" in values:
        network = {"rail": {"master": "eth1", **values["fabric"]["networkDefaults"]}}
        values = {"fabric": {"type": "macvlan", "networks": network}}
    assert faults(render(values)) == []
