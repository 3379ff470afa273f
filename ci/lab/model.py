"""The demo's model for pods: a claim, bound to a volume that is the model's directory on this machine, read-only.

The lab's pods reach nothing outside; elsewhere the chart fetches the model by its pinned address.
"""

from __future__ import annotations

from pathlib import Path

from ci.lab.cluster import Cluster, Object
from llm_ray.model_store import DEMO_NAME, demo_model

CLAIM = "demo-model"
SOURCE = f"pvc://{CLAIM}/{DEMO_NAME}"
SIZE = "2Gi"


def objects(namespace: str, model: Path) -> list[Object]:
    """The volume and the claim in a namespace; the volume goes with the namespace's name, which is its own."""
    volume = f"{CLAIM}-{namespace}"
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                **common,
                "capacity": {"storage": SIZE},
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(model.parent), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": CLAIM},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": namespace},
            "spec": {**common, "volumeName": volume, "resources": {"requests": {"storage": SIZE}}},
        },
    ]


def provide(cluster: Cluster, namespace: str) -> None:
    """Make the model on this machine if it is not there, and the claim for it in a namespace that exists."""
    cluster.apply(objects(namespace, demo_model("float32")))
