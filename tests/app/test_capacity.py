"""How many engines the nodes hold, and how many replicas Serve is to have: pure numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_ray.capacity import CapacityPolicy, Engine, Node, Room, replicas, room

GANG = Engine("GANG", {"CPU": 1}, {"CPU": 1, "GPU": 1}, 2)
PACKED = replace(GANG, placement="STRICT_PACK")
HEAD = Node("head", {}, {"node:__internal_head__": 1})


def host(gang: str, index: int, cpus: float = 2, gpus: float = 1) -> Node:
    labels = {"llm-ray.io/gang": gang, "llm-ray.io/host": str(index)}
    return Node(f"{gang}-{index}", labels, {"CPU": cpus, "GPU": gpus, "memory": 1e9})


def leaving(node: Node) -> Node:
    return replace(node, is_leaving=True)


def test_a_gang_whose_hosts_hold_front_and_ranks_counts_once() -> None:
    a, b = [host("a", 0), host("a", 1)], [host("b", 0), host("b", 1)]
    assert room(GANG, [HEAD]) == Room(0, 0)
    assert room(GANG, [HEAD, *a]) == Room(1, 0)
    assert room(GANG, [HEAD, *a, b[0]]) == Room(1, 0)
    assert room(GANG, [HEAD, *a, b[1]]) == Room(1, 0)
    assert room(GANG, [HEAD, *a, *b]) == Room(2, 0)
    assert room(GANG, [HEAD, host("a", 0, cpus=20, gpus=20)]) == Room(1, 0)


def test_hosts_of_two_gangs_never_make_one_engine() -> None:
    assert room(GANG, [host("a", 0), host("b", 1)]) == Room(0, 0)


def test_the_front_takes_its_share_of_the_first_host() -> None:
    assert room(GANG, [host("a", 0, cpus=1), host("a", 1)]) == Room(0, 0)
    assert room(GANG, [host("a", 0, cpus=0), host("a", 1, cpus=2, gpus=2)]) == Room(0, 0)
    assert room(GANG, [host("a", 0, cpus=1), host("a", 1, cpus=2, gpus=2)]) == Room(1, 0)


def test_a_gang_leaves_with_its_front_and_not_before() -> None:
    front, other = host("a", 0), host("a", 1)
    assert room(GANG, [front, leaving(other)]) == Room(1, 0)
    assert room(GANG, [leaving(front), other]) == Room(0, 1)
    assert room(GANG, [leaving(front), leaving(other)]) == Room(0, 1)


def test_packed_engines_count_per_node_whatever_its_gang() -> None:
    big = Node("n", {}, {"CPU": 7, "GPU": 4})
    assert room(PACKED, [HEAD, big]) == Room(2, 0)
    assert room(PACKED, [HEAD, replace(big, resources={"CPU": 5, "GPU": 4})]) == Room(1, 0)
    assert room(PACKED, [HEAD, big, leaving(replace(big, id="m"))]) == Room(2, 2)
    assert room(PACKED, [host("a", 0), host("a", 1)]) == Room(0, 0)


def test_tenths_of_a_cpu_add_up() -> None:
    tenths = Engine("STRICT_PACK", {"CPU": 0.1}, {"CPU": 0.1}, 2)
    assert room(tenths, [Node("n", {}, {"CPU": 0.9})]) == Room(3, 0)


@pytest.mark.parametrize(
    ("what", "found", "running", "target", "wanted"),
    [
        ("nothing changes", Room(2, 0), 2, 2, 2),
        ("a gang joined", Room(3, 0), 2, 2, 3),
        ("one drains", Room(1, 1), 2, 2, 1),
        ("one drains and its replica has been stopped", Room(1, 1), 1, 1, 1),
        ("one drains while another starts", Room(2, 1), 2, 2, 2),
        ("one died and Serve does not know", Room(1, 0), 2, 2, 2),
        ("one died and Serve knows", Room(1, 0), 1, 2, 1),
        ("more run than ever fitted", Room(1, 0), 3, 1, 1),
        ("a rollout with a surge is no reason to grow", Room(2, 0), 3, 2, 2),
        ("the first gang", Room(1, 0), 0, 0, 1),
    ],
)
def test_the_target_follows_the_room(what: str, found: Room, running: int, target: int, wanted: int) -> None:
    assert replicas(found, running, target) == wanted, what


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_serve_never_chooses_among_replicas_that_stay(staying: int, going: int, running: int, target: int) -> None:
    """It stops first what migrates: so those that leave may be above the target, and no others, unless they were."""
    wanted = replicas(Room(staying, going), running, target)
    assert wanted >= staying
    assert wanted >= min(target, running - going)
    assert wanted <= max(staying, target)


@dataclass
class Gcs:
    """Ray's control store: who is there, who drains. `is_down`: it does not answer."""

    there: list[Node] = field(default_factory=list)
    draining: dict[str, int] = field(default_factory=dict)
    is_down: bool = False
    num_lists: int = 0

    def get_draining_nodes(self, timeout: float) -> dict[str, int]:
        if self.is_down:
            raise ConnectionError("no GCS")
        return dict(self.draining)

    def get_all_node_info(self, timeout: float) -> dict[bytes, Any]:
        self.num_lists += 1
        infos = [SimpleNamespace(state=0, labels=node.labels, resources_total=node.resources) for node in self.there]
        return {bytes.fromhex(node.id): info for node, info in zip(self.there, infos, strict=True)}


def worker(id: str) -> Node:
    return Node(id, {}, {"CPU": 3, "GPU": 2})


def asked(policy: CapacityPolicy, running: int, target: int) -> int:
    return policy(SimpleNamespace(current_num_replicas=running, target_num_replicas=target))[0]  # type: ignore[arg-type]


def test_a_node_that_has_drained_and_gone_never_passes_for_one_that_stays() -> None:
    gcs, policy = Gcs([worker("aa"), worker("bb")]), CapacityPolicy(**vars(PACKED))
    policy._gcs = gcs
    assert asked(policy, 2, 2) == 2
    gcs.draining = {"bb": 0}
    assert asked(policy, 2, 2) == 1
    gcs.there, gcs.draining = [worker("aa")], {}
    assert asked(policy, 1, 1) == 1


def test_nodes_are_listed_once_a_second_and_not_in_every_tick() -> None:
    gcs, policy = Gcs([worker("aa")]), CapacityPolicy(**vars(PACKED))
    policy._gcs = gcs
    for _ in range(100):
        asked(policy, 1, 1)
    assert gcs.num_lists <= 3


def test_without_an_answer_the_number_stays() -> None:
    gcs, policy = Gcs([worker("aa")]), CapacityPolicy(**vars(PACKED))
    policy._gcs = gcs
    gcs.is_down = True
    assert asked(policy, 2, 2) == 2
    gcs.is_down = False
    assert asked(policy, 1, 2) == 1
