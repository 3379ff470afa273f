"""One engine as processor sharing: rates change only when a sequence starts, ends its prompt, or finishes.

With n sequences decoding and m prompts in prefill, a step takes decode_step_s + n * decode_seq_s + m * chunk * token
cost, gives each of the n one token and each of the m one chunk. Between two events all rates are constant.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from llm_ray.simulate.settings import Rates

# What floating point may leave of a finished piece of work: tokens, and as a share of the clock and of the counters.
EPSILON, PRECISION = 1e-7, 1e-15


class Engine:
    """Requests are numbers; lengths are given when they come. Time only goes forward."""

    __slots__ = (
        "_chunk",
        "_chunk_s",
        "_decoded",
        "_decoding",
        "_lengths",
        "_most_prefill",
        "_prefill",
        "_prefilled",
        "_rate_decode",
        "_rate_prefill",
        "_rates",
        "_time",
        "idle_since",
        "open",
        "version",
        "waiting",
    )

    def __init__(self, rates: Rates, now: float) -> None:
        self._rates = rates
        self._chunk = float(rates.prefill_chunk_tokens)
        self._chunk_s = rates.prefill_chunk_tokens * rates.prefill_token_s
        self._most_prefill = rates.prefill_sequences
        self._time = now
        # Work done so far for a sequence that has been there all the time: targets are on this scale.
        self._prefilled = 0.0
        self._decoded = 0.0
        self._rate_prefill = 0.0
        self._rate_decode = 0.0
        self._prefill: list[tuple[float, int]] = []
        self._decoding: list[tuple[float, int]] = []
        self._lengths: dict[int, tuple[int, int]] = {}
        self.waiting: deque[int] = deque()
        self.open = 0
        self.version = 0
        self.idle_since = now

    def has_room(self) -> bool:
        return self.open < self._rates.max_num_seqs + self._rates.max_queue_len

    def add(self, now: float, request: int, prompt: int, output: int) -> bool:
        """Take a request. True if rates changed, so that the next event must be asked for."""
        self.open += 1
        self._lengths[request] = (prompt, output)
        self.waiting.append(request)
        if not self._can_start():
            return False
        self._advance(now)
        self._start()
        return True

    def next_event(self) -> float:
        """When the next prompt or sequence ends, if nothing else comes; infinite when idle."""
        when = float("inf")
        if self._prefill:
            when = self._time + max(0.0, self._prefill[0][0] - self._prefilled) / self._rate_prefill
        if self._decoding:
            when = min(when, self._time + max(0.0, self._decoding[0][0] - self._decoded) / self._rate_decode)
        return when

    def step(self, now: float) -> tuple[list[int], list[int]]:
        """Requests that got their first token, and those that finished, at `now`."""
        self._advance(now)
        first: list[int] = []
        done: list[int] = []
        slack = EPSILON + PRECISION * (now * self._rate_prefill + self._prefilled)
        while self._prefill and self._prefill[0][0] <= self._prefilled + slack:
            request = heappop(self._prefill)[1]
            first.append(request)
            output = self._lengths[request][1]
            if output > 1:  # the prompt's last step gives the first token
                heappush(self._decoding, (self._decoded + output - 1, request))
            else:
                done.append(request)
        slack = EPSILON + PRECISION * (now * self._rate_decode + self._decoded)
        while self._decoding and self._decoding[0][0] <= self._decoded + slack:
            done.append(heappop(self._decoding)[1])
        for request in done:
            del self._lengths[request]
        self.open -= len(done)
        if not self.open:
            self.idle_since = now
        self._start()
        return first, done

    def _can_start(self) -> bool:
        running = len(self._prefill) + len(self._decoding)
        return bool(self.waiting) and running < self._rates.max_num_seqs and len(self._prefill) < self._most_prefill

    def _start(self) -> None:
        """Let the longest waiting in, then set the rates. The version says that older events are void."""
        if not self._prefill:
            self._prefilled = 0.0
        if not self._decoding:
            self._decoded = 0.0
        while self._can_start():
            request = self.waiting.popleft()
            heappush(self._prefill, (self._prefilled + self._lengths[request][0], request))
        decoding, prefill = len(self._decoding), len(self._prefill)
        step_s = self._rates.decode_step_s + decoding * self._rates.decode_seq_s + prefill * self._chunk_s
        if step_s:  # 0 is an idle engine's
            self._rate_decode, self._rate_prefill = 1 / step_s, self._chunk / step_s
        self.version += 1

    def _advance(self, now: float) -> None:
        passed = now - self._time
        if passed > 0:
            if self._prefill:
                self._prefilled += passed * self._rate_prefill
            if self._decoding:
                self._decoded += passed * self._rate_decode
        self._time = now
