#!/usr/bin/env bash
# Builds what is written in C with the compiler's checks of memory (AddressSanitizer) and of undefined behaviour, and runs the tests that
# touch it. All of it is in a folder of its own, with a copy of the project: the libraries beside the sources stay as they are.
#   sanitize.sh FOLDER [TEST...]
# What the checks find in any process, also in one whose end no test looks at, is put into FOLDER/found, printed last, and fails this.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "$1")
shift
python=$(realpath -s "${PYTHON:-python3}")
uv=$(realpath -s "${UV:-$(command -v uv || echo .venv/bin/uv)}")
compiler=${CC:-gcc}
checks="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
# libstdc++ is there before AddressSanitizer looks for what it replaces of it: torch throws exceptions
runtime=$(for name in libasan.so libubsan.so libstdc++.so; do "$compiler" -print-file-name="$name"; done | xargs)
if [[ $runtime != /*\ /*\ /* ]]; then
  echo "$compiler has no library for these checks: $runtime" >&2
  exit 1
fi

mkdir -p "$folder"
rm -rf "$folder/project" "$folder/found"
mkdir "$folder/project" "$folder/found"
tar -c --exclude='./.venv*' --exclude=./.cache --exclude=./.git --exclude='*.so' --exclude=__pycache__ . | tar -x -C "$folder/project"
[ -x "$folder/env/bin/python" ] || "$python" -m venv --without-pip "$folder/env"
cd "$folder/project"
CFLAGS=$checks LDFLAGS=$checks "$uv" pip install --quiet --refresh-package voirkit --reinstall-package voirkit \
  --python "$folder/env/bin/python" -e ".[dev]" || exit 1
libraries=$(find voirkit instruments -name '*.so')
[ "$(wc -w <<<"$libraries")" = 4 ] || { echo "not all four libraries have been built: $libraries" >&2; exit 1; }
for library in $libraries; do
  nm -D "$library" | grep -q __asan_init || { echo "$library was built without the checks" >&2; exit 1; }
done

# Python keeps what it allocates for ever, which is no leak; its own allocator would hide from the checks what is read after it was freed.
export LD_PRELOAD=$runtime PYTHONMALLOC=malloc
# What was freed is kept aside for a while, to see who reads it after that: of a size that a test of memory which stays as it is fills soon.
export ASAN_OPTIONS="detect_leaks=0:quarantine_size_mb=16:log_path=$folder/found/memory"
export UBSAN_OPTIONS="print_stacktrace=1:log_path=$folder/found/undefined"
failed=0
run() { # marks, tests
  "$folder/env/bin/python" -m pytest -n 2 --dist worksteal -p no:cacheprovider \
    -m "not slow and not readers and not frameworks and not trackers and not gpu and $1" "${@:2}" || failed=1
}
if [ $# -gt 0 ]; then
  run "(long or not long)" "$@"
else
  # A program with torch takes half a minute so: of those only some of --calls, of which no other test touches the library.
  run "not long" tests/trace tests/probes tests/instruments/test_steps*.py
  run long tests/trace tests/probes tests/instruments/test_calls.py
fi
unset LD_PRELOAD
found=$(find "$folder/found" -type f | wc -l)
find "$folder/found" -type f -exec sh -c 'echo "== $1"; head -n 60 "$1"' - {} \;
echo "== the checks found $found"
[ "$failed" = 0 ] && [ "$found" = 0 ]
