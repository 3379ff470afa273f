"""Load that rises and falls moves a whole gang in and out, and no request is lost: both layers, on real pods.

One engine is two ranks in two pods. In mode hpa the HorizontalPodAutoscaler, the scaler and the app's capacity policy
move it, in mode serve Ray Serve and Ray's autoscaler. What is asserted is read from the API server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml
from ci.lab.addons.prometheus import INTERVAL_S as SCRAPE_S

from llm_ray.cli import main
from llm_ray.simulate.curve import compare, observed, read_csv
from tests.live.conftest import ModelFor
from tests.live.support.autoscaling import GANG, WORKER, Asked, Load, Loads, Watch, watched
from tests.live.support.cluster import Cluster, Object, event_time
from tests.live.support.helm import CHART, Helm
from tests.live.support.metrics import RUNNING, WAITING, Metrics
from tests.live.support.namespaces import Namespaces
from tests.live.support.release import Release
from tests.live.support.upgrades import merged
from tests.live.support.waiting import Waiter

NEEDS = pytest.mark.needs("nodes", "image", "kuberay", "external-metrics")
pytestmark = [pytest.mark.live, NEEDS, pytest.mark.timeout(1200)]

LAPTOP = yaml.safe_load((CHART / "ci" / "laptop-cpu.yaml").read_text())
SCALER = CHART.parent / "llm-ray-scaler"
MODEL = "smollm2-135m-instruct"
HOSTS, PER_GANG = 2, 3
BASE, PEAK = 2, 4  # open requests: what one gang takes, and what comes to make it three times as many
BODY = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
ALONE_S = 45
PROMPT_TOKENS = 4
STARTS_S, SETTLES_S = 150, 150
SYNC_S = 5  # of the lab's HorizontalPodAutoscalers
REQUESTED_S = 30
DOWN_S = 30
SMALL = {"requests": {"cpu": "150m"}}


def values(mode: str) -> dict[str, Any]:
    down = {"stabilizationWindowSeconds": DOWN_S, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 15}]}
    deployment = {"targetOngoingRequests": PER_GANG, "upscaleDelayS": 10, "downscaleDelayS": DOWN_S}
    own = {
        "autoscaling": {
            "mode": mode,
            "serve": {"idleTimeoutSeconds": DOWN_S, "resources": {"requests": {"cpu": "50m"}}},
            "hpa": {"averageValue": PER_GANG, "behavior": {"scaleDown": down}},
        },
        "engine": {"maxModelLen": 256, "kvCacheBytes": 33554432},
        "serve": {"deployment": {"drainTimeoutS": 30} | (deployment if mode == "serve" else {})},
        "head": {"resources": SMALL},
        "workerDefaults": {"resources": SMALL},
        "workers": {"worker": {"minReplicas": 1, "maxReplicas": 2}},
        "monitoring": {"podMonitor": {"enabled": True}},
    }
    return merged(LAPTOP, own)


@pytest.fixture(scope="module")
def scaler(namespaces: Namespaces, helm: Helm, cluster: Cluster, wait: Waiter, image: str) -> Iterator[str]:
    """The namespace in which the scaler runs."""
    registry, _, rest = image.partition("/")
    repository, _, tag = rest.partition(":")
    own = {"image": {"registry": registry, "repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"}}
    with namespaces.make("scaler") as namespace:
        helm.install("scaler", namespace, own, extra=("--wait", "--timeout", "90s", "--take-ownership"), chart=SCALER)
        yield namespace
        helm.uninstall("scaler", namespace)


@dataclass(frozen=True)
class Scaled:
    """A release under load, and the eyes on it."""

    release: Release
    wait: Waiter
    loads: Loads
    watch: Watch

    @property
    def cluster(self) -> Cluster:
        return self.release.cluster

    def gangs(self) -> dict[str, set[str]]:
        """Names of the pods that are there, by gang."""
        found: dict[str, set[str]] = {}
        for pod in self.cluster.pods(self.release.namespace, WORKER):
            found.setdefault(pod["metadata"]["labels"][GANG], set()).add(pod["metadata"]["name"])
        return found

    def whole(self, count: int, seconds: float) -> frozenset[str]:
        """Wait until so many gangs are asked for and so many are there and ready, and no pod more."""

        def fits() -> bool:
            last = self.watch.seen[-1]
            return last.wanted == len(last.gangs) == count and last.pods == count * HOSTS

        self.wait(f"{count} whole gangs", fits, seconds, last_seen=lambda: self.watch.seen[-5:])
        return self.watch.seen[-1].gangs

    def asks(self, load: Load, seconds: float) -> None:
        """Wait until answers have come for so long."""

        def spans() -> bool:
            asked = load.asked()
            return bool(asked) and asked[-1].done - asked[0].sent >= seconds

        self.wait(f"answers for {seconds:g} s", spans, seconds + STARTS_S)

    def events(self, kind: str, reason: str) -> list[Object]:
        found = self.cluster.events(self.release.namespace)
        return [one for one in found if one["involvedObject"]["kind"] == kind and one["reason"] == reason]

    def serving(self) -> set[str]:
        """Gangs with a pod that the clients' Service sends requests to."""
        pods = self.cluster.pods(self.release.namespace, f"{WORKER},llm-ray.io/serving=true")
        return {pod["metadata"]["labels"][GANG] for pod in pods}


@pytest.fixture
def scaled(
    request: pytest.FixtureRequest, cluster: Cluster, wait: Waiter, helm: Helm, scaler: str, namespace: str,
    model_for: ModelFor, image: str,
) -> Iterator[Scaled]:  # fmt: skip
    helm.install("llm", namespace, merged(values(request.param), model_for(namespace)))
    release = Release(cluster, namespace)
    release.wait_until_it_serves(wait)
    if request.param == "hpa":
        wait("an autoscaler that reads its metric", lambda: is_active(cluster, namespace), 90)
    with watched(cluster, namespace, HOSTS) as watch:
        loads = Loads(cluster, namespace, image, f"http://{release.host}:8000/v1/completions", BODY)
        yield Scaled(release, wait, loads, watch)


def is_active(cluster: Cluster, namespace: str) -> bool:
    [found] = cluster.list("HorizontalPodAutoscaler", namespace)
    conditions = found.get("status", {}).get("conditions") or []
    return any(one["type"] == "ScalingActive" and one["status"] == "True" for one in conditions)


@pytest.mark.parametrize("scaled", ["hpa", "serve"], indirect=True)
def test_a_gang_comes_with_the_load_and_goes_with_it_and_no_request_fails(
    scaled: Scaled, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    is_hpa = "hpa" in request.node.callspec.id
    [first] = scaled.whole(1, 30)
    base = scaled.loads.start("base", BASE)
    scaled.asks(base, ALONE_S)
    peak = scaled.loads.start("peak", PEAK)
    both = scaled.whole(2, STARTS_S)
    if is_hpa:
        assert requested(scaled) - crossed(scaled) <= REQUESTED_S
    [second] = both - {first}
    members = scaled.gangs()
    scaled.wait("the new gang serves", lambda: second in scaled.serving(), STARTS_S)
    takes_traffic(scaled, members[second])
    peak.stop()
    [left] = scaled.whole(1, SETTLES_S)
    gone = members[second if left == first else first]
    scaled.wait("only one gang's pods", lambda: scaled.gangs() == {left: members[left]}, SETTLES_S)
    base.stop()
    for load in (base, peak):
        scaled.wait(f"the end of {load.name}", load.is_over, SETTLES_S)
        assert [one for one in load.asked() if one.status != 200] == []
    assert max(one.pods for one in scaled.watch.seen) <= 2 * HOSTS
    in_order(scaled, members[second], gone, is_hpa)
    if is_hpa:
        as_simulated(scaled, base.asked(), peak.asked(), tmp_path)


def crossed(scaled: Scaled) -> float:
    """When the metric was first above what one gang is to have, by more than an autoscaler tolerates; Unix seconds."""
    release = scaled.release
    labels = f'application="llm",namespace="{release.namespace}",llm_ray_name="{release.fullname}"'
    [series] = Metrics(scaled.cluster).query(f'sum({{__name__=~"{RUNNING}|{WAITING}",{labels}}})[10m:1s]')
    return next(when for when, value in series["values"] if float(value) > 1.1 * PER_GANG)


def requested(scaled: Scaled) -> float:
    return next(one.when for one in scaled.watch.seen if one.wanted == 2)


def takes_traffic(scaled: Scaled, pods: set[str]) -> None:
    metrics, names = Metrics(scaled.cluster), "|".join(sorted(pods))
    query = f'ray_serve_replica_processing_queries{{namespace="{scaled.release.namespace}",pod=~"{names}"}} > 0'
    scaled.wait("open requests in the new gang", lambda: metrics.query(query), 90)


def in_order(scaled: Scaled, came: set[str], gone: set[str], is_hpa: bool) -> None:
    """What the API server's events say, each step not before the last one."""
    made = worker_events(scaled, "CreatedWorkerPod", came)
    ended = worker_events(scaled, "DeletedWorkerPod", gone)
    assert len(made) == len(ended) == HOSTS
    steps = [*made, *ended]
    if is_hpa:
        up, down = (one for one in scaled.events("HorizontalPodAutoscaler", "SuccessfulRescale"))
        assert up["message"].startswith("New size: 2;")
        assert down["message"].startswith("New size: 1;")
        scaling = [scaled.events("WorkerGroupScale", reason) for reason in ("ScalingUp", "ScalingDown")]
        steps = [up, *scaling[0], *made, down, *scaling[1], *ended]
        assert [len(found) for found in scaling] == [1, 1]
    times = [event_time(one)[:19] for one in steps]
    assert times == sorted(times)


def worker_events(scaled: Scaled, reason: str, pods: set[str]) -> list[Object]:
    return [one for one in scaled.events("RayCluster", reason) if any(pod in one["message"] for pod in pods)]


def as_simulated(scaled: Scaled, base: list[Asked], peak: list[Asked], folder: Path) -> None:
    """`llm-ray simulate` of the same requests, with this run's rates, wants as many replica-seconds to a tenth."""
    began, ended = base[0].sent, base[-1].done
    trace = [[round(one.sent - began, 3), PROMPT_TOKENS, BODY["max_tokens"]] for one in [*base, *peak]]
    rows = [["arrival_s", "prompt_tokens", "output_tokens"], *sorted(trace)]
    files = {name: folder / name for name in ("trace.csv", "values.yaml", "rates.yaml", "curve.csv")}
    files["trace.csv"].write_text("\n".join(",".join(map(str, row)) for row in rows))
    files["values.yaml"].write_text(yaml.safe_dump(values("hpa")))
    files["rates.yaml"].write_text(yaml.safe_dump(measured(scaled, base, peak)))
    words = [f"--{name.partition('.')[0]}={path}" for name, path in files.items()]
    assert main(["simulate", *words, f"--until={ended - began}"]) == 0
    seen = [(one.when - began, one.wanted) for one in scaled.watch.seen if began <= one.when <= ended]
    compared = compare(read_csv(files["curve.csv"], "wanted"), observed(seen))
    print(f"replica-seconds: {compared.simulated_s:.0f} simulated, {compared.observed_s:.0f} observed")
    assert abs(compared.difference) <= 0.1


def measured(scaled: Scaled, base: list[Asked], peak: list[Asked]) -> dict[str, Any]:
    """Rates for the simulator, of this run: an engine alone with the base, then with the peak; how a gang came."""

    def step_s(asked: list[Asked]) -> float:
        return median(one.done - one.sent for one in asked) / BODY["max_tokens"]

    alone = step_s([one for one in base if one.done < peak[0].sent])
    each = max(0.0, (step_s(peak) - alone) / PEAK)
    fixed = max(0.001, alone - BASE * each)
    seen = scaled.watch.seen
    wanted = requested(scaled)
    made = next(one.when for one in seen if one.pods == 2 * HOSTS)
    joined = next(one.when for one in seen if len(one.gangs) == 2)
    engine = {"decode_step_s": fixed, "decode_seq_s": each, "prefill_tokens_per_s": 64 / fixed}
    pods = {"scale_delay_s": made - wanted, "pod_start_s": joined - made, "load_s": 20}
    return {"rates": engine | pods, "metrics": {"push_s": 10, "scrape_s": SCRAPE_S, "sync_s": SYNC_S}}
