"""promtool and prometheus as Debian packages them, unpacked into the user's cache: a build takes 3.4 GB of memory.

`python -m ci.prometheus promtool` prints the path. Where there is no Debian, the programs on PATH are taken.
"""

from __future__ import annotations

import argparse
import fcntl
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ci import debian
from ci.tools import ToolError
from llm_ray.model_store import cache_dir

SUITE = "forky"  # Prometheus 3; its programs need nothing but a libc of bookworm's age
NAMES = ("promtool", "prometheus")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def binary(name: str) -> Path:
    """The program of that name; downloads 18 MB the first time. Raises ToolError when it cannot be had."""
    path = cache_dir() / "tools" / f"prometheus-{SUITE}" / name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with (path.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                return _unpack(name, path)
    return path


def _unpack(name: str, path: Path) -> Path:
    found = debian.sources(SUITE)
    if not found or not shutil.which("apt-get"):
        here = shutil.which(name)
        if here:
            return Path(here)
        raise ToolError(f"{name} is neither on PATH nor to be had from Debian here: install Prometheus 3 and try again")
    print(f"tools: fetching {name} from Debian {SUITE}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="new.") as scratch:
        folder = Path(scratch)
        apt = ["apt-get", "--quiet", *_own_apt(folder, found[0].address)]
        _run([*apt, "update"], folder)
        _run([*apt, "download", name], folder)
        packages = list(folder.glob(f"{name}_*.deb"))
        if len(packages) != 1:
            raise ToolError(f"Debian {SUITE} gave {len(packages)} packages {name}, wanted one")
        _run(["dpkg-deb", "--extract", str(packages[0]), "root"], folder)
        (folder / "root" / "usr" / "bin" / name).replace(path)
    return path


def _own_apt(folder: Path, address: str) -> list[str]:
    """Options that leave the machine's own package lists and sources alone; signatures are checked all the same."""
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    (folder / "sources.list").write_text(f"deb {signed}{address} {SUITE} main\n")
    settings = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise ToolError(f"{' '.join(command[:1])} failed while fetching from Debian {SUITE}:\n{tail}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ci.prometheus", description=__doc__)
    parser.add_argument("name", choices=NAMES, help="which program")
    try:
        print(binary(parser.parse_args().name))
    except ToolError as error:
        print(f"tools: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
