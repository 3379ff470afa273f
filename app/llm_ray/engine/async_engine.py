"""The engine behind an asyncio front: a thread that steps it, streams that carry its outputs, recovery of the ranks.

Every accepted sequence ends in exactly one FinishOutput, whatever happens to the ranks.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Literal

from llm_ray.config import EngineConfig
from llm_ray.engine.engine import Engine, Event
from llm_ray.engine.outputs import EngineStats, FinishOutput
from llm_ray.engine.sequence import FinishReason, SamplingParams, Sequence
from llm_ray.engine.step import Executor, ExecutorInfo
from llm_ray.engine.stream import SequenceStream, deliver
from llm_ray.errors import ConfigError, EngineUnavailableError, QueueFullError

log = logging.getLogger(__name__)

Status = Literal["starting", "ready", "recovering", "draining", "stopped", "dead"]
MAX_BACKOFF_S = 10.0


class AsyncEngine:
    """Owns the engine's thread, the only one that touches the engine and its executor.

    starting -> ready <-> recovering -> dead; any of them -> draining -> stopped. A dead engine does not come back:
    `healthy` is False and the process around it should be replaced.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        *,
        max_queue_len: int,
        clock: Callable[[], float] = time.monotonic,
        max_restart_failures: int = 5,
        restart_backoff_s: float = 0.5,
    ) -> None:
        self.config = config
        self.max_queue_len = max_queue_len
        self._engine = Engine(config, executor)
        self._clock = clock
        self._max_restart_failures = max_restart_failures
        self._restart_backoff_s = restart_backoff_s
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._started = threading.Event()
        self._seq_ids = itertools.count()
        # Guards what follows; it is notified when the thread has something to do.
        self._wake = threading.Condition()
        self._status: Status = "starting"
        self._last_error: BaseException | None = None
        self._open: dict[int, SequenceStream] = {}
        self._incoming: list[Sequence] = []
        self._aborted: list[int] = []
        self._drain_deadline: float | None = None
        # The thread's own.
        self._num_rank_restarts = 0
        self._num_failures = 0

    @property
    def status(self) -> Status:
        return self._status

    @property
    def healthy(self) -> bool:
        """False once only a new process can help."""
        return self._status not in ("stopped", "dead")

    @property
    def info(self) -> ExecutorInfo:
        """The latest handshake. RuntimeError before the first."""
        return self._engine.info

    @property
    def last_error(self) -> str | None:
        return None if self._last_error is None else str(self._last_error)

    @property
    def num_open(self) -> int:
        """Sequences accepted and not ended."""
        return len(self._open)

    def start(self) -> ExecutorInfo:
        """Block until all ranks are ready. Raises what Executor.start does; the engine is dead then."""
        self._thread.start()
        self._started.wait()
        if self._status == "dead" and self._last_error is not None:
            raise self._last_error
        return self._engine.info

    def submit(self, prompt_token_ids: list[int], params: SequenceOf[SamplingParams]) -> list[SequenceStream]:
        """One sequence per params, all with this prompt; all are accepted or none. Call it in a running event loop.

        Raises InvalidRequestError, QueueFullError or EngineUnavailableError.
        """
        loop = asyncio.get_running_loop()
        if self._status != "ready":
            raise self._unavailable()
        self._engine.check_request(prompt_token_ids, params)
        with self._wake:
            if self._status != "ready":
                raise self._unavailable()
            limit = self.config.max_num_seqs + self.max_queue_len
            if len(self._open) + len(params) > limit:
                raise QueueFullError(
                    f"{len(self._open)} sequences are open and {len(params)} more exceed max_num_seqs + max_queue_len "
                    f"({self.config.max_num_seqs} + {self.max_queue_len}): retry later"
                )
            streams = []
            for one in params:
                sequence = Sequence(next(self._seq_ids), list(prompt_token_ids), len(prompt_token_ids), one)
                stream = SequenceStream(sequence, loop, self._abort)
                self._open[sequence.seq_id] = stream
                self._incoming.append(sequence)
                streams.append(stream)
            self._wake.notify()
        return streams

    def stats(self) -> EngineStats:
        """Any thread."""
        stats = self._engine.stats()
        return dataclasses.replace(
            stats,
            num_waiting=stats.num_waiting + len(self._incoming),
            num_rank_restarts=self._num_rank_restarts,
            status=self._status,
        )

    def shutdown(self, drain_s: float) -> None:
        """Refuse new sequences, give the open ones drain_s seconds, abort the rest, stop the ranks. Blocks; from an
        event loop call it in a thread, or nobody reads what is drained."""
        with self._wake:
            if self._drain_deadline is None:
                self._drain_deadline = self._clock() + drain_s
                if self._status != "dead":
                    self._status = "draining"
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._status = "stopped"

    def _unavailable(self) -> EngineUnavailableError:
        cause = f" after: {self._last_error}" if self._last_error is not None else ""
        return EngineUnavailableError(f"the engine is {self._status}{cause}; retry later")

    def _abort(self, stream: SequenceStream) -> None:
        with self._wake:
            if stream.seq_id in self._open:
                self._aborted.append(stream.seq_id)
                self._wake.notify()

    def _run(self) -> None:
        try:
            info = self._engine.start()
        except Exception as error:
            self._bury(error)
            self._started.set()
            return
        self._become_ready()
        self._started.set()
        log.info("engine ready ranks=%d num_blocks=%d start_s=%.1f", len(info.ranks), info.num_blocks, info.start_s)
        while not self._is_over():
            try:
                self._turn()
                self._num_failures = 0
            except Exception as error:
                if not self._recover(error):
                    break
        self._fail_open(FinishOutput(FinishReason.ABORT))
        self._stop_ranks()
        log.info("engine stopped status=%s", self._status)

    def _turn(self) -> None:
        """Take in what came, then one step; when idle, wait, and prove now and then that the ranks live."""
        with self._wake:
            is_idle = not (self._incoming or self._aborted or self._engine.has_work)
            if is_idle and self._drain_deadline is None:
                is_idle = not self._wake.wait(self.config.heartbeat_interval_s)
            incoming, self._incoming = self._incoming, []
            aborted, self._aborted = self._aborted, []
        for sequence in incoming:
            self._engine.add(sequence)
        for seq_id in aborted:
            self._deliver(self._engine.abort(seq_id))
        if self._engine.has_work:
            self._deliver(self._engine.step())
        elif is_idle:
            self._engine.check()

    def _deliver(self, events: list[Event]) -> None:
        if not events:
            return
        with self._wake:
            deliveries = [(self._open[seq_id], output) for seq_id, output in events if seq_id in self._open]
            for seq_id, output in events:
                if isinstance(output, FinishOutput):
                    self._open.pop(seq_id, None)
        deliver(deliveries)

    def _is_over(self) -> bool:
        with self._wake:
            if self._drain_deadline is None:
                return False
            return not self._open or self._clock() >= self._drain_deadline

    def _recover(self, error: Exception) -> bool:
        """Fail what is open, then rebuild the ranks. False when that is hopeless or no longer wanted."""
        log.error("engine failed num_open=%d error=%s", self.num_open, error, exc_info=error)
        while True:
            with self._wake:
                self._last_error = error
                if self._drain_deadline is None:
                    self._status = "recovering"
            self._fail_open(FinishOutput(FinishReason.ERROR, str(error)))
            self._stop_ranks()
            self._num_failures += 1
            if self._num_failures > self._max_restart_failures or isinstance(error, ConfigError):
                self._bury(error)
                return False
            if not self._pause():
                return False
            try:
                self._engine.start()
            except Exception as again:
                log.error("restart failed num_failures=%d error=%s", self._num_failures, again)
                error = again
                continue
            self._num_rank_restarts += 1
            self._become_ready()
            log.info("engine recovered num_rank_restarts=%d", self._num_rank_restarts)
            return True

    def _pause(self) -> bool:
        """No pause before the first attempt, then longer and longer ones. False when a shutdown came meanwhile."""
        pause_s = self._restart_backoff_s * 2 ** (self._num_failures - 2) if self._num_failures > 1 else 0.0
        with self._wake:
            return not self._wake.wait_for(lambda: self._drain_deadline is not None, min(pause_s, MAX_BACKOFF_S))

    def _become_ready(self) -> None:
        with self._wake:
            if self._drain_deadline is None:
                self._status = "ready"

    def _bury(self, error: Exception) -> None:
        with self._wake:
            self._status = "dead"
            self._last_error = error
        self._stop_ranks()
        log.error("engine dead error=%s", error)

    def _fail_open(self, output: FinishOutput) -> None:
        """End every open stream with this output; nothing can be submitted, the status is not ready."""
        self._engine.forget()
        with self._wake:
            streams = list(self._open.values())
            self._open.clear()
            self._incoming.clear()
        deliver([(stream, output) for stream in streams])

    def _stop_ranks(self) -> None:
        try:
            self._engine.shutdown()
        except Exception as error:
            log.error("executor did not shut down cleanly error=%s", error)
