"""`llm-ray model pull hf://…` against a small hub on this machine, and what holds for every source."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_ray.errors import ConfigError
from llm_ray.model_pull import directory
from llm_ray.model_pull.directory import Fetched, PullError
from llm_ray.model_pull.source import parse_source
from llm_ray.model_store import is_complete
from tests.support.hub import COMMIT, NEWER, REPO, Hub, hub
from tests.support.pulling import contents, environment, eventually, model, start

SOURCE = f"hf://{REPO}@{COMMIT}"


@pytest.fixture
def served() -> Iterator[Hub]:
    with hub() as made:
        yield made


def checkpoint(served: Hub) -> dict[str, bytes]:
    return {name: content for name, content in served.files.items() if name != "README.md"}


def test_a_pull_brings_the_checkpoint_and_a_marker_and_prints_the_directory(served: Hub, tmp_path: Path) -> None:
    home = tmp_path / "models" / "name"
    env = environment(tmp_path / "env", HF_ENDPOINT=served.url)
    done = model("pull", SOURCE, str(home), env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{home}\n"
    assert contents(home) == checkpoint(served)
    assert is_complete(home)
    assert json.loads((home / "source.json").read_text()) == {"source": SOURCE, "revision": COMMIT}
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in home.iterdir() if path.suffix == ".json")


def test_a_complete_directory_needs_no_hub(served: Hub, tmp_path: Path) -> None:
    env = environment(tmp_path / "env", HF_ENDPOINT=served.url)
    assert model("pull", SOURCE, str(tmp_path / "m"), env=env).returncode == 0
    done = model("pull", SOURCE, str(tmp_path / "m"), env=env | {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'm'}\n")


def test_a_tag_is_recorded_with_its_commit_and_a_branch_is_refused_with_its_own(served: Hub, tmp_path: Path) -> None:
    env = environment(tmp_path / "env", HF_ENDPOINT=served.url)
    assert model("pull", f"hf://{REPO}@v1", str(tmp_path / "m"), env=env).returncode == 0
    assert json.loads((tmp_path / "m" / "source.json").read_text())["revision"] == COMMIT
    done = model("pull", f"hf://{REPO}@main", str(tmp_path / "n"), env=env)
    assert done.returncode == 2
    assert f"main is a branch, which moves: give hf://{REPO}@{NEWER}" in done.stderr


def test_another_revision_in_the_same_directory_is_refused(served: Hub, tmp_path: Path) -> None:
    env = environment(tmp_path / "env", HF_ENDPOINT=served.url)
    assert model("pull", SOURCE, str(tmp_path / "m"), env=env).returncode == 0
    done = model("pull", f"hf://{REPO}@{NEWER}", str(tmp_path / "m"), env=env)
    assert done.returncode == 2
    assert f"holds {SOURCE}, not hf://{REPO}@{NEWER}: give each model and revision a directory" in done.stderr
    assert is_complete(tmp_path / "m")


def test_of_several_at_once_one_downloads_and_all_succeed(served: Hub, tmp_path: Path) -> None:
    served.gate.clear()
    env = environment(tmp_path / "env", HF_ENDPOINT=served.url)
    pulls = [start("pull", SOURCE, str(tmp_path / "m"), env=env) for _ in range(4)]
    assert served.arrived.wait(60)
    served.gate.set()
    outcomes = [(pull.communicate(timeout=120), pull.returncode) for pull in pulls]
    assert [code for _, code in outcomes] == [0] * 4, outcomes
    assert served.downloads.count("model.safetensors") == 1
    assert contents(tmp_path / "m") == checkpoint(served)


def test_when_the_downloader_is_killed_the_next_goes_on(served: Hub, tmp_path: Path) -> None:
    served.gate.clear()
    env = environment(tmp_path / "env", HF_ENDPOINT=served.url)
    first = start("pull", SOURCE, str(tmp_path / "m"), env=env)
    assert served.arrived.wait(60)
    second = start("pull", SOURCE, str(tmp_path / "m"), env=env)
    said = second.stderr.readline() if second.stderr else ""
    assert f"(pid {second.pid}) waits for" in said
    assert f"(pid {first.pid}), which pulls into {tmp_path / 'm'}" in said
    assert second.poll() is None
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    served.gate.set()
    second.communicate(timeout=120)
    assert second.returncode == 0
    assert contents(tmp_path / "m") == checkpoint(served)


def test_the_timeout_ends_a_pull_that_hangs(served: Hub, tmp_path: Path) -> None:
    served.gate.clear()
    env = environment(tmp_path / "env", HF_ENDPOINT=served.url)
    done = model("pull", SOURCE, str(tmp_path / "m"), "--timeout=3", env=env)
    assert done.returncode == 1
    assert f"{SOURCE} was not in {tmp_path / 'm'} within --timeout (3 s)" in done.stderr
    assert not is_complete(tmp_path / "m")


def test_the_token_is_sent_and_a_missing_one_is_named(served: Hub, tmp_path: Path) -> None:
    served.token = "hf_secret"
    env = environment(tmp_path / "env", HF_ENDPOINT=served.url)
    done = model("pull", SOURCE, str(tmp_path / "m"), env=env)
    assert done.returncode == 2
    assert "set HF_TOKEN for a gated or private model" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    done = model("pull", SOURCE, str(tmp_path / "m"), env=env | {"HF_TOKEN": "hf_secret"})
    assert done.returncode == 0, done.stderr
    assert "hf_secret" not in done.stderr


def test_other_weights_than_the_hub_lists_are_refused_and_removed(served: Hub, tmp_path: Path) -> None:
    served.lies["model.safetensors"] = bytes(len(served.files["model.safetensors"]))
    env = environment(tmp_path / "env", HF_ENDPOINT=served.url)
    done = model("pull", SOURCE, str(tmp_path / "m"), env=env)
    assert done.returncode == 1
    assert "model.safetensors has not the sha256" in done.stderr
    assert not (tmp_path / "m" / "model.safetensors").exists()
    served.lies.clear()
    assert model("pull", SOURCE, str(tmp_path / "m"), env=env).returncode == 0
    assert served.downloads.count("config.json") == 1


def test_an_unreachable_hub_and_an_unknown_revision_say_so(served: Hub, tmp_path: Path) -> None:
    env = environment(tmp_path / "env", HF_ENDPOINT="http://127.0.0.1:9")
    done = model("pull", SOURCE, str(tmp_path / "m"), env=env)
    assert done.returncode == 1
    assert f"{SOURCE}: the download failed" in done.stderr
    env = environment(tmp_path / "env", HF_ENDPOINT=served.url)
    done = model("pull", f"hf://{REPO}@nowhere", str(tmp_path / "m"), env=env)
    assert done.returncode == 2
    assert "check name and revision" in done.stderr


def test_a_model_without_a_config_is_refused_before_the_download(tmp_path: Path) -> None:
    with hub() as served:
        del served.files["config.json"]
        env = environment(tmp_path / "env", HF_ENDPOINT=served.url)
        done = model("pull", SOURCE, str(tmp_path / "m"), env=env)
        assert done.returncode == 2
        assert "has no config.json: it is no Hugging Face checkpoint" in done.stderr
        assert served.downloads == []


@pytest.mark.parametrize(
    ("source", "version_id", "sha256", "message"),
    [
        ("owner/name", "", "", r"source \('owner/name'\) must be one of hf://OWNER/NAME@COMMIT, s3://"),
        ("", "", "", r"source \(''\) must be one of"),
        ("hf://owner/name", "", "", "has no revision: add @ and a commit or tag"),
        ("hf://name@v1", "", "", "must have the form hf://OWNER/NAME@COMMIT"),
        (SOURCE, "v", "", "are for s3:// sources"),
        ("smollm2:int4", "", "", "must be one of float32, bfloat16"),
        ("s3://bucket/model/", "v", "a" * 64, "must name a manifest, like s3://BUCKET/PREFIX/manifest.json"),
        ("s3://Bucket!/m.json", "v", "a" * 64, "must name a manifest"),
        ("s3://bucket/m.json", "", "a" * 64, "needs --version-id and --sha256"),
        ("s3://bucket/m.json", "v", "", "needs --version-id and --sha256"),
        ("s3://bucket/m.json", "v", "xyz", r"--sha256 \(xyz\) must have 64 hex digits"),
    ],
)
def test_a_source_that_is_none_or_not_pinned_is_refused(
    source: str, version_id: str, sha256: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_source(source, version_id, sha256)


class Small:
    """A source that writes one file, or what the test makes of it."""

    def __init__(self, name: str = "a") -> None:
        self.identity = {"source": name}
        self.calls = 0

    def fetch(self, home: Path, log: directory.Log, free: directory.FreeBytes) -> Fetched:
        self.calls += 1
        directory.check_space(home, 1000, free)
        (home / "config.json").write_text("{}")
        return Fetched({"config.json": 2}, "r")


def quiet(text: str) -> None:
    pass


def test_too_little_room_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(PullError, match=r"has 0\.00 GiB free, and 0\.00 GiB are still to come: use a larger volume"):
        directory.pull(Small(), tmp_path / "m", log=quiet, free=lambda home: 999)
    assert contents(tmp_path / "m") == {}
    directory.pull(Small(), tmp_path / "m", log=quiet, free=lambda home: 1000)
    assert is_complete(tmp_path / "m")


def test_leftovers_of_another_unfinished_pull_are_cleared_away(tmp_path: Path) -> None:
    home = tmp_path / "m"
    (home / "sub").mkdir(parents=True)
    (home / "sub" / "other.safetensors").write_text("x")
    (home / "source.json").write_text('{"source": "b"}')
    directory.pull(Small(), home, log=quiet)
    assert contents(home) == {"config.json": b"{}"}


def test_files_that_nobody_has_claimed_are_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "m"
    (home / "lost+found").mkdir(parents=True)
    (home / "notes.txt").write_text("mine")
    directory.pull(Small(), home, log=quiet)
    assert contents(home) == {"config.json": b"{}", "notes.txt": b"mine"}


def test_a_file_lost_after_completion_is_fetched_again(tmp_path: Path) -> None:
    source = Small()
    directory.pull(source, tmp_path / "m", log=quiet)
    directory.pull(source, tmp_path / "m", log=quiet)
    assert source.calls == 1
    (tmp_path / "m" / "config.json").unlink()
    directory.pull(source, tmp_path / "m", log=quiet)
    assert source.calls == 2


def test_the_one_who_waits_says_so_again_and_again(tmp_path: Path) -> None:
    said: list[str] = []
    with directory.locked(tmp_path, quiet):
        import threading

        over = threading.Event()

        def wait() -> None:
            with directory.locked(tmp_path, said.append, report_s=0.05):
                over.set()

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: len(said) >= 3, "three lines")
        assert not over.is_set()
    thread.join(60)
    assert over.is_set()
    assert all("waits for" in line and f"which pulls into {tmp_path}" in line for line in said)


def test_a_directory_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PullError, match="it must be writable"):
        directory.pull(Small(), tmp_path / "file", log=quiet)


def test_the_demo_model_is_copied_as_it_is(smollm2: Path, tmp_path: Path) -> None:
    directory.pull(parse_source("smollm2"), tmp_path / "m", log=quiet)
    assert {p.name: p.stat().st_size for p in smollm2.iterdir()} == {
        p.name: p.stat().st_size for p in (tmp_path / "m").iterdir() if p.name in {q.name for q in smollm2.iterdir()}
    }
    assert is_complete(tmp_path / "m")
