"""How long rendering the chart takes, the whole process: median of each Helm. Run by `python -m bench.render`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from ci.tools import binary

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "llm-ray"
RUNS = 15
HELMS = ("helm3", "helm4")


def main() -> int:
    situations = [None, *sorted((CHART / "ci").glob("*.yaml"))]
    print(f"median of {RUNS} runs, ms")
    print(f"{'values':24}" + "".join(f"{helm:>8}" for helm in HELMS))
    for values in situations:
        figures = "".join(f"{1000 * median_s(helm, values):8.0f}" for helm in HELMS)
        print(f"{values.stem if values else 'defaults':24}{figures}")
    return 0


def median_s(helm: str, values: Path | None) -> float:
    command = [str(binary(helm)), "template", "demo", str(CHART), *(["-f", str(values)] if values else [])]
    return statistics.median(seconds(command) for _ in range(RUNS))


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
