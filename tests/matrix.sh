#!/usr/bin/env bash
# Runs the tests that need no torch on every Python that voirkit is for and this machine has, each in an environment of its own.
# On those that $WITH_TORCH names (such as "3.12 3.13") all tests are run, with torch.
# What reads runs (analysis, exports, views) is tested on the oldest and the newest alone; what weaves and records on each.
# $WITHOUT (such as 3.11) is left out: the one whose tests have just been run with torch and all.
# With CONTRACTS=1 the contracts with Python alone are run, on the oldest that is found and on the newest, if it is.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/pythons.sh
uv=$(command -v uv || echo "$PWD/.venv/bin/uv")

# Where a Python is; nothing if it is not there.
path_of() { # version
  local python
  python=$(command -v "python$1" 2>/dev/null)
  if ! "${python:-false}" -c '' 2>/dev/null; then
    python=$(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python3 2>/dev/null | tail -n 1)
  fi
  echo "$python"
}

there=() failed=0
for version in $pythons; do
  if [ "$version" = "${WITHOUT:-}" ]; then
    echo "== python $version: left out"
  elif [ -z "$(path_of "$version")" ]; then
    echo "== python $version: not found"
  else
    there+=("$version")
  fi
done
if [ -n "${CONTRACTS:-}" ] && [ "${#there[@]}" -gt 1 ]; then
  [ "${there[-1]}" = "$newest" ] && there=("${there[0]}" "$newest") || there=("${there[0]}")
fi
for version in "${there[@]}"; do
  python=$(path_of "$version")
  echo "== python $version: $python"
  env=.cache/matrix/$version
  extra=test marked=$chosen left_out=()
  if [[ " ${WITH_TORCH:-} " == *" $version "* ]]; then
    extra=dev marked=${chosen/ and not torch/}
  elif [ "$version" != "${there[0]}" ] && [ "$version" != "${there[-1]}" ]; then
    left_out=(--ignore=tests/analysis --ignore=tests/report --ignore=tests/runs --ignore-glob='tests/instruments/test_dash*')
  fi
  [ -x "$env/bin/python" ] || "$python" -m venv "$env"
  "$uv" pip install --quiet --python "$env/bin/python" -e ".[$extra]" &&
    "$env/bin/python" -m compileall -q voirkit instruments &&
    "$env/bin/python" -m pytest -q -n 2 --dist worksteal -m "$marked" -p no:cacheprovider "${left_out[@]}" "${contracts[@]}" || failed=$((failed + 1))
done
echo "${#there[@]} interpreters, $failed failed"
[ "${#there[@]}" -gt 0 ] && [ "$failed" -eq 0 ]
