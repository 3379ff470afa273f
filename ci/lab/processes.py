"""The lab's daemons: started in a namespace and a cgroup, recorded by pid and start time, so that a pid which another
process has got since is never signalled."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.lab import cgroups
from ci.lab.errors import LabError
from ci.lab.settings import Settings

Word = str | Path


def command(*words: Word, check: bool = True, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Raises LabError with what it said when it fails."""
    try:
        done = subprocess.run([str(word) for word in words], text=True, capture_output=True, input=text)
    except FileNotFoundError as error:
        raise LabError(f"the program {words[0]} is not there ({error}): `python -m ci.lab check` says why") from error
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise LabError(f"`{' '.join(map(str, words))}` ended with {done.returncode}:\n{said[-3000:]}")
    return done


def wait_for(what: str, probe: Callable[[], bool], seconds: float, logs: Path, every: float = 0.1) -> None:
    """Return once the probe says true. Raises LabError when it does not in that time."""
    end = time.monotonic() + seconds
    while not probe():
        if time.monotonic() > end:
            raise LabError(f"{what}: not there after {seconds:.0f} s; the logs are in {logs}")
        time.sleep(every)


def start_time(pid: int) -> str | None:
    """Field 22 of /proc/PID/stat: with the pid it names one process for good; None for a process that is gone or a
    zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]


@dataclass(frozen=True)
class Processes:
    """The daemons of one lab; the records are files, so that any later command finds them."""

    settings: Settings

    @property
    def records(self) -> Path:
        return self.settings.run / "pids"

    def names(self, prefix: str = "") -> list[str]:
        return sorted(path.name for path in self.records.glob(f"{prefix}*") if path.suffix != ".partial")

    def pid(self, name: str) -> int | None:
        """The pid of a daemon that runs."""
        try:
            record = json.loads((self.records / name).read_text())
        except (FileNotFoundError, ValueError):
            return None
        pid: int = record["pid"]
        return pid if start_time(pid) == record["start"] else None

    def start(self, name: str, words: Sequence[Word], *, netns: str | None = None, like: str | None = None) -> None:
        """Start a daemon in a network namespace, or in the namespaces (network, mount, UTS) of the daemon `like`.

        `ip netns exec` would mount /sys anew and hide the cgroups, hence nsenter.
        """
        enter: list[str] = []
        if netns:
            enter = ["nsenter", f"--net=/run/netns/{netns}", "--"]
        elif like:
            enter = ["nsenter", "-t", str(self.running(like)), "-n", "-m", "-u", "--"]
        group = self.settings.system_cgroup
        self.settings.logs.mkdir(parents=True, exist_ok=True)
        self.records.mkdir(parents=True, exist_ok=True)
        with (self.settings.logs / f"{name}.log").open("ab") as out:
            child = subprocess.Popen(
                [*enter, *map(str, words)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/",
                start_new_session=True, preexec_fn=lambda: cgroups.join(group),
            )  # fmt: skip
        partial = self.records / f"{name}.partial"
        partial.write_text(json.dumps({"pid": child.pid, "start": start_time(child.pid)}))
        partial.rename(self.records / name)

    def running(self, name: str) -> int:
        """The pid of a daemon that has to run. Raises LabError when it does not."""
        pid = self.pid(name)
        if pid is None:
            raise LabError(
                f"{name} does not run: see {self.settings.logs}/{name}.log, then `make lab-down` and `make lab-up`"
            )
        return pid

    def stop(self, names: Sequence[str], grace: float = 10) -> None:
        """End daemons together: a request to stop, and after the grace time an end."""
        for sig, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
            for name in names:
                pid = self.pid(name)
                if pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, sig)
            end = time.monotonic() + seconds
            while any(self.pid(name) for name in names) and time.monotonic() < end:
                _reap()
                time.sleep(0.02)
        for name in names:
            (self.records / name).unlink(missing_ok=True)


def _reap() -> None:
    """Take the exit status of children that have ended, where this process started them."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
