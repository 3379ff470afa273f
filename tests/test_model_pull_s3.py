"""`llm-ray model pull s3://…` against moto's S3 server with a versioned bucket."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from llm_ray.errors import ConfigError
from llm_ray.model_pull import directory, s3
from llm_ray.model_pull.directory import PullError
from llm_ray.model_pull.manifest import make_manifest
from llm_ray.model_pull.source import parse_source
from llm_ray.model_store import is_complete
from tests.support.breaking_off import breaking_off
from tests.support.pulling import contents, environment, model, start

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model-1.safetensors": bytes(range(256)) * 20_000,
    "sub/model-2.safetensors": bytes(reversed(range(256))) * 5_000,
}
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "very-secret", "AWS_REGION": "us-east-1"}


@dataclass
class Bucket:
    client: Any
    name: str
    url: str

    def put(self, name: str, content: bytes) -> str:
        return str(self.client.put_object(Bucket=self.name, Key=f"models/small/{name}", Body=content)["VersionId"])

    def upload(self, files: dict[str, bytes], entries: Any = None) -> tuple[str, str, str]:
        """Files and their manifest: the source and its two pins."""
        for name, content in files.items():
            self.put(name, content)
        return self.publish({"files": entries or described(files)})

    def publish(self, manifest: Any) -> tuple[str, str, str]:
        text = json.dumps(manifest).encode()
        return f"s3://{self.name}/models/small/manifest.json", self.put("manifest.json", text), sha256(text)

    def env(self, folder: Path) -> dict[str, str]:
        return environment(folder, AWS_ENDPOINT_URL=self.url, **CREDENTIALS)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def described(files: dict[str, bytes]) -> dict[str, Any]:
    return {name: {"size": len(content), "sha256": sha256(content)} for name, content in files.items()}


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def bucket(store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for key, value in {"AWS_ENDPOINT_URL": store, **CREDENTIALS}.items():
        monkeypatch.setenv(key, value)
    client = boto3.client("s3", endpoint_url=store, region_name="us-east-1")
    name = "b" + sha256(request.node.name.encode())[:20]
    client.create_bucket(Bucket=name)
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return Bucket(client, name, store)


def pull(source: tuple[str, str, str], home: Path, **options: Any) -> list[str]:
    said: list[str] = []
    directory.pull(parse_source(*source), home, log=said.append, **options)
    return said


def flags(source: tuple[str, str, str], home: Path) -> list[str]:
    return ["pull", source[0], str(home), f"--version-id={source[1]}", f"--sha256={source[2]}"]


def test_a_pinned_model_comes_whole_and_the_next_asks_nobody(bucket: Bucket, tmp_path: Path) -> None:
    source, env = bucket.upload(FILES), bucket.env(tmp_path / "env")
    done = model(*flags(source, tmp_path / "m"), env=env)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "m") == FILES
    assert is_complete(tmp_path / "m")
    assert "very-secret" not in done.stderr
    done = model(*flags(source, tmp_path / "m"), env=env | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'm'}\n")


def test_the_manifest_command_prints_what_pull_reads(bucket: Bucket, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    for name, content in (FILES | {".cache/x": b"hidden", "complete.json": b"{}"}).items():
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).write_bytes(content)
    done = model("manifest", str(origin), env=environment(tmp_path / "env"))
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made == {"files": described(FILES)}
    for name, content in FILES.items():
        bucket.put(name, content)
    pull(bucket.publish(made), tmp_path / "m")
    assert contents(tmp_path / "m") == FILES
    assert make_manifest(tmp_path / "m") == made
    (origin / "config.json").unlink()
    done = model("manifest", str(origin), env=environment(tmp_path / "env"))
    assert (done.returncode, "has no config.json" in done.stderr) == (2, True)


def test_of_several_at_once_one_downloads_and_all_succeed(bucket: Bucket, tmp_path: Path) -> None:
    source, env = bucket.upload(FILES), bucket.env(tmp_path / "env")
    pulls = [start(*flags(source, tmp_path / "m"), env=env) for _ in range(4)]
    outcomes = [pull.communicate(timeout=120) for pull in pulls]
    assert [pull.returncode for pull in pulls] == [0] * 4, outcomes
    fetched = [line for _, err in outcomes for line in err.splitlines() if line.startswith("fetched ")]
    assert len(fetched) == len(FILES)
    assert contents(tmp_path / "m") == FILES


def test_a_changed_object_under_the_same_name_is_refused_and_nothing_of_it_is_kept(bucket, tmp_path):
    source = bucket.upload(FILES)
    bucket.put("tokenizer.json", b"[]")
    with pytest.raises(
        ConfigError, match=r"tokenizer\.json has 2 bytes, sha256 \w+; the manifest says 2 bytes, sha256"
    ):
        pull(source, tmp_path / "m")
    assert "tokenizer.json" not in contents(tmp_path / "m")
    assert not is_complete(tmp_path / "m")


def test_a_pinned_version_is_had_after_the_object_has_changed(bucket: Bucket, tmp_path: Path) -> None:
    entries = described(FILES)
    for name, content in FILES.items():
        entries[name]["versionId"] = bucket.put(name, content)
    source = bucket.publish({"files": entries})
    bucket.put("tokenizer.json", b"[]")
    bucket.publish({"files": {}})
    pull(source, tmp_path / "m")
    assert contents(tmp_path / "m") == FILES


@pytest.mark.parametrize("content", [FILES["model-1.safetensors"][:-1], FILES["model-1.safetensors"] + b"x"])
def test_an_object_of_another_size_is_refused(bucket: Bucket, tmp_path: Path, content: bytes) -> None:
    source = bucket.upload(FILES)
    bucket.put("model-1.safetensors", content)
    with pytest.raises(ConfigError, match=r"model-1\.safetensors has .* bytes"):
        pull(source, tmp_path / "m")
    assert "model-1.safetensors" not in contents(tmp_path / "m")


def test_another_manifest_than_the_pinned_one_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    source = bucket.upload(FILES)
    with pytest.raises(ConfigError, match=f"has sha256 {source[2]}, expected {'0' * 64}"):
        pull((source[0], source[1], "0" * 64), tmp_path / "m")
    assert contents(tmp_path / "m") == {}


def test_a_second_attempt_fetches_only_what_is_missing_or_damaged(bucket: Bucket, tmp_path: Path) -> None:
    source = bucket.upload(FILES)
    bucket.client.delete_object(Bucket=bucket.name, Key="models/small/config.json")
    with pytest.raises(ConfigError, match=r"config\.json: the store refused it \(NoSuchKey"):
        pull(source, tmp_path / "m")
    bucket.put("config.json", FILES["config.json"])
    for name, content in FILES.items():
        if name != "config.json":
            (tmp_path / "m" / name).parent.mkdir(exist_ok=True)
            (tmp_path / "m" / name).write_bytes(content)
    (tmp_path / "m" / "tokenizer.json").write_bytes(b"[]")  # the right size, and wrong
    said = pull(source, tmp_path / "m")
    assert {line.split()[1].strip(",") for line in said if line.startswith("fetched ")} == {
        "config.json",
        "tokenizer.json",
    }
    assert contents(tmp_path / "m") == FILES


def test_another_version_in_the_same_directory_is_refused_with_the_fix(bucket: Bucket, tmp_path: Path) -> None:
    pull(bucket.upload(FILES), tmp_path / "m")
    with pytest.raises(ConfigError, match="give each model and revision a directory of its own"):
        pull(bucket.upload(FILES | {"tokenizer.json": b"[]"}), tmp_path / "m")


def test_too_little_room_is_told_before_the_first_file(bucket: Bucket, tmp_path: Path) -> None:
    source = bucket.upload(FILES)
    with pytest.raises(PullError, match="are still to come: use a larger volume"):
        pull(source, tmp_path / "m", free=lambda home: 1000)
    assert contents(tmp_path / "m") == {}


def test_a_disk_that_fills_up_meanwhile_leaves_no_half_file(bucket, tmp_path, monkeypatch):
    source = bucket.upload(FILES)

    def full(temporary: Path, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(temporary))

    monkeypatch.setattr(s3, "settle", full)
    with pytest.raises(PullError, match=r"No space left on device.*large enough"):
        pull(source, tmp_path / "m")
    assert not list((tmp_path / "m").rglob("*.part"))


@pytest.mark.parametrize(
    "name", ["../escape", "/etc/passwd", "a/../../b", "a//b", "./a", ".lock", "complete.json", "a\\b", "a/.b", "", "\0"]
)
def test_names_that_leave_the_directory_or_are_ours_are_refused(bucket: Bucket, tmp_path: Path, name: str) -> None:
    source = bucket.publish({"files": described({"config.json": b"{}", name: b"x"})})
    with pytest.raises(ConfigError, match="names must be relative"):
        pull(source, tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_link_that_leads_out_of_the_directory_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    source = bucket.upload(FILES)
    (tmp_path / "m").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "m" / "sub").symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match="leads out of it through a link: remove the link"):
        pull(source, tmp_path / "m")
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize(
    "manifest",
    [
        [],
        {},
        {"files": {}},
        {"files": []},
        {"files": {"config.json": 5}},
        {"files": {"config.json": {"size": -1, "sha256": "a" * 64}}},
        {"files": {"config.json": {"size": True, "sha256": "a" * 64}}},
        {"files": {"config.json": {"size": 1, "sha256": "A" * 64}}},
        {"files": {"config.json": {"size": 1, "sha256": "a" * 64, "extra": 1}}},
        {"files": {"config.json": {"size": 1, "sha256": "a" * 64, "versionId": 7}}},
        {"files": {"model.safetensors": {"size": 1, "sha256": "a" * 64}}},
    ],
)
def test_what_is_no_manifest_is_refused(bucket: Bucket, tmp_path: Path, manifest: Any) -> None:
    with pytest.raises(ConfigError, match=r"manifest|has no config\.json"):
        pull(bucket.publish(manifest), tmp_path / "m")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version_id": "nowhere"}, r"the store refused it \("),
        ({"bucket": "no-such-bucket"}, r"the store refused it \(NoSuchBucket"),
    ],
)
def test_what_the_store_refuses_is_told_with_its_words(bucket, tmp_path, change, message):
    source = bucket.upload(FILES)
    url = source[0].replace(bucket.name, change.get("bucket", bucket.name))
    with pytest.raises(ConfigError, match=message):
        pull((url, change.get("version_id", source[1]), source[2]), tmp_path / "m")


def test_a_store_that_is_not_there_and_missing_credentials_say_what_to_set(bucket: Bucket, tmp_path: Path) -> None:
    source, env = bucket.upload(FILES), bucket.env(tmp_path / "env")
    none = {key: value for key, value in env.items() if not key.startswith("AWS_")}
    done = model(*flags(source, tmp_path / "m"), env=none | {"AWS_EC2_METADATA_DISABLED": "true"})
    assert done.returncode == 2
    assert "Unable to locate credentials: set AWS_ACCESS_KEY_ID" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("times", "succeeds"), [(1, True), (1000, False)])
def test_a_connection_that_breaks_off_is_tried_again(bucket, tmp_path, monkeypatch, times, succeeds):
    source = bucket.upload(FILES)
    with breaking_off(times, bucket.url) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        if succeeds:
            pull(source, tmp_path / "m")
            assert contents(tmp_path / "m") == FILES
        else:
            with pytest.raises(PullError, match=r"safetensors broke off 3 times .*: try again"):
                pull(source, tmp_path / "m")
            assert not is_complete(tmp_path / "m")
            assert not list((tmp_path / "m").rglob("*.part"))
