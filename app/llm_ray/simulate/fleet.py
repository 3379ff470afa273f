"""Worker groups from the decision that makes them until their pods are gone, and the engines in their places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from llm_ray.simulate.engine import Engine
from llm_ray.simulate.settings import Fleet, Rates

Schedule = Callable[[float, Callable[[float, Any], None], Any], None]


class Router(Protocol):
    """Where requests are spread over engines."""

    def join(self, now: float, engine: Engine) -> None: ...

    def leave(self, engine: Engine) -> None: ...


@dataclass(eq=False)
class Place:
    """Room for one engine in a group. No engine yet: the pods or the weights are on their way."""

    group: Group
    engine: Engine | None = None
    stopping: bool = False


@dataclass(eq=False)
class Group:
    """Pods that come and go together."""

    number: int
    places: list[Place] = field(default_factory=list)
    exists: bool = False
    joined: bool = False
    leaving: bool = False
    draining_since: float = -1.0
    gone: bool = False
    empty_since: float = 0.0

    def is_ready(self) -> bool:
        return any(place.engine and not place.stopping for place in self.places)

    def is_idle(self) -> bool:
        return all(place.engine is not None and not place.engine.open for place in self.places)


@dataclass(frozen=True)
class Point:
    """Counts of worker groups from a time on: wanted, with pods (stopping ones too), and serving."""

    t: float
    wanted: int
    pods: int
    ready: int


class Groups:
    """The fleet. Without `idle_timeout_s` groups are scaled; with it engines, and an empty group waits that long."""

    def __init__(
        self, spec: Fleet, rates: Rates, schedule: Schedule, router: Router, idle_timeout_s: float | None
    ) -> None:
        self._spec = spec
        self._rates = rates
        self._schedule = schedule
        self._router = router
        self._idle_timeout_s = idle_timeout_s
        self._groups: dict[int, Group] = {}
        self._place_of: dict[Engine, Place] = {}
        self._made = 0
        self.longest_drain_s = 0.0
        self.curve: list[Point] = []

    def begin(self, engines: int | None = None) -> None:
        """Groups that serve already when the trace begins; without engines, they are full."""
        left = self._spec.engines * self._spec.initial_replicas if engines is None else engines
        for _ in range(self._spec.initial_replicas):
            group = self._make()
            group.exists = group.joined = True
            here = min(left, self._spec.engines)
            left -= here
            for _ in range(here):
                place = Place(group)
                group.places.append(place)
                self._loaded(0.0, place)
            if not here:
                self._empty(0.0, group)
        self._note(0.0)

    def alive(self) -> list[Group]:
        return [group for group in self._groups.values() if not group.leaving]

    def existing(self) -> int:
        """What a scale target's status says: groups with pods that are not being removed."""
        return sum(group.exists and not group.leaving for group in self._groups.values())

    def engines(self) -> list[Place]:
        """Engines that are there or on their way."""
        return [place for group in self.alive() for place in group.places if not place.stopping]

    def scale_groups(self, now: float, wanted: int) -> None:
        alive = self.alive()
        for _ in range(wanted - len(alive)):
            group = self._order(now)
            group.places.extend(Place(group) for _ in range(self._spec.engines))
        for group in sorted(alive, key=_group_victims)[: max(0, len(alive) - wanted)]:
            group.leaving = True
            if group.exists:
                self._schedule(now + self._rates.scale_delay_s, self._drain, group)
            else:
                self._drain(now, group)  # nobody has asked for its pods yet
        self._note(now)

    def scale_engines(self, now: float, wanted: int) -> None:
        engines = self.engines()
        for _ in range(wanted - len(engines)):
            self._add_engine(now)
        for place in sorted(engines, key=_engine_victims)[: max(0, len(engines) - wanted)]:
            self._stop(now, place)
        self._note(now)

    def idle(self, now: float, engine: Engine) -> None:
        """The engine has finished its last open request."""
        place = self._place_of[engine]
        if place.stopping:
            self._stopped(now, place)
            self._note(now)

    def _make(self) -> Group:
        self._made += 1
        group = Group(self._made)
        self._groups[group.number] = group
        return group

    def _order(self, now: float) -> Group:
        group = self._make()
        self._schedule(now + self._rates.scale_delay_s, self._exist, group)
        return group

    def _add_engine(self, now: float) -> None:
        free = [group for group in self.alive() if len(group.places) < self._spec.engines]
        if free:
            group = min(free, key=lambda group: (not group.joined, not group.exists, group.number))
        elif len(self.alive()) < self._spec.max_replicas:
            group = self._order(now)
        else:
            return  # Serve would wait for a node that never comes
        place = Place(group)
        group.places.append(place)
        if group.joined:
            self._schedule(now + self._rates.load_s, self._loaded, place)

    def _exist(self, now: float, group: Group) -> None:
        if group.gone:
            return
        group.exists = True
        self._schedule(now + self._rates.pod_start_s, self._joined, group)
        self._note(now)

    def _joined(self, now: float, group: Group) -> None:
        group.joined = True
        for place in group.places:
            self._schedule(now + self._rates.load_s, self._loaded, place)

    def _loaded(self, now: float, place: Place) -> None:
        if place.stopping:
            return
        place.engine = Engine(self._rates, now)
        self._place_of[place.engine] = place
        self._note(now)
        self._router.join(now, place.engine)

    def _drain(self, now: float, group: Group) -> None:
        group.draining_since = now
        for place in list(group.places):
            self._stop(now, place)
        self._note(now)

    def _stop(self, now: float, place: Place) -> None:
        place.stopping = True
        if place.engine:
            self._router.leave(place.engine)
        if not place.engine or not place.engine.open:
            self._stopped(now, place)

    def _stopped(self, now: float, place: Place) -> None:
        group = place.group
        group.places.remove(place)
        if not group.places:
            self._empty(now, group)

    def _empty(self, now: float, group: Group) -> None:
        group.empty_since = now
        if group.leaving:
            self.longest_drain_s = max(self.longest_drain_s, now - group.draining_since)
            if group.exists:
                self._schedule(now + self._rates.stop_s, self._remove, group)
            else:
                self._remove(now, group)
        elif self._idle_timeout_s is not None:
            self._schedule(now + self._idle_timeout_s, self._time_out, (group, now))

    def _time_out(self, now: float, waited: tuple[Group, float]) -> None:
        group, since = waited
        unused = not group.places and group.empty_since == since and not group.leaving
        if unused and len(self.alive()) > self._spec.min_replicas:
            group.leaving = True
            self._schedule(now + self._rates.stop_s, self._remove, group)
            self._note(now)

    def _remove(self, now: float, group: Group) -> None:
        group.gone = True
        del self._groups[group.number]
        self._note(now)

    def _note(self, now: float) -> None:
        groups = self._groups.values()
        point = Point(
            now,
            sum(not group.leaving for group in groups),
            sum(group.exists for group in groups),
            sum(group.is_ready() for group in groups),
        )
        if self.curve and self.curve[-1].t == now:
            self.curve.pop()
        if not self.curve or self.curve[-1] != Point(self.curve[-1].t, point.wanted, point.pods, point.ready):
            self.curve.append(point)


def _group_victims(group: Group) -> tuple[int, float, int]:
    """Sort key: groups that never served first, then the longest idle, then busy ones, the newest first."""
    if not group.is_ready():
        return 0, 0.0, -group.number
    if group.is_idle():
        return 1, max(place.engine.idle_since for place in group.places if place.engine), -group.number
    return 2, 0.0, -group.number


def _engine_victims(place: Place) -> tuple[int, float, int]:
    """As for groups."""
    if not place.engine:
        return 0, 0.0, -place.group.number
    if not place.engine.open:
        return 1, place.engine.idle_since, -place.group.number
    return 2, 0.0, -place.group.number
