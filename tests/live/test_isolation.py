"""Where everything is denied: Pod Security restricted, and a NetworkPolicy that lets nothing in or out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from kubernetes.client import ApiException

from tests.live.conftest import MakeNamespace, ModelFor
from tests.live.support.clients import Client, client_pod, start_client
from tests.live.support.cluster import Cluster
from tests.live.support.helm import Helm
from tests.live.support.isolation import FREE_TO_CALL, HUB_PORT, OTHER_PORT, deny_all, let_clients_call, start_hub
from tests.live.support.models import Values
from tests.live.support.namespaces import RESTRICTED
from tests.live.support.release import Release
from tests.live.support.waiting import Waiter

pytestmark = [pytest.mark.live, pytest.mark.needs("nodes", "image", "kuberay"), pytest.mark.timeout(600)]

MODEL = "smollm2-135m-instruct"
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
SERVE, METRICS = 8000, 8080
HEAD_PORTS = {
    "gcs": 6379,
    "dashboard": 8265,
    "ray client": 10001,
    "agent": 52365,
    "serve, which is the workers'": SERVE,
}
WORKER_PORTS = {"agent": 52365}
FRIEND, STRANGER = {"app": "chat"}, {"app": "other"}


@dataclass(frozen=True)
class Isolated:
    """The release, and who is around it."""

    release: Release
    values: Values
    hub: str
    inside: Client
    friend: Client
    stranger: Client

    @property
    def namespace(self) -> str:
        return self.release.namespace

    def address(self, component: str) -> str:
        (pod,) = self.release.pods(component)
        return str(pod["status"]["podIP"])

    def worker(self) -> Client:
        (pod,) = self.release.pods("worker")
        return Client(self.release.cluster, self.namespace, pod["metadata"]["name"])


@pytest.fixture(scope="module")
def isolated(
    cluster: Cluster, helm: Helm, wait: Waiter, make_module_namespace: MakeNamespace, model_for: ModelFor, image: str
) -> Isolated:
    outside, namespace = make_module_namespace(stem="outside"), make_module_namespace(RESTRICTED)
    cluster.apply(deny_all(), let_clients_call(), namespace=namespace)
    values = default_values(image)
    model = model_for(outside)["model"]["source"]
    hub = start_hub(cluster, wait, outside, image) if model.startswith("pvc://") else ""
    if hub:
        values["serve"] = {"env": {"HF_ENDPOINT": f"http://{hub}:{HUB_PORT}"}}
    release = Release(cluster, namespace)
    helm.install(release.name, namespace, values)
    clients = (
        start_client(cluster, wait, namespace, image, FREE_TO_CALL, "inside"),
        start_client(cluster, wait, outside, image, FRIEND, "friend"),
        start_client(cluster, wait, outside, image, STRANGER, "stranger"),
    )
    release.wait_until_it_serves(wait)
    return Isolated(release, values, hub, *clients)


def default_values(image: str) -> Values:
    """The image, and requests that fit nodes of two CPUs; limits, policies and security are the chart's own."""
    name, _, tag = image.rpartition(":")
    registry, _, repository = name.rpartition("/")
    small = {"resources": {"requests": {"cpu": "200m", "memory": "1Gi"}}}
    return {
        "image": {"registry": registry, "repository": repository, "tag": tag, "pullPolicy": "Never"},
        "head": small,
        "workerDefaults": small,
    }


def test_the_api_server_refuses_a_pod_that_is_not_restricted(isolated: Isolated, cluster: Cluster, image: str) -> None:
    careless = client_pod("careless", image)
    careless["spec"]["containers"][0].pop("securityContext")
    with pytest.raises(ApiException, match='violates PodSecurity \\\\"restricted:latest'):
        cluster.create(careless, isolated.namespace)


def test_a_pod_that_no_policy_names_reaches_nothing(
    isolated: Isolated, cluster: Cluster, wait: Waiter, image: str
) -> None:
    mute = start_client(cluster, wait, isolated.namespace, image, name="mute")
    targets = [(isolated.address("worker"), SERVE), (isolated.address("worker"), METRICS)]
    assert isolated.inside.reach(*targets) == ["open", "open"]
    assert "open" not in mute.reach(*targets)


def test_a_default_install_serves_clients_outside_and_passes_its_test(isolated: Isolated, helm: Helm) -> None:
    answer = isolated.stranger.chat(isolated.release.host, SERVE, model=MODEL, messages=QUESTION, max_tokens=24)
    assert answer.text == "The capital of France is Paris."
    told = helm.test(isolated.release.name, isolated.namespace, timeout_s=120)
    assert "Phase:          Succeeded" in told.stdout


def test_rays_own_ports_are_shut_to_everyone_but_ray(isolated: Isolated) -> None:
    head, worker = isolated.address("head"), isolated.address("worker")
    targets = [(head, port) for port in HEAD_PORTS.values()] + [(worker, port) for port in WORKER_PORTS.values()]
    assert isolated.worker().reach(*targets) == ["open"] * len(targets)
    for client in (isolated.inside, isolated.stranger):
        assert "open" not in client.reach(*targets)
        assert client.reach((worker, SERVE), (worker, METRICS)) == ["open", "open"]


def test_ray_pods_reach_outside_only_what_a_download_needs(isolated: Isolated) -> None:
    wanted = [(isolated.hub, HUB_PORT), (isolated.hub, OTHER_PORT)]
    assert isolated.stranger.reach(*wanted) == ["open", "open"]
    download, other = isolated.worker().reach(*wanted)
    assert download == "open"
    assert other != "open"


def test_only_the_named_clients_reach_the_service_once_they_are_named(
    isolated: Isolated, helm: Helm, wait: Waiter
) -> None:
    service = (isolated.release.host, SERVE)
    everyone = (isolated.friend, isolated.stranger, isolated.inside)
    assert [client.reach(service) for client in everyone] == [["open"]] * 3
    peer = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": isolated.friend.namespace}},
        "podSelector": {"matchLabels": FRIEND},
    }
    pods_before = {pod["metadata"]["uid"] for pod in isolated.release.pods()}
    named = isolated.values | {"networkPolicy": {"clients": [peer]}}
    helm.upgrade(isolated.release.name, isolated.namespace, named)
    wait("the stranger shut out", lambda: isolated.stranger.reach(service) != ["open"], 30)
    assert isolated.inside.reach(service) != ["open"]
    answer = isolated.friend.chat(*service, model=MODEL, messages=QUESTION, max_tokens=24)
    assert answer.text == "The capital of France is Paris."
    assert {pod["metadata"]["uid"] for pod in isolated.release.pods()} == pods_before
