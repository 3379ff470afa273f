"""What every peer process does: load, say READY, then answer each job line with one line of JSON.

A job is {"prompts": [[ids]], "new": n, …}; the answer is {"wall": s, "cpu": s, "tokens": n, "digest": hex, …}.
CPU seconds are those of the process and its children; the digest tells whether two runs gave the same tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Outputs = list[list[int]]


@dataclass
class Answer:
    outputs: Outputs
    extra: dict[str, float] = field(default_factory=dict)


Run = Callable[[list[list[int]], int, dict[str, Any]], Answer]


def cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def serve_jobs(run: Run, version: str) -> None:
    """Read jobs from standard input until it closes. Everything a library prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"ready": True, "version": version}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        cpu, began = cpu_seconds(), time.perf_counter()
        answer = run(job["prompts"], job["new"], job)
        wall = time.perf_counter() - began
        digest = hashlib.sha256(json.dumps(answer.outputs).encode()).hexdigest()[:12]
        row = {
            "wall": wall,
            "cpu": cpu_seconds() - cpu,
            "tokens": sum(map(len, answer.outputs)),
            "digest": digest,
            **answer.extra,
        }
        print(json.dumps(row), file=answers, flush=True)
