"""Labels and annotations that parts of llm-ray find each other by."""

from __future__ import annotations

CLUSTER_LABEL = "ray.io/cluster"
GROUP_LABEL = "ray.io/group"
NODE_TYPE_LABEL = "ray.io/node-type"
REPLICA_NAME_LABEL = "ray.io/worker-group-replica-name"
"""KubeRay's, on each pod of a group with several hosts: the gang it belongs to."""
IDLE_ANNOTATION = "llm-ray.io/idle-since"
"""On a worker pod without a request: since when, RFC 3339 in UTC. Written by the deployer, read by the scaler."""
GANG_NODE_LABEL = "llm-ray.io/gang"
HOST_NODE_LABEL = "llm-ray.io/host"
"""Labels of Ray nodes: the worker's gang, and its index in it, from 0."""
