"""What holds for every object of every file in charts/llm-ray/ci, under odd release names and a foreign namespace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ci.chart.values import parse

from tests.support.chart import CHART, CI_VALUES, HelmError, Objects, Pod, pod_templates, render
from tests.support.situations import EXTRA, NAMESPACE, SITUATIONS, every_situation, rendered
from tests.support.validate import KUBERAY, KUBERNETES, validate

LONGEST = "x" * 26 + "-" + "y" * 26
RELEASES = ("demo", "a", "team.model-2", LONGEST)
MUCH_ALIKE = (*RELEASES, LONGEST[:-1] + "z")
RAY_KINDS = ("RayCluster", "RayService")
NEEDS_KUBERNETES = {"hpa": "1.33"}
"""Files that set what older releases do not have."""
NEEDS_KUBERAY = {
    "everything": "1.6",
    "hpa-gangs": "1.6",
    "kuberay-1.7-elastic": "1.7",
    "rayservice-bluegreen": "1.6",
    "tp16-two-nodes-sriov": "1.6",
}
"""Files that need what older operators do not have, and are refused there."""
DEFAULT_KUBERAY = "1.6"
API_VERSIONS = ("v1", "apps/v1", "ray.io/v1", "ray.io/v1/RayCluster")
ARGO_CD = ("--kube-version", "1.33.4", *(f"--api-versions={v}" for v in API_VERSIONS))

every_release = pytest.mark.parametrize("release", RELEASES)


def test_a_default_install_holds_exactly_these_objects():
    assert render(release="demo").inventory() == [
        ("ConfigMap", "demo-llm-ray-serve"),
        ("NetworkPolicy", "demo-llm-ray-head"),
        ("NetworkPolicy", "demo-llm-ray-test"),
        ("NetworkPolicy", "demo-llm-ray-worker"),
        ("Pod", "demo-llm-ray-test"),
        ("RayCluster", "demo-llm-ray"),
        ("Role", "demo-llm-ray-head"),
        ("RoleBinding", "demo-llm-ray-head"),
        ("Service", "demo-llm-ray-serve"),
        ("ServiceAccount", "demo-llm-ray-head"),
        ("ServiceAccount", "demo-llm-ray-worker"),
    ]


# ---- validity


@every_situation
def test_every_object_is_valid_in_every_supported_kubernetes(situation):
    supported = [version for version in KUBERNETES if version >= NEEDS_KUBERNETES.get(situation, "")]
    assert len(supported) >= 5
    objects = [obj for obj in rendered(situation) if obj["kind"] not in RAY_KINDS]
    assert [finding for obj in objects for v in supported for finding in validate(obj, kubernetes=v)] == []


@every_situation
@every_release
def test_every_object_is_valid_under_odd_release_names(situation, release):
    objects = rendered(situation, release)
    known = [obj for obj in objects if obj["kind"] not in RAY_KINDS or NEEDS_KUBERAY.get(situation, "") <= KUBERAY[-1]]
    assert [finding for obj in known for finding in validate(obj, kubernetes=KUBERNETES[-1])] == []


@every_situation
@pytest.mark.parametrize("kuberay", KUBERAY)
def test_the_cluster_is_valid_in_the_kuberay_that_the_values_name(situation, kuberay):
    if kuberay < NEEDS_KUBERAY.get(situation, ""):
        with pytest.raises(HelmError, match=r"kuberay\.version|KubeRay"):
            for_kuberay(situation, kuberay)
        return
    ray = [obj for obj in for_kuberay(situation, kuberay) if obj["kind"] in RAY_KINDS]
    assert [finding for obj in ray for finding in validate(obj, kuberay=kuberay)] == []


def for_kuberay(situation: str, version: str) -> Objects:
    own = yaml.safe_load(SITUATIONS[situation].read_text()) if SITUATIONS[situation] else {}
    if own.get("kuberay", {}).get("version", DEFAULT_KUBERAY) == version:
        return rendered(situation)
    return render(SITUATIONS[situation], set_=[f"kuberay.version={version}"])


# ---- the same everywhere


@every_situation
@pytest.mark.parametrize("release", ["demo", "team.model-2", LONGEST])
def test_helm_3_and_helm_4_render_the_same_bytes(situation, release):
    three, four = (documents(rendered(situation, release, helm=helm)) for helm in ("helm3", "helm4"))
    assert three == four


def documents(objects: Objects) -> list[bytes]:
    """The text of each object: Helm 4 puts an empty line between two, Helm 3 does not."""
    return [document.strip() for document in objects.text.split(b"\n---\n")]


@every_situation
@pytest.mark.parametrize("helm", ["helm3", "helm4"])
def test_rendering_again_for_the_cluster_that_argo_cd_describes_changes_nothing(situation, helm):
    plain, described = (rendered(situation, helm=helm, extra_args=arguments) for arguments in ((), ARGO_CD))
    assert plain.text == described.text


def test_no_template_asks_the_cluster_the_clock_or_chance():
    chance = r"rand\w+|uuidv4|shuffle|gen(CA|PrivateKey|SelfSigned|Signed)\w*|htpasswd|bcrypt|derivePassword"
    forbidden = rf"\b(lookup|now|ago|dateInZone|getHostByName|env|expandenv|{chance})\b"
    for path in templates():
        for action in re.findall(r"{{(?!-?\s*/\*).*?}}", path.read_text(), re.DOTALL):
            without_strings = re.sub(r'"(\\.|[^"\\])*"', '""', action)
            words = re.sub(r"[.$][\w.$]*", "", without_strings)
            assert not re.search(forbidden, words), f"{path.name}: {action}"
            assert ".Capabilities" not in without_strings, f"{path.name}: {action}"


# ---- labels, names, namespaces


@every_situation
@every_release
def test_every_object_has_the_labels_and_its_namespace(situation, release):
    for obj in rendered(situation, release):
        metadata = obj["metadata"]
        if metadata["name"].endswith(EXTRA):
            continue
        labels = metadata["labels"]
        assert labels["app.kubernetes.io/instance"] == release
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["app.kubernetes.io/part-of"] == "llm-ray"
        wanted = {"app.kubernetes.io/name", "app.kubernetes.io/version", "app.kubernetes.io/component", "helm.sh/chart"}
        assert wanted <= labels.keys()
        # what Grafana's sidecar and the SR-IOV operator look for is where the values say
        elsewhere = obj["kind"] in ("SriovNetwork", "SriovIBNetwork") or "grafana_dashboard" in labels
        assert metadata["namespace"] == NAMESPACE or (elsewhere and metadata["namespace"])


@every_situation
def test_two_releases_share_no_name(situation):
    names = [set(rendered(situation, release).inventory()) for release in MUCH_ALIKE]
    assert sum(map(len, names)) == len(set.union(*names))


@every_situation
@every_release
def test_names_keep_to_the_limits_of_kubernetes_and_kuberay(situation, release):
    limits = {"RayService": 47, "RayCluster": 53}
    for kind, name in rendered(situation, release).inventory():
        assert len(name) <= limits.get(kind, 63), f"{kind}/{name}"
        first = "a-z" if kind in (*RAY_KINDS, "Service") else "a-z0-9"
        assert re.fullmatch(f"[{first}]([-a-z0-9]*[a-z0-9])?", name), f"{kind}/{name}"


# ---- pods


@every_situation
def test_every_pod_runs_as_non_root_and_every_container_is_bounded(situation):
    for pod in pod_templates(rendered(situation)):
        assert pod.spec["securityContext"]["runAsNonRoot"] is True, pod.name
        assert pod.spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", pod.name
        for container in pod.containers:
            where = f"{pod.name}/{container['name']}"
            security, resources = container["securityContext"], container["resources"]
            assert security["allowPrivilegeEscalation"] is False, where
            assert security["readOnlyRootFilesystem"] is True, where
            assert security["capabilities"]["drop"] == ["ALL"], where
            for kind in ("requests", "limits"):
                assert {"cpu", "memory"} <= resources[kind].keys(), where


@every_situation
def test_every_container_that_stays_has_probes(situation):
    for pod in pod_templates(rendered(situation)):
        for container in pod.spec["containers"] if stays(pod) else []:
            assert {"livenessProbe", "readinessProbe"} <= container.keys(), f"{pod.name}/{container['name']}"


def stays(pod: Pod) -> bool:
    """The pod of `helm test` runs to its end."""
    return "helm.sh/hook" not in pod.metadata.get("annotations", {})


@every_situation
def test_every_image_is_pinned(situation):
    for pod in pod_templates(rendered(situation)):
        for container in pod.containers:
            image = container["image"]
            name, _, digest = image.partition("@")
            tag = name.rpartition("/")[2].partition(":")[2]
            assert digest.startswith("sha256:") or tag, f"{pod.name}/{container['name']}: {image}"
            assert tag != "latest", f"{pod.name}/{container['name']}: {image}"


# ---- sources


def templates() -> list[Path]:
    return sorted(path for path in (CHART / "templates").rglob("*") if path.is_file())


def test_helper_names_carry_the_chart_s_prefix_and_occur_once():
    names = [name for path in templates() for name in re.findall(r'define "([^"]+)"', path.read_text())]
    assert [name for name in names if not name.startswith("llm-ray.")] == []
    assert len(names) == len(set(names))


def test_every_template_is_one_object_named_after_its_file_and_short():
    for path in templates():
        text = path.read_text()
        assert text.count("\n") <= 150, path
        if path.suffix != ".yaml" or path.name in ("validate.yaml", "objects.yaml"):
            continue
        kinds = re.findall(r"^kind: (\w+)$", text, re.MULTILINE)
        assert len(kinds) == len(re.findall(r"^apiVersion:", text, re.MULTILINE)) == 1, path
        assert kinds[0].lower() in path.stem.split("-"), f"{path} holds a {kinds[0]}"


def test_every_value_is_set_by_a_file_in_ci():
    given = [yaml.safe_load(path.read_text()) for path in CI_VALUES]
    # a key that all groups or networks have by default may be set in one of them
    given += [{"workerDefaults": group} for values in given for group in values.get("workers", {}).values()]
    networks = [network for values in given for network in values.get("fabric", {}).get("networks", {}).values()]
    given += [{"fabric": {"networkDefaults": network}} for network in networks]
    values = parse((CHART / "values.yaml").read_text()).leaves()
    assert [value.name for value in values if not any(is_set(file, value.path) for file in given)] == []


def is_set(values: Any, path: tuple[str, ...]) -> bool:
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True


@pytest.mark.parametrize("path", CI_VALUES, ids=lambda path: path.stem)
def test_a_ci_file_says_whom_it_is_for(path):
    assert re.match(r"# For [^\n]{20,}\n", path.read_text())


def test_the_situations_are_all_there():
    wanted = "laptop-cpu one-gpu tp8-one-node tp16-two-nodes-sriov tp8-pp4-four-nodes-ib rayservice-bluegreen"
    assert {*wanted.split(), "hpa", "keda", "kueue", "istio", "everything"} <= SITUATIONS.keys()
