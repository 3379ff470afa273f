"""What stands around an isolated release: a namespace that denies all, and a hub outside it for the download."""

from __future__ import annotations

from pathlib import Path

from ci.lab import model as lab_model

from llm_ray.model_store import DEMO_NAME
from tests.live.support.clients import client_pod, is_ready
from tests.live.support.cluster import Cluster, Object
from tests.live.support.waiting import Waiter

HUB_PORT, OTHER_PORT = 443, 8080
SERVER = Path(__file__).with_name("hub_server.py")
HUB_LABELS = {"app": "hub"}
FREE_TO_CALL = {"llm-ray.io/test-client": "true"}


def deny_all() -> Object:
    spec = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    return _policy("deny-all", spec)


def let_clients_call() -> Object:
    """Pods labelled FREE_TO_CALL may connect to anything, so that only the other end's policy can stop them."""
    spec = {"podSelector": {"matchLabels": FREE_TO_CALL}, "policyTypes": ["Egress"], "egress": [{}]}
    return _policy("clients", spec)


def _policy(name: str, spec: Object) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


def start_hub(cluster: Cluster, wait: Waiter, namespace: str, image: str) -> str:
    """A hub with the model of the lab's claim in that namespace, on two ports; answers with its host name."""
    pod = client_pod("hub", image, HUB_LABELS)
    container = pod["spec"]["containers"][0]
    container["command"] = ["python", "-c", SERVER.read_text(), f"/models/{DEMO_NAME}", str(HUB_PORT), str(OTHER_PORT)]
    container["readinessProbe"] = {"tcpSocket": {"port": HUB_PORT}, "periodSeconds": 1}
    container["volumeMounts"] = [{"name": "models", "mountPath": "/models", "readOnly": True}]
    pod["spec"]["volumes"] = [{"name": "models", "persistentVolumeClaim": {"claimName": lab_model.CLAIM}}]
    ports = [{"name": f"port-{port}", "port": port, "targetPort": port} for port in (HUB_PORT, OTHER_PORT)]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "hub"},
        "spec": {"selector": HUB_LABELS, "ports": ports},
    }
    cluster.create(pod, namespace)
    cluster.create(service, namespace)
    wait("the hub", lambda: is_ready(cluster.get("Pod", "hub", namespace)), 60, watching=namespace)
    return f"hub.{namespace}.svc"
