"""What an add-on is: images that the nodes need, objects, and Deployments to wait for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ci.lab.cluster import Cluster


def _nothing(cluster: Cluster) -> None:
    pass


@dataclass(frozen=True)
class Addon:
    """One part of the cluster beyond the control plane and the nodes."""

    name: str
    install: Callable[[Cluster], None]
    images: tuple[str, ...] = ()
    """Archives of ci.lab.archives."""
    deployments: tuple[tuple[str, str], ...] = ()
    """(namespace, name) of what has to be available."""
    cni_parts: tuple[str, ...] = ()
    """Parts of ci/lab/go whose programs the container runtime calls as CNI plugins."""
    settle: Callable[[Cluster], None] = _nothing
    """Waits for what Deployments do not show, or finishes the work once they are available."""
    needs: tuple[str, ...] = ()
    """Add-ons that come before this one."""
