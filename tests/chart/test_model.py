"""How the checkpoint gets into the pods: every source, every cache, and the API keys beside it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from llm_ray import cli
from tests.support.chart import render
from tests.support.kuberay import cluster_spec, containers, serve_config
from tests.support.validate import validate

HF = f"hf://owner/name@{'0123abcd' * 5}"
IMAGE = f"r.io/m@sha256:{'0' * 64}"
S3 = {"source": "s3://bucket/a/manifest.json", "s3": {"versionId": "v1", "sha256": "a" * 64}}


def parts(values: dict[str, Any], group: int = 0) -> dict[str, Any]:
    """The worker pod's volumes, the Ray container's mounts, the containers, and the path that the app is told."""
    objects = render(values)
    [owner] = [obj for obj in objects if obj["kind"] in ("RayCluster", "RayService")]
    assert validate(owner) == []
    pod = cluster_spec(owner)["workerGroupSpecs"][group]["template"]["spec"]
    [app] = serve_config(owner, objects.all("ConfigMap"))["applications"]
    return {
        "volumes": {volume["name"]: volume for volume in pod["volumes"]},
        "mounts": {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]},
        "containers": {container["name"]: container for container in containers(pod)},
        "path": app["args"]["engine"]["model"],
        "kinds": {kind for kind, _ in objects.inventory()},
    }


@pytest.mark.parametrize(
    ("source", "path", "volume"),
    [
        ("pvc://claim/a/b", "/models/a/b", {"persistentVolumeClaim": {"claimName": "claim", "readOnly": True}}),
        ("pvc://claim/a/", "/models/a", {"persistentVolumeClaim": {"claimName": "claim", "readOnly": True}}),
        ("pvc://claim", "/models", {"persistentVolumeClaim": {"claimName": "claim", "readOnly": True}}),
        (
            f"oci://{IMAGE}",
            "/models/m",
            {"image": {"reference": IMAGE, "pullPolicy": "IfNotPresent"}},
        ),
        ("/opt/models/m", "/opt/models/m", None),
    ],
)
def test_a_source_that_is_there_already_is_mounted_and_not_fetched(source, path, volume):
    got = parts({"model": {"name": "m", "source": source}})
    assert got["path"] == path
    assert "fetch-model" not in got["containers"]
    assert got["volumes"].get("models") == (volume and {"name": "models", **volume})
    if volume:
        assert got["mounts"]["models"]["readOnly"] is True
        assert (path + "/").startswith(got["mounts"]["models"]["mountPath"] + "/")


@pytest.mark.parametrize("model", [{"source": HF}, S3], ids=["hf", "s3"])
def test_a_download_happens_once_before_the_ranks_which_only_read_it(model):
    got = parts({"model": {"name": "m", **model}})
    fetch = got["containers"]["fetch-model"]
    assert re.fullmatch("/models/m-[0-9a-f]{8}", got["path"])
    assert fetch["args"][1] == got["path"]
    assert got["mounts"]["models"] == {"name": "models", "mountPath": "/models", "readOnly": True}
    assert {"name": "models", "mountPath": "/models"} in fetch["volumeMounts"]


def test_each_revision_has_a_directory_of_its_own():
    another = {**S3, "s3": {**S3["s3"], "versionId": "another"}}
    revisions = [{"source": HF}, {"source": HF.replace("0123", "4567")}, S3, another]
    paths = [parts({"model": {"name": "m", **revision}})["path"] for revision in revisions]
    assert len(set(paths)) == len(revisions), "a directory that holds another revision is refused by the download"


@pytest.mark.parametrize("model", [{"source": HF}, S3], ids=["hf", "s3"])
def test_the_app_takes_the_download_s_command_line(model):
    fetch = parts({"model": {"name": "m", "fetchTimeoutSeconds": 99, **model}})["containers"]["fetch-model"]
    command = [*fetch["command"], *fetch["args"]]
    assert command[:3] == ["tini", "--", "llm-ray"]
    args = vars(cli._parser().parse_args(command[3:]))
    assert model["source"] in args.values()
    assert args["timeout"] == 99
    assert (args["version_id"], args["sha256"]) == (("v1", "a" * 64) if "s3" in model else ("", ""))


def test_the_download_s_secret_and_proxies_reach_it():
    model = S3 | {"existingSecret": "aws", "s3": S3["s3"] | {"endpoint": "http://minio:9000", "region": "x"}}
    values = {"model": {"name": "m", **model}, "serve": {"env": {"HTTPS_PROXY": "http://proxy:3128"}}}
    fetch = parts(values)["containers"]["fetch-model"]
    env = {entry["name"]: entry["value"] for entry in fetch["env"]}
    assert env == {"AWS_ENDPOINT_URL": "http://minio:9000", "AWS_REGION": "x", "HTTPS_PROXY": "http://proxy:3128"}
    assert fetch["envFrom"] == [{"secretRef": {"name": "aws"}}]


@pytest.mark.parametrize(
    ("cache", "source"),
    [
        ({"type": "emptyDir", "size": "7Gi"}, {"emptyDir": {"sizeLimit": "7Gi"}}),
        ({"type": "hostPath", "hostPath": "/mnt/m"}, {"hostPath": {"path": "/mnt/m", "type": "DirectoryOrCreate"}}),
        ({"type": "pvc"}, {"persistentVolumeClaim": {"claimName": "demo-llm-ray-models"}}),
        ({"type": "pvc", "existingClaim": "mine"}, {"persistentVolumeClaim": {"claimName": "mine"}}),
    ],
)
def test_the_cache_is_the_volume_asked_for(cache, source):
    got = parts({"model": {"cache": cache}})
    assert got["volumes"]["models"] == {"name": "models", **source}
    assert ("PersistentVolumeClaim" in got["kinds"]) == (cache == {"type": "pvc"})


def test_an_ephemeral_cache_is_a_claim_per_pod():
    got = parts({"model": {"cache": {"type": "ephemeral", "size": "9Gi", "storageClassName": "fast"}}})
    claim = got["volumes"]["models"]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim == {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "9Gi"}}
    }  # fmt: skip


@pytest.mark.parametrize("keep", [True, False])
def test_a_new_claim_outlives_the_release_if_asked_to(keep):
    claim = render({"model": {"cache": {"type": "pvc", "keep": keep, "size": "5Gi"}}}).find("PersistentVolumeClaim")
    assert claim["metadata"].get("annotations") == ({"helm.sh/resource-policy": "keep"} if keep else None)
    assert claim["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "5Gi"}}}
    assert validate(claim) == []


def test_a_claim_is_made_only_for_downloads():
    objects = render({"model": {"source": "/opt/m", "cache": {"type": "pvc"}}})
    assert not objects.all("PersistentVolumeClaim")


def test_the_head_has_the_model_and_the_keys_only_where_it_may_hold_ranks():
    auth = {"apiKeys": {"existingSecret": "keys"}}
    for cpus, there in ((0, False), (4, True)):
        [owner] = render({"head": {"numCpus": cpus}, "auth": auth}).all("RayCluster")
        pod = owner["spec"]["headGroupSpec"]["template"]["spec"]
        assert ("fetch-model" in {container["name"] for container in containers(pod)}) is there
        assert ({"models", "api-keys"} <= {volume["name"] for volume in pod["volumes"]}) is there


def test_api_keys_are_a_directory_so_that_a_changed_secret_shows():
    got = parts({"auth": {"apiKeys": {"existingSecret": "keys", "key": "k.yaml"}}})
    assert got["volumes"]["api-keys"]["secret"] == {
        "secretName": "keys",
        "items": [{"key": "k.yaml", "path": "k.yaml"}],
    }
    assert got["mounts"]["api-keys"] == {"name": "api-keys", "mountPath": "/etc/llm-ray/keys", "readOnly": True}
