#!/usr/bin/env bash
# Runs the tests that need no torch (all, with torch, if $WITH_TORCH has its version) on the newest Python that Debian has, where this machine
# has none: in a folder of Debian's (sid) that debootstrap fills, .cache/newest. That needs root and a network; where it cannot be made this
# is said, and nothing has failed.
# Mounts are made in a name space of their own, which ends with this: in none of them can `rm -rf .cache` reach what is outside.
set -uo pipefail
cd "$(dirname "$0")/.."
version=3.14
chosen="not slow and not readers and not frameworks and not trackers and not torch" extra=test
[[ " ${WITH_TORCH:-} " != *" $version "* ]] || { chosen=${chosen% and not torch} extra=dev; }
root=$PWD/.cache/newest log=$PWD/.cache/newest.log
if "python$version" -c '' 2>/dev/null; then echo "== python $version is on the PATH: make matrix runs its tests"; exit; fi
give_up() { echo "== python $version: its tests are not run: $1"; exit; }
[ "$(id -u)" = 0 ] || give_up "only root can make a folder of Debian's"
if [ -z "${IN_A_NAME_SPACE:-}" ]; then
  unshare --mount true 2>/dev/null || give_up "this machine allows no name space of mounts"
  exec env IN_A_NAME_SPACE=1 unshare --mount bash tests/matrix_newest.sh
fi
mkdir -p .cache
if [ ! -x "$root/v/bin/python" ]; then
  rm -rf --one-file-system "$root"
  command -v debootstrap >/dev/null || { command -v apt-get >/dev/null && timeout 120 apt-get install -qq -y debootstrap >"$log" 2>&1; } ||
    give_up "debootstrap is missing, and cannot be installed"
  timeout 400 debootstrap --variant=minbase --include="python$version,python$version-dev,python$version-venv,gcc,git,strace" sid "$root" >"$log" 2>&1 ||
    give_up "$(tail -n 1 "$log")"
  # Registries are reached as they are from here.
  for file in /etc/pip.conf /etc/ssl/certs; do [ ! -e "$file" ] || cp -r "$file" "$root$(dirname "$file")/"; done
fi
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp "$(command -v uv || echo .venv/bin/uv)" "$root/usr/local/bin/uv"
mkdir -p "$root/src"
mount --bind "$PWD" "$root/src" && mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" || give_up "nothing can be mounted here"
# Tests that a bare folder of Debian's has no tools for are skipped, whatever CI expects of itself.
unset VOIRKIT_EXPECTED_SKIPS
within() { PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LC_ALL=C.UTF-8 HOME=/root chroot "$root" bash -c "cd /src && $1"; }
within "[ -x /v/bin/python ] || uv venv --quiet --seed --python python$version /v" >"$log" 2>&1 || give_up "$(tail -n 1 "$log")"
within "uv pip install --quiet --python /v/bin/python -e '.[$extra]'" || exit 1
echo "== $(within '/v/bin/python -VV')"
within "/v/bin/python -m pytest -q -n 2 --dist worksteal -m '$chosen' -p no:cacheprovider"
