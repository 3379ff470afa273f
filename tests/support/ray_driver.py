"""A Ray driver in a process of its own, since Ray keeps one cluster's token per process. It talks in JSON lines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llm_ray.naming import GANG_NODE_LABEL, HOST_NODE_LABEL
from tests.support.ray_nodes import RayNodes

APP = "llm"


@dataclass
class Driver:
    process: subprocess.Popen[str]

    def deploy(self, port: int, **sections: dict[str, Any]) -> None:
        """With ranks that have no model. Returns when the application runs."""
        self._ask({"do": "deploy", "port": port, "sections": sections})

    def delete(self) -> None:
        self._ask({"do": "delete"})

    def look(self, ongoing: bool = False) -> dict[str, Any]:
        """target; replicas with id, state, pid, ip and place; groups: the places of each placement group's bundles;
        nodes: the places that are there; started: how many replicas ever ran; ongoing, if asked for: the requests of
        each replica that runs. A place is GANG/HOST, or a node's id."""
        return self._ask({"do": "look", "ongoing": ongoing})

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the driver ended"
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer


@contextmanager
def driver(nodes: RayNodes) -> Iterator[Driver]:
    command = [sys.executable, "-m", "tests.support.ray_driver", nodes.address]
    with (nodes.home / "driver.log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=nodes.environment()
        )
    with process:
        try:
            yield Driver(process)
        finally:
            process.kill()


def main(address: str) -> None:
    import ray

    out, sys.stdout = sys.stdout, sys.stderr
    ray.init(address=address, _node_ip_address=address.partition(":")[0], log_to_driver=False)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"deploy": _deploy, "delete": _delete, "look": _look}[command["do"]](command)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)


def _deploy(command: dict[str, Any]) -> dict[str, Any]:
    from ray import serve

    from llm_ray.config import DeploymentConfig, EngineConfig, ServerConfig, parse
    from llm_ray.serve import LLM, options
    from tests.support.fake_rank import make_fake_rank

    sections = command["sections"]
    configs = (
        parse(EngineConfig, sections["engine"]),
        parse(ServerConfig, sections["server"]),
        parse(DeploymentConfig, sections["deployment"]),
    )
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": command["port"]})
    app = LLM.options(**options(*configs)).bind(*configs, make_fake_rank)  # type: ignore[attr-defined]
    serve.run(app, name=APP, route_prefix="/")
    return {}


def _delete(command: dict[str, Any]) -> dict[str, Any]:
    from ray import serve

    serve.delete(APP)
    return {}


def _look(command: dict[str, Any]) -> dict[str, Any]:
    import ray
    from ray._private.state import actors
    from ray.serve.context import _get_global_client

    places = {
        node["NodeID"]: f"{node['Labels'][GANG_NODE_LABEL]}/{node['Labels'][HOST_NODE_LABEL]}"
        if GANG_NODE_LABEL in node["Labels"]
        else node["NodeID"]
        for node in ray.nodes()  # type: ignore[no-untyped-call]
    }
    alive = [places[node["NodeID"]] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    details = ray.get(_get_global_client()._controller.get_serve_instance_details.remote())  # type: ignore[union-attr]
    deployments = details["applications"].get(APP, {}).get("deployments", {})
    found = deployments.get("LLM", {"target_num_replicas": None, "replicas": []})
    replicas = [
        {
            "id": replica["replica_id"],
            "state": getattr(replica["state"], "value", replica["state"]),
            "pid": replica.get("pid"),
            "ip": replica.get("node_ip"),
            "place": places.get(replica.get("node_id"), ""),
        }
        for replica in found["replicas"]
    ]
    groups = {
        id: [places[node] for _, node in sorted(group["bundles_to_node_id"].items())]
        for id, group in ray.util.placement_group_table().items()  # type: ignore[no-untyped-call]
        if group["state"] == "CREATED"
    }
    running = [replica["id"] for replica in replicas if replica["state"] == "RUNNING"] if command["ongoing"] else []
    ran = [actor for actor in actors().values() if "LLM" in (actor["Name"] or "") and actor["Pid"]]
    return {
        "target": found["target_num_replicas"],
        "replicas": replicas,
        "groups": sorted(groups.values()),
        "group_ids": sorted(groups),
        "nodes": sorted(alive),
        "started": len(ran),
        "ongoing": {id: _ongoing(id) for id in running},
    }


def _ongoing(replica: str) -> int:
    import ray

    actor = ray.get_actor(f"SERVE_REPLICA::{APP}#LLM#{replica}", namespace="serve")
    return int(ray.get(actor.get_num_ongoing_requests.remote(), timeout=30))


if __name__ == "__main__":
    main(sys.argv[1])
