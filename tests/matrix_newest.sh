#!/usr/bin/env bash
# Runs the tests that need no torch (all, with torch, if $WITH_TORCH has its version) on the newest Python that Debian has and voirkit is for,
# where this machine has not that for which voirkit is last: in a folder of Debian's (sid) that debootstrap fills, .cache/newest. That needs
# root and a network; where it cannot be made this is said, and nothing has failed. With CONTRACTS=1 the contracts with Python alone are run.
# Mounts are made in a name space of their own, which ends with this: in none of them can `rm -rf .cache` reach what is outside.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/pythons.sh
root=$PWD/.cache/newest log=$PWD/.cache/newest.log
give_up() { echo "== the newest python: its tests are not run: $1"; exit; }
if "python$newest" -c '' 2>/dev/null; then echo "== python $newest is on the PATH: make matrix runs its tests"; exit; fi
[ "$(id -u)" = 0 ] || give_up "only root can make a folder of Debian's"
if [ -z "${IN_A_NAME_SPACE:-}" ]; then
  unshare --mount true 2>/dev/null || give_up "this machine allows no name space of mounts"
  exec env IN_A_NAME_SPACE=1 unshare --mount bash tests/matrix_newest.sh
fi
within() { # command, in the folder
  PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LC_ALL=C.UTF-8 HOME=/root DEBIAN_FRONTEND=noninteractive chroot "$root" bash -c "$1"
}
mkdir -p .cache
if [ ! -e "$root/base" ]; then
  rm -rf --one-file-system "$root"
  command -v debootstrap >/dev/null || { command -v apt-get >/dev/null && timeout 120 apt-get install -qq -y debootstrap >"$log" 2>&1; } ||
    give_up "debootstrap is missing, and cannot be installed"
  timeout 900 debootstrap --variant=minbase sid "$root" >"$log" 2>&1 || give_up "$(tail -n 1 "$log")"
  # Registries are reached as they are from here.
  mkdir -p "$root/etc/ssl"
  for file in /etc/pip.conf /etc/ssl/certs; do [ ! -e "$file" ] || cp -r "$file" "$root$(dirname "$file")/"; done
  touch "$root/base"
fi
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp "$(command -v uv || echo .venv/bin/uv)" "$root/usr/local/bin/uv"
mkdir -p "$root/src"
mount --bind "$PWD" "$root/src" && mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" || give_up "nothing can be mounted here"
if [ ! -e "$root/complete" ]; then
  # a mirror may be behind
  within "apt-get update -qq -o Acquire::Check-Valid-Until=false" >"$log" 2>&1 || give_up "$(tail -n 1 "$log")"
  version=""
  for name in $(within "apt-cache pkgnames python3." | grep -xE 'python3\.[0-9]+' | sort -V); do
    if grep -qxF "${name#python}" <<<"$pythons"; then version=${name#python}; else echo "== Debian has $name, which voirkit is not for"; fi
  done
  [ -n "$version" ] || give_up "Debian has none that voirkit is for"
  # ca-certificates would replace the certificates of this machine
  within "apt-get install -qq -y --no-install-recommends python$version python$version-dev python$version-venv gcc libc6-dev git strace" >"$log" 2>&1 &&
    within "uv venv --quiet --seed --python python$version /v" >"$log" 2>&1 || give_up "$(tail -n 1 "$log")"
  echo "$version" >"$root/complete"
fi
extra=test
if [[ " ${WITH_TORCH:-} " == *" $(cat "$root/complete") "* ]]; then
  extra=dev chosen=${chosen/ and not torch/}
fi
# Tests that a bare folder of Debian's has no tools for are skipped, whatever CI expects of itself.
unset VOIRKIT_EXPECTED_SKIPS
within "cd /src && uv pip install --quiet --python /v/bin/python -e '.[$extra]'" || exit 1
echo "== $(within '/v/bin/python -VV')"
within "cd /src && /v/bin/python -m pytest -q -n 2 --dist worksteal -m '$chosen' -p no:cacheprovider ${contracts[*]}"
