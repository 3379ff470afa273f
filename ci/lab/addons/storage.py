"""Storage classes. The default one, standard, binds at once to a volume of a pool made here: folders that any user may
write to and every node reaches. `dynamic` is the provisioner in the controller manager, whose folders are root's."""

from __future__ import annotations

from ci.lab.addons.addon import Addon
from ci.lab.cluster import Cluster, Object

POOL = 32
MODES = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"]
DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}


def install(cluster: Cluster) -> None:
    standard = {"name": "standard", "annotations": DEFAULT}
    cluster.apply(
        [
            _class(standard, "kubernetes.io/no-provisioner"),
            _class({"name": "dynamic"}, "kubernetes.io/host-path"),
            *(_volume(cluster, number) for number in range(POOL)),
        ]
    )


def _class(metadata: Object, provisioner: str) -> Object:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": metadata,
        "provisioner": provisioner,
    }


def _volume(cluster: Cluster, number: int) -> Object:
    folder = cluster.lab.run / "volumes" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"pool-{number}"},
        "spec": {
            "capacity": {"storage": "1Ti"},
            "storageClassName": "standard",
            "accessModes": MODES,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder)},
        },
    }


ADDON = Addon("storage", install)
