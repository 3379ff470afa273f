"""Which hosts of its own gang an engine's ranks go to. Pure: nodes in, label selectors of the bundles out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_ray.errors import ConfigError
from llm_ray.naming import GANG_NODE_LABEL, HOST_NODE_LABEL

ROUNDING = 1e-9

NodeFacts = tuple[Mapping[str, str], Mapping[str, float]]
"""Labels and resources of a node that is alive."""


@dataclass(frozen=True)
class Gang:
    """The nodes that share the label, and the one of them that the front is on, with what the front takes there."""

    name: str
    host: str
    front: Mapping[str, float]

    def bundle_labels(
        self, hosts: Mapping[str, Mapping[str, float]], rank: Mapping[str, float], ranks: int
    ) -> list[dict[str, str]]:
        """A selector for each rank, from the gang's hosts and what they have; empty while these do not hold all.

        Rank 0 is beside the front if there is room, and the ranks of one host follow each other.
        """
        order = sorted(hosts, key=lambda host: (host != self.host, len(host), host))
        places: list[str] = []
        for host in order:
            taken = self.front if host == self.host else {}
            left = {name: total - taken.get(name, 0) for name, total in hosts[host].items()}
            places += [host] * max(0, min(int(left.get(name, 0) / amount + ROUNDING) for name, amount in rank.items()))
        if len(places) < ranks:
            return []
        return [{GANG_NODE_LABEL: self.name, HOST_NODE_LABEL: host} for host in places[:ranks]]


def own_gang(labels: Mapping[str, str], front: Mapping[str, float]) -> Gang:
    """From the labels of the front's node. Raises ConfigError when it is in no gang."""
    missing = [key for key in (GANG_NODE_LABEL, HOST_NODE_LABEL) if not labels.get(key)]
    if missing:
        raise ConfigError(
            f"placement_strategy (GANG): this Ray node has no label {' and no '.join(missing)}: set both on every "
            f'worker, as RAY_OVERRIDE_LABELS={{"{GANG_NODE_LABEL}":"NAME","{HOST_NODE_LABEL}":"0"}}, which needs '
            "KubeRay 1.6 or newer for the names; or use placement_strategy PACK"
        )
    return Gang(labels[GANG_NODE_LABEL], labels[HOST_NODE_LABEL], front)


def hosts_of(gang: str, nodes: Sequence[NodeFacts]) -> dict[str, Mapping[str, float]]:
    """The resources of the gang's hosts, by host label."""
    return {
        labels[HOST_NODE_LABEL]: resources
        for labels, resources in nodes
        if labels.get(GANG_NODE_LABEL) == gang and HOST_NODE_LABEL in labels
    }
