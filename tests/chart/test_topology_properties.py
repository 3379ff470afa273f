"""Random topologies: refused by name, or gang and placement groups agree with the pods that KubeRay makes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import kuberay
from tests.support.chart import Objects
from tests.support.random_values import ray_owner, rendered, steady

GROUP_NAMES = st.sampled_from(["worker", "gpu", "h100", "cpu-large", "b", "a2"])


def maybe(strategy: st.SearchStrategy[Any], share: float = 0.3) -> st.SearchStrategy[Any]:
    """None most of the time: what a user leaves out."""
    return st.one_of(*[st.none()] * round(1 / share - 1), strategy)


@st.composite
def groups(draw: st.DrawFn, world: int, *, gpus: bool, mode: str) -> dict[str, Any]:
    """A worker group: what a user would write, and now and then anything."""
    if draw(st.integers(0, 5)):
        size = draw(st.sampled_from(fitting(world)))
        group = {"gpusPerNode": size if gpus else 0, "ranksPerNode": None if gpus else draw(maybe(st.just(size), 0.5))}
    else:
        group = {
            "gpusPerNode": draw(st.sampled_from([0, 1, 2, 4, 8])),
            "ranksPerNode": draw(maybe(st.sampled_from([1, 2, 4, world, 2 * world]), 0.5)),
            "numOfHosts": draw(maybe(st.sampled_from([1, 2, 3, 4, world]), 0.5)),
            "numGpus": draw(maybe(st.integers(0, 8), 0.2)),
            "resources": draw(maybe(st.sampled_from([{"limits": {"cpu": "32", "memory": "64Gi"}}]), 0.5)),
        }
    group["replicas"] = draw(st.integers(0, 3))
    if mode != "fixed":
        low = draw(st.integers(1 if mode == "hpa" else 0, 2))
        group |= {"minReplicas": low, "maxReplicas": low + draw(st.integers(0, 3))}
    else:
        group["suspend"] = draw(st.sampled_from([False, False, True]))
    return {key: value for key, value in group.items() if value is not None}


def fitting(world: int) -> list[int]:
    """Ranks of a pod that are a part of an engine, one engine, or two."""
    return [*(n for n in (1, 2, 3, 4, 6, 8, 16) if world % n == 0), world, 2 * world]


@st.composite
def topologies(draw: st.DrawFn) -> dict[str, Any]:
    tp = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 16]))
    pp = draw(st.sampled_from([1, 1, 1, 2, 4]))
    mode = draw(st.sampled_from(["fixed", "fixed", "serve", "hpa"]))
    provider = draw(st.sampled_from(["none", "podgroup", "podgroup", "kueue" if mode == "fixed" else "kuberay"]))
    count = draw(st.sampled_from([1, 1, 2, 2, 3, 0]))
    names = draw(st.lists(GROUP_NAMES, min_size=count, max_size=count, unique=True))
    gpus = draw(st.booleans())
    fetch = draw(st.sampled_from(["2", "2", "64"]))
    engine: dict[str, Any] = {"tensorParallelSize": tp, "pipelineParallelSize": pp}
    engine["numCpusPerRank"] = draw(st.sampled_from([1, 1, 0.5, 2]))
    if gpus and (per_rank := draw(maybe(st.sampled_from([0.5, 1, 2]), 0.2))) is not None:
        engine["numGpusPerRank"] = per_rank
    return {
        "kind": draw(st.sampled_from(["", "", "", "RayCluster", "RayService"])),
        "model": {"fetch": {"resources": {"requests": {"cpu": fetch}, "limits": {"cpu": fetch}}}},
        "engine": engine,
        "serve": {
            "deployment": {"replicaNumCpus": draw(st.sampled_from([1, 1, 0.5, 2]))},
            "excludeHead": draw(st.sampled_from([False, False, True])),
        },
        "head": {"numCpus": draw(st.sampled_from([0, 0, 0, 4]))},
        "autoscaling": {"mode": mode, "allowReplicaReset": draw(st.booleans())},
        "gang": {"provider": provider, "queue": "team" if provider == "kueue" else ""},
        "rollout": {"strategy": "none" if provider == "podgroup" else ""},
        "workers": {name: draw(groups(tp * pp, gpus=gpus, mode=mode)) for name in names},
    }


def test_gang_and_placement_groups_agree_with_the_pods_that_kuberay_makes():
    seen: Counter[str] = Counter()

    @settings(steady, max_examples=160)
    @given(topologies())
    def agree(values: dict[str, Any]) -> None:
        objects = rendered(values, seen)
        if objects is None:
            return
        owner = ray_owner(objects)
        seen.update(features(objects, owner, values))
        check_counts(owner, values)
        check_gang(objects, owner)
        check_placement(objects, owner)

    agree()
    # a property that refuses nearly everything, or never meets a case that matters, proves nothing
    assert seen["rendered"] >= 80, seen
    missed = [feature for feature in MET if not seen[feature]]
    assert missed == [], seen


SUSPENDED, DOWNLOAD, AUTOSCALER = "a suspended group", "a download that asks for more", "the autoscaler in a gang"
SPREAD, SHARED = "ranks over several hosts", "several engines in a pod"
MET = (
    "RayCluster fixed", "RayService serve", "RayService hpa", "podgroup", "kueue", "kuberay",
    SUSPENDED, DOWNLOAD, AUTOSCALER, SPREAD, SHARED,
)  # fmt: skip


def features(objects: Objects, owner: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """What an example shows, to know that such were among the random ones."""
    mode, provider = values["autoscaling"]["mode"], values["gang"]["provider"]
    spec = kuberay.cluster_spec(owner)
    rendered_groups = spec["workerGroupSpecs"]
    gang = bool(objects.all("PodGroup"))
    deployment = kuberay.Deployment.of(kuberay.serve_config(owner, objects.all("ConfigMap")))
    hosts = sum(g["maxReplicas"] * g["numOfHosts"] for g in rendered_groups if not g.get("suspend"))
    large = values["model"]["fetch"]["resources"]["limits"]["cpu"] == "64"
    found = {
        f"{owner['kind']} {mode}": True,
        provider: True,
        SUSPENDED: gang and any(g.get("suspend") and g["replicas"] for g in rendered_groups),
        DOWNLOAD: gang and large,
        SPREAD: any(g["numOfHosts"] > 1 for g in rendered_groups),
        SHARED: deployment.max_replicas > max(1, hosts),
        AUTOSCALER: gang and bool(spec.get("enableInTreeAutoscaling")),
    }
    return [name for name, there in found.items() if there]


def check_counts(owner: dict[str, Any], values: dict[str, Any]) -> None:
    """The groups are those of the values, each as large as it says."""
    given_groups = values["workers"] or {"worker": {}}
    spec = kuberay.cluster_spec(owner)
    assert [g["groupName"] for g in spec["workerGroupSpecs"]] == sorted(given_groups)
    for group in spec["workerGroupSpecs"]:
        wanted = given_groups[group["groupName"]]
        replicas = wanted.get("replicas", 1)
        low, high = wanted.get("minReplicas", replicas), wanted.get("maxReplicas", replicas)
        if values["autoscaling"]["mode"] == "fixed":
            low = high = replicas
        assert (group["minReplicas"], group["maxReplicas"]) == (low, high)
        # what another writes is not rendered, and starts at the least
        assert kuberay.group_replicas(group) == (0 if wanted.get("suspend") else low)
        assert group["numOfHosts"] == wanted.get("numOfHosts", group["numOfHosts"])


def check_gang(objects: Objects, owner: dict[str, Any]) -> None:
    """A PodGroup waits for exactly the pods of the smallest cluster, and for what they ask for."""
    pods = kuberay.pods(owner, at="min")
    for gang in objects.all("PodGroup"):
        assert gang["spec"]["minMember"] == len(pods)
        wanted = kuberay.summed(kuberay.requested(pod) for pod in pods)
        assert {name: kuberay.quantity(n) for name, n in gang["spec"]["minResources"].items()} == wanted
        assert {pod.annotations["scheduling.k8s.io/group-name"] for pod in pods} == {gang["metadata"]["name"]}
        roles = {(pod.group, pod.annotations["volcano.sh/task-spec"]) for pod in kuberay.pods(owner, at="max")}
        assert len({role for _, role in roles}) == len(roles), "a role of its own for each group"


def check_placement(objects: Objects, owner: dict[str, Any]) -> None:
    """As many replicas as Serve is told to run find room for their placement groups, at the least and at the most."""
    deployment = kuberay.Deployment.of(kuberay.serve_config(owner, objects.all("ConfigMap")))
    assert deployment.max_replicas >= max(1, deployment.min_replicas)
    for at, replicas in (("min", deployment.min_replicas), ("max", deployment.max_replicas)):
        head, *workers = kuberay.pods(owner, at)
        if at == "max" and not workers and replicas == 1:
            continue  # Serve takes no 0 for the most
        nodes = [kuberay.ray_node(pod) for pod in (head, *workers)]
        missing = kuberay.unplaced(deployment, replicas, nodes)
        assert missing == 0, f"{missing} of {replicas} replicas ({deployment.strategy}) do not fit {nodes}"
