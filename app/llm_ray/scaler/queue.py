"""Keys that wait to be reconciled: each once, one thread at a time for each, later and later after failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from llm_ray.scaler.model import Key

SETTLE_S = 0.05
"""Events come in bursts: one look for all of them."""
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 60.0


class Queue:
    """A key that is added while it is being worked on is worked on again afterwards."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._is_closed = False

    def add(self, key: Key, delay_s: float = SETTLE_S) -> None:
        with self._changed:
            due = self._clock() + delay_s
            self._due[key] = min(due, self._due.get(key, due))
            self._changed.notify()

    def get(self, timeout_s: float | None = None) -> Key | None:
        """The key that has been due longest; None when the time is over or the queue is closed."""
        deadline = None if timeout_s is None else self._clock() + timeout_s
        with self._changed:
            while not self._is_closed:
                now = self._clock()
                free = [(due, key) for key, due in self._due.items() if key not in self._busy]
                due, key = min(free, default=(None, None))
                if due is not None and key is not None and due <= now:
                    del self._due[key]
                    self._busy.add(key)
                    return key
                if deadline is not None and now >= deadline:
                    return None
                ends = [end for end in (due, deadline) if end is not None]
                self._changed.wait(min(ends) - now if ends else None)
            return None

    def done(self, key: Key, again_s: float | None = None) -> None:
        """It went well."""
        with self._changed:
            self._failures.pop(key, None)
            self._release(key, again_s)

    def failed(self, key: Key) -> float:
        """Seconds until it is tried again, unless something happens before."""
        with self._changed:
            count = self._failures.get(key, 0)
            self._failures[key] = count + 1
            wait = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(count, 16))
            self._release(key, wait)
            return wait

    def close(self, timeout_s: float) -> bool:
        """Gives no more keys; whether those that are worked on were done in time."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._busy, timeout_s)

    def _release(self, key: Key, again_s: float | None) -> None:
        self._busy.discard(key)
        if again_s is not None:
            due = self._clock() + again_s
            self._due[key] = min(due, self._due.get(key, due))
        self._changed.notify_all()
