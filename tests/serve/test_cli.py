"""The command line, up to where it would start Ray; and how it ends when a start fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from llm_ray.api.auth import hash_key, load_keys
from tests.serve.running_app import START_TIMEOUT_S, environment


def llm_ray(*args: str, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llm_ray.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment() | env)


def test_every_setting_is_a_flag_with_its_help() -> None:
    text = " ".join(llm_ray("serve", "--help").stdout.split())
    for flag in ("--tensor-parallel-size", "--no-prefix-caching", "--max-queue-len", "--drain-timeout-s", "--tp"):
        assert flag in text
    assert "tokens in one KV block (default: 16)" in text


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--model=/nowhere"], "is no directory"),
        (["--model=/nowhere", "--max-num-seqs=0"], "max_num_seqs (0) must be at least 1"),
        (["--model=/nowhere", "--max-replicas=0"], "max_replicas (0) must be at least 1"),
        (["--model=/nowhere", "--step-timeout-s=inf"], "step_timeout_s (inf) must be above 0 and finite"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(flags: list[str], told: str) -> None:
    done = llm_ray("serve", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--port=99999"], "port (99999) must be between 0 and 65535"),
        (["--tp=9"], "tensor_parallel_size (9) must be at most the model's num_attention_heads (8)"),
        (["--max-model-len=129"], "max_model_len (129) must be at most the model's max_position_embeddings (128)"),
        (["--host=192.0.2.77"], "host (192.0.2.77) with port (8000) cannot be listened on"),
        (["--api-keys-file=/nowhere.yaml"], "api_keys_file (/nowhere.yaml) cannot be read"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_starts(flags: list[str], told: str, tmp_path: Path) -> None:
    limits = {"num_attention_heads": 8, "max_position_embeddings": 128}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **limits}))
    done = llm_ray("serve", f"--model={tmp_path}", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr.splitlines()[-1]


def test_a_mistyped_flag_is_told_the_nearest_one() -> None:
    done = llm_ray("serve", "--model=/nowhere", "--tensor-parallel-sise=2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown argument --tensor-parallel-sise: did you mean --tensor-parallel-size?" in done.stderr


def test_an_architecture_that_is_not_served_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "phi3", "architectures": ["Phi3ForCausalLM"]}))
    done = llm_ray("serve", f"--model={tmp_path}")
    assert done.returncode == 2
    assert "phi3" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_new_key_is_shown_once_with_the_entry_that_admits_it(tmp_path: Path) -> None:
    printed = yaml.safe_load(llm_ray("key", "new", "--name", "ci: team").stdout)
    keys = tmp_path / "keys.yaml"
    keys.write_text(yaml.safe_dump({"keys": printed["entry"]}))
    (key,) = load_keys(keys)
    assert (key.name, key.sha256) == ("ci: team", hash_key(printed["secret"]))


@pytest.mark.serve
def test_a_start_that_fails_tells_the_cause_in_one_line(smollm2: Path) -> None:
    flags = [f"--model={smollm2}", "--port=0", "--grpc-port=0", "--num-blocks=1"]
    done = llm_ray("serve", *flags, timeout=START_TIMEOUT_S)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("llm-ray: the KV cache (1 blocks of")


@pytest.mark.serve
def test_when_ray_does_not_start_nobody_elses_is_joined(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    flags = [f"--model={tmp_path}", "--port=0", "--grpc-port=0", "--num-cpus-per-rank=1e30"]
    done = llm_ray("serve", *flags, timeout=START_TIMEOUT_S, RAY_ADDRESS="127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("llm-ray: Ray did not start in 3 attempts: Resource quantities")
