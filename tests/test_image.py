"""The image's parts that need neither root nor a network: the Dockerfile's parser, layers, and the entrypoint."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from ci import debian, oci
from ci.dockerfile import DockerfileError, Mount, parse
from ci.image import config_of, digest_of

ROOT = Path(__file__).resolve().parents[1]
ENTRYPOINT = ROOT / "app/entrypoint.sh"


def parsed(tmp_path: Path, text: str, **args: str):
    file = tmp_path / "Dockerfile"
    file.write_text(text)
    return parse(file, args)


def test_our_dockerfile_runs_as_an_ordinary_user_under_an_init():
    dockerfile = parse(ROOT / "app/Dockerfile", {"VARIANT": "cpu"})
    config = config_of(dockerfile)
    assert config["User"] == "1000:1000"
    assert dockerfile.entrypoint[0] == "/usr/bin/tini"
    assert dockerfile.entrypoint[-1] == "/usr/local/bin/entrypoint.sh"


def test_what_the_dockerfile_binds_exists_and_reaches_the_build_context():
    dockerfile = parse(ROOT / "app/Dockerfile", {})
    sources = {m.source for step in dockerfile.steps for m in step.mounts if m.kind == "bind"}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sources == kept
    assert all((ROOT / source).exists() for source in sources)


def test_continuation_lines_comments_and_mounts_are_understood(tmp_path: Path):
    text = """
FROM base
ARG VARIANT=cpu
# a comment
RUN --mount=type=bind,source=a,target=/run/a \\
    --mount=type=cache,target=/c \\
    # a comment inside
    one && \\
    two
ENV A=1 B="x y"
ENTRYPOINT ["/init", "--"]
"""
    made = parsed(tmp_path, text, VARIANT="gpu")
    assert made.args == {"VARIANT": "gpu"}
    assert made.steps[0].mounts == (Mount("bind", "/run/a", "a"), Mount("cache", "/c"))
    assert made.steps[0].command.split() == ["one", "&&", "two"]
    assert made.env == {"A": "1", "B": "x y"}
    assert made.entrypoint == ["/init", "--"]


def test_an_argument_before_from_is_refused_because_run_would_not_see_it(tmp_path: Path):
    with pytest.raises(DockerfileError, match="ARG 'A=1' is not supported"):
        parsed(tmp_path, "ARG A=1\nFROM base\n")


@pytest.mark.parametrize("line", ["COPY a b", "ADD a b", "FROM second", "RUN --mount=type=ssh,target=/x true"])
def test_instructions_that_would_be_ignored_are_refused(tmp_path: Path, line: str):
    with pytest.raises(DockerfileError, match="not supported"):
        parsed(tmp_path, f"FROM base\n{line}\n")


def test_an_argument_that_the_dockerfile_does_not_have_is_refused(tmp_path: Path):
    with pytest.raises(DockerfileError, match="no ARG named VERSION"):
        parsed(tmp_path, "FROM base\n", VERSION="1")


def make_tree(folder: Path, mtime: int) -> Path:
    (folder / "d/e").mkdir(parents=True)
    (folder / "d/file").write_text("text")
    (folder / "d/program").write_text("run")
    (folder / "d/program").chmod(0o755)
    (folder / "link").symlink_to("d/file")
    os.link(folder / "d/file", folder / "same")
    for path in folder.rglob("*"):
        os.utime(path, (mtime, mtime), follow_symlinks=False)
    return folder


def test_equal_folders_are_equal_layers_whatever_their_times(tmp_path: Path):
    one, two = make_tree(tmp_path / "one", 1_000_000_000), make_tree(tmp_path / "two", 1_700_000_000)
    assert oci.measure(one) == oci.measure(two)
    (two / "d/file").write_text("other")
    assert oci.measure(one) != oci.measure(two)


def layer_of(folder: Path) -> oci.Layer:
    return oci.Layer(folder, *oci.measure(folder), created_by="test")


def test_an_archive_unpacks_to_what_was_packed(tmp_path: Path):
    layers = [layer_of(make_tree(tmp_path / "one", 5))]
    (tmp_path / "top/d").mkdir(parents=True)
    (tmp_path / "top/d/file").write_text("replaced")
    layers.append(layer_of(tmp_path / "top"))
    digest = oci.write_archive(tmp_path / "image.tar", "localhost/x:1", layers, {"User": "1000:1000"})
    again = oci.write_archive(tmp_path / "again.tar", "localhost/x:1", layers, {"User": "1000:1000"})
    assert digest == again
    assert (tmp_path / "image.tar").read_bytes() == (tmp_path / "again.tar").read_bytes()

    config = oci.unpack(tmp_path / "image.tar", tmp_path / "root")
    assert config == {"User": "1000:1000"}
    assert (tmp_path / "root/d/file").read_text() == "replaced"
    assert (tmp_path / "root/same").read_text() == "text"
    assert (tmp_path / "root/d/program").stat().st_mode & 0o777 == 0o755
    assert os.readlink(tmp_path / "root/link") == "d/file"


def test_a_damaged_archive_is_refused(tmp_path: Path):
    archive = tmp_path / "image.tar"
    oci.write_archive(archive, "localhost/x:1", [layer_of(make_tree(tmp_path / "one", 5))], {})
    data = archive.read_bytes()
    archive.write_bytes(data.replace(b"text", b"tExt", 1))
    with pytest.raises(ValueError, match="the archive is damaged"):
        oci.unpack(archive, tmp_path / "root")


def test_a_folder_that_changes_while_it_is_packed_is_noticed(tmp_path: Path):
    layer = layer_of(make_tree(tmp_path / "one", 5))
    (tmp_path / "one/d/file").write_text("TEXT")
    with pytest.raises(RuntimeError, match="changed while it was packed"):
        oci.write_archive(tmp_path / "image.tar", "localhost/x:1", [layer], {})
    assert not (tmp_path / "image.tar").exists()


def test_removed_names_and_hidden_folders_of_a_layer_are_gone_when_unpacked(tmp_path: Path):
    root = make_tree(tmp_path / "root", 5)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name in ("d/.wh.file", "d/e/.wh..wh..opq", ".wh.link"):
            tar.addfile(tarfile.TarInfo(name))
    (root / "d/e/below").write_text("hidden")
    layer.seek(0)
    oci.apply_layer(layer, root)
    left = sorted(str(p.relative_to(root)) for p in root.rglob("*"))
    assert left == ["d", "d/e", "d/program", "same"]


DEB822 = """\
Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/security
Suites: trixie-security
Components: main

Types: deb
URIs: http://vendor.example/debian
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/vendor.gpg
"""
ONE_LINE = """\
deb http://mirror.example/security trixie-security main contrib
# deb http://mirror.example/debian trixie-backports main
deb [signed-by=/usr/share/keyrings/vendor.gpg] http://vendor.example/debian trixie main
deb [arch=amd64] http://mirror.example/debian trixie main
"""


@pytest.mark.parametrize(("name", "text"), [("sources.list.d/debian.sources", DEB822), ("sources.list", ONE_LINE)])
def test_an_image_is_made_from_the_machines_own_debian_sources(tmp_path: Path, name: str, text: str):
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "os-release").write_text("ID=debian\nVERSION_CODENAME=trixie\n")
    (tmp_path / "apt" / name).write_text(text)
    found = debian.sources("bookworm", tmp_path)
    assert found[0] == debian.Source("http://mirror.example/debian", "bookworm")
    assert debian.Source("http://mirror.example/security", "bookworm-security") in found
    assert not any("vendor" in source.address for source in found)


def test_a_machine_that_is_no_debian_lends_no_sources(tmp_path: Path):
    (tmp_path / "os-release").write_text("ID=ubuntu\nVERSION_CODENAME=noble\n")
    assert debian.sources("bookworm", tmp_path) == []


def test_bytecode_does_not_change_a_steps_key_but_sources_and_modes_do(tmp_path: Path):
    source = tmp_path / "app"
    (source / "__pycache__").mkdir(parents=True)
    (source / "a.py").write_text("1")
    before = digest_of(source)
    (source / "__pycache__/a.pyc").write_text("2")
    assert digest_of(source) == before
    (source / "a.py").chmod(0o755)
    assert digest_of(source) != before


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """An environment in which ray and llm-ray print what they were called with."""
    for name in ("ray", "llm-ray"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\nprintf "%s" "$(basename "$0")"; printf " %s" "$@"\n')
        program.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def entrypoint(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", ENTRYPOINT, *args], env=env, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize(
    ("env", "args", "command"),
    [
        (
            {"RAY_ROLE": "head"},
            ["--x"],
            "ray start --head --block --port=6379 --dashboard-host=0.0.0.0 --num-cpus=0 --x",
        ),
        ({"RAY_ROLE": "worker", "RAY_HEAD_SERVICE": "h"}, [], "ray start --address=h:6379 --block"),
        (
            {"RAY_ROLE": "worker", "RAY_HEAD_SERVICE": "h", "RAY_NUM_CPUS": "4"},
            [],
            "ray start --address=h:6379 --block --num-cpus=4",
        ),
        ({"RAY_ROLE": "serve"}, ["--model", "/m m"], "llm-ray serve --host 0.0.0.0 --model /m m"),
        ({}, ["echo", "hello"], "hello"),
    ],
)
def test_the_entrypoint_starts_what_the_role_says(
    programs: dict[str, str], env: dict[str, str], args: list[str], command: str
):
    done = entrypoint(programs | env, *args)
    assert (done.returncode, done.stdout.strip()) == (0, command)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RAY_ROLE": "worker"}, "RAY_ROLE=worker needs RAY_HEAD_SERVICE"),
        ({"RAY_ROLE": "chief"}, r"RAY_ROLE (chief) must be head, worker or serve"),
        ({}, "set RAY_ROLE to head, worker or serve, or give a command"),
    ],
)
def test_the_entrypoint_refuses_what_it_cannot_start(programs: dict[str, str], env: dict[str, str], message: str):
    done = entrypoint(programs | env)
    assert done.returncode == 2
    assert message in done.stderr
