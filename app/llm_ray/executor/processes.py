"""A rank's operating system process on this node: what state it is in, and how to end it for certain."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

EXIT_TIMEOUT_S = 10.0
STATES = {"T": "stopped", "t": "traced", "Z": "dead", "D": "waiting for a device"}


class LocalProcess:
    """Ray asks a process to end itself, which a stopped or hanging one never does; this sends SIGKILL.

    The process is held by a pidfd, so that a pid that is in use again is never hit.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = _open(pid)

    def describe(self) -> str:
        state = _state(self.pid)
        return f"pid {self.pid}, {state}" if state else f"pid {self.pid}"

    def wait(self, timeout_s: float) -> None:
        """Return when the process has ended, or after timeout_s."""
        if self._fd is not None:
            _wait(self._fd, timeout_s)

    def kill(self) -> None:
        """End the process and wait until it is gone, EXIT_TIMEOUT_S at most. A second call does nothing."""
        if self._fd is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        _wait(self._fd, EXIT_TIMEOUT_S)
        os.close(self._fd)
        self._fd = None


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _wait(fd: int, timeout_s: float) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(timeout_s * 1000)


def _state(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "gone"
    return STATES.get(stat.rpartition(")")[2].split()[0], "")
