"""What the chart's tests stand on: rendering, reading manifests, finding objects and pods."""

from __future__ import annotations

from pathlib import Path

import pytest
from ci.manifests import load, load_all

from tests.support.chart import HELMS, HelmError, Objects, lint, pod_templates, render
from tests.support.small_chart import small_chart

REFUSED = "name (bad) must be fine: leave it out"


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    return small_chart(tmp_path)


@pytest.mark.parametrize("helm", HELMS)
def test_rendering_gives_the_objects_of_that_release_crds_included(chart: Path, helm: str):
    objects = render({"size": 3}, chart=chart, helm=helm, release="x", namespace="n")
    assert objects.inventory() == [("ConfigMap", "x"), ("CustomResourceDefinition", "things.example.com")]
    config = objects.find("ConfigMap", "x")
    assert config["metadata"]["namespace"] == "n"
    assert config["data"]["size"] == "3"
    assert b"size: " in objects.text
    assert objects.warnings == ""


def test_both_helms_render_for_the_kubernetes_of_their_own_client(chart: Path):
    versions = {render(chart=chart, helm=helm).find("ConfigMap")["data"]["kubernetes"] for helm in HELMS}
    assert versions == {"v1.37.0"}


@pytest.mark.parametrize("helm", HELMS)
def test_a_refusal_is_an_error_with_the_templates_own_words(chart: Path, helm: str):
    with pytest.raises(HelmError) as caught:
        render({"name": "bad"}, chart=chart, helm=helm)
    assert caught.value.message == REFUSED
    assert "templates/configmap.yaml" in caught.value.stderr


@pytest.mark.parametrize("helm", HELMS)
def test_lint_fails_where_a_template_is_broken(tmp_path: Path, helm: str):
    broken = small_chart(tmp_path, {"templates/broken.yaml": "{{ if .Values.broken }}{{ .Values.a.b.c }}{{ end }}"})
    assert "1 chart(s) linted, 0 chart(s) failed" in lint({"size": 3}, chart=broken, helm=helm)
    with pytest.raises(HelmError, match="nil pointer evaluating"):
        lint({"broken": True}, chart=broken, helm=helm)


def test_values_win_over_files_and_set_wins_over_both(chart: Path, tmp_path: Path):
    file = tmp_path / "values.yaml"
    file.write_text("size: 5")

    def size(**options: object) -> str:
        return render(chart=chart, **options).find("ConfigMap")["data"]["size"]

    assert size(files=[file]) == "5"
    assert size(values=file) == "5"
    assert size(values={"size": 6}, files=[file]) == "6"
    assert size(values={"size": 6}, files=[file], set_=["size=7"]) == "7"


def test_a_changed_chart_or_file_is_rendered_anew(chart: Path, tmp_path: Path):
    file = tmp_path / "values.yaml"
    sizes = []
    for number in (5, 6):
        file.write_text(f"size: {number}")
        sizes.append(render(file, chart=chart).find("ConfigMap")["data"]["size"])
    (chart / "values.yaml").write_text("size: 9\nname: fine\n")
    sizes.append(render(chart=chart).find("ConfigMap")["data"]["size"])
    assert sizes == ["5", "6", "9"]


def test_objects_may_be_changed_without_touching_the_next_rendering(chart: Path):
    render(chart=chart).find("ConfigMap")["data"].clear()
    assert render(chart=chart).find("ConfigMap")["data"]["size"] == "1"


def test_another_chart_version_is_rendered_from_a_copy(chart: Path):
    assert render(chart=chart, chart_version="9.9.9").find("ConfigMap")["data"]["chart"] == "9.9.9"
    assert "version: 0.1.0" in (chart / "Chart.yaml").read_text()


def test_helm_sees_no_cluster_and_no_settings_of_this_machine(chart: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HELM_NAMESPACE", "elsewhere")
    monkeypatch.setenv("HELM_DEBUG", "true")
    objects = render({"size": 77}, chart=chart, namespace="n")
    assert objects.find("ConfigMap")["metadata"]["namespace"] == "n"
    assert objects.warnings == ""


def test_finding_no_or_several_objects_says_what_there_is():
    two = Objects([{"kind": "Service", "metadata": {"name": name}} for name in ("a", "b")])
    assert two.find("Service", "b")["metadata"]["name"] == "b"
    with pytest.raises(LookupError, match=r"2 objects Service, wanted one; rendered: Service/a, Service/b"):
        two.find("Service")
    with pytest.raises(LookupError, match=r"0 objects Job/c, wanted one"):
        two.find("Job", "c")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("12e4567", float("inf")), ("1e3", 1000.0), ("off", False), ("10:30", "10:30"), ("2026-01-01", "2026-01-01")],
        *[("0x10", 16), ("010", 8), ("1.5", 1.5), ("1Gi", "1Gi"), ("~", None), ('"1"', "1"), ("v1", "v1")],
    ],
)
def test_scalars_are_read_as_kubernetes_reads_them(text: str, value: object):
    assert load(f"key: {text}") == {"key": value}


def test_a_key_that_occurs_twice_is_an_error():
    with pytest.raises(Exception, match="key 'a' occurs twice"):
        load("{a: 1, a: 2}")
    assert load("{base: &b {a: 1}, more: {<<: *b, a: 2}}")["more"] == {"a": 2}


def test_a_document_that_is_no_mapping_is_an_error():
    assert list(load_all("---\n# nothing\n---\na: 1\n")) == [{"a": 1}]
    with pytest.raises(ValueError, match="is a str, not a mapping"):
        list(load_all("just text"))


def template(image: str) -> dict[str, object]:
    return {"metadata": {}, "spec": {"containers": [{"name": "c", "image": image}]}}


def objects_with_pods() -> list[dict[str, object]]:
    cluster = {
        "headGroupSpec": {"template": template("head")},
        "workerGroupSpecs": [
            {"groupName": "gpu", "template": template("gpu")},
            {"groupName": "cpu", "template": template("cpu")},
        ],
    }
    specs = {
        "RayCluster": cluster,
        "RayService": {"rayClusterConfig": cluster},
        "Job": {"template": template("job")},
        "Deployment": {"template": template("deployment")},
        "CronJob": {"jobTemplate": {"spec": {"template": template("cronjob")}}},
        "Pod": template("pod")["spec"],
        "ConfigMap": {},
    }
    return [{"kind": kind, "metadata": {"name": "x"}, "spec": spec} for kind, spec in specs.items()]


def test_every_pod_template_is_found_under_a_name_that_says_where_it_stands():
    found = {pod.name: pod.containers[0]["image"] for pod in pod_templates(objects_with_pods())}
    ray = {"head": "head", "workers/gpu": "gpu", "workers/cpu": "cpu"}
    assert found == {
        **{f"RayCluster/x/{place}": image for place, image in ray.items()},
        **{f"RayService/x/{place}": image for place, image in ray.items()},
        "Job/x": "job",
        "Deployment/x": "deployment",
        "CronJob/x": "cronjob",
        "Pod/x": "pod",
    }


def test_containers_in_a_kind_that_is_not_known_are_an_error():
    stranger = {"kind": "Rollout", "metadata": {"name": "x"}, "spec": {"template": template("x")}}
    with pytest.raises(ValueError, match="Rollout/x has containers"):
        pod_templates([stranger])


def test_an_object_without_the_pods_it_should_have_is_an_error():
    with pytest.raises(ValueError, match="RayService/x lacks 'rayClusterConfig'"):
        pod_templates([{"kind": "RayService", "metadata": {"name": "x"}, "spec": {}}])
