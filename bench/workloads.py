"""The jobs that every peer replays: the same token ids, the same lengths, greedy, end-of-sequence ignored.

W1  one stream      64 prompt tokens                            128 new
W2  16 at once      64 to 128 prompt tokens                      64 new
W3  32 at once      one 512-token prefix + 16 own tokens         32 new
"""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

NEW_TOKENS = {"W1": 128, "W2": 64, "W3": 32}
SOURCES = ("argparse.py", "asyncio/base_events.py", "typing.py", "tarfile.py", "_pydecimal.py", "doctest.py")
SEED = 7

Prompts = list[list[int]]


def make_workloads(model: Path, rounds: int) -> dict[str, list[Prompts]]:
    """Prompts for each workload and round, cut from the standard library's source text.

    Every prompt starts with a random token of its own, so that a prefix cache never helps by accident or across rounds.
    """
    from transformers import AutoTokenizer

    stdlib = Path(sysconfig.get_paths()["stdlib"])
    text = "".join((stdlib / name).read_text() for name in SOURCES)
    tokens: list[int] = AutoTokenizer.from_pretrained(model)(text)["input_ids"]
    rng = random.Random(SEED)

    def cut(length: int) -> list[int]:
        start = rng.randrange(len(tokens) - length)
        return [rng.randrange(1000, 40000), *tokens[start : start + length - 1]]

    works: dict[str, list[Prompts]] = {name: [] for name in NEW_TOKENS}
    for _ in range(rounds):
        works["W1"].append([cut(64)])
        works["W2"].append([cut(64 + i * 64 // 15) for i in range(16)])
        prefix = cut(512)
        works["W3"].append([prefix + cut(16) for _ in range(32)])
    return works
