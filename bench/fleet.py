"""What it takes to place a fleet of gangs: our PodGroups, KubeRay's, and the default scheduler, in turn, on the lab.

python -m ci.lab up --profile gang; python -m bench.fleet [--rounds 3] [--write]     --write also writes the section of
docs/benchmarks.md. 64 releases of four pods on 256 nodes that KWOK plays; two cores take about 12 minutes for a round.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ci.lab.programs import PARTS
from ci.lab.settings import Settings, settings

from bench import fleet_meters, fleet_report
from bench.fleet_times import timeline
from bench.paths import FLEET_RESULTS
from tests.live.support import needs
from tests.live.support.batch_scheduler import batch_scheduler
from tests.live.support.cluster import Cluster, NoClusterError, Object, connect
from tests.live.support.fake_nodes import FakeNodes, pool
from tests.live.support.fleet import MEMBERS, NODES, RELEASES, Fleet, fleet_values, names
from tests.live.support.helm import CHART, Helm
from tests.live.support.namespaces import Namespaces
from tests.live.support.waiting import Waiter

PLACED_S = 300
GONE_S = 300
THREADS = 4
WORKLOADS = ("PodGroup", "RayCluster")
HOOK = "helm.sh/hook"


@dataclass(frozen=True)
class Way:
    """gang.provider of the chart, and the batch scheduler of the operator that goes with it."""

    name: str
    provider: str
    operator: str


WAYS = (Way("podgroup", "podgroup", ""), Way("default", "none", ""), Way("kuberay", "kuberay", "volcano"))
ARRIVALS = ("helm", "at once")


@dataclass(frozen=True)
class Bench:
    """`installer` is the same cluster as a user who is counted apart, `chart` a copy that nobody edits."""

    lab: Settings
    cluster: Cluster
    installer: Cluster
    helm: Helm
    chart: Path
    nodes: FakeNodes
    releases: int

    def measure(self, way: Way, arrival: str) -> dict[str, Any]:
        """Bring the fleet up, and say what it took until every RayCluster was ready; leaves nothing behind."""
        with Namespaces(self.cluster).make(f"fleet-{way.name}", gone_s=GONE_S) as namespace:
            extra = ("--kube-as-user", fleet_meters.INSTALLER)
            values = fleet_values(self.nodes, way.provider)
            fleet = Fleet(self.helm, namespace, values, names(self.releases), extra, self.chart)
            install = fleet.install if arrival == "helm" else self._prepared(fleet)
            fleet_meters.wait_until_quiet(self.cluster)
            before = fleet_meters.read(self.cluster, self.lab)
            with timeline(self.cluster, namespace) as times:
                install()
                installed = time.monotonic() - times.started
                times.wait("running", self.releases * MEMBERS, PLACED_S)
                times.wait("ready", self.releases, PLACED_S)
                after = fleet_meters.read(self.cluster, self.lab)
            figures = {"installed": installed, **times.figures()}
            return {"way": way.name, "arrival": arrival, **figures, **fleet_meters.spent(before, after)}

    def _prepared(self, fleet: Fleet) -> Callable[[], None]:
        """All objects of the releases but the workloads, created now; the workloads when it is called."""
        objects = [one for name in fleet.names for one in self._rendered(fleet, name)]
        self._create(fleet.namespace, [one for one in objects if one["kind"] not in WORKLOADS])

        def install() -> None:
            for kind in WORKLOADS:
                self._create(fleet.namespace, [one for one in objects if one["kind"] == kind])

        return install

    def _rendered(self, fleet: Fleet, name: str) -> list[Object]:
        values = self.helm.home / "values.json"
        values.write_text(json.dumps(fleet.values))
        text = self.helm.run(
            "template", name, str(fleet.chart), "--namespace", fleet.namespace, "-f", str(values)
        ).stdout
        found = [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]
        return [one for one in found if HOOK not in (one["metadata"].get("annotations") or {})]

    def _create(self, namespace: str, objects: Iterable[Object]) -> None:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda one: self.installer.create(one, namespace), objects))


def run(bench: Bench, rounds: int, wait: Waiter) -> Iterator[dict[str, Any]]:
    """A row for each round, way and arrival. The ways take turns, each round begins with another one."""
    for number in range(rounds):
        for way in (*WAYS[number % len(WAYS) :], *WAYS[: number % len(WAYS)]):
            with batch_scheduler(bench.cluster, wait, way.operator):
                for arrival in ARRIVALS:
                    row = {"round": number, "load": os.getloadavg()[0], **bench.measure(way, arrival)}
                    shown = f"bound {row['bound']:6.1f} s  requests {sum(row['requests'].values()):6.0f}"
                    print(f"round {number + 1}  {way.name:10} {arrival:8} {shown}", file=sys.stderr, flush=True)
                    yield row


def versions(cluster: Cluster, helm: Helm) -> dict[str, str]:
    parts = {
        name: PARTS[part].version for name, part in (("KubeRay", "kuberay"), ("Volcano", "volcano"), ("KWOK", "kwok"))
    }
    return {"Kubernetes": cluster.version, **parts, "Helm": helm.run("version", "--short").stdout.strip()}


def measure(rounds: int, nodes: int, releases: int) -> None:
    """Write the results so far after every row. Raises NoClusterError or NeedError where the lab lacks something."""
    lab = settings()
    cluster, installer = connect(lab.kubeconfig), connect(lab.kubeconfig)
    needs.check(cluster, ("kuberay", "volcano", "kwok"), image="")
    installer.dynamic.client.set_default_header("Impersonate-User", fleet_meters.INSTALLER)
    FLEET_RESULTS.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home, fleet_meters.client_counters(cluster), pool(cluster) as made:
        made.add(nodes)
        helm = Helm("helm4", lab.kubeconfig, Path(home))
        chart = shutil.copytree(CHART, Path(home) / CHART.name)
        result = {"nodes": nodes, "releases": releases, "members": MEMBERS, "versions": versions(cluster, helm)}
        rows = []
        for row in run(Bench(lab, cluster, installer, helm, chart, made, releases), rounds, Waiter(cluster)):
            rows.append(row)
            FLEET_RESULTS.write_text(json.dumps({**result, "rows": rows}, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--releases", type=int, default=RELEASES)
    parser.add_argument("--write", action="store_true", help="write the section of docs/benchmarks.md")
    parser.add_argument("--last", action="store_true", help="take the results of the last run, measure nothing")
    chosen = parser.parse_args()
    if not chosen.last:
        try:
            measure(chosen.rounds, chosen.nodes, chosen.releases)
        except (NoClusterError, needs.NeedError) as error:
            print(f"fleet: {error}; `python -m ci.lab up --profile gang` brings all that is needed", file=sys.stderr)
            return 2
    result = json.loads(FLEET_RESULTS.read_text())
    print(fleet_report.tables(result))
    if chosen.write:
        fleet_report.write(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
