"""Which gangs go, against KubeRay's own rules, under random operations in any order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from llm_ray.scaler.build import Seen, State, decide
from llm_ray.scaler.gangs import Gang, Plan, gangs_of, plan, victims
from llm_ray.scaler.model import Key, Pod, Scale, parse_cluster, parse_pod, parse_time
from tests.scaler.kuberay import GROUP, KubeRay

SCALE = Scale(Key("ns", "wgs"), "uid", 1, "RayCluster", "rc", GROUP, 2, created="2026-01-01T00:00:00Z")
STEPS = {
    "kuberay": 6, "look": 8, "look pods": 8, "write": 8, "wanted": 3, "end": 4, "idle": 3, "busy": 3, "ready": 3,
    "restart": 1,
}  # fmt: skip
"""How often each is drawn. restart: of KubeRay, which forgets what it has deleted."""
DELETE = {"delete": 1}
OPERATIONS = 400


class Run:
    """A scaler whose reads and writes are steps of their own, so that anything can happen in between."""

    def __init__(self, hosts: int, seed: int) -> None:
        self.kuberay = KubeRay(hosts, chance=random.Random(seed))
        self.wanted = 2
        self.clock = 0
        self.cluster: dict[str, Any] | None = None
        self.pods: list[Pod] | None = None

    def do(self, step: str, number: int) -> None:
        self.clock += 1
        kuberay, names = self.kuberay, sorted(self.kuberay.pods)
        pod = kuberay.pods[names[number % len(names)]] if names else None
        if step == "kuberay":
            kuberay.reconcile()
        elif step == "look":
            self.cluster, self.pods = kuberay.body(), None
        elif step == "look pods":
            self.pods = [parse_pod(one.body(kuberay.hosts)) for one in kuberay.pods.values()]
        elif step == "write":
            self.write()
        elif step == "wanted":
            self.wanted = number % 7
        elif step == "restart":
            kuberay.awaited.clear()
        elif pod is not None:
            self._do_to(pod, step)

    def _do_to(self, pod: Any, step: str) -> None:
        gang = self.kuberay.gangs()[pod.gang]
        if step == "end" and pod.is_ending:
            self.kuberay.end(pod.name)
        elif step == "delete":
            pod.is_ending = True
        elif step == "ready":
            pod.is_ready = True
        elif step in ("idle", "busy"):
            for one in gang:
                one.idle_since = f"2026-01-01T00:{self.clock // 60 % 60:02}:{self.clock % 60:02}Z" * (step == "idle")

    def write(self) -> None:
        if self.cluster is None or self.pods is None:
            return
        cluster = parse_cluster(self.cluster)
        made = plan(cluster, cluster.groups[0], self.pods, self.wanted)
        assert_names_whole_gangs(made)
        assert_no_busy_gang_goes_before_an_idle_one(made)
        if made.patch:
            self.kuberay.apply(made.patch)
        self.cluster = self.pods = None

    def settle(self) -> None:
        for _ in range(40):
            for step in ("look", "look pods", "write", "kuberay"):
                self.do(step, 0)
            for name in [name for name, pod in self.kuberay.pods.items() if pod.is_ending]:
                self.kuberay.end(name)


def assert_names_whole_gangs(made: Plan) -> None:
    names = set(made.names)
    for gang in made.gangs:
        own = {pod.name for pod in gang.pods}
        assert own <= names or not own & names, f"{names} cuts {gang.name}"
    assert names <= {pod.name for gang in made.gangs for pod in gang.pods}


def assert_no_busy_gang_goes_before_an_idle_one(made: Plan) -> None:
    chosen = {gang.name for gang in made.chosen}
    busy_goes = any(gang.is_ready and gang.idle_since is None and not gang.is_named for gang in made.chosen)
    idle_stays = [gang.name for gang in made.alive if gang.name not in chosen and gang.idle_since is not None]
    assert not (busy_goes and idle_stays), f"{chosen} go, idle {idle_stays} stay"


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("also", [{}, DELETE], ids=["by the scaler alone", "pods deleted by hand"])
@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_the_count_is_reached_with_whole_gangs_and_kuberay_never_chooses(
    seed: int, also: dict[str, int], hosts: int
) -> None:
    run, chance = Run(hosts, seed), random.Random(seed)
    steps = STEPS | also
    for step in chance.choices(list(steps), list(steps.values()), k=OPERATIONS):
        run.do(step, chance.randrange(1 << 16))
    run.settle()
    assert len(run.kuberay.whole()) == min(run.wanted, 6)
    assert len(run.kuberay.pods) == hosts * min(run.wanted, 6)
    assert not run.kuberay.pods.keys() & set(run.kuberay.named)
    assert run.kuberay.random_victims == []


def gang(name: str, created: int = 0, **pod: Any) -> Gang:
    return Gang(name, (Pod(f"{name}-0", name, created=f"2026-01-01T00:00:{created:02}Z", **pod),))


def test_what_never_served_goes_first_then_the_longest_idle_then_the_newest_busy() -> None:
    gangs = [
        gang("busy-old", 1),
        gang("busy-new", 2),
        gang("idle-short", 3, idle_since=parse_time("2026-01-01T02:00:00Z")),
        gang("idle-long", 4, idle_since=parse_time("2026-01-01T01:00:00Z")),
        gang("starting", 5, is_ready=False),
    ]
    order = ["starting", "idle-long", "idle-short", "busy-new", "busy-old"]
    assert [one.name for one in victims(gangs, 5)] == order
    assert [one.name for one in victims(reversed(gangs), 2)] == order[:2]


def test_a_gang_is_idle_when_all_of_it_is_and_since_its_last_pod() -> None:
    early, late = parse_time("2026-01-01T01:00:00Z"), parse_time("2026-01-01T02:00:00Z")
    assert Gang("a", (Pod("0", idle_since=early), Pod("1", idle_since=late)), 2).idle_since == late
    assert Gang("a", (Pod("0", idle_since=early), Pod("1")), 2).idle_since is None


@pytest.mark.parametrize("text", [None, "", "soon", 7, "2026-13-01T00:00:00Z"])
def test_an_annotation_that_is_no_time_counts_as_busy(text: object) -> None:
    assert parse_time(text) is None


def look(kuberay: KubeRay, wanted: int, is_patient: bool = True) -> Plan:
    cluster = parse_cluster(kuberay.body())
    return plan(
        cluster, cluster.groups[0], [parse_pod(pod.body(kuberay.hosts)) for pod in kuberay.pods.values()], wanted,
        is_patient,
    )  # fmt: skip


def started(hosts: int, count: int) -> KubeRay:
    kuberay = KubeRay(hosts, replicas=count)
    kuberay.reconcile()
    for pod in kuberay.pods.values():
        pod.is_ready = True
    return kuberay


def test_a_gang_that_ends_stays_named_while_more_go_so_that_kuberay_deletes_no_other() -> None:
    kuberay = started(1, 4)
    first = look(kuberay, 3)
    kuberay.apply(first.patch)
    kuberay.reconcile()
    second = look(kuberay, 2)
    assert set(first.names) < set(second.names)
    assert len(second.names) == 2


def test_a_victim_that_became_busy_stays_the_victim_once_it_is_named() -> None:
    kuberay = started(1, 3)
    kuberay.pods["gang-2"].idle_since = "2026-01-01T00:00:00Z"
    kuberay.apply(look(kuberay, 2).patch)
    kuberay.pods["gang-2"].idle_since = ""
    kuberay.pods["gang-1"].idle_since = "2026-01-01T00:00:00Z"
    assert look(kuberay, 2).is_done
    assert look(kuberay, 2).names == ("gang-2",)


def test_a_named_gang_that_is_wanted_again_is_taken_from_the_list() -> None:
    kuberay = started(2, 3)
    kuberay.apply(look(kuberay, 2).patch)
    made = look(kuberay, 3)
    assert (made.names, made.wanted) == ((), 3)
    assert made.patch


def test_gangs_that_went_by_themselves_need_no_victims() -> None:
    kuberay = started(2, 3)
    for name in [pod.name for pod in kuberay.gangs()["gang-1"]]:
        kuberay.end(name)
    made = look(kuberay, 2, is_patient=False)
    assert (made.chosen, made.names) == ((), ())


def test_a_gang_of_which_a_pod_ends_is_named_whole() -> None:
    kuberay = started(2, 2)
    kuberay.pods["gang-1-0"].is_ending = True
    assert look(kuberay, 2).names == ("gang-1-0", "gang-1-1")


def test_the_count_does_not_fall_while_kuberay_may_be_making_pods() -> None:
    kuberay = started(1, 2)
    kuberay.rewrite(5)
    assert look(kuberay, 1).must_wait
    assert look(kuberay, 1).patch == []
    assert look(kuberay, 6).patch
    impatient = look(kuberay, 1, is_patient=False)
    assert (len(impatient.names), impatient.wanted) == (1, 1)


def test_the_patch_is_refused_by_a_cluster_that_has_changed() -> None:
    kuberay = started(1, 3)
    made = look(kuberay, 2)
    kuberay.rewrite(3, ["something"])
    assert not kuberay.apply(made.patch)


def test_pods_without_the_label_are_in_no_gang_of_several_hosts() -> None:
    cluster = parse_cluster(KubeRay(2).body())
    assert gangs_of(cluster.groups[0], [Pod("a"), Pod("b", "x")]) == [Gang("x", (Pod("b", "x"),), 2)]


def test_a_decision_for_the_group_is_one_plan() -> None:
    cluster = parse_cluster(started(1, 2).body())
    pods = [parse_pod(pod.body(1)) for pod in started(1, 2).pods.values()]
    decision = decide(State(SCALE, clusters=(Seen(cluster, tuple(pods)),)))
    assert (decision.replicas, decision.ready.reason) == (2, "Scaled")


def test_names_of_pods_that_are_gone_are_no_reason_to_write() -> None:
    kuberay = started(2, 3)
    kuberay.apply(look(kuberay, 2).patch)
    kuberay.reconcile()
    for name in kuberay.named:
        kuberay.end(name)
    assert kuberay.named
    assert look(kuberay, 2).patch == []
    assert look(kuberay, 3).patch[-1]["value"] == []


def test_kuberay_is_late_while_it_has_not_done_what_it_was_told() -> None:
    kuberay = started(2, 2)
    assert not look(kuberay, 2).is_late
    kuberay.apply(look(kuberay, 1).patch)
    assert look(kuberay, 1).is_late
    kuberay.reconcile()
    assert not look(kuberay, 1).is_late, "pods that end take their time"
    kuberay.rewrite(3)
    assert look(kuberay, 3).is_late
    whole = started(2, 2)
    whole.end("gang-1-0")
    assert look(whole, 2).is_late, "half a gang is left"
