#!/usr/bin/env bash
# Makes an environment with voirkit and what some tests need of other libraries: those of tests/frameworks, tests/trackers or tests/peers.
#   environment.sh FOLDER frameworks|trackers|peers
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
uv=${UV:-$(command -v uv || echo "$here/../.venv/bin/uv")}
[ -x "$1/bin/python" ] || "${PYTHON:-python3}" -m venv --without-pip "$1"
"$uv" pip install --quiet --python "$1/bin/python" -r "$here/$2/requirements.txt" -e "$here/..[test]"
