"""The lab's programs are pinned, a part gives all that it promises, and what cannot be had is refused with the remedy.

No part of the lab is built here: that takes a quarter of an hour, and the live tests use every one of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ci import oci
from ci.lab import archives, programs
from ci.lab.archives import IMAGES, archive
from ci.lab.programs import PARTS
from ci.tools import Tool, ToolError
from ci.tools.build import built, is_built
from ci.tools.go import Caches
from ci.tools.spec import Copied

ROOT = Path(__file__).resolve().parents[1]
STATE = "module lab/state\n\ngo 1.26.0\n"


def refusal(cache: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ci.lab.programs", *arguments],
        cwd=ROOT, env=os.environ | {"LLM_RAY_CACHE": str(cache)} | environment,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


@pytest.mark.parametrize("tool", PARTS.values(), ids=PARTS)
def test_every_part_is_pinned_with_the_sums_of_what_it_needs(tool: Tool) -> None:
    assert tool.go_version.startswith("1.26")
    sums = (tool.home / "go.sum").read_text()
    assert f"{tool.module} {tool.version} h1:" in sums
    for module in {copied.module for copied in tool.manifests}:
        assert re.search(rf"^{re.escape(module)} v\S+ h1:", sums, re.MULTILINE)


def test_a_module_that_is_added_to_is_pinned_at_a_version_that_is_published() -> None:
    go_mod = (PARTS["volcano"].home / "go.mod").read_text()
    (version,) = re.findall(r"^replace volcano\.sh/apis => volcano\.sh/apis (\S+)$", go_mod, re.MULTILINE)
    assert f"volcano.sh/apis {version} h1:" in (PARTS["volcano"].home / "go.sum").read_text()


def test_no_two_parts_have_a_program_of_the_same_name() -> None:
    names = [name for tool in PARTS.values() for name in tool.names]
    assert sorted(set(names)) == sorted(names)


def test_unknown_names_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    assert "no program 'kubelets': choose one of bridge, containerd," in refusal(tmp_path, "path", "kubelets")
    assert "no part 'kubelet': choose one of kube, containerd," in refusal(tmp_path, "build", "kubelet")
    assert "part 'kube' has no manifests: kuberay," in refusal(tmp_path, "manifests", "kube")
    with pytest.raises(ToolError, match="no image 'kubelet': choose one of pause, coredns,"):
        archive("kubelet")


def test_without_go_the_error_names_the_version_wanted(tmp_path: Path) -> None:
    said = refusal(tmp_path, "path", "kubelet", PATH=str(tmp_path))
    assert "kube v1.37.2 is built with Go, and `go` does not run here: install Go 1.26" in said


def test_without_a_c_compiler_the_error_names_the_packages(tmp_path: Path) -> None:
    go = shutil.which("go")
    assert go
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "go").symlink_to(Path(go).resolve())
    said = refusal(tmp_path, "build", "runc", PATH=str(tmp_path / "bin"))
    assert "here is no gcc, no pkg-config: apt-get install --no-install-recommends gcc libc6-dev pkg-config" in said


def test_without_a_librarys_headers_the_error_names_its_package(tmp_path: Path) -> None:
    found = tmp_path / "bin"
    found.mkdir()
    (found / "pkg-config").write_text("#!/bin/sh\nexit 1\n")
    (found / "pkg-config").chmod(0o755)
    said = refusal(tmp_path, "build", "runc", PATH=f"{found}:{os.environ['PATH']}", CC="true")
    assert "here is no libseccomp's headers: apt-get install" in said
    assert "libseccomp-dev" in said


@pytest.fixture
def part(tmp_path: Path) -> Tool:
    """Two programs, a second name of the first, a file added to a module of theirs, and that module's manifests."""
    files = {
        "sources/part/go.mod": "module lab/part\n\ngo 1.26.0\n\nrequire lab/state v1.0.0\n\n"
        f"replace lab/state => {tmp_path}/state\n",
        "sources/part/one/main.go": 'package main\n\nimport ("os"; "lab/state")\n\n'
        "func main() { println(os.Args[0], state.Added) }\n",
        "sources/part/two/main.go": "package main\n\nfunc main() { println(version) }\n\nvar version string\n",
        "sources/part/additions/lab/state/added.go": 'package state\n\nconst Added = "was added"\n',
        "state/go.mod": STATE,
        "state/state.go": "package state\n",
        "state/config/crd/ray.yaml": "kind: CustomResourceDefinition\n",
        "state/one.yaml": "kind: Role\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "state" / "config" / "crd").chmod(0o555)
    return Tool(
        "part", "", "lab/state", "main.version",
        root=tmp_path / "sources",
        packages=(("first", "lab/part/one"), ("second", "lab/part/two")),
        links=("another",),
        additions=("lab/state",),
        manifests=(Copied("lab/state", "config"), Copied("lab/state", "one.yaml", "single")),
    )  # fmt: skip


def said_by(program: Path) -> str:
    return subprocess.run([program], capture_output=True, text=True, check=True).stderr.strip()


def test_a_part_gives_its_programs_links_and_manifests(part: Tool, tmp_path: Path) -> None:
    assert not is_built(part, tmp_path)
    folder = built(part, tmp_path, Caches())
    assert is_built(part, tmp_path)
    assert said_by(folder / "first") == f"{folder}/first was added"
    assert said_by(folder / "another") == f"{folder}/another was added"
    assert said_by(folder / "second") == "v1.0.0"
    manifests = folder / "manifests"
    assert (manifests / "crd" / "ray.yaml").read_text() == "kind: CustomResourceDefinition\n"
    assert (manifests / "single" / "one.yaml").read_text() == "kind: Role\n"
    assert (manifests / "crd").stat().st_mode & 0o200


def test_a_part_that_lost_a_program_is_made_again(part: Tool, tmp_path: Path) -> None:
    folder = built(part, tmp_path, Caches())
    (folder / "second").unlink()
    assert built(part, tmp_path, Caches()) == folder
    assert said_by(folder / "second") == "v1.0.0"


def test_a_changed_addition_is_another_part(part: Tool, tmp_path: Path) -> None:
    first = built(part, tmp_path, Caches())
    added = part.home / "additions" / "lab" / "state" / "added.go"
    added.write_text(added.read_text().replace("was added", "was changed"))
    second = built(part, tmp_path, Caches())
    assert first != second
    assert said_by(second / "first").endswith("was changed")


def test_the_go_caches_go_after_a_build_and_the_programs_stay(
    part: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    modules = cache / "lab" / "go-modules" / "lab" / "other@v1.0.0"
    modules.mkdir(parents=True)
    (modules / "go.mod").write_text(STATE)
    modules.chmod(0o555)
    monkeypatch.setenv("LLM_RAY_CACHE", str(cache))
    # from nothing, Go compiles its own library too: of these programs, the one that uses least of it
    monkeypatch.setitem(PARTS, "part", replace(part, packages=part.packages[1:], links=(), additions=()))
    assert programs.build(["part"])
    assert sorted(path.name for path in (cache / "lab").iterdir()) == ["programs"]
    assert said_by(programs.program("second")) == "v1.0.0"
    assert not programs.build(["part"])


@pytest.fixture
def pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "catatonit"
    program.write_text("#!/bin/sh\n")
    monkeypatch.setattr(archives, "CATATONIT", program)
    monkeypatch.setenv("LLM_RAY_CACHE", str(tmp_path / "cache"))
    return program


def test_an_archive_holds_the_program_and_starts_it_as_a_user(pause: Path, tmp_path: Path) -> None:
    made = archive("pause")
    assert oci.identify(made)[0] == "localhost/lab/pause:1"
    config = oci.unpack(made, tmp_path / "root")
    assert (config["Entrypoint"], config["User"]) == (["/pause", "-P"], "65535:65535")
    assert (tmp_path / "root" / "pause").read_bytes() == pause.read_bytes()
    assert (tmp_path / "root" / "pause").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "root" / "tmp").stat().st_mode & 0o7777 == 0o1777


def test_a_changed_program_is_another_archive_and_the_oldest_goes(pause: Path) -> None:
    made = []
    for number in range(3):
        pause.write_text(f"#!/bin/sh\nexit {number}\n")
        made.append(archive("pause"))
        os.utime(made[-1], (number, number))
    assert [path.is_file() for path in made] == [False, True, True]
    assert archive("pause") == made[-1]


def test_an_archive_of_a_dynamic_program_holds_what_it_links(pause: Path, tmp_path: Path) -> None:
    pause.write_bytes(Path("/bin/true").read_bytes())
    oci.unpack(archive("pause"), tmp_path / "root")
    (loader,) = (tmp_path / "root").rglob("ld-linux*")
    libraries = {path.parent for path in (tmp_path / "root" / "lib").rglob("*.so*")}
    words = [
        str(loader),
        "--inhibit-cache",
        "--library-path",
        ":".join(map(str, libraries)),
        str(tmp_path / "root" / "pause"),
    ]
    subprocess.run(words, check=True, timeout=20)


def test_a_missing_pause_program_is_named_with_its_package(pause: Path) -> None:
    pause.unlink()
    with pytest.raises(ToolError, match="apt-get install catatonit"):
        archive("pause")


def test_an_image_is_of_a_program_that_there_is() -> None:
    known = {name for tool in PARTS.values() for name in tool.names} | {"pause", "prometheus"}
    assert set(IMAGES) <= known
