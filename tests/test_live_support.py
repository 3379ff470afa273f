"""The parts of the live suite that need no cluster: what counts as trouble, and how a stream is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.live.support.clients import parse_stream
from tests.live.support.evidence import folder_name, unpack
from tests.live.support.namespaces import unique_name
from tests.live.support.waiting import event_troubles, pod_troubles


def pod(phase: str = "Running", kind: str = "containerStatuses", **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": {"phase": phase, kind: [{"name": "c", **status}]}}


@pytest.mark.parametrize(
    "status",
    [
        {"state": {"running": {}}, "ready": True},
        {"state": {"waiting": {"reason": "PodInitializing"}}},
        {"state": {"waiting": {"reason": "ErrImagePull"}}},
        {"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}},
        {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
    ],
)
def test_a_pod_that_may_still_come_up_is_no_trouble(status: dict[str, Any]) -> None:
    assert pod_troubles([pod(**status)]) == []
    assert pod_troubles([{"metadata": {"name": "p"}}]) == []


@pytest.mark.parametrize(
    ("troubled", "words"),
    [
        (pod(state={"waiting": {"reason": "CrashLoopBackOff"}}), "container c: CrashLoopBackOff"),
        (pod(kind="initContainerStatuses", state={"waiting": {"reason": "ImagePullBackOff", "message": "no"}}), "no"),
        (
            pod(
                state={"waiting": {"reason": "CrashLoopBackOff"}},
                lastState={"terminated": {"exitCode": 2, "reason": "Error"}},
            ),
            "(exit code 2)",
        ),
        (pod(state={"running": {}}, lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), "OOMKilled"),
        (pod("Failed", state={"terminated": {"exitCode": 1}}), "pod p has failed"),
        ({"metadata": {"name": "p"}, "status": {"phase": "Failed", "reason": "Evicted"}}, "has failed Evicted"),
    ],
)
def test_a_pod_that_cannot_come_up_says_why(troubled: dict[str, Any], words: str) -> None:
    (trouble,) = pod_troubles([troubled])
    assert words in trouble.text


def test_events_of_refusals_are_trouble_and_others_are_not() -> None:
    about = {"kind": "RayCluster", "name": "a"}
    fatal = [
        {"reason": "InvalidRayClusterSpec", "message": "x", "involvedObject": about},
        {"reason": "FailedToCreateHeadPod", "message": 'violates PodSecurity "restricted"', "involvedObject": about},
    ]
    passing = [
        {"reason": "FailedScheduling", "message": "0/2 nodes are available", "involvedObject": about},
        {"reason": "Unhealthy", "message": "Startup probe failed", "involvedObject": about},
    ]
    assert [trouble.text for trouble in event_troubles([*passing, *fatal])] == [
        "RayCluster/a: InvalidRayClusterSpec: x",
        'RayCluster/a: FailedToCreateHeadPod: violates PodSecurity "restricted"',
    ]


def chunk(content: str | None, token: str | None = None, reason: str | None = None) -> str:
    logprobs = {"content": [{"token": token}]} if token else None
    delta = {} if content is None else {"content": content}
    return json.dumps({"choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}]})


def test_a_stream_is_read_with_its_tokens_and_times() -> None:
    events = [(0.1, chunk("")), (0.2, chunk("Par", "Par")), (0.4, chunk("is", "is", "stop")), (0.5, "[DONE]")]
    answer = parse_stream(events)
    assert (answer.text, answer.tokens, answer.piece_times) == ("Paris", ["Par", "is"], [0.2, 0.4])
    assert (answer.finish_reason, answer.is_done) == ("stop", True)
    assert parse_stream(events[:3]).is_done is False


def test_a_stream_with_an_error_or_a_tail_is_refused() -> None:
    with pytest.raises(AssertionError, match="engine stopped"):
        parse_stream([(0.1, json.dumps({"error": {"message": "engine stopped"}}))])
    with pytest.raises(AssertionError, match="after"):
        parse_stream([(0.1, "[DONE]"), (0.2, chunk("x"))])


def test_names_of_namespaces_fit_and_differ() -> None:
    first, second = (unique_name("test_A_very_long_name_of_a_test[with parameters, and more]") for _ in range(2))
    assert first != second
    assert len(first) <= 40
    assert first.startswith("a-very-long-name-of-a-test-with")
    assert folder_name("tests/live/test_a.py::test_b[c/d e]-call") == "test_a.test_b-c-d-e-call"


def test_logs_that_came_in_part_are_noted(tmp_path: Any) -> None:
    unpack("H4sIAAAAAAAAA", tmp_path / "ray")
    assert "characters of base64 came" in (tmp_path / "ray" / "incomplete.txt").read_text()
