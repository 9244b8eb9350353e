#!/usr/bin/env bash
# Runs the acceptance checks beside the repository, those for what voirkit can do by now. Without that folder there is nothing to do.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/../shared/acceptance
[ -d "$folder" ] || { echo "no ../shared/acceptance: nothing to check"; exit 0; }
python=$PWD/${VENV:-.venv}/bin/python
failed=0
# What is about subcommands that do not exist yet comes with those.
later=command-report-unknown-engine
"$python" "$folder/truth/badinput.py" --voirkit "$python -m voirkit" --skip "$later" || failed=1
"$python" "$folder/truth/check.py" --voirkit "$python -m voirkit" || failed=1
# A shell in the background ignores SIGINT, and so would all that is interrupted here.
env --default-signal=INT "$python" "$folder/truth/crash.py" --voirkit "$python -m voirkit" || failed=1
for part in selectors preserve stdlib; do
  (cd "$folder/probes" && "$python" "$part.py") || failed=1
done
# Annotations, and what DFAnalyzer makes of their export; its environment is the one that make test-readers makes.
annotations=$folder/annotations/accept.py
if PYTHON=$python bash tests/report/readers/make.sh .cache/readers; then
  analyzer=$PWD/.cache/readers/dfanalyzer
  pair=$([ "$(cat "$analyzer/pair")" = released ] && echo --released)
  "$python" "$annotations" all --python "$python" --analyzer "$analyzer" $pair || failed=1
else
  echo "DFAnalyzer can not be installed from the package index: only the battery is run"
  "$python" "$annotations" battery --python "$python" || failed=1
fi
exit $failed
