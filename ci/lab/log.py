"""One line of progress, with the seconds since the command began."""

from __future__ import annotations

import time
from collections.abc import Callable

Say = Callable[[str], None]


def timed() -> Say:
    began = time.monotonic()

    def say(message: str) -> None:
        print(f"[{time.monotonic() - began:5.1f} s] {message}", flush=True)

    return say
