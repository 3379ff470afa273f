#!/usr/bin/env bash
# Resolve pyproject.toml into requirements.lock (everything) and requirements-runtime.lock (what the image needs: a subset,
# same versions). Arguments go to uv: --upgrade, or --upgrade-package NAME. No index address is written.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=(.venv/bin/uv pip compile --quiet --universal --python-version 3.11)
"${uv[@]}" --all-extras pyproject.toml --output-file requirements.lock "$@"
"${uv[@]}" --extra gguf --constraints requirements.lock --no-annotate pyproject.toml --output-file requirements-runtime.lock "$@"
