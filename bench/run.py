"""Run every engine in turn on the same jobs within one run, one thread each on one pinned core, and print ratios.

python -m bench.run [--rounds 5] [--dtype bfloat16] [--write]     --write also regenerates docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bench import report
from bench.paths import PEERS_ENV, REPO, RESULTS
from bench.workloads import NEW_TOKENS, make_workloads
from llm_ray.model_store import demo_model

CORE = max(os.sched_getaffinity(0))
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
VLLM_ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": str(CORE)}
TCMALLOC = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")


@dataclass
class Peer:
    name: str
    module: str
    python: Path = Path(sys.executable)
    env: dict[str, str] = field(default_factory=dict)
    version: str = ""
    process: subprocess.Popen[str] | None = None

    def start(self, model: Path, dtype: str) -> None:
        command = ["taskset", "-c", str(CORE), self.python, "-m", self.module, model, dtype]
        env = {**os.environ, "PYTHONPATH": f"{REPO / 'app'}:{REPO}", **ONE_THREAD, **self.env}
        self.process = subprocess.Popen(
            command,
            cwd=REPO,
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.version = self._read()["version"]

    def ask(self, **job: Any) -> dict[str, Any]:
        stdin, _ = self._pipes()
        stdin.write(json.dumps(job) + "\n")
        stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._pipes()[1].readline()
        if not line:
            raise SystemExit(f"{self.name} ended early; `python -m {self.module} MODEL DTYPE` shows why")
        return dict(json.loads(line))

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self.process is None or self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError(f"{self.name} was not started")
        return self.process.stdin, self.process.stdout

    def stop(self) -> None:
        if self.process is not None:
            self._pipes()[0].close()
            self.process.wait(timeout=60)


def all_peers() -> list[Peer]:
    peers = [
        Peer("llm-ray", "bench.peers.llm_ray_engine"),
        Peer("transformers generate", "bench.peers.transformers_generate"),
        Peer("transformers continuous batching", "bench.peers.transformers_continuous"),
    ]
    if (PEERS_ENV / "bin/python").exists():
        preload = [str(p) for p in (TCMALLOC, PEERS_ENV / "lib/libiomp5.so") if p.exists()]
        env = {**VLLM_ENV, "LD_PRELOAD": ":".join(preload)}
        peers.append(Peer("vllm", "bench.peers.vllm_cpu", PEERS_ENV / "bin/python", env))
    else:
        print("vllm is left out: `make bench-peers` installs it", file=sys.stderr)
    return peers


def measure(peers: list[Peer], works: dict[str, list[list[list[int]]]], rounds: int) -> list[dict[str, Any]]:
    """Rows of {peer, work, round, tokens_per_s, wall, cpu}. The last round of the workloads is for warming up."""
    rows: list[dict[str, Any]] = []

    def record(peer: Peer, work: str, number: int, answer: dict[str, Any], rate: float) -> None:
        row = {"peer": peer.name, "work": work, "round": number, "tokens_per_s": rate, **answer}
        rows.append(row)
        print(
            f"round {number + 1}  {work:12s} {peer.name:34s} {rate:8.1f} tok/s  cpu {answer['cpu']:.2f} s", flush=True
        )

    for peer in peers:
        for work, sets in works.items():
            peer.ask(prompts=sets[-1], new=4)
            print(f"warm     {work:12s} {peer.name}", file=sys.stderr, flush=True)
    for number in range(rounds):
        for work, new in NEW_TOKENS.items():
            prompts = works[work][number]
            for peer in peers:
                if work == "W3" and peer.name.startswith("transformers") and number >= 1:
                    continue  # 40 s each and no prefix cache to show: one round tells enough
                first = peer.ask(prompts=works[work][number + 1], new=1)["wall"] if work == "W1" else 0.0
                answer = peer.ask(prompts=prompts, new=new)
                tokens = answer["tokens"] - (1 if work == "W1" else 0)
                record(peer, work, number, {**answer, "ttft": first}, tokens / (answer["wall"] - first))
        own = peers[0]
        answer = own.ask(prompts=works["W2"][number], new=NEW_TOKENS["W2"], one_at_a_time=True)
        record(own, "W2 serial", number, answer, answer["tokens"] / answer["wall"])
        answer = own.ask(prompts=works["W3"][number], new=NEW_TOKENS["W3"], prefix_caching=False)
        record(own, "W3 no cache", number, answer, answer["tokens"] / answer["wall"])
        answer = own.ask(prompts=[works["W3"][number][1], works["W1"][number][0]], new=1, interfere=True)
        rows.append({"peer": own.name, "work": "TTFT", "round": number, **answer})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--write", action="store_true", help="regenerate docs/benchmarks.md")
    parser.add_argument("--only", default="", help="comma-separated peers beside llm-ray")
    args = parser.parse_args()
    model = demo_model(args.dtype)
    works = make_workloads(model, args.rounds + 2)
    wanted = {"llm-ray", *args.only.split(",")} if args.only else None
    peers = [p for p in all_peers() if wanted is None or p.name in wanted]
    try:
        for peer in peers:
            peer.start(model, args.dtype)
            print(f"ready    {peer.version}", file=sys.stderr, flush=True)
        rows = measure(peers, works, args.rounds)
    finally:
        for peer in peers:
            peer.stop()
    result = {"dtype": args.dtype, "rounds": args.rounds, "versions": {p.name: p.version for p in peers}, "rows": rows}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1))
    print(report.tables(result))
    if args.write:
        report.write(result)


if __name__ == "__main__":
    main()
