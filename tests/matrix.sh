#!/usr/bin/env bash
# Runs the tests that need no torch on every Python from 3.10 to 3.14 that this machine has, each in an environment of its own.
# On those that $WITH_TORCH names (such as "3.12 3.13") all tests are run, with torch.
# What reads runs (analysis, exports, views) is tested on the oldest and the newest alone; what weaves and records on each.
# $WITHOUT (such as 3.11) is left out: the one whose tests have just been run with torch and all.
set -uo pipefail
cd "$(dirname "$0")/.."
uv=$(command -v uv || echo "$PWD/.venv/bin/uv")
failed=0 found=0 newest=13
! command -v python3.14 >/dev/null || newest=14
for minor in 10 11 12 13 14; do
  [ "3.$minor" != "${WITHOUT:-}" ] || { echo "== python 3.$minor: left out"; continue; }
  python=$(command -v "python3.$minor" 2>/dev/null)
  if ! "${python:-false}" -c '' 2>/dev/null; then
    python=$(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python3 2>/dev/null | tail -n 1)
  fi
  [ -n "$python" ] || { echo "== python 3.$minor: not found"; continue; }
  found=$((found + 1))
  echo "== python 3.$minor: $python"
  env=.cache/matrix/3.$minor
  extra=test chosen="not slow and not readers and not frameworks and not trackers and not torch" between=()
  [[ " ${WITH_TORCH:-} " != *" 3.$minor "* ]] || extra=dev chosen=${chosen% and not torch}
  [ "$extra" = dev ] || [ "$minor" = 10 ] || [ "$minor" = "$newest" ] || between=(--ignore=tests/analysis --ignore=tests/report --ignore=tests/runs --ignore-glob='tests/instruments/test_dash*')
  [ -x "$env/bin/python" ] || "$python" -m venv "$env"
  "$uv" pip install --quiet --python "$env/bin/python" -e ".[$extra]" &&
    "$env/bin/python" -m compileall -q voirkit instruments &&
    "$env/bin/python" -m pytest -q -n 2 --dist worksteal -m "$chosen" -p no:cacheprovider "${between[@]}" || failed=$((failed + 1))
done
echo "$found interpreters, $failed failed"
[ "$found" -gt 0 ] && [ "$failed" -eq 0 ]
