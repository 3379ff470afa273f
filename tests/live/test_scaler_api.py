"""The charts' scaling objects on a real API server: KEDA's own CRD, the /scale of our kind, and upgrades of our CRD."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ci import schemas
from ci.helm import SCALER_CHART

from tests.live.support.cluster import Cluster, Object
from tests.live.support.tiny_lab import TinyLab, tiny_lab
from tests.support.chart import CHART, Objects, render

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

CRD = "workergroupscales.llm-ray.io"
CRD_FILE = Path("files") / "crds" / "llm-ray.io_workergroupscales.yaml"
KEDA = "github.com/kedacore/keda/v2"
HELMS = ["helm3", "helm4"]
SERVED_S = 60


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyLab]:
    with tiny_lab(tmp_path_factory.mktemp("helm")) as lab:
        yield lab


def older_chart(home: Path) -> Path:
    """The chart of an earlier release, whose kind has no column for its age."""
    chart = Path(shutil.copytree(SCALER_CHART, home / SCALER_CHART.name))
    crd = yaml.safe_load((chart / CRD_FILE).read_text())
    columns(crd).pop()
    (chart / CRD_FILE).write_text(yaml.safe_dump(crd))
    return chart


def columns(crd: Object) -> list[Object]:
    [version] = crd["spec"]["versions"]
    found: list[Object] = version["additionalPrinterColumns"]
    return found


def stored(cluster: Cluster) -> Object:
    crd = cluster.get("CustomResourceDefinition", CRD)
    assert crd is not None
    return crd


@pytest.mark.parametrize("version", HELMS)
def test_an_upgrade_of_the_release_upgrades_the_crd_and_its_end_keeps_it(
    version: str, lab: TinyLab, tmp_path: Path
) -> None:
    helm, namespace = lab.helm(version), lab.namespace()
    helm.install("scaler", namespace, chart=older_chart(tmp_path))
    names = [column["name"] for column in columns(stored(lab.cluster))]
    assert "Age" not in names
    helm.upgrade("scaler", namespace, chart=SCALER_CHART)
    assert [column["name"] for column in columns(stored(lab.cluster))] == [*names, "Age"]
    helm.uninstall("scaler", namespace)
    assert stored(lab.cluster)["metadata"].get("deletionTimestamp") is None
    lab.cluster.delete("CustomResourceDefinition", CRD)
    lab.wait("no CRD", lambda: lab.cluster.get("CustomResourceDefinition", CRD) is None, SERVED_S)


@pytest.fixture(scope="module")
def with_kinds(lab: TinyLab) -> TinyLab:
    """The scaler's chart is installed, and the CRDs of KEDA, from the module that sources.yaml pins."""
    lab.helm("helm4").install("scaler", lab.namespace(), chart=SCALER_CHART)
    [source] = [one for one in schemas.sources() if one.module == KEDA]
    home = schemas.module_dir(source, fetch=True)
    for file in source.files:
        lab.cluster.apply(*(crd for crd in yaml.safe_load_all((home / file).read_text()) if crd))
    for name in (CRD, "scaledobjects.keda.sh"):
        lab.wait(f"the kind of {name}", lambda name=name: is_established(lab.cluster, name), SERVED_S)
    return lab


def is_established(cluster: Cluster, name: str) -> bool:
    crd = cluster.get("CustomResourceDefinition", name) or {}
    found = crd.get("status", {}).get("conditions") or []
    return any((one["type"], one["status"]) == ("Established", "True") for one in found)


def scaling(values: Any, namespace: str) -> Objects:
    kinds = ("WorkerGroupScale", "ScaledObject", "HorizontalPodAutoscaler")
    return Objects([made for made in render(values, namespace=namespace) if made["kind"] in kinds])


def dropped(sent: Any, kept: Any, path: str = "") -> list[str]:
    """Fields that the API server did not keep as they were sent."""
    if isinstance(sent, dict) and isinstance(kept, dict):
        return [one for key, below in sent.items() for one in dropped(below, kept.get(key), f"{path}.{key}")]
    if isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        return [one for n, pair in enumerate(zip(sent, kept, strict=True)) for one in dropped(*pair, f"{path}[{n}]")]
    return [] if sent == kept else [f"{path}: {sent!r} → {kept!r}"]


@pytest.mark.parametrize("situation", ["hpa", "hpa-gangs", "keda"])
def test_the_api_server_keeps_every_field_of_the_scaling_objects(situation: str, with_kinds: TinyLab) -> None:
    namespace = with_kinds.namespace()
    objects = scaling(CHART / "ci" / f"{situation}.yaml", namespace)
    assert {"WorkerGroupScale"} < {made["kind"] for made in objects}
    for made in objects:
        kept = with_kinds.cluster.create(made, namespace)
        assert dropped(made["spec"], kept["spec"]) == []


def test_what_is_scaled_has_the_scale_that_keda_and_an_hpa_ask_for(with_kinds: TinyLab) -> None:
    cluster, namespace = with_kinds.cluster, with_kinds.namespace()
    objects = scaling(CHART / "ci" / "keda.yaml", namespace)
    for made in objects:
        cluster.create(made, namespace)
    target = objects.find("ScaledObject")["spec"]["scaleTargetRef"]
    assert cluster.get(target["kind"], target["name"], namespace)
    selector = "ray.io/cluster=x,ray.io/group=gpu"
    cluster.patch(
        target["kind"], target["name"], namespace, {"status": {"replicas": 1, "selector": selector}}, "status"
    )
    scale = cluster.patch(target["kind"], target["name"], namespace, {"spec": {"replicas": 3}}, "scale")
    assert (scale["apiVersion"], scale["kind"]) == ("autoscaling/v1", "Scale")
    assert (scale["spec"]["replicas"], scale["status"]) == (3, {"replicas": 1, "selector": selector})
    stored_scale = cluster.get(target["kind"], target["name"], namespace)
    assert stored_scale is not None
    assert stored_scale["spec"]["replicas"] == 3


def test_keda_s_crd_refuses_what_the_chart_must_not_render(with_kinds: TinyLab) -> None:
    namespace = with_kinds.namespace()
    scaler = scaling(CHART / "ci" / "keda.yaml", namespace).find("ScaledObject")
    scaler["spec"]["triggers"][0]["metadata"]["threshold"] = 20
    with pytest.raises(Exception, match=re.escape("spec.triggers[0].metadata.threshold")):
        with_kinds.cluster.create(scaler, namespace)
