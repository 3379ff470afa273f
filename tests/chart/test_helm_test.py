"""`helm test`: its pod, and its script against the app's real front."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from llm_ray.api.auth import hash_key
from llm_ray.tokenizer import Tokenizer
from tests.app.front import MODEL, serving
from tests.support.chart import CHART, render
from tests.support.validate import validate

SCRIPT = CHART / "files" / "smoke_test.py"


@pytest.fixture(scope="module")
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(os.environ.get("LLM_RAY_TEST_MODEL") or str(request.getfixturevalue("smollm2")))


def ask(
    url: str, *, model: str = MODEL, needs_key: bool = False, timeout_s: float = 20
) -> subprocess.CompletedProcess[str]:
    """Run the script as the pod does."""
    env = {
        "HELP": "look at the events",
        "URL": url,
        "MODEL": model,
        "NEEDS_KEY": str(needs_key).lower(),
        "TIMEOUT_S": str(timeout_s),
        "PATH": os.environ["PATH"],
    }
    command = [sys.executable, "-I", "-c", SCRIPT.read_text()]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_it_succeeds_where_the_model_answers(tokenizer: Tokenizer) -> None:
    with serving(tokenizer) as app:
        done = ask(app.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "'The capital of France is' goes on with" in done.stdout


def test_with_api_keys_a_refused_request_is_the_success(tokenizer: Tokenizer, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(yaml.safe_dump({"keys": [{"name": "a", "sha256": hash_key("secret")}]}))
    with serving(tokenizer, api_keys_file=str(keys)) as app:
        assert ask(app.url, needs_key=True).returncode == 0
        refused = ask(app.url, timeout_s=0)
    assert refused.returncode == 1
    assert "answers 401, wanted 200" in refused.stderr


def test_an_open_service_where_keys_are_wanted_fails(tokenizer: Tokenizer) -> None:
    with serving(tokenizer) as app:
        done = ask(app.url, needs_key=True, timeout_s=0)
    assert done.returncode == 1
    assert "answers 200, wanted 401" in done.stderr


def test_another_model_fails_and_says_what_came(tokenizer: Tokenizer) -> None:
    with serving(tokenizer) as app:
        done = ask(app.url, model="other", timeout_s=0)
    assert done.returncode == 1
    assert done.stderr.startswith(f"FAILED: {app.url}/v1/completions answers 404, wanted 200")
    assert "look at the events" not in done.stderr


def test_nobody_at_the_address_fails_at_the_deadline() -> None:
    done = ask("http://127.0.0.1:1", timeout_s=0)
    assert done.returncode == 1
    assert "/readyz answers nothing, wanted 200" in done.stderr
    assert done.stderr.endswith("\nNo pod serves. look at the events.\n")


@pytest.mark.parametrize("secret", ["", "keys"])
def test_the_pod_asks_the_service_that_clients_use(secret: str) -> None:
    service = {"httpPort": 80}
    objects = render(
        {
            "auth": {"apiKeys": {"existingSecret": secret}},
            "expose": {"service": service},
            "tests": {"timeoutSeconds": 7},
        }
    )
    pod = objects.find("Pod")
    assert validate(pod) == []
    [container] = pod["spec"]["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert env["URL"] == f"http://{objects.find('Service', 'demo-llm-ray-serve')['metadata']['name']}:80"
    assert (env["NEEDS_KEY"], env["TIMEOUT_S"], env["MODEL"]) == (
        str(bool(secret)).lower(),
        "7",
        "smollm2-135m-instruct",
    )
    assert container["command"] == ["python", "-c"]
    assert [text.strip() for text in container["args"]] == [SCRIPT.read_text().strip()]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["restartPolicy"] == "Never"


def test_the_pod_can_be_left_out() -> None:
    assert not render({"tests": {"enabled": False}}).all("Pod")
