"""Counts over time as step functions: their integral, their files, and how far two of them differ."""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from llm_ray.errors import ConfigError
from llm_ray.simulate.fleet import Point

Column = Literal["wanted", "pods", "ready"]
COLUMNS: tuple[Column, ...] = ("wanted", "pods", "ready")


@dataclass(frozen=True)
class Curve:
    """A count from each of `times` on, until the next; the last one holds until `end`."""

    times: tuple[float, ...]
    counts: tuple[float, ...]
    end: float

    def __post_init__(self) -> None:
        if not self.times or len(self.times) != len(self.counts):
            raise ConfigError(
                f"a curve needs as many times ({len(self.times)}) as counts ({len(self.counts)}), at least 1"
            )
        if any(a > b for a, b in zip(self.times, (*self.times[1:], self.end), strict=True)):
            raise ConfigError("the times of a curve must rise, and end with its last: sort the observations")

    def at(self, t: float) -> float:
        index = bisect_right(self.times, t) - 1
        return self.counts[max(index, 0)]

    def integral(self, start: float, end: float) -> float:
        """Count-seconds between two times. Before its first time a curve has its first count."""
        inner = [t for t in self.times if start < t < end]
        edges = [start, *inner, end]
        return sum(self.at(a) * (b - a) for a, b in pairwise(edges))


@dataclass(frozen=True)
class Comparison:
    """Replica-seconds of two curves over the time that both cover."""

    start: float
    end: float
    simulated_s: float
    observed_s: float

    @property
    def difference_s(self) -> float:
        """Above 0: more was simulated than observed."""
        return self.simulated_s - self.observed_s

    @property
    def difference(self) -> float:
        """Share of the observed."""
        return self.difference_s / self.observed_s if self.observed_s else float("inf") if self.difference_s else 0.0


def compare(simulated: Curve, observed: Curve) -> Comparison:
    """Both in seconds since the same moment, the start of the trace."""
    start, end = max(simulated.times[0], observed.times[0]), min(simulated.end, observed.end)
    if not start < end:
        raise ConfigError(
            f"the curves share no time: simulated {simulated.times[0]:g} to {simulated.end:g} s, "
            f"observed {observed.times[0]:g} to {observed.end:g} s; count both from the start of the trace"
        )
    return Comparison(start, end, simulated.integral(start, end), observed.integral(start, end))


def curve_of(points: Sequence[Point], column: Column, end: float) -> Curve:
    return Curve(tuple(p.t for p in points), tuple(float(getattr(p, column)) for p in points), end)


def observed(samples: Iterable[tuple[float, float]]) -> Curve:
    """Of (time, count) pairs, as a poll of the live system gives them; the last one is the end."""
    ordered = sorted(samples)
    return Curve(tuple(t for t, _ in ordered), tuple(n for _, n in ordered), ordered[-1][0] if ordered else 0.0)


def write_csv(path: Path, points: Sequence[Point], end: float) -> None:
    """Columns t, wanted, pods, ready: a line where something changes, and one for the end."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("t", *COLUMNS))
        for point in points:
            writer.writerow((f"{point.t:.3f}", point.wanted, point.pods, point.ready))
        last = points[-1]
        writer.writerow((f"{max(end, last.t):.3f}", last.wanted, last.pods, last.ready))


def read_csv(path: Path, column: str) -> Curve:
    """A column of a file with the columns t and `column`; the time of the last line is the end."""
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            for name in ("t", column):
                if name not in (reader.fieldnames or ()):
                    raise ConfigError(f"{path} has no column {name}; it has {', '.join(reader.fieldnames or ())}")
            return observed([(float(row["t"]), float(row[column])) for row in reader])
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
