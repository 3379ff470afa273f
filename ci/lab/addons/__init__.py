"""The add-ons of the lab and the profiles made of them."""

from __future__ import annotations

from ci.lab.addons import (
    dns,
    kuberay,
    kwok,
    metrics_server,
    multus,
    netpol,
    prometheus,
    prometheus_adapter,
    storage,
    volcano,
)
from ci.lab.addons.addon import Addon
from ci.lab.errors import LabError

ALL = (
    dns.ADDON,
    netpol.ADDON,
    storage.ADDON,
    metrics_server.ADDON,
    kuberay.ADDON,
    volcano.ADDON,
    kwok.ADDON,
    multus.ADDON,
    prometheus.ADDON,
    prometheus_adapter.ADDON,
)
CORE = ("dns", "netpol", "storage", "metrics-server", "kuberay")
PROFILES: dict[str, tuple[str, ...]] = {
    "api": (),  # the control plane alone, without a node
    "nodes": ("dns", "netpol", "storage"),
    "core": CORE,
    "gang": (*CORE, "volcano", "kwok"),
    "fabric": (*CORE, "multus"),
    "metrics": (*CORE, "prometheus", "prometheus-adapter"),
    "all": tuple(addon.name for addon in ALL),
}
DEFAULT = "core"


def of_profile(name: str) -> tuple[Addon, ...]:
    """The add-ons of a profile, in the order of their installation. Raises LabError for a name that is none."""
    if name not in PROFILES:
        raise LabError(f"profile {name!r} is none: choose one of {', '.join(PROFILES)}")
    wanted = set(PROFILES[name])
    return tuple(addon for addon in ALL if addon.name in wanted)
