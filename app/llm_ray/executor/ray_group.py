"""The rank actors of one generation: placed, named and stopped as a whole. What they are told is not known here."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from llm_ray.config import EngineConfig
from llm_ray.executor.channel import Address, ChannelClosed, Hub
from llm_ray.executor.processes import LocalProcess
from llm_ray.executor.rank import Hello, MakeWorker, Stop, run_rank

log = logging.getLogger("llm_ray.executor")

STOP_TIMEOUT_S = 5.0
REASON_TIMEOUT_S = 1.0
REMOTE_KILL_TIMEOUT_S = 10.0


class RankActor:
    """The process of one rank. Imports neither torch nor deepspeed before `run` has set the environment."""

    def run(
        self, address: Address, authkey: bytes, rank: int, env: dict[str, str], config: EngineConfig, make: MakeWorker
    ) -> None:
        os.environ.update(env)
        run_rank(address, authkey, rank, (this_node(), node_ip()), config, make)
        ray.actor.exit_actor()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class RemoteProcess:
    """A rank on another node; killed by a task there. A node that is gone has taken its processes with it."""

    pid: int
    node_id: str

    def describe(self) -> str:
        return f"pid {self.pid} on node {self.node_id[:8]}"

    def wait(self, timeout_s: float) -> None:
        """Nothing here can tell; Ray ends the actor either way."""

    def kill(self) -> None:
        strategy = NodeAffinitySchedulingStrategy(self.node_id, soft=False)
        task = ray.remote(_kill_rank).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
        try:
            ray.get(task.remote(self.pid), timeout=REMOTE_KILL_TIMEOUT_S)
        except ray.exceptions.RayError as error:
            log.warning(
                "event=remote_kill_failed pid=%d node=%s error=%s", self.pid, self.node_id, type(error).__name__
            )


def _kill_rank(pid: int) -> None:
    """Runs on the rank's node. The name is checked because the pid may be another process's by now."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if RankActor.__name__.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


@dataclass
class RankGroup:
    """The actors, their endless `run` calls and their processes, by rank.

    is_broken: a rank failed, so that asking the others to stop would be in vain.
    """

    hub: Hub
    actors: list[Any]
    runs: list[Any]
    is_broken: bool = False
    processes: dict[int, LocalProcess | RemoteProcess] = field(default_factory=dict)

    @classmethod
    def spawn(
        cls, config: EngineConfig, make: MakeWorker, placement: PlacementGroup, first_bundle: int, is_local: bool
    ) -> RankGroup:
        """One actor per bundle. is_local: all bundles are on this node, so that loopback will do."""
        hub = Hub("127.0.0.1" if is_local else node_ip(), config.world_size, config.step_timeout_s)
        actor_class: Any = ray.remote(RankActor)
        actors, runs = [], []
        for rank in range(config.world_size):
            actor = actor_class.options(
                num_cpus=config.num_cpus_per_rank,
                num_gpus=config.num_gpus_per_rank,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(placement, first_bundle + rank),
            ).remote()
            actors.append(actor)
            runs.append(actor.run.remote(hub.address, hub.authkey, rank, _env(config, is_local), config, make))
        return cls(hub, actors, runs)

    def know(self, rank: int, hello: Hello) -> None:
        is_here = hello.node_id == this_node()
        self.processes[rank] = LocalProcess(hello.pid) if is_here else RemoteProcess(hello.pid, hello.node_id)

    def name(self, rank: int) -> str:
        return f"rank {rank} ({self.processes[rank].describe()})" if rank in self.processes else f"rank {rank}"

    def ended(self, timeout_s: float = 0) -> list[int]:
        """Ranks whose process or loop is over. With a timeout, waits until all are, or for so long."""
        ended, _ = ray.wait(self.runs, num_returns=len(self.runs) if timeout_s else 1, timeout=timeout_s)
        return [rank for rank, run in enumerate(self.runs) if run in ended]

    def reason(self, rank: int) -> str:
        """Why the rank is gone, as far as Ray knows."""
        try:
            ray.get(self.runs[rank], timeout=REASON_TIMEOUT_S)
        except ray.exceptions.GetTimeoutError:
            return "its connection closed"
        except ray.exceptions.RayError as error:
            text = str(error).partition("Some common causes")[0]
            return " ".join((text.partition("Worker exit detail:")[2] or text).split())
        return "it stopped of its own accord"

    def stop(self) -> None:
        """Ask, then kill. Every process is gone when this returns, also a stopped (SIGSTOP) one."""
        if not self.is_broken:
            with contextlib.suppress(ChannelClosed):
                self.hub.broadcast(Stop())
                deadline = time.monotonic() + STOP_TIMEOUT_S
                for process in self.processes.values():
                    process.wait(max(0.0, deadline - time.monotonic()))
        connected = set(self.hub.ranks)
        for actor in self.actors:
            ray.kill(actor)
        self.hub.close()
        for rank, process in self.processes.items():
            # A lost node could only be waited for in vain, and its ranks' connections are lost with it.
            if rank in connected or isinstance(process, LocalProcess):
                process.kill()


def bundle(config: EngineConfig) -> dict[str, float]:
    """What one rank reserves."""
    wanted = {"CPU": config.num_cpus_per_rank, "GPU": config.num_gpus_per_rank}
    return {name: amount for name, amount in wanted.items() if amount > 0}


def this_node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def node_ip() -> str:
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _env(config: EngineConfig, is_local: bool) -> dict[str, str]:
    """What must be set before torch is imported. Threads that spin while they wait starve the other rank on a CPU."""
    env = {"OMP_NUM_THREADS": str(max(1, int(config.num_cpus_per_rank))), "OMP_WAIT_POLICY": "PASSIVE"}
    env |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if not config.num_gpus_per_rank:
        env["DS_ACCELERATOR"] = "cpu"
    if is_local:
        env["GLOO_SOCKET_IFNAME"] = "lo"
    return env
