"""A second network, on real pods: interfaces, addresses that are unique across nodes, and what goes over which."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.live.conftest import MakeNamespace, ModelFor
from tests.live.support.clients import start_client
from tests.live.support.cluster import Cluster, Object
from tests.live.support.helm import CHART, Helm
from tests.live.support.release import Release
from tests.live.support.traffic import Traffic, networks, traffic
from tests.live.support.waiting import Waiter

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs("nodes", "image", "kuberay", "multus"),
    pytest.mark.timeout(600),
]

VALUES = CHART / "ci" / "laptop-cpu.yaml"
MODEL = "smollm2-135m-instruct"
MASTER = "fabric0"  # a link of each node of the lab to a switch of its own
FUNCTION = "vf0"  # another one, which a pod can take over as it would a virtual function
RESOURCE = "example.com/function"
RANGES = {"macvlan": "10.99.1.0/24", "host-device": "10.99.2.0/24"}
MAX_TOKENS = 48
HEAD_PORT = 6379


@dataclass(frozen=True)
class Attached:
    """A release with a second network, and its pods' counters before and after an answer."""

    kind: str
    release: Release
    workers: list[Object]
    head: Object
    before: list[Traffic]
    after: list[Traffic]

    def grown(self, interface: str) -> list[int]:
        return [
            after.bytes[interface] - before.bytes[interface]
            for before, after in zip(self.before, self.after, strict=True)
        ]


@pytest.fixture(scope="module", params=["macvlan", "host-device"])
def attached(
    request: pytest.FixtureRequest, cluster: Cluster, helm: Helm, wait: Waiter, image: str,
    make_module_namespace: MakeNamespace, model_for: ModelFor,
) -> Iterator[Attached]:  # fmt: skip
    kind: str = request.param
    namespace = make_module_namespace(stem=f"fabric-{kind}")
    network: dict[str, Any] = {"ipam": {"range": RANGES[kind]}}
    if kind == "macvlan":
        network["master"] = MASTER
    else:
        cluster.apply(function_network(namespace))
        count_functions(cluster, "1")
        network = {"existing": "functions", "resourceName": RESOURCE}
    release = Release(cluster, namespace)
    fabric = {"fabric": {"type": kind, "rdma": False, "networks": {"rail0": network}}}
    helm.install(release.name, namespace, VALUES, model_for(namespace), fabric)
    release.wait_until_it_serves(wait)
    client = start_client(cluster, wait, namespace, image)
    workers, [head] = release.pods("worker"), release.pods("head")
    before = [traffic(cluster, pod) for pod in workers]
    messages = [{"role": "user", "content": "Tell me about the sea."}]
    client.chat(release.host, 8000, model=MODEL, messages=messages, max_tokens=MAX_TOKENS)
    after = [traffic(cluster, pod) for pod in workers]
    yield Attached(kind, release, workers, head, before, after)
    helm.uninstall(release.name, namespace)
    count_functions(cluster, None)


def count_functions(cluster: Cluster, number: str | None) -> None:
    """On each node, as a device plugin would report them; None takes the report back."""
    for node in cluster.list("Node", labels="type!=kwok"):
        status = {key: {RESOURCE: number} for key in ("capacity", "allocatable")}
        cluster.patch("Node", node["metadata"]["name"], None, {"status": status}, "status")


def function_network(namespace: str) -> Object:
    """A link has no PCI address, by which the chart's own definition names a function: this one names the link."""
    config = {
        "cniVersion": "1.0.0",
        "name": "functions",
        "type": "host-device",
        "device": FUNCTION,
        "ipam": {"type": "whereabouts", "range": RANGES["host-device"]},
    }
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "functions", "namespace": namespace},
        "spec": {"config": json.dumps(config)},
    }


def test_each_worker_has_net1_with_an_address_of_its_own(attached: Attached) -> None:
    assert len({pod["spec"]["nodeName"] for pod in attached.workers}) == 2
    found = [networks(pod) for pod in attached.workers]
    assert all(set(one) == {"eth0", "net1"} for one in found)
    addresses = [address for one in found for address in one["net1"]]
    assert [one.addresses["net1"] for one in attached.after] == addresses
    prefix = RANGES[attached.kind].rpartition(".")[0]
    assert len(addresses) == len(set(addresses)) == 2
    assert all(address.startswith(prefix) for address in addresses)
    assert "net1" not in json.dumps(attached.head["metadata"].get("annotations") or {})


def test_the_tensors_of_an_answer_are_counted_on_net1(attached: Attached) -> None:
    """Two all-reduces a layer and token, 576 floats, 30 layers; what Ray says meanwhile is next to nothing."""
    least = MAX_TOKENS * 30 * 2 * 576 * 4 // 2
    for tensors, others in zip(attached.grown("net1"), attached.grown("eth0"), strict=True):
        assert tensors > least
        assert tensors > 10 * others


def test_ranks_meet_on_net1_and_ray_on_eth0(attached: Attached) -> None:
    own = [networks(pod) for pod in attached.workers]
    for mine, theirs, seen in zip(own, reversed(own), attached.after, strict=True):
        assert seen.addresses_towards(theirs["net1"][0]) == {mine["net1"][0]}
        to_head = seen.addresses_towards(attached.head["status"]["podIP"])
        assert to_head == {mine["eth0"][0]}
        assert any(port == HEAD_PORT for *_, peer, port in seen.connections if peer == attached.head["status"]["podIP"])
