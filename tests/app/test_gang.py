"""Where an engine's ranks go within a gang: labels in, selectors out."""

from __future__ import annotations

import pytest

from llm_ray.errors import ConfigError
from llm_ray.executor.gang import Gang, hosts_of, own_gang

RANK = {"CPU": 1.0, "GPU": 1.0}
FRONT = {"CPU": 1.0}


def places(gang: Gang, hosts: dict[str, dict[str, float]], ranks: int) -> list[str]:
    selectors = gang.bundle_labels(hosts, RANK, ranks)
    assert {selector["llm-ray.io/gang"] for selector in selectors} <= {gang.name}
    return [selector["llm-ray.io/host"] for selector in selectors]


def machine(gpus: float, cpus: float = 64) -> dict[str, float]:
    return {"CPU": cpus, "GPU": gpus, "node:10.0.0.1": 1.0}


def test_ranks_start_beside_the_front_and_follow_each_other_host_by_host() -> None:
    hosts = {str(i): machine(2) for i in range(11)}
    assert places(Gang("g", "0", FRONT), hosts, 22) == [str(i) for i in range(11) for _ in range(2)]
    assert places(Gang("g", "1", FRONT), hosts, 6) == ["1", "1", "0", "0", "2", "2"]


def test_a_front_without_room_beside_it_leaves_the_ranks_to_the_others() -> None:
    assert places(Gang("g", "0", FRONT), {"0": machine(2, cpus=1), "1": machine(2)}, 2) == ["1", "1"]
    assert places(Gang("g", "0", FRONT), {"0": machine(0), "1": machine(2)}, 2) == ["1", "1"]


def test_nothing_is_placed_until_every_rank_has_a_place() -> None:
    assert places(Gang("g", "0", FRONT), {"0": machine(1)}, 2) == []


def test_only_the_gangs_own_hosts_count() -> None:
    nodes = [
        ({"llm-ray.io/gang": "g", "llm-ray.io/host": "0"}, machine(1)),
        ({"llm-ray.io/gang": "h", "llm-ray.io/host": "1"}, machine(2)),
        ({"llm-ray.io/gang": "g"}, machine(3)),
        ({}, machine(4)),
    ]
    assert hosts_of("g", nodes) == {"0": machine(1)}


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({}, "no label llm-ray.io/gang and no llm-ray.io/host"),
        ({"llm-ray.io/gang": "", "llm-ray.io/host": "0"}, "no label llm-ray.io/gang: "),
        ({"llm-ray.io/gang": "g"}, "no label llm-ray.io/host: "),
    ],
)
def test_a_front_outside_of_any_gang_is_told_what_to_set(labels: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match="RAY_OVERRIDE_LABELS") as caught:
        own_gang(labels, FRONT)
    assert said in str(caught.value)
