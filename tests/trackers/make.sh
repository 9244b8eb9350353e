#!/usr/bin/env bash
# Makes an environment with voirkit and the trackers that tests/trackers writes to.
#   make.sh FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
uv=${UV:-$(command -v uv || echo "$here/../../.venv/bin/uv")}
[ -x "$1/bin/python" ] || "${PYTHON:-python3}" -m venv --without-pip "$1"
"$uv" pip install --quiet --python "$1/bin/python" -r "$here/requirements.txt" -e "$here/../..[test]"
