"""The second network: what the CNI plugins are told, and what pods ask for, come from one place and agree."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import kuberay
from tests.support.chart import HELMS, Objects, pod_templates, render
from tests.support.fabric import NETWORKS, RANGE, VF, fabric, with_fabric
from tests.support.validate import pod_security, validate

RESOURCE = "k8s.v1.cni.cncf.io/resourceName"
POOL = {"type": "nv-ipam", "poolName": "rail0"}
WHEREABOUTS = {"type": "whereabouts", "range": "10.64.0.0/16"}


def definition(objects: Objects, network: str = "rail0") -> dict[str, Any]:
    return objects.find("NetworkAttachmentDefinition", f"demo-llm-ray-{network}")


def template(objects: Objects, group: str = "gpu") -> dict[str, Any]:
    spec = kuberay.cluster_spec(objects.find("RayCluster"))
    if group == "headgroup":
        return spec["headGroupSpec"]["template"]
    [found] = [g["template"] for g in spec["workerGroupSpecs"] if g["groupName"] == group]
    return found


def attached(objects: Objects, group: str = "gpu") -> list[dict[str, str]]:
    entries: list[dict[str, str]] = json.loads(template(objects, group)["metadata"]["annotations"][NETWORKS])
    return entries


def ray_container(objects: Objects, group: str = "gpu") -> dict[str, Any]:
    return template(objects, group)["spec"]["containers"][0]


def env(objects: Objects, group: str = "gpu") -> dict[str, str]:
    return {e["name"]: e["value"] for e in ray_container(objects, group)["env"] if "value" in e}


CONFIGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sriov": ("sriov", {"ipam": RANGE}, {"type": "sriov", "ipam": WHEREABOUTS}),
    "sriov, everything said": (
        "sriov",
        {"ipam": POOL, "vlan": 0, "trust": True, "spoofChk": False, "linkState": "enable"},
        {
            "type": "sriov",
            "vlan": 0,
            "trust": "on",
            "spoofchk": "off",
            "link_state": "enable",
            "ipam": {"type": "nv-ipam", "poolName": "rail0", "poolType": "ippool"},
        },
    ),
    "sriov, other devices hidden": (
        "sriov",
        {"ipam": RANGE, "isolateRdma": True},
        {"plugins": [{"type": "sriov", "ipam": WHEREABOUTS}, {"type": "rdma"}]},
    ),
    "ib-sriov": (
        "ib-sriov",
        {"ipam": POOL | {"poolType": "cidrpool"}, "pkey": "0x7fff", "ibKubernetes": True, "isolateRdma": True},
        {
            "type": "ib-sriov",
            "pkey": "0x7fff",
            "ibKubernetesEnabled": True,
            "rdmaIsolation": True,
            "ipam": {"type": "nv-ipam", "poolName": "rail0", "poolType": "cidrpool"},
        },
    ),
    "ib-sriov without addresses": (
        "ib-sriov",
        {"ipam": {"type": "none"}, "linkState": "auto"},
        {"type": "ib-sriov", "link_state": "auto", "ipam": {}},
    ),
    "host-device": (
        "host-device",
        {"ipam": RANGE, "isolateRdma": True},
        {"plugins": [{"type": "host-device", "ipam": WHEREABOUTS}, {"type": "rdma"}]},
    ),
    "macvlan": (
        "macvlan",
        {"resourceName": "rdma/hca", "master": "ens1f0", "mtu": 9000, "ipam": RANGE},
        {"type": "macvlan", "master": "ens1f0", "mode": "bridge", "mtu": 9000, "ipam": WHEREABOUTS},
    ),
    "ipoib": (
        "ipoib",
        {"resourceName": "rdma/hca", "master": "ib0", "ipam": RANGE | {"exclude": ["10.64.0.0/30"]}},
        {"type": "ipoib", "master": "ib0", "ipam": WHEREABOUTS | {"exclude": ["10.64.0.0/30"]}},
    ),
    "whereabouts, everything said": (
        "macvlan",
        {
            "resourceName": "",
            "master": "ens1f0",
            "ipam": RANGE
            | {
                "rangeStart": "10.64.1.0",
                "rangeEnd": "10.64.2.0",
                "routes": [{"dst": "10.65.0.0/16", "gw": "10.64.0.1"}, {"dst": "10.66.0.0/16"}],
            },
        },
        {
            "type": "macvlan",
            "master": "ens1f0",
            "mode": "bridge",
            "ipam": WHEREABOUTS
            | {
                "range_start": "10.64.1.0",
                "range_end": "10.64.2.0",
                "routes": [{"dst": "10.65.0.0/16", "gw": "10.64.0.1"}, {"dst": "10.66.0.0/16"}],
            },
        },
    ),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_each_plugin_gets_its_own_configuration_and_no_other_key(case: str) -> None:
    kind, network, wanted = CONFIGS[case]
    objects = render(fabric(kind, rail0={"resourceName": VF} | network))
    made = definition(objects)
    assert validate(made) == []
    assert made["metadata"]["namespace"] == "serving"
    assert json.loads(made["spec"]["config"]) == {"cniVersion": "1.0.0", "name": "demo-llm-ray-rail0"} | wanted


@pytest.mark.parametrize("case", CONFIGS)
def test_both_helms_write_the_same_configuration(case: str) -> None:
    kind, network, _ = CONFIGS[case]
    values = fabric(kind, rail0={"resourceName": VF} | network)
    texts = {definition(render(values, helm=helm))["spec"]["config"] for helm in HELMS for _ in range(2)}
    assert len(texts) == 1


@pytest.mark.parametrize("kind", ["sriov", "ib-sriov", "host-device"])
def test_definition_and_pod_name_the_same_devices(kind: str) -> None:
    objects = render(fabric(kind, rail0={"resourceName": VF, "ipam": RANGE}))
    assert definition(objects)["metadata"]["annotations"][RESOURCE] == VF
    resources = ray_container(objects)["resources"]
    assert resources["limits"][VF] == resources["requests"][VF] == "1"


def test_the_shared_plugins_devices_are_not_handed_to_macvlan() -> None:
    network = {"resourceName": "rdma/hca_shared_devices_a", "master": "ens1f0", "ipam": RANGE}
    objects = render(fabric("macvlan", rail0=network))
    assert RESOURCE not in definition(objects)["metadata"].get("annotations", {})
    assert ray_container(objects)["resources"]["limits"]["rdma/hca_shared_devices_a"] == "1"


def test_every_device_has_an_entry_of_its_own() -> None:
    networks = {
        "rail1": {"resourceName": "nvidia.com/rail1", "ipam": RANGE, "count": 2, "interfaces": ["rail1a", "rail1b"]},
        "rail0": {"resourceName": VF, "ipam": RANGE, "count": 3},
    }
    objects = render(fabric("sriov", **networks))
    assert attached(objects) == [
        *[{"name": "demo-llm-ray-rail0"}] * 3,
        {"name": "demo-llm-ray-rail1", "interface": "rail1a"},
        {"name": "demo-llm-ray-rail1", "interface": "rail1b"},
    ]
    limits = ray_container(objects)["resources"]["limits"]
    assert (limits[VF], limits["nvidia.com/rail1"]) == ("3", "2")


def test_networks_of_one_resource_add_up() -> None:
    networks = {f"rail{i}": {"resourceName": VF, "ipam": RANGE, "count": i + 1} for i in range(3)}
    objects = render(fabric("sriov", **networks))
    assert int(ray_container(objects)["resources"]["limits"][VF]) == len(attached(objects)) == 6


def test_an_existing_definition_is_used_and_nothing_is_created() -> None:
    networks = {
        "here": {"resourceName": VF, "existing": "lab-rail0"},
        "there": {"resourceName": VF, "existing": "networks/rail1", "interfaces": ["rail1"]},
    }
    objects = render(fabric("sriov", **networks))
    assert not objects.all("NetworkAttachmentDefinition")
    assert attached(objects) == [
        {"name": "lab-rail0"},
        {"name": "rail1", "namespace": "networks", "interface": "rail1"},
    ]
    assert ray_container(objects)["resources"]["limits"][VF] == "2"


@pytest.mark.parametrize(("kind", "owner"), [("sriov", "SriovNetwork"), ("ib-sriov", "SriovIBNetwork")])
def test_the_operators_network_makes_the_definition_that_pods_name(kind: str, owner: str) -> None:
    network = {
        "resourceName": VF,
        "ipam": RANGE,
        "linkState": "enable",
        "isolateRdma": True,
        "sriovNetwork": {"create": True, "namespace": "sriov"},
    }
    objects = render(fabric(kind, rail0=network))
    assert not objects.all("NetworkAttachmentDefinition")
    made = objects.find(owner)
    assert validate(made) == []
    assert made["metadata"]["namespace"] == "sriov"
    assert attached(objects) == [{"name": made["metadata"]["name"]}]
    assert json.loads(made["spec"].pop("ipam")) == WHEREABOUTS
    assert json.loads(made["spec"].pop("metaPlugins")) == {"type": "rdma"}
    assert made["spec"] == {"networkNamespace": "serving", "resourceName": "rail0", "linkState": "enable"}


def test_a_sriovnetwork_knows_the_vfs_settings() -> None:
    network = {
        "resourceName": VF,
        "ipam": RANGE,
        "vlan": 7,
        "trust": True,
        "spoofChk": False,
        "sriovNetwork": {"create": True},
    }
    spec = render(fabric("sriov", rail0=network)).find("SriovNetwork")["spec"]
    assert (spec["vlan"], spec["trust"], spec["spoofChk"]) == (7, "on", "off")


def test_the_same_release_in_two_namespaces_has_two_sriovnetworks() -> None:
    values = fabric("sriov", rail0={"resourceName": VF, "ipam": RANGE, "sriovNetwork": {"create": True}})
    one, other = (render(values, namespace=name).find("SriovNetwork")["metadata"] for name in ("blue", "green"))
    assert one["namespace"] == other["namespace"]
    assert one["name"] != other["name"]
    assert len(render(values, release="r" * 53, namespace="n" * 63).find("SriovNetwork")["metadata"]["name"]) <= 63


def test_networks_share_what_networkdefaults_says() -> None:
    values = fabric(
        "sriov",
        rail0={"resourceName": VF},
        rail1={"resourceName": "nvidia.com/rail1", "ipam": {"range": "10.65.0.0/16"}},
    )
    objects = render(with_fabric(values, networkDefaults={"ipam": RANGE, "trust": True}))
    configs = [json.loads(definition(objects, name)["spec"]["config"]) for name in ("rail0", "rail1")]
    assert [c["trust"] for c in configs] == ["on", "on"]
    assert [c["ipam"]["range"] for c in configs] == ["10.64.0.0/16", "10.65.0.0/16"]


def test_only_groups_that_want_it_have_the_network() -> None:
    groups = {"gpu": {"gpusPerNode": 8}, "other": {"gpusPerNode": 16, "fabric": False}}
    objects = render(fabric("sriov", groups, rail0={"resourceName": VF, "ipam": RANGE}))
    for group in ("other", "headgroup"):
        assert NETWORKS not in template(objects, group)["metadata"].get("annotations", {})
        assert VF not in ray_container(objects, group)["resources"]["limits"]
        assert "add" not in ray_container(objects, group)["securityContext"]["capabilities"]
        assert "NCCL_SOCKET_IFNAME" not in env(objects, group)
    assert len(attached(objects)) == 1


def test_control_traffic_has_an_interface_that_every_pod_has_and_tensors_have_the_second_network() -> None:
    objects = render(
        with_fabric(fabric("sriov", rail0={"resourceName": VF, "ipam": RANGE}), env={"NCCL_IB_HCA": "mlx5"})
    )
    assert (env(objects)["NCCL_SOCKET_IFNAME"], env(objects)["GLOO_SOCKET_IFNAME"]) == ("eth0", "net1")
    assert env(objects)["NCCL_IB_HCA"] == "mlx5"
    assert "NCCL_NET" not in env(objects)


NO_ADDRESS = {"resourceName": VF, "ipam": {"type": "none"}}


@pytest.mark.parametrize(
    ("networks", "interface"),
    [
        ({"a": NO_ADDRESS}, "eth0"),
        ({"a": NO_ADDRESS | {"count": 2}, "b": {"resourceName": VF, "ipam": RANGE}}, "net3"),
        ({"a": {"resourceName": VF, "ipam": RANGE, "interfaces": ["rail0"]}}, "rail0"),
        ({"a": {"resourceName": VF, "existing": "theirs"}}, "net1"),
    ],
    ids=["no address", "the second has addresses", "named", "somebody else's"],
)
def test_tensors_take_the_first_network_with_addresses(networks: dict[str, Any], interface: str) -> None:
    values = with_fabric(fabric("sriov", **networks), rdma=False)
    assert env(render(values))["GLOO_SOCKET_IFNAME"] == interface


def test_hosts_of_one_group_agree_on_an_interface_without_a_fabric_too() -> None:
    values = {
        "engine": {"tensorParallelSize": 2},
        "workers": {"gpu": {"gpusPerNode": 1}},
        "fabric": {"controlInterface": "ens5"},
    }
    objects = render(values)
    assert env(objects)["NCCL_SOCKET_IFNAME"] == env(objects)["GLOO_SOCKET_IFNAME"] == "ens5"
    one_host = render(values | {"workers": {"gpu": {"gpusPerNode": 2}}})
    assert "NCCL_SOCKET_IFNAME" not in env(one_host)


def test_nccl_fails_loudly_where_rdma_is_required() -> None:
    values = with_fabric(fabric("ib-sriov", rail0={"resourceName": VF, "ipam": {"type": "none"}}), requireRdma=True)
    assert env(render(values))["NCCL_NET"] == "IB"


def test_rdma_costs_one_capability_and_nothing_else() -> None:
    values = fabric("sriov", rail0={"resourceName": VF, "ipam": RANGE})
    plain, rdma = render(with_fabric(values, rdma=False)), render(values)
    assert pod_security(pod_templates(plain)) == []
    found = pod_security(pod_templates(rdma))
    assert found
    assert all("IPC_LOCK" in line for line in found)
    context = ray_container(rdma)["securityContext"]
    assert context["capabilities"].pop("add") == ["IPC_LOCK"]
    assert context == ray_container(plain)["securityContext"]


def test_one_pod_may_have_a_static_address() -> None:
    address = {"type": "static", "addresses": ["10.64.0.2/16"], "routes": [{"dst": "10.65.0.0/16", "gw": "10.64.0.1"}]}
    one_pod = {"engine": {"tensorParallelSize": 8}}
    values = fabric("sriov", rail0={"resourceName": VF, "ipam": address}) | one_pod
    config = json.loads(definition(render(values))["spec"]["config"])
    assert config["ipam"] == address | {"addresses": [{"address": "10.64.0.2/16"}]}
