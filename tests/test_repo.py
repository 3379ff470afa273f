"""The repository keeps its own promises: README, Makefile, locks, addresses, sizes."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest
from ci.check_junit import MINIMUM, problems

from llm_ray.worker.architectures import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[1]
SOURCE_FOLDERS = ("app", "ci", "bench")
GENERATED = "app/llm_ray/api/proto/"

KNOWN_HOSTS = {
    "127.0.0.1",
    "0.0.0.0",
    "localhost",
    "example.com",
    "keepachangelog.com",
    "semver.org",
    "www.apache.org",
    "json-schema.org",
    "github.com",
    # the operators' chart repositories, which the umbrella's users fetch from
    "ray-project.github.io",
    "volcano-sh.github.io",
    "prometheus-community.github.io",
    "kedacore.github.io",
}
"""Hosts that a file may name. Package indexes and mirrors are the machine's business, not the repository's."""

CLUSTER_INTERNAL = re.compile(r"loki|minio|proxy|collector|([a-z0-9-]+\.)+svc(\.cluster\.local)?|10(\.[0-9]+){3}")

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
MAX_MAKEFILE_LINES = 80


def repository_files() -> list[Path]:
    """Every file that git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def text_of(path: Path) -> str:
    return path.read_text(errors="replace")


def python_sources() -> list[Path]:
    found = [path for folder in SOURCE_FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if not str(path.relative_to(ROOT)).startswith(GENERATED)]


def make_targets() -> dict[str, str]:
    """Target → its help comment."""
    lines = re.findall(r"^([a-z][a-z -]*):(?!=)(.*)$", text_of(ROOT / "Makefile"), re.MULTILINE)
    return {name: rest.partition("##")[2].strip() for names, rest in lines for name in names.split()}


def shell_blocks(document: str) -> list[str]:
    return re.findall(r"^```(?:bash|sh|shell)\n(.*?)^```", document, re.MULTILINE | re.DOTALL)


def pins(lock: Path) -> dict[str, str]:
    lines = [line for line in text_of(lock).splitlines() if line and not line.lstrip().startswith("#")]
    return dict(line.split(" ;")[0].strip().split("==") for line in lines)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_every_make_command_in_the_documents_is_a_target(document: str):
    blocks = shell_blocks(text_of(ROOT / document))
    commands = {name for block in blocks for name in re.findall(r"^make ([a-z-]+)", block, re.MULTILINE)}
    assert commands
    assert commands <= make_targets().keys()


def test_readme_names_the_two_commands_a_newcomer_needs_first():
    first_two = re.findall(r"^make .*", "".join(shell_blocks(text_of(ROOT / "README.md"))), re.MULTILINE)[:2]
    assert [command.split("#")[0].strip() for command in first_two] == ["make demo", "make test"]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md"])
def test_links_between_the_documents_lead_somewhere(document: str):
    links = re.findall(r"\]\(([^)#]+)\)", text_of(ROOT / document))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not ((ROOT / document).parent / link).exists()] == []


def test_readme_lists_exactly_the_architectures_that_are_served():
    rows = [
        line for line in text_of(ROOT / "README.md").splitlines() if line.startswith("| `llama`") or "`arcee`" in line
    ]
    by_walk = [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in rows]
    walked = {name for name, architecture in ARCHITECTURES.items() if architecture.walk is not None}
    assert by_walk == [walked, ARCHITECTURES.keys() - walked]


def test_ci_runs_the_readmes_test_command():
    assert re.search(r"^make test ", text_of(ROOT / ".ci/run"), re.MULTILINE)
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_every_make_target_is_listed_by_help_and_phony():
    targets = make_targets()
    phony = re.search(r"^\.PHONY: (.*)$", text_of(ROOT / "Makefile"), re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == targets.keys()
    assert [name for name, comment in targets.items() if not comment] == []
    command = ["make", "--no-print-directory"]  # make itself may be running this test
    shown = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert {name for line in shown.splitlines() for name in line.partition("  ")[0].split()} == targets.keys()


def test_makefile_stays_short():
    assert len(text_of(ROOT / "Makefile").splitlines()) <= MAX_MAKEFILE_LINES


def is_known(host: str) -> bool:
    reserved = host.endswith((".example", ".example.com", ".invalid"))
    return host in KNOWN_HOSTS or reserved or CLUSTER_INTERNAL.fullmatch(host) is not None


def test_no_file_names_a_host_that_is_not_known_here():
    strangers = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in repository_files()
        for host in re.findall(r"https?://([A-Za-z0-9.-]+)", text_of(path))
        if not is_known(host)
    ]
    assert strangers == []


def test_no_file_names_a_path_of_the_machine_it_was_written_on():
    places = "|".join(("work", "root", "tmp/" + "dev", "home/(?!ray\\b)[a-z]+"))
    path_of_a_machine = re.compile(rf"(?<![\w.$}}/])/({places})/[\w.-]+")
    home = "/" + "root"  # of the image's builder, in the image
    allowed = {"app/Dockerfile": {f"{home}/.cache", f"{home}/.local"}}
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in repository_files()
        for match in path_of_a_machine.finditer(text_of(path))
        if match[0] not in allowed.get(str(path.relative_to(ROOT)), set())
    ]
    assert found == []


def test_locks_pin_every_package_and_name_no_index():
    for name in ("requirements.lock", "requirements-runtime.lock"):
        text = text_of(ROOT / name)
        assert "://" not in text
        assert "--index" not in text
        assert all(re.fullmatch(r"[\w.!+]+", version) for version in pins(ROOT / name).values())


def test_the_images_lock_is_a_part_of_the_whole_lock():
    whole, runtime = pins(ROOT / "requirements.lock"), pins(ROOT / "requirements-runtime.lock")
    assert runtime.items() <= whole.items()
    assert {"ray", "torch", "deepspeed"} <= runtime.keys()
    assert not {"pytest", "ruff", "mypy", "openai"} & runtime.keys()


def own_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without those of the functions defined in it."""
    inner = {line for node in function.body if isinstance(node, FUNCTION) for line in lines_of(node)}
    return len(set(lines_of(function)) - inner)


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> range:
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return range(first, (function.end_lineno or function.lineno) + 1)


def test_source_files_and_functions_stay_small():
    too_long = []
    for path in python_sources():
        source = text_of(path)
        if len(source.splitlines()) > MAX_FILE_LINES:
            too_long.append(f"{path.relative_to(ROOT)}: {len(source.splitlines())} lines")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, FUNCTION) and own_lines(node) > MAX_FUNCTION_LINES:
                too_long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {own_lines(node)} lines")
    assert too_long == []


def junit(tmp_path: Path, cases: list[str]) -> Path:
    report = tmp_path / "junit.xml"
    report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    return report


def full_run() -> list[str]:
    classnames = {suite: "tests.test_x" if suite == "other" else f"tests.{suite}.test_x" for suite in MINIMUM}
    return [f'<testcase classname="{classnames[s]}" name="t{i}"/>' for s in MINIMUM for i in range(MINIMUM[s])]


def test_ci_accepts_a_run_with_every_suite(tmp_path: Path):
    assert problems([junit(tmp_path, full_run())]) == []


def test_ci_refuses_a_skipped_test(tmp_path: Path):
    skipped = '<testcase classname="tests.app.test_x" name="gone"><skipped/></testcase>'
    assert problems([junit(tmp_path, [*full_run(), skipped])]) == ["skipped: tests.app.test_x.gone"]


def test_ci_refuses_a_suite_that_did_not_run(tmp_path: Path):
    without_engine = [case for case in full_run() if "tests.engine" not in case]
    assert problems([junit(tmp_path, without_engine)]) == [
        f"suite engine ran 0 tests, at least {MINIMUM['engine']} expected"
    ]
