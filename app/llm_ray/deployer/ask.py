"""Asks the pods' proxies for /stats, all at once and in threads of their own: one that hangs delays no tick."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from llm_ray.deployer.idle import Answer

TIMEOUT_S = 2.0
NUM_THREADS = 16
LONGEST_BODY = 1 << 16


@dataclass
class Round:
    """One look at every pod. `answers` is complete once `done` is set. asks: address → how many times at most."""

    port: int
    asks: Mapping[str, int]
    answers: dict[str, Answer] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)

    def start(self) -> Round:
        threading.Thread(target=self._run, name="idle", daemon=True).start()
        return self

    def _run(self) -> None:
        try:
            with ThreadPoolExecutor(NUM_THREADS) as pool:
                for found in pool.map(self._ask, self.asks):
                    self.answers |= found
        finally:
            self.done.set()

    def _ask(self, ip: str) -> dict[str, Answer]:
        found: dict[str, Answer] = {}
        for _ in range(self.asks[ip]):
            answer = ask(ip, self.port)
            if answer is None:
                break
            found[answer.replica] = answer
        return found


def ask(ip: str, port: int) -> Answer | None:
    """None when nobody answers, or not as a replica of ours does; also while its engine starts."""
    host = f"[{ip}]" if ":" in ip else ip
    try:
        with _OPENER.open(f"http://{host}:{port}/stats", timeout=TIMEOUT_S) as response:
            body = json.loads(response.read(LONGEST_BODY))
        busy = int(body["num_running"]) + int(body["num_waiting"]) > 0
        return Answer(str(body["replica"]), str(body["node"]), busy)
    except (OSError, ValueError, KeyError, TypeError):
        return None


# Pods are reached directly, whatever proxy the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
