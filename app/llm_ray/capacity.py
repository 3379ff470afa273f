"""Serve's number of replicas follows the nodes: as many engines as fit on those that stay, counted by whole gang.

Serve asks the policy ten times a second, in its controller, with the class pickled by value; so this module holds all
that it needs.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from llm_ray.naming import GANG_NODE_LABEL, HOST_NODE_LABEL

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

log = logging.getLogger("ray.serve")  # the controller's own log

FRONT_HOST = "0"
NODES_TTL_S = 1.0
GCS_TIMEOUT_S = 2.0
ROUNDING = 1e-9


@dataclass(frozen=True)
class Node:
    """A Ray node that is alive. `is_leaving`: it drains, and takes nothing new."""

    id: str
    labels: Mapping[str, str]
    resources: Mapping[str, float]
    is_leaving: bool = False

    @property
    def gang(self) -> str:
        """A node without the label is a gang of its own."""
        return self.labels.get(GANG_NODE_LABEL) or self.id


@dataclass(frozen=True)
class Engine:
    """What one engine takes: the front, and `ranks` times what a rank takes."""

    placement: Literal["STRICT_PACK", "GANG"]
    front: Mapping[str, float]
    rank: Mapping[str, float]
    ranks: int


@dataclass(frozen=True)
class Room:
    """Engines that fit on what stays, and on what is leaving."""

    staying: int
    leaving: int


def room(engine: Engine, nodes: Sequence[Node]) -> Room:
    """From the nodes' whole resources: what runs there now is mostly the engines themselves."""
    count = _gangs if engine.placement == "GANG" else _packed
    return count(engine, nodes)


def replicas(room: Room, running: int, target: int) -> int:
    """The number that Serve is to have.

    A node that died is still counted by Serve for some seconds, as a replica that runs. Below that number Serve would
    choose among those that do run; so the target falls only as fast as Serve learns, or as nodes drain.
    """
    return max(room.staying, min(target, running - room.leaving))


def _packed(engine: Engine, nodes: Sequence[Node]) -> Room:
    whole = {
        name: engine.front.get(name, 0) + engine.ranks * engine.rank.get(name, 0)
        for name in engine.front.keys() | engine.rank.keys()
    }
    staying = sum(how_often(whole, node.resources) for node in nodes if not node.is_leaving)
    leaving = sum(how_often(whole, node.resources) for node in nodes if node.is_leaving)
    return Room(staying, leaving)


def _gangs(engine: Engine, nodes: Sequence[Node]) -> Room:
    """One engine per gang whose hosts hold it. It leaves when its front does: only then Serve moves the replica."""
    staying = leaving = 0
    for hosts in by_gang(nodes).values():
        fronts = [host for host in hosts if host.labels.get(HOST_NODE_LABEL) == FRONT_HOST]
        if not any(_holds(engine, front, hosts) for front in fronts):
            continue
        if all(front.is_leaving for front in fronts):
            leaving += 1
        else:
            staying += 1
    return Room(staying, leaving)


def _holds(engine: Engine, front: Node, hosts: Iterable[Node]) -> bool:
    if not how_often(engine.front, front.resources) and any(engine.front.values()):
        return False
    left = {host.id: host.resources for host in hosts}
    left[front.id] = {name: total - engine.front.get(name, 0) for name, total in front.resources.items()}
    return sum(how_often(engine.rank, resources) for resources in left.values()) >= engine.ranks


def by_gang(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    gangs: dict[str, list[Node]] = {}
    for node in nodes:
        gangs.setdefault(node.gang, []).append(node)
    return gangs


def how_often(wanted: Mapping[str, float], resources: Mapping[str, float]) -> int:
    """How many times `wanted` fits; nothing wanted fits nowhere."""
    return min(
        (math.floor(resources.get(name, 0) / amount + ROUNDING) for name, amount in wanted.items() if amount > 0),
        default=0,
    )


class CapacityPolicy:
    """The policy that Serve makes once and calls. Keyword arguments as in `Engine`."""

    def __init__(self, **engine: Any) -> None:
        self._engine = Engine(**engine)
        self._gcs: Any = None
        self._nodes: Sequence[Node] = ()
        self._leaving: frozenset[str] = frozenset()
        self._read_at = -math.inf
        self._trouble = ""

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        target = context.target_num_replicas
        try:
            nodes = self._read()
        except Exception as error:  # Ray's own classes. Without an answer nothing is started or stopped.
            self._tell(f"the nodes cannot be read, so the number of replicas stays {target}: {error}")
            return target, {}
        found = room(self._engine, nodes)
        self._tell(_trouble(self._engine, nodes) if not found.staying else "")
        return replicas(found, context.current_num_replicas, target), {}

    def _read(self) -> list[Node]:
        """Who drains is asked each time: Serve sees it in the same tick, and would start a replacement.

        A node that has drained is not listed any more, and must not pass for one that stays: so whenever the list
        changes the nodes are read anew, after it.
        """
        import ray  # where it is called it is loaded; whoever only counts does without

        if self._gcs is None:
            self._gcs = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)  # type: ignore[attr-defined]
        leaving = frozenset(self._gcs.get_draining_nodes(timeout=GCS_TIMEOUT_S))
        now = time.monotonic()
        if now - self._read_at >= NODES_TTL_S or leaving != self._leaving:
            infos = self._gcs.get_all_node_info(timeout=GCS_TIMEOUT_S)
            alive = ray.core.generated.gcs_pb2.GcsNodeInfo.ALIVE  # type: ignore[attr-defined]
            self._nodes = [
                Node(id.hex(), dict(info.labels), dict(info.resources_total))
                for id, info in infos.items()
                if info.state == alive
            ]
            self._read_at, self._leaving = now, leaving
        return [Node(node.id, node.labels, node.resources, node.id in leaving) for node in self._nodes]

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("capacity policy: %s", trouble)
        self._trouble = trouble


def _trouble(engine: Engine, nodes: Sequence[Node]) -> str:
    """Why no engine fits anywhere, if that is likely to be a mistake; without workers it is not."""
    biggest = [node for node in nodes if how_often(engine.rank, node.resources)]
    if engine.placement == "GANG" and biggest and not any(HOST_NODE_LABEL in node.labels for node in biggest):
        return (
            f"no Ray node that could hold a rank has the labels {GANG_NODE_LABEL} and {HOST_NODE_LABEL}: "
            "set RAY_OVERRIDE_LABELS on the workers, or placement_strategy to PACK"
        )
    if biggest:
        return f"no {'gang' if engine.placement == 'GANG' else 'node'} holds the front and {engine.ranks} ranks yet"
    return ""
