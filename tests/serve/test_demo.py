"""`llm-ray demo --once`, as a newcomer runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llm_ray.demo import MAX_TOKENS, QUESTION
from tests.serve.running_app import START_TIMEOUT_S, environment

pytestmark = pytest.mark.serve


def test_the_demo_answers_as_hugging_face_does_and_exits(smollm2: Path) -> None:
    command = [sys.executable, "-m", "llm_ray.cli", "demo", "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip("\n") == greedy_answer(smollm2)
    for told in ("time to first token", "tokens/s", "rank 0 (pid", "rank 1 (pid", "parameters"):
        assert told in done.stderr


def greedy_answer(model_dir: Path) -> str:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype="float32")
    messages = [{"role": "user", "content": QUESTION}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    made = model.generate(ids, max_new_tokens=MAX_TOKENS, do_sample=False)
    text: str = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
    return text
