"""Request traces: CSV or JSON Lines, in the columns of Azure's LLM inference traces or in our own."""

from __future__ import annotations

import csv
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llm_ray.errors import ConfigError

OURS = ("arrival_s", "prompt_tokens", "output_tokens")
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MAX_TOKENS = 10_000_000  # of one request; a larger number is a mistake in the file

Row = tuple[int, Mapping[str, Any]]


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their arrival; arrival in seconds from the start of the trace."""

    arrival: array[float]
    prompt: array[int]
    output: array[int]

    def __len__(self) -> int:
        return len(self.arrival)


def make_trace(requests: Iterable[tuple[float, int, int]]) -> Trace:
    ordered = sorted(requests, key=lambda request: request[0])
    return Trace(
        array("d", (request[0] for request in ordered)),
        array("q", (request[1] for request in ordered)),
        array("q", (request[2] for request in ordered)),
    )


def read_trace(path: Path) -> Trace:
    """arrival_s is kept as it is; a TIMESTAMP counts from the first one."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = _json_rows(path, file) if path.suffix in (".jsonl", ".ndjson") else _csv_rows(path, file)
            first = next(rows, None)
            if first is None:
                raise ConfigError(f"{path} holds no request: it needs a line for each, with {', '.join(OURS)}")
            columns = _columns(path, first)
            requests = [_request(path, columns, row) for row in (first, *rows)]
    except OSError as error:
        raise ConfigError(f"cannot read the trace {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from None
    if columns is AZURE:
        start = min(request[0] for request in requests)
        requests = [(t - start, prompt, output) for t, prompt, output in requests]
    return make_trace(requests)


def _csv_rows(path: Path, file: Iterable[str]) -> Iterator[Row]:
    reader = csv.DictReader(file)
    try:
        for row in reader:
            if None in row:
                raise ConfigError(f"{path} line {reader.line_num}: more cells than the header has columns")
            yield reader.line_num, row
    except csv.Error as error:
        raise ConfigError(f"{path} line {reader.line_num}: {error}") from None


def _json_rows(path: Path, file: Iterable[str]) -> Iterator[Row]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path} line {number}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise ConfigError(f"{path} line {number}: must be an object with {', '.join(OURS)}")
        yield number, row


def _columns(path: Path, first: Row) -> tuple[str, str, str]:
    number, row = first
    for columns in (OURS, AZURE):
        if all(column in row for column in columns):
            return columns
    found = ", ".join(map(str, row)) or "none"
    raise ConfigError(
        f"{path} line {number}: columns are {found}; must be {', '.join(OURS)} or {', '.join(AZURE)}: rename them"
    )


def _request(path: Path, columns: tuple[str, str, str], row: Row) -> tuple[float, int, int]:
    number, cells = row
    when, prompt, output = columns
    try:
        prompt_tokens, output_tokens = int(cells[prompt]), int(cells[output])
        if 0 <= prompt_tokens <= MAX_TOKENS and 0 <= output_tokens <= MAX_TOKENS:
            return _seconds(cells[when], allow_dates=columns is AZURE), prompt_tokens, output_tokens
    except (ValueError, TypeError, KeyError):
        pass
    raise _fault(f"{path} line {number}: ", columns, cells)


def _fault(where: str, columns: tuple[str, str, str], cells: Mapping[str, Any]) -> ConfigError:
    when, *counts = columns
    for column in columns:
        if cells.get(column) in (None, ""):
            return ConfigError(f"{where}{column} is missing: fill it in or take the line out")
    for column in counts:
        try:
            good = 0 <= int(cells[column]) <= MAX_TOKENS
        except (ValueError, TypeError):
            good = False
        if not good:
            return ConfigError(f"{where}{column} ({cells[column]!r}) must be a whole number from 0 to {MAX_TOKENS}")
    form = "seconds of 0 or more" if when == "arrival_s" else "seconds or an ISO 8601 time like 2024-05-10 00:00:01.5"
    return ConfigError(f"{where}{when} ({cells[when]!r}) must be {form}")


def _seconds(cell: Any, *, allow_dates: bool) -> float:
    try:
        value = float(cell)
    except ValueError:
        if not allow_dates:
            raise
        moment = datetime.fromisoformat(cell)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(value) or (value < 0 and not allow_dates):
        raise ValueError(value)
    return value
