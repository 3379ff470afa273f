"""One sequence's outputs on their way from the engine's thread to an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from llm_ray.engine.outputs import FinishOutput, Output
from llm_ray.engine.sequence import Sequence


class SequenceStream:
    """Async iterator over TokenOutputs and, last, exactly one FinishOutput. Belongs to the loop that submitted it and
    has one reader. A reader that leaves early must call `abort`, or the engine computes the rest for nobody."""

    def __init__(
        self, sequence: Sequence, loop: asyncio.AbstractEventLoop, abort: Callable[[SequenceStream], None]
    ) -> None:
        self.loop = loop
        self._sequence = sequence
        self._abort = abort
        self._outputs: list[Output] = []
        self._ready = asyncio.Event()
        self._is_finished = False

    @property
    def seq_id(self) -> int:
        return self._sequence.seq_id

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache; known once the first token is here."""
        return self._sequence.num_cached_tokens

    def abort(self) -> None:
        """Stop computing; any number of times, at any time. The stream still ends with its one FinishOutput."""
        self._abort(self)

    async def next_batch(self) -> list[Output]:
        """Wait for something, then take all that is there. Empty only after the FinishOutput was handed out."""
        if not self._outputs and not self._is_finished:
            await self._ready.wait()
        batch, self._outputs = self._outputs, []
        self._settle(batch)
        return batch

    def __aiter__(self) -> SequenceStream:
        return self

    async def __anext__(self) -> Output:
        if not self._outputs and not self._is_finished:
            await self._ready.wait()
        if not self._outputs:
            raise StopAsyncIteration
        output = self._outputs.pop(0)
        self._settle((output,))
        return output

    def _settle(self, taken: Iterable[Output]) -> None:
        if any(isinstance(output, FinishOutput) for output in taken):
            self._is_finished = True
        elif not self._outputs:
            self._ready.clear()

    def _put(self, output: Output) -> None:
        self._outputs.append(output)
        self._ready.set()


Delivery = tuple[SequenceStream, Output]


def deliver(deliveries: list[Delivery]) -> None:
    """From any thread: one wake-up per event loop, however many outputs there are."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Delivery]] = {}
    for delivery in deliveries:
        by_loop.setdefault(delivery[0].loop, []).append(delivery)
    for loop, ours in by_loop.items():
        try:
            loop.call_soon_threadsafe(_hand_out, ours)
        except RuntimeError:
            # The loop is closed, and the readers with it.
            continue


def _hand_out(deliveries: list[Delivery]) -> None:
    for stream, output in deliveries:
        stream._put(output)
