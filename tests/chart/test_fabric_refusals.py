"""Networks that could not work are refused, each by a message with key, value, limit and fix."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chart import HelmError, render
from tests.support.fabric import NETWORKS, RANGE, VF, fabric, with_fabric


def spoilt(values: dict[str, Any], **network: Any) -> dict[str, Any]:
    """The values with other keys in the network rail0."""
    networks = values["fabric"]["networks"]
    return with_fabric(values, networks=networks | {"rail0": networks["rail0"] | network})


SRIOV = fabric("sriov", rail0={"resourceName": VF, "ipam": RANGE})
IB = fabric("ib-sriov", rail0={"resourceName": VF, "ipam": {"type": "none"}})
MACVLAN = fabric("macvlan", rail0={"master": "ens1f0", "ipam": RANGE})
GROUP = {"gpusPerNode": 8, "resources": {"limits": {"memory": "64Gi", VF: 2}}}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no network": (fabric("sriov"), "fabric.networks (null) must name at least one network"),
    "no type": (with_fabric(SRIOV, type="none"), 'fabric.networks (["rail0"]) must be empty'),
    "no resource": (spoilt(SRIOV, resourceName=""), 'fabric.networks.rail0.resourceName ("") must name'),
    "no master": (spoilt(MACVLAN, master=""), 'fabric.networks.rail0.master ("") must name'),
    "fewer names than devices": (
        spoilt(SRIOV, count=2, interfaces=["a"]),
        'fabric.networks.rail0.interfaces (["a"]) must',
    ),
    "a name that is taken": (spoilt(SRIOV, interfaces=["eth0"]), "fabric.networks.rail0.interfaces (eth0) must differ"),
    "host-local": (
        spoilt(SRIOV, ipam={"type": "host-local"}),
        "fabric.networks.rail0.ipam.type (host-local) must be one",
    ),
    "no range": (spoilt(SRIOV, ipam={}), 'fabric.networks.rail0.ipam.range ("") must say'),
    "no pool": (spoilt(SRIOV, ipam={"type": "nv-ipam"}), 'fabric.networks.rail0.ipam.poolName ("") must name'),
    "static for many pods": (
        spoilt(SRIOV, ipam={"type": "static", "addresses": ["10.0.0.2/24"]}),
        'fabric.networks.rail0.ipam.addresses (["10.0.0.2/24"]) must be those of the only interface: there are 2 pods',
    ),
    "a default route": (
        spoilt(SRIOV, ipam=RANGE | {"routes": [{"dst": "::/0"}]}),
        "rail0.ipam.routes (::/0) must be no default",
    ),
    "a key of another IPAM": (spoilt(SRIOV, ipam=RANGE | {"poolName": "x"}), "rail0.ipam.poolName (x) must be unset"),
    "a key of another plugin": (
        spoilt(SRIOV, mtu=9000),
        "fabric.networks.rail0.mtu (9000) must be unset with fabric.type sriov",
    ),
    "RoCE without an address": (spoilt(SRIOV, ipam={"type": "none"}), "rail0.ipam.type (none) must give addresses"),
    "pkey that nobody reads": (
        spoilt(IB, pkey="0x7fff"),
        "fabric.networks.rail0.pkey (0x7fff) must come with ibKubernetes",
    ),
    "ib-kubernetes by the operator": (
        spoilt(IB, ibKubernetes=True, sriovNetwork={"create": True}),
        "fabric.networks.rail0.ibKubernetes (true) must be false with sriovNetwork.create",
    ),
    "existing and made": (spoilt(SRIOV, existing="x"), "fabric.networks.rail0.ipam ("),
    "no kind for it": (
        spoilt(MACVLAN, sriovNetwork={"create": True}),
        "rail0.sriovNetwork.create (true) must be false",
    ),
    "devices without entries": (
        SRIOV | {"workers": {"gpu": GROUP}},
        f"workers.gpu.resources.limits.{VF} (2) must equal the 1",
    ),
    "the node's network": (
        SRIOV | {"workers": {"gpu": {"gpusPerNode": 8, "hostNetwork": True}}},
        "workers.gpu.hostNetwork (true) must be false",
    ),
    "the annotation by hand": (
        SRIOV | {"workers": {"gpu": {"gpusPerNode": 8, "podAnnotations": {NETWORKS: "x"}}}},
        f"workers.gpu.podAnnotations ({NETWORKS}) must be left to fabric.networks",
    ),
    "required but off": (with_fabric(SRIOV, rdma=False, requireRdma=True), "fabric.requireRdma (true) must be false"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_network_that_cannot_work_is_refused(case: str) -> None:
    values, message = REFUSED[case]
    with pytest.raises(HelmError) as refusal:
        render(values)
    assert message in refusal.value.message


@pytest.mark.parametrize(
    "network", [{"interfaces": ["much-too-long-a"]}, {"count": 0}, {"vlan": 4095}, {"rsourceName": "x/y"}]
)
def test_the_schema_knows_the_keys_of_a_network(network: dict[str, Any]) -> None:
    with pytest.raises(HelmError, match="/fabric/networks/rail0"):
        render(spoilt(SRIOV, **network))
