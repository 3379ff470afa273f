"""A serving release that is scaled by its load: what goes in, what answers, and what is seen of it second by second."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.live.support.clients import client_pod, is_ready
from tests.live.support.cluster import Cluster

WORKER = "ray.io/node-type=worker"
GANG = "ray.io/worker-group-replica-name"

# Closed loop: each client asks again when it has its answer, so that as many requests are open on any machine. SIGTERM
# ends the asking; open requests get their answers.
LOAD = """
import asyncio, json, signal, sys, time, aiohttp
url, body, clients = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
stopped = asyncio.Event()
async def ask(session):
    sent = time.time()
    try:
        async with session.post(url, json=body) as answer:
            text = await answer.text()
            status, error = answer.status, "" if answer.status == 200 else text[:300]
    except (OSError, aiohttp.ClientError, asyncio.TimeoutError) as failure:
        status, error = 0, repr(failure)
    print(json.dumps({"sent": sent, "done": time.time(), "status": status, "error": error}), flush=True)
async def client(session):
    while not stopped.is_set():
        await ask(session)
async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=150)) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
asyncio.run(main())
"""
STOP = "import os, signal; os.kill(1, signal.SIGTERM)"
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Asked:
    """One request and its answer. Times in Unix seconds; status 0: no answer came."""

    sent: float
    done: float
    status: int
    error: str


@dataclass(frozen=True)
class Load:
    """A pod of clients that ask until they are told to stop."""

    cluster: Cluster
    namespace: str
    name: str

    def asked(self) -> list[Asked]:
        lines = self.cluster.logs(self.namespace, self.name, "client").splitlines()
        return [Asked(**json.loads(line)) for line in lines]

    def stop(self) -> float:
        """When it was told."""
        when = time.time()
        self.cluster.exec(self.namespace, self.name, ["python", "-c", STOP])
        return when

    def is_over(self) -> bool:
        return ((self.cluster.get("Pod", self.name, self.namespace) or {}).get("status") or {}).get("phase") in ENDED


@dataclass(frozen=True)
class Loads:
    """Starts such pods in a namespace, all with the same request."""

    cluster: Cluster
    namespace: str
    image: str
    url: str
    body: Mapping[str, Any]

    def start(self, name: str, clients: int) -> Load:
        pod = client_pod(name, self.image)
        pod["spec"]["restartPolicy"] = "Never"
        command = ["python", "-c", LOAD, self.url, json.dumps(self.body), str(clients)]
        pod["spec"]["containers"][0]["command"] = command
        self.cluster.create(pod, self.namespace)
        return Load(self.cluster, self.namespace, name)


@dataclass(frozen=True)
class Sighting:
    """One look. wanted: the group's count; gangs: those whose pods are all ready and stay, by name."""

    when: float
    wanted: int
    gangs: frozenset[str]
    pods: int


@dataclass
class Watch:
    """Looks once a second, from a thread of its own."""

    cluster: Cluster
    namespace: str
    hosts: int
    seen: list[Sighting] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.stopped.wait(1.0):
            self.look()

    def look(self) -> None:
        self.seen.append(self._look())

    def _look(self) -> Sighting:
        clusters = self.cluster.list("RayCluster.ray.io", self.namespace)
        wanted = sum(one["spec"]["workerGroupSpecs"][0]["replicas"] for one in clusters)
        alive = [
            pod for pod in self.cluster.pods(self.namespace, WORKER) if not pod["metadata"].get("deletionTimestamp")
        ]
        ready: dict[str, int] = {}
        for pod in filter(is_ready, alive):
            name = pod["metadata"]["labels"][GANG]
            ready[name] = ready.get(name, 0) + 1
        whole = frozenset(name for name, count in ready.items() if count == self.hosts)
        return Sighting(time.time(), int(wanted), whole, len(alive))


@contextmanager
def watched(cluster: Cluster, namespace: str, hosts: int) -> Iterator[Watch]:
    watch = Watch(cluster, namespace, hosts)
    watch.look()
    thread = threading.Thread(target=watch.run, name="watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.stopped.set()
        thread.join(30)
