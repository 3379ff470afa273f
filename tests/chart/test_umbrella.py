"""The umbrella at the root: its lock is Helm's, its parts are optional, and it ships nothing else of the repository."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml
from ci.chart_lock import lock
from ci.tools.build import binary

from tests.support.chart import render

ROOT = Path(__file__).parents[2]
OPERATORS = ["kuberay-operator", "volcano", "kube-prometheus-stack", "keda"]
HELMS = ["helm3", "helm4"]
MEGABYTE = 1 << 20


def helm(name: str, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [str(binary(name)), *arguments]
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "HELM_NO_PLUGINS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment, cwd=home)


@pytest.fixture
def umbrella(tmp_path: Path) -> Path:
    """A copy of the umbrella without operators: the chart repositories are not needed to test ours."""
    copy = tmp_path / "llm-ray-stack"
    copy.mkdir()
    for name in ("Chart.yaml", "Chart.lock", "values.yaml", ".helmignore"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "charts", copy / "charts")
    return copy


def rewrite(umbrella: Path, dependencies: list[dict[str, str]]) -> None:
    chart = yaml.safe_load((umbrella / "Chart.yaml").read_text())
    chart["dependencies"] = dependencies
    (umbrella / "Chart.yaml").write_text(yaml.safe_dump(chart))
    (umbrella / "Chart.lock").write_text(lock(chart))


def dependencies_of(umbrella: Path) -> list[dict[str, str]]:
    return list(yaml.safe_load((umbrella / "Chart.yaml").read_text())["dependencies"])


def add_operators(umbrella: Path) -> None:
    """Charts that carry the operators' names and versions and one object each, to see which the umbrella installs."""
    for dependency in dependencies_of(umbrella):
        if dependency["name"] in OPERATORS:
            home = umbrella / "charts" / dependency["name"]
            (home / "templates").mkdir(parents=True)
            meta = {"apiVersion": "v2", "name": dependency["name"], "version": dependency["version"]}
            (home / "Chart.yaml").write_text(yaml.safe_dump(meta))
            marker = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"marker-{dependency['name']}"}}
            (home / "templates" / "marker.yaml").write_text(yaml.safe_dump(marker))


def test_the_lock_is_up_to_date():
    assert (ROOT / "Chart.lock").read_text() == lock(yaml.safe_load((ROOT / "Chart.yaml").read_text()))


@pytest.mark.parametrize("name", HELMS)
def test_helm_itself_finds_the_lock_in_sync_and_notices_a_change(name, umbrella, tmp_path):
    in_sync = helm(name, "dependency", "build", str(umbrella), home=tmp_path)
    assert "no repository definition" in in_sync.stderr, "the digest was accepted, then the repositories are missing"
    chart = umbrella / "Chart.yaml"
    chart.write_text(chart.read_text().replace("condition: keda.enabled", "condition: keda.on"))
    assert "out of sync" in helm(name, "dependency", "build", str(umbrella), home=tmp_path).stderr


@pytest.mark.parametrize("name", HELMS)
def test_the_file_dependency_builds(name, umbrella, tmp_path):
    rewrite(umbrella, [d for d in dependencies_of(umbrella) if d["repository"].startswith("file://")])
    done = helm(name, "dependency", "build", str(umbrella), home=tmp_path)
    assert done.returncode == 0, done.stderr
    version = yaml.safe_load((ROOT / "charts/llm-ray/Chart.yaml").read_text())["version"]
    assert (umbrella / "charts" / f"llm-ray-{version}.tgz").is_file()


@pytest.mark.parametrize("name", HELMS)
def test_with_the_operators_off_it_installs_what_the_chart_alone_does(name, umbrella):
    add_operators(umbrella)
    off = {operator: {"enabled": False} for operator in OPERATORS}
    ours = render({"engine": {"tensorParallelSize": 2}}, helm=name)
    stack = render({**off, "llm-ray": {"engine": {"tensorParallelSize": 2}}}, helm=name, chart=umbrella)
    assert sorted(map(str, stack)) == sorted(map(str, ours))


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_has_its_switch(operator, umbrella):
    add_operators(umbrella)
    values = {name: {"enabled": name == operator} for name in OPERATORS} | {"llm-ray": {"enabled": False}}
    assert render(values, chart=umbrella).inventory() == [("ConfigMap", f"marker-{operator}")]


def test_the_scaler_has_its_switch_and_is_off_by_default(umbrella):
    add_operators(umbrella)
    off = {name: {"enabled": False} for name in [*OPERATORS, "llm-ray"]}
    assert render(off, chart=umbrella).inventory() == []
    made = render(off | {"llm-ray-scaler": {"enabled": True}}, chart=umbrella)
    assert ("Deployment", "demo-llm-ray-scaler") in made.inventory()


def test_the_package_holds_the_chart_and_nothing_of_the_repository(umbrella, tmp_path):
    for folder in ("app", "ci", "tests", "docs", ".venv", "build", "bench", "examples", "plugins", "dashboards"):
        (umbrella / folder).mkdir(exist_ok=True)
        (umbrella / folder / "left-out.txt").write_text("x")
    for name in ("README.md", "Makefile", "pyproject.toml", "requirements.lock", "requirements-runtime.lock"):
        (umbrella / name).write_text("x")
    rewrite(umbrella, [d for d in dependencies_of(umbrella) if d["name"] == "llm-ray"])
    done = helm("helm4", "package", str(umbrella), "--destination", str(tmp_path), home=tmp_path)
    assert done.returncode == 0, done.stderr
    archive = next(tmp_path.glob("llm-ray-stack-*.tgz")).read_bytes()
    assert len(archive) < MEGABYTE, "a release Secret holds one MiB"
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        names = [Path(name).relative_to("llm-ray-stack") for name in members.getnames()]
    assert {n.parts[0] for n in names} == {"Chart.yaml", "Chart.lock", "values.yaml", "charts"}
    assert {n.parts[2] for n in names if len(n.parts) > 2} <= {
        "Chart.yaml", "values.yaml", "values.schema.json", "README.md", "templates", "files"
    }  # fmt: skip
