"""Around the decisions: the queue, the routes of events, events by name, flags and probes."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

from llm_ray import cli
from llm_ray.scaler.election import Lease
from llm_ray.scaler.health import STALE_S, Health
from llm_ray.scaler.kube import ConflictError, ForbiddenError, NotFoundError, _checked
from llm_ray.scaler.model import Key, Scale
from llm_ray.scaler.queue import LONGEST_BACKOFF_S, Queue
from llm_ray.scaler.reconcile import _rival, event_of
from llm_ray.scaler.report import Notice
from llm_ray.scaler.routes import Routes

A, B = Key("ns", "a"), Key("ns", "b")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def scale(key: Key = A, kind: str = "RayCluster", target: str = "rc", created: str = "1") -> Scale:
    return Scale(key, "uid", 1, kind, target, "gpu", 1, created=created)


def test_a_key_is_given_once_and_not_while_it_is_worked_on() -> None:
    queue = Queue()
    for key in (A, A, B):
        queue.add(key, 0)
    assert {queue.get(0), queue.get(0)} == {A, B}
    queue.add(A, 0)
    assert queue.get(0) is None
    queue.done(A)
    assert queue.get(0) == A


def test_failures_wait_longer_and_longer_and_a_success_ends_that() -> None:
    clock = Clock()
    queue = Queue(clock)
    waits = []
    for _ in range(12):
        queue.add(A, 0)
        assert queue.get(0) == A
        waits.append(queue.failed(A))
        assert queue.get(0) is None
        clock.now += waits[-1]
        assert queue.get(0) == A
        queue.failed(A)
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_BACKOFF_S
    queue.add(A, 0)
    queue.get(0)
    queue.done(A, 5.0)
    assert queue.get(0) is None
    clock.now += 5.0
    assert queue.get(0) == A
    assert queue.failed(A) < 1.0


def test_closing_waits_for_what_is_worked_on() -> None:
    queue = Queue()
    queue.add(A, 0)
    queue.get(0)
    assert not queue.close(0)
    timer = threading.Timer(0.05, queue.done, [A])
    timer.start()
    assert queue.close(10)
    assert queue.get() is None


def body(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name, **metadata}}


def test_events_concern_those_that_target_them() -> None:
    routes = Routes()
    routes.only([scale(A), scale(B, "RayService", "svc")])
    assert routes.of_cluster(body("rc")) == [A]
    assert routes.of_cluster(body("svc-x1y2z", labels={"ray.io/originated-from-cr-name": "svc"})) == [B]
    assert routes.of_service(body("svc")) == [B]
    assert sorted(routes.of_pod(body("p", labels={"ray.io/group": "gpu"}))) == [A, B]
    assert routes.of_pod(body("p", labels={"ray.io/group": "cpu"})) == []
    assert routes.of_pod({"metadata": {"namespace": "else", "name": "p", "labels": {"ray.io/group": "gpu"}}}) == []
    routes.gone(A)
    assert routes.of_cluster(body("rc")) == []


def test_the_oldest_object_of_a_group_has_it() -> None:
    old, new = scale(B, created="1"), scale(A, created="2")
    assert _rival(new, [new, old]) == "b"
    assert _rival(old, [new, old]) == ""
    assert _rival(new, [new, scale(B, target="other")]) == ""


def test_an_event_has_the_same_name_when_it_is_posted_again() -> None:
    notice = Notice("Reason", "message", True, "Ready True Scaled 2026")
    first, again = event_of(scale(), notice, "now"), event_of(scale(), notice, "later")
    assert first["metadata"]["name"] == again["metadata"]["name"]
    other = event_of(scale(), Notice("Reason", "message", True, "another time"), "now")
    assert other["metadata"]["name"] != first["metadata"]["name"]


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (404, NotFoundError, "gone"),
        (403, ForbiddenError, "must be allowed to patch rayclusters.ray.io"),
        (409, ConflictError, "gone"),
        (422, ConflictError, "gone"),
    ],
)
def test_an_answer_of_the_api_becomes_the_error_that_it_is(status: int, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        _checked("PATCH /x", "patch rayclusters.ray.io", status, b'{"message": "gone"}')


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "lease-namespace is not set"),
        (["--lease-namespace", "x", "--lease-s", "1"], "lease-s \\(1\\)"),
        (["--lease-namespace", "x", "--log-level", "loud"], "log-level \\(loud\\)"),
        (["--lease-namespace", "x", "--health-port", "70000"], "health-port \\(70000\\)"),
    ],
)
def test_a_wrong_flag_is_refused_before_anything_starts(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POD_NAMESPACE", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["scaler", *flags]) == 2
    assert re.search(words, capsys.readouterr().err)


def test_without_access_it_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert cli.main(["scaler", "--lease-namespace", "x"]) == 2
    assert "give --kubeconfig" in capsys.readouterr().err


@pytest.mark.parametrize("duration_s", [5, 15, 60])
def test_a_leader_has_stopped_before_its_lease_is_over(duration_s: int) -> None:
    lease = Lease("ns", "name", duration_s)
    assert lease.renew_s + 2 * lease.request_s <= duration_s
    assert lease.renew_s > 1.2 * lease.retry_s  # or the client refuses it


def status_of(health: Health, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{health.port}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_standby_is_well_and_a_leader_that_stands_still_is_not() -> None:
    clock = Clock()
    health = Health(0, clock)
    assert (status_of(health, "/healthz"), status_of(health, "/readyz"), status_of(health, "/")) == (200, 200, 404)
    health.beat()
    clock.now += STALE_S
    assert (status_of(health, "/healthz"), status_of(health, "/readyz")) == (503, 200)
