"""What KubeRay and Ray make of the chart's objects, by their own rules: pods, Ray nodes, placement groups.

Written from the operator's behaviour and independent of the chart's helpers, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import yaml

Amounts = dict[str, Fraction]
SUFFIXES = {
    "": Fraction(1), "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50),
}  # fmt: skip


SMALL = {"cpu": "200m", "memory": "256Mi"}
WAIT_FOR_HEAD = {"name": "wait-gcs-ready", "resources": {"requests": SMALL, "limits": SMALL}}
AUTOSCALER = {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "500m", "memory": "512Mi"}}


def quantity(value: str | int | float) -> Fraction:
    """The amount that a Kubernetes quantity says."""
    text = str(value)
    number = text.rstrip("numkKMGTPEi")
    return Fraction(number) * SUFFIXES[text[len(number) :]]


@dataclass(frozen=True)
class Pod:
    """A pod of a Ray cluster; `group` is headgroup or the worker group's name."""

    group: str
    labels: dict[str, str]
    annotations: dict[str, str]
    spec: dict[str, Any] = field(repr=False)
    start_params: dict[str, str] = field(repr=False)


def cluster_spec(owner: Mapping[str, Any]) -> dict[str, Any]:
    """The RayClusterSpec in a RayCluster or a RayService."""
    spec: dict[str, Any] = owner["spec"]
    return spec if owner["kind"] == "RayCluster" else spec["rayClusterConfig"]


def serve_config(owner: Mapping[str, Any], config_maps: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Serve's config file: in the RayService, or for a RayCluster in the ConfigMap that the deployer reads."""
    if owner["kind"] == "RayService":
        text = owner["spec"]["serveConfigV2"]
    else:
        [text] = [c["data"]["config.yaml"] for c in config_maps if "config.yaml" in c.get("data", {})]
    config: dict[str, Any] = yaml.safe_load(text)
    return config


def group_replicas(group: Mapping[str, Any], *, wanted: int | None = None) -> int:
    """Groups of hosts that KubeRay makes: none when suspended, else `replicas` within min and max."""
    if group.get("suspend"):
        return 0
    replicas = group.get("replicas", 0) if wanted is None else wanted
    return int(max(group["minReplicas"], min(group["maxReplicas"], replicas)))


def pods(owner: Mapping[str, Any], at: str = "first") -> list[Pod]:
    """The pods of the cluster when it is `first` made, at its `min` or at its `max`; the head comes first."""
    spec = cluster_spec(owner)
    made = [_head(owner)]
    for group in spec.get("workerGroupSpecs", []):
        wanted = {"first": None, "min": group["minReplicas"], "max": group["maxReplicas"]}[at]
        count = group_replicas(group, wanted=wanted) * group.get("numOfHosts", 1)
        made += [_worker(owner, group)] * count
    return made


def kinds_of_pods(owner: Mapping[str, Any]) -> list[Pod]:
    """The head and one pod of each worker group, also of those that have none now."""
    return [_head(owner), *(_worker(owner, group) for group in cluster_spec(owner).get("workerGroupSpecs", []))]


def head_service_labels(owner: Mapping[str, Any], cluster: str) -> dict[str, str]:
    """Labels of the Service that a RayCluster or RayService makes for the head of a cluster of that name."""
    labels = {
        "app.kubernetes.io/created-by": "kuberay-operator",
        "app.kubernetes.io/name": "kuberay",
        "ray.io/cluster": cluster,
        "ray.io/node-type": "head",
    }
    if owner["kind"] == "RayCluster":
        return labels
    name = owner["metadata"]["name"]
    return labels | {"ray.io/originated-from-cr-name": name, "ray.io/originated-from-crd": "RayService"}


def _head(owner: Mapping[str, Any]) -> Pod:
    """The head; Ray's autoscaler runs beside it, in a container of the operator's."""
    spec = cluster_spec(owner)
    pod = _pod(owner, spec["headGroupSpec"], "headgroup", "head")
    if not spec.get("enableInTreeAutoscaling"):
        return pod
    autoscaler = {"name": "autoscaler", "resources": spec.get("autoscalerOptions", {}).get("resources", AUTOSCALER)}
    return replace(pod, spec=pod.spec | {"containers": [*pod.spec["containers"], autoscaler]})


def _worker(owner: Mapping[str, Any], group: Mapping[str, Any]) -> Pod:
    """A worker; the operator appends an init container that waits for the head."""
    pod = _pod(owner, group, group["groupName"], "worker")
    return replace(pod, spec=pod.spec | {"initContainers": [*pod.spec.get("initContainers", []), WAIT_FOR_HEAD]})


def _pod(owner: Mapping[str, Any], group: Mapping[str, Any], name: str, node_type: str) -> Pod:
    metadata = group["template"].get("metadata", {})
    theirs = {
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
        "ray.io/is-ray-node": "yes",
    }
    fixed = {"ray.io/cluster": owner["metadata"]["name"], "ray.io/node-type": node_type, "ray.io/group": name}
    labels = theirs | metadata.get("labels", {}) | fixed
    annotations = metadata.get("annotations", {})
    return Pod(name, labels, annotations, group["template"]["spec"], group.get("rayStartParams", {}))


def requested(pod: Pod) -> Amounts:
    """What the scheduler reserves: all containers and sidecars, or an init container with the sidecars before it."""
    sidecars: list[Amounts] = []
    peaks: list[Amounts] = []
    for container in pod.spec.get("initContainers", []):
        if container.get("restartPolicy") == "Always":
            sidecars.append(_asked(container))
        else:
            peaks.append(summed([*sidecars, _asked(container)]))
    running = summed([*sidecars, *map(_asked, pod.spec["containers"])])
    names = {name for amounts in (running, *peaks) for name in amounts}
    return {name: max(amounts.get(name, Fraction(0)) for amounts in (running, *peaks)) for name in names}


def _asked(container: Mapping[str, Any]) -> Amounts:
    """Requests, and limits where there is no request."""
    resources = container.get("resources", {})
    asked = resources.get("limits", {}) | resources.get("requests", {})
    return {name: quantity(amount) for name, amount in asked.items()}


def summed(amounts: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for amount in amounts:
        for name, number in amount.items():
            total[name] = total.get(name, Fraction(0)) + number
    return total


def ray_node(pod: Pod) -> Amounts:
    """CPUs and GPUs that Ray counts: rayStartParams, else the first container's limits (whole numbers, rounded up)."""
    resources = pod.spec["containers"][0].get("resources", {})
    limits = resources.get("limits", {})
    cpu = limits.get("cpu", resources.get("requests", {}).get("cpu", 0))
    gpus = sum(quantity(n) for name, n in limits.items() if name.endswith("gpu") or name.startswith("nvidia.com/mig-"))
    return {
        "CPU": Fraction(pod.start_params.get("num-cpus", -(-quantity(cpu) // 1))),
        "GPU": Fraction(pod.start_params.get("num-gpus", gpus)),
    }


@dataclass(frozen=True)
class Deployment:
    """The placement groups that the Serve config asks for, by `llm_ray.serve`: one a replica, its own bundle first."""

    min_replicas: int
    max_replicas: int
    strategy: str
    bundles: tuple[tuple[tuple[str, Fraction], ...], ...]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Deployment:
        [app] = config["applications"]
        engine, deployment = app["args"]["engine"], app["args"]["deployment"]
        world = engine["tensor_parallel_size"] * engine["pipeline_parallel_size"]
        rank = {"CPU": Fraction(engine["num_cpus_per_rank"]), "GPU": Fraction(engine["num_gpus_per_rank"])}
        bundles = [{"CPU": Fraction(deployment["replica_num_cpus"])}, *[rank] * world]
        return cls(
            deployment["min_replicas"],
            deployment["max_replicas"],
            deployment["placement_strategy"],
            tuple(tuple((name, n) for name, n in bundle.items() if n > 0) for bundle in bundles),
        )


def unplaced(deployment: Deployment, replicas: int, nodes: Iterable[Amounts]) -> int:
    """Of so many replicas, those whose placement group finds no room when each takes the first nodes that fit."""
    free = [dict(node) for node in nodes]
    missing = 0
    for _ in range(replicas):
        bundles = [dict(bundle) for bundle in deployment.bundles]
        units = [summed(bundles)] if deployment.strategy == "STRICT_PACK" else sorted(bundles, key=_size, reverse=True)
        trial = [dict(node) for node in free]
        if all(_place(unit, trial) for unit in units):
            free = trial
        else:
            missing += 1
    return missing


def _size(bundle: Amounts) -> tuple[Fraction, Fraction]:
    return bundle.get("GPU", Fraction(0)), bundle.get("CPU", Fraction(0))


def _place(bundle: Amounts, nodes: list[Amounts]) -> bool:
    for node in nodes:
        if all(node.get(name, Fraction(0)) >= amount for name, amount in bundle.items()):
            node.update({name: node[name] - amount for name, amount in bundle.items()})
            return True
    return False


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A Kubernetes label selector, matchLabels and matchExpressions."""
    wanted = selector.get("matchLabels", {})
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(expression, labels) for expression in selector.get("matchExpressions", [])
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values", [])
    there = key in labels
    answers = {
        "In": there and labels.get(key) in values,
        "NotIn": not there or labels[key] not in values,
        "Exists": there,
        "DoesNotExist": not there,
    }
    return answers[expression["operator"]]


def containers(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All containers of a pod, init containers first."""
    yield from spec.get("initContainers", [])
    yield from spec["containers"]
