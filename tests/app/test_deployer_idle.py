"""The idle annotation: the rule by cases, then the loop over HTTP with pods that answer, lie, hang and fail."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llm_ray.deployer.idle import Answer, Memory, Seen, asks, decide
from llm_ray.deployer.loop import Deployer, IdleReport
from llm_ray.deployer.state import App, Pod, Replica, Serve, parse_pod, parse_serve
from tests.app.stand_ins import Dashboard, kubernetes_api, listening, pod
from tests.app.test_deployer import CONFIG, Bench
from tests.support.ray_head import free_port

GRACE = 30.0
IDLE = "llm-ray.io/idle-since"
SINCE = "2026-01-02T03:04:05Z"
W1, W2 = Pod("w1", "u1", ("10.0.0.2",)), Pod("w2", "u2", ("10.0.0.3",))
HEAD = Pod("h", "u-h", ("10.0.0.1",), is_head=True)


def serve(*replicas: tuple[str, str], state: str = "RUNNING") -> Serve:
    found = tuple(Replica(id, ip, state) for id, ip in replicas)
    return Serve("c", {"llm": App("RUNNING", ((len(found), len(found)),), replicas=found)})


def said(*answers: tuple[str, str, bool]) -> dict[str, Answer]:
    return {replica: Answer(replica, node, is_busy) for replica, node, is_busy in answers}


def changes(seen: Seen, memory: Memory | None = None, now: float = 0.0) -> dict[str, bool]:
    return decide(GRACE, memory or Memory(), seen, now)[1]


def idle(pod: Pod) -> Pod:
    return replace(pod, idle_since=SINCE)


ONE = serve(("r1", "10.0.0.2"))


def test_a_pod_is_idle_when_its_own_replica_says_so() -> None:
    assert changes(Seen(ONE, [W1, HEAD], said(("r1", "10.0.0.2", False)))) == {"w1": True}
    assert changes(Seen(ONE, [W1, HEAD], said(("r1", "10.0.0.2", True)))) == {}
    assert changes(Seen(ONE, [W1, HEAD], {})) == {}


def test_another_replicas_answer_is_not_taken() -> None:
    both = serve(("r1", "10.0.0.2"), ("r2", "10.0.0.3"))
    assert changes(Seen(both, [W1, W2], said(("r1", "10.0.0.2", False)))) == {"w1": True}


def test_a_pod_without_a_replica_is_idle() -> None:
    assert changes(Seen(ONE, [W1, W2], said(("r1", "10.0.0.2", True)))) == {"w2": True}


def test_one_busy_or_silent_replica_of_two_on_a_pod_is_enough() -> None:
    two = serve(("r1", "10.0.0.2"), ("r2", "10.0.0.2"))
    quiet = ("r1", "10.0.0.2", False)
    assert changes(Seen(two, [W1], said(quiet, ("r2", "10.0.0.2", False)))) == {"w1": True}
    assert changes(Seen(two, [W1], said(quiet, ("r2", "10.0.0.2", True)))) == {}
    assert changes(Seen(two, [W1], said(quiet))) == {}


@pytest.mark.parametrize("answers", [{}, said(("r1", "10.0.0.2", True))])
def test_the_annotation_goes_with_the_first_doubt(answers: dict[str, Answer]) -> None:
    assert changes(Seen(ONE, [idle(W1)], answers)) == {"w1": False}


@pytest.mark.parametrize("state", ["STARTING", "STOPPING", "PENDING_MIGRATION"])
def test_a_replica_that_does_not_answer_yet_or_any_more_keeps_its_pod_busy(state: str) -> None:
    assert changes(Seen(serve(("r1", "10.0.0.2"), state=state), [W1])) == {}


def test_only_transitions_are_written() -> None:
    quiet = said(("r1", "10.0.0.2", False))
    assert changes(Seen(ONE, [idle(W1)], quiet)) == {}
    assert changes(Seen(ONE, [replace(idle(W1), is_ending=True)], {})) == {}
    assert changes(Seen(ONE, [replace(W2, is_ending=True), HEAD], {})) == {}


@pytest.mark.parametrize(
    "silent",
    [None, Serve(), Serve("c", {}), Serve("c", {"llm": App("DEPLOYING", ()), "other": App("RUNNING", ((0, 0),))})],
)
def test_while_serve_does_not_tell_an_idle_pod_stays_so_for_the_grace_time(silent: Serve | None) -> None:
    memory, wanted = decide(GRACE, Memory(), Seen(silent, [idle(W1), W2]), 100.0)
    assert wanted == {}
    memory, wanted = decide(GRACE, memory, Seen(silent, [idle(W1), W2]), 129.0)
    assert wanted == {}
    memory, wanted = decide(GRACE, memory, Seen(silent, [idle(W1), W2]), 130.0)
    assert wanted == {"w1": False}
    memory, _ = decide(GRACE, memory, Seen(ONE, [idle(W1), W2]), 131.0)
    assert memory == Memory()


def test_while_serve_does_not_tell_a_busy_answer_counts_for_its_own_node_only() -> None:
    busy = said(("r9", "10.0.0.2", True))
    assert changes(Seen(None, [idle(W1), idle(W2)], busy)) == {"w1": False}


def test_only_workers_with_replicas_are_asked_and_several_replicas_more_often() -> None:
    two = serve(("r1", "10.0.0.2"), ("r2", "10.0.0.2"))
    assert asks(ONE, [W1, W2, HEAD]) == {"10.0.0.2": 4}
    assert asks(two, [W1, W2, HEAD]) == {"10.0.0.2": 8}
    assert asks(None, [W1, W2, replace(W2, is_ending=True), HEAD]) == {"10.0.0.2": 1, "10.0.0.3": 1}


def test_what_serve_and_kubernetes_say_is_understood() -> None:
    replicas = [{"replica_id": "r1", "node_ip": "10.0.0.2", "state": "RUNNING"}, {"replica_id": "r2", "node_ip": None}]
    told = parse_serve({"applications": {"llm": {"status": "RUNNING", "deployments": {"LLM": {"replicas": replicas}}}}})
    assert (told.apps or {})["llm"].replicas == (Replica("r1", "10.0.0.2", "RUNNING"), Replica("r2", "", ""))
    listed = pod("w", "10.0.0.2")
    assert parse_pod(listed).idle_since == ""
    listed["metadata"]["annotations"] = {IDLE: SINCE}
    assert parse_pod(listed).idle_since == SINCE


@dataclass
class Proxy:
    """A pod's proxy: answers for these replicas in turn. With `hold` it accepts and says nothing until it is set."""

    answers: list[dict[str, Any] | int] = field(default_factory=list)
    hold: threading.Event | None = None
    asked: int = 0

    def next(self) -> dict[str, Any] | int:
        self.asked += 1
        return self.answers[(self.asked - 1) % len(self.answers)]


def stats(replica: str, node: str, running: int = 0, waiting: int = 0) -> dict[str, Any]:
    return {"replica": replica, "node": node, "num_running": running, "num_waiting": waiting}


@contextmanager
def proxy_at(ip: str, port: int, proxy: Proxy) -> Iterator[None]:
    import json

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if proxy.hold is not None:
                proxy.hold.wait(30)
            answer = proxy.next()
            self.send_response(answer if isinstance(answer, int) else 200)
            self.end_headers()
            self.wfile.write(b"no" if isinstance(answer, int) else json.dumps(answer).encode())

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer((ip, port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        if proxy.hold is not None:
            proxy.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class IdleBench(Bench):
    port: int = 0
    proxies: dict[str, Proxy] = field(default_factory=dict)

    def reporter(self) -> Deployer:
        return self.deployer(idle=IdleReport(self.port, 5.0, GRACE))

    def rounds(self, deployer: Deployer, times: int = 1) -> None:
        """Each is asked in one tick and acted on in a later one."""
        for _ in range(times):
            self.tick(deployer, 1, 6.0)
            deployer.wait_for_round(30)
        self.tick(deployer, 1, 1.0)

    def idle(self) -> dict[str, str]:
        found = {name: pod["metadata"].get("annotations", {}).get(IDLE) for name, pod in self.kubernetes.pods.items()}
        return {name: since for name, since in found.items() if since is not None}

    def runs(self, **where: str) -> None:
        """Replicas by their pods' addresses."""
        replicas = [{"replica_id": id, "node_ip": ip, "state": "RUNNING"} for id, ip in where.items()]
        deployment = {"target_num_replicas": len(replicas), "replicas": replicas}
        config = {"name": "llm", "import_path": "a:b"}
        app = {"status": "RUNNING", "message": "", "deployed_app_config": config, "deployments": {"LLM": deployment}}
        self.dashboard.apps = {"llm": app}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[IdleBench]:
    """Two workers at addresses of this machine, each with a proxy."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    dashboard, port = Dashboard(token="secret", controller="c"), free_port()
    proxies = {"127.0.0.2": Proxy(), "127.0.0.3": Proxy()}
    with ExitStack() as stack:
        kubernetes, kubeconfig = stack.enter_context(kubernetes_api(tmp_path))
        stack.enter_context(listening(dashboard))
        for ip, proxy in proxies.items():
            stack.enter_context(proxy_at(ip, port, proxy))
        kubernetes.add(pod("head", "127.0.0.9", node_type="head"), pod("w1", "127.0.0.2"), pod("w2", "127.0.0.3"))
        yield IdleBench(kubernetes, kubeconfig, dashboard, tmp_path / "config.yaml", port=port, proxies=proxies)


def test_the_annotation_comes_stays_and_goes_with_the_engines_requests(bench: IdleBench) -> None:
    bench.runs(r1="127.0.0.2")
    bench.proxies["127.0.0.2"].answers = [stats("r1", "127.0.0.2", running=1)]
    deployer = bench.reporter()
    bench.rounds(deployer, 2)
    assert list(bench.idle()) == ["w2"]
    bench.proxies["127.0.0.2"].answers = [stats("r1", "127.0.0.2")]
    bench.rounds(deployer)
    first = bench.idle()
    assert list(first) == ["w1", "w2"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", since) for since in first.values())
    written = len(bench.kubernetes.patches)
    bench.rounds(deployer, 5)
    assert (bench.idle(), len(bench.kubernetes.patches)) == (first, written)
    bench.proxies["127.0.0.2"].answers = [stats("r1", "127.0.0.2", waiting=1)]
    bench.rounds(deployer)
    assert bench.idle() == {"w2": first["w2"]}
    assert len(bench.kubernetes.patches) == written + 1
    assert [line.split()[1:] for line in bench.out.getvalue().splitlines() if "pod=w1" in line] == [
        ["event=idle", "pod=w1"],
        ["event=busy", "pod=w1"],
    ]


def test_the_time_of_the_pod_survives_a_new_deployer(bench: IdleBench) -> None:
    bench.runs(r1="127.0.0.2")
    bench.proxies["127.0.0.2"].answers = [stats("r1", "127.0.0.2")]
    bench.kubernetes.pods["w1"]["metadata"]["annotations"] = {IDLE: SINCE}
    bench.rounds(bench.reporter(), 2)
    assert bench.idle()["w1"] == SINCE


@pytest.mark.parametrize(
    "answers",
    [[503], [stats("r2", "127.0.0.3")], [{"num_running": 0, "num_waiting": 0}], [{"replica": "r1"}], [404]],
    ids=["starting", "another's", "an older engine's", "half", "not ours"],
)
def test_a_pod_whose_answer_proves_nothing_is_not_idle(bench: IdleBench, answers: list[dict[str, Any] | int]) -> None:
    bench.runs(r1="127.0.0.2")
    bench.proxies["127.0.0.2"].answers = answers
    bench.kubernetes.pods["w1"]["metadata"]["annotations"] = {IDLE: SINCE}
    bench.rounds(bench.reporter(), 2)
    assert list(bench.idle()) == ["w2"]


def test_two_engines_on_a_pod_are_both_asked(bench: IdleBench) -> None:
    bench.runs(r1="127.0.0.2", r2="127.0.0.2")
    both = [stats("r1", "127.0.0.2"), stats("r2", "127.0.0.2", running=1)]
    bench.proxies["127.0.0.2"].answers = list(both)
    deployer = bench.reporter()
    bench.rounds(deployer, 2)
    assert list(bench.idle()) == ["w2"]
    bench.proxies["127.0.0.2"].answers = [both[0], stats("r2", "127.0.0.2")]
    bench.rounds(deployer)
    assert list(bench.idle()) == ["w1", "w2"]


def test_a_pod_that_hangs_holds_up_neither_the_ticks_nor_the_others(bench: IdleBench) -> None:
    bench.runs(r1="127.0.0.2", r2="127.0.0.3")
    hanging, other = bench.proxies.values()
    hanging.hold = threading.Event()
    hanging.answers, other.answers = [stats("r1", "127.0.0.2")], [stats("r2", "127.0.0.3")]
    deployer = bench.reporter()
    bench.tick(deployer, 1, 6.0)
    ticks, deadline = 0, time.monotonic() + 30
    while not bench.idle():
        assert time.monotonic() < deadline
        bench.tick(deployer)
        ticks += 1
    assert list(bench.idle()) == ["w2"]
    assert ticks > 10, "ticks went on while the pod was waited for"


def test_without_the_flag_nobody_is_asked_and_nothing_annotated(bench: IdleBench) -> None:
    bench.runs(r1="127.0.0.2")
    bench.proxies["127.0.0.2"].answers = [stats("r1", "127.0.0.2")]
    deployer = bench.deployer()
    bench.rounds(deployer, 3)
    assert (bench.idle(), bench.proxies["127.0.0.2"].asked) == ({}, 0)


def test_a_refused_patch_is_told_and_tried_again(bench: IdleBench) -> None:
    bench.runs(r1="127.0.0.2")
    bench.proxies["127.0.0.2"].answers = [stats("r1", "127.0.0.2")]
    bench.kubernetes.forbids = "PATCH"
    deployer = bench.reporter()
    bench.rounds(deployer, 2)
    assert len(bench.events("trouble")) == 1
    bench.kubernetes.forbids = ""
    bench.rounds(deployer)
    assert list(bench.idle()) == ["w1", "w2"]
