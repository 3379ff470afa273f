"""The real chart and image on a real cluster: TP=2 over two pods on two nodes, from install to uninstall."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.conftest import MakeNamespace, ModelFor
from tests.live.support.clients import start_client
from tests.live.support.cluster import Cluster
from tests.live.support.helm import CHART, Helm
from tests.live.support.models import greedy_chat
from tests.live.support.release import Release
from tests.live.support.waiting import Waiter

pytestmark = [pytest.mark.live, pytest.mark.needs("nodes", "image", "kuberay"), pytest.mark.timeout(600)]

VALUES = CHART / "ci" / "laptop-cpu.yaml"
MODEL = "smollm2-135m-instruct"
MESSAGES = [{"role": "user", "content": "Name the capital of France, and say why people visit it."}]
MAX_TOKENS = 32
SHORT = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
GONE_S = 150


@dataclass(frozen=True)
class Served:
    release: Release
    inventory_before: set[str]


@pytest.fixture(scope="module")
def served(
    cluster: Cluster, helm: Helm, wait: Waiter, make_module_namespace: MakeNamespace, model_for: ModelFor
) -> Served:
    namespace = make_module_namespace()
    values = model_for(namespace)
    before = cluster.inventory(namespace)
    release = Release(cluster, namespace)
    helm.install(release.name, namespace, VALUES, values)
    release.wait_until_it_serves(wait)
    return Served(release, before)


@pytest.fixture(scope="module")
def elsewhere(make_module_namespace: MakeNamespace) -> str:
    """A namespace of the clients: the Service's name must be whole from there."""
    return make_module_namespace(stem="clients")


def test_each_rank_is_in_a_pod_and_on_a_node_of_its_own(served: Served, cluster: Cluster) -> None:
    workers = served.release.pods("worker")
    assert len(workers) == 2
    assert len({pod["spec"]["nodeName"] for pod in workers}) == 2
    ranks = [ranks_in(cluster, pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in workers]
    assert ranks == [1, 1]


def ranks_in(cluster: Cluster, namespace: str, pod: str) -> int:
    ran = cluster.exec(namespace, pod, ["ps", "-eo", "args="], "ray-worker")
    return sum(line.startswith("ray::RankActor") for line in ran.stdout.splitlines())


def test_a_chat_answer_streams_by_dns_name_with_the_tokens_of_hugging_face(
    served: Served, cluster: Cluster, wait: Waiter, elsewhere: str, image: str, smollm2: Path
) -> None:
    client = start_client(cluster, wait, elsewhere, image)
    answer = client.chat(served.release.host, 8000, model=MODEL, messages=MESSAGES, max_tokens=MAX_TOKENS)
    reference = greedy_chat(smollm2, MESSAGES, MAX_TOKENS)
    assert answer.tokens == reference.tokens
    assert answer.text == reference.text
    assert answer.is_done
    assert len(answer.piece_times) > MAX_TOKENS // 2
    assert answer.piece_times[0] < answer.piece_times[len(answer.piece_times) // 2] < answer.piece_times[-1]


def test_helm_test_passes(served: Served, helm: Helm) -> None:
    release = served.release
    told = helm.test(release.name, release.namespace, timeout_s=120)
    assert "Phase:          Succeeded" in told.stdout
    assert "OK: 'The capital of France is' goes on with" in told.stdout


def test_a_lost_head_costs_the_clients_a_pause(
    served: Served, cluster: Cluster, wait: Waiter, make_namespace: MakeNamespace, image: str
) -> None:
    """Without fault tolerance the workers start anew with the next head, whose deployer puts the same."""
    release = served.release
    (head,) = release.pods("head")
    cluster.delete("Pod", head["metadata"]["name"], release.namespace, grace_s=0)
    wait("no endpoint", lambda: not release.endpoints(), 120, watching=release.namespace)
    release.wait_until_it_serves(wait)
    (found,) = release.pods("head")
    assert found["metadata"]["uid"] != head["metadata"]["uid"]
    client = start_client(cluster, wait, make_namespace(), image)
    answer = client.chat(release.host, 8000, model=MODEL, messages=SHORT, max_tokens=24)
    assert answer.text == "The capital of France is Paris."


def test_uninstall_leaves_nothing(served: Served, cluster: Cluster, helm: Helm, wait: Waiter) -> None:
    release = served.release
    assert cluster.inventory(release.namespace) - served.inventory_before
    helm.uninstall(release.name, release.namespace)

    def left() -> set[str]:
        return cluster.inventory(release.namespace) - served.inventory_before

    wait("nothing left", lambda: not left(), GONE_S, last_seen=left)
    assert served.inventory_before == cluster.inventory(release.namespace)


@pytest.mark.parametrize(
    ("keep", "left"), [("false", set()), ("true", {"persistentvolumeclaims.core/llm-llm-ray-models"})]
)
def test_uninstall_leaves_the_models_claim_only_where_values_keep_it(
    cluster: Cluster, helm: Helm, wait: Waiter, namespace: str, keep: str, left: set[str]
) -> None:
    cache = ["model.cache.type=pvc", "model.cache.storageClassName=none", "image.repository=nowhere"]
    before = cluster.inventory(namespace)

    def difference() -> set[str]:
        return cluster.inventory(namespace) - before

    helm.install("llm", namespace, VALUES, set_=[*cache, f"model.cache.keep={keep}"])
    wait("the pods", lambda: Release(cluster, namespace).pods("worker"), 60)
    helm.uninstall("llm", namespace)
    wait("all but the claim gone", lambda: difference() == left, 60, last_seen=difference)
