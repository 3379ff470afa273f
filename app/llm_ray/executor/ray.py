"""`Executor` over one Ray actor per rank: handshake, steps over the control channel, and the watch over every rank.

Ray places the processes and nothing more: a step never passes through Ray.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

from llm_ray.config import EngineConfig
from llm_ray.engine.step import ExecutorInfo, RankInfo, StepPlan, StepResult
from llm_ray.errors import ExecutorError
from llm_ray.executor.channel import ChannelClosed, ChannelTimeout
from llm_ray.executor.rank import Call, Failure, Hello, MakeWorker, Ping, Reply, make_worker
from llm_ray.executor.ray_group import RankGroup, bundle, this_node

log = logging.getLogger("llm_ray.executor")

CHECK_TIMEOUT_S = 5.0  # an idle rank answers in well under a millisecond
POLL_S = 0.1


class RayExecutor:
    """Ranks go to `placement_group`'s bundles from `first_bundle` on, one each.

    Without a placement group the executor makes its own at start, and removes it at shutdown.
    """

    def __init__(
        self,
        config: EngineConfig,
        placement_group: PlacementGroup | None = None,
        first_bundle: int = 1,
        make: MakeWorker = make_worker,
    ) -> None:
        self.max_in_flight = config.pipeline_parallel_size
        self._config = config
        self._given_placement = placement_group
        self._first_bundle = first_bundle if placement_group is not None else 0
        self._own_placement: PlacementGroup | None = None
        self._make = make
        self._group: RankGroup | None = None
        self._in_flight: deque[int] = deque()

    def start(self) -> ExecutorInfo:
        """Blocks up to start_timeout_s. Raises ExecutorError, or ConfigError when it can never work."""
        started = time.monotonic()
        self.shutdown()
        try:
            info = self._handshake(started, started + self._config.start_timeout_s)
        except BaseException:
            self.shutdown()
            raise
        log.info(
            "event=ranks_ready ranks=%d num_blocks=%d start_s=%.1f", len(info.ranks), info.num_blocks, info.start_s
        )
        return info

    def submit(self, plan: StepPlan) -> None:
        self._broadcast(plan)
        self._in_flight.append(plan.step_id)

    def collect(self) -> StepResult:
        step_id = self._in_flight[0]
        limit_s = self._config.step_timeout_s
        _, message = self._receive(f"step {step_id}", time.monotonic() + limit_s, limit_s)
        if not isinstance(message, StepResult) or message.step_id != step_id:
            raise ExecutorError(f"expected the result of step {step_id}, got {message!r}: the ranks are out of step")
        self._in_flight.popleft()
        return message

    def check(self) -> None:
        limit_s = min(CHECK_TIMEOUT_S, self._config.step_timeout_s)
        self._broadcast(Ping())
        self._replies("a check", time.monotonic() + limit_s, limit_s)

    def shutdown(self) -> None:
        group, self._group = self._group, None
        self._in_flight.clear()
        if group is not None:
            group.stop()
        if self._own_placement is not None:
            remove_placement_group(self._own_placement)
            self._own_placement = None

    def _handshake(self, started: float, deadline: float) -> ExecutorInfo:
        placement, is_local = self._place(deadline)
        self._group = RankGroup.spawn(self._config, self._make, placement, self._first_bundle, is_local)
        hello = self._connect(deadline)
        self._call("load", deadline, "127.0.0.1" if is_local else hello.node_ip, hello.free_port)
        num_blocks = min(self._call("cache_blocks", deadline))
        self._call("init_cache", deadline, num_blocks)
        self._call("warm_up", deadline)
        ranks: list[RankInfo] = self._call("info", deadline)
        max_model_len = min(self._call("max_model_len", deadline))
        vocab_size = self._call("vocab_size", deadline)[0]
        seconds = time.monotonic() - started
        return ExecutorInfo(tuple(ranks), num_blocks, self._config.block_size, max_model_len, vocab_size, seconds)

    def _place(self, deadline: float) -> tuple[PlacementGroup, bool]:
        """The placement group, and whether all of it is on this node."""
        placement = self._given_placement
        if placement is None:
            bundles = [bundle(self._config)] * self._config.world_size
            placement = self._own_placement = ray.util.placement_group(bundles, strategy="PACK")
        if not placement.wait(max(0.0, deadline - time.monotonic())):
            raise ExecutorError(
                f"no room for {self._config.world_size} ranks of {bundle(self._config)} within start_timeout_s "
                f"({self._config.start_timeout_s:g}): add nodes or lower tensor_parallel_size"
            )
        nodes = set(placement_group_table(placement)["bundles_to_node_id"].values())
        return placement, nodes == {this_node()}

    def _connect(self, deadline: float) -> Hello:
        """Wait until every rank has said hello; rank 0's hello tells where the ranks meet."""
        group = self._running()
        while len(group.hub.ranks) < self._config.world_size:
            group.hub.accept(POLL_S)
            if ended := group.ended():
                raise self._death(ended[0])
            if time.monotonic() > deadline:
                missing = sorted(set(range(self._config.world_size)) - set(group.hub.ranks))
                raise ExecutorError(
                    f"ranks {missing} did not start within start_timeout_s ({self._config.start_timeout_s:g}): "
                    f"free {bundle(self._config)} for each, or raise it"
                )
        group.hub.stop_listening()
        hellos: list[Hello] = self._replies("the start", deadline, self._config.start_timeout_s)
        for rank, hello in enumerate(hellos):
            group.know(rank, hello)
        return hellos[0]

    def _call(self, name: str, deadline: float, *args: Any) -> list[Any]:
        """Call every rank's worker at once; the answers in rank order."""
        self._broadcast(Call(name, args))
        return self._replies(name, deadline, self._config.start_timeout_s)

    def _running(self) -> RankGroup:
        if self._group is None:
            raise ExecutorError("the ranks are not running: call start first")
        return self._group

    def _broadcast(self, message: object) -> None:
        try:
            self._running().hub.broadcast(message)
        except ChannelClosed as closed:
            raise self._death(closed.rank) from closed

    def _replies(self, what: str, deadline: float, limit_s: float) -> list[Any]:
        answers: dict[int, Any] = {}
        while len(answers) < self._config.world_size:
            rank, message = self._receive(what, deadline, limit_s, tuple(answers))
            answers[rank] = message.value if isinstance(message, Reply) else message
        return [answers[rank] for rank in sorted(answers)]

    def _receive(self, what: str, deadline: float, limit_s: float, answered: tuple[int, ...] = ()) -> tuple[int, Any]:
        group = self._running()
        try:
            rank, message = group.hub.receive(deadline)
        except ChannelTimeout:
            group.is_broken = True
            silent = [group.name(rank) for rank in range(self._config.world_size) if rank not in answered]
            raise ExecutorError(f"no answer to {what} within {limit_s:g} s from {', '.join(silent)}") from None
        except ChannelClosed as closed:
            raise self._death(closed.rank) from closed
        if isinstance(message, Failure):
            raise self._failure(rank, what, message)
        return rank, message

    def _failure(self, rank: int, what: str, failure: Failure) -> Exception:
        """A rank often fails only because another one died: say so, so that the cause is not lost."""
        group = self._running()
        group.is_broken = True
        if failure.config_error is not None:
            return failure.config_error
        others = [group.name(other) for other in group.ended(POLL_S) if other != rank]
        also = f"; ended before it: {', '.join(others)}" if others else ""
        error = ExecutorError(f"{group.name(rank)} failed in {what}: {failure.text.splitlines()[-1]}{also}")
        error.add_note(failure.text)  # for the log; the message itself may reach a client
        return error

    def _death(self, rank: int) -> ExecutorError:
        group = self._running()
        group.is_broken = True
        return ExecutorError(f"{group.name(rank)} died: {group.reason(rank)}")
