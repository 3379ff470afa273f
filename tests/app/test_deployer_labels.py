"""Which pods get the serving label: cases by name, then any sequence of events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_ray.deployer.labels import Memory, Rule, Seen, decide
from llm_ray.deployer.state import App, Pod, Proxy, Role, Serve, parse_pod, parse_role, parse_serve

GRACE = 30.0
RUNNING = App("RUNNING", ((2, 2),))
UPDATING = App("DEPLOYING", ((2, 1),))
BUILDING = App("DEPLOYING", ())
FAILED_BUILD = App("DEPLOY_FAILED", ())
DEAD = App("UNHEALTHY", ((2, 0),))
WORKER = Pod("w", "u-w", ("10.0.0.2",))
HEAD = Pod("h", "u-h", ("10.0.0.1",), is_head=True)


def serve(app: App | None = RUNNING, proxy: str | None = "HEALTHY", controller: str = "c", actor: str = "p") -> Serve:
    proxies = () if proxy is None else (Proxy("10.0.0.2", proxy, actor), Proxy("10.0.0.1", proxy, actor + "-head"))
    return Serve(controller, {} if app is None else {"llm": app}, proxies)


class Cluster:
    """Ticks one after the other; what is wanted is done before the next."""

    def __init__(self, *pods: Pod, rule: Rule | None = None) -> None:
        self.pods = {pod.name: pod for pod in pods}
        self.rule = rule or Rule(GRACE, exclude_head=True)
        self.memory, self.now = Memory(), 0.0

    def tick(
        self, seen: Serve | None, role: Role | None = None, successor: bool = False, after: float = 2.0
    ) -> set[str]:
        self.now += after
        tick = Seen(seen, list(self.pods.values()), role or Role(), successor)
        self.memory, wanted = decide(self.rule, self.memory, tick, self.now)
        self.pods = {name: replace(pod, is_labelled=wanted[name]) for name, pod in self.pods.items()}
        return {name for name, is_wanted in wanted.items() if is_wanted}


def labelled(cluster_pod: Pod = WORKER) -> Cluster:
    """One that serves, as this process has seen."""
    cluster = Cluster(cluster_pod)
    assert cluster.tick(serve()) == {cluster_pod.name}
    return cluster


def test_a_pod_is_labelled_when_its_proxy_is_healthy_and_every_application_runs() -> None:
    cluster = Cluster(WORKER, HEAD, Pod("no-proxy", "u", ("10.0.0.9",)))
    assert cluster.tick(serve(BUILDING)) == set()
    assert cluster.tick(serve(UPDATING)) == set()
    assert cluster.tick(Serve("c", {"a": RUNNING, "b": UPDATING}, serve().proxies)) == set()
    assert cluster.tick(serve(proxy="STARTING")) == set()
    assert cluster.tick(serve()) == {"w"}


def test_the_head_is_labelled_unless_it_is_excluded() -> None:
    assert Cluster(WORKER, HEAD, rule=Rule(GRACE)).tick(serve()) == {"w", "h"}


@pytest.mark.parametrize("app", [UPDATING, BUILDING, FAILED_BUILD, App("UNHEALTHY", ((2, 1),))])
def test_labels_stay_while_old_replicas_answer(app: App) -> None:
    cluster = labelled()
    for _ in range(60):
        assert cluster.tick(serve(app)) == {"w"}


@pytest.mark.parametrize("app", [UPDATING, BUILDING, FAILED_BUILD])
def test_a_new_deployer_learns_from_the_labels_that_the_cluster_served(app: App) -> None:
    assert Cluster(replace(WORKER, is_labelled=True)).tick(serve(app)) == {"w"}
    assert Cluster(WORKER).tick(serve(app)) == set()


def test_labels_go_when_the_last_replica_is_gone_and_come_back_only_when_all_runs() -> None:
    cluster = labelled()
    assert cluster.tick(serve(DEAD)) == set()
    assert cluster.tick(serve(UPDATING)) == set()
    assert cluster.tick(serve()) == {"w"}


def test_one_sick_application_does_not_take_the_others_down() -> None:
    cluster = labelled()
    assert cluster.tick(Serve("c", {"llm": RUNNING, "new": DEAD}, serve().proxies)) == {"w"}


def test_an_application_that_is_being_deleted_does_not_count() -> None:
    apps = {"llm": RUNNING, "old": App("DELETING", ((1, 1),))}
    assert Cluster(WORKER).tick(Serve("c", apps, serve().proxies)) == {"w"}


def test_scaled_to_zero_serves() -> None:
    assert Cluster(WORKER).tick(serve(App("RUNNING", ((0, 0),)))) == {"w"}


@pytest.mark.parametrize("status", ["UNHEALTHY", "DRAINING", "DRAINED"])
def test_a_proxy_that_stops_costs_the_label_at_once(status: str) -> None:
    assert labelled().tick(serve(proxy=status)) == set()


def test_another_proxy_than_before_costs_the_label_until_it_is_healthy() -> None:
    cluster = labelled()
    assert cluster.tick(serve(proxy="STARTING", actor="q")) == set()
    assert cluster.tick(serve(proxy="HEALTHY", actor="q")) == {"w"}


@pytest.mark.parametrize("proxy", ["STARTING", None])
def test_a_proxy_that_is_not_seen_for_a_moment_keeps_the_label(proxy: str | None) -> None:
    cluster = labelled()
    assert cluster.tick(serve(proxy=proxy)) == {"w"}
    assert cluster.tick(serve(proxy=proxy), after=GRACE - 1) == {"w"}
    assert cluster.tick(serve(proxy=proxy), after=2) == set()


def test_a_silent_dashboard_costs_no_ready_pod_its_label() -> None:
    cluster = labelled()
    for _ in range(100):
        assert cluster.tick(None) == {"w"}


def test_a_silent_dashboard_costs_an_unready_pod_its_label_after_the_grace_time() -> None:
    cluster = labelled()
    cluster.pods["w"] = replace(cluster.pods["w"], is_ready=False)
    assert cluster.tick(None) == {"w"}
    assert cluster.tick(None, after=GRACE) == set()


def test_a_silent_dashboard_gives_no_label() -> None:
    assert Cluster(WORKER).tick(None) == set()


def test_an_empty_serve_has_the_grace_time() -> None:
    cluster = labelled()
    assert cluster.tick(Serve()) == {"w"}
    assert cluster.tick(serve(UPDATING)) == {"w"}
    cluster.tick(Serve())
    assert cluster.tick(Serve(), after=GRACE) == set()


def test_another_controller_has_none_of_the_old_replicas() -> None:
    cluster = labelled()
    assert cluster.tick(Serve()) == {"w"}
    assert cluster.tick(serve(BUILDING, proxy=None, controller="d")) == set()
    assert cluster.tick(serve(BUILDING, controller="d", actor="q")) == set()
    assert cluster.tick(serve(controller="d", actor="q")) == {"w"}


def test_labels_of_a_cluster_that_died_with_its_deployer_are_not_believed() -> None:
    cluster = Cluster(replace(WORKER, is_labelled=True))
    cluster.tick(Serve())
    assert cluster.tick(serve(BUILDING, controller="new")) == set()


def test_a_pod_that_ends_is_unlabelled_even_in_an_outage() -> None:
    cluster = labelled()
    cluster.pods["w"] = replace(cluster.pods["w"], is_ending=True)
    assert cluster.tick(serve()) == set()
    cluster = labelled()
    cluster.pods["w"] = replace(cluster.pods["w"], is_ending=True)
    assert cluster.tick(None) == set()


def test_only_the_active_cluster_gets_labels() -> None:
    cluster = Cluster(WORKER)
    assert cluster.tick(serve(), Role(None)) == set()
    assert cluster.tick(serve(), Role(False, "other")) == set()
    assert cluster.tick(serve(), Role(True)) == {"w"}


def test_the_old_cluster_serves_until_the_new_one_does() -> None:
    cluster = labelled()
    assert cluster.tick(serve(), Role(False, "new")) == {"w"}
    assert cluster.tick(serve(), Role(False, "new"), successor=True) == set()
    assert cluster.tick(serve(), Role(False, "new"), successor=False) == set()


def test_roles_are_read_from_the_rayservices_status() -> None:
    status = {"activeServiceStatus": {"rayClusterName": "a"}, "pendingServiceStatus": {"rayClusterName": "b"}}
    assert parse_role("a", {"status": status}, False) == Role(True)
    assert parse_role("b", {"status": status}, False) == Role(False, "a")
    assert parse_role("b", {"status": status}, True) == Role(True)
    assert parse_role("c", {"status": status}, True) == Role(False, "a")
    for unknown in ({}, {"status": {}}, {"status": {"activeServiceStatus": {}, "pendingServiceStatus": {}}}):
        assert parse_role("a", unknown, False) == Role(None)


def test_what_serve_says_without_running_is_understood() -> None:
    seen = parse_serve({"controller_info": {}, "proxies": {}, "applications": {}, "target_capacity": None})
    assert (seen.controller, seen.live_apps, seen.proxies) == (None, {}, ())


def test_a_pod_without_address_or_conditions_is_understood() -> None:
    made = parse_pod({"metadata": {"name": "p", "uid": "u"}, "status": {"phase": "Failed"}})
    assert made == Pod("p", "u", (), is_ready=False, is_ending=True)


IPS = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
apps = st.builds(
    App,
    st.sampled_from(["RUNNING", "DEPLOYING", "DEPLOY_FAILED", "UNHEALTHY", "DELETING", "NOT_STARTED"]),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=2).map(tuple),
)
proxies = st.lists(
    st.builds(
        Proxy,
        st.sampled_from(IPS),
        st.sampled_from(["HEALTHY", "STARTING", "UNHEALTHY", "DRAINING", "DRAINED"]),
        st.sampled_from(["p", "q"]),
    ),
    max_size=3,
).map(tuple)
serves = st.none() | st.builds(
    Serve, st.sampled_from([None, "c", "d"]), st.dictionaries(st.sampled_from("ab"), apps, max_size=2), proxies
)
roles = st.sampled_from([Role(), Role(), Role(), Role(None), Role(False, "other")])
pods = st.lists(
    st.builds(
        Pod,
        name=st.sampled_from(["x", "y", "z"]),
        uid=st.sampled_from(["1", "2", "3"]),
        ips=st.sampled_from([(), *((ip,) for ip in IPS)]),
        is_labelled=st.booleans(),
        is_head=st.booleans(),
        is_ready=st.booleans(),
        is_ending=st.sampled_from([False, False, True]),
    ),
    max_size=3,
    unique_by=lambda pod: pod.name,
)
ticks = st.lists(
    st.tuples(serves, pods, roles, st.booleans(), st.sampled_from([0.5, 2.0, 40.0])), min_size=1, max_size=8
)


@settings(max_examples=400, deadline=None)
@given(ticks, st.booleans())
def test_whatever_happens_no_label_is_wrong(history, exclude_head) -> None:
    rule, memory, now = Rule(GRACE, exclude_head), Memory(), 0.0
    for seen_serve, seen_pods, role, successor, after in history:
        now += after
        seen = Seen(seen_serve, seen_pods, role, successor)
        memory, wanted = decide(rule, memory, seen, now)
        assert wanted.keys() == {pod.name for pod in seen_pods}
        for pod in seen_pods:
            check(rule, seen, pod, wanted[pod.name])
        # Nothing more to do when the same is seen again.
        done = [replace(pod, is_labelled=wanted[pod.name]) for pod in seen_pods]
        assert decide(rule, memory, replace(seen, pods=done), now)[1] == wanted


def check(rule: Rule, seen: Seen, pod: Pod, wanted: bool) -> None:
    if pod.is_ending or (pod.is_head and rule.exclude_head):
        assert not wanted
        return
    active = seen.role.is_active
    if active is None:
        assert wanted == pod.is_labelled
        return
    if seen.serve is None:
        assert wanted <= pod.is_labelled
        if active and pod.is_ready:
            assert wanted == pod.is_labelled
        return
    proxy = seen.serve.proxy_at(pod.ips)
    live = seen.serve.live_apps.values()
    if wanted:
        assert proxy is None or proxy.status in ("HEALTHY", "STARTING")
        assert not live or any(app.can_answer for app in live)
        assert pod.is_labelled or (active and live and proxy is not None and proxy.status == "HEALTHY")
    elif active and proxy is not None and proxy.status == "HEALTHY":
        assert not live or not all(app.status == "RUNNING" for app in live)
