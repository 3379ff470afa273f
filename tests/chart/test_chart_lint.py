"""`python -m ci.chart_lint` finds what each linter is there for, and cannot pass by finding nothing to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from ci import chart_lint
from ci.kube_score import accepted

from tests.support.small_chart import small_chart

NO_CRDS = {"crds/things.yaml": ""}
ONE_FILE = NO_CRDS | {"ci/one.yaml": "size: 3"}
CLUSTER = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: demo, namespace: {{ .Release.Namespace }}}
spec:
  headGroupSpec:
    rayStartParams: {num-cpus: {{ .Values.cpus | toJson }}}
    template:
      spec:
        containers: [{name: ray, image: example.com/ray:1}]
"""
HEAD = "RayCluster/demo/head"
CLUSTERS = (chart_lint.NEWEST, chart_lint.OLDEST)


def run(chart: Path, entries: str = "[]") -> list[str]:
    file = chart.parent / "accepted.yaml"
    file.write_text(entries)
    return chart_lint.run([chart], file)


def test_a_clean_chart_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chart = small_chart(tmp_path, ONE_FILE)
    (tmp_path / "accepted.yaml").write_text("[]")
    assert chart_lint.main(["--chart", str(chart), "--accepted", str(tmp_path / "accepted.yaml")]) == 0
    assert capsys.readouterr().out.startswith("chart lint: 1 values files, 0 problems")


def test_a_chart_without_values_files_fails(tmp_path: Path):
    chart = small_chart(tmp_path)
    assert run(chart) == [f"{chart}/ci has no *.yaml: a chart is linted with the values files there"]
    assert chart_lint.main(["--chart", str(chart)]) == 1


def test_both_helms_lint(tmp_path: Path):
    broken = ONE_FILE | {"templates/broken.yaml": "{{ .Values.a.b.c }}"}
    problems = run(small_chart(tmp_path, broken))
    assert [problem.split(":\n")[0] for problem in problems] == [
        "one.yaml: helm3 lint --strict",
        "one.yaml: helm4 lint --strict",
        "one.yaml: helm4 template",
    ]
    assert all("nil pointer evaluating" in problem for problem in problems)


def test_a_refusal_of_the_chart_is_reported_with_its_words(tmp_path: Path):
    problems = run(small_chart(tmp_path, ONE_FILE | {"ci/two.yaml": "name: bad"}))
    assert len(problems) == 1
    assert "two.yaml: helm4 template" in problems[0]
    assert "name (bad) must be fine" in problems[0]


@pytest.mark.parametrize(
    ("manifest", "complaint"),
    [
        ("apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {prots: [{port: 1}]}", "'prots' not allowed"),
        ("apiVersion: v1\nkind: Secret\nmetadata: {name: x}\nstringData: {a: 1}", "got number, want"),
        ("apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: x}", "could not find schema for Thing"),
        (
            "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: x}\nspec: {serveConfig: {}}",
            "'serveConfig' not allowed",
        ),
    ],
)
def test_kubeconform_judges_kinds_of_kubernetes_and_others_with_each_pair_of_versions(
    tmp_path: Path, manifest: str, complaint: str
):
    problems = [
        problem
        for problem in run(small_chart(tmp_path, ONE_FILE | {"templates/x.yaml": manifest}))
        if "kubeconform" in problem
    ]
    assert [problem.split(": ")[2] for problem in problems] == [f"kubeconform, {cluster}" for cluster in CLUSTERS]
    assert all(complaint in problem for problem in problems)


def test_a_group_of_ours_is_not_taken_for_one_of_kubernetes_with_the_same_first_part(tmp_path: Path):
    group = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: x}\nspec: {minMember: 2}"
    assert run(small_chart(tmp_path, ONE_FILE | {"templates/x.yaml": group})) == []


VERSIONED = """\
{{- if lt .Values.kuberay.version .Values.needs }}{{ fail "kuberay.version is too low for needs" }}{{ end }}
apiVersion: ray.io/v1
kind: RayService
metadata: {name: demo}
spec:
  serveConfigV2: ""
  rayClusterConfig:
    headGroupSpec: {rayStartParams: {}, template: {spec: {containers: [{name: ray, image: example.com/ray:1}]}}}
    {{- if ne .Values.kuberay.version "1.5" }}
    upgradeStrategy: {type: {{ .Values.upgrade }}}
    {{- end }}
"""


def versioned_chart(home: Path, values: str) -> Path:
    defaults = "{name: fine, size: 1, kuberay: {version: '1.6'}}"
    files = {"templates/x.yaml": VERSIONED, "values.yaml": defaults, "ci/one.yaml": values}
    return small_chart(home, NO_CRDS | files)


@pytest.mark.parametrize(
    ("version", "upgrade", "problems"),
    [("1.5", "None", []), ("1.6", "None", []), ("1.6", "3", [chart_lint.NEWEST]), ("1.5", "3", [chart_lint.NEWEST])],
)
def test_the_chart_is_told_the_version_that_it_is_held_against_and_may_refuse_an_old_one(
    tmp_path: Path, version: str, upgrade: str, problems: list[chart_lint.Cluster]
):
    chart = versioned_chart(tmp_path, f"{{needs: '{version}', upgrade: {upgrade}}}")
    assert [line.split(": ")[2] for line in run(chart) if "kube-score" not in line] == [
        f"kubeconform, {cluster}" for cluster in problems
    ]


def test_a_file_that_no_vendored_kuberay_can_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chart = versioned_chart(tmp_path, "{needs: '1.9', upgrade: 3, kuberay: {version: '1.9'}}")
    assert [line for line in run(chart) if "kube-score" not in line] == []
    assert capsys.readouterr().err.startswith("one.yaml: for a KubeRay without vendored schemas")


def test_a_refusal_that_is_not_about_the_version_is_a_problem(tmp_path: Path):
    chart = versioned_chart(tmp_path, "{needs: '1.5', upgrade: None}")
    other = '{{ if eq .Values.kuberay.version "1.5" }}{{ fail "no reason" }}{{ end }}'
    (chart / "templates" / "other.yaml").write_text(other)
    assert f"one.yaml: helm4 template, {chart_lint.OLDEST}" in run(chart)[0]


def test_a_number_where_kuberay_wants_text_is_found(tmp_path: Path):
    chart = small_chart(tmp_path, NO_CRDS | {"templates/x.yaml": CLUSTER, "ci/one.yaml": "cpus: 0"})
    assert [problem for problem in run(chart) if "kubeconform" in problem and "got number, want string" in problem]


def test_kube_score_sees_the_pods_of_a_ray_cluster_until_its_findings_are_accepted(tmp_path: Path):
    chart = small_chart(tmp_path, NO_CRDS | {"templates/x.yaml": CLUSTER, "ci/one.yaml": 'cpus: "0"'})
    found = run(chart)
    checks = {problem.split(": ")[3] for problem in found}
    assert all(problem.startswith(f"one.yaml: kube-score: {HEAD}: ") for problem in found)
    assert {"container-resources", "container-security-context-readonlyrootfilesystem", "pod-networkpolicy"} <= checks
    entries = [f"- {{check: {check}, object: {HEAD}, reason: a test}}" for check in sorted(checks)]
    assert run(chart, "\n".join(entries)) == []
    assert [problem.split(": ")[3] for problem in run(chart, "\n".join(entries[1:]))] != []


def test_an_accepted_finding_that_is_gone_is_a_problem(tmp_path: Path):
    problems = run(small_chart(tmp_path, ONE_FILE), "[{check: container-image-tag, object: 'Job/*', reason: a test}]")
    assert len(problems) == 1
    assert "nothing is found any more for container-image-tag in Job/*: remove the entry" in problems[0]


def test_an_accepted_finding_needs_a_reason(tmp_path: Path):
    with pytest.raises(ValueError, match="the entry of container-image-tag has no reason"):
        run(small_chart(tmp_path, ONE_FILE), "[{check: container-image-tag, reason: ''}]")
    assert all(len(entry.reason) > 10 for entry in accepted())
