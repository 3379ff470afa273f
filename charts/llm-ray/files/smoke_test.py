"""What `helm test` runs in the cluster: asks the service for one answer, with nothing but Python's own library."""

import json
import os
import sys
import time
import urllib.error
import urllib.request

URL = os.environ["URL"]
MODEL = os.environ["MODEL"]
NEEDS_KEY = os.environ["NEEDS_KEY"] == "true"
DEADLINE = time.monotonic() + float(os.environ["TIMEOUT_S"])
QUESTION = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}


def call(path: str, body: dict | None = None) -> tuple[int, str]:
    """HTTP status and text of the answer; status 0 is no answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=max(1.0, DEADLINE - time.monotonic())) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except OSError as error:
        return 0, str(error)


def wait_for(status: int, path: str, body: dict | None = None) -> str:
    """The answer's text once it has this status; ends the test at the deadline."""
    while True:
        got, text = call(path, body)
        if got == status:
            return text
        if time.monotonic() > DEADLINE:
            hint = "" if got else f"\nNo pod serves. {os.environ['HELP']}."
            sys.exit(f"FAILED: {URL}{path} answers {got or 'nothing'}, wanted {status}: {text[:500]}{hint}")
        time.sleep(2)


wait_for(200, "/readyz")
if NEEDS_KEY:
    wait_for(401, "/v1/completions", QUESTION)
    print("OK: the model is ready, and a request without a key is refused")
else:
    answer = json.loads(wait_for(200, "/v1/completions", QUESTION))
    text, usage = answer["choices"][0]["text"], answer["usage"]
    if answer["model"] != MODEL or not 1 <= usage["completion_tokens"] <= QUESTION["max_tokens"]:
        sys.exit(f"FAILED: an answer of {MODEL} with 1 to {QUESTION['max_tokens']} tokens was wanted, got {answer}")
    print(f"OK: {QUESTION['prompt']!r} goes on with {text!r}")
