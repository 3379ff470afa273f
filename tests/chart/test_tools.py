"""The Go tools are the versions that their go.mod pins, built once however many ask, and say what they lack."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ci.tools import TOOLS, Tool, ToolError, binary

ROOT = Path(__file__).resolve().parents[2]
SAYS_ITS_VERSION = {
    "helm3": ["version", "--template", "{{.Version}}"],
    "helm4": ["version", "--template", "{{.Version}}"],
    "kubeconform": ["-v"],
    "kube-score": ["version"],
}
BUILT_FROM = {
    "helm3": "helm.sh/helm/v3 v3.22.0",
    "helm4": "helm.sh/helm/v4 v4.3.2",
    "kubeconform": "github.com/yannh/kubeconform v0.8.0",
    "kube-score": "github.com/zegl/kube-score v1.20.0",
    "podsecurity": "k8s.io/pod-security-admission v0.37.2",
    "otelcol": "go.opentelemetry.io/collector/otelcol v0.139.0",
}


def command(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ci.tools", *arguments],
        cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.parametrize("name", BUILT_FROM)
def test_a_program_is_built_from_the_pinned_module(name: str):
    about = subprocess.run(["go", "version", "-m", binary(name)], capture_output=True, text=True, check=True).stdout
    modules = {" ".join(line.split()[1:3]) for line in about.splitlines() if line.split()[:1] in (["dep"], ["mod"])}
    assert BUILT_FROM[name] in modules
    assert TOOLS[name].version == BUILT_FROM[name].split()[1]


@pytest.mark.parametrize("name", SAYS_ITS_VERSION)
def test_a_program_says_the_version_it_is(name: str):
    said = subprocess.run([binary(name), *SAYS_ITS_VERSION[name]], capture_output=True, text=True, check=True).stdout
    assert TOOLS[name].version in said.replace(",", "").split()


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_every_module_is_pinned_with_the_sums_of_what_it_needs(tool: Tool):
    names = {source.name for source in tool.sources}
    assert {"go.mod", "go.sum"} <= names
    assert tool.go_version.startswith("1.26")
    assert f"{tool.module} {tool.version} h1:" in (tool.home / "go.sum").read_text()


def test_path_prints_the_program_and_nothing_else():
    code, out, err = outcome(command("path", "podsecurity"))
    assert (code, out, err) == (0, f"{binary('podsecurity')}\n", "")


def test_an_unknown_name_is_refused_with_the_known_ones():
    code, out, err = outcome(command("path", "helm5"))
    assert (code, out) == (2, "")
    assert err == f"tools: no tool is called 'helm5': choose one of {', '.join(TOOLS)}\n"


def test_without_go_the_error_names_the_version_wanted_and_the_fix(tmp_path: Path):
    code, out, err = outcome(command("path", "helm4", PATH=str(tmp_path)))
    assert (code, out) == (2, "")
    assert "helm4 v4.3.2 is built with Go, and `go` does not run here" in err
    assert "install Go 1.26.0 or later and put its bin directory on PATH" in err


def test_an_old_go_is_refused_with_its_version(tmp_path: Path):
    settings = {
        "GOVERSION": "go1.25.9",
        "GOOS": "linux",
        "GOARCH": "amd64",
        "GOAMD64": "v1",
        "GOARM64": "",
        "GOCACHE": "/x",
    }
    old = tmp_path / "go"
    old.write_text(f"#!/bin/sh\necho '{json.dumps(settings)}'\n")
    old.chmod(0o755)
    code, _, err = outcome(command("path", "helm4", PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert code == 2
    assert "helm4 v4.3.2 needs Go 1.26.0, here is go1.25.9: install Go 1.26.0 or later" in err


def test_callers_at_the_same_time_build_once_and_leftovers_are_swept(tmp_path: Path):
    home = tmp_path / "tools"
    for leftover in (
        "podsecurity-new.killed",
        "podsecurity-0123456789ab",
        "podsecurity-ba9876543210",
        "helm4-0123456789ab",
    ):
        (home / leftover).mkdir(parents=True)
    callers = [command("path", "podsecurity", LLM_RAY_CACHE=str(tmp_path)) for _ in range(2)]
    results = [outcome(caller) for caller in callers]
    assert [code for code, _, _ in results] == [0, 0]
    assert results[0][1] == results[1][1]
    assert sum("tools: building podsecurity" in err for _, _, err in results) == 1
    assert Path(results[0][1].strip()).is_relative_to(home)
    kept = sorted(path.name for path in home.glob("podsecurity-*"))
    assert len(kept) == 2  # the new one and one that another checkout may use
    assert "podsecurity-new.killed" not in kept
    assert (home / "helm4-0123456789ab").is_dir()


@pytest.fixture
def copied_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = Path(shutil.copytree(TOOLS["podsecurity"].home, tmp_path / "sources" / "podsecurity"))
    monkeypatch.setattr("ci.tools.spec.HERE", copy.parent)
    monkeypatch.setenv("LLM_RAY_CACHE", str(tmp_path / "cache"))
    return copy


def test_a_changed_source_is_another_program(copied_tools: Path):
    first = binary("podsecurity")
    main = copied_tools / "main.go"
    main.write_text(main.read_text().replace('"restricted", "privileged', '"baseline", "privileged'))
    second = binary("podsecurity")
    assert first.is_file()
    assert second.is_file()
    assert first != second
    usage = subprocess.run([second, "-help"], capture_output=True, text=True)
    assert '(default "baseline")' in usage.stderr


def test_a_build_that_fails_says_what_the_compiler_said_and_leaves_nothing(copied_tools: Path, tmp_path: Path):
    (copied_tools / "main.go").write_text("package main\n\nfunc main() { nonsense() }\n")
    with pytest.raises(ToolError, match=r"podsecurity v0\.37\.2 does not build[\s\S]*undefined: nonsense"):
        binary("podsecurity")
    assert [path.name for path in (tmp_path / "cache" / "tools").iterdir()] == ["build.lock"]
