"""What runs, in a few lines."""

from __future__ import annotations

from ci.lab.cluster import Cluster, condition
from ci.lab.processes import Processes
from ci.lab.settings import Settings
from ci.lab.up import ended, installed, is_up


def report(lab: Settings) -> tuple[bool, str]:
    """(whether the lab is up, lines for a person)."""
    gone = ended(lab)
    if "etcd" in gone and not Processes(lab).names():
        return False, f"lab {lab.name} is down: `make lab-up` starts it"
    if not is_up(lab):
        why = f"{', '.join(gone)} not running" if gone else "the API server does not answer"
        return False, f"lab {lab.name} is broken ({why}; logs in {lab.logs}): `make lab-up` repairs it"
    cluster = Cluster(lab)
    lines = [f"lab {lab.name} is up; KUBECONFIG={lab.kubeconfig}", f"add-ons: {', '.join(installed(lab)) or 'none'}"]
    for n in lab.numbers:
        found = cluster.get(f"/api/v1/nodes/{lab.node(n)}") or {}
        lines.append(f"node {lab.node(n)} {lab.node_ip(n)} Ready={condition(found, 'Ready') or 'not registered'}")
    for found in (cluster.get("/apis/apps/v1/deployments") or {}).get("items", []):
        meta, ready = found["metadata"], found.get("status", {}).get("readyReplicas", 0)
        lines.append(f"deployment {meta['namespace']}/{meta['name']} {ready}/{found['spec']['replicas']}")
    return True, "\n".join(lines)
