"""The deployer's loop over HTTP, with the official Kubernetes client, tick by tick."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llm_ray.deployer.kube import Kubernetes
from llm_ray.deployer.labels import Rule
from llm_ray.deployer.loop import Deployer, Settings
from llm_ray.deployer.report import Log
from llm_ray.deployer.serve_api import ServeAPI
from tests.app.stand_ins import NAMESPACE, Dashboard, KubernetesAPI, deployed, kubernetes_api, listening, pod

CONFIG = "applications: [{name: llm, import_path: 'a:b'}]\n"


@dataclass
class Bench:
    """Both APIs, the mounted file, and a deployer that ticks by hand on a clock of its own."""

    kubernetes: KubernetesAPI
    kubeconfig: Path
    dashboard: Dashboard
    config: Path
    out: io.StringIO = field(default_factory=io.StringIO)
    now: float = 0.0

    def deployer(self, **settings: Any) -> Deployer:
        defaults: dict[str, Any] = {"kind": "RayCluster", "cluster": "ray-1", "config": self.config}
        rule = Rule(30.0, exclude_head=True)
        return Deployer(
            Settings(**(defaults | {"rule": rule} | settings)),
            ServeAPI(self.dashboard.url, self.dashboard.token),
            Kubernetes(NAMESPACE, self.kubeconfig),
            Log(self.out),
            clock=lambda: self.now,
        )

    def tick(self, deployer: Deployer, times: int = 1, step_s: float = 2.0) -> None:
        for _ in range(times):
            self.now += step_s
            deployer.tick()
            deployer.wait_for_put(10)

    def events(self, name: str) -> list[str]:
        return [line for line in self.out.getvalue().splitlines() if f" event={name} " in line]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    dashboard = Dashboard(token="secret")
    with kubernetes_api(tmp_path) as (kubernetes, kubeconfig), listening(dashboard):
        kubernetes.add(pod("head", "10.0.0.1", node_type="head"), pod("w1", "10.0.0.2"), pod("w2", "10.0.0.3"))
        kubernetes.add(pod("stranger", "10.0.0.2", cluster="ray-2"))
        yield Bench(kubernetes, kubeconfig, dashboard, config)


def serving(bench: Bench) -> Deployer:
    deployer = bench.deployer()
    bench.tick(deployer, 2)
    bench.dashboard.proxies = {"10.0.0.1": "HEALTHY", "10.0.0.2": "HEALTHY"}
    bench.tick(deployer)
    assert bench.kubernetes.labelled() == {"w1"}
    return deployer


def test_it_puts_the_config_once_and_labels_exactly_the_pods_with_a_proxy(bench: Bench) -> None:
    deployer = serving(bench)
    bench.tick(deployer, 20)
    assert bench.dashboard.puts == [{"applications": [{"name": "llm", "import_path": "a:b"}]}]
    assert bench.kubernetes.patches == [("w1", {"metadata": {"labels": {"llm-ray.io/serving": "true"}}})]
    assert bench.kubernetes.pods["w1"]["metadata"]["labels"]["app"] == "kept"


def test_a_label_is_removed_and_not_emptied(bench: Bench) -> None:
    deployer = serving(bench)
    bench.dashboard.proxies["10.0.0.2"] = "DRAINING"
    bench.tick(deployer, 5)
    assert "llm-ray.io/serving" not in bench.kubernetes.pods["w1"]["metadata"]["labels"]
    assert len(bench.kubernetes.patches) == 2


def test_quiet_ticks_write_nothing_and_each_change_one_line(bench: Bench) -> None:
    deployer = serving(bench)
    said = bench.out.getvalue()
    bench.tick(deployer, 50)
    assert bench.out.getvalue() == said
    lines = said.splitlines()
    assert all(re.match(r"time=\S+ event=\w+( \w+=(\"(\\.|[^\"])*\"|[^\s\"]+))*$", line) for line in lines)
    assert [line.split()[1] for line in lines] == [
        "event=put",
        "event=put_accepted",
        "event=application",
        "event=label",
    ]


def test_an_edited_file_is_put_and_a_broken_one_is_told_once(bench: Bench) -> None:
    deployer = serving(bench)
    bench.config.write_text("applications: [{name: llm, import_path: 'c:d'}]\n")
    bench.tick(deployer, 3)
    bench.config.write_text("applications: [")
    bench.tick(deployer, 30)
    assert [put["applications"][0]["import_path"] for put in bench.dashboard.puts] == ["a:b", "c:d"]
    assert len(bench.events("trouble")) == 1
    assert str(bench.config) in bench.events("trouble")[0]
    assert bench.kubernetes.labelled() == {"w1"}
    bench.config.write_text(CONFIG)
    bench.tick(deployer, 3)
    assert len(bench.dashboard.puts) == 3
    assert len(bench.events("recovered")) == 1


def test_a_refused_config_is_told_once_with_serves_words_and_tried_again_after_an_edit(bench: Bench) -> None:
    bench.dashboard.refusal = (400, "1 validation error: import_path is 'ab'")
    deployer = bench.deployer()
    bench.tick(deployer, 100)
    assert len(bench.dashboard.puts) == 1
    assert len(bench.events("trouble")) == 1
    assert "import_path is 'ab'" in bench.events("trouble")[0]
    bench.dashboard.refusal = None
    bench.config.write_text(CONFIG.replace("a:b", "c:d"))
    bench.tick(deployer, 100)
    assert len(bench.dashboard.puts) == 2
    assert len(bench.events("recovered")) == 1


def test_going_back_to_what_serve_has_ends_the_trouble_without_a_put(bench: Bench) -> None:
    deployer = serving(bench)
    bench.dashboard.refusal = (400, "no")
    bench.config.write_text(CONFIG.replace("a:b", "c:d"))
    bench.tick(deployer, 3)
    assert deployer.state()["troubles"].keys() == {"put"}
    bench.config.write_text(CONFIG)
    bench.tick(deployer, 3)
    assert deployer.state()["troubles"] == {}
    assert len(bench.dashboard.puts) == 2


def test_a_new_head_gets_the_config_again_and_only_then_labels(bench: Bench) -> None:
    deployer = serving(bench)
    bench.dashboard.is_down = True
    bench.tick(deployer, 5)
    bench.dashboard.restart()
    bench.dashboard.is_down = False
    bench.dashboard.new_status = "DEPLOYING"
    bench.tick(deployer)
    assert len(bench.dashboard.puts) == 2
    bench.dashboard.proxies = {"10.0.0.2": "HEALTHY"}
    bench.tick(deployer, 3)
    assert bench.kubernetes.labelled() == set()
    bench.dashboard.apps = {"llm": deployed(bench.dashboard.puts[-1]["applications"][0])}
    bench.tick(deployer)
    assert bench.kubernetes.labelled() == {"w1"}


def test_a_long_outage_of_the_dashboard_takes_no_traffic_from_ready_workers(bench: Bench) -> None:
    deployer = serving(bench)
    bench.dashboard.is_down = True
    bench.tick(deployer, 100)
    assert bench.kubernetes.labelled() == {"w1"}
    assert len(bench.events("trouble")) == 1
    bench.kubernetes.pods["w1"]["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    bench.tick(deployer)
    assert bench.kubernetes.labelled() == set()


def restart(bench: Bench, name: str, container: str) -> None:
    """The kubelet starts the pod's Ray container anew: same pod, same address, same labels."""
    found = bench.kubernetes.pods[name]
    found["spec"] = {"containers": [{"name": "ray-worker"}, {"name": "collector"}]}
    ids = {"ray-worker": container, "collector": "containerd://other"}
    found["status"]["containerStatuses"] = [{"name": key, "containerID": ids[key]} for key in sorted(ids)]


@pytest.mark.parametrize("is_down", [False, True])
@pytest.mark.parametrize("is_new", [False, True])
def test_a_restarted_container_has_not_the_label_of_the_one_before(bench: Bench, is_down: bool, is_new: bool) -> None:
    restart(bench, "w1", "containerd://a")
    deployer = serving(bench)
    restart(bench, "w1", "containerd://b")
    bench.dashboard.is_down = is_down
    bench.dashboard.proxies = {}
    deployer = bench.deployer() if is_new else deployer
    bench.tick(deployer)
    assert bench.kubernetes.labelled() == set()
    bench.dashboard.is_down = False
    bench.dashboard.proxies = {"10.0.0.2": "HEALTHY"}
    bench.tick(deployer, 2)
    assert bench.kubernetes.labelled() == {"w1"}
    written = len(bench.kubernetes.patches)
    bench.tick(deployer, 20)
    assert len(bench.kubernetes.patches) == written


def test_a_restarted_container_whose_proxy_is_well_keeps_the_label(bench: Bench) -> None:
    restart(bench, "w1", "containerd://a")
    deployer = serving(bench)
    restart(bench, "w1", "containerd://b")
    bench.tick(deployer, 20)
    assert bench.kubernetes.labelled() == {"w1"}
    assert len(bench.kubernetes.patches) == 2
    assert bench.events("unlabel") == []


def test_an_outage_of_the_api_server_is_told_once_and_caught_up_with(bench: Bench) -> None:
    deployer = serving(bench)
    bench.kubernetes.is_down = True
    bench.dashboard.proxies = {"10.0.0.3": "HEALTHY", "10.0.0.2": "UNHEALTHY"}
    bench.tick(deployer, 10)
    assert bench.kubernetes.labelled() == {"w1"}
    assert len(bench.events("trouble")) == 1
    bench.kubernetes.is_down = False
    bench.tick(deployer)
    assert bench.kubernetes.labelled() == {"w2"}


def test_a_missing_right_names_the_rights_that_are_needed(bench: Bench) -> None:
    bench.kubernetes.forbids = "PATCH"
    deployer = bench.deployer()
    bench.dashboard.proxies = {"10.0.0.2": "HEALTHY"}
    bench.tick(deployer, 10)
    assert len(bench.events("trouble")) == 1
    assert (
        "HTTP 403 cannot PATCH: the Role of this pod's service account needs pods: get, list, patch"
        in (bench.events("trouble")[0])
    )


def test_a_wrong_token_for_the_dashboard_says_what_to_set(bench: Bench) -> None:
    deployer = bench.deployer()
    bench.dashboard.token = "another"
    bench.tick(deployer, 3)
    assert "HTTP 401: set RAY_AUTH_TOKEN to the cluster's token" in bench.events("trouble")[0]


def test_a_pod_that_vanishes_between_list_and_patch_is_no_trouble(bench: Bench) -> None:
    bench.dashboard.proxies = {"10.0.0.2": "HEALTHY", "10.0.0.3": "HEALTHY"}
    deployer = bench.deployer()
    listed = bench.kubernetes._patch
    bench.kubernetes._patch = lambda name, *rest: (404, {}) if name == "w1" else listed(name, *rest)
    bench.tick(deployer, 3)
    assert bench.kubernetes.labelled() == {"w2"}
    assert bench.events("trouble") == []


def rayservice(active: str = "", pending: str = "") -> dict[str, Any]:
    return {
        "status": {
            "activeServiceStatus": {"rayClusterName": active} if active else {},
            "pendingServiceStatus": {"rayClusterName": pending} if pending else {},
        }
    }


def test_a_rayservices_config_is_never_put_and_its_standby_never_labelled(bench: Bench) -> None:
    bench.dashboard.controller, bench.dashboard.apps = "c", {"llm": deployed({"name": "llm"})}
    bench.dashboard.proxies = {"10.0.0.2": "HEALTHY"}
    deployer = bench.deployer(kind="RayService", config=None, service="llm")
    bench.tick(deployer, 3)
    assert "rayservices/llm: not found" in bench.events("trouble")[0]
    bench.kubernetes.services["llm"] = rayservice(pending="ray-1")
    bench.tick(deployer, 3)
    assert bench.kubernetes.labelled() == set()
    bench.kubernetes.services["llm"] = rayservice(active="ray-0", pending="ray-1")
    bench.tick(deployer, 3)
    assert bench.kubernetes.labelled() == set()
    bench.kubernetes.services["llm"] = rayservice(active="ray-1")
    bench.tick(deployer)
    assert bench.kubernetes.labelled() == {"w1"}
    assert bench.dashboard.puts == []


def test_the_old_cluster_gives_up_its_labels_when_the_new_one_has_some(bench: Bench) -> None:
    bench.dashboard.controller, bench.dashboard.apps = "c", {"llm": deployed({"name": "llm"})}
    bench.dashboard.proxies = {"10.0.0.2": "HEALTHY"}
    bench.kubernetes.services["llm"] = rayservice(active="ray-1")
    deployer = bench.deployer(kind="RayService", config=None, service="llm")
    bench.tick(deployer)
    bench.kubernetes.services["llm"] = rayservice(active="ray-2")
    bench.tick(deployer, 3)
    assert bench.kubernetes.labelled() == {"w1"}
    bench.kubernetes.label("stranger")
    bench.tick(deployer)
    assert bench.kubernetes.labelled() == {"stranger"}


def test_an_incremental_upgrade_labels_both(bench: Bench) -> None:
    bench.dashboard.controller, bench.dashboard.apps = "c", {"llm": deployed({"name": "llm"})}
    bench.dashboard.proxies = {"10.0.0.2": "HEALTHY"}
    bench.kubernetes.services["llm"] = rayservice(active="ray-0", pending="ray-1")
    bench.tick(bench.deployer(kind="RayService", config=None, service="llm", incremental=True))
    assert bench.kubernetes.labelled() == {"w1"}
