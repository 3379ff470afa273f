"""Traces that are made instead of recorded: evenly spaced requests of one size, a rate for each stretch of time."""

from __future__ import annotations

import csv
from pathlib import Path

from llm_ray.errors import ConfigError
from llm_ray.simulate.trace import OURS, Trace, make_trace

MOST_REQUESTS = 10_000_000


def shape_trace(shape: str, prompt_tokens: int, output_tokens: int) -> Trace:
    """`shape` is SECONDS:REQUESTS_PER_SECOND, again after a comma; a rate of 0 is a pause."""
    arrivals: list[float] = []
    start = 0.0
    for part in shape.split(","):
        seconds, rate = _part(part)
        count = round(seconds * rate)
        if len(arrivals) + count > MOST_REQUESTS:
            raise ConfigError(f"--shape ({shape}) makes more than {MOST_REQUESTS} requests: shorten it or lower a rate")
        arrivals += [start + i / rate for i in range(count)]
        start += seconds
    if not arrivals:
        raise ConfigError(f"--shape ({shape}) makes no request: give one part a rate above 0")
    return make_trace((t, prompt_tokens, output_tokens) for t in arrivals)


def write_trace(path: Path, trace: Trace) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(OURS)
        for t, prompt, output in zip(trace.arrival, trace.prompt, trace.output, strict=True):
            writer.writerow((f"{t:.3f}", prompt, output))


def _part(text: str) -> tuple[float, float]:
    try:
        seconds, rate = (float(number) for number in text.split(":"))
    except ValueError:
        raise ConfigError(f"--shape: {text!r} must be SECONDS:REQUESTS_PER_SECOND like 60:1.5") from None
    if not 0 < seconds < 1e9 or not 0 <= rate < 1e6:
        raise ConfigError(f"--shape: {text!r} must have seconds above 0 and a rate from 0 to 1e6")
    return seconds, rate
