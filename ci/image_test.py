"""Prove build/llm-ray.tar: unpack it and run it with runc as Kubernetes would at its strictest.

uid 1000, no capabilities, no new privileges, read-only root, /tmp and /dev/shm in memory, its own network. In turn:
RAY_ROLE=serve answers a chat request and stops on SIGTERM; RAY_ROLE=head and RAY_ROLE=worker make a cluster of two.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ci import oci
from ci.image import ROOT, fail, need, say
from llm_ray.model_store import cache_dir, demo_model

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
QUESTION = "What is the capital of France? Answer in one sentence."
WRITABLE = {"/tmp": "size=4g,mode=1777", "/dev/shm": "size=1g,mode=1777"}
BUILDER_TRACES = ("etc/apt/sources.list", "etc/pip.conf", "run/lent", "root/.cache", "var/cache/uv")


class Container:
    """One running container of the unpacked image."""

    def __init__(self, home: Path, name: str) -> None:
        self.home, self.name = home, name
        self.log = home / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def exec(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as the container's user."""
        return subprocess.run(
            [*self.runc, "exec", self.name, *command], capture_output=True, text=True, timeout=120, check=False
        )

    @property
    def runc(self) -> list[str]:
        return ["runc", "--root", str(self.home / "state")]

    @property
    def pid(self) -> int:
        state = subprocess.run([*self.runc, "state", self.name], stdout=subprocess.PIPE, check=True)
        return int(json.loads(state.stdout)["pid"])

    def wait_until(self, what: str, ready: Callable[[], bool]) -> None:
        """Poll until ready; stop everything with the log's end when it never is, or when the container has exited."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                fail(f"{self.name}: not {what} (exit code {self.process.poll()}); its log ends:\n{self.tail()}")
            time.sleep(1)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@contextmanager
def container(
    rootfs: Path, config: dict[str, Any], env: dict[str, str], args: list[str], models: Path, net: str = ""
) -> Iterator[Container]:
    """Start the image's own entrypoint with env and args; net is the path of a network namespace to join."""
    with tempfile.TemporaryDirectory(prefix="llm-ray-image-") as scratch:
        made = Container(Path(scratch), f"llm-ray-{env['RAY_ROLE']}-{os.getpid()}")
        spec = runtime_spec(made.home, rootfs, config, env, args, models, net)
        (made.home / "config.json").write_text(json.dumps(spec))
        with made.log.open("wb") as log:
            made.process = subprocess.Popen(
                [*made.runc, "run", "--bundle", str(made.home), made.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield made
        finally:
            subprocess.run([*made.runc, "delete", "--force", made.name], capture_output=True, check=False)
            made.process.wait(STOP_TIMEOUT_S)


def runtime_spec(
    bundle: Path, rootfs: Path, config: dict[str, Any], env: dict[str, str], args: list[str], models: Path, net: str
) -> dict[str, Any]:
    """runc's default spec with our settings: every right taken away, two tmpfs, the models read-only."""
    subprocess.run(["runc", "spec", "--bundle", str(bundle)], check=True)
    spec: dict[str, Any] = json.loads((bundle / "config.json").read_text())
    uid, gid = (int(part) for part in config["User"].split(":"))
    spec["process"] |= {
        "terminal": False,
        "user": {"uid": uid, "gid": gid},
        "args": [*config["Entrypoint"], *args],
        "env": [*config["Env"], *(f"{name}={value}" for name, value in env.items())],
        "cwd": config["WorkingDir"],
        "capabilities": {},
        "noNewPrivileges": True,
        "rlimits": [],
    }
    spec["root"] = {"path": str(rootfs), "readonly": True}
    spec["hostname"] = "llm-ray"
    spec["mounts"] = [mount for mount in spec["mounts"] if mount["destination"] not in WRITABLE]
    for target, options in WRITABLE.items():
        spec["mounts"].append(
            {
                "destination": target,
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "nodev", *options.split(",")],
            }
        )
    spec["mounts"].append(
        {"destination": "/models", "type": "bind", "source": str(models), "options": ["rbind", "ro", "nosuid", "nodev"]}
    )
    for namespace in spec["linux"]["namespaces"]:
        if net and namespace["type"] == "network":
            namespace["path"] = net
    return spec


def check_contents(rootfs: Path) -> None:
    """Nothing of the builder is left, and only the two layers' places hold the project."""
    left = [name for name in BUILDER_TRACES if (rootfs / name).exists()]
    if left or any((rootfs / "etc/apt/sources.list.d").iterdir()):
        fail(f"the image holds traces of its builder: {left or 'etc/apt/sources.list.d'}")


def check_serve(rootfs: Path, config: dict[str, Any], models: Path, model: str) -> None:
    args = ["--model", f"/models/{model}", "--tp", "2", "--port", "8000"]
    began = time.monotonic()
    with container(rootfs, config, {"RAY_ROLE": "serve"}, args, models) as app:
        ready = ("curl", "-sf", "-o", "/dev/null", "http://127.0.0.1:8000/readyz")
        app.wait_until("ready", lambda: app.exec(*ready).returncode == 0)
        say(f"RAY_ROLE=serve is ready after {time.monotonic() - began:.0f} s")
        body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 32}
        url = "http://127.0.0.1:8000/v1/chat/completions"
        done = app.exec(
            "curl", "-sS", "--max-time", "60", "-H", "Content-Type: application/json", "-d", json.dumps(body), url
        )
        answer = json.loads(done.stdout)["choices"][0]["message"]["content"] if done.returncode == 0 else done.stderr
        say(f"it answers: {answer}")
        if "Paris" not in answer:
            fail(f"that is not the answer; the log ends:\n{app.tail()}")
        check_confined(app)
        stop(app)


def check_confined(app: Container) -> None:
    users = set(app.exec("ps", "-eo", "uid=").stdout.split())
    if users != {"1000"}:
        fail(f"processes run as uid {sorted(users)}, expected only 1000")
    for place in ("/", "/home/ray", "/opt/llm-ray", "/models"):
        if app.exec("touch", f"{place}/written").returncode == 0:
            fail(f"{place} can be written to")


def stop(app: Container) -> None:
    """SIGTERM to the first process ends the container in time, without force."""
    began = time.monotonic()
    subprocess.run([*app.runc, "kill", app.name, "TERM"], check=True)
    assert app.process is not None
    try:
        code = app.process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        fail(f"{app.name} still runs {STOP_TIMEOUT_S:.0f} s after SIGTERM; its log ends:\n{app.tail()}")
    say(f"{app.name} stopped on SIGTERM in {time.monotonic() - began:.1f} s with exit code {code}")


def check_cluster(rootfs: Path, config: dict[str, Any], models: Path) -> None:
    """A head and a worker find each other. Both live in one network namespace, as two nodes with one address."""
    with container(rootfs, config, {"RAY_ROLE": "head"}, [], models) as head:
        head.wait_until("healthy", lambda: head.exec("ray", "health-check").returncode == 0)
        env = {"RAY_ROLE": "worker", "RAY_HEAD_SERVICE": "127.0.0.1", "RAY_NUM_CPUS": "3"}
        with container(rootfs, config, env, [], models, net=f"/proc/{head.pid}/ns/net") as worker:
            worker.wait_until("joined", lambda: "/3.0 CPU" in head.exec("ray", "status").stdout)
            say("RAY_ROLE=head and RAY_ROLE=worker made a cluster: ray status shows the worker's 3 CPUs")
            stop(worker)
        stop(head)


def main() -> None:
    archive = ROOT / "build/llm-ray.tar"
    if not archive.exists():
        fail("build/llm-ray.tar is missing: run make image first")
    if os.geteuid() != 0:
        fail("starting containers needs root")
    need("runc")
    model = demo_model(log=say)
    rootfs = Path(tempfile.mkdtemp(prefix="test-", dir=cache_dir()))
    rootfs.chmod(0o755)  # it becomes the container's /
    try:
        config = oci.unpack(archive, rootfs)
        check_contents(rootfs)
        check_serve(rootfs, config, model.parent, model.name)
        check_cluster(rootfs, config, model.parent)
    finally:
        shutil.rmtree(rootfs)
    say("the image works")


if __name__ == "__main__":
    main()
