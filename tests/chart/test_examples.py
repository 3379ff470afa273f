"""What the README shows is what the chart takes."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.support.chart import render

ROOT = Path(__file__).parents[2]


def test_the_values_in_the_readme_give_the_pods_it_names():
    section = (ROOT / "README.md").read_text().split("## On Kubernetes")[1].split("\n## ")[0]
    [block] = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    objects = render(yaml.safe_load(block))
    [group] = objects.find("RayCluster")["spec"]["workerGroupSpecs"]
    assert (group["groupName"], group["replicas"], group["numOfHosts"]) == ("h100", 2, 2), "2 replicas of 2 pods each"
    container = group["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    serve = yaml.safe_load(objects.find("ConfigMap")["data"]["config.yaml"])
    deployment = serve["applications"][0]["args"]["deployment"]
    assert (deployment["min_replicas"], deployment["max_replicas"]) == (2, 2)
