"""Engines of two nodes each on a Ray of many: every engine within its gang, gangs that go and come under open streams.

Each node is its own `ray start`, labelled and ended as a pod is; the ranks have no model, everything else is real.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.serve.running_app import MODEL_NAME, wait_for
from tests.serve.sse import Outcome, opened, stream
from tests.support.ray_driver import Driver, driver
from tests.support.ray_head import free_port
from tests.support.ray_nodes import RayNodes, ray_nodes

pytestmark = [pytest.mark.serve, pytest.mark.timeout(900)]

PATIENCE_S = 240
MAX_STREAMS = 60
NUM_TOKENS = 300  # fifteen seconds of steps and more
HOSTS = (2, 1)  # CPUs: the first host holds the front and a rank


@dataclass
class Engines:
    nodes: RayNodes
    driver: Driver
    url: str

    def running(self) -> dict[str, dict[str, Any]]:
        """Replicas that run, by the place of their front."""
        found = [replica for replica in self.driver.look()["replicas"] if replica["state"] == "RUNNING"]
        assert len({replica["place"] for replica in found}) == len(found), found
        return {replica["place"]: replica for replica in found}

    def wait_for_gangs(self, *gangs: str) -> None:
        """Until exactly these have an engine each, front and ranks, and Serve wants no more and no less."""

        def are_there() -> bool:
            seen = self.driver.look()
            fronts = sorted(replica["place"] for replica in seen["replicas"] if replica["state"] == "RUNNING")
            groups = [[f"{gang}/0", f"{gang}/1"] for gang in gangs]
            return (seen["target"], fronts, seen["groups"]) == (len(gangs), [f"{gang}/0" for gang in gangs], groups)

        wait_for(are_there, PATIENCE_S, f"engines on {gangs}", 0.5)


@pytest.fixture(scope="module")
def engines(smollm2: Path) -> Iterator[Engines]:
    """Two gangs, a and b, with an engine each."""
    sections: dict[str, dict[str, Any]] = {
        "engine": {"model": str(smollm2), "tensor_parallel_size": 2, "num_blocks": 1024, "start_timeout_s": 120.0},
        "server": {"model_name": MODEL_NAME},
        "deployment": {
            "placement_strategy": "GANG",
            "autoscaling_policy": "capacity",
            "min_replicas": 1,
            "max_replicas": 4,
            "drain_timeout_s": 60.0,
        },
    }
    with ray_nodes() as nodes:
        nodes.start_gang("a", *HOSTS)
        nodes.start_gang("b", *HOSTS)
        port = free_port()
        with driver(nodes) as talking:
            talking.deploy(port, **sections)
            made = Engines(nodes, talking, f"http://127.0.0.1:{port}")
            made.wait_for_gangs("a", "b")
            yield made


@pytest.mark.parametrize("attempt", range(3))
def test_an_engine_never_straddles_gangs_and_its_placement_group_dies_with_it(engines: Engines, attempt: int) -> None:
    """kill -9 of both fronts at once: their new ones choose anew, among resources that would fit any way."""
    before = engines.running()
    assert sorted(before) == ["a/0", "b/0"]
    for replica in before.values():
        os.kill(replica["pid"], signal.SIGKILL)
    wait_for(lambda: not {r["pid"] for r in before.values()} & pids(engines), PATIENCE_S, "the end of both fronts")
    engines.wait_for_gangs("a", "b")


def pids(engines: Engines) -> set[int]:
    return {replica["pid"] for replica in engines.driver.look()["replicas"]}


async def test_a_rank_that_dies_is_replaced_in_the_same_placement_group(engines: Engines) -> None:
    before = engines.driver.look()
    async with opened(engines.url) as http:
        ready = (await http.get("/readyz")).json()
        os.kill(ready["ranks"][1]["pid"], signal.SIGKILL)
        await until(lambda: restarts(engines) == 1, "the ranks' replacement")
    after = engines.driver.look()
    assert (after["group_ids"], after["replicas"]) == (before["group_ids"], before["replicas"])


def restarts(engines: Engines) -> int:
    """Of the ranks, over all engines, once all are ready."""
    answers = [httpx2.get(f"{engines.url}/stats", timeout=30).json() for _ in range(12)]
    by_replica = {answer["replica"]: answer for answer in answers if answer.get("status") == "ready"}
    return sum(answer["num_rank_restarts"] for answer in by_replica.values()) if len(by_replica) == 2 else 0


def test_stats_tell_which_replica_answers_and_on_which_node(engines: Engines) -> None:
    replicas = {replica["id"]: replica["ip"] for replica in engines.driver.look()["replicas"]}
    answers = [httpx2.get(f"{engines.url}/stats", timeout=30).json() for _ in range(12)]
    assert {answer["replica"]: answer["node"] for answer in answers}.items() <= replicas.items()


async def test_a_gang_that_drains_costs_exactly_its_own_engine_and_no_request(engines: Engines) -> None:
    kept = engines.running()["a/0"]
    await drain(engines, lambda: [engines.nodes.end(name) for name in ("b-1", "b-0")], "b")
    engines.wait_for_gangs("a")
    assert engines.running()["a/0"] == kept


async def test_a_new_gang_gets_an_engine(engines: Engines) -> None:
    kept = engines.running()["a/0"]
    engines.nodes.start_gang("c", *HOSTS)
    engines.wait_for_gangs("a", "c")
    assert engines.running()["a/0"] == kept


async def test_a_gang_that_drains_host_by_host_costs_exactly_its_own_engine(engines: Engines) -> None:
    """The rank's host first: Serve sees nothing yet, and must not be asked to choose."""
    kept = engines.running()["c/0"]

    async def one_by_one() -> None:
        engines.nodes.end("a-1")
        for _ in range(10):  # many ticks of Serve's controller
            seen = await asyncio.to_thread(engines.driver.look)
            assert (seen["target"], len(seen["replicas"])) == (2, 2)
            await asyncio.sleep(0.3)
        engines.nodes.end("a-0")

    await drain(engines, one_by_one, "a")
    engines.wait_for_gangs("c")
    assert engines.running()["c/0"] == kept


async def drain(engines: Engines, ends: Callable[[], Any], gang: str) -> None:
    """Streams run on every engine while a gang ends, new requests come all the time: all of them are answered."""
    hosts = [f"{gang}-0", f"{gang}-1"]
    started = engines.driver.look()["started"]
    async with opened(engines.url) as http:
        streams = [asyncio.create_task(stream(http, "Chapter 0", NUM_TOKENS))]
        while not await asyncio.to_thread(is_busy, engines):  # Serve may send the first ones all the same way
            assert len(streams) < MAX_STREAMS, "an engine gets no stream"
            streams.append(asyncio.create_task(stream(http, f"Chapter {len(streams)}", NUM_TOKENS)))
            await asyncio.sleep(0.3)
        ending = ends()
        if asyncio.iscoroutine(ending):
            await ending
        late: list[Outcome] = []
        open_at_the_end = len(streams)
        while not all(map(engines.nodes.has_ended, hosts)):
            late.append(await stream(http, "Late", 2))
            seen = await asyncio.to_thread(engines.driver.look)
            if any(replica["place"] == f"{gang}/0" for replica in seen["replicas"]):
                open_at_the_end = sum(not task.done() for task in streams)
            assert len(late) < PATIENCE_S, "the nodes did not end"
        outcomes = await asyncio.gather(*streams)
    assert late
    assert [
        outcome for outcome in outcomes + late if outcome.status != 200 or outcome.error or not outcome.has_ended
    ] == []
    assert all(len(outcome.events) > NUM_TOKENS / 2 for outcome in outcomes), "streams were cut short"
    assert open_at_the_end < len(streams), "its replica stopped before any of its streams had ended"
    assert engines.driver.look()["started"] == started, "a replacement was started although nothing could hold it"


def is_busy(engines: Engines) -> bool:
    ongoing = engines.driver.look(ongoing=True)["ongoing"]
    return len(ongoing) == len(engines.running()) and all(ongoing.values())


async def until(condition: Callable[[], Any], what: str) -> None:
    await asyncio.to_thread(wait_for, condition, PATIENCE_S, what, 0.3)


def is_answered(outcome: Outcome) -> bool:
    return outcome.status == 200 and outcome.error is None and outcome.has_ended
