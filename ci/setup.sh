#!/usr/bin/env bash
# Make .venv from requirements.lock and put this project into it. Does nothing when neither has changed since.
set -euo pipefail
cd "$(dirname "$0")/.."
uv_version=0.13.9

want=$(cat requirements.lock pyproject.toml ci/setup.sh | sha256sum | cut -c1-16)-$(pwd | sha256sum | cut -c1-8)
if [[ -f .venv/.stamp && $(<.venv/.stamp) == "$want" ]]; then
  exit 0
fi

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
    if "$candidate" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "setup: no Python 3.11 or later with the venv module found (tried ${PYTHON:+$PYTHON, }python3.11, python3.12, python3.13, python3):" \
    "install python3.11 and python3.11-venv, or name one with PYTHON=/path/to/python3" >&2
  return 2
}

if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  python=$(find_python)
  echo "setup: making .venv with $("$python" --version)"
  "$python" -m venv --clear .venv
fi
rm -f .venv/.stamp
if [[ $(.venv/bin/uv --version 2>/dev/null) != "uv $uv_version"* ]]; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "uv==$uv_version"
fi
echo "setup: installing requirements.lock (5 GB the first time, links to uv's cache after that)"
export DS_BUILD_OPS=0 VIRTUAL_ENV="$PWD/.venv"
.venv/bin/uv pip install --quiet --requirements requirements.lock
.venv/bin/uv pip install --quiet --no-deps --editable .
echo "$want" >.venv/.stamp
