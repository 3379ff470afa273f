"""The event loop: arrivals, what engines finish, what timers decide, what pods become. Same input, same result."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any

from llm_ray.simulate.engine import Engine
from llm_ray.simulate.fleet import Groups, Point
from llm_ray.simulate.scalers import Scaler, State, Timer
from llm_ray.simulate.settings import Fleet, Rates
from llm_ray.simulate.trace import Trace

SAMPLES = 1000  # of the queue, over the trace

Event = tuple[float, int, Callable[[float, Any], None], Any]


@dataclass(frozen=True)
class Sample:
    """Requests at a time: all that are open, and those of them that wait."""

    t: float
    open: int
    waiting: int


@dataclass(frozen=True)
class Result:
    """What came out. Times to first token and latencies are NaN for rejected requests, by the order of the trace."""

    end: float
    ttft: array[float]
    latency: array[float]
    rejected: int
    peak_waiting: int
    longest_drain_s: float
    curve: tuple[Point, ...]
    samples: tuple[Sample, ...]


def simulate(trace: Trace, rates: Rates, fleet: Fleet, scaler: Scaler, *, until: float = 0.0) -> Result:
    """Replays all of the trace, until its last request has ended and at least `until` seconds."""
    return Simulation(trace, rates, fleet, scaler).run(until)


class Simulation:
    """One run. Also the router: a request goes to the engine with the fewest open ones."""

    def __init__(self, trace: Trace, rates: Rates, fleet: Fleet, scaler: Scaler) -> None:
        self._trace = trace
        self._rates = rates
        self._scaler = scaler
        self._events: list[Event] = []
        self._number = 0
        self._engines: list[Engine] = []
        self._queue: deque[int] = deque()
        self._open = self._ended = self._waiting = self._peak = self._rejected = 0
        self._ttft = array("d", [math.nan]) * len(trace)
        self._latency = array("d", [math.nan]) * len(trace)
        self._samples: list[Sample] = []
        self._groups = Groups(fleet, rates, self._schedule, self, scaler.idle_timeout_s)
        self._scales_engines = scaler.idle_timeout_s is not None
        self._target = fleet.initial_replicas * (fleet.engines if self._scales_engines else 1)

    def run(self, until: float) -> Result:
        trace, events = self._trace, self._events
        self._groups.begin()
        length = max(until, trace.arrival[-1])
        sampling = Timer(0.0, max(1.0, length / SAMPLES), self._sample)
        for timer in (*self._scaler.timers(), sampling):
            self._schedule(timer.first, self._tick, timer)
        upcoming, now = 0, 0.0
        while True:
            arrival = trace.arrival[upcoming] if upcoming < len(trace) else math.inf
            due = events[0][0]  # there is always the sampling
            if self._ended == len(trace) and due > until:
                break
            if arrival <= due:
                now = arrival
                self._open += 1
                self._route(now, upcoming)
                upcoming += 1
            else:
                now, _, act, what = heappop(events)
                act(now, what)
        return self._result(max(now, until))

    def join(self, now: float, engine: Engine) -> None:
        self._engines.append(engine)
        while self._queue:
            self._waiting -= 1
            self._route(now, self._queue.popleft())

    def leave(self, engine: Engine) -> None:
        self._engines.remove(engine)

    def _schedule(self, when: float, act: Callable[[float, Any], None], what: Any) -> None:
        self._number += 1
        heappush(self._events, (when, self._number, act, what))

    def _route(self, now: float, request: int) -> None:
        if not self._engines:
            self._queue.append(request)
            self._wait(1)
            return
        engine = min(self._engines, key=attrgetter("open")) if len(self._engines) > 1 else self._engines[0]
        if not engine.has_room():
            self._rejected += 1
            self._open -= 1
            self._ended += 1
        elif engine.add(now, request, self._trace.prompt[request], self._trace.output[request]):
            self._await(engine)
        else:
            self._wait(1)

    def _wait(self, more: int) -> None:
        self._waiting += more
        if self._waiting > self._peak:
            self._peak = self._waiting

    def _await(self, engine: Engine) -> None:
        when = engine.next_event()
        if when < math.inf:
            self._schedule(when, self._step, (engine, engine.version))

    def _step(self, now: float, what: tuple[Engine, int]) -> None:
        engine, version = what
        if version != engine.version:
            return
        waiting = len(engine.waiting)
        first, done = engine.step(now)
        self._waiting -= waiting - len(engine.waiting)
        overhead = self._rates.overhead_s
        for request in first:
            self._ttft[request] = now - self._trace.arrival[request] + overhead
        for request in done:
            self._latency[request] = now - self._trace.arrival[request] + overhead
        if done:
            self._open -= len(done)
            self._ended += len(done)
            if not engine.open:
                self._groups.idle(now, engine)
        self._await(engine)

    def _tick(self, now: float, timer: Timer) -> None:
        running = len(self._engines)
        wanted = timer.run(now, State(self._open, self._target, self._groups.existing(), self._target, running))
        if wanted is not None and wanted != self._target:
            self._target = wanted
            if self._scales_engines:
                self._groups.scale_engines(now, wanted)
            else:
                self._groups.scale_groups(now, wanted)
        self._schedule(now + timer.period, self._tick, timer)

    def _sample(self, now: float, state: State) -> None:
        self._samples.append(Sample(now, self._open, self._waiting))

    def _result(self, end: float) -> Result:
        return Result(
            end=end,
            ttft=self._ttft,
            latency=self._latency,
            rejected=self._rejected,
            peak_waiting=self._peak,
            longest_drain_s=self._groups.longest_drain_s,
            curve=tuple(self._groups.curve),
            samples=tuple(self._samples),
        )
