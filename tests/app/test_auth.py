"""API keys: who gets in, how much, and what a changed file does. The clock is the test's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from llm_ray.api.auth import KeyRing, hash_key, new_key
from llm_ray.api.errors import AuthenticationError, RateLimitError
from llm_ray.errors import ConfigError
from llm_ray.tokenizer import Tokenizer
from tests.app.conftest import openai_client
from tests.app.front import MODEL, Front, call, serving, wait_for

OPEN_PATHS = ["/healthz", "/readyz", "/stats", "/openapi.json"]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def write_keys(path: Path, *keys: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump({"keys": list(keys)}))


def entry(name: str, secret: str, **limits: int) -> dict[str, Any]:
    return {"name": name, "sha256": hash_key(secret), **limits}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_ring(path: Path, clock: Clock, *keys: dict[str, Any]) -> KeyRing:
    write_keys(path / "keys.yaml", *keys)
    return KeyRing(path / "keys.yaml", clock=clock)


def test_only_a_key_of_the_file_gets_in(tmp_path: Path, clock: Clock) -> None:
    ring = make_ring(tmp_path, clock, entry("a", "secret-a"), entry("b", "secret-b"))
    assert ring.enter("secret-a").name == "a"
    assert ring.enter("secret-b").name == "b"
    for wrong in (None, "", "secret-c", hash_key("secret-a"), "secret-a ", "\udcff"):
        with pytest.raises(AuthenticationError):
            ring.enter(wrong)


def test_requests_per_minute_refill_with_time(tmp_path: Path, clock: Clock) -> None:
    ring = make_ring(tmp_path, clock, entry("a", "s", requests_per_minute=3))
    for _ in range(3):
        ring.enter("s").close()
    with pytest.raises(RateLimitError) as refused:
        ring.enter("s")
    assert refused.value.retry_after_s == pytest.approx(20)
    clock.now += 20.01
    ring.enter("s").close()
    with pytest.raises(RateLimitError):
        ring.enter("s")


def test_tokens_per_minute_are_paid_after_the_answer(tmp_path: Path, clock: Clock) -> None:
    ring = make_ring(tmp_path, clock, entry("a", "s", tokens_per_minute=600))
    lease = ring.enter("s")
    lease.charge(900)
    lease.close()
    with pytest.raises(RateLimitError) as refused:
        ring.enter("s")
    assert refused.value.retry_after_s == pytest.approx(30.1)
    clock.now += 30.2
    ring.enter("s").close()


def test_concurrency_is_freed_once_however_often_a_lease_is_closed(tmp_path: Path, clock: Clock) -> None:
    ring = make_ring(tmp_path, clock, entry("a", "s", max_concurrency=2), entry("b", "t", max_concurrency=1))
    first, _second = ring.enter("s"), ring.enter("s")
    ring.enter("t")
    with pytest.raises(RateLimitError):
        ring.enter("s")
    first.close()
    first.close()
    ring.enter("s")
    with pytest.raises(RateLimitError):
        ring.enter("s")


def test_a_refused_request_costs_nothing(tmp_path: Path, clock: Clock) -> None:
    ring = make_ring(tmp_path, clock, entry("a", "s", max_concurrency=1, requests_per_minute=2))
    lease = ring.enter("s")
    for _ in range(5):
        with pytest.raises(RateLimitError, match="max_concurrency"):
            ring.enter("s")
    lease.close()
    ring.enter("s").close()


def test_a_changed_file_counts_within_a_second_and_keeps_what_was_used(tmp_path: Path, clock: Clock) -> None:
    ring = make_ring(tmp_path, clock, entry("a", "s", requests_per_minute=2), entry("b", "t"))
    ring.enter("s").close()
    write_keys(tmp_path / "keys.yaml", entry("a", "rotated", requests_per_minute=2), entry("c", "u"))
    clock.now += 1.1
    with pytest.raises(AuthenticationError):
        ring.enter("s")
    with pytest.raises(AuthenticationError):
        ring.enter("t")
    ring.enter("u").close()
    ring.enter("rotated").close()
    with pytest.raises(RateLimitError):
        ring.enter("rotated")


def test_an_atomic_symlink_swap_is_noticed(tmp_path: Path, clock: Clock) -> None:
    """How Kubernetes updates a mounted Secret: keys.yaml -> ..data/keys.yaml, ..data -> a dated directory."""
    for version, secret in (("v1", "old"), ("v2", "new")):
        (tmp_path / version).mkdir()
        write_keys(tmp_path / version / "keys.yaml", entry("a", secret))
        os.utime(tmp_path / version / "keys.yaml", (1, 1))
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "keys.yaml").symlink_to("..data/keys.yaml")
    ring = KeyRing(tmp_path / "keys.yaml", clock=clock)
    ring.enter("old").close()
    (tmp_path / "..data_tmp").symlink_to("v2")
    os.replace(tmp_path / "..data_tmp", tmp_path / "..data")
    clock.now += 1.1
    ring.enter("new").close()
    with pytest.raises(AuthenticationError):
        ring.enter("old")


@pytest.mark.parametrize("broken", ["keys: [", "other: 1", "keys: [{name: a}]", "keys: 3", "\x00"])
def test_a_broken_new_file_keeps_the_old_keys(
    tmp_path: Path, clock: Clock, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    ring = make_ring(tmp_path, clock, entry("a", "s"))
    (tmp_path / "keys.yaml").write_text(broken)
    clock.now += 1.1
    ring.enter("s").close()
    assert "event=api_keys_kept" in caplog.text
    (tmp_path / "keys.yaml").unlink()
    clock.now += 1.1
    ring.enter("s").close()


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ([{"name": "a", "sha256": "12"}], r"keys\[0\].sha256"),
        ([{"name": "", "sha256": "0" * 64}], r"keys\[0\].name"),
        ([{"name": "a", "sha256": "0" * 64, "secret": "x"}], r"keys\[0\] must be a mapping"),
        ([{"name": "a", "sha256": "0" * 64, "tokens_per_minute": 0}], "tokens_per_minute"),
        ([{"name": "a", "sha256": "0" * 64, "max_concurrency": True}], "max_concurrency"),
        ([entry("a", "s"), entry("a", "t")], "same name"),
        ([entry("a", "s"), entry("b", "s")], "same sha256"),
    ],
)
def test_a_bad_file_at_start_is_refused_by_the_entrys_name(
    tmp_path: Path, clock: Clock, keys: list[dict[str, Any]], match: str
) -> None:
    with pytest.raises(ConfigError, match=match) as refused:
        make_ring(tmp_path, clock, *keys)
    assert hash_key("s") not in str(refused.value)


def test_new_keys_are_long_and_different() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("sk-") and len(key) > 40 for key in keys)


@pytest.fixture
def guarded(tokenizer: Tokenizer, tmp_path: Path) -> Iterator[Front]:
    write_keys(
        tmp_path / "keys.yaml",
        entry("free", "free"),
        entry("slow", "slow", requests_per_minute=2),
        entry("small", "small", tokens_per_minute=10),
        entry("single", "single", max_concurrency=1),
    )
    with serving(tokenizer, step_s=0.01, api_keys_file=str(tmp_path / "keys.yaml")) as made:
        yield made


def complete(guarded: Front, key: str, max_tokens: int = 2) -> Any:
    with openai_client(guarded.url, key) as client:
        return client.completions.create(model=MODEL, prompt="Once upon", max_tokens=max_tokens)


async def test_every_path_but_the_open_ones_wants_a_key(guarded: Front) -> None:
    for path in OPEN_PATHS:
        assert (await call(guarded.app, "GET", path)).status == 200
    for method, path in [
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/x"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("POST", "/llm_backend"),
    ]:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic free"}):
            reply = await call(guarded.app, method, path, b"not json", headers=headers)
            assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
            assert reply.headers["www-authenticate"] == "Bearer"
    reply = await call(guarded.app, "GET", "/v1/models", headers={"authorization": "bearer free"})
    assert reply.status == 200


def test_the_client_sees_401_and_429_as_its_own_errors(guarded: Front) -> None:
    with pytest.raises(openai.AuthenticationError):
        complete(guarded, "wrong")
    for _ in range(2):
        complete(guarded, "slow")
    with pytest.raises(openai.RateLimitError) as limited:
        complete(guarded, "slow")
    assert limited.value.code == "rate_limit_exceeded"
    assert 1 <= int(limited.value.response.headers["retry-after"]) <= 30
    complete(guarded, "free")


def test_prompt_and_answer_tokens_both_count(guarded: Front) -> None:
    complete(guarded, "small", max_tokens=2)
    complete(guarded, "small", max_tokens=8)
    with pytest.raises(openai.RateLimitError, match="tokens_per_minute"):
        complete(guarded, "small")


def test_an_open_stream_holds_its_keys_concurrency_until_it_ends(guarded: Front) -> None:
    with openai_client(guarded.url, "single") as client:
        stream = client.completions.create(model=MODEL, prompt="a", max_tokens=400, stream=True)
        next(stream)
        with pytest.raises(openai.RateLimitError, match="max_concurrency"):
            complete(guarded, "single")
        stream.close()
        wait_for(lambda: guarded.engine.num_open == 0)
        complete(guarded, "single")
