#!/usr/bin/env bash
# Runs acceptance checks beside the repository. Without that folder there is nothing to do.
#   acceptance.sh PART...      of: annotations badinput crash house peers probes programs reports truth
set -uo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/../shared/acceptance
[ -d "$folder" ] || { echo "no ../shared/acceptance: nothing to check"; exit 0; }
python=$PWD/${VENV:-.venv}/bin/python
printed=$PWD/.cache/acceptance
mkdir -p "$printed"
failed=() times=()

# A part has failed if its command has; what it printed is kept, so that the end can say what.
part() { # name, command
  local name=$1
  local began=$SECONDS
  shift
  "$@" 2>&1 | tee "$printed/$name.txt" || failed+=("$name")
  times+=("$name $((SECONDS - began)) s")
}
# A program that fails plainly, without voirkit, is no measure: on a busy machine torch itself ends a rank by SIGABRT now and then, where
# threads of gloo outlive the interpreter (pytorch#179291). Such a case is tried again, up to five times, and nothing else is.
programs() {
  local command=("$python" "$folder/programs/programs.py" --voirkit "$python -m voirkit") first=$printed/programs.first.txt name
  "${command[@]}" | tee "$first" && return
  sed -nE 's/^(\w+): FAIL exit code 0, plainly [^0].*/\1/p' "$first" | sort -u > "$first.again"
  [ -s "$first.again" ] && ! grep ': FAIL ' "$first" | cut -d: -f1 | sort -u | grep -vxFf "$first.again" || return
  while read -r name; do
    for attempt in 1 2 3 4 5; do
      echo "$name failed without voirkit: tried again ($attempt)"
      "${command[@]}" -k "$name" < /dev/null | tee "$first.tried" && continue 2
      grep ': FAIL ' "$first.tried" | grep -vqE ': FAIL exit code 0, plainly [^0]' && return 1
    done
    return 1
  done < "$first.again"
}
# A script's own count of a transform leaves out its last statement, an assignment into a tensor: 5 us, and 100 where other programs of the
# machine's host have taken the caches, which is 5 % of a transform of 2 ms. So a case of which figures alone are off is run again, by itself,
# up to twice, and transforms are held against what plain python measures from outside of them; a figure that is wrong stays wrong.
truth() {
  local command=("$python" "$folder/truth/check.py" --voirkit "$python -m voirkit") first=$printed/truth.first.txt name
  "${command[@]}" | tee "$first" && return
  grep -E '^[^ :]+ [^ :]+: ' "$first" > "$first.wrong" && ! grep -vE '^[^:]+: ([^;]*should be [^;]* within [0-9]+%(; )?)+$' "$first.wrong" || return
  while read -r name; do
    for attempt in 1 2; do
      echo "$name has a figure that is off: run again ($attempt)"
      "${command[@]}" -k "$name" < /dev/null | tee "$first.again" && continue 2
      "$python" tests/left_out.py "$folder/truth/scripts/$name.py" < "$first.again" && continue 2
    done
    return 1
  done < <(cut -d' ' -f1 "$first.wrong" | sort -u)
}
probes() { # part
  (cd "$folder/probes" && "$python" "$1.py")
}
# Annotations, and what DFAnalyzer makes of their export; its environment is the one that make test-readers makes.
annotations() {
  local accept=("$python" "$folder/annotations/accept.py")
  if PYTHON=$python bash tests/report/readers/make.sh .cache/readers; then
    local analyzer=$PWD/.cache/readers/dfanalyzer
    "${accept[@]}" all --python "$python" --analyzer "$analyzer" $([ "$(cat "$analyzer/pair")" != released ] || echo --released)
  else
    echo "DFAnalyzer cannot be installed from the package index: only the battery is run"
    "${accept[@]}" battery --python "$python"
  fi
}
# The tests of voir and of giving, in the environment that make test-peers makes.
peers() {
  local there=$PWD/.cache/peers/bin/python
  "$there" "$folder/peers/voir_suite.py" --python "$there"
}

for name in "$@"; do
  case $name in
    badinput) part badinput "$python" "$folder/truth/badinput.py" --voirkit "$python -m voirkit" ;;
    # A shell in the background ignores SIGINT, and so would all that is interrupted here.
    crash) part crash env --default-signal=INT "$python" "$folder/truth/crash.py" --voirkit "$python -m voirkit" ;;
    probes) for kind in selectors preserve stdlib; do part "$kind" probes "$kind"; done ;;
    reports) part reports "$python" "$folder/reports/reports.py" --voirkit "$python -m voirkit" ;;
    # Figures to go by; rows over their limits are no failure yet.
    house) "$python" "$folder/house/house.py" "$PWD" || true ;;
    programs | truth | annotations | peers) part "$name" "$name" ;;
    *) echo "no such part: $name" >&2 && exit 2 ;;
  esac
done

for name in "${failed[@]}"; do
  echo "== $name has failed:"
  grep -vE '^ok |: ok( |$)' "$printed/$name.txt" | tail -n 30
done
echo "== parts: ${times[*]/%/,}"
[ ${#failed[@]} -eq 0 ]
