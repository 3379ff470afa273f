"""A rank's place in the group, and the few collectives the model needs. Knows no model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rank:
    """One process's place: ranks of one pipeline stage are neighbours."""

    pp_rank: int = 0
    tp_rank: int = 0
    pp_size: int = 1
    tp_size: int = 1

    @classmethod
    def of(cls, rank: int, pp_size: int, tp_size: int) -> Rank:
        return cls(rank // tp_size, rank % tp_size, pp_size, tp_size)

    @property
    def rank(self) -> int:
        return self.pp_rank * self.tp_size + self.tp_rank

    @property
    def world_size(self) -> int:
        return self.pp_size * self.tp_size

    @property
    def is_first_stage(self) -> bool:
        return self.pp_rank == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pp_rank == self.pp_size - 1

    @property
    def samples(self) -> bool:
        """Whether this rank owns the sampler: the last stage's first rank."""
        return self.is_last_stage and self.tp_rank == 0


class TensorParallel:
    """The collectives of one stage's ranks. With one rank they do nothing.

    Two ranks exchange and add instead of running gloo's ring: a quarter of the latency, and both get the same bits,
    because a + b is b + a.
    """

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None) -> None:
        self.rank, self.size, self.group = rank, size, group
        self._buffers: dict[torch.dtype, Tensor] = {}

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum of every rank's contiguous `x`, in place."""
        if self.size == 1 or x.numel() == 0:
            return x
        if self.size > 2 or x.is_cuda:
            dist.all_reduce(x, group=self.group)
            return x
        other = self._buffer(x)
        sent = self.group.send([x], 1 - self.rank, 0)
        self.group.recv([other], 1 - self.rank, 0).wait()
        sent.wait()
        return x.add_(other)

    def gather_columns(self, x: Tensor, widths: list[int]) -> Tensor | None:
        """Rank r holds [N, widths[r]]; the first rank gets [N, sum(widths)], the others None."""
        if self.size == 1:
            return x
        if self.rank != 0:
            self.group.send([x.contiguous()], 0, 1).wait()
            return None
        parts = [x] + [x.new_empty(x.shape[0], width) for width in widths[1:]]
        received = [self.group.recv([parts[rank]], rank, 1) for rank in range(1, self.size)]
        for work in received:
            work.wait()
        return torch.cat(parts, dim=1)

    def sum(self, value: int) -> int:
        """Sum of a number over the ranks."""
        if self.size == 1:
            return value
        total = torch.tensor([value], dtype=torch.int64)
        dist.all_reduce(total, group=self.group)
        return int(total)

    def _buffer(self, x: Tensor) -> Tensor:
        buffer = self._buffers.get(x.dtype)
        if buffer is None or buffer.numel() < x.numel():
            buffer = self._buffers[x.dtype] = torch.empty(x.numel(), dtype=x.dtype, device=x.device)
        return buffer[: x.numel()].view_as(x)


def init_group(
    rank: Rank, master_addr: str, master_port: int, *, start_timeout_s: float, step_timeout_s: float
) -> TensorParallel:
    """Join the world through DeepSpeed, then build every stage's group; returns this rank's.

    Changes this process's environment (RANK, WORLD_SIZE, ...), which DeepSpeed reads. A collective of the stage's group
    raises RuntimeError when a peer dies, and after step_timeout_s when it hangs.
    """
    if rank.world_size == 1:
        return TensorParallel()
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.update(
        RANK=str(rank.rank),
        WORLD_SIZE=str(rank.world_size),
        LOCAL_RANK=str(rank.rank),
        LOCAL_SIZE=str(rank.world_size),
        MASTER_ADDR=master_addr,
        MASTER_PORT=str(master_port),
    )
    import deepspeed
    import deepspeed.ops

    # DeepSpeed's shared-memory all-reduce ignores groups, never times out and leaves files behind in /dev/shm.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(
        dist_backend="gloo",
        auto_mpi_discovery=False,
        verbose=False,
        timeout=timedelta(seconds=start_timeout_s),
    )
    own = None
    for stage in range(rank.pp_size):
        ranks = [Rank(stage, i, rank.pp_size, rank.tp_size).rank for i in range(rank.tp_size)]
        group = dist.new_group(ranks, timeout=timedelta(seconds=step_timeout_s))
        if stage == rank.pp_rank:
            own = group
    return TensorParallel(rank.tp_rank, rank.tp_size, own)


def barrier(rank: Rank) -> None:
    """Wait, at most start_timeout_s, until every rank is here."""
    if rank.world_size > 1:
        dist.barrier()


def close_group(rank: Rank) -> None:
    """Leave the world. Without this, gloo's threads abort the process at exit."""
    if rank.world_size > 1 and dist.is_initialized():
        import deepspeed.comm

        deepspeed.comm.destroy_process_group()
